"""Virtual time: a heap of what happens next, one source of randomness, and a trace.

Everything in a run follows from its seed: nothing here reads a clock, and what is due at the same instant happens in
the order in which it was asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Due = tuple[float, int, Callable[..., None], tuple[Any, ...]]


class World:
    """``at`` asks for something to happen, ``run`` lets time pass."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        self.seed = seed
        self.now = 0.0
        self.random = random.Random(seed)
        self.tracing = trace
        """Ask before making the text of a note: most runs want none."""
        self.notes: list[str] = []
        self.happened = 0
        self._heap: list[Due] = []
        self._asked = 0

    def at(self, delay: float, what: Callable[..., None], *arguments: Any) -> None:
        self._asked += 1
        heappush(self._heap, (self.now + delay, self._asked, what, arguments))

    def run(self, until: float) -> None:
        """Everything up to and including that time."""
        heap = self._heap
        count = 0
        while heap and heap[0][0] <= until:
            self.now, _, what, arguments = heappop(heap)
            what(*arguments)
            count += 1
        self.happened += count
        self.now = max(self.now, until)

    def run_for(self, seconds: float) -> None:
        self.run(self.now + seconds)

    def note(self, who: str, text: str) -> None:
        if self.tracing:
            self.notes.append(f"{self.now:10.4f}  {who:<8}  {text}")
