"""From Spark's batches to blocks: which batch comes next, what is done for it in which order, and what Spark is told.

Spark offers a batch and waits. One that has a block is done, whichever it is; the one after the last block is taken in:
intake, the sinks straight over the source, the block; any other is refused, and nothing is written. The block is the
batch's commit. Of its blocks at most ``prefetch`` may be unread when the next one is taken in; with 0 Spark waits until
the epoch that reads the block is committed.

Pure, like the master. The master knows nothing of batches, and this nothing of epochs: between the two stands the pump
(``pump``), and all three are one machine (``fed``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from holdfast.invariants import Impossible, invariant, some
from holdfast.log.records import Batch, Fence
from holdfast.master.events import Answer, BlockThere, Event, Failed, IntakeDone, SinkDone, Tag
from holdfast.master.instructions import Instruction
from holdfast.master.offers import (
    BatchBegun,
    BatchOffered,
    BeginBatch,
    BlockFound,
    BlockStored,
    FailBatch,
    FeedStarted,
    FindBlock,
    FinishBatch,
    OfferUnwanted,
    Refusal,
    RefuseBatch,
    RunSourceSink,
    SinksChanged,
    StoreBlock,
    TakeIn,
)
from holdfast.master.requests import Asking

__all__ = [
    "BatchBegun",
    "BatchOffered",
    "BeginBatch",
    "BlockFound",
    "BlockStored",
    "FailBatch",
    "Feed",
    "FeedStarted",
    "FindBlock",
    "FinishBatch",
    "Offer",
    "OfferUnwanted",
    "Refusal",
    "RefuseBatch",
    "RunSourceSink",
    "SinksChanged",
    "StoreBlock",
    "TakeIn",
]


@dataclass
class Offer:
    """The batch that Spark waits for."""

    batch: Batch
    number: int | None = None
    """Of its block, when it has one."""
    old: bool = False
    """Whether it has one is being looked up."""
    tags: tuple[Tag, ...] | None = None
    """As it was taken in."""
    begun: bool = False
    """Sinks may have it."""
    done: set[str] = field(default_factory=set)
    """Sinks that have it."""
    running: dict[str, Instruction] = field(default_factory=dict)
    """Sinks under way, by name."""
    failure: Exception | None = None
    """A sink raised this. Those beside it end first."""
    storing: bool = False
    taking: bool = False


class Feed:
    def __init__(self) -> None:
        self._asking = Asking()
        self._facts = FeedStarted(0)
        self._last = 0
        self._batch: Batch | None = None
        self._read = 0
        self._begun: Batch | None = None
        self._done: set[str] = set()  # sinks that have the batch that was begun
        self._offer: Offer | None = None
        self._attempt = 0

    # ------------------------------------------------------------------------------------ what others may know

    @property
    def last(self) -> int:
        """The number of the newest block."""
        return self._last

    @property
    def idle(self) -> bool:
        return self._offer is None

    @property
    def unread(self) -> int:
        return max(self._last - self._read, 0)

    def awaits(self, id_: str) -> bool:
        return id_ in self._asking.pending

    # -------------------------------------------------------------------------------------------------- events

    def hear(self, event: Event) -> Iterator[Event | Instruction]:
        """What follows from it: instructions, and what the pump is to know."""
        self._asking.heard(event)
        further = list(self._take(event))
        further += self._advance()
        yield from self._asking.new
        yield from further

    def read(self, position: int) -> Iterator[Event | Instruction]:
        """The section has read so far, and nothing keeps the next epoch from beginning."""
        self._read = max(self._read, position)
        self._asking.heard(Event())
        further = self._advance()
        yield from self._asking.new
        yield from further

    def give_up(self, error: Exception) -> Iterator[Instruction]:
        """No epoch will come: whoever waits hears why."""
        yield from self._fail(error)

    def _take(self, event: Event) -> Iterator[Event | Instruction]:
        match event:
            case FeedStarted():
                self._facts = event
                self._asking.incarnation = f"{event.incarnation}.feed"
                self._last, self._batch, self._read = event.last, event.batch, event.read
                self._begun, self._done = event.begun, set(event.sinks_done)
            case SinksChanged(sinks=sinks, sinks_after=after):
                invariant(self._offer is None, "the sinks change in the middle of a batch")
                self._facts = replace(self._facts, sinks=sinks, sinks_after=after)
            case BatchOffered(batch):
                yield from self._offered(batch)
            case OfferUnwanted(error):
                yield from self._fail(error)
            case Answer():
                instruction = self._asking.pending.pop(event.to, None)
                if instruction is not None and self._offer is not None:
                    yield from self._answer(self._offer, instruction, event)
            case _:
                raise Impossible("an event that is not for the feed")

    def _offered(self, batch: Batch) -> Iterator[Instruction]:
        offer = self._offer
        if offer is not None and offer.batch == batch:
            return  # doubled: it gets its answer when there is one
        if offer is not None and (offer.old or offer.number is not None):
            offer = self._offer = None  # of long ago, and nobody waits for it any more
            self._asking.give_up(lambda one: True)
        elif offer is not None and (self._batch == batch or self._may_be_old(batch)):
            return  # an offer of long ago: another is waited for by now
        if offer is None and self._batch == batch:
            self._offer = Offer(batch, number=self._last)
        elif offer is None and self._may_be_old(batch):
            self._offer = Offer(batch, old=True)
            self._asking.ask(FindBlock(batch))
        elif refusal := self._refusal(batch):
            yield refusal
        else:
            self._attempt += 1
            self._offer = Offer(batch)
            if self._begun is not None:
                self._offer.begun, self._offer.done = True, self._done
                if self._facts.taken_in:
                    self._offer.tags = ()

    def _may_be_old(self, batch: Batch) -> bool:
        last = self._batch
        return last is not None and batch.query_id == last.query_id and batch.batch_id < last.batch_id

    def _refusal(self, batch: Batch) -> RefuseBatch | None:
        """Why this batch is not the successor of the last block's."""
        last, known = self._batch, self._begun or (self._offer.batch if self._offer else None)
        if known:
            begun, expected = True, known.batch_id
        elif last is not None:
            known, begun, expected = last, False, last.batch_id + 1
        elif batch.batch_id == self._last == 0:  # the first one ever: of any query, but from its beginning
            return None
        else:
            return RefuseBatch(batch, Refusal.GAP, self._last, None, False)
        if batch.query_id != known.query_id:
            reason = Refusal.OTHER_QUERY
        elif batch.batch_id == known.batch_id and batch.offsets != known.offsets:
            reason = Refusal.OTHER_OFFSETS
        elif batch.batch_id != expected:
            reason = Refusal.GAP
        else:
            return None
        return RefuseBatch(batch, reason, self._last, known, begun)

    def _answer(self, offer: Offer, instruction: Instruction, event: Answer) -> Iterator[Event | Instruction]:
        if isinstance(instruction, RunSourceSink):
            offer.running.pop(instruction.sink, None)
        match instruction, event:
            case RunSourceSink(), Failed(error=error):
                offer.failure = offer.failure or error
            case _, Failed(error=error):
                yield from self._fail(error)
            case TakeIn(), IntakeDone(tags=tags):
                offer.tags, offer.taking = tags, False
            case BeginBatch(), BatchBegun(batch=batch, fence=fence):
                yield from self._has_begun(offer, batch, fence)
            case RunSourceSink(sink=sink), SinkDone():
                offer.done.add(sink)
            case StoreBlock(), BlockStored(batch=batch, fence=fence):
                yield from self._stored(offer, batch, fence)
            case FindBlock(), BlockFound(number=number, batch=batch):
                yield from self._found(offer, number, batch)
            case _:
                raise Impossible(f"{type(event).__name__} does not answer {type(instruction).__name__}")

    def _has_begun(self, offer: Offer, batch: Batch, fence: Fence) -> Iterator[Instruction]:
        """Another driver may have been first: from here on the batch is what it says."""
        self._begun, offer.storing = batch, False
        if batch == offer.batch:
            offer.begun, self._done = True, offer.done
        else:
            self._offer = None
            yield some(self._refusal(offer.batch), "two unlike batches, both welcome")

    def _stored(self, offer: Offer, batch: Batch, fence: Fence) -> Iterator[Event | Instruction]:
        invariant(fence.epoch == self._last + 1, "blocks are counted one by one")
        self._last, self._batch, self._begun = fence.epoch, batch, None
        self._done, offer.storing = set(), False
        self._facts = replace(self._facts, taken_in=False)
        yield BlockThere(self._last)
        if batch == offer.batch:
            offer.number = self._last
        else:
            self._offer = None
            yield some(self._refusal(offer.batch), "two unlike batches, both welcome")

    def _found(self, offer: Offer, number: int | None, batch: Batch | None) -> Iterator[Instruction]:
        if number is not None and batch == offer.batch:
            offer.number, offer.old = number, False
            return
        self._offer = None
        if batch is not None:
            yield RefuseBatch(offer.batch, Refusal.OTHER_OFFSETS, some(number, "a block has one"), batch, False)
        else:
            yield some(self._refusal(offer.batch), "an old batch, and welcome")

    def _fail(self, error: Exception) -> Iterator[Instruction]:
        """Whatever runs for it is of no use any more; what is being stored may come about all the same."""
        offer, self._offer = self._offer, None
        if offer is None:
            return
        self._asking.give_up(lambda one: True)
        yield FailBatch(offer.batch, error)

    # ----------------------------------------------------------------------------- whatever is possible now

    def _advance(self) -> list[Event | Instruction]:
        offer = self._offer
        if offer is None or offer.old:
            return []
        if offer.number is not None:
            if self._waits(offer):
                return []
            self._offer = None
            return [FinishBatch(offer.batch, offer.number)]
        if offer.failure is not None:
            return [] if offer.running else list(self._fail(offer.failure))
        self._step(offer)
        return []

    def _waits(self, offer: Offer) -> bool:
        """Whether Spark is kept waiting for the epoch that reads its block."""
        return not self._facts.prefetch and some(offer.number, "asked before") > self._read

    def _step(self, offer: Offer) -> None:
        fence = Fence(self._facts.incarnation, self._number, self._attempt)
        if offer.storing or offer.taking:
            return
        if offer.tags is None:
            if self.unread <= self._facts.prefetch:
                offer.taking = True
                self._asking.ask(TakeIn(fence, offer.batch))
        elif self._facts.sinks and not offer.begun:
            offer.storing = True
            self._asking.ask(BeginBatch(fence, offer.batch))
        elif left := [sink for sink in self._facts.sinks if sink not in offer.done]:
            after = self._facts.sinks_after
            may = [sink for sink in left if sink not in offer.running and after.get(sink) not in left]
            for sink in may[: self._facts.sinks_at_once - len(offer.running)]:
                run = RunSourceSink(fence, sink, offer.batch, last=len(left) == 1)
                offer.running[sink] = self._asking.ask(run)
        else:
            offer.storing = True
            self._asking.ask(StoreBlock(fence, offer.batch, offer.tags))

    @property
    def _number(self) -> int:
        """Of the block to be."""
        return self._last + 1
