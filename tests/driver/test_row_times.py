"""When nearly none of the event times can be used, people hear which column of which stage it is."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast import testing
from holdfast.driver.row_times import EPOCHS, RowTimes

COLUMNS = {"hours": "ts"}


def test_all_null_is_told_at_once_and_once() -> None:
    times = RowTimes(COLUMNS)
    assert list(times.epoch({"hours": {"came": 5, "null time": 4}})) == []
    (said,) = times.epoch({"hours": {"came": 5, "null time": 5}})
    assert "'hours'" in said
    assert "'ts'" in said
    assert "all 5 have none" in said
    assert list(times.epoch({"hours": {"came": 5, "null time": 5}})) == []


@pytest.mark.parametrize("why", ["late", "future", "null time"])
def test_most_of_many(why: str) -> None:
    times = RowTimes(COLUMNS)
    assert list(times.epoch({"hours": {"came": 50, why: 49}})) == [], "too few to tell"
    (said,) = times.epoch({"hours": {"came": 50, why: 2}})
    assert "51 of the last 100" in said


def test_half_is_not_most_and_few_rows_are_judged_after_some_epochs() -> None:
    times = RowTimes(COLUMNS)
    assert list(times.epoch({"hours": {"came": 100, "late": 50}})) == []
    few = {"hours": {"came": 1, "late": 1}, "other": {"late": 9}}
    told = [said for _ in range(EPOCHS) for said in times.epoch(few)]
    assert len(told) == 1
    assert "20 of the last 20" in told[0]


def job(**options: str | None) -> tuple[testing.Run, hf.StageStream]:
    drawn = testing.Job()
    rows = drawn.read("k int, at timestamp")
    hours = rows.key_by("k", name="hours").window(hf.tumbling("1 hour"), time="at", **options).agg(n=hf.count())  # type: ignore[arg-type]
    return drawn.start(clock="2026-01-01 00:00:00"), hours


def test_a_run_says_so() -> None:
    run, hours = job()
    run.epoch([{"k": 1, "at": None}, {"k": 2, "at": None}])
    assert "column 'at'" in run.warnings[0]
    assert run.counts(hours) == {"null time": 2}
    run.epoch([{"k": 1, "at": "2026-01-01 12:00:00"}])
    run.epoch([{"k": 1, "at": "2026-01-01 02:00:00"}] * 200)
    assert "200 of the last 20" in run.warnings[1]


def test_event_times_more_than_a_day_ahead_stay_out_unless_somebody_wants_them() -> None:
    far = [{"k": 1, "at": "2026-01-01 23:59:00"}, {"k": 1, "at": "2026-01-02 00:00:01"}, {"k": 2, "at": "2031-01-01"}]
    run, hours = job()
    run.epoch(far)
    assert run.counts(hours) == {"future": 2}
    assert f"{run.watermark(hours):%d %H:%M}" == "01 23:59"
    run, hours = job(ahead=None)
    run.epoch(far)
    assert run.counts(hours) == {}
    assert f"{run.watermark(hours):%Y}" == "2031"
    assert "more than a day ahead" in run.warnings[0]
