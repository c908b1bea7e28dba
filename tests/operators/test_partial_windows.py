"""Rows aggregated ahead of a window or session give what the rows themselves give, late ones counted alike."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from aggregate_model import crc, plain
from hypothesis import given
from hypothesis import strategies as st
from test_window_oracle import SMALL, epochs_of
from window_model import Event, aggregates, at, batch, columns

from holdfast.operators.cumulative import CumulativeSpec
from holdfast.operators.keyed import KeyedOperator
from holdfast.operators.session import SessionOperator, SessionSpec
from holdfast.operators.window import WindowSpec
from holdfast.state.warm import warm

TIME = pa.timestamp("us", tz="UTC")
FUNCTIONS = [("count",), *((name, "v0", "bigint") for name in ("count", "sum", "min", "max"))]


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


def partial_batch(spec: Any, tasks: list[list[Event]], late: int) -> pa.RecordBatch:
    """What Spark makes of each task's rows: one for every key and stretch of time, or moment that may be late."""
    partials = spec.partials()
    assert partials is not None
    cells = partials.stretch
    made: dict[str, list[Any]] = {}
    for task in tasks:
        groups: dict[Any, list[Event]] = {}
        for row in task:
            assert row.time is not None
            stretch = 0 if cells is None else row.time - (row.time - cells.offset) % cells.length
            if cells is not None and cells.alone is not None:  # one number for both kinds, as in Spark's column
                in_time = late - cells.alone
                stretch = row.time if row.time < in_time else max(stretch, in_time)
            groups.setdefault((row.key, stretch), []).append(row)
        for (key, stretch), rows in groups.items():
            values = [row.values[0] for row in rows if row.values[0] is not None]
            times = [row.time for row in rows if row.time is not None]
            start = min(times) if cells is None or cells.from_first else stretch
            found: dict[str, Any] = {"_h": crc(key), "k0": key[0], "_n": len(rows)}
            found |= {"_from": at(start), "_to": at(max(times))}
            for number, one in enumerate(spec.aggregates):
                found[f"p{number}_0"] = (
                    len(rows)
                    if one.input is None
                    else len(values)
                    if one.function == "count"
                    else {"sum": sum, "min": min, "max": max}[one.function](values)
                    if values
                    else None
                )
            for name, value in found.items():
                made.setdefault(name, []).append(value)
    kinds = {"_from": TIME, "_to": TIME, "k0": pa.int32()}
    return pa.record_batch({name: pa.array(made[name], kinds.get(name, pa.int64())) for name in made})


def check(operator: KeyedOperator, spec: Any, data: st.DataObject) -> None:
    whole, ahead = operator.new_slice(), operator.new_slice()
    for number, epoch in enumerate(epochs_of(data.draw, spec), start=1):
        rows = [row for row in epoch.rows if row.time is not None]  # the intake drops the others
        cut = data.draw(st.integers(0, len(rows)))
        some = operator.decode(batch(operator, rows)) if rows else None
        fewer = None
        if rows:
            tasks = [rows[:cut], rows[cut:]]
            fewer = operator.decode(partial_batch(spec, tasks, epoch.time.late), partial=True)
        whole.apply(number, some, time=epoch.time)
        ahead.apply(number, fewer, time=epoch.time)
        found, wanted = (sorted(map(repr, plain(state.outputs(number, "changelog")))) for state in (ahead, whole))
        assert found == wanted
        assert ahead.counts == whole.counts
        assert ahead.rows == whole.rows


@SMALL
@pytest.mark.parametrize("kind", [WindowSpec, CumulativeSpec])
@given(data=st.data())
def test_windows(kind: type[WindowSpec], data: st.DataObject) -> None:
    every = data.draw(st.integers(1, 6))
    mode, early = data.draw(st.sampled_from([("append", 0), ("append", 0), ("update", 0), ("append", 10)]))
    unit = data.draw(st.sampled_from(["event", "event", "clock"]))
    spec = kind(
        columns(["int"], "key"),
        aggregates(data.draw(st.lists(st.sampled_from(FUNCTIONS), min_size=1, max_size=4))),
        columns(["bigint", "timestamp"], "value"),
        every * data.draw(st.integers(1, 5)) if kind is CumulativeSpec else data.draw(st.integers(every, 20)),
        every,
        unit,
        "v1" if unit == "event" else None,
        offset=data.draw(st.integers(-3, 9)),
        mode=mode,
        early=early,
    )
    check(spec.build(), spec, data)


@SMALL
@given(data=st.data())
def test_sessions(data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(["event", "event", "clock"]))
    spec = SessionSpec(
        columns(["int"], "key"),
        aggregates(data.draw(st.lists(st.sampled_from(FUNCTIONS), min_size=1, max_size=4))),
        columns(["bigint", "timestamp"], "value"),
        data.draw(st.integers(1, 12)),
        unit,
        "v1" if unit == "event" else None,
        data.draw(st.sampled_from(["append", "update"])),
    )
    check(SessionOperator(spec), spec, data)
