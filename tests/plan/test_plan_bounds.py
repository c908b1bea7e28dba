"""What is final in a stage is in time for its readers, whichever of its columns they take as time. Others: refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast import testing

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
CRASHES = st.sampled_from([None, None, "after-prepare", "mid-apply", "after-commit", "all"])


def at(second: int) -> dt.datetime:
    return START + dt.timedelta(seconds=second)


def row(k: int, second: int) -> dict[str, Any]:
    return {"k": k, "ts": at(second)}


# --- sessions by their start ------------------------------------------------------------------------------------------


def test_a_session_longer_than_its_readers_window_is_not_late() -> None:
    job = testing.Job()
    rows = job.read("k int, ts timestamp")
    sessions = rows.key_by("k", name="sessions").window(hf.session("10 s"), time="ts").agg(n=hf.count())
    hours = sessions.key_by("k", name="hours").window(hf.tumbling("10 s"), time="window_start").agg(sessions=hf.count())
    once = (
        sessions.select("k", "window_start", "n").key_by("k", name="once").distinct(time="window_start", within="10 s")
    )
    with job.start() as run:
        for second in range(0, 50, 8):
            run.epoch([row(1, second)])
        assert run.watermark(hours) == START, "held back by the session that is open"
        run.epoch([row(1, 300)])
        run.epoch([row(1, 540)])
        assert [(one["window_start"], one["sessions"]) for one in run.rows(hours)] == [(at(0), 1), (at(300), 1)]
        assert [(one["window_start"], one["n"]) for one in run.rows(once)] == [(at(0), 7), (at(300), 1)]
        assert run.counts(hours) == run.counts(once) == {}


@st.composite
def epochs(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Rows of a key and a second, in disorder; some far behind, so that sessions grow to the left and are bridged."""
    found = []
    for number in range(draw(st.integers(1, 7))):
        second = st.integers(0, 12).map(lambda one, now=6 * number: now + one) | st.integers(0, 60)
        found.append(draw(st.lists(st.tuples(st.integers(0, 2), second), max_size=6)))
    return found


@settings(max_examples=30, deadline=None)
@given(given=epochs(), data=st.data())
def test_no_reader_of_sessions_ever_has_a_late_row(given: list[list[tuple[int, int]]], data: st.DataObject) -> None:
    """By start and by end, also through a distinct between them, and whatever is lost on the way."""
    gap, lateness = data.draw(st.integers(1, 8)), data.draw(st.integers(0, 5))
    mode = data.draw(st.sampled_from(["append", "update"]))
    job = testing.Job()
    windowed = job.read("k int, ts timestamp").key_by("k", name="sessions")
    sessions = windowed.window(hf.session(f"{gap} s"), time="ts", lateness=f"{lateness} s").agg(n=hf.count())
    readers = []
    for on in ("window_start", "window_end"):
        readers.append(
            sessions.with_column("all", "0")
            .key_by("all", name=f"by-{on}")
            .window(hf.tumbling("4 s"), time=on, mode=mode)
            .agg(rows=hf.sum("n"))
        )
    first = sessions.key_by("k", "window_start", "window_end", name="once").distinct()
    through = first.key_by("k", name="through").window(hf.tumbling("3 s"), time="window_start").agg(rows=hf.sum("n"))
    with job.start() as run:
        for rows in given:
            run.epoch([row(*one) for one in rows], crash=data.draw(CRASHES))
        run.epoch([row(9, 10_000)])
        run.epoch([row(9, 20_000)], crash=data.draw(CRASHES))
        run.epoch([row(9, 30_000)])
        wanted = [one for one in run.rows(sessions) if one["k"] != 9]
        for reader in (*readers, through):
            assert "late" not in run.counts(reader)
            assert sum(one["rows"] for one in run.rows(reader) if one["window_end"] < at(9_000)) == sum(
                one["n"] for one in wanted
            )


# --- the other verbs --------------------------------------------------------------------------------------------------


def seconds(run: testing.Run, stage: hf.Stream) -> int | None:
    reached = run.watermark(stage)
    return None if reached is None else round((reached - START).total_seconds())


Draw = Callable[[hf.Stream], hf.Stream]


def windows(rows: hf.Stream, window: hf.Window = hf.tumbling("10 s"), **more: Any) -> hf.StageStream:  # noqa: B008
    return rows.key_by("k", name="below").window(window, time="ts", **more).agg(n=hf.count(), last=hf.max("ts"))


def pairs(rows: hf.Stream, how: str = "left") -> hf.StageStream:
    right = rows.with_column("us", "ts").select("k", "us").key_by("k")
    return (
        rows.select("k", "ts").key_by("k", name="below").join(right, time=("ts", "us"), within=("3 s", "7 s"), how=how)
    )  # type: ignore[arg-type]


class Echo:
    def rows(self, key: int, rows: Any, context: Any) -> Any:
        for one in rows:
            yield {"k": key, "at": one["ts"]}


def echo(rows: hf.Stream) -> hf.StageStream:
    return rows.key_by("k", name="below").process(Echo, "k int, at timestamp", time="ts")


