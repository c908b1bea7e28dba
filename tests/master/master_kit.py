"""Drives a Master without a world: performs its instructions, successfully, in order, up to a given one."""

from __future__ import annotations

from holdfast.log.records import FEED, Batch, Range, Ranges
from holdfast.master.events import (
    Activated,
    Answer,
    Applied,
    CheckpointWritten,
    CommitStored,
    ContainerJoined,
    ContainersStarted,
    CopiesSent,
    Demoted,
    DigestsTaken,
    Dropped,
    EpochWanted,
    Event,
    IntakeDone,
    ManifestStored,
    PacksVerified,
    Prepared,
    PrepareStored,
    ReadySeen,
    Restored,
    RoutingStored,
    ShardsSaved,
    SinkDone,
    Started,
    Undone,
)
from holdfast.master.instructions import (
    Activate,
    Apply,
    Demote,
    DropCopies,
    EpochCommitted,
    EpochPrepared,
    Forget,
    Gather,
    Instruction,
    NeedContainers,
    Restore,
    RunIntake,
    RunSink,
    SaveShards,
    SendCopies,
    StoreCommit,
    StoreManifest,
    StorePrepare,
    StoreRouting,
    TakeDigests,
    Undo,
    VerifyPacks,
    WriteCheckpoint,
)
from holdfast.master.machine import Master
from holdfast.safety.intervals import Interval
from holdfast.safety.policies import Terms


def batch(number: int, offsets: str | None = None, query: str = "q") -> Batch:
    return Batch(query, number, offsets or f"offsets {number}")


def taking(number: int) -> Ranges:
    """What the epoch takes that has the block of batch ``number``."""
    return {FEED: Range(number + 1, number + 1)}


def success(instruction: Instruction) -> Answer:
    """The answer of a world in which nothing goes wrong."""
    to = instruction.id
    match instruction:
        case NeedContainers():
            return ContainersStarted(to)
        case StoreRouting():
            return RoutingStored(to)
        case Restore():
            return Restored(to)
        case RunIntake(fence=fence, level=level):
            return IntakeDone(to, (f"tag of {fence} level {level}",))
        case StorePrepare(fence=fence, level=level, ranges=of):
            return PrepareStored(to, Prepared(level, fence, of))
        case Apply():
            return Applied(to, tuple((slice_, 1) for slice_ in instruction.digests))
        case TakeDigests(slices=slices):
            return DigestsTaken(to, tuple((slice_, 7) for slice_ in sorted(slices)))
        case Undo():
            return Undone(to)
        case Activate():
            return Activated(to)
        case SendCopies(epoch=epoch, to=peers):
            return CopiesSent(to, tuple((peer, slice_, epoch) for peer, slices in peers for slice_ in slices))
        case SaveShards(slices=slices):
            return ShardsSaved(to, tuple((slice_, 2) for slice_ in sorted(slices)))
        case Gather():
            return ReadySeen(to, ())
        case Demote():
            return Demoted(to)
        case Forget() | DropCopies():
            return Dropped(to)
        case RunSink():
            return SinkDone(to)
        case StoreCommit(fence=fence, ranges=of):
            return CommitStored(to, fence, of)
        case WriteCheckpoint(container=container, epoch=epoch):
            return CheckpointWritten(to, f"{container} at {epoch}")
        case VerifyPacks():
            return PacksVerified(to)
        case StoreManifest():
            return ManifestStored(to)
    raise AssertionError(f"nobody answers {instruction}")


class Play:
    """A master, what it has asked for and not got yet, and everything it ever asked for."""

    def __init__(self, *, containers: int = 2, master: type[Master] = Master, **started: object) -> None:
        facts: dict[str, object] = {
            "incarnation": 1,
            "levels": 1,
            "sinks": ("files",),
            "slices": 4,
            "safety": Terms(store_every=Interval(epochs=100)),
        }
        if every := started.pop("checkpoint_every", None):
            facts["safety"] = Terms(store_every=Interval(epochs=int(str(every))))
        self.master = master()
        self.open: list[Instruction] = []
        self.asked: list[Instruction] = []
        self.tell(Started(containers=containers, **{**facts, **started}))

    def tell(self, *events: Event) -> list[Instruction]:
        """What the master asks for because of these events."""
        new = [one for event in events for one in self.master.handle(event)]
        new = [one for one in new if not isinstance(one, EpochPrepared | EpochCommitted)]
        self.asked += new
        self.open += [instruction for instruction in new if instruction.answered]
        return new

    def join(self, *containers: str) -> Play:
        self.tell(*(ContainerJoined(container) for container in containers))
        return self

    def offer(self, number: int) -> Play:
        """There is a block of that batch: an epoch is wanted that takes it."""
        self.tell(EpochWanted(taking(number)))
        return self

    def take(self, kind: type[Instruction], **fields: object) -> Instruction:
        """The first open instruction of a kind, which will not be performed by ``run`` any more."""
        found = next(
            one
            for one in self.open
            if isinstance(one, kind) and all(getattr(one, name) == value for name, value in fields.items())
        )
        self.open.remove(found)
        return found

    def run(self, until: type[Instruction] | None = None) -> Play:
        """Perform everything, and what follows from it; stop before one of this kind."""
        while self.open:
            if until and any(isinstance(one, until) for one in self.open):
                assert [one for one in self.open if isinstance(one, until)], f"never got to {until}"
                return self
            self.tell(success(self.open.pop(0)))
        assert until is None, f"never got to {until}"
        return self

    def commit(self, *numbers: int) -> Play:
        for number in numbers:
            self.offer(number).run()
        return self

    def asked_for(self, kind: type[Instruction]) -> list[Instruction]:
        return [one for one in self.asked if isinstance(one, kind)]

    def names(self) -> list[str]:
        return [type(one).__name__ for one in self.asked]

    def forget(self) -> Play:
        self.asked = []
        return self
