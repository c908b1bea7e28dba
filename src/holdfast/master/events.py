"""What the master hears: events, all of them frozen. What it asks for is in ``instructions``.

Every instruction has an id. The shell performs it in the background and reports with an ``Answer`` that names
the id in ``to`` and adds only what the instruction did not know; anything that goes wrong is one event,
``Failed``. So an answer that is late, doubled or about something given up is recognised by its id alone, and
ids show up in logs on both ways. The trade-off: the shell must keep the id at hand, where an answer that
repeats epoch, level and container would not need it, but could then be mistaken for another try's.

A connection to a container that breaks is never ``Failed``: it is ``ContainerLost``, once, and every
instruction to that container needs no answer any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from holdfast.log.records import Fence
from holdfast.safety.policies import Terms


@dataclass(frozen=True)
class Batch:
    """One micro-batch of a Spark query, or the ``tick``-th epoch without rows after it."""

    query_id: str
    batch_id: int
    offsets: str
    """The source offsets, or a digest of them."""
    tick: int = 0

    def done_by(self, committed: Batch | None) -> bool:
        """Nothing is left to do for this one once that one is committed."""
        return committed is not None and self == replace(committed, tick=self.tick) and self.tick <= committed.tick


@dataclass(frozen=True)
class Prepared:
    """What is inside a stored ``prepare e.<level>``, as far as the master cares."""

    level: int
    fence: Fence
    batch: Batch
    sinks: tuple[str, ...] | None = None
    """Who gets the epoch, whatever the job draws by now. None: all sinks of the job."""


@dataclass(frozen=True)
class Routing:
    """Slice → container: ``table[slice]``. None while no container lives, or while the ring is bringing it back."""

    version: int
    table: tuple[str | None, ...]


@dataclass(frozen=True)
class Pack:
    """One container's file of a checkpoint. ``file`` is opaque: whatever the manifest needs of it."""

    container: str
    slices: frozenset[int]
    file: object


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
    safety: Terms
    from_copies: bool = True
    """Lost slices come from their copies where there are any; else always from the store."""
    by_ring: bool = False
    """The ring brings lost slices back by itself: they have no owner until somebody has them ready."""
    committed: int = 0
    committed_batch: Batch | None = None
    prepared: tuple[Prepared, ...] = ()
    """The levels of epoch ``committed + 1`` that are prepared already, from level 1 on."""
    sinks_done: frozenset[str] = frozenset()
    """The sinks of that epoch that are known to have it."""
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
class BatchUnwanted(Event):
    """Nobody will wait any longer for the batch that is offered: it fails with this."""

    error: Exception = field(compare=False)


@dataclass(frozen=True)
class CheckpointWanted(Event):
    """Do not wait for the next one: part of the log above the newest checkpoint cannot be read any more."""

    reason: str


@dataclass(frozen=True)
class ScaleWanted(Event):
    """So many containers from now on. ``stopping``: no epoch runs while state is on its way (the baseline)."""

    containers: int
    stopping: bool = False


@dataclass(frozen=True)
class MoveWanted(Event):
    """These slices shall live on that container."""

    slices: frozenset[int]
    to: str
    stopping: bool = False


@dataclass(frozen=True)
class LoadsSeen(Event):
    """How much work each slice is, in any unit: the containers measured it."""

    loads: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Clock(Event):
    """What time it is, in seconds of a clock that never goes back. The master has no other."""

    at: float


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
    digests: tuple[tuple[int, int], ...] = ()
    """Of the slices that were asked for: (slice, checksum of what the level put out)."""


@dataclass(frozen=True)
class Activated(Answer):
    pass


@dataclass(frozen=True)
class CopiesSent(Answer):
    """Which copies are there now: (peer, slice, version). ``failed``: peers that could not take theirs."""

    held: tuple[tuple[str, int, int], ...]
    failed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ShardsSaved(Answer):
    """(slice, how many containers hold each of its pieces at the epoch, at least)."""

    copies: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ReadySeen(Answer):
    """What the container can make active: (slice, epoch). ``beyond``: what the ring cannot bring back, and why."""

    ready: tuple[tuple[int, int], ...]
    beyond: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Demoted(Answer):
    pass


@dataclass(frozen=True)
class Dropped(Answer):
    """What was to be forgotten or dropped is gone."""


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
