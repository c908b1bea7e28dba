"""Slices on their way from one living container to another (ChronoStream §IV; the design's "Moving a slice").

A move never stops its slice. The destination gets a copy (or has one), makes it active and catches up by the log, then
applies the same epochs as the owner: dual mode, in which both put out the same rows or the move is given up. It takes
over between two epochs, when it is proven: both have put out the same, and something, in a whole epoch, or were the
same as of one. Until then the owner is the owner; whatever happens to the destination costs nothing but the move, and
if the owner is lost the destination is the best place to go on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from holdfast.master.progress import NOWHERE, Position

By = TypeVar("By", str, tuple[str, str])


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
    proven: bool = False
    not_before: float = 0.0
    """After something failed it waits a moment before it tries again."""
    looked_at: float = 0.0
    """When it came to dual mode, or its states were last compared in vain."""
    asked: set[str] = field(default_factory=set)
    """The questions for its states that are not answered yet."""
    _put_out: dict[Position, dict[str, int]] = field(default_factory=dict)
    """Level → side → checksum, of those that one side has told."""
    _stirred: bool = False
    """Both have put out the same rows at a level of an epoch that is not over."""
    _states: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Side → version of the graph, checksum."""

    def active(self, position: Position, now: float) -> None:
        """The destination lives, at this position: from now on both apply the same."""
        self.task, self.phase, self.position, self.looked_at = None, Phase.DUAL, position, now
        self._put_out = {at: told for at, told in self._put_out.items() if at > position}

    def compare(self, container: str, position: Position, digest: int) -> tuple[int, int] | None:
        """One side's checksum of a level, 0 if it put out nothing. Both, if they are of the same level and differ."""
        seen = self._put_out.setdefault(position, {})
        seen[container] = digest
        ours, theirs = seen.get(self.source), seen.get(self.to)
        if ours is None or theirs is None:
            return None
        self._put_out = {at: told for at, told in self._put_out.items() if at > position}
        if ours != theirs:
            return ours, theirs
        self._stirred = self._stirred or ours != 0
        if position.level == 0:  # the epoch is whole
            self.proven, self._stirred = self.proven or self._stirred, False
        return None

    def ask(self, questions: Iterable[str]) -> None:
        self.asked = set(questions)
        self._states.clear()

    def compare_states(
        self, question: str, container: str, state: tuple[int, int] | None, now: float
    ) -> tuple[int, int] | None:
        """What one side's slice was, if that could be told, in the terms of which graph. Both, if they differ."""
        if question not in self.asked:
            return None
        self.asked.discard(question)
        if state is not None:
            self._states[container] = state
        if self.asked:
            return None
        self.looked_at = now
        ours, theirs = self._states.get(self.source), self._states.get(self.to)
        if ours is None or theirs is None or ours[0] != theirs[0]:
            return None  # the epoch was gone, or one of them knows of a change already: once more, later
        if ours != theirs:
            return ours[1], theirs[1]
        self.proven = True
        return None

    def begin_again(self, not_before: float) -> None:
        self.not_before = not_before
        self.phase, self.position, self.task, self.proven = Phase.COPY, NOWHERE, None, False
        self._put_out.clear()
        self._stirred = False
        self.ask(())


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


def grouped(moves: Iterable[Move], by: Callable[[Move], By]) -> dict[By, list[Move]]:
    found: defaultdict[By, list[Move]] = defaultdict(list)
    for move in moves:
        found[by(move)].append(move)
    return dict(sorted(found.items()))


def slices_of(moves: Iterable[Move]) -> frozenset[int]:
    return frozenset(move.slice for move in moves)
