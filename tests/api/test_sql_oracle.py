"""Random SQL over streams, without Spark: the state at the end is what DuckDB says to the same text over all rows."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import duckdb
import pytest
from sql_kit import CLICKS, KINDS, LATENESS, ORDERS, Asked, asked, last, rows_of

from holdfast import testing
from holdfast.plan.ddl import schema_of
from holdfast.testing import PLACES
from holdfast.testing.values import to_table

Rows = list[tuple[Any, ...]]


def oracle(query: Asked, epochs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, ddl in (("clicks", CLICKS), ("orders", ORDERS)):
            rows = [row for epoch in epochs for row in epoch[name]]
            connection.register(name, to_table(rows, schema_of(ddl), name))
        closed = last(epochs, "clicks")
        found = connection.sql(query.truth.replace("{closed}", closed.isoformat())).to_arrow_table()
    return found.to_pylist()


def plain(rows: list[dict[str, Any]]) -> Rows:
    def one(value: Any) -> Any:
        if isinstance(value, dt.datetime):
            return value.astimezone(dt.UTC).isoformat()
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value

    def rank(row: tuple[Any, ...]) -> list[tuple[bool, Any]]:
        return [(value is not None, str(value)) for value in row]

    return sorted((tuple(map(one, row.values())) for row in rows), key=rank)


def settled(rows: list[dict[str, Any]], query: Asked, until: dt.datetime) -> list[dict[str, Any]]:
    """Rows that cannot change any more."""
    return [
        row
        for row in rows
        if all(row[name] is None or row[name].astimezone(dt.UTC) <= until for name in query.closing)
        or (query.kind == "outer" and row["t"] is not None and row["u"] is not None)
    ]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lookup"])
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(at, marks=pytest.mark.heavy) for at in range(3, 40))])
def test_random_queries(kind: str, seed: int, drill_seed: int) -> None:
    draw = random.Random(f"{kind} {seed + 40 * (drill_seed - 1)}")
    query = asked(draw, kind)
    epochs = rows_of(draw, draw.randint(2, 5), draw.choice([4, 12, 30]))
    job = testing.Job()
    used = {"clicks"} | ({"orders"} if "orders" in query.text else set())
    job.read(CLICKS, name="clicks", time="ts", lateness=f"{LATENESS} s")
    if "orders" in used:
        job.read(ORDERS, name="orders", time="ts", lateness=f"{LATENESS} s")
    stream = job.sql(query.text, dialect=query.dialect)
    if not job._stages:
        job.sql("SELECT count(*) FROM clicks", name="counted")
    with job.start(slices=3) as run:
        for epoch in epochs:
            crash = draw.choice([None, None, *PLACES])
            run.epoch({name: rows for name, rows in epoch.items() if name in used}, crash=crash)
        found = run.rows(stream)
        assert not [text for text in run.warnings if "late" in text]
    until = last(epochs, *used)
    if query.kind == "outer":
        until -= dt.timedelta(seconds=121)
    right = settled(oracle(query, epochs), query, until)
    assert plain(settled(found, query, until)) == plain(right), query.text


def test_the_queries_show_something() -> None:
    """Of each kind some have rows: an oracle that expects nothing shows nothing."""
    for kind in KINDS:
        if kind == "lookup":
            continue
        sizes = []
        for seed in range(6):
            draw = random.Random(f"{kind} {seed}")
            query = asked(draw, kind)
            epochs = rows_of(draw, draw.randint(2, 5), draw.choice([4, 12, 30]))
            sizes.append(len(oracle(query, epochs)))
        assert max(sizes) > 1, kind
