"""Which container holds a copy of which slice, at which version; where copies shall be; what is due to be sent.

What is known here is a lower bound: a copy that arrived without our hearing of it is newer than we think, and whoever
is asked to send or to activate one looks for itself. Nothing else depends on a copy, so everything about them may
fail, lag or be lost; what is missing is sent again, elsewhere if a peer did not take it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from holdfast.master.placement import repair

Sendings = dict[str, set[int]]
"""Peer → slices."""


class Copies:
    def __init__(self, slices: int, backups: int) -> None:
        self.held: list[dict[str, int]] = [{} for _ in range(slices)]
        """slice → holder → version."""
        self.wanted: tuple[tuple[str, ...], ...] = ((),) * slices
        self._backups = backups
        self._avoid: set[tuple[str, str]] = set()
        self._planned: object = None

    def plan(
        self, owners: Sequence[str | None], hosts: Mapping[str, str], moving: Collection[int], *, level: bool
    ) -> dict[str, frozenset[int]]:
        """Decide where copies shall be, if something changed; by holder, the copies that nobody wants any more.

        Without ``level`` only missing ones are dealt out: while slices still move, spreading their copies evenly would
        send many of them twice, and hold up the moves.
        """
        facts = (tuple(owners), dict(hosts), frozenset(self._avoid), frozenset(moving), level)
        if facts == self._planned:
            return {}
        self._planned = facts
        held_by = [tuple(held) for held in self.held]
        self.wanted = repair(owners, hosts, held_by, self._backups, self._avoid, level=level)
        surplus: defaultdict[str, set[int]] = defaultdict(set)
        for slice_, (held, wanted, owner) in enumerate(zip(self.held, self.wanted, owners, strict=True)):
            if slice_ in moving or owner is None:
                continue  # its copies are still of use
            for holder in held.keys() - set(wanted):
                del held[holder]
                surplus[holder].add(slice_)
        return {holder: frozenset(surplus[holder]) for holder in sorted(surplus)}

    def missing(self) -> bool:
        return any(set(wanted) - held.keys() for held, wanted in zip(self.held, self.wanted, strict=True))

    def count(self, container: str) -> int:
        return sum(container in held for held in self.held)

    def due(self, slices: Iterable[int], epoch: int, *, update: bool) -> Sendings:
        """What an owner of these slices has to send, to whom: what is missing, and with ``update`` what is older."""
        found: Sendings = defaultdict(set)
        for slice_ in slices:
            held = self.held[slice_]
            for peer in self.wanted[slice_]:
                if peer not in held or (update and held[peer] < epoch):
                    found[peer].add(slice_)
        return found

    def took(self, holder: str, slice_: int, version: int) -> None:
        held = self.held[slice_]
        held[holder] = max(version, held.get(holder, 0))

    def used(self, holder: str, slices: Iterable[int]) -> None:
        """They are active there now, or cannot be used."""
        for slice_ in slices:
            self.held[slice_].pop(holder, None)

    def refused(self, owner: str, peers: Iterable[str]) -> None:
        """These peers did not take the owner's copies: others come first until the containers change."""
        self._avoid |= {(owner, peer) for peer in peers}

    def lose(self, container: str) -> None:
        self._avoid.clear()
        for held in self.held:
            held.pop(container, None)
