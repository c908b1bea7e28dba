"""Who sends which pieces to whom: the star, the line and the tree of SR3 §3.4-3.6, as plans.

A plan is a few branches, each one node's duty: the pieces it gives itself, and the branches it pulls, merges and sends
on together with its own. The replacing node pulls the outermost ones; every node asked pulls from its own branches, so
that a failure is seen by whoever waits for it, and nobody has to be told to stop. A plan may cover several slices at
once: a container that was lost had many, and a request for each piece of each would cost more than the bytes.

All three deal out the pieces with the fewest live holders first. What the replacing node holds itself is never sent.
Several nodes replace at once and plan apart: where holders are equally good a lot decides that is another for each of
them, or all would have the same one send everything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from zlib import crc32

from holdfast.safety.shards import PieceName


@dataclass(frozen=True)
class Branch:
    """One node's duty: its own pieces, merged with the streams of its branches, sent on to whoever pulls it."""

    at: str
    pieces: tuple[PieceName, ...]
    branches: tuple[Branch, ...] = ()

    def walk(self) -> Iterator[Branch]:
        """This one and all below it."""
        yield self
        for branch in self.branches:
            yield from branch.walk()

    def all_pieces(self) -> tuple[PieceName, ...]:
        """What comes out of it, once."""
        return tuple(piece for branch in self.walk() for piece in branch.pieces)

    def nodes(self) -> frozenset[str]:
        return frozenset(branch.at for branch in self.walk())

    @property
    def depth(self) -> int:
        return 1 + max((branch.depth for branch in self.branches), default=0)


Plan = tuple[Branch, ...]


@dataclass(frozen=True)
class Sources:
    """What a plan is made from. Whoever is not named in ``uploads`` is taken to be as fast as the others."""

    holders: Mapping[PieceName, Collection[str]]
    """Each piece that is wanted → the live containers that hold it at the wanted version; never none."""
    nbytes: Mapping[PieceName, int] = field(default_factory=dict)
    uploads: Mapping[str, float] = field(default_factory=dict)
    """Bytes a second."""
    load: Mapping[str, float] = field(default_factory=dict)
    """Bytes that each container has to send already."""
    here: str | None = None
    """The replacing node."""
    replacing: Collection[str] = ()
    """Others that replace too: they have enough to do, and do not merge for this one if somebody else can."""
    merges: Mapping[str, float] = field(default_factory=dict)
    """How fast each container merges, in bytes a second, where that is known."""

    def upload(self, container: str) -> float:
        return self.uploads.get(container) or max(self.uploads.values(), default=1.0)

    def lot(self, container: str) -> tuple[int, str]:
        """Tells equals apart, differently at every replacing node."""
        return crc32(f"{self.here}/{container}".encode()), container

    def scarcest_first(self) -> list[PieceName]:
        return sorted(self.holders, key=lambda piece: (len(self.holders[piece]), piece))


def star(sources: Sources) -> Plan:
    """Every provider sends to the replacing node. How many do so at a time is the puller's business.

    Each piece comes from the holder that would be done with it first: least (load + size) / upload.
    """
    dealt = _Dealt(sources)
    for piece in dealt.rest:
        dealt.give(piece, sources.holders[piece])
    return (*dealt.local(), *(Branch(at, pieces) for at, pieces in dealt.by_node()))


def line(sources: Sources, length: int) -> Plan:
    """Up to ``length`` nodes in a row: the first sends, each next one merges its own pieces and passes all on.

    The slowest goes first and the fastest last, since the last one sends everything. Pieces that no ``length`` nodes
    have together make further lines, side by side.
    """
    dealt = _Dealt(sources)
    lines: list[Branch] = []
    rest = dealt.rest
    while rest:
        nodes = _cover(rest, sources, length)
        members = set(nodes)
        covered = [piece for piece in rest if not members.isdisjoint(sources.holders[piece])]
        for piece in covered:
            dealt.give(piece, members.intersection(sources.holders[piece]))
        ordered = sorted(dealt.by_node(), key=lambda one: (sources.upload(one[0]), sources.lot(one[0])))
        dealt.given.clear()
        lines.append(_chain(ordered))
        taken = set(covered)
        rest = [piece for piece in rest if piece not in taken]
    return (*dealt.local(), *lines)


def tree(sources: Sources, fanout_bits: int, depth: int) -> Plan:
    """Sub-shards go to a reconstructing node for each shard; those go in groups of 2 ** ``fanout_bits`` to a head.

    One layer of heads after the other, until no more than one group is left, or there are ``depth`` layers. The shape
    is that of §3.6; "fan-out n" means 2 ** n as in §5.2.
    """
    dealt = _Dealt(sources)
    for piece in dealt.rest:
        dealt.give(piece, sources.holders[piece])
    level = _reconstructing(dealt)
    width, layers = 1 << fanout_bits, 1
    while len(level) > width and layers < depth:
        groups = ceil(len(level) / width)  # of even size: the largest is the one all wait for
        level = [_headed(level[first::groups], sources) for first in range(groups)]
        layers += 1
    return (*dealt.local(), *level)


