"""What a start makes of blocks, begun batches and the numbers of sinks, with the ledger and the handlers that ship.

Runs that end anywhere, one after another, over one store; stores of before there were blocks.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.driver.found import begun_before, counted, look, moved_down, refuse_moved, refuse_undrained
from holdfast.driver.history import History
from holdfast.driver.intake import IntakeHandlers
from holdfast.driver.options import Options
from holdfast.driver.sizes import Sizes
from holdfast.driver.store import Feedback, StoreHandlers
from holdfast.driver.units import Written
from holdfast.driver.watermarks import Timekeeper
from holdfast.errors import FencedError, PlanError, StoreError
from holdfast.log.blocks import batch_at, standing
from holdfast.log.ledger import Ledger
from holdfast.log.records import FEED, Batch, Commit, Fence, GraphFile, Prepare, Range
from holdfast.log.store import Store
from holdfast.master import instructions as do
from holdfast.master.events import IntakeDone
from holdfast.master.feed import (
    BatchOffered,
    BeginBatch,
    Feed,
    FeedStarted,
    RefuseBatch,
    RunSourceSink,
    StoreBlock,
    TakeIn,
)
from holdfast.operators.stage import TimePlan
from holdfast.spark.checkpoint import SparkNotes


def plan(over_source: tuple[str, ...] = ("raw",), over_stages: tuple[str, ...] = ("out",)) -> Any:
    named = {name: SimpleNamespace(name=name) for name in (*over_source, *over_stages)}
    below = [named[name] for name in over_source]
    return SimpleNamespace(sinks=[*named.values()], stateless_sinks=below, levels=1, stages=[], feeding=())


class Run:
    """One driver's, from its start on; where it ends is where nobody calls it any more."""

    def __init__(self, root: Path, incarnation: int, drawn: Any = None, layout: str = "L") -> None:
        self.root, self.incarnation = root, incarnation
        self.ledger = Ledger(Store(str(root)), "main")
        (root / "main/spark/offsets").mkdir(parents=True, exist_ok=True)
        (root / "main/spark/metadata").write_text('{"id": "q"}')
        drawn, notes = drawn or plan(), SparkNotes(self.ledger)
        notes.begin_blocks(incarnation)
        self.blocks = standing(self.ledger)
        self.found = look(self.ledger, drawn, Options(), self.blocks)
        refuse_moved(moved_down(self.found.commit, drawn, self.blocks))
        above, below = counted(self.found, drawn, Options(), self.blocks)
        self.log = StoreHandlers(
            self.ledger,
            incarnation,
            History(),
            notes,
            above,
            self.found.time,
            Sizes(1),
            [],
            Feedback(()),
            Written(None),
        )
        self.log.over_source = frozenset(sink.name for sink in drawn.stateless_sinks)
        begun = begun_before(self.ledger, self.found, self.blocks)
        self.intake = IntakeHandlers(self.log, notes, below, Timekeeper([]), layout, begun)
        self.last, self.epoch = self.blocks.last, self.found.committed

    def batch(self, number: int) -> Batch:
        (self.root / f"main/spark/offsets/{number}").write_text(f"v1\n{{}}\n{number}")
        return Batch("q", number, str(number))

    def begin(self, number: int) -> int:
        """The number that the sink over the source has for the batch."""
        self.intake.begin_batch(BeginBatch(Fence(self.incarnation, self.last + 1, 1), self.batch(number)))
        return self.intake.number_of("raw")

    def block(self, number: int) -> None:
        self.intake.store_block(StoreBlock(Fence(self.incarnation, self.last + 1, 1), self.batch(number), ()))
        self.last += 1

    def prepare(self) -> Prepare:
        ranges = {FEED: Range(self.last, self.last)}
        self.log.store_prepare(do.StorePrepare(Fence(self.incarnation, self.epoch + 1, 1), 1, ranges, (), 0))
        return self.log.prepare_of(self.epoch + 1, 1)

    def commit(self) -> None:
        ranges = {FEED: Range(self.last, self.last)}
        self.log.store_commit(do.StoreCommit(Fence(self.incarnation, self.epoch + 1, 1), ranges, ()))
        self.epoch += 1

    def whole(self, number: int) -> tuple[int, int]:
        """The numbers that both sinks have for it."""
        raw = self.begin(number)
        self.block(number)
        out = self.prepare().sinks["out"]
        self.commit()
        return raw, out


