"""Cumulative windows beside SQL over the same rows, whatever the epochs are, and whatever crashes in them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast import testing
from holdfast.testing import PLACES, at, equal

SCHEMA = "k string, v bigint, ts timestamp"
FIRST = at("2026-01-01 00:00:00")
Rows = list[dict[str, Any]]
row = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", "é"]),
        "v": st.integers(-5, 5),
        "ts": st.integers(0, 400).map(lambda second: FIRST + dt.timedelta(seconds=second)),
    }
)
# Windows of two minutes that grow by 20 s, 30 s late at most: of a row some, all or none may be over.
TRUTH = """
    SELECT k, make_timestamp(start) AS window_start, make_timestamp(start + step * 20000000) AS window_end,
           count(*) AS n, sum(v)::BIGINT AS total, max(v) AS most
    FROM (SELECT *, epoch_us(ts) // 120000000 * 120000000 AS start FROM given), range(1, 7) steps(step)
    WHERE epoch_us(ts) < start + step * 20000000 AND start + step * 20000000 <= $watermark
          AND (late IS NULL OR start + step * 20000000 > late)
    GROUP BY ALL"""


def micros(time: dt.datetime) -> int:
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


@pytest.mark.parametrize("crashes", [False, True], ids=["calm", "crashes"])
@given(
    st.lists(st.lists(row, max_size=8), min_size=1, max_size=6),
    st.lists(st.sampled_from(PLACES), min_size=6, max_size=6),
)
@settings(max_examples=25, deadline=None)
def test_they_are_what_sql_says(crashes: bool, epochs: list[Rows], places: list[str]) -> None:
    job = testing.Job()
    windows = (
        job.read(SCHEMA)
        .key_by("k")
        .window(hf.cumulative("2 minutes", every="20 s"), time="ts", lateness="30 s")
        .agg(n=hf.count(), total=hf.sum("v"), most=hf.max("v"))
    )
    given: Rows = []
    watermark: int | None = None
    with job.start(slices=3) as run:
        for rows, place in zip(epochs, places, strict=False):
            run.epoch(rows, crash=place if crashes else None)
            given += [one | {"late": watermark} for one in rows]
            seen = [micros(one["ts"]) - 30_000_000 for one in rows]
            watermark = max([*seen, *([] if watermark is None else [watermark])], default=None)
        found = run.rows(windows)
        late = run.counts(windows).get("late", 0)
    kinds = [("k", pa.string()), ("v", pa.int64()), ("ts", pa.timestamp("us")), ("late", pa.int64())]
    table = pa.Table.from_pylist([one | {"ts": one["ts"].replace(tzinfo=None)} for one in given], pa.schema(kinds))
    with duckdb.connect() as sql:
        sql.register("given", table)
        wanted = sql.sql(TRUTH, params={"watermark": watermark or 0}).to_arrow_table().to_pylist()
    edges = ("window_start", "window_end")
    equal(found, [one | {edge: one[edge].replace(tzinfo=dt.UTC) for edge in edges} for one in wanted])
    over = [one for one in given if one["late"] is not None and _last_end(one["ts"]) <= one["late"]]
    assert late == len(over)


def _last_end(time: dt.datetime) -> int:
    return micros(time) // 120_000_000 * 120_000_000 + 120_000_000


def test_what_there_is_not_is_said() -> None:
    with pytest.raises(hf.PlanError, match="does not grow to its size by steps of '7 s'"):
        hf.cumulative("1 minute", every="7 s")
    with pytest.raises(hf.PlanError, match="no span of time"):
        hf.cumulative("1 minute", every="0 s")
    keyed = testing.Job().read(SCHEMA).key_by("k")
    windows = keyed.window(hf.cumulative("1 minute", every="20 s"), time="ts")
    with pytest.raises(hf.PlanError, match="Only tumbling windows in event time have a top_k"):
        windows.top_k(1, by="v")
    with pytest.raises(hf.PlanError, match="which windows cannot"):
        windows.agg(n=hf.count_distinct("v"))


def test_their_results_are_windows_to_those_who_read_them() -> None:
    """The best of each window; and windows over windows, whose start is as old as its size."""
    job = testing.Job()
    growing = job.read(SCHEMA).key_by("k").window(hf.cumulative("1 minute", every="20 s"), time="ts").agg(n=hf.count())
    best = growing.top_k(1, by="n")
    ends = growing.key_by("k").window(hf.tumbling("1 minute"), time="window_start").agg(windows=hf.count())
    rows = [{"k": key, "v": 1, "ts": FIRST + dt.timedelta(seconds=second)} for key, second in (("a", 1), ("b", 30))]
    with job.start() as run:
        run.epoch([*rows, {"k": "b", "v": 1, "ts": FIRST + dt.timedelta(seconds=31)}])
        run.epoch([{"k": "z", "v": 1, "ts": FIRST + dt.timedelta(seconds=200)}])
        assert [(one["k"], one["n"], one["window_end"].second) for one in run.rows(best)] == [
            *(("a", 1, 20), ("b", 2, 40), ("b", 2, 0))
        ]
        assert sorted((one["k"], one["windows"]) for one in run.rows(ends)) == [("a", 3), ("b", 2)]
