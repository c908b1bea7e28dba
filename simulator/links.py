"""Links: transfers that take the time they would, on nodes with an upload and a download speed.

Bandwidth is shared as TCP would roughly share it: max-min fair, by filling all flows evenly until one of the links
they use is full, then going on with the rest. When a transfer begins or ends, only the flows that are connected with
it through shared links are computed again. Packets, windows and slow start are left out: for megabytes they are noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator.world import World

Link = tuple[Any, str]
"""A node and a direction, "up" or "down"."""


@dataclass(frozen=True)
class Speed:
    """Bytes a second."""

    up: float
    down: float


class Flow:
    __slots__ = ("done", "failed", "left", "links", "number", "rate", "since", "turn")

    def __init__(
        self, number: int, links: tuple[Link, Link], size: float, done: Callable[[], None], failed: Callable[[], None]
    ) -> None:
        self.number = number
        self.links = links
        self.left = size
        self.done = done
        self.failed = failed
        self.rate = 0.0
        self.since = 0.0
        self.turn = 0
        """Grows when the rate changes: an end foreseen before that is no longer true."""


class Links:
    """All links of a world. ``transfer`` begins one; a node that dies takes its transfers with it."""

    def __init__(self, world: World, default: Speed) -> None:
        self.world = world
        self.default = default
        self.speeds: dict[Any, Speed] = {}
        self.carried: dict[Link, float] = {}
        """Bytes so far, by link."""
        self._flows: dict[Link, dict[int, Flow]] = {}
        self._made = 0

    def transfer(
        self,
        sender: Any,
        to: Any,
        size: float,
        done: Callable[[], None],
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Calls ``done`` when the last byte has arrived, or ``failed`` when one of the two dies before."""
        self._made += 1
        flow = Flow(self._made, ((sender, "up"), (to, "down")), max(size, 0.0), done, failed or (lambda: None))
        flow.since = self.world.now
        for link in flow.links:
            self._flows.setdefault(link, {})[flow.number] = flow
        self._share(flow.links)

    def die(self, node: Any) -> None:
        """All transfers from and to a node end here."""
        ended = [flow for way in ("up", "down") for flow in list(self._flows.get((node, way), {}).values())]
        for flow in ended:
            self._settle(flow)
            self._remove(flow)
            self.world.at(0.0, flow.failed)
        self._share(tuple(link for flow in ended for link in flow.links))

    def rate(self, link: Link) -> float:
        """Bytes a second that a link carries now."""
        return sum(flow.rate for flow in self._flows.get(link, {}).values())

    def _capacity(self, link: Link) -> float:
        node, way = link
        speed = self.speeds.get(node, self.default)
        return speed.up if way == "up" else speed.down

    def _remove(self, flow: Flow) -> None:
        flow.turn += 1
        for link in flow.links:
            self._flows[link].pop(flow.number, None)

    def _settle(self, flow: Flow) -> None:
        """Counts what has been carried since its rate last changed."""
        carried = min(flow.left, flow.rate * (self.world.now - flow.since))
        flow.left -= carried
        flow.since = self.world.now
        for link in flow.links:
            self.carried[link] = self.carried.get(link, 0.0) + carried

    def _connected(self, links: tuple[Link, ...]) -> list[Flow]:
        """All flows that share a link with one of these, with those, and so on; in the order they began."""
        found: dict[int, Flow] = {}
        seen, todo = set(links), list(dict.fromkeys(links))
        while todo:
            for flow in self._flows.get(todo.pop(), {}).values():
                if flow.number not in found:
                    found[flow.number] = flow
                    fresh = [link for link in flow.links if link not in seen]
                    seen.update(fresh)
                    todo.extend(fresh)
        return [found[number] for number in sorted(found)]

    def _share(self, links: tuple[Link, ...]) -> None:
        flows = self._connected(links)
        for flow, rate in zip(flows, self._fair(flows), strict=True):
            if rate == flow.rate and flow.turn:
                continue
            self._settle(flow)
            flow.rate = rate
            flow.turn += 1
            self.world.at(flow.left / rate, self._end, flow, flow.turn)

    def _fair(self, flows: list[Flow]) -> list[float]:
        room: dict[Link, float] = {}
        users: dict[Link, dict[int, None]] = {}
        for number, flow in enumerate(flows):
            for link in flow.links:
                room.setdefault(link, self._capacity(link))
                users.setdefault(link, {})[number] = None
        rates = [0.0] * len(flows)
        while users:
            tight = min(users, key=lambda link: room[link] / len(users[link]))
            share = room[tight] / len(users[tight])
            for number in list(users[tight]):
                rates[number] = share
                for link in flows[number].links:
                    room[link] = max(0.0, room[link] - share)
                    del users[link][number]
                    if not users[link]:
                        del users[link]
        return rates

    def _end(self, flow: Flow, turn: int) -> None:
        if turn != flow.turn:
            return
        self._settle(flow)
        self._remove(flow)
        self._share(flow.links)
        flow.done()
