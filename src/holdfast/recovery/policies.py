"""The recovery policies that a job can be started with.

Whatever the way back, the log above the recovered version is replayed afterwards, for the lost slices only.
``Chained`` and ``FromStore`` belong to copies of whole slices, ``Star``, ``Line``, ``Tree`` and ``Auto`` to pieces on
the ring (SR3 §3.4-3.7): there the containers recover by themselves, and what they cannot complete comes from the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from holdfast.errors import PlanError
from holdfast.recovery import structures
from holdfast.recovery.structures import Plan, Sources


@dataclass(frozen=True)
class Chained:
    """Every peer that holds a backup of a lost slice activates its share, all of them side by side.

    Slices that no living peer has a copy of come from the store.
    """


@dataclass(frozen=True)
class FromStore:
    """Lost slices come from the newest checkpoint in the store, copies or not."""


@dataclass(frozen=True)
class Star:
    """Every provider sends its pieces straight to the replacing node, ``fanout`` of them at a time.

    One hop and no work on the way: the quickest as long as the replacing node can take and merge it all.
    """

    fanout: int = 8
    parts: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _at_least_one("fanout", self.fanout)

    def plan(self, sources: Sources) -> Plan:
        return structures.star(sources)


@dataclass(frozen=True)
class Line:
    """``length`` providers in a row, each merging its own pieces into what comes past.

    The replacing node gets one stream. Merging is spread evenly over the line; every node but the first sends more
    than its own share.
    """

    length: int = 4
    parts: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _at_least_one("length", self.length)

    def plan(self, sources: Sources) -> Plan:
        return structures.line(sources, self.length)


@dataclass(frozen=True)
class Tree:
    """Sub-shards to a reconstructing node for each shard, those in groups of 2 ** ``fanout_bits`` to a head, and so on.

    At most ``depth`` layers of heads. Each shard is saved as ``parts`` sub-shards. Merging is spread over all holders,
    and a provider uploads little: for much state, many failures at once, and little upload.
    """

    fanout_bits: int = 2
    depth: int = 2
    parts: int = 2

    def __post_init__(self) -> None:
        for name in ("fanout_bits", "depth", "parts"):
            _at_least_one(name, getattr(self, name))

    def plan(self, sources: Sources) -> Plan:
        return structures.tree(sources, self.fanout_bits, self.depth)


@dataclass(frozen=True)
class Auto:
    """Chooses when it is needed.

    ``Auto()`` predicts how long star, line, tree and store would take with the speeds that were measured, and takes the
    least. ``Auto("figure 7")`` is SR3's decision tree by size, bandwidth and what the job wants.
    """

    rule: Literal["figure 7"] | None = None
    latency_sensitive: bool = True
    """Figure 7 only: with large state and little bandwidth, a tree rather than a line."""
    tolerates_store: bool = False
    """Figure 7 only: recovery from a checkpoint is quick enough."""
    parts: int = 2

    def __post_init__(self) -> None:
        _at_least_one("parts", self.parts)
        if self.rule not in (None, "figure 7"):
            raise PlanError(
                f"Auto knows no rule {self.rule!r}.",
                safe="Nothing was started.",
                todo="Use Auto() for measured speeds, or Auto('figure 7').",
            )


def _at_least_one(what: str, value: int) -> None:
    if value < 1:
        raise PlanError(f"{what} must be at least 1, not {value}.", safe="Nothing was started.")


Structure = Star | Line | Tree
"""How pieces come together."""

Recovery = Chained | FromStore | Star | Line | Tree | Auto
