"""Which structure to recover by: SR3's decision tree (§3.7, Fig. 7), and a cost model fed with measured speeds.

The model looks at the very plans that would be carried out. A plan streams, so it takes as long as its busiest link or
core has to work, and a little for every layer until the first chunk has come through. Whoever replaces and provides
does both with one core and one link. That knows nothing of other traffic, which is why speeds are measured and not read
off a data sheet; and it is enough to see that with one replacing node nothing beats the bytes over its download, unless
merging them there is slower than that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from holdfast.invariants import Impossible
from holdfast.recovery.policies import Auto, FromStore, Line, Star, Structure, Tree
from holdfast.recovery.structures import Branch, Plan, Sources

TINY = 1 << 20
"""Bytes up to which Figure 7 says "checkpoint recovery". The paper gives no number."""
SMALL = 32 << 20
"""Bytes below which a star is the fastest (§5.2)."""
PLENTIFUL = 62.5e6
"""Bytes a second from which on bandwidth is no bottleneck: between the paper's 100 Mb/s and its Gigabit Ethernet."""
GOOD_ENOUGH = 1.1
"""Times what no plan can beat: whatever comes so near is taken, and the others are not even planned."""


@dataclass(frozen=True)
class Speeds:
    """The replacing node's, in bytes a second, seconds and bytes, and for others as far as they do not say.

    The defaults, until something was measured, are Gigabit Ethernet and one idle core.
    """

    upload: float = 125e6
    download: float = 125e6
    merge: float = 650e6
    """Several streams into one, on the way."""
    build: float = 700e6
    """A merged stream into a table with its index, at the replacing node."""
    loose: float = 600e6
    """Pieces that come unmerged, likewise: their rows are scattered over the table."""
    latency: float = 0.001
    """Until the first byte of an answer comes."""
    chunk: int = 1 << 20
    store: float = 0.0
    """Reading from the store, for all that read at once; 0: not known, and never chosen."""


def figure_7(
    nbytes: int,
    bandwidth: float,
    *,
    stateful: bool = True,
    tolerates_store: bool = False,
    latency_sensitive: bool = True,
) -> Structure | FromStore | None:
    """The paper's decision tree. None: there is no state, a restart is enough."""
    if not stateful:
        return None
    if tolerates_store or nbytes <= TINY:
        return FromStore()
    if nbytes < SMALL:
        return Star()
    if bandwidth >= PLENTIFUL or not latency_sensitive:
        return Line()
    return Tree()


def candidates() -> Iterator[Structure]:
    """The simplest first: of equals it is taken."""
    for fanout in (8, 24):
        yield Star(fanout)
    for length in (2, 4, 8):
        yield Line(length)
    for fanout_bits, depth in ((2, 1), (1, 2), (2, 2), (3, 2), (1, 4)):
        yield Tree(fanout_bits, depth)


def predicted(structure: Structure, sources: Sources, speeds: Speeds, replacing: int = 1) -> float:
    """Seconds. ``replacing``: so many nodes gather as much as this one, at the same time, from the same providers."""
    return _seconds(structure.plan(sources), structure, sources, speeds, replacing)


def predicted_store(nbytes: float, speeds: Speeds, replacing: int = 1) -> float:
    """Seconds that a restore takes; the store's link is shared by all who replace."""
    if not speeds.store:
        return float("inf")
    rate = min(speeds.store / replacing, speeds.download, speeds.build)
    return speeds.latency + speeds.chunk / speeds.store + nbytes / rate


