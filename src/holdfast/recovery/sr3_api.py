"""SR3's own API (Table 2), function for function, over the pieces, plans and the machine that jobs use themselves.

For whoever has state of another kind to keep on a ring, or wants to try the paper's calls one by one; a job needs none
of it: ``job.start(safety=…, recovery=…)`` does all this. The names are the paper's in our spelling. State is a mapping
from 64-bit hashes to rows; an ``Overlay`` is the paper's DHTNetwork as one container sees it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

from holdfast.errors import ContainerError, PlanError
from holdfast.invariants import some
from holdfast.recovery.choice import figure_7
from holdfast.recovery.gathering import (
    Answered,
    Ask,
    Begin,
    Beyond,
    Came,
    Ended,
    Event,
    Failed,
    Gathering,
    Keep,
    Lost,
    Pull,
)
from holdfast.recovery.policies import FromStore, Line, Star, Structure, Tree
from holdfast.recovery.structures import Branch
from holdfast.safety.shards import FIRST, Cut, Held, PieceName, Version, holders, key_of

Rows = Mapping[int, Any]
"""Hash → row."""
Requirement = Literal["stateless", "checkpoint", "latency-insensitive", "latency-sensitive"]


@dataclass(frozen=True)
class Replica:
    """One of ``copies`` copies of a piece of a state."""

    state: str
    piece: PieceName
    version: Version
    copy: int
    copies: int
    rows: Rows


class Overlay(Protocol):
    """The ring, seen from the container ``here``. Whoever is not there any more answers None."""

    here: str

    def leaves(self, key: int) -> Mapping[str, str]:
        """The containers of the key's leaf set with their hosts, the nearest first."""

    def put(self, container: str, replica: Replica) -> bool:
        """Give it a piece to hold. False: it did not take it."""

    def inventory(self, container: str, state: str) -> Sequence[Held] | None:
        """What it holds of a state."""

    def pull(self, state: str, branch: Branch, version: Version) -> Mapping[PieceName, Rows] | None:
        """What comes of a branch, merged by those in it. None: somebody in it is gone."""


def state_split(
    state: str,
    rows: Rows,
    number_of_shards: int,
    number_of_replicas: int,
    version: Version,
    parts: int = 1,
) -> list[Replica]:
    """StateSplit: the state in shards by ranges of the hash, each as often as there shall be copies.

    >>> [(one.piece.shard, one.copy, dict(one.rows)) for one in state_split("s", {-5: "a", 7: "b"}, 2, 2, Version(1))]
    [(0, 0, {-5: 'a'}), (0, 1, {-5: 'a'}), (1, 0, {7: 'b'}), (1, 1, {7: 'b'})]
    """
    cut = Cut(number_of_shards, number_of_replicas, parts)
    found = []
    for piece, (first, end) in zip(cut.pieces(0), pairwise([*cut.bounds(), -FIRST]), strict=True):
        own = {hash_: row for hash_, row in rows.items() if first <= hash_ < end}
        found += [Replica(state, piece, version, copy, cut.n, own) for copy in range(cut.n)]
    return found


def save(replicas: Sequence[Replica], overlay: Overlay) -> list[bool]:
    """Save: every copy of every piece to another container of the state's leaf set; which of them were taken."""
    if not replicas:
        return []
    state, copies = replicas[0].state, replicas[0].copies
    pieces = sorted({one.piece for one in replicas})
    where = holders(pieces, overlay.leaves(key_of(state, 0)), overlay.here, copies)
    return [one.copy < len(where[one.piece]) and overlay.put(where[one.piece][one.copy], one) for one in replicas]


# ------------------------------------------------------------------------------------------------------ mechanisms

_DEFINED: dict[str, dict[type[Structure], Structure]] = {}
"""Application → the structures that it has defined."""


def star_define(app_name: str, star_fanout: int) -> bool:
    """StarDefine: when a star is selected for this application, that many providers send at a time."""
    return _define(app_name, Star(star_fanout))


def line_define(app_name: str, length_of_path: int) -> bool:
    """LineDefine: when a line is selected for this application, it has so many nodes."""
    return _define(app_name, Line(length_of_path))


def tree_define(app_name: str, fanout: int, branch_depth: int) -> bool:
    """TreeDefine: when a tree is selected for this application, its nodes have 2 ** ``fanout`` children."""
    return _define(app_name, Tree(fanout, branch_depth))


def _define(app_name: str, structure: Structure) -> bool:
    """False: as it was defined before."""
    known = _DEFINED.setdefault(app_name, {})
    new = known.get(type(structure)) != structure
    known[type(structure)] = structure
    return new


def selection(
    app_name: str, requirement: Requirement, state_size: int, network_bw: float
) -> Structure | FromStore | None:
    """Selection: Figure 7, with the application's own parameters where it has defined any. None: only restart.

    Bytes, and bytes a second.

    >>> tree_define("clicks", fanout=3, branch_depth=1)
    True
    >>> selection("clicks", "latency-sensitive", 256 << 20, 12.5e6)
    Tree(fanout_bits=3, depth=1, parts=2)
    >>> selection("clicks", "checkpoint", 256 << 20, 12.5e6)
    FromStore()
    """
    if requirement not in ("stateless", "checkpoint", "latency-insensitive", "latency-sensitive"):
        raise PlanError(
            f"{requirement!r} is no requirement that a mechanism can be selected by.",
            todo="Use 'stateless', 'checkpoint', 'latency-insensitive' or 'latency-sensitive'.",
        )
    chosen = figure_7(
        state_size,
        network_bw,
        stateful=requirement != "stateless",
        tolerates_store=requirement == "checkpoint",
        latency_sensitive=requirement == "latency-sensitive",
    )
    if chosen is None or isinstance(chosen, FromStore):
        return chosen
    return _DEFINED.get(app_name, {}).get(type(chosen), chosen)


def recover(
    state: str, overlay: Overlay, mechanism: Structure, number_of_shards: int, parts: int = 1
) -> tuple[Version, dict[PieceName, Rows]]:
    """Recover: the newest version of which every piece is still somewhere, piece by piece."""
    cut = Cut(number_of_shards, 1, parts)
    asked = {*overlay.leaves(key_of(state, 0)), overlay.here}
    machine = Gathering(overlay.here, cut, {0: asked}, mechanism)
    came: dict[int, Mapping[PieceName, Rows]] = {}
    kept: dict[PieceName, Rows] = {}
    events: deque[Event] = deque([Begin()])
    while events:
        for one in machine.handle(events.popleft()):
            if isinstance(one, Ask):
                held = overlay.inventory(one.peer, state)
                events.append(Lost(one.peer) if held is None else Answered(one.peer, tuple(held)))
            elif isinstance(one, Pull):
                found = overlay.pull(state, one.branch, dict(one.versions)[0])
                came[one.number] = found or {}
                events.append(Came(one.number, tuple(came[one.number])))
                events.append(Failed(one.number) if found is None else Ended(one.number))
            elif isinstance(one, Keep):
                kept |= {piece: came[one.pull][piece] for piece in one.pieces}
            elif isinstance(one, Beyond):
                raise ContainerError(
                    f"State {state!r} cannot be recovered from the ring. {one.reason}",
                    safe="What its holders have is unchanged.",
                    todo="Restore it from a checkpoint.",
                )
    version = machine.slices[0].version
    version = some(version, "it is done")
    return version, {piece: kept[piece] for piece in cut.pieces(0)}
