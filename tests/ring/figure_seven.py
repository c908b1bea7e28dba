"""ELF's micro-promotion (2.4, Figure 7), written with the API, and an oracle that knows its answer.

As printed there: at each interval the root multicasts the last one's best products, and that a new batch begins.
Whoever hears the first gives a discount on those that it has; whoever hears the second and has nobody below flushes its
buffer, sends that to its parent and empties it. What the figure leaves out is in the text: inner vertices wait for all
below them (3.2), and an interval that somebody is missing from is given up (3.4).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.ring import Vertex

PRODUCTS = [f"game {number}" for number in range(40)]
K = 5
PATIENCE = 20
"""Timers for which the root waits for an interval."""


def clicks_of(container: str, interval: int) -> list[tuple[str, int]]:
    """What the web server beside that container has logged in an interval."""
    chance = random.Random(f"{container} {interval}")
    return [(chance.choice(PRODUCTS), chance.randrange(1, 4)) for _ in range(chance.randrange(10, 30))]


def best(clicks: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(clicks.items(), key=lambda one: (-one[1], one[0]))[:K])


def oracle(containers: Iterable[str], interval: int) -> tuple[tuple[str, int], ...]:
    total: Counter[str] = Counter()
    for container in containers:
        for product, clicks in clicks_of(container, interval):
            total[product] += clicks
    return best(total)


@dataclass(frozen=True)
class TopK:
    interval: int
    products: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Update:
    interval: int


@dataclass(frozen=True)
class Snapshot:
    """The clicks of an interval, reduced, and whose they are."""

    interval: int
    clicks: dict[str, int]
    of: tuple[str, ...]


@dataclass(frozen=True)
class Behind:
    """You are: this is the interval that I have heard of."""

    interval: int


class MicroPromotion(Vertex):
    every = 0.05

    def __init__(self, most: int = 1 << 30) -> None:
        self.most = most  # intervals
        self.interval = self.sent = 0
        self.begun = self.waited = 0  # by this vertex as the root
        self.topk: TopK | None = None
        self.results: dict[int, tuple[tuple[tuple[str, int], ...], tuple[str, ...]]] = {}
        self.coming: dict[int, dict[str, Snapshot]] = {}
        self.discounts: dict[int, set[str]] = {}

    def on_timer(self) -> None:
        self.roll_up()  # somebody that was waited for may be gone
        if not self.is_root():
            return
        self.waited += 1
        ended = self.begun == 0 or self.begun in self.results or self.waited > PATIENCE
        if ended and max(self.begun, self.interval) < self.most:
            self.waited = 0
            if self.topk is not None:
                self.multicast(self.topk)
            self.begun = max(self.begun, self.interval) + 1
            self.multicast(Update(self.begun))

    def on_multicast(self, tree: str, message: Any) -> None:
        if isinstance(message, TopK):
            mine = {product for product, _ in clicks_of(self.container, message.interval)}
            self.discounts[message.interval] = {product for product, _ in message.products if product in mine}
        elif isinstance(message, Update) and message.interval <= self.interval:
            # Two may take themselves for the root for a moment; or it has just come, and does not know how far we are.
            if not self.is_root() and self.parent() is not None:
                self.send_to(self.parent(), Behind(self.interval))
        elif isinstance(message, Update):
            self.interval = message.interval
            self.coming = {at: those for at, those in self.coming.items() if at >= message.interval}
            self.buffer().empty()
            for product, clicks in clicks_of(self.container, message.interval):
                self.buffer().insert(product, clicks)
            self.roll_up()

    def on_recv(self, sender: str | None, message: Snapshot | Behind) -> None:
        if isinstance(message, Behind):
            if message.interval > self.interval:
                self.interval = self.sent = message.interval
            return
        self.coming.setdefault(message.interval, {})[str(sender)] = message
        self.roll_up()

    def roll_up(self) -> None:
        """Once everybody below has sent its snapshot; at once if nobody is below."""
        came = self.coming.get(self.interval, {})
        if self.sent == self.interval or not came.keys() >= set(self.children()):
            return
        root, parent = self.is_root(), self.parent()
        if not root and parent is None:
            return
        for snapshot in came.values():
            self.buffer().merge(snapshot.clicks)
        of = sorted([self.container, *(one for snapshot in came.values() for one in snapshot.of)])
        clicks = self.buffer().flush()
        self.buffer().empty()
        self.sent = self.interval
        if root:
            self.topk = TopK(self.interval, best(clicks))
            self.results[self.interval] = best(clicks), tuple(of)
        else:
            self.send_to(parent, Snapshot(self.interval, clicks, tuple(of)))

    def deliver(self, application: str | None, message: Any) -> Any:
        """``what`` is asked for: by the driver, or by another application, which is answered by a route."""
        answer = self.results if message == "results" else self.topk
        if application is not None:
            self.route(application, answer)
        return answer


class SalePrediction(Vertex):
    """Asks another application what is popular (ELF 1, 2.4: ``Route``)."""

    every = 0.05

    def __init__(self, other: str) -> None:
        self.other = other
        self.answer: TopK | None = None

    def on_timer(self) -> None:
        if self.is_root() and self.answer is None:
            self.route(self.other, "top k")

    def deliver(self, application: str | None, message: Any) -> Any:
        if application == self.other:
            self.answer = message
        return self.answer