def former(root: Path, prepared: str = "") -> None:
    """Three epochs of format 3, and what is prepared above them."""
    ledger = Ledger(Store(str(root)), "main")
    for epoch in range(1, 4):
        batch, ranges = Batch("q", epoch - 1, str(epoch - 1)), {FEED: Range(epoch, epoch)}
        numbers = {"raw": epoch - 1, "out": epoch - 1}
        ledger.put_prepare(Prepare(Fence(1, epoch, 1), 1, ranges, (), 0, sinks=numbers, batch=batch))
        ledger.put_commit(Commit(Fence(1, epoch, 1), ranges, numbers, batch=batch))
    numbers, fence = {"raw": 3, "out": 3}, Fence(1, 4, 1)
    if prepared == "batch":
        batch = Batch("q", 3, "3")
        ledger.put_prepare(Prepare(fence, 1, {FEED: Range(4, 4)}, (), 0, sinks=numbers, batch=batch))
    if prepared == "tick":
        batch = Batch("q", 2, "2", 1)
        ledger.put_prepare(Prepare(fence, 1, {FEED: Range(5, 4)}, (), 0, sinks=numbers, batch=batch))


def test_numbers_go_on_over_runs_and_no_sink_gets_what_is_another_kinds(tmp_path: Path) -> None:
    one = Run(tmp_path, 1)
    assert [one.whole(number) for number in range(3)] == [(0, 0), (1, 1), (2, 2)]
    two = Run(tmp_path, 2)
    assert [two.whole(number) for number in range(3, 5)] == [(3, 3), (4, 4)]
    assert two.begin(5) == 5  # and it ends
    three = Run(tmp_path, 3)
    assert (three.found.source_given, three.found.prepared) == (("raw",), ())
    three.block(5)
    assert three.prepare().sinks == {"out": 5}  # and it ends
    four = Run(tmp_path, 4)
    (level,) = four.found.prepared
    assert (level.sinks, four.found.source_given) == (("out",), ())
    four.commit()
    assert four.whole(6) == (6, 6)


def test_the_block_of_a_batch_that_was_prepared_before_there_were_blocks_counts_its_sinks(tmp_path: Path) -> None:
    former(tmp_path, "batch")
    run = Run(tmp_path, 2)
    assert (run.found.source_given, run.found.prepared[0].sinks) == (("raw",), ("out",))
    assert run.intake.number_of("raw") == 3
    run.block(3)
    again = Run(tmp_path, 3)  # before that epoch is committed
    assert (again.found.source_given, again.found.prepared[0].sinks) == ((), ("out",))
    again.commit()
    assert again.whole(4) == (4, 4)


@pytest.mark.parametrize("prepared", ["", "tick"])
def test_a_store_of_before_may_have_epochs_without_rows_before_its_first_batch(tmp_path: Path, prepared: str) -> None:
    former(tmp_path, prepared)
    run = Run(tmp_path, 2)
    ranges = {FEED: Range(run.last + 1, run.last)}
    if not prepared:
        run.log.store_prepare(do.StorePrepare(Fence(2, 4, 1), 1, ranges, (), 0))
    run.log.store_commit(do.StoreCommit(Fence(2, 4, 1), run.log.prepare_of(4, 1).ranges, ()))
    there = standing(Ledger(Store(str(tmp_path)), "main"))
    assert (there.last, there.position, there.unread) == ((4, 4, ()) if prepared else (3, 3, ()))
    assert there.batch == Batch("q", 2, "2") == batch_at(run.ledger, there.position)
    feed = Feed()
    list(feed.hear(FeedStarted(3, last=there.last, batch=there.batch, read=there.position)))
    (asked,) = feed.hear(BatchOffered(Batch("q", 3, "3")))
    assert isinstance(asked, TakeIn)
    unknown = Feed()
    list(unknown.hear(FeedStarted(3, last=there.last, read=there.position)))
    (refused,) = unknown.hear(BatchOffered(Batch("q", 0, "from the beginning")))
    assert isinstance(refused, RefuseBatch)
    assert Run(tmp_path, 3).whole(3)[0] == (4 if prepared else 3)


def test_a_graph_that_a_block_names_counts(tmp_path: Path) -> None:
    one = Run(tmp_path, 1)
    one.whole(0)
    graph = GraphFile(1, 0, 1, {}, [], [], [], [], 0, live=True, former=0)
    one.ledger.put_graph(graph)
    assert Ledger(Store(str(tmp_path)), "main").graph() is None  # it ended before a batch came
    one.begin(1)
    one.block(1)
    known = Ledger(Store(str(tmp_path)), "main").graph()
    assert known is not None
    assert known.version == 1


