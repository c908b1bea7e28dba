"""Event times ahead of filters: what a stage does not want still tells how far its source has come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast import testing

Draw = Callable[[hf.Stream], hf.Stream]


def at(second: int) -> str:
    return f"2026-01-01 00:00:{second:02d}"


def row(n: int, second: int) -> dict[str, object]:
    return {"k": "a", "n": n, "ts": at(second), "later": at(second + 1)}


def watermark(draw: Draw, on: str = "ts", **options: str) -> str | None:
    """After one row that is kept and one, much later, that the filter drops."""
    job = testing.Job()
    rows = job.read("k string, n bigint, ts timestamp, later timestamp", name="rows")
    stage = draw(rows).key_by("k").window(hf.tumbling("1 s"), time=on, **options).agg(n=hf.count())
    with job.start(clock="2026-01-01 00:00:00") as run:
        run.epoch([row(1, 5), row(0, 40)])
        reached = run.watermark(stage)
        return None if reached is None else f"{reached:%S}"


@pytest.mark.parametrize(
    ("draw", "seconds"),
    [
        (lambda rows: rows.where("n > 0"), "40"),
        (lambda rows: rows.select("k", "ts", "n").where("n > 0").with_column("m", "10 / n").where("m > 1"), "40"),
        (lambda rows: rows.where("n > 0").select("k", "ts"), "40"),
        (lambda rows: rows.where("n > 0").select("*"), "40"),
        (lambda rows: rows.with_column("ts", "later").where("n > 0"), "41"),
        # Made behind the filter: from here on nobody knows what the dropped row's time would have been.
        (lambda rows: rows.where("n > 0").with_column("ts", "coalesce(later, ts)"), "06"),
        (lambda rows: rows.where("n > 0").with_column("ts", "later"), "41"),  # another name for what was there
        (lambda rows: rows.transform(lambda frame: frame.where("n > 0")), "05"),
        (lambda rows: rows.transform(lambda frame: frame).where("n > 0"), "40"),
    ],
)
def test_the_largest_time_is_taken_where_its_column_first_is(draw: Draw, seconds: str) -> None:
    assert watermark(draw) == seconds


def test_times_that_are_too_far_ahead_do_not_count_there_either() -> None:
    assert watermark(lambda rows: rows.where("n > 0"), ahead="30 s") == "05"


def test_a_union_goes_by_position() -> None:
    def both(rows: hf.Stream) -> hf.Stream:
        return rows.select("k", "n", "ts").where("n > 0").union(rows.where("n > 0 AND n < 0").select("k", "n", "later"))

    assert watermark(both) == "41"


def test_each_source_of_a_union_has_its_own() -> None:
    """The watermark is the least of both, and a source all of whose rows are dropped does not hold it back."""
    job = testing.Job()
    one, two = (job.read("k string, n bigint, ts timestamp", name=name) for name in ("one", "two"))
    both = one.union(two).where("n > 0").key_by("k").window(hf.tumbling("1 s"), time="ts").agg(n=hf.count())
    with job.start() as run:
        run.epoch(one=[{"k": "a", "n": 1, "ts": at(9)}])
        assert run.watermark(both) is None
        run.epoch(two=[{"k": "a", "n": 0, "ts": at(30)}], crash="mid-apply")
        assert f"{run.watermark(both):%S}" == "09"
        run.epoch(one=[{"k": "a", "n": 0, "ts": at(20)}], crash="all")
        assert f"{run.watermark(both):%S}" == "20"
        testing.equal(run.rows(both.select("k", "n")), [{"k": "a", "n": 1}])
