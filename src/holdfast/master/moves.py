"""Slices on their way from one living container to another (ChronoStream §IV; the design's "Moving a slice").

A move never stops its slice. The destination gets a copy (or has one), makes it active and catches up by the log, then
applies the same epochs as the owner: dual mode, in which both put out the same rows or the move is given up. It takes
over between two epochs. Until then the owner is the owner; whatever happens to the destination costs nothing but the
move, and if the owner is lost the destination is the best place to go on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from holdfast.master.progress import NOWHERE, Position


class Phase(Enum):
    COPY = "copy"
    REBUILD = "rebuild"
    DUAL = "dual"


@dataclass
class Move:
    slice: int
    source: str
    to: str
    phase: Phase = Phase.COPY
    position: Position = NOWHERE
    task: str | None = None
    since: float = 0.0
    """When it came to dual mode."""
    proven: bool = False
    """Owner and destination have put out the same in a whole epoch."""
    not_before: float = 0.0
    """After something failed it waits a moment before it tries again."""
    _seen: dict[str, tuple[Position, int]] = field(default_factory=dict)

    def compare(self, container: str, position: Position, digest: int) -> tuple[int, int] | None:
        """One side's checksum of a level. Both, if they are of the same level and differ."""
        self._seen[container] = (position, digest)
        ours, theirs = self._seen.get(self.source), self._seen.get(self.to)
        if ours is None or theirs is None or ours[0] != theirs[0]:
            return None
        if ours != theirs:
            return ours[1], theirs[1]
        self.proven = True
        return None

    def begin_again(self, not_before: float) -> None:
        self.not_before = not_before
        self.phase, self.position, self.task, self.proven = Phase.COPY, NOWHERE, None, False
        self._seen.clear()


class Moves:
    def __init__(self) -> None:
        self.of: dict[int, Move] = {}
        """By slice: it is on one way at a time."""

    def __bool__(self) -> bool:
        return bool(self.of)

    @property
    def dual(self) -> frozenset[int]:
        return frozenset(slice_ for slice_, move in self.of.items() if move.phase is Phase.DUAL)

    def active_on(self, container: str) -> set[int]:
        """Slices that are not copies there any more, but on the way to live there."""
        return {s for s, move in self.of.items() if move.to == container and move.phase is not Phase.COPY}

    def touches(self, container: str) -> bool:
        return any(container in (move.source, move.to) for move in self.of.values())

    def with_task(self, task: str) -> list[Move]:
        return [move for move in self.of.values() if move.task == task]

    def phases(self) -> dict[str, int]:
        found: defaultdict[str, int] = defaultdict(int)
        for move in self.of.values():
            found[move.phase.value] += 1
        return dict(found)


def grouped(moves: Iterable[Move], by: Callable[[Move], str]) -> dict[str, list[Move]]:
    found: defaultdict[str, list[Move]] = defaultdict(list)
    for move in moves:
        found[by(move)].append(move)
    return dict(sorted(found.items()))


def slices_of(moves: Iterable[Move]) -> frozenset[int]:
    return frozenset(move.slice for move in moves)
