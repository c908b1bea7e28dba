"""Drives a feed alone, as `master_kit.Play` drives a master."""

from __future__ import annotations

from typing import Any

from master_kit import batch

from holdfast.log.records import Batch
from holdfast.master.events import Event, IntakeDone, SinkDone
from holdfast.master.feed import (
    BatchBegun,
    BatchOffered,
    BeginBatch,
    BlockFound,
    BlockStored,
    Feed,
    FeedStarted,
    FindBlock,
    RunSourceSink,
    StoreBlock,
    TakeIn,
)
from holdfast.master.instructions import Instruction


def answer(instruction: Instruction) -> Event:
    """Of a world in which nothing goes wrong."""
    to = instruction.id
    match instruction:
        case TakeIn(fence=fence, batch=taken):
            return IntakeDone(to, (f"{taken.batch_id} by {fence}",))
        case BeginBatch(batch=begun, fence=fence):
            return BatchBegun(to, begun, fence)
        case RunSourceSink():
            return SinkDone(to)
        case StoreBlock(batch=stored, fence=fence):
            return BlockStored(to, stored, fence)
        case FindBlock(batch=old):
            return BlockFound(to, old.batch_id + 1, old)
    raise AssertionError(f"nobody answers {instruction}")


class Fed:
    def __init__(self, feed: Feed | None = None, **facts: Any) -> None:
        self.feed = feed or Feed()
        self.said: list[Any] = []
        self.tell(FeedStarted(1, **facts))

    def tell(self, event: Event) -> list[Any]:
        new = list(self.feed.hear(event))
        self.said += new
        return new

    def read(self, position: int) -> list[Any]:
        new = list(self.feed.read(position))
        self.said += new
        return new

    def offer(self, number: int | Batch, **more: Any) -> list[Any]:
        return self.tell(BatchOffered(number if isinstance(number, Batch) else batch(number, **more)))

    def answer(self, *instructions: Any) -> list[Any]:
        """What follows when all of them are done."""
        return [one for instruction in instructions for one in self.tell(answer(instruction))]

    def take(self, number: int) -> list[Any]:
        """Offer a batch and do all that is asked for: the kinds of what was said, in order."""
        found, todo = [], self.offer(number)
        while todo:
            one = todo.pop(0)
            found.append(type(one).__name__)
            if isinstance(one, Instruction) and one.answered:
                todo += self.answer(one)
        return found
