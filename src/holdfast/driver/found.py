"""What a store holds of its job when that is taken: the last commit, what is prepared above it, what is taken in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast.driver.open_sinks import over_source, over_stages
from holdfast.driver.options import Options
from holdfast.driver.sink_counters import SinkCounters, sink_is_gone, source_sink_is_gone
from holdfast.driver.store import yet_to_turn
from holdfast.driver.watermarks import Timekeeper
from holdfast.errors import CorruptionError, PlanError, StoreError
from holdfast.invariants import some
from holdfast.log.blocks import Begun, Standing, unreadable
from holdfast.log.ledger import Ledger
from holdfast.log.records import Commit, Prepare
from holdfast.master import events as ev

if TYPE_CHECKING:
    from holdfast.spark.stream import JobPlan


@dataclass(frozen=True)
class Found:
    """What the store held when the job was taken."""

    commit: Commit | None
    prepared: tuple[ev.Prepared, ...]
    counters: Mapping[str, int]
    unsure: Mapping[str, int]
    """Of sinks that were dropped with an epoch, and are not back."""
    given: tuple[str, ...]
    """The sinks that the prepared epoch goes to."""
    time: Timekeeper
    """As the last committed epoch left it, and as far as the next one has been prepared."""
    left_out: tuple[str, ...] = ()
    """Stages that the newest epoch goes along without."""
    turns: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Stages that the next epoch is to empty, and to cut down."""
    source_given: tuple[str, ...] = ()
    """The sinks over the source that may have the batch after the last block."""
    source_unsure: Mapping[str, int] = field(default_factory=dict)

    @property
    def committed(self) -> int:
        return self.commit.fence.epoch if self.commit else 0


def look(ledger: Ledger, plan: JobPlan, options: Options, blocks: Standing) -> Found:
    commit = ledger.last_committed()
    committed = commit.fence.epoch if commit else 0
    last = ledger.get_prepare(committed, 1) if committed else None
    if committed and last is None:
        raise CorruptionError(
            f"Epoch {committed} is committed, but its prepare is gone from {ledger.section.uri}.",
            safe="Nothing was changed.",
            todo="Bring the file back from a copy of the store.",
        )
    counters = (last.sinks if commit is None or commit.sinks is None else commit.sinks) if last else {}
    unsure = commit.dropped if commit is not None else {}
    source_unsure: Mapping[str, int] = {}
    if blocks.newest is not None:  # of sinks over the source it knows better
        sinks = blocks.newest.sinks
        counters = counters | {name: max(number, counters.get(name, -1)) for name, number in sinks.items()}
        source_unsure = blocks.newest.unsure
    drawn, prepared = [sink.name for sink in plan.sinks], []
    over = over_source(plan)
    source_given: tuple[str, ...] = ()
    if blocks.begun is not None:
        source_given = tuple(name for name in blocks.begun.given_to(counters) if name not in options.drop_sinks)
        if gone := [name for name in source_given if name not in over]:
            raise source_sink_is_gone(gone, blocks.begun.number)
    given: tuple[str, ...] = ()
    left_out = last.left_out if last else ()
    for level in range(1, plan.levels + 1):
        found = ledger.get_prepare(committed + 1, level)
        if found is None:
            break
        ledger.refuse_former_graph(found)
        left_out = found.left_out
        if level == 1:
            given = tuple(name for name in found.given_to(counters) if name not in options.drop_sinks)
            back = {name: number - 1 for name, number in found.sinks.items() if name in unsure}
            counters, unsure = {**counters, **back}, {name: at for name, at in unsure.items() if name not in back}
            if gone := [name for name in given if name not in drawn]:
                raise sink_is_gone(gone, committed + 1)
            if found.batch is not None:  # of a store of before: sinks over the source come with the block
                source_given = tuple(name for name in given if name in over)
                given = tuple(name for name in given if name not in over)
        prepared.append(ev.Prepared(level, found.fence, found.ranges, given))
    (resets, cuts), first = yet_to_turn(last) if last else ((), ()), _first_epochs(ledger, last)
    there, resets, cuts = (
        tuple(sorted(stage.name for stage in plan.stages if stage.name in {*names, *first.get(what, ())}))
        for what, names in (("idle", left_out), ("resets", resets), ("cuts", cuts))
    )
    time, turns = _timekeeper(ledger, plan, committed), (resets, cuts)
    return Found(commit, tuple(prepared), counters, unsure, given, time, there, turns, source_given, source_unsure)


def _first_epochs(ledger: Ledger, last: Prepare | None) -> dict[str, list[str]]:
    """What graphs that no prepare names yet do in their first epoch: a change was in the store, a block was taken in by
    it, and its driver died then. An epoch that is prepared says itself what it does."""
    found: dict[str, list[str]] = {}
    if last is not None and ledger.get_prepare(last.fence.epoch + 1, 1) is None:
        graphs = ledger.graphs()
        counted, named = graphs.before(graphs.newest), graphs.version_of(last)
        for one in graphs.later:
            if one.version in counted and one.version > named:
                for what, stages in one.turns.items():
                    found.setdefault(what, []).extend(stages)
    return found


