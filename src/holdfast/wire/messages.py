"""What is asked of a container, and what it answers: frozen dataclasses that cross as they are (``wire.codec``).

An **instruction** of the master's to a container is the call itself, and the **answer** to it is the master's event:
nobody in between spells it again. A container finds the handler by the type of the call
(``holdfast.container.handlers``, ``holdfast.ring.service``); the master never sees a wire.

Plain and below everything: master, container, ring, launch and the simulator import this, and it imports the names of
the log only. What needs an operator or a copy is with those who know them (``container.messages``, ``ring.messages``).

It is long because whatever the master and containers say to each other is here, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin

from holdfast.log.footprints import Wrote
from holdfast.log.records import Fence, SegmentRef
from holdfast.wire.codec import Tagged
from holdfast.wire.tokens import Role

Mode = Literal["changed", "all", "changelog", "read"]
"""What is read of a stage: outputs of the epoch in flight, or a committed epoch's state."""
PATIENCE_SECONDS = 60.0
"""How long the master waits for what the ring brings back."""


READERS: frozenset[Role] = frozenset({"reads"})
PUSHERS: frozenset[Role] = frozenset({"pushes"})
"""The ``roles`` of what others may ask than those who have the run's own token."""


@dataclass(frozen=True)
class Reply(Tagged):
    """What a call is answered with."""


@dataclass(frozen=True)
class Done(Reply):
    """It is done, and there is nothing to tell."""


A_co = TypeVar("A_co", bound=Reply, covariant=True)
P_co = TypeVar("P_co", bound=Tagged, covariant=True)


@dataclass(frozen=True)
class Call(Tagged, Generic[A_co]):
    """What a process is asked: ``class Ping(Call[Pong])``."""

    answer: ClassVar[type[Reply]] = Done
    roles: ClassVar[frozenset[Role]] = frozenset()
    """Who may ask it beside those who have the run's own token."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.answer = _argument(cls, Call) or cls.answer


@dataclass(frozen=True)
class Ticket(Tagged, Generic[P_co]):
    """What rows are wanted (DoGet); with each batch of them comes a part."""

    part: ClassVar[type[Tagged]] = Tagged
    roles: ClassVar[frozenset[Role]] = frozenset()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.part = _argument(cls, Ticket) or cls.part


@dataclass(frozen=True)
class Push(Tagged):
    """What the rows are that follow (DoPut)."""

    roles: ClassVar[frozenset[Role]] = frozenset()


def _argument(cls: type[Any], generic: type[Any]) -> type[Any] | None:
    for base in getattr(cls, "__orig_bases__", ()):
        if get_origin(base) is generic:
            (found,) = get_args(base)
            return found if isinstance(found, type) else None
    return None


@dataclass(frozen=True)
class Address:
    """Where a process of the state plane is, and who it must be."""

    container: str
    location: str


Groups = tuple[tuple[Address, tuple[int, ...]], ...]
"""Who has which slices."""


@dataclass(frozen=True)
class Tag:
    """What an intake task answers: the segment that a prepare may name, and what the task has seen of its rows.

    One type from the task to the prepare. It crosses packed, since Spark takes bytes and nothing else of ours.
    """

    segment: SegmentRef
    rows: bytes | None = field(default=None, repr=False)
    """Of a task that had few: the segment itself, which is no file then."""
    times: Mapping[str, int] = field(default_factory=dict)
    """Largest event times, by the names that the plan gave them, µs."""
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Stage → why → rows."""
    came: Mapping[str, int] = field(default_factory=dict)
    """Stage → rows that should have had an event time."""


# -------------------------------------------------------------------------- between the master and whoever performs


@dataclass(frozen=True)
class Event:
    """Something that happened: what the master hears."""


@dataclass(frozen=True)
class Answer(Event):
    """What came of the instruction with id ``to``."""

    to: str


@dataclass(frozen=True)
class Instruction:
    """Something that shall be done. Equality ignores the id, so that a test can say what it expects."""

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


# ----------------------------------------------------------------------------------------- an epoch on some slices


