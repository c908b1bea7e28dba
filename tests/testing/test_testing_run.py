"""What a test of a job can do: rows in, rows out, the clock, side outputs, sinks; all without a JVM."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast as hf
from holdfast import testing
from holdfast.testing import at, equal

CLICKS = "product string, n bigint, ts timestamp"
MINUTE = "2026-01-01 00:00:"


def click(product: str | None, n: int | None, second: int) -> dict[str, Any]:
    return {"product": product, "n": n, "ts": f"{MINUTE}{second:02d}"}


def test_the_ten_lines_of_the_manual() -> None:
    job = testing.Job()
    clicks = job.read(CLICKS, name="clicks")
    hot = clicks.where("n > 0").key_by("product").window(hf.tumbling("10 s"), time="ts").agg(total=hf.sum("n"))
    with job.start() as run:
        run.epoch(clicks=[click("a", 1, 1), click("a", 2, 3), click("b", -1, 4)])
        assert run.rows(hot) == []
        run.epoch(clicks=[click("b", 5, 12)], crash="mid-apply")
        window = {"window_start": at(MINUTE + "00"), "window_end": at(MINUTE + "10")}
        assert run.rows(hot) == [{"product": "a", **window, "total": 3}]
        equal(
            run.state(hot), [{"product": "b", "window_start": MINUTE + "10", "window_end": MINUTE + "20", "total": 5}]
        )
        assert run.watermark(hot) == at(MINUTE + "12")


def test_no_java_is_started_and_duckdb_only_for_sql() -> None:
    code = (
        "import sys; sys.modules['duckdb'] = None\n"
        "import holdfast as hf; from holdfast import testing; from pyspark import SparkContext\n"
        "job = testing.Job(); read = job.read('k string, n bigint')\n"
        "sums = read.select('n', 'k').union(read.select('n', 'k')).key_by('k').agg(n=hf.sum('n'))\n"
        "run = job.start(); run.epoch([{'k': 'a', 'n': 1}], crash='all'); print(run.rows(sums))\n"
        "assert SparkContext._gateway is None\n"
        "try: read.where('n > 0')\n"
        "except hf.PlanError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[{'k': 'a', 'n': 2}]\nSQL text in a test needs DuckDB")
    assert "holdfast[testing]" in done.stdout


def test_a_stream_that_changes_its_rows_is_a_table() -> None:
    job = testing.Job()
    read = job.read("k string, n bigint")
    sums = read.key_by("k").agg(n=hf.sum("n"))
    large = sums.where("n >= 10").with_column("tens", "n // 10")
    run = job.start()
    run.epoch([{"k": "b", "n": 10}, {"k": "a", "n": 10}, {"k": None, "n": 1}])
    run.epoch([{"k": "a", "n": 20}])
    assert run.rows(sums) == [{"k": None, "n": 1}, {"k": "a", "n": 30}, {"k": "b", "n": 10}]
    assert run.last(sums) == [{"k": "a", "n": 30}]
    assert run.rows(large) == [{"k": "a", "n": 30, "tens": 3}, {"k": "b", "n": 10, "tens": 1}]
    run.epoch([{"k": "b", "n": -5}])
    assert run.rows(large) == [{"k": "a", "n": 30, "tens": 3}]
    assert run.last(large) == []
    assert run.rows(read)[-1] == {"k": "b", "n": -5}


def test_three_stages_and_a_union() -> None:
    job = testing.Job()
    left, right = job.read("k string, n int", name="left"), job.read("k string, n int", name="right")
    sums = left.union(right).key_by("k").agg(n=hf.sum("n"))
    sizes = sums.key_by("n").agg(keys=hf.count())
    best = sizes.top_k(1, by=["keys", ("n", "asc")], rank="place")
    run = job.start(slices=3)
    run.epoch(left=[{"k": "a", "n": 1}, {"k": "b", "n": 1}], right=[{"k": "c", "n": 2}])
    assert run.rows(best) == [{"place": 1, "keys": 2, "n": 1}]
    run.epoch({"right": [{"k": "a", "n": 1}, {"k": "b", "n": 1}]}, crash="mid-apply")
    assert run.rows(sizes) == [{"n": 2, "keys": 3}]
    assert run.rows(best) == [{"place": 1, "keys": 3, "n": 2}]


def test_late_rows_and_other_bad_times() -> None:
    job = testing.Job()
    clicks = job.read(CLICKS)
    counted = (
        clicks.key_by("product")
        .window(hf.tumbling("10 s"), time="ts", late="keep", ahead="1 minute")
        .agg(rows=hf.count())
    )
    run = job.start(clock=MINUTE + "00")
    run.epoch([click("a", 1, 25), {"product": "a"}, {"product": "a", "ts": "2026-01-01 00:01:01"}])
    run.epoch([click("a", 7, 3), click("a", 1, 26)])
    assert run.counts(counted) == {"null time": 1, "future": 1, "late": 1}
    equal(run.rows(counted.late), [click("a", 7, 3)])


def test_a_join_of_two_sources_with_an_outer_side() -> None:
    job = testing.Job()
    orders = job.read("id bigint, what string, at timestamp", name="orders")
    paid = job.read("id bigint, cents bigint, paid_at timestamp", name="payments")
    both = orders.key_by("id").join(paid.key_by("id"), how="left", time=("at", "paid_at"), within=("0 s", "10 s"))
    run = job.start()
    run.epoch(
        orders=[{"id": 1, "what": "tea", "at": MINUTE + "01"}, {"id": 2, "what": "jam", "at": MINUTE + "02"}],
        payments=[{"id": 1, "cents": 300, "paid_at": MINUTE + "05"}],
    )
    assert [(row["what"], row["cents"]) for row in run.rows(both)] == [("tea", 300)]
    run.epoch(
        orders=[{"id": 3, "what": "oil", "at": MINUTE + "30"}],
        payments=[{"id": 9, "cents": 1, "paid_at": MINUTE + "30"}],
        crash="after-prepare",
    )
    assert [(row["what"], row["cents"]) for row in run.last(both)] == [("jam", None)]


def test_distinct_and_sketches() -> None:
    job = testing.Job()
    words = job.read("word string, ts timestamp")
    first = words.key_by("word").distinct(time="ts", within="10 s")
    about = (
        words.with_column("all", "0").key_by("all").agg(about=hf.approx_distinct("word"), n=hf.count_distinct("word"))
    )
    run = job.start()
    run.epoch([{"word": word, "ts": MINUTE + "01"} for word in ("x", "y", "x", "z")])
    assert [row["word"] for row in run.rows(first)] == ["x", "y", "z"]
    assert run.rows(about) == [{"all": 0, "about": 3, "n": 3}]
    assert run.counts(first) == {"duplicate": 1}


def test_windows_of_the_clock_close_when_it_is_moved() -> None:
    job = testing.Job()
    read = job.read("k string")
    counted = read.key_by("k").window(hf.tumbling("10 s")).agg(n=hf.count())
    then = counted.key_by("k").agg(windows=hf.count())
    run = job.start(clock=MINUTE + "03")
    run.epoch([{"k": "a"}, {"k": "a"}])
    assert run.advance("6 s") == 0
    assert run.rows(counted) == []
    assert run.advance("1 s") == 1
    equal(run.rows(counted), [{"k": "a", "window_start": MINUTE + "00", "window_end": MINUTE + "10", "n": 2}])
    assert run.rows(then) == [{"k": "a", "windows": 1}]
    assert run.clock == at(MINUTE + "10")


class Alarm:
    """Rings when a key has been silent for five seconds, and again every second until the end of days."""

    heard = hf.states.value("bigint", default=0)

    def rows(self, key: str, rows: list[dict[str, Any]], context: Any) -> Iterator[dict[str, Any]]:
        context.state.heard += len(rows)
        context.set_timer(int(context.clock.timestamp() * 1e6) + 5_000_000, kind="clock")
        if any(row["n"] is None for row in rows):
            raise ValueError("no number")
        yield {"key": key, "heard": context.state.heard}

    def timer(self, key: str, time: Any, context: Any) -> None:
        context.emit({"key": key, "at": context.clock}, to="alarms")
        context.set_timer(int(context.clock.timestamp() * 1e6) + 1_000_000, kind="clock")


def test_timers_side_outputs_and_a_function_that_raises() -> None:
    job = testing.Job()
    heard = (
        job.read("key string, n bigint")
        .key_by("key")
        .process(Alarm, "key string, heard bigint", outputs={"alarms": "key string, at timestamp"})
    )
    alarms = heard.output("alarms")
    run = job.start(clock=MINUTE + "00")
    run.epoch([{"key": "a", "n": 1}, {"key": "a", "n": 2}])
    assert run.rows(heard) == [{"key": "a", "heard": 2}]
    with pytest.raises(hf.FunctionError, match="no number"):
        run.epoch([{"key": "b", "n": 1}, {"key": "a", "n": None}])
    assert run.rows(heard) == [{"key": "a", "heard": 2}]  # not half of it
    assert run.epoch([{"key": "a", "n": 3}], crash="all") == 2
    assert run.last(heard) == [{"key": "a", "heard": 3}]
    run.advance("5 s")
    run.epoch()
    assert run.rows(alarms) == [{"key": "a", "at": at(MINUTE + "05")}]


def test_sinks_collect_and_neither_write_nor_call() -> None:
    job = testing.Job()
    read = job.read("k string")
    counts = read.key_by("k").agg(n=hf.count())
    counts.write("parquet", "/nowhere/at/all", name="changed").write("console", mode="complete", name="whole")
    counts.where("n > 1").for_each_batch(lambda df, epoch: pytest.fail("not called"), name="called")
    read.write("memory", name="plain")
    run = job.start()
    run.epoch([{"k": "b"}, {"k": "a"}])
    run.epoch([{"k": "b"}])
    assert run.sink("changed") == [[{"k": "a", "n": 1}, {"k": "b", "n": 1}], [{"k": "b", "n": 2}]]
    assert run.sink("whole")[1] == [{"k": "a", "n": 1}, {"k": "b", "n": 2}]
    assert run.sink("called") == [[], [{"k": "b", "n": 2}]]
    assert run.sink("plain")[1] == [{"k": "b"}]
    with pytest.raises(hf.PlanError, match="no sink 'other'"):
        run.sink("other")


def test_a_job_can_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    job = testing.Job("shop")
    job.read("k string", name="clicks").key_by("k").agg(n=hf.count())
    job.explain()
    assert "source 'clicks'" in capsys.readouterr().out
