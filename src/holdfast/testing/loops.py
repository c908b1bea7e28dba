"""What goes round a loop in a test: taken in when its epoch has applied, as the driver does, and kept for the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.invariants import some
from holdfast.log.records import Fence, SegmentRef
from holdfast.plan.compile import Plan
from holdfast.plan.graph import Node
from holdfast.testing.frame import MemoryFrame
from holdfast.testing.intake import Taken, take_in

Read = Callable[[Node, int, bool], Mapping[Node, MemoryFrame]]
Waiting = dict[tuple[str, int], Taken]
"""Loop, and the level that takes its rows."""


@dataclass
class Around:
    plan: Plan
    slices: int
    waiting: Waiting = field(default_factory=dict)
    """For the next epoch."""

    @property
    def first(self) -> tuple[str, int]:
        """A loop, and how many rows wait in it."""
        name = min(name for name, _ in self.waiting)
        refs = (taken.ref for (loop, _), taken in self.waiting.items() if loop == name)
        return name, sum(ref.rows for ref in refs if ref is not None)

    def closed(self, epoch: int, clock: int, read: Read) -> Waiting:
        """What the epoch has put out for the next one."""
        found: Waiting = {}
        for sink in self.plan.closing:
            name = some(sink.closes, "it closes one").name
            for level, inputs in self.plan.around(sink).items():
                frames = [read(item.node, epoch, False) for item in inputs]
                taken = take_in(inputs, frames, Fence(1, epoch + 1, 1), self.slices, clock)
                if taken.ref is not None:
                    found[name, level] = taken
        return found

    def with_waiting(self, level: int, taken: Taken) -> tuple[tuple[SegmentRef, ...], tuple[bytes, ...]]:
        """The segments of a level, what went round first, and their bytes."""
        every = [one for (_, at), one in sorted(self.waiting.items(), key=lambda one: one[0]) if at == level]
        there = [one for one in (*every, taken) if one.ref is not None]
        refs = tuple(replace(some(one.ref, "asked"), inline=at) for at, one in enumerate(there))
        return refs, tuple(one.rows for one in there)
