"""How far each slice has come, who owns it, and what is under way on it.

A slice's position is an epoch that it has whole, and how many levels of the next one it has applied on top. Having
applied the last level *is* being at the next epoch, so a commit changes no position, and a slice that fell behind while
it was restored is seen by one comparison. How many levels an epoch has is a fact of the epoch in flight alone: a slice
that is further behind is at a whole one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.invariants import invariant
from holdfast.log.records import Fence
from holdfast.master.assignment import assign


class Position(NamedTuple):
    epoch: int
    level: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}.{self.level}"


NOWHERE = Position(-1)
"""Of a slice whose owner has no state for it yet."""


@dataclass(frozen=True)
class Moment:
    """How far the job is, for whatever runs beside the epochs."""

    committed: int
    fence: Fence
    now: float
    whole: bool
    """Every slice has an owner that has brought it to the committed epoch."""
    between: bool
    """No level of the epoch in flight is prepared: owners may change."""
    busy: bool
    """Spark waits for an epoch."""
    writing: frozenset[int]
    """Slices whose owners are writing a checkpoint of them."""


class Progress:
    def __init__(self, slices: int, levels: int) -> None:
        invariant(slices >= 1, "a stage has at least one slice")
        invariant(levels >= 1, "a job has at least one level")
        self.levels = levels
        self.owners: tuple[str | None, ...] = (None,) * slices
        self._position = [NOWHERE] * slices
        self._task: list[str | None] = [None] * slices
        self._half: set[int] = set()
        """Slices on which applying raised: how far they have come inside the epoch is not known."""
        self._broken: set[int] = set()
        """Slices that could not be restored; left alone until somebody asks again."""

    def at(self, epoch: int, level: int = 0) -> Position:
        """The position of a slice at a whole epoch, or with so many levels of the one after it applied."""
        return Position(epoch + 1) if level == self.levels else Position(epoch, level)

    def reached(self, position: Position) -> bool:
        """Whether every slice has come this far."""
        return not self._half and min(self._position) >= position

    def has(self, slice_: int, position: Position) -> bool:
        return slice_ not in self._half and self._position[slice_] >= position

    def rests(self, slice_: int, position: Position) -> bool:
        """It is exactly there, and nothing is under way on it."""
        return self.has(slice_, position) and self._position[slice_] == position and self._task[slice_] is None

    def short_of(self, position: Position) -> list[int]:
        return [slice_ for slice_ in range(len(self.owners)) if not self.has(slice_, position)]

    def with_task(self, slices: Iterable[int], task: str) -> frozenset[int]:
        """Those that this task is under way on."""
        return frozenset(slice_ for slice_ in slices if self._task[slice_] == task)

    @property
    def orphaned(self) -> bool:
        return None in self.owners

    @property
    def furthest(self) -> Position:
        return max(self._position)

    # ------------------------------------------------------------------------------------------- ownership

    def orphans(self) -> list[int]:
        return [slice_ for slice_, owner in enumerate(self.owners) if owner is None]

    def give(self, slice_: int, owner: str, position: Position = NOWHERE, task: str | None = None) -> None:
        """A new owner that has the slice at this position, and perhaps is at work on it."""
        invariant(self._task[slice_] is None, f"slice {slice_} is busy with {self._task[slice_]}")
        self.owners = (*self.owners[:slice_], owner, *self.owners[slice_ + 1 :])
        self._position[slice_], self._task[slice_] = position, task

    def assign(self, living: Iterable[str], takers: Iterable[str], waiting: Collection[int] = ()) -> None:
        """Give every orphan an owner, except those that are still waited for."""
        before, dealt = self.owners, assign(self.owners, living, takers)
        self.owners = tuple(None if slice_ in waiting else owner for slice_, owner in enumerate(dealt))
        for slice_, (old, new) in enumerate(zip(before, self.owners, strict=True)):
            invariant(old is None or old == new, f"slice {slice_} was taken from {old}, which lives")

    def lose(self, container: str) -> None:
        """Forget an owner and all it held."""
        lost = [slice_ for slice_, owner in enumerate(self.owners) if owner == container]
        for slice_ in lost:
            self._position[slice_] = NOWHERE
            self._task[slice_] = None
        self._half.difference_update(lost)
        self._broken.difference_update(lost)
        self.owners = tuple(None if owner == container else owner for owner in self.owners)

    # ----------------------------------------------------------------------------------------------- tasks

    def begin(self, slices: Iterable[int], task: str) -> None:
        for slice_ in slices:
            invariant(self._task[slice_] is None, f"slice {slice_} is busy with {self._task[slice_]}")
            self._task[slice_] = task

    def finish(self, slices: Iterable[int], task: str, position: Position) -> None:
        for slice_ in slices:
            invariant(self._task[slice_] == task, f"slice {slice_} is busy with {self._task[slice_]}, not {task}")
            self._task[slice_] = None
            self._position[slice_] = position
            self._half.discard(slice_)

    def half_applied(self, slices: Iterable[int], task: str) -> None:
        for slice_ in slices:
            self.finish([slice_], task, self._position[slice_])
            self._half.add(slice_)

    def break_(self, slices: frozenset[int], task: str) -> None:
        self.finish(slices, task, NOWHERE)
        self._broken |= slices

    def try_broken_again(self) -> None:
        self._broken.clear()

    def forget_half_applied(self) -> None:
        """Their epoch is committed: it cannot be undone any more, so they are restored."""
        for slice_ in self._half:
            self._position[slice_] = NOWHERE
        self._half.clear()

    # --------------------------------------------------------------------------- what could be done next

    def behind(self, position: Position) -> dict[str, frozenset[int]]:
        """Slices to restore, by owner: nothing is under way on them and they are not where they must be."""
        return self._by_owner(
            slice_
            for slice_, here in enumerate(self._position)
            if here < position and slice_ not in self._broken and slice_ not in self._half
        )

    def past(self, position: Position) -> dict[str, frozenset[int]]:
        """Slices to undo, by owner: they are past this position, or may be."""
        return self._by_owner(
            slice_ for slice_, here in enumerate(self._position) if here > position or slice_ in self._half
        )

    def between(self, first: Position, end: Position) -> dict[tuple[str, Position], frozenset[int]]:
        """Slices at a position in [first, end), by owner and position."""
        found: dict[tuple[str, Position], set[int]] = defaultdict(set)
        for slice_, here in enumerate(self._position):
            owner = self.owners[slice_]
            if first <= here < end and owner and self._task[slice_] is None and slice_ not in self._half:
                found[owner, here].add(slice_)
        return {key: frozenset(found[key]) for key in sorted(found)}

    def held(self) -> dict[str, frozenset[int]]:
        """Every slice, by owner, whatever is under way."""
        return self._by_owner(range(len(self.owners)), busy_too=True)

    def _by_owner(self, slices: Iterable[int], *, busy_too: bool = False) -> dict[str, frozenset[int]]:
        found: dict[str, set[int]] = defaultdict(set)
        for slice_ in slices:
            owner = self.owners[slice_]
            if owner and (busy_too or self._task[slice_] is None):
                found[owner].add(slice_)
        return {owner: frozenset(found[owner]) for owner in sorted(found)}
