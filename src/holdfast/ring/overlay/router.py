"""Routes: hop by hop to the live node nearest to a key, each hop strictly closer (``messages.Route``).

A hop that fails is tried another way at once, or again, if the one that did not answer may be the goal itself. That
covers every loss but one: the node that holds the message dies. Whoever minds wants a receipt, and sends the message
again until it comes.
"""

from __future__ import annotations

from typing import Any

from holdfast.ring.overlay.core import Core, Seen
from holdfast.ring.overlay.instructions import Arrived, Deliver
from holdfast.ring.overlay.messages import Collection, MessageId, Publication, Receipt, Route
from holdfast.ring.overlay.view import View


class Router:
    __slots__ = ("_core", "_open", "_seen", "_view", "for_groups")

    def __init__(self, core: Core, view: View) -> None:
        self._core = core
        self._view = view
        self._seen = Seen(core)
        self._open: dict[MessageId, tuple[Route, int]] = {}
        """Messages of this node without their receipt, and when they were sent last."""
        self.for_groups: list[Route] = []
        """What was delivered here for a group, to be taken by its owner before the event ends."""

    def start(self, id_: MessageId, key: int, payload: Any, receipt: bool) -> None:
        route = Route(id_, key, payload, receipt=receipt)
        if receipt:
            self._open[id_] = route, self._core.tick
        self.forward(route)

    def forward(self, route: Route) -> None:
        hop, near = self._view.next_hop(route.key, route.near)
        if hop is None:
            self._arrive(route)
        else:
            onward = Route(route.id, route.key, route.payload, route.hops + 1, near, route.receipt)
            self._core.send(hop, onward)

    def unreached(self, route: Route) -> None:
        """As it was before the hop that failed. Near its end it stays near: the order must not be left."""
        self.forward(Route(route.id, route.key, route.payload, route.hops - 1, route.near, route.receipt))

    def _arrive(self, route: Route) -> None:
        core = self._core
        if route.receipt:
            if route.id[0] == core.id:
                self.confirmed(core.id, route.id, route.hops)
            else:
                core.send(route.id[0], Receipt(route.id, route.hops))
        if not self._seen.first(route.id):
            return
        if isinstance(route.payload, Publication | Collection):
            self.for_groups.append(route)
        else:
            core.out.append(Deliver(route.id, route.key, route.payload, route.hops))

    def confirmed(self, at: int, id_: MessageId, hops: int) -> None:
        found = self._open.pop(id_, None)
        if found and not isinstance(found[0].payload, Publication | Collection):
            self._core.out.append(Arrived(id_, found[0].payload, at, hops))

    def tick(self) -> None:
        if not self._open:
            return
        tick = self._core.tick
        late = [one for one, (_, at) in self._open.items() if tick - at >= self._core.settings.retry_every]
        for one in late:
            route = self._open[one][0]
            self._open[one] = route, tick
            self.forward(route)
