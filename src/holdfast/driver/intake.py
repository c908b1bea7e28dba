"""What the feed does in the store, and of its own in the driver: blocks, and what is known of their rows.

It runs beside the section, whose epochs read the blocks (``store``). Of what both know each has its own: the numbers of
its sinks, and how far event time has come by the blocks there are, read or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from holdfast import faults
from holdfast.driver.counts import CAME, Rows
from holdfast.driver.sink_counters import SinkCounters
from holdfast.driver.store import StoreHandlers
from holdfast.driver.watermarks import Timekeeper
from holdfast.errors import CorruptionError, FencedError
from holdfast.log.blocks import Begun, Block, TakenOver, block_of
from holdfast.log.records import FEED, Carried, Fence, Ranges, SegmentRef
from holdfast.master.feed import (
    BatchBegun,
    BeginBatch,
    BlockFound,
    BlockStored,
    FindBlock,
    StoreBlock,
)
from holdfast.operators.stage import StagePlan
from holdfast.spark.checkpoint import SparkNotes
from holdfast.wire.handlers import handler
from holdfast.wire.messages import Tag


class IntakeHandlers:
    def __init__(
        self,
        log: StoreHandlers,
        notes: SparkNotes,
        sinks: SinkCounters,
        time: Timekeeper,
        layout: str,
        begun: Begun | None = None,
    ) -> None:
        self._log, self._notes = log, notes
        self.sinks = sinks
        self.time = time
        """As the newest block leaves it."""
        self.layout = layout
        self._begun = begun
        self._carried: tuple[str, Carried, tuple[bytes, ...]] | None = None  # of the batch under way
        self._newest: Block | None = None

    def follow(
        self,
        stages: Sequence[StagePlan],
        sinks: tuple[str, ...],
        layout: str,
        splits: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """The job has these from the next batch on."""
        self.time.follow(stages, splits)
        self.sinks.drawn, self.layout = sinks, layout

    # --- a batch under way --------------------------------------------------------------------------------

    @handler
    def begin_batch(self, instruction: BeginBatch) -> BatchBegun:
        carried, files = self._carry(instruction)
        ours = Begun(instruction.fence, instruction.batch, self.sinks.moved_on(), carried, files)
        with self._log.ledger_lock:
            stored = self._log.ledger.put_begun(ours)
        if unknown := [name for name in self.sinks.drawn if name not in stored.sinks]:
            raise FencedError(
                f"Another driver has begun block {stored.number} just now, and did not know of sink '{unknown[0]}'.",
                safe="Nothing was written by this one.",
                todo="Start again, one driver only: that sink begins with the batch after it.",
            )
        self._begun = stored
        faults.place("driver", "after-begun", stored.number)
        return BatchBegun(instruction.id, stored.batch, stored.fence)

    @handler
    def store_block(self, instruction: StoreBlock) -> BlockStored:
        fence, log = instruction.fence, self._log
        begun = self._begun if self._begun is not None and self._begun.number == fence.epoch else None
        carried, files = self._carry(instruction)
        attachments = list(files)
        named = replace(fence, epoch=instruction.batch.batch_id)
        segments = log.segments(named, 0, instruction.tags, attachments)
        moved, unsure = self.sinks.counters, self.sinks.unsure
        if begun is not None:
            moved, unsure = self.sinks.left_by(begun, ())
        ours = Block(
            fence,
            instruction.batch,
            segments,
            dict(_latest(instruction.tags)),
            _summed(tag.dropped for tag in instruction.tags),
            dict(sum((Counter(tag.came) for tag in instruction.tags), Counter())),
            dict(moved),
            dict(unsure),
            self.layout,
            log.ledger.version,
            carried,
            tuple(attachments),
        )
        stored: Block | None = None
        try:
            with log.ledger_lock:
                stored = log.ledger.put_block(ours)
        finally:
            if stored is None or stored.fence != ours.fence:
                self._notes.not_stored()
        self._carried = self._begun = None
        self._newest = stored
        numbers = dict(stored.sinks)
        if stored.fence != ours.fence:  # of a driver that did not know of all our sinks: these have the batch
            numbers |= {name: max(number, numbers.get(name, -1)) for name, number in moved.items()}
        self.sinks.counters, self.sinks.unsure = numbers, dict(stored.unsure)
        self.sinks.dropped = frozenset()
        self.passed(stored)
        faults.place("driver", "after-block", stored.number)
        return BlockStored(instruction.id, stored.batch, stored.fence)

    @handler
    def find_block(self, instruction: FindBlock) -> BlockFound:
        with self._log.ledger_lock:
            found = block_of(self._log.ledger, instruction.batch)
        return BlockFound(instruction.id, *(found or (None, None)))

    def note_taken(self, fence: Fence, sink: str) -> None:
        """A start after this one must not give the batch to this sink again, though others still wait for it."""
        with self._log.ledger_lock:
            self._log.ledger.put_taken_over(TakenOver(fence, sink))

    def number_of(self, sink: str) -> int:
        """The number that the batch under way has for a sink."""
        return self._begun.sinks[sink] if self._begun is not None else self.sinks.moved_on()[sink]

    def _carry(self, instruction: BeginBatch | StoreBlock) -> tuple[Carried, tuple[bytes, ...]]:
        """Spark's own files of the batch: as they were when it was begun."""
        which = repr(instruction.batch)
        if self._carried is None or self._carried[0] != which:
            carried, files = self._notes.carry(instruction.batch)
            self._carried = which, carried, tuple(files)
        return self._carried[1:]

    def passed(self, block: Block) -> None:
        """Event time has come as far as this block says."""
        times, _, after = self.time.advance(1, [block.times])
        self.time.times.update(times)
        self.time.watermarks.update(after)

    # --- for epochs ---------------------------------------------------------------------------------------

    def block(self, number: int) -> Block:
        newest, found = self._newest, None
        if newest is not None and newest.number == number:
            found = newest
        else:
            with self._log.ledger_lock:
                found = self._log.ledger.get_block(number)
        if found is None:
            raise CorruptionError(
                f"{self._log.ledger.section.uri}/{Block.file_of(number)} is missing, and nothing has read it yet.",
                safe="Nothing was changed.",
                todo="Bring the file back from a copy of the store.",
            )
        if found.layout != self.layout:
            raise FencedError(
                f"{self._log.ledger.section.uri}/{found.file} was taken in for other stages than this driver has: "
                "another driver was at work while the job was changed.",
                safe="The block is what it is, and nothing has read it.",
                todo="Start once more with the job as it was, with job.start(drain=True): that reads it. Then change "
                "the job.",
            )
        return found

    def tags(self, ranges: Ranges) -> tuple[Tag, ...]:
        """The rows that an epoch takes of the source, as they were taken in."""
        return tuple(tag for number in ranges[FEED].numbers for tag in tags_of(self.block(number)))

    def counted(self, ranges: Ranges) -> Mapping[str, Rows]:
        """What the intakes of these blocks counted, stage by stage."""
        found: dict[str, Counter[str]] = {}
        for number in ranges[FEED].numbers:
            block = self.block(number)
            for stage, dropped in block.dropped.items():
                found.setdefault(stage, Counter()).update(dropped)
            for stage, came in block.came.items():
                found.setdefault(stage, Counter()).update({CAME: came})
        return found


def tags_of(block: Block) -> tuple[Tag, ...]:
    """The block's rows, as its tasks answered; what they have seen of them is with the first."""
    found = [
        Tag(replace(ref, inline=None), None if ref.inline is None else block.attachments[ref.inline])
        for ref in block.segments
    ]
    times = block.times
    return (*found, Tag(_nothing(), times=times)) if times else tuple(found)


def _nothing() -> SegmentRef:
    return SegmentRef("", 0, 0, 0, 0, 0)


def _latest(tags: Iterable[Tag]) -> dict[str, int]:
    found: dict[str, int] = {}
    for tag in tags:
        for name, latest in tag.times.items():
            found[name] = max(latest, found.get(name, latest))
    return found


def _summed(dropped: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for one in dropped:
        for stage, rows in one.items():
            found.setdefault(stage, Counter()).update(rows)
    return {stage: dict(rows) for stage, rows in found.items()}
