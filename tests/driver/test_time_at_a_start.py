"""How far event time has come, as a driver that has just started finds it in the log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from test_upgrade import KEYS, SECOND, VALUES, N

from holdfast.driver.found import _timekeeper as timekeeper
from holdfast.log.ledger import Ledger
from holdfast.log.records import FEED, Commit, Fence, GraphFile, JobFile, Prepare, Range
from holdfast.log.store import Store
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.stage import InputPlan, StagePlan, TimePlan
from holdfast.operators.window import WindowSpec


def windows(name: str, number: int) -> StagePlan:
    spec = WindowSpec(KEYS, (N,), VALUES, 4 * SECOND, 4 * SECOND, "event", "v2")
    return StagePlan(name, 2, (InputPlan(2, number),), spec, time=TimePlan(follows=("first",)))


def test_a_stage_that_was_split_off_goes_on_from_its_sources_watermark(tmp_path: Path) -> None:
    """Its driver died when only the first level of the epoch was prepared: what is late there was late before."""
    first = StagePlan("first", 1, (InputPlan(1, 0),), StageSpec(KEYS, (N,)), time=TimePlan(("first/0/rows",)))
    one, two = windows("one/windows", 1), windows("two/windows", 2)
    ledger = Ledger(Store(tmp_path), "main")
    ledger.open_or_create_job(JobFile("j", "hub", {}, 1, 0, stages=[first.to_dict(), one.to_dict()], names={"a": "a"}))

    def prepare(epoch: int, level: int, **watermarks: Any) -> None:
        ledger.put_prepare(Prepare(Fence(1, epoch, 1), level, {FEED: Range(epoch, epoch)}, (), 9, **watermarks))

    prepare(1, 1, watermark_after={"first": 70 * SECOND})
    prepare(1, 2, watermark_after={"one/windows": 70 * SECOND})
    ledger.put_commit(Commit(Fence(1, 1, 1), {FEED: Range(1, 1)}))
    stages = [stage.to_dict() for stage in (first, one, two)]
    graph = GraphFile(1, 0, 1, {}, stages, [], [], [], 0, live=True, former=0, names={"a": "a"})
    ledger.put_graph(GraphFile(**{**vars(graph), "splits": {"two/windows": "one/windows"}, "splits_at": 2}))
    prepare(2, 1, watermark_before={"first": 70 * SECOND}, watermark_after={"first": 90 * SECOND})
    plan: Any = SimpleNamespace(stages=[first, one, two])
    keeper = timekeeper(Ledger(Store(tmp_path), "main"), plan, 1)
    _, before, after = keeper.advance(2, [])
    assert before == {"one/windows": 70 * SECOND, "two/windows": 70 * SECOND}
    assert after == {"one/windows": 90 * SECOND, "two/windows": 90 * SECOND}
