"""A few nodes and a queue between them: everything sent is delivered in order, at once, and nothing fails by itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from holdfast.ring.overlay.events import Answered, Event, Join, Received, Tick, Unreached
from holdfast.ring.overlay.instructions import Answer, Beat, Instruction, Send
from holdfast.ring.overlay.messages import Message
from holdfast.ring.overlay.node import Node
from holdfast.ring.overlay.settings import Settings

TOP = 1 << 124
"""Ids are written by their first digit: ``at(0x3)``."""


def at(first: int, rest: int = 0) -> int:
    return first * TOP + rest


@dataclass
class Table:
    """The nodes sit round a table and talk."""

    settings: Settings = field(default_factory=lambda: Settings(leaves=4))
    nodes: dict[int, Node] = field(default_factory=dict)
    told: list[tuple[int, Instruction]] = field(default_factory=list)
    """What nodes asked their own processes to do."""
    carried: list[tuple[int, int, Message]] = field(default_factory=list)
    waiting: deque[tuple[int, int, Message]] = field(default_factory=deque)

    def seat(self, *ids: int) -> None:
        for own in ids:
            contact = next(iter(self.nodes), None)
            self.nodes[own] = Node(own, self.settings)
            self.give(own, Join(contact))

    def give(self, to: int, event: Event) -> None:
        """One event, and everything that comes of it."""
        self.perform(to, event)
        while self.waiting:
            sender, receiver, message = self.waiting.popleft()
            self.carried.append((sender, receiver, message))
            if receiver in self.nodes:
                self.perform(receiver, Received(sender, message))
            elif sender in self.nodes:
                self.perform(sender, Unreached(receiver, message))

    def perform(self, own: int, event: Event) -> None:
        for one in self.nodes[own].handle(event):
            if isinstance(one, Send):
                self.waiting.append((own, one.to, one.message))
            elif isinstance(one, Answer):
                self.perform(own, Answered(one.id, (own,)))
            elif not isinstance(one, Beat):
                self.told.append((own, one))

    def ticks(self, count: int) -> None:
        for _ in range(count):
            for own in list(self.nodes):
                self.give(own, Tick())

    def of(self, kind: type[Instruction]) -> list[tuple[int, Instruction]]:
        return [(own, one) for own, one in self.told if isinstance(one, kind)]
