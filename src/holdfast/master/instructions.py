"""What the master asks for: instructions, all of them frozen, each with an id that its answer names.

Those that a container carries out cross as they are: they are in ``holdfast.wire.messages``, and are named here too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.log.records import Fence, Ranges, Rounds
from holdfast.master.events import Pack, Routing, Tag
from holdfast.wire.messages import (
    Activate,
    Apply,
    Demote,
    DropCopies,
    Forget,
    Gather,
    Instruction,
    Restore,
    SaveShards,
    SendCopies,
    TakeDigests,
    ToContainer,
    Undo,
    VerifyPacks,
    WriteCheckpoint,
)

__all__ = [
    "Activate",
    "Apply",
    "CutLog",
    "Demote",
    "DropCopies",
    "EndContainer",
    "EndRun",
    "EpochCommitted",
    "EpochDone",
    "EpochFailed",
    "EpochPrepared",
    "Forget",
    "Gather",
    "Instruction",
    "NeedContainers",
    "Restore",
    "RunIntake",
    "RunSink",
    "SaveShards",
    "SendCopies",
    "Stop",
    "StoreCommit",
    "StoreManifest",
    "StorePrepare",
    "StoreRouting",
    "TakeDigests",
    "TellPeople",
    "ToContainer",
    "ToPump",
    "Undo",
    "VerifyPacks",
    "WriteCheckpoint",
    "performer",
]


@dataclass(frozen=True)
class NeedContainers(Instruction):
    """Start so many new containers; each is reported by ContainerJoined, or by ContainerLost if it cannot start. Failed
    says that none can."""

    count: int


@dataclass(frozen=True)
class EndRun(Instruction):
    """There is no way to go on: the run is over, with this error."""

    answered = False
    error: Exception = field(compare=False)


@dataclass(frozen=True)
class StoreRouting(Instruction):
    """Write the routing table. It is valid at once; readers of the store merely hear of it by this file."""

    looks = True
    fence: Fence
    routing: Routing


@dataclass(frozen=True)
class EndContainer(Instruction):
    """It owns nothing any more and nobody needs its copies: end it."""

    answered = False
    container: str


@dataclass(frozen=True)
class TellPeople(Instruction):
    """Something that a person should hear of."""

    answered = False
    kind: str
    text: str


@dataclass(frozen=True)
class RunIntake(Instruction):
    """Run the Spark job of this level's intake to its end. Of the first level the rows are in blocks already."""

    fence: Fence
    level: int
    ranges: Ranges


@dataclass(frozen=True)
class StorePrepare(Instruction):
    """Put-if-absent ``prepare e.<level>``; whoever loses reads the winner's and reports that."""

    looks = True
    fence: Fence
    level: int
    ranges: Ranges
    tags: tuple[Tag, ...]
    routing: int = field(default=0, compare=False)
    """The version of the routing table."""


@dataclass(frozen=True)
class RunSink(Instruction):
    """Run the Spark job that hands the outputs of ``fence.epoch`` to one sink. ``last``: the commit follows it."""

    looks = True
    fence: Fence
    sink: str
    last: bool = True


@dataclass(frozen=True)
class StoreCommit(Instruction):
    """Put-if-absent ``commit e``; whoever loses reads the winner's and reports that. Sinks that had no rows and were
    not called are ``skipped``."""

    looks = True
    fence: Fence
    ranges: Ranges
    skipped: tuple[str, ...] = ()
    owners: tuple[str | None, ...] = field(default=(), compare=False)
    """Of the slices: what they wrote of the epoch counts."""


@dataclass(frozen=True)
class ToPump(Instruction):
    """What the pump, which brings the ranges, hears of them."""

    answered = False


@dataclass(frozen=True)
class EpochPrepared(ToPump):
    """The epoch in flight takes these, whoever finishes it, whatever was wanted."""

    ranges: Ranges


@dataclass(frozen=True)
class EpochCommitted(ToPump):
    ranges: Ranges
    epoch: int
    waiting: Rounds = field(default_factory=dict)


@dataclass(frozen=True)
class EpochDone(ToPump):
    """The epoch is committed, and nothing keeps the next one from beginning."""

    epoch: int


@dataclass(frozen=True)
class EpochFailed(ToPump):
    """The epoch that was wanted is given up: an intake or sink that may still run for it is of no use any more."""

    error: Exception = field(compare=False)


def performer(instruction: Instruction) -> str | None:
    """The container that carries it out, if one does."""
    match instruction:
        case ToContainer(container=container):
            return container
        case VerifyPacks(by=by):
            return by
    return None


@dataclass(frozen=True)
class StoreManifest(Instruction):
    """Every pack is there and verified: make the checkpoint count.

    It looks because two more of them would cut away the log above the one that a successor started from.
    """

    looks = True
    fence: Fence
    epoch: int
    packs: tuple[Pack, ...]


@dataclass(frozen=True)
class CutLog(Instruction):
    """Segments of epochs up to and with ``epoch``, the second newest checkpoint's, may go, and older packs."""

    answered = False
    looks = True
    fence: Fence
    epoch: int


@dataclass(frozen=True)
class Stop(Instruction):
    """We are deposed: raise inside ``foreachBatch`` if Spark waits there, end our containers, then rest."""

    answered = False
    reason: str
    successor: int
