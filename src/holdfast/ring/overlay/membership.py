"""Being part of the ring: joining, leaving, noticing losses, and repairing leaf set and table.

Repair is one rule that needs no memory of what broke: whenever the leaf set has changed, and now and then without,
it goes to the two next neighbours, who know the nodes beyond. With correct next neighbours every leaf set fills up
from there; that those are found again, whatever happened, is what probing lost nodes and seeking one's own place
through a distant node are for. The price is a few hundred bytes a node every few ticks, whatever the size of the ring.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.ids import shared
from holdfast.ring.overlay.core import Core
from holdfast.ring.overlay.instructions import Beat, Found, Joined, Lost, NeedContact
from holdfast.ring.overlay.messages import AskRow, Hello, Here, Leaves, Leaving, Rows, Seek, Welcome
from holdfast.ring.overlay.view import View

EAGER = 4
"""So many ticks after a change of the table another row is asked for at each tick."""


class Membership:
    __slots__ = ("_asked", "_asks", "_contacts", "_core", "_eager", "_known", "_told", "_unchecked", "_view")

    def __init__(self, core: Core, view: View) -> None:
        self._core = core
        self._view = view
        self._contacts: list[int] = []
        self._asked: dict[int, int] = {}
        """Rumoured nodes → the tick at which they were asked."""
        self._told = -1
        """The version of the leaf set that the next neighbours have been sent."""
        self._asks = 0
        self._unchecked: list[int] = []
        self._known = 0
        """How many the table held at the last tick."""
        self._eager = 0
        """Ticks for which rows are asked for at every one of them."""

    # ------------------------------------------------------------------------------------- coming and going

    def join(self, contact: int | None) -> None:
        if contact is None or contact == self._core.id:
            self._enter()
        elif not self._core.joined:
            self._contacts = [*self._contacts[-3:], contact]
            self._core.send(contact, Seek(self._core.id, rows=True))
        else:  # part of a ring already: two rings become one
            self._core.send(contact, Hello(answer=True))

    def leave(self, others: Iterable[int]) -> None:
        """Everyone known is told; ``others`` are those that neither leaf set nor table may hold."""
        for peer in sorted({*self._view.leaves.all(), *self._view.table.peers, *others}):
            self._core.send(peer, Leaving())

    def _enter(self) -> None:
        if not self._core.joined:
            self._core.joined = True
            self._core.out.append(Joined())

    def sought(self, message: Seek) -> None:
        """Pass the search on, or end it here. A joiner gets the rows that it can use from everyone on the way."""
        core, view, origin = self._core, self._view, message.origin
        if origin == core.id:
            return
        hop, near = view.next_hop(origin, message.near, without=origin)
        if message.rows:
            digits = shared(core.id, origin, core.settings.bits)
            first = digits if message.hops else 0
            rows = {peer for row in range(first, digits + 1) for peer in view.table.row(row)}
            rows.discard(origin)
            if rows or hop is not None:
                core.send(origin, Rows((core.id, *sorted(rows))))
        if hop is None:
            core.send(origin, Welcome(view.leaves.all()))
        else:
            core.send(hop, Seek(origin, message.rows, message.hops + 1, near))

    def welcomed(self, sender: int, message: Welcome) -> None:
        """The end of a search. Someone who joins takes its neighbours on trust: it would be blind until they answer."""
        core, view = self._core, self._view
        if core.joined:
            self.meet(sender)
            self.rumours(message.leaves)
            return
        for peer in (sender, *message.leaves):
            if peer != core.id and peer not in view.lost:
                view.table.add(peer)
                if view.leaves.add(peer):
                    core.out.append(Found(peer))
        self._enter()
        for peer in view.leaves.all():
            core.send(peer, Hello(answer=True))
        for peer in view.table.peers:
            if peer not in view.leaves:
                core.send(peer, Hello(answer=False))

    # --------------------------------------------------------------------------------------------- who is there

    def meet(self, peer: int) -> None:
        if self._view.meet(peer):
            self._core.out.append(Found(peer))

    def rumours(self, peers: Iterable[int]) -> None:
        for peer in self._view.rumour(peers):
            if peer not in self._asked:
                self._asked[peer] = self._core.tick
                self._core.send(peer, Hello(answer=True))

    def greeted(self, sender: int, message: Hello) -> None:
        leaves = self._view.leaves
        if message.answer:
            self._core.send(sender, Here(leaves.all() if sender in leaves.beside() else ()))

    def told(self, sender: int, message: Leaves) -> None:
        """The sender takes this node for its next neighbour. If it is wrong, it learns who is in between."""
        leaves = self._view.leaves
        self.rumours(message.leaves)
        if sender not in leaves.beside():
            self._core.send(sender, Here(leaves.all()))

    def silent(self, peer: int) -> bool:
        """The peer was not reached. Is it lost?"""
        view = self._view
        leaf = peer in view.leaves
        row = shared(self._core.id, peer, self._core.settings.bits) if peer in view.table.peers else None
        if not view.silence(peer):
            return False
        self._gone(peer, leaf, row, left=False)
        return True

    def left(self, peer: int) -> None:
        self._over(peer, left=True)

    def ended(self, peer: int) -> None:
        """Evidence, unlike silence: nobody waits for it, and nobody probes it later."""
        self._over(peer, left=False)

    def _over(self, peer: int, *, left: bool) -> None:
        view = self._view
        leaf = peer in view.leaves
        view.drop(peer)
        view.lost.pop(peer, None)
        self._gone(peer, leaf, None, left=left)

    def _gone(self, peer: int, leaf: bool, row: int | None, left: bool) -> None:
        self._asked.pop(peer, None)
        if leaf:
            self._core.out.append(Lost(peer, left))
        if row is not None:  # somebody else of that row may know a replacement
            for other in self._view.table.rows_from(row)[:1]:
                self._core.send(other, AskRow(row))

    # --------------------------------------------------------------------------------------------------- ticks

    def tick(self) -> None:
        core, view, settings = self._core, self._view, self._core.settings
        if not core.joined:
            if self._contacts:
                contact = self._contacts[core.tick % len(self._contacts)]
                core.send(contact, Seek(core.id, rows=True))
                if core.tick % settings.patience == 0:
                    core.out.append(NeedContact())
            return
        view.clear()
        if not view.leaves.full and core.due(settings.probe_gap):
            core.out.append(NeedContact())
        if len(view.leaves):
            core.out.append(Beat(view.leaves.all()))
            self._check_entry()
        if self._asked:
            self._asked = {peer: at for peer, at in self._asked.items() if core.tick - at < 2}
        for peer in view.probes():
            core.send(peer, Hello(answer=True))
        if view.leaves.version != self._told or core.due(settings.exchange_every):
            self._told = view.leaves.version
            self._exchange()
        # While the table changes there is more to learn: a ring that grew or shrank quickly settles quickly.
        if len(view.table.peers) != self._known:
            self._known, self._eager = len(view.table.peers), EAGER
        if self._eager or core.due(settings.row_every):
            self._eager = max(0, self._eager - 1)
            self._ask_row()
        if core.due(settings.seek_every):
            self._seek()

    def _check_entry(self) -> None:
        """One node of the table after the other gets a heartbeat too: else dead ones stay there until they are used."""
        if not self._unchecked:
            members = self._view.leaves.members
            self._unchecked = [peer for peer in self._view.table.peers if peer not in members]
        if self._unchecked:
            self._core.out.append(Beat((self._unchecked.pop(),)))

    def _exchange(self) -> None:
        leaves = self._view.leaves
        for peer in leaves.beside():
            self._core.send(peer, Leaves(leaves.all()))

    def _ask_row(self) -> None:
        """Who shares as many digits has the same row, filled by other chances: one row after the other, each time
        another node, and every other time the first row with a gap."""
        table = self._view.table
        if not table.depth:
            return
        asks, odd = divmod(self._asks, 2)
        turn, row = divmod(asks, table.depth)
        gap = table.first_gap()
        if odd and gap is not None:
            turn, row = asks, gap
        self._asks += 1
        peers = table.rows_from(row)
        if peers:
            self._core.send(peers[turn % len(peers)], AskRow(row, table.row(row)))

    def _seek(self) -> None:
        """If a distant node knows somebody nearer to this one than this one does, two parts of the ring meet."""
        peers = list(self._view.table.peers)
        if peers:
            self._core.send(
                peers[self._core.tick // self._core.settings.seek_every % len(peers)], Seek(self._core.id, False)
            )

    def asked_row(self, sender: int, message: AskRow) -> None:
        self.rumours(message.peers)
        peers = [peer for peer in self._view.table.row(message.row) if peer != sender]
        self._core.send(sender, Rows(tuple(peers)))