# ------------------------------------------------------------------------------------------------- dealing out


class _Dealt:
    """Pieces given to containers one by one, each to whoever has the least to do for its speed."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.own: list[PieceName] = []
        self.rest: list[PieceName] = []
        for piece in sources.scarcest_first():
            (self.own if sources.here in sources.holders[piece] else self.rest).append(piece)
        self.given: defaultdict[str, list[PieceName]] = defaultdict(list)
        self._load: defaultdict[str, float] = defaultdict(float, sources.load)
        containers = {one for held in sources.holders.values() for one in held}
        self._upload = {one: sources.upload(one) for one in containers}
        self._lots: dict[tuple[int, str], int] = {}

    def give(self, piece: PieceName, to: Iterable[str]) -> None:
        size = self.sources.nbytes.get(piece, 1)
        load, upload = self._load, self._upload
        best = min(to, key=lambda one: ((load[one] + size) / upload[one], self._lot(piece.slice, one), one))
        load[best] += size
        self.given[best].append(piece)

    def _lot(self, slice_: int, container: str) -> int:
        """Tells equals apart by the slice: several replacing nodes that plan apart shall not all ask the same one."""
        key = (slice_, container)
        lot = self._lots.get(key)
        if lot is None:
            lot = self._lots[key] = crc32(f"{slice_}/{container}".encode())
        return lot

    def by_node(self) -> list[tuple[str, tuple[PieceName, ...]]]:
        return [(at, tuple(sorted(pieces))) for at, pieces in sorted(self.given.items())]

    def local(self) -> Plan:
        here = self.sources.here
        return (Branch(here, tuple(sorted(self.own))),) if here is not None and self.own else ()


def _cover(pieces: Sequence[PieceName], sources: Sources, length: int) -> list[str]:
    """Up to ``length`` containers that hold as many of these pieces as possible, then others to share the work."""
    holding: defaultdict[str, set[PieceName]] = defaultdict(set)
    for piece in pieces:
        for container in sources.holders[piece]:
            holding[container].add(piece)

    def rank(container: str, count: int) -> tuple[float, float, tuple[int, str]]:
        return -count, -sources.upload(container), sources.lot(container)

    missing = set(pieces)
    chosen: list[str] = []
    while missing and len(chosen) < length:
        best = min(holding.keys() - set(chosen), key=lambda one: rank(one, len(holding[one] & missing)))
        if missing.isdisjoint(holding[best]):
            break
        chosen.append(best)
        missing -= holding[best]
    spare = sorted(holding.keys() - set(chosen), key=lambda one: rank(one, len(holding[one])))
    return [*chosen, *spare[: length - len(chosen)]]


def _chain(ordered: Sequence[tuple[str, tuple[PieceName, ...]]]) -> Branch:
    """The first is the far end; the last is the one that is pulled."""
    at, pieces = ordered[0]
    branch = Branch(at, pieces)
    for at, pieces in ordered[1:]:
        branch = Branch(at, pieces, (branch,))
    return branch


def _reconstructing(dealt: _Dealt) -> list[Branch]:
    """A node for each shard, among those that give its parts; what others give of it goes there."""
    giver = {piece: at for at, pieces in dealt.given.items() for piece in pieces}
    shards: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for piece, at in giver.items():
        shards[piece.slice, piece.shard].add(at)
    duties: defaultdict[str, defaultdict[str, list[PieceName]]] = defaultdict(lambda: defaultdict(list))
    count: defaultdict[str, int] = defaultdict(int)
    place: dict[tuple[int, int], str] = {}
    for shard in sorted(shards):
        place[shard] = min(
            shards[shard], key=lambda at: (at in dealt.sources.replacing, count[at], dealt.sources.lot(at))
        )
        count[place[shard]] += 1
    for piece, at in sorted(giver.items()):
        duties[place[piece.slice, piece.shard]][at].append(piece)
    return [
        Branch(
            node,
            tuple(sorted(given.get(node, ()))),
            tuple(Branch(at, tuple(pieces)) for at, pieces in sorted(given.items()) if at != node),
        )
        for node, given in sorted(duties.items())
    ]


def _headed(group: Sequence[Branch], sources: Sources) -> Branch:
    """The member with the most upload merges for all, if possible one that does not replace."""
    head = min(group, key=lambda one: (one.at in sources.replacing, -sources.upload(one.at), sources.lot(one.at)))
    return Branch(head.at, head.pieces, (*head.branches, *(one for one in group if one is not head)))
