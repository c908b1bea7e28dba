"""Sums over rows that change: what was replaced leaves nothing behind, and what overflows is no dead end."""

from __future__ import annotations

import math
from typing import Any

import pytest

import holdfast as hf
from holdfast import testing


def _rooms(job: testing.Job) -> Any:
    newest = job.read("sensor int, room int, celsius double").key_by("sensor", "room").agg(celsius=hf.last("celsius"))
    return newest.key_by("room").agg(
        total=hf.sum("celsius"), mean=hf.mean("celsius"), var=hf.var("celsius"), deviation=hf.stddev("celsius")
    )


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e20, 1e300, -1.7e308])
@pytest.mark.parametrize("crash", [None, "mid-apply", "all"])
def test_a_value_that_was_replaced_is_forgotten(odd: float, crash: str | None) -> None:
    job = testing.Job()
    rooms = _rooms(job)
    run = job.start()
    run.epoch([{"sensor": 1, "room": 1, "celsius": odd}, {"sensor": 2, "room": 1, "celsius": 2.0}])
    run.epoch([{"sensor": 1, "room": 1, "celsius": 1.0}], crash=crash)
    for _ in range(3):
        run.epoch([{"sensor": 2, "room": 1, "celsius": 2.0}])
    assert run.rows(rooms) == [{"room": 1, "total": 3.0, "mean": 1.5, "var": 0.5, "deviation": math.sqrt(0.5)}]


def test_sliding_windows_over_rows_that_change() -> None:
    job = testing.Job()
    hours = (
        job.read("sensor int, at timestamp, celsius double")
        .key_by("sensor", "at")
        .agg(celsius=hf.last("celsius"))
        .key_by("sensor")
        .window(hf.sliding("2 hours", every="1 hour"), time="at", lateness="2 hours")
        .agg(total=hf.sum("celsius"), var=hf.var("celsius"), mean=hf.mean("celsius"))
    )
    run = job.start()
    at = [f"2026-01-01 0{hour}:10:00" for hour in range(9)]
    run.epoch([{"sensor": 1, "at": at[0], "celsius": 1e20}, {"sensor": 1, "at": at[1], "celsius": math.nan}])
    run.epoch([{"sensor": 1, "at": at[0], "celsius": 1.0}, {"sensor": 1, "at": at[1], "celsius": 2.0}])
    run.epoch([{"sensor": 1, "at": at[8], "celsius": 0.0}])
    found = [(row["total"], row["var"], row["mean"]) for row in run.rows(hours)]
    assert found == [(1.0, None, 1.0), (3.0, 0.5, 1.5), (2.0, None, 2.0)]


def _totals(job: testing.Job) -> Any:
    newest = job.read("user int, grp int, x bigint").key_by("user", "grp").agg(x=hf.last("x"))
    return newest.key_by("grp").agg(total=hf.sum("x"), mean=hf.mean("x"))


def test_a_sum_may_pass_its_range_within_an_epoch() -> None:
    for kind, most in (("bigint", 2**63 - 1), ("decimal(38,0)", 10**38 - 1)):
        job = testing.Job()
        newest = job.read(f"user int, grp int, x {kind}").key_by("user", "grp").agg(x=hf.last("x"))
        totals = newest.key_by("grp").agg(total=hf.sum("x"))
        run = job.start()
        run.epoch([{"user": 1, "grp": 1, "x": most}])
        run.epoch([{"user": 1, "grp": 1, "x": 1}, {"user": 2, "grp": 1, "x": 2}])
        assert run.rows(totals) == [{"grp": 1, "total": 3}]


def test_what_does_not_fit_fails_or_is_null_until_it_does() -> None:
    most = 2**63 - 1
    first, second = [{"user": 1, "grp": 1, "x": most}], [{"user": 2, "grp": 1, "x": 2}]
    for how in (None, "fail"):
        job = testing.Job()
        totals = _totals(job)
        run = job.start(on_overflow=how)
        run.epoch(first)
        with pytest.raises(hf.FunctionError, match="sum 'total' overflowed bigint"):
            run.epoch(second)
        assert [row["total"] for row in run.rows(totals)] == [most]
        run.epoch([{"user": 2, "grp": 1, "x": -2}])
        assert [row["total"] for row in run.rows(totals)] == [most - 2]
    for ansi in (True, False):
        job = testing.Job(ansi=ansi)
        totals = _totals(job)
        run = job.start(on_overflow="null")
        run.epoch(first)
        run.epoch(second)
        assert run.rows(totals) == [{"grp": 1, "total": None, "mean": float(most + 2) / 2}]
        run.epoch([{"user": 1, "grp": 1, "x": 1}])
        assert run.rows(totals) == [{"grp": 1, "total": 3, "mean": 1.5}]
    job = testing.Job(ansi=False)  # as Spark without ANSI
    totals = _totals(job)
    run = job.start()
    run.epoch(first)
    run.epoch(second)
    assert [row["total"] for row in run.rows(totals)] == [-(2**63) + 1]
    with pytest.raises(hf.PlanError, match="on_overflow must be 'fail' or 'null', not 'wrap'"):
        job.start(on_overflow="wrap")  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [hf.tumbling("1 hour"), hf.sliding("2 hours", every="1 hour"), hf.session("50 min")])
def test_a_window_is_judged_when_its_row_leaves(window: Any) -> None:
    most, early = 2**63 - 1, [("2026-01-01 00:10:00", 2**63 - 1), ("2026-01-01 00:20:00", 5)]
    for back, wanted in ((-5, most), (0, None)):
        for how in ("null", "fail"):
            job = testing.Job()
            hours = job.read("k int, at timestamp, x bigint").key_by("k").window(window, time="at").agg(s=hf.sum("x"))
            run = job.start(on_overflow=how)  # type: ignore[arg-type]
            run.epoch([{"k": 1, "at": at, "x": x} for at, x in early])
            run.epoch([{"k": 1, "at": "2026-01-01 00:30:00", "x": back}])
            assert not run.rows(hours)
            closes = [{"k": 1, "at": "2026-01-01 09:00:00", "x": 1}]
            if wanted is None and how == "fail":
                with pytest.raises(hf.FunctionError, match="sum 's' overflowed bigint"):
                    run.epoch(closes)
                assert {row["s"] for row in run.state(hours)} <= {None, most, 5, 0}, "it can be read, as null"
            else:
                run.epoch(closes)
                assert {row["s"] for row in run.rows(hours)} == {wanted}
