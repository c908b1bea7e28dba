"""A process in virtual time: what it meant to do waits while it stands still, and never happens once it is dead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.world import World


class Process:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.still_until = 0.0
        """It was stopped, or its machine stalls: then it goes on, and knows nothing of it."""

    @property
    def answers(self) -> bool:
        """Whether it can do anything at this moment."""
        return self.alive and self.world.now >= self.still_until

    def stand_still(self, seconds: float) -> None:
        self.still_until = max(self.still_until, self.world.now + seconds)
        self.world.note(self.name, f"stands still until {self.still_until:.3f}")

    def later(self, seconds: float, what: Callable[..., None], *arguments: Any) -> None:
        self.world.at(seconds, self._awake, what, arguments)

    def _awake(self, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.world.now < self.still_until:
            self.world.at(self.still_until - self.world.now, self._awake, what, arguments)
        else:
            what(*arguments)