@dataclass(frozen=True)
class StageFigures:
    """What applying a level left behind in a stage, on one container."""

    changed: int
    """Output rows of the epoch, of the slices that were asked for."""
    rows: int
    """Rows of the state."""
    counts: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Slice → why → rows that were late, dropped and the like."""
    due: int | None = None
    """µs of the clock at which something happens though no row comes."""
    oldest: Mapping[int, int | None] = field(default_factory=dict)
    """Slice → since when its oldest session is open, where another stage's watermark waits for that."""
    took: int = 0
    """Rows that were applied."""
    seconds: float = field(default=0.0, repr=False)  # no two runs have the same
    """Of its threads, added up."""
    units: int = 0
    """Units of the state that live, where the log has them; and how many rows of it, and of the input, a recovery from
    it would read."""
    extent: int = 0
    behind: int = 0
    left: int = 0
    """Units that were due to be written again, and for which there was no time."""


@dataclass(frozen=True)
class Applied(Answer, Reply):
    digests: tuple[tuple[int, int], ...] = ()
    """Of the slices that were asked for: (slice, checksum of what the level put out; 0 if that is nothing)."""
    stages: Mapping[str, StageFigures] = field(default_factory=dict, compare=False)
    entries: Wrote | None = field(default=None, compare=False)
    """What the log is to say of units of the state."""


@dataclass(frozen=True)
class Apply(ToContainer, Call[Applied]):
    """Bring the slices from level - 1 of ``fence.epoch`` to ``level``, as its prepare says.

    It also says that the epoch before is committed: what could undo that is needed no more.
    """

    level: int
    digests: frozenset[int] = frozenset()
    """Slices in dual mode: the answer has a checksum of what each put out."""
    prepare: bytes = field(default=b"", compare=False, repr=False)
    """The file, where whoever sends this has it at hand; else the container reads it in the log."""
    shadow: bool = field(default=False, compare=False)
    """All these slices are another container's, until it switches."""


@dataclass(frozen=True)
class Undone(Answer, Reply):
    pass


@dataclass(frozen=True)
class Undo(ToContainer, Call[Undone]):
    """Take every level of ``fence.epoch`` back, as far as a slice has come in it, perhaps not at all."""


# ------------------------------------------------------------------------------------------- slices come and go


@dataclass(frozen=True)
class Restored(Answer, Reply):
    nbytes: int = field(default=0, compare=False)
    """Loaded from packs."""
    replayed: int = field(default=0, compare=False)
    """Rows of the log."""
    told: tuple[str, ...] = field(default=(), compare=False)
    """What could not be read on the way, and was done without."""


@dataclass(frozen=True)
class Restore(ToContainer, Call[Restored]):
    """Bring the slices to ``epoch`` from the checkpoint (0: none) and the log above it.

    Whatever the container holds of these slices is replaced.
    """

    epoch: int
    checkpoint: int


@dataclass(frozen=True)
class Activated(Answer, Reply):
    nbytes: int = field(default=0, compare=False)
    """Of copies."""
    replayed: int = field(default=0, compare=False)
    """Rows of the log."""


@dataclass(frozen=True)
class Activate(ToContainer, Call[Activated]):
    """Bring the slices to ``epoch`` from what the container has of them, and the log above that.

    What it has is a copy, or the slice itself in dual mode that fell behind. The copy is used up.
    """

    epoch: int


@dataclass(frozen=True)
class DigestsTaken(Answer, Reply):
    """(slice, checksum of its state) of the slices that can still say what they were then, in the terms of a graph."""

    digests: tuple[tuple[int, int], ...]
    graph: int = 0


@dataclass(frozen=True)
class TakeDigests(ToContainer, Call[DigestsTaken]):
    """What the slices were after the committed ``epoch``, as a checksum each, behind the epochs that follow."""

    epoch: int


@dataclass(frozen=True)
class Demoted(Answer, Reply):
    pass


@dataclass(frozen=True)
class Demote(ToContainer, Call[Demoted]):
    """The slices, which are at ``epoch``, live elsewhere now: keep them as copies of that version."""

    epoch: int


@dataclass(frozen=True)
class Dropped(Answer, Reply):
    """What was to be forgotten or dropped is gone."""


