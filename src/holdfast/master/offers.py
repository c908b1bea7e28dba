"""What the feed hears, asks for and says: of batches that Spark offers, and of their blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from holdfast.errors import HoldfastError, StoreError
from holdfast.log.records import Batch, Fence
from holdfast.master.events import Answer, Event, Tag
from holdfast.master.instructions import Instruction


@dataclass(frozen=True)
class FeedStarted(Event):
    """The first event of a feed, once: what its store held after ``owner/`` was taken."""

    incarnation: int
    last: int = 0
    """The number of the newest block; of a store without any, of its last epoch."""
    batch: Batch | None = None
    """Of that."""
    begun: Batch | None = None
    """The batch after it, if it can be no other any more."""
    taken_in: bool = False
    """Its rows are in a prepare, from before there were blocks."""
    read: int = 0
    """How far committed epochs have read."""
    sinks: tuple[str, ...] = ()
    """Straight over the source."""
    sinks_after: Mapping[str, str] = field(default_factory=dict)
    sinks_at_once: int = 1
    sinks_done: frozenset[str] = frozenset()
    """Those that are known to have the batch that was begun."""
    prefetch: int = 0


@dataclass(frozen=True)
class BatchOffered(Event):
    """Spark called ``foreachBatch`` and waits for FinishBatch, RefuseBatch, FailBatch or Stop."""

    batch: Batch


@dataclass(frozen=True)
class OfferUnwanted(Event):
    """The batch under way is given up, if there is one."""

    error: Exception = field(compare=False)


@dataclass(frozen=True)
class SinksChanged(Event):
    """From the next batch on these are the sinks straight over the source; none is under way."""

    sinks: tuple[str, ...]
    sinks_after: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchBegun(Answer):
    batch: Batch
    """What was begun with, by whoever was first."""
    fence: Fence


@dataclass(frozen=True)
class BlockStored(Answer):
    batch: Batch
    """What the block is of, whoever was first."""
    fence: Fence


@dataclass(frozen=True)
class BlockFound(Answer):
    number: int | None
    """None: that batch has no block that anybody knows of."""
    batch: Batch | None = None
    """What its block is of."""


@dataclass(frozen=True)
class TakeIn(Instruction):
    """Run the Spark job of the batch's intake to its end. ``fence.epoch`` is the number of the block to be."""

    fence: Fence
    batch: Batch


@dataclass(frozen=True)
class BeginBatch(Instruction):
    """Put-if-absent the note that sinks begin with this batch: from here on its block is of these offsets."""

    looks = True
    fence: Fence
    batch: Batch


@dataclass(frozen=True)
class RunSourceSink(Instruction):
    """Run the Spark job that hands the batch to a sink straight over the source. ``last``: the block follows it."""

    looks = True
    fence: Fence
    sink: str
    batch: Batch
    last: bool = True


@dataclass(frozen=True)
class StoreBlock(Instruction):
    """Put-if-absent the block; whoever loses reads the winner's and reports that."""

    looks = True
    fence: Fence
    batch: Batch
    tags: tuple[Tag, ...]


@dataclass(frozen=True)
class FindBlock(Instruction):
    """Look whether a batch of long ago has a block."""

    batch: Batch


@dataclass(frozen=True)
class FinishBatch(Instruction):
    """The batch has a block, which is ``block``: return to Spark."""

    answered = False
    batch: Batch
    block: int


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
    last: int
    known: Batch | None
    """What the store holds: the batch begun with as ``last + 1`` or, if none is, that of the last block."""
    begun: bool

    def error(self) -> HoldfastError:
        known = self.known
        offered = f"Spark offers batch {self.batch.batch_id} of query {self.batch.query_id}"
        if known is None:
            what = f"{offered}, but this store is empty: the rows of the batches before it are not in it."
            todo = "Start with the Spark checkpoint that belongs to this store, or with both of them new."
        elif self.reason is Refusal.OTHER_QUERY:
            what = f"{offered}, but this store belongs to query {known.query_id} (batch {known.batch_id})."
            todo = "Start with the Spark checkpoint that belongs to this store, or with a new store."
        elif self.reason is Refusal.OTHER_OFFSETS:
            number = self.last + 1 if self.begun else self.last
            what = (
                f"{offered} with offsets {self.batch.offsets}, but block {number} of this store was made of "
                f"that batch with offsets {known.offsets}."
            )
            todo = "Bring Spark's own checkpoint (its offsets folder) back as it was."
        else:
            wanted = known.batch_id if self.begun else known.batch_id + 1
            what = f"{offered}, but the next one for this store is batch {wanted} (block {self.last + 1})."
            todo = "Start the job again; if it stays, Spark's checkpoint and this store do not belong together."
        safe = f"Everything up to block {self.last}; nothing was written."
        return StoreError(what, safe=safe, todo=todo)
