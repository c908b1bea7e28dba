"""Where the copies of every slice live: chained backup, as pure functions (ChronoStream §III-B).

The l-th copy of an owner's m-th slice goes to its peer (m + l) mod N, so that a lost owner's slices are taken over by
all its peers at once. Every owner's chain begins after the owner in one ring: with one fixed order of peers for all,
the first in the order would hold everybody's copies and the last none. Two things are changed against the paper. The
ring takes hosts in turn, and a copy passes over a host that has this slice already while another host has not, or one
lost host takes a slice with all its copies. And ``repair`` keeps what is there: computing every place anew when a
container joins would send more than half of all copies again. It moves a copy only where an owner's copies lie so
unevenly on its peers that recovery would wait for one of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b


def ring(containers: Iterable[str]) -> list[str]:
    """The containers in the order of a 128-bit hash of their ids: the same for everyone, unlike any order of names."""
    return sorted(containers, key=_point)


@lru_cache(maxsize=4096)
def _point(container: str) -> bytes:
    return blake2b(container.encode(), digest_size=16).digest()


def peers(owner: str, hosts: Mapping[str, str], backups: int) -> list[str]:
    """Who may hold copies for ``owner``, in the order of its chain; ``hosts`` says of every container where it runs.

    Only containers of other hosts if there are enough of them, otherwise all, other hosts first.
    """
    order = _turns(hosts)
    start = order.index(owner)
    chain = order[start + 1 :] + order[:start]
    elsewhere = [peer for peer in chain if hosts[peer] != hosts[owner]]
    if len(elsewhere) >= backups:
        return elsewhere
    return elsewhere + [peer for peer in chain if hosts[peer] == hosts[owner]]


def _turns(hosts: Mapping[str, str]) -> list[str]:
    """The ring with the hosts in turn. With equally many containers a host, every owner sees the same picture."""
    seen: Counter[str] = Counter()
    turn = {}
    for container in ring(hosts):
        turn[container] = seen[hosts[container]]
        seen[hosts[container]] += 1
    first = {host: number for number, host in enumerate(seen)}
    return sorted(turn, key=lambda container: (turn[container], first[hosts[container]]))


def place(owner: str, slices: Sequence[int], hosts: Mapping[str, str], backups: int) -> dict[int, tuple[str, ...]]:
    """The holders of each of the owner's slices if nothing were there yet; fewer than ``backups`` if peers are few."""
    chain = _Chain.of(owner, hosts, backups)
    return {slice_: chain.target(m) for m, slice_ in enumerate(sorted(slices), start=1)}


def repair(
    owners: Sequence[str | None],
    hosts: Mapping[str, str],
    copies: Sequence[Collection[str]],
    backups: int,
    avoid: Collection[tuple[str, str]] = (),
    *,
    level: bool = True,
) -> tuple[tuple[str, ...], ...]:
    """The holders that the copies of every slice shall have, given those they have now.

    ``hosts`` names the living containers, ``avoid`` pairs of owner and peer that failed lately: they get copies only
    if there is no other way. Without ``level`` copies stay where they are, however unevenly they lie. A slice without
    an owner wants no copies. One whose owner is not among the living keeps what lives: these copies are all there is of
    it in memory.
    """
    held: Counter[str] = Counter()
    shares = []
    found: list[tuple[str, ...]] = [()] * len(owners)
    owned: defaultdict[str, list[int]] = defaultdict(list)
    for slice_, owner in enumerate(owners):
        if owner is None:
            continue
        if owner in hosts:
            owned[owner].append(slice_)
        else:
            found[slice_] = tuple(sorted(hosts.keys() & set(copies[slice_])))
            held.update(found[slice_])
    for owner in sorted(owned):
        chain = _Chain.of(owner, hosts, backups, frozenset(peer for who, peer in avoid if who == owner))
        shares.append(_Share(chain, owned[owner], copies, held))
    for share in shares:  # only now: what everybody keeps must count when the missing ones are dealt out
        share.fill()
    for share in shares:
        if level:
            share.level()
        for m, slice_ in enumerate(share.slices, start=1):
            found[slice_] = share.chain.sorted(m, share.holders[slice_])
    return tuple(found)


