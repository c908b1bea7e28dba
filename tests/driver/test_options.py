"""What ``job.start`` refuses before anything happens, and what it makes of safety and recovery together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

import holdfast as hf
from holdfast import testing
from holdfast.driver import start
from holdfast.driver.live_job import SECTION
from holdfast.driver.options import Options
from holdfast.log.ledger import Ledger
from holdfast.log.records import JobFile
from holdfast.log.store import Store
from holdfast.recovery.policies import Chained
from holdfast.safety.shards import Cut


@pytest.mark.parametrize(
    ("given", "says", "todo"),
    [
        ({"recovery": hf.Tree()}, "recovery=Tree\\(\\) needs pieces on the ring", "hf.Shards"),
        ({"recovery": hf.Auto(), "safety": None}, "recovery=Auto\\(\\) needs pieces", "hf.Shards"),
        ({"recovery": hf.Star(), "safety": hf.Sync()}, "recovery=Star\\(\\) needs pieces", "hf.Shards"),
        ({"recovery": hf.Chained(), "safety": hf.Shards()}, "needs copies of whole slices", "hf.Auto"),
        ({"safety": hf.Shards(m=0)}, "m must be at least 1", ""),
        ({"upload_limit": "fast"}, "upload_limit cannot be 'fast'", "100 Mbit/s"),
        ({"upload_limit": 0}, "upload_limit cannot be 0", "100 Mbit/s"),
        ({"upload_limit": "-1 MB/s"}, "upload_limit cannot be", "100 Mbit/s"),
        ({"upload_limit": True}, "upload_limit cannot be True", "100 Mbit/s"),
        ({"security": "plain"}, "security='plain' is none", "hf.Plain"),
        ({"listen": "/run/shop"}, "listen='/run/shop' is a folder", "Leave it out"),
        ({"safety": "fast"}, "safety cannot be 'fast'", "hf.Delta"),
        ({"recovery": "x"}, "recovery cannot be 'x'", "hf.Chained"),
        ({"recovery": hf.Star}, "recovery cannot be <class", "hf.Chained"),
        ({"autoscale": True}, "autoscale cannot be True", "hf.Autoscale"),
        ({"silence": 3}, "silence cannot be 3", "hf.Silence"),
        ({"copy_bandwidth": -1}, "copy_bandwidth cannot be -1", "100 Mbit/s"),
        ({"slices": "many"}, "slices must be a whole number .* or 'auto', not 'many'", "Leave it out"),
        ({"slices": True}, "slices must be a whole number", "Leave it out"),
        ({"slices": 0}, "slices must be a whole number", "Leave it out"),
        ({"slices": 1.5}, "slices must be a whole number", "Leave it out"),
        ({"containers": "2"}, "containers must be a whole number, at least 1, not '2'", "Leave containers= out"),
        ({"threads": 0}, "threads must be a whole number", "Leave threads= out"),
        ({"sinks_at_once": 0.5}, "sinks_at_once must be a whole number", "Leave sinks_at_once= out"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], says: str, todo: str) -> None:
    with pytest.raises(hf.PlanError, match=says) as refused:
        Options(**given)
    assert refused.value.safe == "Nothing was started."
    assert todo in refused.value.todo


@pytest.mark.parametrize(
    ("stages", "hub", "asked", "slices"),
    [(7, False, None, 128), (8, False, None, 32), (1, True, None, 32), (8, False, 64, 64), (1, False, "auto", 16)],
)
def test_how_many_slices_a_job_has_is_said_once(
    tmp_path: Path, stages: int, hub: bool, asked: int | Literal["auto"] | None, slices: int
) -> None:
    """A store of a job keeps them, whatever becomes of the job: one of before, one that grows, a fork of one."""
    job: Any = SimpleNamespace(spark=SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2)))
    drawn: Any = SimpleNamespace(stages=[None] * stages, stages_may_come=hub)
    ledger, options = Ledger(Store(str(tmp_path)), SECTION), Options(slices=asked)
    assert start._slices(job, drawn, ledger, options) == slices
    ledger.open_or_create_job(JobFile("id", "shop", {}, 100, 0))
    assert start._slices(job, drawn, ledger, options) == (64 if asked == 64 else 100)


def test_the_way_back_fits_the_safety() -> None:
    assert Options().way_back == Chained()
    assert Options().join_ring() is None
    assert Options(safety=hf.Shards()).way_back == hf.Auto()
    assert Options(safety=hf.Shards(), recovery=hf.FromStore()).way_back == hf.FromStore()


def test_a_tree_wants_its_shards_in_parts() -> None:
    tree = Options(safety=hf.Shards(m=4, n=3), recovery=hf.Tree(parts=3))
    assert tree.terms().shards == Cut(4, 3, 3)
    ring = tree.join_ring()
    assert ring is not None
    assert (ring.policy, ring.cut) == (hf.Tree(parts=3), Cut(4, 3, 3))
    assert Options(safety=hf.Shards(m=4), recovery=hf.Line()).terms().shards == Cut(4, 2, 1)


@pytest.mark.parametrize(
    ("limit", "rate"),
    [("100 Mbit/s", 12.5e6), ("1Gb/s", 125e6), ("1 GB/s", 1e9), ("800 kbit/s", 1e5), ("100 Mbps", 12.5e6), (5e6, 5e6)],
)
def test_limits_as_people_write_them(limit: float | str, rate: float) -> None:
    assert Options(upload_limit=limit).upload == rate


@pytest.mark.parametrize(
    ("given", "pace"),
    [
        (None, {}),
        ({}, {}),
        ("1 second", {"processingTime": "1000 milliseconds"}),
        ("250 ms", {"processingTime": "250 milliseconds"}),
        ({"processingTime": "1 minute 30 seconds"}, {"processingTime": "90000 milliseconds"}),
        ({"processingTime": "0 seconds"}, {"processingTime": "0 milliseconds"}),
        ("availableNow", {"availableNow": True}),
        ({"once": True}, {"once": True}),
    ],
)
def test_triggers_as_people_write_them(given: Any, pace: dict[str, Any]) -> None:
    assert Options(trigger=given).pace == pace


@pytest.mark.parametrize(
    "given",
    [
        "banana",
        "",
        "1 banana",
        "1 second banana",
        1,
        ("processingTime", "1 second"),
        {"processingTime": 1},
        {"processingTime": "now and then"},
        {"availableNow": False},
        {"availableNow": True, "once": True},
        {"every": "1 second"},
    ],
)
def test_a_trigger_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(hf.PlanError, match="A trigger cannot be") as refused:
        Options(trigger=given)
    assert refused.value.safe == "Nothing was started."
    assert "processingTime" in refused.value.todo


@pytest.mark.parametrize(
    "draw",
    [
        lambda keyed: keyed.window(hf.tumbling("10 s"), time="ts", late="nonsense"),
        lambda keyed: keyed.window(hf.tumbling("10 s"), time="ts", mode="nonsense"),
        lambda keyed: keyed.process(print, "k bigint", late="nonsense"),
        lambda keyed: keyed.process(print, "k bigint", rows="nonsense"),
        lambda keyed: keyed.process(print, "k bigint", errors="nonsense"),
        lambda keyed: keyed.lookup(keyed.agg(n=hf.count()), how="nonsense"),
        lambda keyed: keyed.join(keyed, how="nonsense"),
        lambda _: Options(where="nonsense"),  # type: ignore[arg-type]
        lambda _: Options(push="nonsense"),  # type: ignore[arg-type]
        lambda _: Options(preaggregate=1),
    ],
)
def test_choices_that_are_none_are_refused(draw: Any) -> None:
    keyed = testing.Job().read("k bigint, ts timestamp").key_by("k")
    with pytest.raises(hf.PlanError, match=r"cannot be ('nonsense'|1)\.") as refused:
        draw(keyed)
    assert refused.value.todo.startswith("Use ")


WITH_TIME = {
    "window": lambda keyed, **options: keyed.window(hf.tumbling("10 s"), **options),
    "join": lambda keyed, **options: keyed.join(keyed, **options),
    "distinct": lambda keyed, **options: keyed.distinct(within="10 s", **options),
    "process": lambda keyed, **options: keyed.process(print, "k bigint", **options),
}


@pytest.mark.parametrize("verb", WITH_TIME)
def test_event_time_is_called_time(verb: str) -> None:
    """``on=`` means keys in Spark, so nobody's habit may quietly name the event time with it."""
    keyed = testing.Job().read("k bigint, ts timestamp").key_by("k")
    with pytest.raises(hf.PlanError, match=f"{verb} has no option 'on'") as refused:
        WITH_TIME[verb](keyed, on="ts")
    assert "time=" in refused.value.todo


@pytest.mark.parametrize("verb", ["join", "distinct", "process"])
def test_verbs_without_a_stream_of_late_rows_say_so(verb: str) -> None:
    rows = testing.Job().read("k bigint, ts timestamp")
    with pytest.raises(hf.PlanError, match="cannot keep its late rows") as refused:
        WITH_TIME[verb](rows.key_by("k"), time="ts", late="keep")
    assert "late='count'" in refused.value.todo or "late='give'" in refused.value.todo
    with pytest.raises(hf.PlanError, match="late cannot be 'drop'"):
        WITH_TIME[verb](rows.key_by("k"), time="ts", late="drop")
    with pytest.raises(hf.PlanError, match="its late rows are counted"):
        rows.key_by("k").window(hf.tumbling("10 s"), time="ts", late="keep").top_k(1, by="ts")
