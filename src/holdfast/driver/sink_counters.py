"""The numbers of a job's sinks: which epoch, or which batch, each is at. Of sinks over stages the section counts, of
those straight over the source the feed, each for itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from holdfast.errors import StoreError
from holdfast.log.blocks import Begun
from holdfast.log.records import Prepare


@dataclass
class SinkCounters:
    """Which epoch each sink is at, as the last committed epoch left it."""

    drawn: tuple[str, ...]
    """The sinks of the job."""
    counters: dict[str, int] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    """Sinks that shall not get the epoch that was prepared for them."""
    unsure: dict[str, int] = field(default_factory=dict)
    """Of those that were dropped so and have not come back, the number of that epoch: they may have had it."""

    def moved_on(self) -> dict[str, int]:
        """As an epoch leaves them that goes to all sinks of the job."""
        return self.counters | {name: self.counters.get(name, -1) + 1 for name in self.drawn}

    def left_by(self, prepare: Prepare | Begun, skipped: Collection[str]) -> tuple[dict[str, int], dict[str, int]]:
        """As an epoch leaves them that was not given to all whom its prepare names; and those of which nobody knows."""
        lost = {name: prepare.sinks[name] for name in prepare.given_to(self.counters) if name in self.dropped}
        moved = {name: number for name, number in prepare.sinks.items() if name not in skipped and name not in lost}
        moved |= {name: self.counters[name] for name in skipped if name in self.counters and name not in lost}
        return moved, {name: number for name, number in self.unsure.items() if name not in moved} | lost

    def may_be_at(self, sink: str) -> tuple[int, ...]:
        """The numbers that a sink may say that it is at, the likeliest last."""
        unsure = self.unsure.get(sink)
        return (self.counters.get(sink, -1),) if unsure is None else (unsure - 1, unsure)

    def is_at(self, sink: str, number: int) -> None:
        """It is drawn, and goes on from there."""
        if number >= 0:
            self.counters[sink] = number
        self.unsure.pop(sink, None)

    def given(self, prepare: Prepare | Begun) -> tuple[str, ...]:
        """The sinks that the epoch goes to, whoever prepared it."""
        return tuple(name for name in prepare.given_to(self.counters) if name not in self.dropped)

    def learns(self, other: SinkCounters, names: Collection[str]) -> None:
        """Of sinks that are to stand here, and have stood there."""
        self.counters |= {name: number for name, number in other.counters.items() if name in names}
        self.unsure |= {name: number for name, number in other.unsure.items() if name in names}

    def leaves(self, names: Collection[str]) -> None:
        """These stand elsewhere now."""
        self.counters = {name: number for name, number in self.counters.items() if name not in names}
        self.unsure = {name: number for name, number in self.unsure.items() if name not in names}


def sink_is_gone(names: Sequence[str], epoch: int) -> StoreError:
    """An epoch was prepared for sinks that the job does not draw any more."""
    which = ", ".join(f"'{name}'" for name in names)
    return StoreError(
        f"Epoch {epoch} was prepared for the sink {which}, which the job does not have any more, and is not committed.",
        safe="Nothing was written. The epoch is prepared; whichever start finishes it, its rows are the same.",
        todo="Start once more with that sink, so that it gets the epoch, then without it; or say that it shall not "
        f"have it: job.start(drop_sinks={list(names)!r}).",
    )


def source_sink_is_gone(names: Sequence[str], number: int) -> StoreError:
    """A batch was begun for sinks over the source that the job does not draw any more."""
    which = ", ".join(f"'{name}'" for name in names)
    return StoreError(
        f"Block {number} was begun for the sink {which}, which the job does not have any more, and is not there yet.",
        safe="Nothing was written. Whichever start takes the batch in, its source offsets are the same.",
        todo="Start once more with that sink, so that it gets the batch, then without it; or say that it shall not "
        f"have it: job.start(drop_sinks={list(names)!r}).",
    )