@dataclass(frozen=True)
class Forget(ToContainer, Call[Dropped]):
    """Drop these slices, and copies of them: another container has what is needed."""


@dataclass(frozen=True)
class DropCopies(ToContainer, Call[Dropped]):
    """Drop the copies of these slices; an active one stays."""


# ----------------------------------------------------------------------------------------- copies, pieces, packs


@dataclass(frozen=True)
class CopiesSent(Answer, Reply):
    """Which copies are there now: (peer, slice, version). ``failed``: peers that could not take theirs, and why."""

    held: tuple[tuple[str, int, int], ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    rows: int = field(default=0, compare=False)
    nbytes: int = field(default=0, compare=False)
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class SendCopies(ToContainer, Call[CopiesSent]):
    """Bring the copies on these peers to the committed ``epoch``, behind the epochs that follow.

    Each gets what it lacks: the rows changed since its version, or everything. Best effort: whatever did not get
    there is simply not in the answer.
    """

    epoch: int
    to: tuple[tuple[str, frozenset[int]], ...]
    moving: bool = False
    """The slices are on their way there."""
    silence: float = field(default=10.0, compare=False, repr=False)
    """A peer that takes nothing for so many seconds has failed."""
    addresses: tuple[Address, ...] = field(default=(), compare=False, repr=False)
    """Where the peers are, filled in by whoever sends this. Of one that is missing nobody knows where it is: lost."""


@dataclass(frozen=True)
class ShardsSaved(Answer, Reply):
    """(slice, how many containers hold each of its pieces at the epoch, at least)."""

    copies: tuple[tuple[int, int], ...]
    failed: Mapping[str, str] = field(default_factory=dict, compare=False)
    rows: int = field(default=0, compare=False)
    nbytes: int = field(default=0, compare=False)
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class SaveShards(ToContainer, Call[ShardsSaved]):
    """Bring the pieces of these slices on the ring to the committed ``epoch``, behind the epochs that follow.

    Where they go is the container's business. Best effort, like copies.
    """

    epoch: int


@dataclass(frozen=True)
class GatherFigures:
    """What one gathering took."""

    slices: tuple[int, ...]
    nbytes: int
    replayed: int
    structure: str
    asked: float
    gathered: float
    seconds: float


@dataclass(frozen=True)
class ReadySeen(Answer, Reply):
    """What the container can make active: (slice, epoch). ``beyond``: what the ring cannot bring back, and why."""

    ready: tuple[tuple[int, int], ...]
    beyond: tuple[tuple[int, str], ...] = ()
    figures: tuple[GatherFigures, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Gather(ToContainer, Call[ReadySeen]):
    """What has this container ready of these slices, whose owners are among ``lost``?

    The ring has begun to bring them back when it noticed; at the latest it begins now. Answered when the container's
    share is done, or after ``seconds``.
    """

    lost: frozenset[str]
    seconds: float = field(default=PATIENCE_SECONDS, compare=False)


@dataclass(frozen=True)
class Pack:
    """One container's file of a checkpoint. ``file`` is opaque: whatever the manifest needs of it."""

    container: str
    slices: frozenset[int]
    file: object


@dataclass(frozen=True)
class CheckpointWritten(Answer, Reply):
    file: object
    nbytes: int = field(default=0, compare=False)


@dataclass(frozen=True)
class WriteCheckpoint(ToContainer, Call[CheckpointWritten]):
    """Write one pack with these slices as of the committed ``epoch``, behind the epochs that follow."""

    epoch: int

    @property
    def label(self) -> str:
        """Tells its pack from every other: one that was given up may still be written, with other slices in it."""
        return f"{self.container}-{self.id}"


@dataclass(frozen=True)
class PacksVerified(Answer, Reply):
    """Read back, checksums right. Wrong ones are ``Failed``."""


@dataclass(frozen=True)
class VerifyPacks(Instruction, Call[PacksVerified]):
    """Read packs back and check them, in container ``by``; None means in the driver's own process.

    It is never the process that wrote them.
    """

    by: str | None
    fence: Fence
    epoch: int
    packs: tuple[Pack, ...]