@pytest.mark.parametrize(
    ("draw", "on", "held"),
    [
        (windows, "window_end", 0),
        (windows, "window_start", 10),
        (lambda rows: windows(rows, hf.sliding("10 s", every="2 s")), "window_start", 10),
        (lambda rows: windows(rows).with_column("t", "window_start").select("k", "t"), "t", 10),
        (lambda rows: windows(rows).top_k(1, by="n"), "window_start", 10),
        (lambda rows: windows(rows).key_by("window_end", name="again").agg(m=hf.count()), "window_end", 0),
        (lambda rows: rows.key_by("k").window(hf.tumbling("10 s"), time="ts").top_k(1, by="v"), "ts", 10),
        (lambda rows: rows.key_by("k").distinct(time="ts", within="5 s"), "ts", 0),
        (lambda rows: rows.with_column("t", "ts").key_by("k", "ts").distinct(time="t", within="5 s"), "ts", 0),
        (lambda rows: windows(rows).key_by("k", "window_end").distinct(), "window_start", 10),
        (pairs, "ts", 7),
        (pairs, "us", 3),
        (echo, "at", 0),
    ],
)
def test_what_may_be_time_and_how_far_it_is_held_back(draw: Draw, on: str, held: int) -> None:
    job = testing.Job()
    below = draw(job.read("k int, v int, ts timestamp", name="rows"))
    rows = below.with_column("one", "1").key_by("one", name="reader")
    stage = rows.window(hf.tumbling("1 s"), time=on).agg(n=hf.count())
    with job.start() as run:
        run.epoch([row(1, 100)])
        assert seconds(run, stage) == 100 - held


@pytest.mark.parametrize(
    ("draw", "on", "instead"),
    [
        (windows, "last", "'window_end' or 'window_start'"),
        (
            lambda rows: windows(rows).with_column("window_end", "coalesce(window_end, last)"),
            "window_end",
            "'window_start'",
        ),
        (lambda rows: windows(rows).key_by("k", name="again").agg(t=hf.max("window_end")), "t", "docs/operators.md"),
        (lambda rows: rows.key_by("k").distinct(time="ts", within="5 s"), "other", "'ts'"),
        (
            lambda rows: (
                rows.select("k", "ts").key_by("k").join(rows.select("k", "other").key_by("k"), time=("ts", "other"))
            ),
            "ts",
            "docs/operators.md",
        ),
        (lambda rows: windows(rows, late="keep").late, "ts", "lateness="),
    ],
)
def test_what_is_no_time_is_refused_with_what_is(draw: Draw, on: str, instead: str) -> None:
    job = testing.Job()
    rows = job.read("k int, ts timestamp, other timestamp", name="rows")
    below = draw(rows)
    with pytest.raises(hf.PlanError) as refused:
        below.key_by("k", name="reader").window(hf.tumbling("1 s"), time=on).agg(n=hf.count())
    assert instead in str(refused.value)
    assert "reader" in str(refused.value)


def test_a_union_is_held_back_by_the_most_of_both() -> None:
    job = testing.Job()
    rows = job.read("k int, ts timestamp")
    short, long = (
        rows.key_by("k", name=f"of-{size}").window(hf.tumbling(f"{size} s"), time="ts").agg(n=hf.count())
        for size in (10, 30)
    )
    both = short.select("k", "window_end").union(long.select("k", "window_start"))
    stage = both.key_by("k", name="reader").window(hf.tumbling("1 s"), time="window_end").agg(n=hf.count())
    with job.start() as run:
        run.epoch([row(1, 100)])
        assert seconds(run, stage) == 70


def test_late_rows_have_a_time_for_whoever_says_how_late() -> None:
    job = testing.Job()
    late = windows(job.read("k int, v int, ts timestamp"), late="keep").late
    days = late.key_by("k", name="reader").window(hf.tumbling("10 s"), time="ts", lateness="100 s").agg(n=hf.count())
    with job.start() as run:
        run.epoch([row(1, 300)])
        run.epoch([row(1, 210), row(1, 150)])
        run.epoch([row(1, 500)])
        assert [one["window_start"] for one in run.rows(days)] == [at(210)]
        assert run.counts(days) == {"late": 1}


def test_windows_by_the_clock_say_nothing_of_event_time() -> None:
    """Over a stage with event time they have no watermark of it: their ends are taken as a source's times are."""
    job = testing.Job()
    clocked = windows(job.read("k int, ts timestamp")).key_by("k", name="clocked").window(hf.tumbling("10 s"))
    stage = clocked.agg(m=hf.count()).key_by("k", name="reader").window(hf.tumbling("10 s"), time="window_end")
    counted = stage.agg(n=hf.count())
    with job.start() as run:
        run.epoch([row(1, -50_000)])
        run.epoch([row(1, -40_000)])
        assert run.watermark(counted) is None
        run.advance("10 s")
        assert seconds(run, counted) == 10
        run.epoch([row(1, -30_000)])
        run.advance("10 s")
        assert [one["window_start"] for one in run.rows(counted)] == [at(10)]
        assert run.counts(counted) == {}
