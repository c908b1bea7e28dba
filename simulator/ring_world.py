"""A world of ring nodes: the shipped ``Node`` behind an adapter, and the truth to compare it with."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from holdfast.ids import BITS, digit, nearer
from holdfast.invariants import Impossible, invariant
from holdfast.ring.overlay.events import (
    Answered,
    Collect,
    Event,
    Join,
    Leave,
    Lookup,
    Publish,
    Received,
    Silent,
    Subscribe,
    Tick,
    Unreached,
    Unsubscribe,
)
from holdfast.ring.overlay.instructions import (
    Answer,
    Arrived,
    Beat,
    Deliver,
    Found,
    Gathered,
    Hear,
    Joined,
    Lost,
    NeedContact,
    Send,
)
from holdfast.ring.overlay.messages import MessageId
from holdfast.ring.overlay.node import Node
from holdfast.ring.overlay.settings import Settings
from simulator.network import Network, Weather, name, text
from simulator.world import World

TICK = Tick()


class RingHost:
    """One node in the world: performs its instructions, and turns what comes of them into events."""

    __slots__ = ("_ring", "_send", "id", "node")

    def __init__(self, ring: RingWorld, node: Node) -> None:
        self.id = node.id
        self.node = node
        self._ring = ring
        self._send = ring.network.send

    def receive(self, sender: int, message: Any) -> None:
        self.handle(Received(sender, message))

    def unreached(self, peer: int, message: Any) -> None:
        self.handle(Unreached(peer, message))

    def silent(self, peer: int) -> None:
        self.handle(Silent(peer))

    def handle(self, event: Event) -> None:
        for one in self.node.handle(event):
            if type(one) is Send:
                self._send(self.id, one.to, one.message)
            else:
                self._ring.perform(self, one)


class RingWorld:
    """Nodes that come, go and die; lookups, multicasts and gathers; and who really is next to whom."""

    def __init__(
        self,
        seed: int,
        settings: Settings | None = None,
        weather: Weather | None = None,
        tick: float = 1.0,
        trace: bool = False,
        make: Callable[..., Node] = Node,
    ) -> None:
        self.world = World(seed, trace)
        self.network = Network(self.world, weather)
        self.settings = settings or Settings()
        self.tick = tick
        self.ids: list[int] = []
        """Everyone alive, in the order of the ring, joined or not."""
        self.delivered: dict[MessageId, list[tuple[int, int, int]]] = {}
        """Message → where it was delivered, for which key, in how many hops."""
        self.arrived: dict[MessageId, tuple[int, int, float, Any]] = {}
        """Message with receipt → where, in how many hops, when its sender knew, and its payload."""
        self.heard: defaultdict[Any, list[int]] = defaultdict(list)
        """Publication → the members that heard it."""
        self.gathered: dict[Any, Gathered] = {}
        """Question → what came of it."""
        self.astray = 0
        """Deliveries at another node than the nearest that was alive at that moment."""
        self.lost = 0
        self._make = make
        self._incarnations: dict[int, int] = {}

    # -------------------------------------------------------------------------------------------- coming and going

    def host(self, own: int) -> RingHost:
        found = self.network.hosts[own]
        if not isinstance(found, RingHost):
            raise Impossible(f"{found!r} is no RingHost")
        return found

    def start(self, contact: int | None = None, own: int | None = None) -> int:
        """A new node, or an old one restarted with nothing in its memory."""
        own = self.world.random.getrandbits(128) if own is None else own
        invariant(own not in self.network.hosts, "it runs already")
        self._incarnations[own] = self._incarnations.get(own, 0) + 1
        host = RingHost(self, self._make(own, self.settings, self._incarnations[own]))
        self.network.hosts[own] = host
        insort(self.ids, own)
        self.note(own, f"starts, knows {name(contact) if contact is not None else 'nobody'}")
        host.handle(Join(contact))
        self.world.at(self.tick * self.world.random.random(), self._ticks, host)
        return own

    def incarnation(self, own: int) -> int:
        """How often it was started."""
        return self._incarnations[own]

    def kill(self, own: int) -> None:
        """Without a word."""
        self.note(own, "dies")
        del self.network.hosts[own]
        del self.ids[bisect_left(self.ids, own)]

    def leave(self, own: int) -> None:
        self.note(own, "leaves")
        self.host(own).handle(Leave())
        del self.network.hosts[own]
        del self.ids[bisect_left(self.ids, own)]

    def _ticks(self, host: RingHost) -> None:
        if self.network.hosts.get(host.id) is host:
            host.handle(TICK)
            self.world.at(self.tick, self._ticks, host)

    def note(self, who: int, what: str) -> None:
        self.world.note(name(who), what)

    # --------------------------------------------------------------------------------------------------- instructions

    def perform(self, host: RingHost, one: Any) -> None:
        kind = type(one)
        if kind is Beat:
            self.network.beat(host.id, one.peers)
            return
        if self.world.tracing:
            self.note(host.id, text(one))
        if kind is Deliver:
            self.delivered.setdefault(one.id, []).append((host.id, one.key, one.hops))
            self.astray += self.nearest(one.key) != host.id
        elif kind is Arrived:
            self.arrived[one.id] = one.at, one.hops, self.world.now, one.payload
        elif kind is Hear:
            self.heard[one.payload].append(host.id)
        elif kind is Answer:
            self.world.at(0.001, self._answer, host, one.id)
        elif kind is Gathered:
            self.gathered[one.question] = one
        elif kind is NeedContact:
            others = self.members()
            if others:
                host.handle(Join(self.world.random.choice(others)))
        elif kind is Lost:
            self.lost += 1
        else:
            invariant(kind in (Found, Joined), f"an unknown instruction: {one}")

    def _answer(self, host: RingHost, id_: MessageId) -> None:
        """Everybody's answer is its own id: what is gathered shows who was counted, and how often."""
        if self.network.hosts.get(host.id) is host:
            host.handle(Answered(id_, (host.id,)))

    # ----------------------------------------------------------------------------------------------------- commands

    def lookup(self, source: int, key: int, payload: Any = None, receipt: bool = False) -> None:
        self.host(source).handle(Lookup(key, payload, receipt))

    def subscribe(self, member: int, group: int) -> None:
        self.host(member).handle(Subscribe(group))

    def unsubscribe(self, member: int, group: int) -> None:
        self.host(member).handle(Unsubscribe(group))

    def publish(self, source: int, group: int, payload: Any) -> None:
        self.host(source).handle(Publish(group, payload))

    def collect(self, source: int, group: int, question: Any) -> None:
        self.host(source).handle(Collect(group, question))

    def members(self) -> list[int]:
        """Everyone who is part of a ring."""
        return [one for one in self.ids if self.host(one).node.joined]

    # -------------------------------------------------------------------------------------------------------- truth

    def nearest(self, key: int) -> int:
        """The live node nearest to a key, by looking at all of them."""
        place = bisect_left(self.ids, key)
        return nearer(key, self.ids[place % len(self.ids)], self.ids[place - 1])

    def true_leaves(self, own: int) -> set[int]:
        place, half, count = bisect_left(self.ids, own), self.settings.leaves // 2, len(self.ids)
        if count - 1 <= 2 * half:
            return set(self.ids) - {own}
        return {self.ids[(place + step) % count] for step in range(-half, half + 1) if step}

    def wrong_leaves(self) -> int:
        """Nodes whose leaf set is not what it should be."""
        return sum(set(self.host(own).node.leaves) != self.true_leaves(own) for own in self.ids)

    def wrong_entries(self) -> int:
        """Places in routing tables that are empty although somebody lives who belongs there, or hold a dead node."""
        bits = self.settings.bits
        depth = max(self.host(own).node.view.table.depth for own in self.ids)
        living = [{own >> (BITS - bits * (row + 1)) for own in self.ids} for row in range(depth)]
        wrong = 0
        for own in self.ids:
            table = self.host(own).node.view.table
            wrong += sum(peer not in self.network.hosts for peer in table.peers)
            for row in range(depth):
                prefix = own >> (BITS - bits * row) << bits
                own_digit = digit(own, row, bits)
                places = {
                    column for column in range(1 << bits) if column != own_digit and prefix | column in living[row]
                }
                wrong += len(places) - len(table.row(row))
        return wrong

    def due_hops(self, key: int) -> int:
        """How many hops a route to a key may take with full tables, for any ids, settings and number of nodes.

        One for each digit, until so few nodes share the prefix that each of them has the key among its leaves; one
        more to the end. If nobody at all shares the prefix, the route goes to the key's neighbours instead, and needs
        a hop to turn there. For evenly spread ids and usual leaf sets this is mostly no more than ``most_hops``.
        """
        digits = self._crowded(key)
        if self._sharing(key, digits):
            return max(self.most_hops(), digits + 1)
        place = bisect_left(self.ids, key)
        beside = (self.ids[place - 1], self.ids[place % len(self.ids)])
        return max(self.most_hops(), max(digits, *map(self._crowded, beside)) + 2)

    def _crowded(self, key: int) -> int:
        """Digits after which no more nodes share the prefix with the key than one side of a leaf set holds."""
        digits = 0
        while digits < BITS // self.settings.bits and self._sharing(key, digits) > self.settings.leaves // 2:
            digits += 1
        return digits

    def _sharing(self, key: int, digits: int) -> int:
        """How many nodes begin with the same digits as the key."""
        rest = BITS - self.settings.bits * digits
        first = key >> rest << rest
        return bisect_left(self.ids, first + (1 << rest)) - bisect_left(self.ids, first)

    def most_hops(self) -> int:
        """⌈log N⌉ to the base 2**b."""
        return max(1, math.ceil(math.log(max(2, len(self.ids))) / math.log(2**self.settings.bits) - 1e-9))
