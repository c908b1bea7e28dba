"""What the master hears and what it asks for: events in, instructions out, all of them frozen.

Every instruction has an id. The shell performs it in the background and reports with an ``Answer`` that names
the id in ``to`` and adds only what the instruction did not know; anything that goes wrong is one event,
``Failed``. So an answer that is late, doubled or about something given up is recognised by its id alone, and
ids show up in logs on both ways. The trade-off: the shell must keep the id at hand, where an answer that
repeats epoch, level and container would not need it, but could then be mistaken for another try's.

A connection to a container that breaks is never ``Failed``: it is ``ContainerLost``, once, and every
instruction to that container needs no answer any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from holdfast.errors import HoldfastError, StoreError
from holdfast.log.records import Fence


@dataclass(frozen=True)
class Batch:
    """One micro-batch of a Spark query. Two are the same when all three are equal."""

    query_id: str
    batch_id: int
    offsets: str
    """The source offsets, or a digest of them."""


@dataclass(frozen=True)
class Prepared:
    """What is inside a stored ``prepare e.<level>``, as far as the master cares."""

    level: int
    fence: Fence
    batch: Batch


@dataclass(frozen=True)
class Routing:
    """Slice → container: ``table[slice]``. None only while no container lives."""

    version: int
    table: tuple[str | None, ...]


@dataclass(frozen=True)
class Pack:
    """One container's file of a checkpoint. ``file`` is opaque: whatever the manifest needs of it."""

    container: str
    slices: frozenset[int]
    file: object


# ---------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class Event:
    """Something that happened."""


@dataclass(frozen=True)
class Started(Event):
    """The first event, once: what the job is, and what its store held after ``owner/`` was taken."""

    incarnation: int
    levels: int
    sinks: tuple[str, ...]
    slices: int
    containers: int
    """How many to start with: the first assignment waits for so many."""
    checkpoint_every: int
    committed: int = 0
    committed_batch: Batch | None = None
    prepared: tuple[Prepared, ...] = ()
    """The levels of epoch ``committed + 1`` that are prepared already, from level 1 on."""
    routing: Routing | None = None
    checkpoint: int = 0
    """Epoch of the newest complete, verified checkpoint; 0 if there is none."""


@dataclass(frozen=True)
class ContainerJoined(Event):
    """A new container serves. Its id has never been used before, not by an earlier driver either."""

    container: str
    host: str = ""


@dataclass(frozen=True)
class ContainerLost(Event):
    """A container is dead or declared so. There is no way back for its id."""

    container: str
    reason: str = ""


@dataclass(frozen=True)
class BatchOffered(Event):
    """Spark called ``foreachBatch`` and waits for FinishBatch, RefuseBatch, FailBatch or Stop."""

    batch: Batch


@dataclass(frozen=True)
class CheckpointWanted(Event):
    """Do not wait for the next one: part of the log above the newest checkpoint cannot be read any more."""

    reason: str


@dataclass(frozen=True)
class OwnerSeen(Event):
    """The highest ``owner/<n>`` in the store, seen by a look (see ``Instruction.looks``)."""

    incarnation: int


@dataclass(frozen=True)
class Answer(Event):
    """What came of the instruction with id ``to``."""

    to: str


@dataclass(frozen=True)
class Failed(Answer):
    """The instruction could not be done. For a store: nobody knows whether the file is there."""

    error: Exception = field(compare=False)


@dataclass(frozen=True)
class RoutingStored(Answer):
    pass


@dataclass(frozen=True)
class Restored(Answer):
    pass


@dataclass(frozen=True)
class IntakeDone(Answer):
    """Every task of the intake ended; its tags in partition order."""

    tags: tuple[object, ...]


@dataclass(frozen=True)
class PrepareStored(Answer):
    """``prepare e.<level>`` is there. ``content`` is what the file says: ours, or of whoever was first."""

    content: Prepared


@dataclass(frozen=True)
class Applied(Answer):
    pass


@dataclass(frozen=True)
class Undone(Answer):
    pass


@dataclass(frozen=True)
class SinkDone(Answer):
    pass


@dataclass(frozen=True)
class CommitStored(Answer):
    """``commit e`` is there. ``fence`` and ``batch`` are what the file says: of whoever was first."""

    fence: Fence
    batch: Batch


@dataclass(frozen=True)
class CheckpointWritten(Answer):
    file: object


