"""From blocks to epochs: when the next epoch begins, and what it takes.

An epoch takes the oldest block that is unread; or none, if a tick is due and there is none; or what its ``prepare``
says, if it has one. One at a time: the next begins when nothing keeps it from beginning. Pure, like the master; it
stands between the master and the feed.

Rows that wait in loops go along with whatever comes next, and where no block is there an epoch comes for them alone; so
neither keeps the other waiting. A job that settles takes no block before its loops are dry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.errors import PlanError
from holdfast.invariants import Impossible
from holdfast.log.records import FEED, Range, Ranges, Rounds
from holdfast.master.events import BlockThere, DoneWanted, EpochWanted, Event, GoOn, Started
from holdfast.master.feed import FeedStarted
from holdfast.master.instructions import (
    EpochCommitted,
    EpochDone,
    EpochFailed,
    EpochPrepared,
    Instruction,
    ToPump,
)


@dataclass(frozen=True)
class PumpHeld(Event):
    """No epoch begins until ``PumpLet``; the one under way goes on."""


@dataclass(frozen=True)
class PumpLet(Event):
    """What ``PumpHeld`` held may begin. A pump begins held: somebody has to let it."""


@dataclass(frozen=True)
class TickWanted(Event):
    """Something happens by now though no row comes: an epoch without rows, if no other is under way."""


@dataclass(frozen=True)
class EpochsOver(Event):
    """No epoch comes any more, because of this."""

    error: Exception = field(compare=False)


@dataclass(frozen=True)
class HasRead(Event):
    """For the feed: the section has read so far."""

    position: int
    epoch: int


@dataclass(frozen=True)
class DecideFailed(Instruction):
    """The epoch is given up, and what may still run for it is of no use. Say GoOn, or EpochsOver."""

    answered = False
    error: Exception = field(compare=False)


@dataclass(frozen=True)
class EndEpochs(Instruction):
    """No epoch comes any more, and nobody waits for one to whom that could be told."""

    answered = False
    error: Exception = field(compare=False)


class Pump:
    def __init__(self) -> None:
        self._held = 1
        self._last = 0  # the number of the newest block
        self._position = 0  # committed
        self._done = 0  # committed, and nothing keeps the next epoch from beginning
        self._prepared: Ranges | None = None
        self._flight: Ranges | None = None
        """What the epoch under way takes, as it is wanted here."""
        self._failed = False
        self._deciding = False  # what becomes of the epoch that failed
        self._tick = False
        self._settle = False
        self._max_rounds: Rounds = {}
        self.waiting: Rounds = {}
        """Rows that the last committed epoch has left in loops."""
        self.rounds: dict[str, int] = {}
        """How often rows have gone round each loop since rows of a source came last, or since the start."""

    # ------------------------------------------------------------------------------------ what others may know

    @property
    def idle(self) -> bool:
        """No epoch is under way that is wanted here."""
        return self._flight is None

    @property
    def dry(self) -> bool:
        """All that is taken in is read, what was begun is done, and nothing goes round."""
        read = not self.unread and not self.waiting
        return self._flight is None and read and self._prepared is None and not self._failed

    @property
    def stuck(self) -> bool:
        """An epoch has failed and was given up, and nobody has said since that it may be tried again."""
        return self._failed and not self._deciding

    def through(self, number: int) -> bool:
        """All blocks up to this one are read, and what was begun with them or before is done."""
        later = self._flight is not None and self._flight[FEED].last > number
        return self.dry or self._done > number or (self._done == number and later)

    @property
    def at_rest(self) -> bool:
        """Held, and no epoch is under way."""
        return self._held > 0 and self._flight is None

    @property
    def unread(self) -> int:
        """How many blocks wait for an epoch, or are in the one under way."""
        return max(self._last - self._done, 0)

    # -------------------------------------------------------------------------------------------------- events

    def hear(self, event: Event) -> Iterator[Event | Instruction]:
        match event:
            case FeedStarted(last=last):
                self._last = last
            case Started(ranges=ranges, prepared=prepared):
                self._settle, self._max_rounds = event.settle, event.max_rounds
                self.waiting = dict(event.waiting)
                self._position = self._done = ranges[FEED].last if ranges else 0
                self._prepared = prepared[0].ranges if prepared else None
            case PumpHeld():
                self._held += 1
            case PumpLet():
                self._held -= 1
            case BlockThere(number):
                self._last = max(self._last, number)
            case TickWanted():
                self._tick = self._tick or self._flight is None
            case EpochsOver():
                self._deciding = False
            case GoOn():
                self._failed = self._deciding = False
                if self._position > self._done:
                    yield DoneWanted()  # it was committed while nobody wanted it
            case _:
                raise Impossible("an event that is not for the pump")
        yield from self._advance()

    def tell(self, said: ToPump) -> Iterator[Event | Instruction]:
        """What follows when the master says this."""
        match said:
            case EpochPrepared(ranges=ranges):
                self._prepared = ranges
                if self._flight is not None and self._flight != ranges:
                    self._flight = None  # somebody was first with another one, which is wanted now
            case EpochCommitted(ranges=ranges, waiting=waiting):
                self._go_round(ranges, waiting)
                self._position, self._prepared = ranges[FEED].last, None
                self._last = max(self._last, self._position)
            case EpochDone(epoch=epoch):
                self._flight, self._done = None, self._position
                yield HasRead(self._done, epoch)
            case EpochFailed(error=error):
                self._flight, self._failed, self._deciding = None, True, True
                yield DecideFailed(error)
        yield from self._advance()

    def _go_round(self, ranges: Ranges, waiting: Rounds) -> None:
        if ranges[FEED]:
            self.rounds.clear()
        for loop in {*self.waiting, *waiting}:
            self.rounds[loop] = self.rounds.get(loop, 0) + (not ranges[FEED] and loop in self.waiting)
        self.waiting = dict(waiting)

    def _endless(self) -> str | None:
        """A loop that has gone round as often as it may."""
        return next(
            (loop for loop in self.waiting if self.rounds.get(loop, 0) >= self._max_rounds.get(loop, 1 << 62)), None
        )

    def _advance(self) -> Iterator[Event | Instruction]:
        if self._held or self._failed or self._flight is not None or self._position > self._done:
            return
        ranges = self._next()
        if ranges is not None and not ranges[FEED] and self._prepared is None and (loop := self._endless()) is not None:
            self._failed = True
            yield DecideFailed(endless(loop, self.waiting[loop], self.rounds[loop]))
        elif ranges is not None:
            self._flight, self._tick = ranges, False
            yield EpochWanted(ranges)

    def _next(self) -> Ranges | None:
        if self._prepared is not None:
            # What a store of before had prepared waits for its block: sinks over the source come first.
            return self._prepared if self._prepared[FEED].last <= self._last else None
        if self._last > self._position and not (self._settle and self.waiting):
            return {FEED: Range(self._position + 1, self._position + 1)}
        if (self._tick or self.waiting) and self._position:
            return {FEED: Range(self._position + 1, self._position)}
        return None


def endless(loop: str, rows: int, rounds: int) -> PlanError:
    return PlanError(
        f"Loop '{loop}' has not run dry in {rounds:,} epochs without rows of a source, which is all that it may take: "
        f"{rows:,} rows wait in it.",
        safe="Every epoch is committed, and the rows that wait are in the store: the next start goes on with them.",
        todo="If rows shall go round for longer, give the loop more: job.loop(…, max_rounds=…), or None; "
        "if they should have come to an end, mend the function that puts them out.",
    )
