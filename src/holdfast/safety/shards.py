"""A slice's state in pieces on the ring: which there are, where they go, which version of them can come back.

SR3 §3.3, Fig. 3 and 5: m shards by ranges of the key's hash, each cut into ``parts`` sub-shards, each piece on n
containers of the leaf set of the slice's key. n counts copies in all, the owner's own state not among them, so that
n - 1 holders of every piece may go. The key depends on job and slice only, never on who computes the slice: whoever
recovers it finds its pieces by name alone. A piece carries its version; versions are compared, never mixed.

The trade-off: a piece stays where it is as long as that container remains a leaf, even if another has fewer. A delta
can then follow the piece, and a join does not send the whole state round again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.ids import id_of

FIRST = -(1 << 63)
"""The least hash: the state keeps them as signed numbers of 64 bits."""


class PieceName(NamedTuple):
    """Sub-shard ``part`` of ``shard`` of a slice."""

    slice: int
    shard: int
    part: int = 0


class Version(NamedTuple):
    """Of which epoch, and which saving of it. Later ones are greater."""

    epoch: int
    sequence: int = 0


class Held(NamedTuple):
    """What a container answers when asked what it holds: one of these for each piece and version."""

    piece: PieceName
    version: Version
    nbytes: int


@dataclass(frozen=True)
class Cut:
    """How every slice of a job is cut, and how often each piece is kept."""

    m: int
    n: int
    parts: int = 1

    def pieces(self, slice_: int) -> tuple[PieceName, ...]:
        """In order of their hashes."""
        return tuple(PieceName(slice_, shard, part) for shard in range(self.m) for part in range(self.parts))

    def bounds(self) -> tuple[int, ...]:
        return bounds(self.m, self.parts)


def key_of(job: str, slice_: int) -> int:
    """Where on the ring the pieces of a slice belong."""
    return id_of(job, "slice", str(slice_))


def bounds(m: int, parts: int = 1) -> tuple[int, ...]:
    """The least hash of each piece, in the order of ``Cut.pieces``; each reaches up to the next one's.

    ``numpy.searchsorted(bounds, hashes, side="right") - 1`` is the place of each row's piece.

    >>> [bound >> 61 for bound in bounds(m=2, parts=2)]
    [-4, -2, 0, 2]
    """
    count = m * parts
    return tuple(FIRST + ((place << 64) // count) for place in range(count))


def holders(
    pieces: Iterable[PieceName],
    leaves: Mapping[str, str],
    owner: str,
    n: int,
    load: Mapping[str, int] | None = None,
    kept: Mapping[PieceName, Collection[str]] | None = None,
) -> dict[PieceName, tuple[str, ...]]:
    """The n containers that shall hold each piece; fewer if there are no more, and never the owner.

    ``leaves`` are the containers of leaf(key) with their hosts, the nearest first; ``load`` how many pieces each holds
    already; ``kept`` who has the piece now. Unlike hosts come first (the owner's last of all), then who has the piece
    already, then who holds the fewest.
    """
    counts = Counter(load or {})
    place = {container: number for number, container in enumerate(leaves) if container != owner}
    found: dict[PieceName, tuple[str, ...]] = {}
    for piece in pieces:
        having = (kept or {}).get(piece, ())
        hosts = Counter([leaves[owner]] if owner in leaves else [])
        chosen: list[str] = []
        while len(chosen) < min(n, len(place)):
            best = min(
                (one for one in place if one not in chosen),
                key=lambda one: (hosts[leaves[one]], one not in having, counts[one], place[one]),
            )
            chosen.append(best)
            hosts[leaves[best]] += 1
            counts[best] += best not in having
        found[piece] = tuple(chosen)
    return found


def choose(pieces: Collection[PieceName], inventory: Mapping[str, Iterable[Held]]) -> Version | None:
    """The newest version of which every piece has a holder in the inventory (container → what it holds)."""
    wanted = set(pieces)
    there: defaultdict[Version, set[PieceName]] = defaultdict(set)
    for answer in inventory.values():
        for held in answer:
            if held.piece in wanted:
                there[held.version].add(held.piece)
    return max((version for version, found in there.items() if found == wanted), default=None)


def least_copies(pieces: Iterable[PieceName], taken: Mapping[PieceName, Collection[str]]) -> int:
    """Of the piece that the fewest containers have taken: a version is usable from 1 on, and whole from n on."""
    return min((len(taken.get(piece, ())) for piece in pieces), default=0)
