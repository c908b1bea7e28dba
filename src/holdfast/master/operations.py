"""Recoveries, rescales and moves as a person follows them: what for, how far, done or not.

Only facts: when something began and how long it took is known to whoever has a clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from holdfast.master.moves import Moves

KEPT = 100


@dataclass
class Operation:
    number: int
    kind: str
    """recovery, rescale, move or balance"""
    reason: str
    slices: int = 0
    left: frozenset[int] = frozenset()
    """Slices that are not yet where they shall be, or not yet what they shall be."""
    phase: str = "begin"
    done: bool = False


@dataclass
class Operations:
    every: list[Operation] = field(default_factory=list)
    _begun: int = 0

    def begin(self, kind: str, reason: str, slices: Collection[int] = ()) -> None:
        self._begun += 1
        self.every = [*self.every[-KEPT:], Operation(self._begun, kind, reason, len(slices), frozenset(slices))]

    def running(self, kind: str) -> bool:
        return any(one.kind == kind and not one.done for one in self.every)

    def advance(self, behind: Collection[int], moves: Moves, *, settled: bool) -> None:
        """``behind``: slices that are not at the committed epoch."""
        phases = ", ".join(f"{count} in {phase}" for phase, count in moves.phases().items())
        for one in self.every:
            if one.done:
                continue
            if one.kind == "recovery":
                one.left, one.phase = one.left & frozenset(behind), "replay"
                one.done = not one.left
            elif one.kind == "move":
                one.left, one.phase = one.left & moves.of.keys(), phases
                one.done = not one.left
            else:
                one.slices, one.left = max(one.slices, len(moves.of)), frozenset(moves.of)
                one.phase = phases or "place"
                one.done = settled
            if one.done:
                one.phase = "done"
