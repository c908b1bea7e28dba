"""Aggregates with conditions of their own, and the tables of values that counts of one column share."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast import testing
from holdfast.errors import PlanError
from holdfast.operators.aggregate import AggregateOperator, StageSpec
from holdfast.operators.spec import AggregateSpec, Column

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("p", pa.int64())])
ROW = st.fixed_dictionaries(
    {
        "k": st.integers(0, 3),
        "v": st.none() | st.sampled_from(["", "a", "b", "long enough for a tail"]),
        "p": st.none() | st.integers(0, 5),
    }
)
EPOCHS = st.lists(st.lists(ROW, max_size=12), min_size=1, max_size=4)
WHERE = {
    "every": hf.count_distinct("v"),
    "low": hf.count_distinct("v", where="p < 3"),
    "high": hf.count_distinct("v", where="p >= 3"),
    "prices": hf.count_distinct("p", where="v <> 'a'"),
    "about": hf.approx_distinct("v", where="p < 3"),
    "rows": hf.count(where="p < 3"),
    "named": hf.count("v", where="p < 3"),
    "total": hf.sum("p", where="v = 'a'"),
    "most": hf.max("v", where="p >= 3"),
}
ORACLE = """count(DISTINCT v) AS every,
    count(DISTINCT v) FILTER (p < 3) AS low, count(DISTINCT v) FILTER (p >= 3) AS high,
    count(DISTINCT p) FILTER (v <> 'a') AS prices, count(DISTINCT v) FILTER (p < 3) AS about,
    count(*) FILTER (p < 3) AS rows, count(v) FILTER (p < 3) AS named,
    sum(p) FILTER (v = 'a')::BIGINT AS total, max(v) FILTER (p >= 3) AS most"""


def batch(query: str, epochs: list[list[dict[str, object]]]) -> list[dict[str, object]]:
    given = pa.Table.from_pylist([row for epoch in epochs for row in epoch], SCHEMA)  # noqa: F841 - DuckDB reads it
    return duckdb.sql(query).to_arrow_table().to_pylist()


@settings(deadline=None, max_examples=50)
@given(epochs=EPOCHS, crash=st.sampled_from([None, "after-prepare", "mid-apply"]))
def test_only_rows_that_meet_the_condition_count(epochs: list[list[dict[str, object]]], crash: str | None) -> None:
    job = testing.Job()
    counted = job.read("k bigint, v string, p bigint").key_by("k").agg(**WHERE)
    run = job.start()
    for number, rows in enumerate(epochs):
        run.epoch(rows, crash=crash if number == len(epochs) // 2 else None)
    found = {row["k"]: row for row in run.state(counted)}
    assert sorted(found.values(), key=lambda row: row["k"]) == batch(
        f"SELECT k, {ORACLE} FROM given GROUP BY k ORDER BY k", epochs
    )


@settings(deadline=None, max_examples=50)
@given(epochs=EPOCHS)
def test_and_so_do_rows_that_are_taken_back(epochs: list[list[dict[str, object]]]) -> None:
    """The last text of each key, counted by how many rows the key has: every new row takes an old pair back."""
    job = testing.Job()
    first = job.read("k bigint, v string, p bigint").key_by("k").agg(v=hf.max("v"), n=hf.count())
    second = first.with_column("all", "0").key_by("all")
    counted = second.agg(
        texts=hf.count_distinct("v"),
        rare=hf.count_distinct("v", where="n < 4"),
        often=hf.count_distinct("v", where="n >= 4"),
        sizes=hf.count_distinct("n"),
    )
    run = job.start()
    for rows in epochs:
        run.epoch(rows)
    oracle = batch(
        """SELECT 0 AS all, count(DISTINCT v) AS texts, count(DISTINCT v) FILTER (n < 4) AS rare,
           count(DISTINCT v) FILTER (n >= 4) AS often, count(DISTINCT n) AS sizes
           FROM (SELECT max(v) AS v, count(*) AS n FROM given GROUP BY k)""".replace("AS all", 'AS "all"'),
        epochs,
    )
    assert run.state(counted) == (oracle if any(epochs) else [])


def test_counts_of_one_column_share_its_values() -> None:
    def spec(name: str, column: str, where: str | None = None) -> AggregateSpec:
        return AggregateSpec(name, "count_distinct", column, "bigint", where=where)

    counts = (spec("a", "v0"), spec("b", "v1"), spec("c", "v0", "v2"), spec("d", "v0", "v3"))
    operator = AggregateOperator(StageSpec((Column("k", "bigint"),), counts))
    assert [len(layout.columns) for layout in operator.layouts] == [4, 3, 1]


def test_a_condition_must_be_one() -> None:
    rows = testing.Job().read("k bigint, v string, p bigint").key_by("k")
    with pytest.raises(PlanError, match="not a condition"):
        rows.agg(n=hf.count(where="p + 1"))
    with pytest.raises(PlanError, match="nowhere"):
        rows.agg(n=hf.count_distinct("v", where="nowhere > 1"))
