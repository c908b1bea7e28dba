"""Feeds, pumps, a store and a start with one bug each. The world must find all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from holdfast.log.records import FEED, Range, Ranges
from holdfast.master.events import CommitStored, Event, Started
from holdfast.master.feed import BlockStored, Feed, FinishBatch, Offer, StoreBlock
from holdfast.master.instructions import Instruction, StoreCommit
from holdfast.master.pump import Pump
from simulator.job_model import Store


class CommitsBeforeTheBlock(Feed):
    """Tells Spark that the batch is done when its rows are there."""

    def hear(self, event: Event) -> Iterator[Event | Instruction]:
        for one in super().hear(event):
            yield one
            if isinstance(one, StoreBlock):
                yield FinishBatch(one.batch, one.fence.epoch)


class FeedSkipsABlock(Feed):
    @property
    def _number(self) -> int:
        return self._last + 2


class SinkAfterBlock(Feed):
    """The block first, which is the batch's commit: whoever dies then has sinks that never get the batch."""

    def _step(self, offer: Offer) -> None:
        if offer.tags is not None:
            offer.begun, offer.done = True, set(self._facts.sinks)
        super()._step(offer)


class KnowsOnlyTheLastBlock(Feed):
    def _may_be_old(self, batch: object) -> bool:
        return False


class PumpTakesAnUnwrittenBlock(Pump):
    def _next(self) -> Ranges | None:
        return super()._next() or {FEED: Range(self._position + 1, self._position + 1)}


class PumpSkipsABlock(Pump):
    """Takes the newest one, whatever it has left out."""

    def _next(self) -> Ranges | None:
        found = super()._next()
        newest = {FEED: Range(self._last, self._last)}
        return newest if found and found[FEED] and self._prepared is None else found


class TwoWritersOfABlock(Store):
    """Whoever comes last has written it."""

    def put_block(self, told: StoreBlock) -> BlockStored:
        super().put_block(told)
        self.blocks[told.fence.epoch] = told.batch, told.fence, told.tags
        return BlockStored(told.id, told.batch, told.fence)


def reads_another_layout(layouts: Mapping[int, str], layout: str) -> list[int]:
    return []


class ForgetsLoopRows(Pump):
    """After a restart it knows of no rows that wait in a loop: they go along with a block, or never."""

    def hear(self, event: Event) -> Iterator[Event | Instruction]:
        yield from super().hear(replace(event, waiting={}) if isinstance(event, Started) else event)


class TakesABlockBeforeItIsDry(Pump):
    def _next(self) -> Ranges | None:
        self._settle = False
        return super()._next()


class LosesLoopRows(Store):
    """A commit without what the sink that closes the loop had before the driver died."""

    def put_commit(self, told: StoreCommit, around: tuple[Any, ...] = ()) -> CommitStored:
        return super().put_commit(told, around if told.fence.incarnation % 2 else ())
