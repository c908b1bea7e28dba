"""The network: calls that take time, fail, come twice and overtake each other, and partitions.

A message is a call, as over Flight: it is delivered, or its sender is told after ``timeout`` that it was not, and
then either the message or only the answer was lost. Who the hosts are and what they say is their own affair.

Heartbeats are not sent one by one: of a whole list, only those that would fail become events. At thousands of nodes
this is what makes runs quick, and a machine cannot tell the difference.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol

from simulator.world import World


class Host(Protocol):
    """A process with a shipped machine in it: the adapter between instructions and the world."""

    def receive(self, sender: Any, message: Any) -> None:
        """A message has come."""

    def unreached(self, peer: Any, message: Any) -> None:
        """A call failed; it may have arrived all the same."""

    def silent(self, peer: Any) -> None:
        """A heartbeat was not answered."""


@dataclass(frozen=True)
class Weather:
    """How the network behaves."""

    delay: float = 0.0005
    """Seconds one way, at least."""
    jitter: float = 0.0005
    """And up to so much more: what overtakes is a matter of this."""
    loss: float = 0.0
    """Of messages, and again of the answers that confirm them."""
    doubled: float = 0.0
    late: float = 0.0
    """Share of messages that take up to ``lateness`` seconds: real reordering."""
    lateness: float = 2.0
    timeout: float = 0.4
    """Seconds after which a call counts as failed."""

    @property
    def fair(self) -> bool:
        """No faults but delays."""
        return not (self.loss or self.doubled or self.late)


class Network:
    """Hosts by name. A name without a host is a dead one: calls to it fail."""

    def __init__(self, world: World, weather: Weather | None = None) -> None:
        self.world = world
        self.weather = weather or Weather()
        self.hosts: dict[Any, Host] = {}
        self.slow: dict[Any, float] = {}
        """Host → seconds that each message takes it; they queue."""
        self.messages = 0
        self.heartbeats = 0
        self.sizes: Callable[[Any], int] | None = None
        """If set, bytes are counted, per sender."""
        self.bytes: Counter[Any] = Counter()
        self.heartbeat_bytes = 64
        """A heartbeat and its answer, on the side that sends it."""
        self._sides: dict[Any, int] = {}
        self._queues: dict[Any, deque[tuple[Any, Any]]] = {}

    # ------------------------------------------------------------------------------------------------ conditions

    def change(self, **weather: float) -> None:
        self.weather = replace(self.weather, **weather)

    def calm(self) -> None:
        """No faults from now on. What is on its way still arrives as it was sent."""
        self.weather = replace(self.weather, loss=0.0, doubled=0.0, late=0.0)
        self.slow.clear()
        self.heal()

    def part(self, side: Iterable[Hashable]) -> None:
        """Cuts these off from all others, newcomers included."""
        self._sides = dict.fromkeys(side, 1)

    def heal(self) -> None:
        self._sides = {}

    def connected(self, one: Any, other: Any) -> bool:
        sides = self._sides
        return not sides or sides.get(one, 0) == sides.get(other, 0)

    # ---------------------------------------------------------------------------------------------------- calls

    def send(self, sender: Any, to: Any, message: Any) -> None:
        self.messages += 1
        if self.sizes is not None:
            self.bytes[sender] += self.sizes(message)
        world, weather = self.world, self.weather
        delay = weather.delay + weather.jitter * world.random.random()
        if weather.fair and not self._sides and not self.slow:
            world.at(delay, self._deliver, sender, to, message)
            return
        if not self.connected(sender, to):
            world.at(weather.timeout, self._fail, sender, to, message, "cut off")
            return
        chance = world.random.random
        if chance() < weather.loss:
            world.at(weather.timeout, self._fail, sender, to, message, "lost")
            return
        if chance() < weather.late:
            delay += weather.lateness * chance()
        world.at(delay, self._deliver, sender, to, message)
        if delay > weather.timeout or chance() < weather.loss:
            world.at(weather.timeout, self._fail, sender, to, message, "not confirmed")
        if chance() < weather.doubled:
            world.at(delay + weather.lateness * chance(), self._deliver, sender, to, message)

    def _deliver(self, sender: Any, to: Any, message: Any) -> None:
        host = self.hosts.get(to)
        if host is None or (self._sides and not self.connected(sender, to)):
            self.world.at(self.weather.timeout, self._fail, sender, to, message, "nobody there")
            return
        if self.slow and to in self.slow:
            self._queue(sender, to, message)
            return
        if self.world.tracing:
            self.world.note(name(to), f"← {name(sender)}  {text(message)}")
        host.receive(sender, message)

    def _queue(self, sender: Any, to: Any, message: Any) -> None:
        """A slow host takes one message after the other. Its callers lose patience meanwhile, not the messages."""
        queue = self._queues.setdefault(to, deque())
        queue.append((sender, message))
        if len(queue) == 1:
            self.world.at(self.slow[to], self._serve, to)
        if len(queue) * self.slow[to] > self.weather.timeout:
            self.world.at(self.weather.timeout, self._fail, sender, to, message, "no answer in time")

    def _serve(self, to: Any) -> None:
        queue = self._queues[to]
        sender, message = queue.popleft()
        if queue:
            self.world.at(self.slow.get(to, 0.0), self._serve, to)
        host = self.hosts.get(to)
        if host is not None:
            host.receive(sender, message)

    def _fail(self, sender: Any, to: Any, message: Any, why: str) -> None:
        host = self.hosts.get(sender)
        if host is None:
            return
        if self.world.tracing:
            self.world.note(name(sender), f"↛ {name(to)}  {text(message)}: {why}")
        host.unreached(to, message)

    # ----------------------------------------------------------------------------------------------- heartbeats

    def beat(self, sender: Any, peers: tuple[Any, ...]) -> None:
        """Heartbeats to all of these; those that fail reach the sender as silence."""
        self.heartbeats += len(peers)
        if self.sizes is not None:
            self.bytes[sender] += len(peers) * self.heartbeat_bytes
        hosts, weather = self.hosts, self.weather
        if not self._sides and not weather.loss and not self.slow and hosts.keys() >= set(peers):
            return
        for peer in peers:
            if (
                peer not in hosts
                or not self.connected(sender, peer)
                or (weather.loss and self.world.random.random() < 2 * weather.loss)
                or self.slow.get(peer, 0.0) > weather.timeout
            ):
                self.world.at(weather.timeout, self._silence, sender, peer)

    def _silence(self, sender: Any, peer: Any) -> None:
        host = self.hosts.get(sender)
        if host is not None:
            self.world.note(name(sender), f"↛ {name(peer)}  heartbeat") if self.world.tracing else None
            host.silent(peer)


def name(one: Any) -> str:
    """How a host is called in traces: large numbers by their first hexadecimal digits."""
    return f"{one:032x}"[:8] if isinstance(one, int) and one >> 64 else str(one)


def text(message: Any) -> str:
    """A message on one line, large numbers as names, long collections as their size; shorter still if it has a way."""
    if not is_dataclass(message):
        return value(message)
    brief = getattr(message, "brief", None)
    if brief is not None:
        return str(brief)
    parts = ", ".join(f"{one.name}={value(getattr(message, one.name))}" for one in fields(message))
    return f"{type(message).__name__}({parts})"


def value(one: Any) -> str:
    if isinstance(one, frozenset):  # its order is nobody's business
        one = tuple(sorted(one))
    if isinstance(one, tuple) and len(one) > 4:
        return f"<{len(one)}>"
    if isinstance(one, tuple):
        return f"({', '.join(value(part) for part in one)})"
    if isinstance(one, BaseException):
        return f"{type(one).__name__}: {str(one).partition(chr(10))[0]}"
    return text(one) if is_dataclass(one) else name(one)
