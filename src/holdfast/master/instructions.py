"""What the master asks for: instructions, all of them frozen, each with an id that its answer names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from holdfast.log.records import Fence, Ranges
from holdfast.master.events import Pack, Routing


@dataclass(frozen=True)
class Instruction:
    """Something the shell shall do. Equality ignores the id, so that a test can say what it expects."""

    id: str = field(default="", compare=False, kw_only=True)

    answered: ClassVar[bool] = True
    """An answer is awaited."""
    looks: ClassVar[bool] = False
    """The shell looks at ``owner/`` right before it acts. If someone above our incarnation is there it does
    not act but reports OwnerSeen; nothing needs to be reported otherwise."""


@dataclass(frozen=True)
class ToContainer(Instruction):
    """An instruction that one container carries out, for some of its slices."""

    container: str
    fence: Fence
    slices: frozenset[int]


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
class Restore(ToContainer):
    """Bring the slices to ``epoch`` from the checkpoint (0: none) and the log above it.

    Whatever the container holds of these slices is replaced.
    """

    epoch: int
    checkpoint: int


@dataclass(frozen=True)
class Activate(ToContainer):
    """Bring the slices to ``epoch`` from what the container has of them, and the log above that.

    What it has is a copy, or the slice itself in dual mode that fell behind. The copy is used up.
    """

    epoch: int


@dataclass(frozen=True)
class SendCopies(ToContainer):
    """Bring the copies on these peers to the committed ``epoch``, behind the epochs that follow.

    Each gets what it lacks: the rows changed since its version, or everything. Best effort: whatever did not get
    there is simply not in the answer.
    """

    epoch: int
    to: tuple[tuple[str, frozenset[int]], ...]
    moving: bool = False
    """The slices are on their way there."""
    at_once: bool = False
    """The job stands still until they are there: as fast as it goes."""


@dataclass(frozen=True)
class SaveShards(ToContainer):
    """Bring the pieces of these slices on the ring to the committed ``epoch``, behind the epochs that follow.

    Where they go is the container's business. Best effort, like copies.
    """

    epoch: int


@dataclass(frozen=True)
class Gather(ToContainer):
    """What has this container ready of these slices, whose owners are among ``lost``?

    The ring has begun to bring them back when it noticed; at the latest it begins now. Answered when the container's
    share is done.
    """

    lost: frozenset[str]


@dataclass(frozen=True)
class Demote(ToContainer):
    """The slices, which are at ``epoch``, live elsewhere now: keep them as copies of that version."""

    epoch: int


@dataclass(frozen=True)
class Forget(ToContainer):
    """Drop these slices, and copies of them: another container has what is needed."""


@dataclass(frozen=True)
class DropCopies(ToContainer):
    """Drop the copies of these slices; an active one stays."""


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
    """Run the Spark job of this level's intake to its end."""

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
    tags: tuple[object, ...]


@dataclass(frozen=True)
class Apply(ToContainer):
    """Bring the slices from level − 1 of ``fence.epoch`` to ``level``, as its prepare says."""

    level: int
    digests: frozenset[int] = frozenset()
    """Slices in dual mode: the answer has a checksum of what each put out."""


@dataclass(frozen=True)
class Undo(ToContainer):
    """Take every level of ``fence.epoch`` back, as far as a slice has come in it, perhaps not at all."""


@dataclass(frozen=True)
class RunSink(Instruction):
    """Run the Spark job that hands the outputs of ``fence.epoch`` to one sink. ``last``: the commit follows it."""

    looks = True
    fence: Fence
    sink: str
    last: bool = True


@dataclass(frozen=True)
class StoreCommit(Instruction):
    """Put-if-absent ``commit e``; whoever loses reads the winner's and reports that."""

    looks = True
    fence: Fence
    ranges: Ranges


@dataclass(frozen=True)
class ToFeed(Instruction):
    """What whoever brings the ranges hears of them."""

    answered = False


@dataclass(frozen=True)
class EpochPrepared(ToFeed):
    """The epoch in flight takes these, whoever finishes it, whatever was wanted."""

    ranges: Ranges


@dataclass(frozen=True)
class EpochCommitted(ToFeed):
    ranges: Ranges
    epoch: int


@dataclass(frozen=True)
class EpochDone(ToFeed):
    """The epoch is committed, and nothing keeps the next one from beginning."""

    epoch: int


@dataclass(frozen=True)
class EpochFailed(ToFeed):
    """The epoch that was wanted is given up: an intake or sink that may still run for it is of no use any more."""

    error: Exception = field(compare=False)


@dataclass(frozen=True)
class WriteCheckpoint(ToContainer):
    """Write one pack with these slices as of the committed ``epoch``, behind the epochs that follow."""

    epoch: int

    @property
    def label(self) -> str:
        """Tells its pack from every other: one that was given up may still be written, with other slices in it."""
        return f"{self.container}-{self.id}"


@dataclass(frozen=True)
class VerifyPacks(Instruction):
    """Read packs back and check them, in container ``by``; None means in the driver's own process.

    It is never the process that wrote them.
    """

    by: str | None
    fence: Fence
    epoch: int
    packs: tuple[Pack, ...]


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
