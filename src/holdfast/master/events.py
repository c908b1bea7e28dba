"""What the master hears: events, all of them frozen. What it asks for is in ``instructions``.

Every instruction has an id. The shell performs it in the background and reports with an ``Answer`` that names
the id in ``to`` and adds only what the instruction did not know; anything that goes wrong is one event,
``Failed``. So an answer that is late, doubled or about something given up is recognised by its id alone, and
ids show up in logs on both ways. The trade-off: the shell must keep the id at hand, where an answer that
repeats epoch, level and container would not need it, but could then be mistaken for another try's.

A connection to a container that breaks is never ``Failed``: it is ``ContainerLost``, once, and every
instruction to that container needs no answer any more.

What a container answers is an event as it is: those are in ``holdfast.wire.messages``, and are named here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.log.records import Fence, Ranges, Rounds
from holdfast.safety.policies import Terms
from holdfast.wire.messages import (
    Activated,
    Answer,
    Applied,
    CheckpointWritten,
    CopiesSent,
    Demoted,
    DigestsTaken,
    Dropped,
    Event,
    Pack,
    PacksVerified,
    ReadySeen,
    Restored,
    ShardsSaved,
    Tag,
    Undone,
)

__all__ = [
    "Activated",
    "Answer",
    "Applied",
    "BlockThere",
    "CheckpointWanted",
    "CheckpointWritten",
    "Clock",
    "CommitStored",
    "ContainerJoined",
    "ContainerLost",
    "ContainersStarted",
    "CopiesSent",
    "Demoted",
    "DigestsTaken",
    "DoneWanted",
    "Dropped",
    "EpochUnwanted",
    "EpochWanted",
    "Event",
    "Failed",
    "GoOn",
    "IntakeDone",
    "LoadsSeen",
    "ManifestStored",
    "MoveWanted",
    "OwnerSeen",
    "Pack",
    "PacksVerified",
    "PrepareStored",
    "Prepared",
    "ReadySeen",
    "Restored",
    "Routing",
    "RoutingStored",
    "ScaleWanted",
    "ShardsSaved",
    "SinkDone",
    "Started",
    "Tag",
    "Undone",
]


@dataclass(frozen=True)
class Prepared:
    """What is inside a stored ``prepare e.<level>``, as far as the master cares."""

    level: int
    fence: Fence
    ranges: Ranges
    sinks: tuple[str, ...] | None = None
    """Who gets the epoch, whatever the job draws by now. None: all sinks of the job."""


@dataclass(frozen=True)
class Routing:
    """Slice → container: ``table[slice]``. None while no container lives, or while the ring is bringing it back."""

    version: int
    table: tuple[str | None, ...]


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
    ranges: Ranges = field(default_factory=dict)
    """What the last committed epoch took of each stream."""
    prepared: tuple[Prepared, ...] = ()
    """The levels of epoch ``committed + 1`` that are prepared already, from level 1 on."""
    sinks_done: frozenset[str] = frozenset()
    """The sinks of that epoch that are known to have it."""
    routing: Routing | None = None
    checkpoint: int = 0
    """Epoch of the newest complete, verified checkpoint; 0 if there is none."""
    checkpoint_before: int = 0
    """Of the one before that, which stands in for it where it cannot be read."""
    sinks_at_once: int = 1
    sinks_after: Mapping[str, str] = field(default_factory=dict)
    """Of sinks that wait for another one of the epoch, which."""
    sinks_read: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of sinks that need not be called where the stages that they read put out nothing, these stages."""
    sinks_left_out: frozenset[str] = frozenset()
    """See ``SinksLeftOut``."""
    waiting: Rounds = field(default_factory=dict)
    """What the last committed epoch has left in loops."""
    settle: bool = False
    """No block is taken while rows wait in a loop."""
    max_rounds: Mapping[str, int] = field(default_factory=dict)
    """Of loops that are bounded, how many epochs in a row may have no rows but those of loops."""


@dataclass(frozen=True)
class GraphChanged(Event):
    """From the next epoch on the job has another graph; none is in flight. See ``Started``."""

    levels: int
    sinks: tuple[str, ...]
    sinks_after: Mapping[str, str] = field(default_factory=dict)
    sinks_read: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class SinksLeftOut(Event):
    """These sinks, and no others, are not called any more until this is said anew: their jobs go along without rows."""

    sinks: frozenset[str]


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
class EpochWanted(Event):
    """The next epoch shall take these. Whoever wants it waits for EpochDone, EpochFailed or Stop."""

    ranges: Ranges


@dataclass(frozen=True)
class EpochUnwanted(Event):
    """Nobody will wait any longer for the epoch in flight: it fails with this."""

    error: Exception = field(compare=False)


@dataclass(frozen=True)
class DoneWanted(Event):
    """Somebody waits for EpochDone of the committed epoch, which it has already had, or its predecessor."""


@dataclass(frozen=True)
class BlockThere(Event):
    """For the pump: the stream has a block of that number."""

    number: int


@dataclass(frozen=True)
class GoOn(Event):
    """For the pump: an epoch that failed may be tried again."""


@dataclass(frozen=True)
class CheckpointWanted(Event):
    """Do not wait for the next one: part of the log above the newest checkpoint cannot be read any more."""

    reason: str


@dataclass(frozen=True)
class ScaleWanted(Event):
    """So many containers from now on."""

    containers: int


@dataclass(frozen=True)
class MoveWanted(Event):
    """These slices shall live on that container."""

    slices: frozenset[int]
    to: str


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
class Failed(Answer):
    """The instruction could not be done. For a store: nobody knows whether the file is there."""

    error: Exception = field(compare=False)


@dataclass(frozen=True)
class ContainersStarted(Answer):
    """Those that could be started serve by now, or are lost again."""


@dataclass(frozen=True)
class RoutingStored(Answer):
    pass


@dataclass(frozen=True)
class IntakeDone(Answer):
    """Every task of the intake ended; its tags in partition order."""

    tags: tuple[Tag, ...]


@dataclass(frozen=True)
class PrepareStored(Answer):
    """``prepare e.<level>`` is there. ``content`` is what the file says: ours, or of whoever was first."""

    content: Prepared


@dataclass(frozen=True)
class SinkDone(Answer):
    pass


@dataclass(frozen=True)
class CommitStored(Answer):
    """``commit e`` is there. ``fence``, ``ranges`` and ``waiting`` are what the file says: of whoever was first."""

    fence: Fence
    ranges: Ranges
    waiting: Rounds = field(default_factory=dict)


@dataclass(frozen=True)
class ManifestStored(Answer):
    pass
