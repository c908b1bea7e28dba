"""What is known of a Spark query's batches: which one comes next, which is under way, and what Spark is told.

Spark offers a batch and waits. It is the one in flight, or the successor of the last that was committed, or done
already, or refused, and then nothing is written. The master knows nothing of this: to it a batch is a range of a
stream. Between the two stands this machine; pure, like the master, and driven by the same events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

from holdfast.errors import HoldfastError, StoreError
from holdfast.invariants import some
from holdfast.log.records import FEED, Batch
from holdfast.master.events import DoneWanted, EpochWanted, Event, Started
from holdfast.master.instructions import (
    EpochCommitted,
    EpochDone,
    EpochFailed,
    EpochPrepared,
    Instruction,
    ToFeed,
)
from holdfast.master.machine import Master


@dataclass(frozen=True)
class BatchOffered(Event):
    """Spark called ``foreachBatch`` and waits for FinishBatch, RefuseBatch, FailBatch or Stop."""

    batch: Batch


@dataclass(frozen=True)
class FinishBatch(Instruction):
    """The batch is committed as ``epoch``: return to Spark."""

    answered = False
    batch: Batch
    epoch: int


@dataclass(frozen=True)
class FailBatch(Instruction):
    """Raise inside ``foreachBatch``, and cancel the intake or sink that may still run for it.

    Spark decides whether to offer the batch again.
    """

    answered = False
    batch: Batch
    error: Exception = field(compare=False)


class Refusal(Enum):
    """Why a batch is not the one that comes next."""

    OTHER_QUERY = "other query"
    OTHER_OFFSETS = "other offsets"
    GAP = "gap"


@dataclass(frozen=True)
class RefuseBatch(Instruction):
    """Raise ``error()`` inside ``foreachBatch``. Nothing was written for this batch."""

    answered = False
    batch: Batch
    reason: Refusal
    committed: int
    known: Batch | None
    """What the store holds: the batch prepared as ``committed + 1`` or, if none is, the last committed."""
    prepared: bool

    def error(self) -> HoldfastError:
        known, next_epoch = self.known, self.committed + 1
        offered = f"Spark offers batch {self.batch.batch_id} of query {self.batch.query_id}"
        if known is None:
            what = f"{offered}, but this store is empty: the rows of the batches before it are not in it."
            todo = "Start with the Spark checkpoint that belongs to this store, or with both of them new."
        elif self.reason is Refusal.OTHER_QUERY:
            what = f"{offered}, but this store belongs to query {known.query_id} (batch {known.batch_id})."
            todo = "Start with the Spark checkpoint that belongs to this store, or with a new store."
        elif self.reason is Refusal.OTHER_OFFSETS:
            epoch = next_epoch if self.prepared else self.committed
            what = (
                f"{offered} with offsets {self.batch.offsets}, but epoch {epoch} of this store was made of "
                f"that batch with offsets {known.offsets}."
            )
            todo = "Bring Spark's own checkpoint (its offsets folder) back as it was."
        else:
            wanted = known.batch_id if self.prepared else known.batch_id + 1
            what = f"{offered}, but the next one for this store is batch {wanted} (epoch {next_epoch})."
            todo = "Start the job again; if it stays, Spark's checkpoint and this store do not belong together."
        safe = f"Everything up to epoch {self.committed}; nothing was written."
        return StoreError(what, safe=safe, todo=todo)


class Feed:
    def __init__(self) -> None:
        self._epoch = 0
        self._committed: Batch | None = None
        self._prepared: Batch | None = None
        """The batch of the epoch in flight, once there is no other that it could be."""
        self._waiting: Batch | None = None
        """The batch that Spark waits for."""

    def hear(self, event: Event) -> Iterator[Event | Instruction]:
        """What the master hears of an event, or else what Spark is told at once."""
        match event:
            case Started(committed=epoch, ranges=ranges, prepared=prepared):
                self._epoch, self._committed = epoch, ranges.get(FEED)
                self._prepared = prepared[0].ranges.get(FEED) if prepared else None
                yield event
            case BatchOffered(batch):
                yield from self._offer(batch)
            case _:
                yield event

    def _offer(self, batch: Batch) -> Iterator[Event | Instruction]:
        if batch == self._waiting:
            return  # doubled: it gets its answer when the epoch has one
        if batch.done_by(self._committed):
            if self._waiting is None:
                self._waiting = batch
                yield DoneWanted()
            else:
                yield FinishBatch(batch, self._epoch)  # an offer of long ago: another is waited for by now
        elif refusal := self._refusal(batch):
            yield refusal
        else:
            self._waiting = batch
            yield EpochWanted({FEED: batch})

    def tell(self, instruction: ToFeed) -> Iterator[Instruction]:
        """What Spark is told when the master says this."""
        match instruction:
            case EpochPrepared(ranges=ranges):
                self._prepared = ranges[FEED]
                if self._waiting is not None and self._waiting != self._prepared:
                    refused, self._waiting = self._waiting, None
                    yield some(self._refusal(refused), "two unlike batches, both welcome")
            case EpochCommitted(ranges=ranges, epoch=epoch):
                self._committed, self._epoch, self._prepared = ranges[FEED], epoch, None
            case EpochDone(epoch=epoch) if self._waiting is not None and self._waiting.done_by(self._committed):
                done, self._waiting = self._waiting, None
                yield FinishBatch(done, epoch)
            case EpochFailed(error=error) if self._waiting is not None:
                failed, self._waiting = self._waiting, None
                yield FailBatch(failed, error)

    def _refusal(self, batch: Batch) -> RefuseBatch | None:
        """Why this batch is neither the one in flight nor the successor of the last committed one."""
        last = self._committed
        if known := self._prepared or self._waiting:
            prepared, expected = True, (known.batch_id, known.tick)
        elif last is not None:
            known, prepared = last, False
            expected = (last.batch_id, last.tick + 1) if batch.tick else (last.batch_id + 1, 0)
        elif (batch.batch_id, batch.tick) == (0, 0):  # the first one ever: of any query, but from its beginning
            return None
        else:
            return RefuseBatch(batch, Refusal.GAP, self._epoch, None, False)
        if batch.query_id != known.query_id:
            reason = Refusal.OTHER_QUERY
        elif batch.batch_id == known.batch_id and batch.offsets != known.offsets:
            reason = Refusal.OTHER_OFFSETS
        elif (batch.batch_id, batch.tick) != expected:
            reason = Refusal.GAP
        else:
            return None
        return RefuseBatch(batch, reason, self._epoch, known, prepared)

    # ------------------------------------------------------------------------------------ epochs without rows

    @property
    def unfinished_tick(self) -> Batch | None:
        """An epoch without rows that was begun and has to be finished before Spark's next batch."""
        begun = self._prepared or self._waiting
        return begun if begun and begun.tick else None

    @property
    def next_tick(self) -> Batch | None:
        """The epoch without rows that could be begun now."""
        if self._committed is None or self._prepared or self._waiting:
            return None
        return replace(self._committed, tick=self._committed.tick + 1)


class Fed:
    """A master and the feed before it, as one machine."""

    def __init__(self, master: Master) -> None:
        self.master, self.feed = master, Feed()

    def handle(self, event: Event) -> list[Instruction]:
        asked: list[Instruction] = []
        for told in self.feed.hear(event):
            for instruction in self.master.handle(told) if isinstance(told, Event) else [told]:
                if isinstance(instruction, ToFeed):
                    asked += self.feed.tell(instruction)
                else:
                    asked.append(instruction)
        return asked