@dataclass(frozen=True)
class PacksVerified(Answer):
    """Read back, checksums right. Wrong ones are ``Failed``."""


@dataclass(frozen=True)
class ManifestStored(Answer):
    pass


# ---------------------------------------------------------------------------------------------- instructions


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
    """Start so many new containers; each is reported by ContainerJoined, or by ContainerLost if it cannot start."""

    answered = False
    count: int


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
class RunIntake(Instruction):
    """Run the Spark job of this level's intake to its end."""

    fence: Fence
    level: int
    batch: Batch


@dataclass(frozen=True)
class StorePrepare(Instruction):
    """Put-if-absent ``prepare e.<level>``; whoever loses reads the winner's and reports that."""

    looks = True
    fence: Fence
    level: int
    batch: Batch
    tags: tuple[object, ...]


@dataclass(frozen=True)
class Apply(ToContainer):
    """Bring the slices from level − 1 of ``fence.epoch`` to ``level``, as its prepare says."""

    level: int


@dataclass(frozen=True)
class Undo(ToContainer):
    """Take every level of ``fence.epoch`` back, as far as a slice has come in it, perhaps not at all."""


@dataclass(frozen=True)
class RunSink(Instruction):
    """Run the Spark job that hands the outputs of ``fence.epoch`` to one sink."""

    looks = True
    fence: Fence
    sink: str


@dataclass(frozen=True)
class StoreCommit(Instruction):
    """Put-if-absent ``commit e``; whoever loses reads the winner's and reports that."""

    looks = True
    fence: Fence
    batch: Batch


@dataclass(frozen=True)
class FinishBatch(Instruction):
    """The batch is committed as ``epoch``: return to Spark."""

    answered = False
    batch: Batch
    epoch: int


@dataclass(frozen=True)
class FailBatch(Instruction):
    """Raise inside ``foreachBatch``, and cancel the intake or sink that may still run for it.

    Spark decides whether to offer the batch again.
    """

    answered = False
    batch: Batch
    error: Exception = field(compare=False)


class Refusal(Enum):
    """Why a batch is not the one that comes next."""

    OTHER_QUERY = "other query"
    OTHER_OFFSETS = "other offsets"
    GAP = "gap"


@dataclass(frozen=True)
class RefuseBatch(Instruction):
    """Raise ``error()`` inside ``foreachBatch``. Nothing was written for this batch."""

    answered = False
    batch: Batch
    reason: Refusal
    committed: int
    known: Batch | None
    """What the store holds: the batch prepared as ``committed + 1`` or, if none is, the last committed."""
    prepared: bool

    def error(self) -> HoldfastError:
        known, next_epoch = self.known, self.committed + 1
        offered = f"Spark offers batch {self.batch.batch_id} of query {self.batch.query_id}"
        if known is None:
            what = f"{offered}, but this store is empty: the rows of the batches before it are not in it."
            todo = "Start with the Spark checkpoint that belongs to this store, or with both of them new."
        elif self.reason is Refusal.OTHER_QUERY:
            what = f"{offered}, but this store belongs to query {known.query_id} (batch {known.batch_id})."
            todo = "Start with the Spark checkpoint that belongs to this store, or with a new store."
        elif self.reason is Refusal.OTHER_OFFSETS:
            epoch = next_epoch if self.prepared else self.committed
            what = (
                f"{offered} with offsets {self.batch.offsets}, but epoch {epoch} of this store was made of "
                f"that batch with offsets {known.offsets}."
            )
            todo = "Bring Spark's own checkpoint (its offsets folder) back as it was."
        else:
            wanted = known.batch_id if self.prepared else known.batch_id + 1
            what = f"{offered}, but the next one for this store is batch {wanted} (epoch {next_epoch})."
            todo = "Start the job again; if it stays, Spark's checkpoint and this store do not belong together."
        safe = f"Everything up to epoch {self.committed}; nothing was written."
        return StoreError(what, safe=safe, todo=todo)


@dataclass(frozen=True)
class WriteCheckpoint(ToContainer):
    """Write one pack with these slices as of the committed ``epoch``, behind the epochs that follow."""

    epoch: int


@dataclass(frozen=True)
class VerifyPacks(Instruction):
    """Read packs back and check them, in container ``by``; None means in the driver's own process.

    It is never the process that wrote them.
    """

    by: str | None
    fence: Fence
    epoch: int
    packs: tuple[Pack, ...]


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
