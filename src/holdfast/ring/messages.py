"""What containers of a ring ask each other, and what the driver tells them of it.

``ring.overlay.messages`` is what the nodes of the ring say among themselves; a ``Letter`` carries some of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.recovery.policies import Auto, Line, Star, Tree
from holdfast.recovery.structures import Branch
from holdfast.ring.overlay.messages import Message
from holdfast.ring.overlay.settings import Settings
from holdfast.safety.shards import Cut, Held, PieceName, Version
from holdfast.wire.codec import Tagged
from holdfast.wire.messages import READERS, Address, Call, Done, Push, Reply, Ticket

Policy = Star | Line | Tree | Auto


@dataclass(frozen=True)
class RingTerms:
    """The same for all containers of a ring. Silence of ``patience`` ticks is a loss; a refused call is one at once."""

    tick: float = 0.5
    patience: int = 10
    leaves: int = 24
    bits: int = 4

    @property
    def settings(self) -> Settings:
        return Settings(bits=self.bits, leaves=self.leaves, patience=self.patience)


@dataclass(frozen=True)
class JoinRing(Call[Done]):
    """Take part in the ring for this job: how its slices are cut, and by which structure they come back.

    Without a cut nothing of the job is kept there: it has the ring for its vertices.
    """

    cut: Cut | None
    policy: Policy
    terms: RingTerms = RingTerms()
    store: float = 0.0
    """Bytes a second that come from the store, for all who read at once; 0 if nobody knows."""
    contacts: tuple[Address, ...] = ()


@dataclass(frozen=True)
class Meet(Call[Done]):
    """These are there too."""

    contacts: tuple[Address, ...]


@dataclass(frozen=True)
class Letter(Call[Done]):
    """Messages of the ring, with the addresses of all whom they mention. Without any it is a heartbeat."""

    sender: Address
    messages: tuple[Message, ...] = ()
    addresses: tuple[Address, ...] = ()


@dataclass(frozen=True)
class LeafSet(Reply):
    leaves: tuple[Address, ...]


@dataclass(frozen=True)
class AskLeaves(Call[LeafSet]):
    """Who is next to you, and you?"""


# ------------------------------------------------------------------------------------------------------ who has what


@dataclass(frozen=True)
class Holding(Reply):
    """What a container tells those who may need it: its pieces, and how fast it sends and merges, in bytes a second."""

    held: tuple[Held, ...]
    upload: float = 0.0
    merge: float = 0.0
    graph: int = 0
    """The version of the job's graph that it has: none of its pieces is in terms of a later one."""


@dataclass(frozen=True)
class AskPieces(Call[Holding]):
    """What do you hold of these slices?"""

    roles = READERS
    slices: frozenset[int]


@dataclass(frozen=True)
class Owned(Reply):
    """Slices whose newest pieces here are of certain owners, those pieces, and the slices that live here."""

    slices: tuple[int, ...]
    here: tuple[int, ...]
    holding: Holding


@dataclass(frozen=True)
class AskOwned(Call[Owned]):
    """What do you know of these owners' slices?"""

    owners: frozenset[str]


@dataclass(frozen=True)
class Report(Reply):
    told: Mapping[str, Owned]
    """Container → what it says."""


@dataclass(frozen=True)
class AskReport(Call[Report]):
    """What does everyone around know of these owners' slices?"""

    owners: frozenset[str]


@dataclass(frozen=True)
class DropPieces(Call[Done]):
    """Pieces of these slices need not be held any more, up to a version, and but for those that are ``kept``."""

    slices: frozenset[int]
    version: Version
    kept: tuple[PieceName, ...] = ()


@dataclass(frozen=True)
class Drill(Call[Done]):
    """Forget that these slices were brought back, so that it can be done once more, and by another structure."""

    policy: Policy
    slices: frozenset[int]
    lost: frozenset[str]


# ------------------------------------------------------------------------------------------------------------- rows


class Shape(NamedTuple):
    """Of the whole table that a piece is a part of, at the piece's version."""

    rows: int
    purged_at: int


@dataclass(frozen=True)
class BranchPart(Tagged):
    """Of which slice the rows are, if there are any; the last part says what was in all of them."""

    slice: int | None = None
    shape: Shape | None = None
    nbytes: int = 0
    last: bool = False
    pieces: tuple[PieceName, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class BranchTicket(Ticket[BranchPart]):
    """One table of a branch that begins at whoever is asked."""

    branch: Branch
    versions: Mapping[int, Version]
    table: str
    ordered: bool = True
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Of everyone below: container → location."""
    graph: int = 0
    """That the table is known in."""


@dataclass(frozen=True)
class PiecesPush(Push):
    """An owner's pieces, of one table of so many; ``saving`` names the saving, ``graph`` the one that it is in terms
    of."""

    incarnation: int
    saving: str
    owner: str
    table: str
    tables: int
    graph: int = 0


@dataclass(frozen=True)
class PiecePart(Tagged):
    """Part ``number`` of a table of a piece at ``version``: all rows if ``full``, else those changed since ``base``."""

    piece: PieceName
    version: Version
    base: Version | None
    settled: Version | None
    full: bool
    shape: Shape
    number: int
    last: bool
