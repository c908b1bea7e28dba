"""What the parts of a node share: who it is, how many ticks it has seen, and the instructions of this event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.invariants import Impossible
from holdfast.ring.overlay.instructions import Instruction, Send
from holdfast.ring.overlay.messages import Message, MessageId
from holdfast.ring.overlay.settings import Settings

Combine = Callable[[Any, Any], Any]
"""Makes one of two answers to a question. Must not care about order."""


class Core:
    __slots__ = ("_made", "combine", "id", "incarnation", "joined", "out", "settings", "tick")

    def __init__(self, own: int, settings: Settings, incarnation: int, combine: Combine) -> None:
        self.id = own
        self.settings = settings
        self.incarnation = incarnation
        self.combine = combine
        self.tick = 0
        self.joined = False
        self.out: list[Instruction] = []
        self._made = 0

    def send(self, to: int, message: Message) -> None:
        if to == self.id:  # messages can be long: their text is made only here
            raise Impossible(f"{message} sent to oneself")
        self.out.append(Send(to, message))

    def new_id(self) -> MessageId:
        self._made += 1
        return (self.id, self.incarnation, self._made)

    def due(self, every: int) -> bool:
        """Once in so many ticks; not at the same tick on all nodes."""
        return (self.tick + self.id) % every == 0


class Seen:
    """Ids of messages, each remembered for at least so many ticks: two generations, the older one dropped whole."""

    __slots__ = ("_core", "_new", "_old", "_since")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._new: set[MessageId] = set()
        self._old: set[MessageId] = set()
        self._since = 0

    def first(self, one: MessageId) -> bool:
        """Is this the first time?"""
        if self._core.tick - self._since > self._core.settings.remember:
            self._old, self._new, self._since = self._new, set(), self._core.tick
        if one in self._new or one in self._old:
            return False
        self._new.add(one)
        return True
