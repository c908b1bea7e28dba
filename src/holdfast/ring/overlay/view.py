"""What a node knows of the others: leaves, table, who is suspected, who is lost; and from that, where a route goes on.

Only someone heard directly becomes a leaf: rumours are asked first. The table believes rumours, because a wrong entry
there costs one failed hop and is mended by it. A lost node is not forgotten: it is probed, ever more rarely, so that
a partition that heals finds both halves looking for each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.ids import distance, shared
from holdfast.ring.overlay.core import Core
from holdfast.ring.overlay.leaves import LeafSet
from holdfast.ring.overlay.table import RoutingTable


class View:
    __slots__ = ("_core", "leaves", "lost", "suspects", "table")

    def __init__(self, core: Core) -> None:
        self._core = core
        self.leaves = LeafSet(core.id, core.settings.leaves)
        self.table = RoutingTable(core.id, core.settings.bits)
        self.suspects: dict[int, tuple[int, int]] = {}
        """Leaf → how many ticks in a row it was silent, and the last of them."""
        self.lost: dict[int, tuple[int, int]] = {}
        """Node → the tick of its next probe, and the gap after that."""

    # ---------------------------------------------------------------------------------------------- who lives

    def meet(self, peer: int) -> bool:
        """The peer itself has spoken: it lives. Has it become a leaf by that?"""
        if self.suspects:
            self.suspects.pop(peer, None)
        if peer in self.leaves.members:
            return False
        self.lost.pop(peer, None)
        self.table.add(peer)
        return self.leaves.add(peer)

    def rumour(self, peers: Iterable[int]) -> list[int]:
        """Others speak of these. The ones that should be asked, because they would be leaves."""
        members, lost, table, leaves = self.leaves.members, self.lost, self.table, self.leaves
        ask = []
        for peer in peers:
            if peer in members or peer in lost or peer == self._core.id:
                continue
            if peer not in table.peers:
                table.add(peer)
            if leaves.wants(peer):
                ask.append(peer)
        return ask

    def silence(self, peer: int) -> bool:
        """The peer did not answer. Is it lost by that? A leaf only after several ticks of it, others at once."""
        tick = self._core.tick
        if peer in self.leaves.members:
            count, last = self.suspects.get(peer, (0, tick - 1))
            if last == tick and count:
                return False
            count = count + 1 if last == tick - 1 else 1
            self.suspects[peer] = count, tick
            if count < self._core.settings.patience:
                return False
        self.drop(peer)
        if peer not in self.lost:
            if len(self.lost) >= self._core.settings.lost_kept:
                del self.lost[next(iter(self.lost))]
            self.lost[peer] = tick + 1, 2
        return True

    def drop(self, peer: int) -> None:
        self.suspects.pop(peer, None)
        self.leaves.remove(peer)
        if self.table.remove(peer) is not None:
            for leaf in self.leaves.all():  # one of them may have found its place taken
                self.table.add(leaf)

    def clear(self) -> None:
        """Who has not been silent again since the last tick is suspected no more."""
        if self.suspects:
            last = self._core.tick - 1
            self.suspects = {peer: entry for peer, entry in self.suspects.items() if entry[1] >= last}

    def probes(self) -> list[int]:
        """Lost nodes to be tried again at this tick."""
        if not self.lost:
            return []
        tick, longest = self._core.tick, self._core.settings.probe_gap
        due = [peer for peer, (at, _) in self.lost.items() if at <= tick]
        for peer in due:
            gap = self.lost[peer][1]
            self.lost[peer] = tick + gap, min(2 * gap, longest)
        return due

    # ------------------------------------------------------------------------------------------------- routes

    def next_hop(self, key: int, near: bool = False, without: int | None = None) -> tuple[int | None, bool]:
        """Where to go from here, and whether the route is near its end then. None: this node is the nearest.

        A suspected leaf is avoided as a step on the way, but not as the end of it: whether a key's owner is gone is
        for its silence to tell, and until then the message is sent to it again.
        """
        leaves = self.leaves
        own = leaves.owner
        if near or leaves.covers(key) or self._whole_ring():
            best = leaves.nearest(key, without)
            return (None if best == own else best), True
        best_step = self.table.towards(key)
        if best_step is not None and best_step not in self.suspects and best_step != without:
            return best_step, False
        step = self._any_closer(key, without)
        if step is not None:
            return step, False
        best = leaves.nearest(key, without)
        return (None if best == own else best), True

    def _whole_ring(self) -> bool:
        """Is everyone a leaf? Leaves are missing, and the table knows of nobody else."""
        return not self.leaves.full and self.table.peers.keys() <= self.leaves.members

    def _any_closer(self, key: int, without: int | None) -> int | None:
        """Of all known nodes with as many digits in common with the key, the nearest, if nearer than this one."""
        own, bits = self.leaves.owner, self.table.bits
        digits = shared(own, key, bits)
        best, least = None, distance(own, key)
        for peer in (*self.leaves.all(), *self.table.rows_from(digits)):
            if peer == without or peer in self.suspects:
                continue
            away = distance(peer, key)
            if away < least and shared(peer, key, bits) >= digits:
                best, least = peer, away
        return best