def settle(
    policy: Structure | Auto, sources: Sources, speeds: Speeds | None = None, replacing: int = 1
) -> Structure | FromStore:
    """What is to be done now: the policy itself, or ``Auto``'s choice."""
    if not isinstance(policy, Auto):
        return policy
    speeds = speeds or Speeds()
    nbytes = sum(sources.nbytes.get(piece, 0) for piece in sources.holders)
    if policy.rule == "figure 7":
        chosen = figure_7(
            nbytes,
            speeds.upload,
            tolerates_store=policy.tolerates_store,
            latency_sensitive=policy.latency_sensitive,
        )
        if chosen is None:
            raise Impossible("pieces are state")
        return chosen
    costs: dict[Structure | FromStore, float] = {FromStore(): predicted_store(nbytes, speeds, replacing)}
    enough = GOOD_ENOUGH * _least(sources, speeds, replacing)
    for structure in candidates():
        costs[structure] = predicted(structure, sources, speeds, replacing)
        if costs[structure] <= min(enough, costs[FromStore()]):
            return structure
    return min(costs, key=lambda one: costs[one])


def _least(sources: Sources, speeds: Speeds, replacing: int) -> float:
    """Seconds that no plan can beat: what is not here must leave others, come here and be built, through one layer."""
    nbytes = come = 0.0
    uploads: dict[str, float] = {}
    for piece, holders in sources.holders.items():
        size = sources.nbytes.get(piece, 0)
        nbytes += size
        if sources.here not in holders:
            come += size
            uploads.update((one, _upload(one, sources, speeds)) for one in holders)
    if not come:
        return nbytes / speeds.loose
    links = max(come / speeds.download, replacing * come / sum(uploads.values()))
    return max(links, nbytes / max(speeds.build, speeds.loose)) + _filling(speeds)


def _filling(speeds: Speeds) -> float:
    """Until the first chunk has come through a layer."""
    return speeds.latency + speeds.chunk / min(speeds.upload, speeds.download) + speeds.chunk / speeds.merge


def _seconds(plan: Plan, structure: Structure, sources: Sources, speeds: Speeds, replacing: int) -> float:
    remote = [branch for branch in plan if branch.at != sources.here]
    work: defaultdict[tuple[str, str], float] = defaultdict(float)
    """(node, what it does) → seconds."""
    come = 0.0
    for branch in plan:
        nbytes = _carried(branch, sources, speeds, replacing, work)
        come += nbytes if branch.at != sources.here else 0.0
        work["here", "core"] += nbytes / (speeds.build if branch.branches else speeds.loose)
    work["here", "down"] = come / speeds.download
    for other in sources.replacing:
        for what in ("core", "down"):
            work[other, what] += work["here", what]
    streaming = max(work.values(), default=0.0)
    rounds = 1
    if isinstance(structure, Star) and len(remote) > structure.fanout:
        rounds = ceil(len(remote) / structure.fanout)
        # No more than ``fanout`` uploads carry at a time.
        alone = sum(_size(branch, sources) / _upload(branch.at, sources, speeds) for branch in remote)
        streaming = max(streaming, alone * replacing / structure.fanout)
    layers = max((branch.depth for branch in remote), default=0)
    return streaming + layers * _filling(speeds) + (rounds - 1) * speeds.latency


def _carried(
    branch: Branch, sources: Sources, speeds: Speeds, replacing: int, work: defaultdict[tuple[str, str], float]
) -> float:
    """Adds what every node of a branch has to do; the bytes that come out of it."""
    below = sum(_carried(one, sources, speeds, replacing, work) for one in branch.branches)
    nbytes = below + _size(branch, sources)
    if branch.at != sources.here:
        work[branch.at, "up"] += replacing * nbytes / _upload(branch.at, sources, speeds)
    if branch.branches:
        work[branch.at, "down"] += replacing * below / speeds.download
        work[branch.at, "core"] += replacing * nbytes / (sources.merges.get(branch.at) or speeds.merge)
    return nbytes


def _size(branch: Branch, sources: Sources) -> float:
    return float(sum(sources.nbytes.get(piece, 0) for piece in branch.pieces))


def _upload(at: str, sources: Sources, speeds: Speeds) -> float:
    return sources.uploads.get(at) or speeds.upload
