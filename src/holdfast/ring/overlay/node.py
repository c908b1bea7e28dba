"""A node of the ring as a pure machine: ``handle(event) -> instructions``.

The parts are a view of the others (``view``), keeping it true (``membership``), routes (``router``) and groups
(``groups``, ``gather``); here events and messages find their part. No clock, socket, thread or randomness: the same
events give the same instructions.

>>> from holdfast.ring.overlay.events import Join, Lookup
>>> node = Node(id_of("container-1"))
>>> node.handle(Join())
[Joined()]
>>> [type(one).__name__ for one in node.handle(Lookup(id_of("a key"), "hello"))]
['Deliver']
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from holdfast.ids import id_of, show
from holdfast.invariants import Impossible
from holdfast.ring.overlay.core import Combine, Core
from holdfast.ring.overlay.events import (
    Answered,
    Collect,
    Ended,
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
from holdfast.ring.overlay.gather import Gathers
from holdfast.ring.overlay.groups import Groups
from holdfast.ring.overlay.instructions import Instruction
from holdfast.ring.overlay.membership import Membership
from holdfast.ring.overlay.messages import (
    Ask,
    AskRow,
    Attach,
    Cast,
    Collection,
    Detach,
    Hello,
    Here,
    Leaves,
    Leaving,
    Message,
    Part,
    Publication,
    Receipt,
    Refused,
    Result,
    Route,
    Rows,
    Seek,
    Welcome,
)
from holdfast.ring.overlay.retries import Retries
from holdfast.ring.overlay.router import Router
from holdfast.ring.overlay.settings import Settings
from holdfast.ring.overlay.view import View

__all__ = ["Node", "id_of"]

OUTSIDE = (Welcome, Rows, Refused)
"""What a node understands before it is part of the ring."""


class Node:
    """One node. A restarted one with the same id must get another ``incarnation``: its messages count anew."""

    def __init__(
        self, own: int, settings: Settings | None = None, incarnation: int = 0, combine: Combine = operator.add
    ) -> None:
        self._core = Core(own, settings or Settings(), incarnation, combine)
        self.view = View(self._core)
        self.membership = Membership(self._core, self.view)
        self.router = Router(self._core, self.view)
        self.groups = Groups(self._core, self.view)
        self.gathers = Gathers(self._core, self.groups)
        self._retries = Retries(self._core)
        self._left = False

    def __repr__(self) -> str:
        return f"Node({show(self.id)})"

    @property
    def id(self) -> int:
        return self._core.id

    @property
    def joined(self) -> bool:
        return self._core.joined and not self._left

    @property
    def leaves(self) -> tuple[int, ...]:
        """Clockwise from this node."""
        return self.view.leaves.all()

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; what to do now, in this order."""
        self._core.out = []
        if not self._left:
            _EVENTS[type(event)](self, event)
        return self._core.out

    # ------------------------------------------------------------------------------------------- from the shell

    def _received(self, event: Received) -> None:
        message, sender = event.message, event.sender
        kind = type(message)
        if not self._core.joined and kind not in OUTSIDE:
            self._core.send(sender, Refused(message))
            return
        if kind is Route:
            self.view.suspects.pop(sender, None)
            if sender not in self.view.leaves.members:
                self.membership.meet(sender)
            if not isinstance(message, Route):
                raise Impossible(f"{message!r} is no Route")
            self.router.forward(message)
            self._serve_groups()
        else:
            # Someone who seeks is not part of the ring yet, someone who leaves no more; a refusal says the same.
            if kind not in (Seek, Welcome, Leaving, Refused, Receipt, Result, Rows) and self._core.joined:
                self.membership.meet(sender)
            _MESSAGES[kind](self, sender, message)

    def _serve_groups(self) -> None:
        """What was routed here for a group: this node is its root."""
        delivered = self.router.for_groups
        while delivered:
            route = delivered.pop()
            if isinstance(route.payload, Publication):
                self.groups.cast(route.payload.group, route.id, route.payload.payload, sender=None)
            else:
                if not isinstance(route.payload, Collection):
                    raise Impossible(f"{route.payload!r} is no Collection")
                self.gathers.ask(Ask(route.payload.group, route.id, route.payload.question), parent=None)

    def _silent(self, event: Silent) -> None:
        # Somebody who is neither leaf nor in the table any more was given up while the heartbeat was under way.
        known = event.peer in self.view.leaves or event.peer in self.view.table.peers
        if known and self.membership.silent(event.peer):
            self._gone(event.peer)

    def _ended(self, event: Ended) -> None:
        self.membership.ended(event.peer)
        self._gone(event.peer)

    def _unreached(self, event: Unreached) -> None:
        peer, message = event.peer, event.message
        if self._core.joined and self.membership.silent(peer):
            self._gone(peer)
        match message:
            case Route():
                self.router.unreached(message)
                self._serve_groups()
            case Seek(origin=origin) if origin != self.id:
                self.membership.sought(Seek(origin, message.rows, message.hops, message.near))
            case Attach(group):
                self.groups.unreached_parent(peer, group)
            case Cast() | Ask() | Part() | Result():
                if not self._retries.later(peer, message) and isinstance(message, Cast | Ask):
                    self._gone(peer)
            case _:
                pass  # said again in time, by a tick

    def _gone(self, peer: int) -> None:
        self.groups.gone(peer)
        self.gathers.gone(peer)

    def _tick(self, _: Tick) -> None:
        self._core.tick += 1
        self.membership.tick()
        if self._core.joined:
            self._retries.tick()
            self.router.tick()
            self._serve_groups()
            self.groups.tick()
            self.gathers.tick()

    # ------------------------------------------------------------------------------------- from its own process

    def _join(self, event: Join) -> None:
        self.membership.join(event.contact)

    def _leave(self, _: Leave) -> None:
        if self._core.joined:
            self.membership.leave(self.groups.relatives())
        self._left = True

    def _lookup(self, event: Lookup) -> None:
        self._must_be_joined(event)
        self.router.start(self._core.new_id(), event.key, event.payload, event.receipt)

    def _subscribe(self, event: Subscribe) -> None:
        self.groups.subscribe(event.group)

    def _unsubscribe(self, event: Unsubscribe) -> None:
        self.groups.unsubscribe(event.group)

    def _publish(self, event: Publish) -> None:
        self._must_be_joined(event)
        publication = Publication(event.group, event.payload)
        self.router.start(self._core.new_id(), event.group, publication, receipt=True)
        self._serve_groups()

    def _collect(self, event: Collect) -> None:
        self._must_be_joined(event)
        id_ = self._core.new_id()
        self.gathers.start(id_, event.group, event.question)
        self.router.start(id_, event.group, Collection(event.group, event.question), receipt=True)
        self._serve_groups()

    def _answered(self, event: Answered) -> None:
        self.gathers.answered(event.id, event.value)

    def _must_be_joined(self, event: Event) -> None:
        if not self._core.joined:
            raise Impossible(f"{event} at {self}, which is not part of a ring")

    # ----------------------------------------------------------------------------------------------- from others

    def _sought(self, _: int, message: Seek) -> None:
        self.membership.sought(message)

    def _welcomed(self, sender: int, message: Welcome) -> None:
        self.membership.welcomed(sender, message)

    def _told_rows(self, _: int, message: Rows) -> None:
        self.membership.rumours(message.peers) if self._core.joined else self.view.rumour(message.peers)

    def _asked_row(self, sender: int, message: AskRow) -> None:
        self.membership.asked_row(sender, message)

    def _greeted(self, sender: int, message: Hello) -> None:
        self.membership.greeted(sender, message)

    def _told_leaves(self, sender: int, message: Leaves) -> None:
        self.membership.told(sender, message)

    def _answered_here(self, _: int, message: Here) -> None:
        self.membership.rumours(message.leaves)

    def _others_left(self, sender: int, _: Leaving) -> None:
        self.membership.left(sender)
        self._gone(sender)

    def _refused(self, sender: int, message: Refused) -> None:
        self._unreached(Unreached(sender, message.message))

    def _confirmed(self, sender: int, message: Receipt) -> None:
        self.router.confirmed(sender, message.id, message.hops)

    def _attached(self, sender: int, message: Attach) -> None:
        self.groups.attached(sender, message.group)

    def _detached(self, sender: int, message: Detach) -> None:
        self.groups.detached(sender, message.group)

    def _cast(self, sender: int, message: Cast) -> None:
        self.groups.cast(message.group, message.id, message.payload, sender)

    def _asked(self, sender: int, message: Ask) -> None:
        self.gathers.ask(message, sender)

    def _part(self, sender: int, message: Part) -> None:
        self.gathers.part(sender, message)

    def _result(self, _: int, message: Result) -> None:
        self.gathers.result(message)


_EVENTS: dict[type[Event], Callable[[Node, Any], None]] = {
    Received: Node._received,
    Unreached: Node._unreached,
    Silent: Node._silent,
    Ended: Node._ended,
    Tick: Node._tick,
    Join: Node._join,
    Leave: Node._leave,
    Lookup: Node._lookup,
    Subscribe: Node._subscribe,
    Unsubscribe: Node._unsubscribe,
    Publish: Node._publish,
    Collect: Node._collect,
    Answered: Node._answered,
}
_MESSAGES: dict[type[Message], Callable[[Node, int, Any], None]] = {
    Seek: Node._sought,
    Welcome: Node._welcomed,
    Rows: Node._told_rows,
    AskRow: Node._asked_row,
    Hello: Node._greeted,
    Here: Node._answered_here,
    Leaves: Node._told_leaves,
    Leaving: Node._others_left,
    Refused: Node._refused,
    Receipt: Node._confirmed,
    Attach: Node._attached,
    Detach: Node._detached,
    Cast: Node._cast,
    Ask: Node._asked,
    Part: Node._part,
    Result: Node._result,
}