def test_what_a_change_does_in_its_first_epoch_is_done_when_only_a_block_came_to_name_it(tmp_path: Path) -> None:
    stages = [SimpleNamespace(name=name, level=1, time=TimePlan()) for name in ("top", "sums", "idle")]
    drawn = plan()
    drawn.stages = stages
    one = Run(tmp_path, 1, drawn)
    one.whole(0)
    turns = {"resets": ["sums", "gone"], "cuts": ["top"], "idle": ["idle"]}
    one.ledger.put_graph(GraphFile(1, 0, 1, {}, [], [], [], [], 0, live=True, former=0, turns=turns))
    ended = Run(tmp_path, 2, drawn)
    assert (ended.found.turns, ended.found.left_out) == (((), ()), ()), "nothing names it yet"
    one.block(1)  # and it ends
    two = Run(tmp_path, 3, drawn)
    assert (two.found.turns, two.found.left_out) == ((("sums",), ("top",)), ("idle",))
    two.log.resets, two.log.cuts = two.found.turns
    prepare = two.prepare()
    assert (prepare.graph, prepare.resets, prepare.cuts) == (1, ("sums",), ("top",))
    assert Run(tmp_path, 4, drawn).found.turns == ((), ()), "its prepare says it"
    two.commit()
    assert Run(tmp_path, 5, drawn).found.turns == ((), ())


def test_numbers_of_sinks_go_on_if_the_block_is_of_a_driver_that_did_not_know_of_them(tmp_path: Path) -> None:
    Run(tmp_path, 1).whole(0)
    late = Run(tmp_path, 2, plan(()))
    ours = Run(tmp_path, 3, plan(("raw", "more")))
    assert ours.begin(1) == 1
    assert ours.intake.number_of("more") == 0
    late.block(1)
    ours.block(1)
    assert ours.begin(2) == 2, "it has batch 1: with that number it would leave out this one"
    assert ours.intake.number_of("more") == 1


def test_a_batch_that_another_driver_has_begun_without_a_sink_is_not_gone_on_with(tmp_path: Path) -> None:
    late, ours = Run(tmp_path, 1), Run(tmp_path, 2, plan(("raw", "more")))
    late.begin(0)
    with pytest.raises(FencedError, match=r"begun block 1 just now[\s\S]*'more'[\s\S]*begins with the batch after it"):
        ours.begin(0)
    again = Run(tmp_path, 3, plan(("raw", "more")))
    again.block(0)
    assert again.begin(1) == 1
    assert again.intake.number_of("more") == 0


def test_a_store_of_before_whose_batch_is_still_to_come_cannot_be_drained(tmp_path: Path) -> None:
    former(tmp_path, "batch")
    with pytest.raises(StoreError, match=r"prepared by an earlier version[\s\S]*batch 3[\s\S]*without drain=True"):
        refuse_undrained(Run(tmp_path, 2).blocks, "shop")
    refuse_undrained(Run(tmp_path / "new", 1).blocks, "shop")


def test_a_block_of_other_stages_is_read_by_nobody(tmp_path: Path) -> None:
    late, ours = Run(tmp_path, 1), Run(tmp_path, 2, layout="another")
    ours.begin(0)
    late.intake._begun = ours.intake._begun
    late.block(0)
    ours.block(0)
    with pytest.raises(FencedError, match=r"taken in for other stages[\s\S]*drain=True"):
        ours.intake.tags({FEED: Range(1, 1)})


def test_a_sink_that_comes_while_a_batch_is_begun_begins_with_the_next_one(tmp_path: Path) -> None:
    one = Run(tmp_path, 1)
    one.whole(0)
    one.begin(1)  # and it ends
    two = Run(tmp_path, 2, plan(("raw", "more")))
    assert two.found.source_given == ("raw",)
    two.block(1)
    assert two.begin(2) == 2
    assert two.intake.number_of("more") == 0


def test_a_sink_over_a_stage_may_not_go_on_over_the_source(tmp_path: Path) -> None:
    one = Run(tmp_path, 1)
    one.whole(0)
    one.whole(1)
    with pytest.raises(PlanError, match=r"'out' wrote rows of a stage[\s\S]*another name"):
        Run(tmp_path, 2, plan(("raw", "out"), ()))
    up = Run(tmp_path, 2, plan((), ("raw", "out")))
    assert up.found.counters == {"raw": 1, "out": 1}


def test_sinks_that_have_a_batch_are_not_run_for_it_again() -> None:
    feed = Feed()
    batch = Batch("q", 0, "0")
    done = frozenset({"more"})
    list(feed.hear(FeedStarted(2, begun=batch, sinks=("raw", "more"), sinks_at_once=4, sinks_done=done)))
    (taking,) = feed.hear(BatchOffered(batch))
    asked = list(feed.hear(IntakeDone(taking.id, ())))  # type: ignore[union-attr]
    assert [one.sink for one in asked if isinstance(one, RunSourceSink)] == ["raw"]