def counted(found: Found, plan: JobPlan, options: Options, blocks: Standing) -> tuple[SinkCounters, SinkCounters]:
    """The numbers of sinks over stages, and of those straight over the source: of one that is not drawn, by where it
    stood."""
    above, below = over_stages(plan), over_source(plan)
    known = blocks.newest.sinks if blocks.newest is not None else {}
    source = {*below, *(name for name in known if name not in above)}
    numbers, dropped = found.counters, frozenset(options.drop_sinks)
    unsure = {**found.unsure, **found.source_unsure}
    return (
        SinkCounters(
            above,
            {name: number for name, number in numbers.items() if name not in source},
            dropped,
            {name: number for name, number in unsure.items() if name not in source},
        ),
        SinkCounters(
            below,
            {name: number for name, number in numbers.items() if name in source},
            dropped,
            {name: number for name, number in unsure.items() if name in source},
        ),
    )


def begun_before(ledger: Ledger, found: Found, blocks: Standing) -> Begun | None:
    """With what a batch was begun that has no block yet: of a store of before its prepare says it, with other sinks'
    numbers beside."""
    if blocks.former is None:
        return blocks.begun
    prepare = some(ledger.get_prepare(found.committed + 1, 1), "a batch of before is prepared")
    sinks = {name: prepare.sinks[name] for name in found.source_given}
    return Begun(replace(prepare.fence, epoch=blocks.last + 1), blocks.former, sinks)


def refuse_moved(moved: Sequence[str]) -> None:
    """Blocks are counted without ticks, epochs with them: whoever reads the numbers of a sink would take new rows for
    some that it has."""
    if moved:
        raise PlanError(
            f"Sink '{moved[0]}' wrote rows of a stage, and is straight over a source now: its numbers would come "
            "twice, and whoever goes by them would leave rows out.",
            safe="Nothing was written.",
            todo="Give it another name: write(…, name=…).",
        )


def moved_down(commit: Commit | None, plan: JobPlan, blocks: Standing) -> list[str]:
    """The sinks over the source that stood over stages since there are blocks."""
    known = set((commit.sinks or {}) if commit is not None else {}) if blocks.newest is not None else set()
    return [name for name in over_source(plan) if name in known - set(blocks.newest.sinks if blocks.newest else ())]


def _timekeeper(ledger: Ledger, plan: JobPlan, committed: int) -> Timekeeper:
    keeper, graphs = Timekeeper(plan.stages), ledger.graphs()
    splits = graphs.splits(graphs.newest)
    for epoch in (committed, committed + 1) if committed else (1,):
        for split in (one for one in splits if one.epoch == epoch):  # its level may not be prepared yet
            keeper.follow(plan.stages, {split.stage: split.source})
        level = 1  # of all levels there were: a stage may be on another one than before
        while (prepare := ledger.get_prepare(epoch, level)) is not None:
            keeper.take(prepare)
            level += 1
    return keeper


def taken_in(read: Timekeeper, plan: JobPlan, blocks: Standing) -> Timekeeper:
    """How far event time has come by all blocks there are."""
    keeper = Timekeeper(plan.stages)
    keeper.times, keeper.watermarks, keeper.clock = dict(read.times), dict(read.watermarks), read.clock
    for block in blocks.unread:
        times, _, after = keeper.advance(1, [block.times])
        keeper.times.update(times)
        keeper.watermarks.update(after)
    return keeper


def refuse_undrained(blocks: Standing, job: str) -> None:
    """Up to format 3 an epoch was prepared with its batch, whose block is still to come; only Spark can offer it."""
    if blocks.former is not None:
        raise StoreError(
            f"Job {job!r} cannot be drained: an epoch was prepared by an earlier version of Holdfast for Spark's batch "
            f"{blocks.former.batch_id}, which has to be offered once more.",
            safe="Nothing was changed.",
            todo="Start once with the job as it was, without drain=True, so that it is finished.",
        )


def refuse_unreadable(blocks: Standing, layout: str, job: str) -> None:
    """Blocks that nobody has read are in terms of the inputs that they were taken in for."""
    other = unreadable({block.number: block.layout for block in blocks.unread}, layout)
    if other:
        which = f"block {other[0]}" if len(other) == 1 else f"blocks {other[0]} to {other[-1]}"
        raise StoreError(
            f"Job {job!r} has changed, and its store has {which} of the source, taken in before that and not read yet: "
            "the rows are in terms of the stages as they were.",
            safe="Nothing was changed.",
            todo="Start once more with the job as it was, with job.start(drain=True): that reads them and takes in no "
            "more. Then change it.",
        )