def activate(lost: Iterable[int], copies: Sequence[Mapping[str, int]], living: Collection[str]) -> dict[int, str]:
    """Who takes over each lost slice: a living holder of its newest copy; slices without one are left out.

    ``copies`` has the version at every holder. Slices with the least choice go first, then to whoever has fewest.

    >>> activate([0, 1, 2], [{"a": 7, "b": 7}, {"a": 7, "b": 6}, {"c": 9}], {"a", "b"})
    {1: 'a', 0: 'b'}
    """
    choices = {}
    for slice_ in lost:
        versions = {holder: version for holder, version in copies[slice_].items() if holder in living}
        if versions:
            newest = max(versions.values())
            choices[slice_] = sorted(holder for holder, version in versions.items() if version == newest)
    activated: Counter[str] = Counter()
    found = {}
    for slice_ in sorted(choices, key=lambda slice_: (len(choices[slice_]), slice_)):
        found[slice_] = min(choices[slice_], key=lambda holder: activated[holder])
        activated[found[slice_]] += 1
    return found


@dataclass
class _Chain:
    """One owner's peers and what sets them apart. A domain is what two copies of a slice should not share: a host."""

    peers: list[str]
    backups: int
    domains: dict[str, str]
    own: str  # the owner's domain
    avoid: frozenset[str]
    index: dict[str, int] = field(init=False)
    _targets: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _distances: dict[int, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.index = {peer: number for number, peer in enumerate(self.peers)}

    @classmethod
    def of(cls, owner: str, hosts: Mapping[str, str], backups: int, avoid: frozenset[str] = frozenset()) -> _Chain:
        found = peers(owner, hosts, backups)
        domains = {peer: hosts[peer] for peer in found}
        if len(set(domains.values())) == 1:  # one host for all: nothing left to keep apart but the containers
            return cls(found, min(backups, len(found)), {peer: peer for peer in found}, owner, avoid)
        return cls(found, min(backups, len(found)), domains, hosts[owner], avoid)

    def target(self, m: int) -> tuple[str, ...]:
        """The places of the m-th slice: peer (m + l) mod N, or the next one on whose host it has fewest copies."""
        size = len(self.peers)
        if not size:
            return ()
        if m % size not in self._targets:
            chosen: list[str] = []
            used = Counter([self.own])
            for l in range(1, self.backups + 1):  # noqa: E741 - the paper's letter
                first = self.peers[(m + l) % size]
                if used[self.domains[first]]:
                    order = [peer for peer in self._from(m + l) if peer not in chosen]
                    first = min(order, key=lambda peer: used[self.domains[peer]])
                chosen.append(first)
                used[self.domains[chosen[-1]]] += 1
            self._targets[m % size] = tuple(chosen)
        return self._targets[m % size]

    def _from(self, number: int) -> list[str]:
        start = number % len(self.peers)
        return self.peers[start:] + self.peers[:start]

    def distances(self, m: int) -> dict[str, int]:
        """How far peers are from the places of the m-th slice; the places themselves are nearest, in their order."""
        size = len(self.peers)
        if m % size not in self._distances:
            order = (*self.target(m), *self._from(m + 1))
            self._distances[m % size] = {peer: number for number, peer in reversed([*enumerate(order)])}
        return self._distances[m % size]

    def sorted(self, m: int, holders: Collection[str]) -> tuple[str, ...]:
        return tuple(sorted(holders, key=self.distances(m).__getitem__) if len(holders) > 1 else holders)

    def burden(self, peer: str, holders: Iterable[str]) -> tuple[bool, int]:
        """What speaks against a peer for a slice with these holders, before anything else is asked."""
        domains = self.domains
        domain = domains[peer]
        return peer in self.avoid, [self.own, *[domains[holder] for holder in holders]].count(domain)


_NOTHING = (False, 0)  # the burden of a peer that nothing speaks against


class _Share:
    """One owner's slices and the holders of their copies while they are being repaired."""

    def __init__(self, chain: _Chain, slices: list[int], copies: Sequence[Collection[str]], held: Counter[str]) -> None:
        self.chain = chain
        self.slices = slices
        self.held = held  # copies a container holds from everybody, shared by all owners
        self.mine = Counter(dict.fromkeys(chain.peers, 0))  # from this owner
        self.kept: dict[int, tuple[str, ...]] = {}  # what is there and may stay, nearest first
        self.holders: dict[int, list[str]] = {}
        for m, slice_ in enumerate(slices, start=1):
            there = chain.sorted(m, {peer for peer in copies[slice_] if peer in chain.index})
            self.kept[slice_] = there
            self.holders[slice_] = []
            for peer in there:
                self._add_if_free(slice_, peer)

    def fill(self) -> None:
        chain = self.chain
        for m, slice_ in enumerate(self.slices, start=1):
            holders = self.holders[slice_]
            if len(holders) < chain.backups:
                for peer in chain.target(m):
                    self._add_if_free(slice_, peer)
            while len(holders) < chain.backups:
                self._add(slice_, self._best(m, slice_))

    def _best(self, m: int, slice_: int) -> str:
        chain, holders, kept, target = self.chain, self.holders[slice_], self.kept[slice_], self.chain.target(m)

        def cost(peer: str) -> tuple[object, ...]:
            chosen = (peer not in kept, peer not in target)
            return (*chain.burden(peer, holders), *chosen, self.mine[peer], self.held[peer], chain.distances(m)[peer])

        return min((peer for peer in chain.peers if peer not in holders), key=cost)

    def level(self) -> None:
        """Moves copies until no peer has more than L more of this owner's than another, as far as hosts allow."""
        most = max(1, self.chain.backups)
        while len(self.mine) > 1 and max(self.mine.values()) - min(self.mine.values()) > most:
            if not self._move_one(most):
                return

    def _move_one(self, most: int) -> bool:
        fullest = sorted(self.mine, key=lambda peer: (-self.mine[peer], -self.held[peer], self.chain.index[peer]))
        emptiest = sorted(self.mine, key=lambda peer: (self.mine[peer], self.held[peer], self.chain.index[peer]))
        for giver in fullest:
            for taker in emptiest:
                if self.mine[giver] - self.mine[taker] <= most:
                    break
                movable = [slice_ for slice_ in self.slices if self._may_move(slice_, giver, taker)]
                if movable:
                    # A copy that is not there yet costs nothing to move, one that the taker has costs nothing either.
                    slice_ = min(movable, key=lambda one: (giver in self.kept[one]) - (taker in self.kept[one]))
                    self.holders[slice_].remove(giver)
                    self.mine[giver] -= 1
                    self.held[giver] -= 1
                    self._add(slice_, taker)
                    return True
        return False

    def _may_move(self, slice_: int, giver: str, taker: str) -> bool:
        holders = self.holders[slice_]
        if giver not in holders or taker in holders:
            return False
        others = [peer for peer in holders if peer != giver]
        burden, before = self.chain.burden(taker, others), self.chain.burden(giver, others)
        return burden[0] <= before[0] and burden[1] <= before[1]

    def _add_if_free(self, slice_: int, peer: str) -> None:
        holders = self.holders[slice_]
        chain = self.chain
        if len(holders) < chain.backups and peer not in holders and chain.burden(peer, holders) == _NOTHING:
            self._add(slice_, peer)

    def _add(self, slice_: int, peer: str) -> None:
        self.holders[slice_].append(peer)
        self.mine[peer] += 1
        self.held[peer] += 1
