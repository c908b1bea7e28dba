"""What a master knows, and what the shell may ask it. Nothing here changes a fact."""

from __future__ import annotations

from holdfast.log.records import Fence
from holdfast.master.checkpoints import Checkpointing
from holdfast.master.elastic import Elastic
from holdfast.master.events import Routing, Started
from holdfast.master.flight import Flight
from holdfast.master.instructions import EpochDone, Instruction, RunIntake, StoreCommit, StorePrepare
from holdfast.master.membership import Membership
from holdfast.master.operations import Operation
from holdfast.master.progress import Progress
from holdfast.master.requests import Asking
from holdfast.safety.policies import Terms


class View:
    """The facts of a master, and questions about them."""

    def __init__(self) -> None:
        self.committed = 0
        self._job = Started(0, 1, (), 1, 1, Terms())
        self._started = False
        self._stopped = False
        self._now = 0.0
        self._asking = Asking()
        self._progress = Progress(1, 1)
        self._elastic = Elastic(self._job, Membership(self._job.containers), self._progress, self._asking)
        self._checkpoints = Checkpointing(None, 0, 1)
        self._routing_version = 0
        self._routing_stored = 0
        self._fallbacks: dict[str, tuple[Exception, frozenset[int]]] = {}
        """Restores from another checkpoint → why the first one would not do, and which have been tried."""
        self.unrestored: Exception | None = None
        """Why slices could not be brought back, if that is so."""
        self._flight: Flight | None = None
        self._finish: EpochDone | None = None
        self._attempt = 0

    @property
    def routing(self) -> Routing:
        return Routing(self._routing_version, self._progress.owners)

    @property
    def fence(self) -> Fence:
        return Fence(self._job.incarnation, self.committed + 1, self._attempt)

    @property
    def checkpointed(self) -> int:
        """The epoch of the newest complete checkpoint."""
        return self._checkpoints.newest

    @property
    def resting(self) -> bool:
        """Nothing of the next epoch is prepared."""
        return self._flight is None or not self._flight.prepared

    @property
    def begun(self) -> int:
        """The newest epoch that is prepared."""
        return self.committed + (not self.resting)

    @property
    def gathered(self) -> bool:
        """As many containers as wanted came together, and one of them still lives."""
        return self._elastic.members.gathered

    @property
    def phase(self) -> str:
        """One word for a status line."""
        flight = self._flight
        if self._stopped:
            return "stopped"
        if flight and flight.failure:
            return "undo"
        if flight and flight.waiting:
            names = {RunIntake: "intake", StorePrepare: "prepare", StoreCommit: "commit"}
            return names[type(flight.step)] if flight.step else "sinks" if flight.sinks_running else "apply"
        if not self.gathered:
            return "gathering"
        if not self.whole:
            return "recovery"
        return "idle" if self.settled else "moving"

    @property
    def whole(self) -> bool:
        """Every slice has an owner that has brought it to the committed epoch, or further."""
        return self._progress.reached(self._progress.at(self.committed))

    @property
    def settled(self) -> bool:
        """Nothing is recovering, moving, coming or leaving, and every copy that shall be is there."""
        elastic = self._elastic
        return self.whole and elastic.settled and not (self.committed and elastic.copies.missing())

    @property
    def containers(self) -> int:
        """How many there shall be."""
        return self._elastic.members.wanted

    @property
    def operations(self) -> list[Operation]:
        return self._elastic.operations.every

    def owner(self, slice_: int) -> str | None:
        return self._progress.owners[slice_]

    def holders(self, slice_: int) -> dict[str, int]:
        """Who has a copy of it, and of which epoch at least."""
        return self._elastic.copies.held[slice_]

    def copies_on(self, container: str) -> int:
        return self._elastic.copies.count(container)

    def copies_short(self) -> tuple[int, int]:
        """How many copies there are of those that the safety asks for."""
        if self._job.safety.shards is not None:
            return self._elastic.saving.copies, self._job.safety.shards.n * self._job.slices
        wanted = self._job.safety.backups * self._job.slices
        held = sum(min(len(held), self._job.safety.backups) for held in self._elastic.copies.held)
        return held, wanted

    def awaits(self, instruction: Instruction) -> bool:
        """Whether its answer is still of interest: what was asked for may have been given up since."""
        return instruction.id in self._asking.pending

    def in_flight(self, epoch: int) -> bool:
        """Somebody waits for this epoch, and nothing has failed it."""
        flight = self._flight
        return flight is not None and flight.waiting and not flight.failure and epoch == self.committed + 1

    def ready(self, slice_: int, epoch: int, level: int) -> bool:
        """May a scan read this slice's outputs of (epoch, level) at its owner?

        Only those of the epoch in flight are ever ready: outputs of a committed one may be gone.
        """
        flight = self._flight
        if flight is None or flight.failure or epoch != self.committed + 1:
            return False
        return self._progress.has(slice_, self._progress.at(self.committed, level))
