"""The master of one job as a pure state machine: ``handle(event) -> instructions``.

Events only change facts: who lives, how far each slice has come, what is stored. After each one ``_advance``
looks at the facts and asks for whatever is possible now and not yet under way. So there is no path for "lost
while restoring during the second sink": a lost container makes facts untrue, and the next steps follow from
that. The trade-off is a scan over the slices per event, some microseconds for 128 of them, instead of
counters that every path would have to keep right.

No clock, socket, thread, Spark or file in here. Events may come late, doubled and in any order; what cannot
happen raises ``Impossible``, which tells the story so far.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import NoReturn, TypeVar

from holdfast.errors import ContainerError
from holdfast.log.records import Fence
from holdfast.master.checkpointing import Checkpointing
from holdfast.master.flight import Flight, check_instructions, refuse
from holdfast.master.messages import (
    Answer,
    Applied,
    Apply,
    Batch,
    BatchOffered,
    CheckpointWanted,
    CheckpointWritten,
    CommitStored,
    ContainerJoined,
    ContainerLost,
    Event,
    FailBatch,
    Failed,
    FinishBatch,
    Instruction,
    IntakeDone,
    ManifestStored,
    NeedContainers,
    OwnerSeen,
    PacksVerified,
    Prepared,
    PrepareStored,
    Restore,
    Restored,
    Routing,
    RoutingStored,
    RunIntake,
    RunSink,
    SinkDone,
    Started,
    Stop,
    StoreCommit,
    StoreManifest,
    StorePrepare,
    StoreRouting,
    ToContainer,
    Undo,
    Undone,
    VerifyPacks,
    WriteCheckpoint,
)
from holdfast.master.progress import NOWHERE, Progress

STORY = 60
LOSSES = 4
"""So many losses in one epoch, for each container there should be, and the epoch is given up."""

Asked = TypeVar("Asked", bound=Instruction)


class Impossible(AssertionError):
    """Something that the protocol excludes. Its text ends with the last events (→) and instructions (←)."""


class Master:
    def __init__(self) -> None:
        self.committed = 0
        self._committed_batch: Batch | None = None
        self._job: Started | None = None
        self._stopped = False
        self._living: set[str] = set()
        self._lost: set[str] = set()
        self._coming = 0
        self._gathered = False
        self._progress = Progress(1, 1)
        self._routing_version = 0
        self._routing_stored = 0
        self._flight: Flight | None = None
        self._attempt = 0
        self._checkpoints = Checkpointing(1, 0, 1)
        self._pending: dict[str, Instruction] = {}
        self._asked = 0
        self._out: list[Instruction] = []
        self._story: deque[Event | Instruction] = deque(maxlen=STORY)

    # ------------------------------------------------------------------------------- what the shell may ask

    @property
    def routing(self) -> Routing:
        return Routing(self._routing_version, self._progress.owners)

    @property
    def fence(self) -> Fence:
        return Fence(self._incarnation, self.committed + 1, self._attempt)

    @property
    def gathered(self) -> bool:
        """As many containers as wanted came together, and one of them still lives."""
        return self._gathered

    @property
    def phase(self) -> str:
        """One word for a status line."""
        flight = self._flight
        if self._stopped:
            return "stopped"
        if flight and flight.failure:
            return "undo"
        if flight and flight.waiting:
            names = {RunIntake: "intake", StorePrepare: "prepare", RunSink: "sinks", StoreCommit: "commit"}
            return names[type(flight.step)] if flight.step else "apply"
        if not self._gathered:
            return "gathering"
        return "idle" if self.whole else "recovery"

    @property
    def whole(self) -> bool:
        """Every slice has an owner that has brought it to the committed epoch, or further."""
        return self._progress.reached(self._progress.at(self.committed))

    def owner(self, slice_: int) -> str | None:
        return self._progress.owners[slice_]

    def ready(self, slice_: int, epoch: int, level: int) -> bool:
        """May a scan read this slice's outputs of (epoch, level) at its owner?

        Only those of the epoch in flight are ever ready: outputs of a committed one may be gone.
        """
        flight = self._flight
        if flight is None or flight.failure or epoch != self.committed + 1:
            return False
        return self._progress.has(slice_, self._progress.at(self.committed, level))

    # ----------------------------------------------------------------------------------------------- events

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; what to do now, in this order where order matters to the one who does it."""
        if self._stopped:
            return []
        self._out = []
        self._story.append(event)
        try:
            self._take(event)
            if not self._stopped:
                self._advance()
                check_instructions(
                    self._out,
                    flight=self._flight,
                    progress=self._progress,
                    committed=self.committed,
                    sinks=self._sinks,
                )
                if self._gathered and self._living:
                    assert set(self._progress.owners) <= self._living, "a slice has no living owner"
        except AssertionError as broken:
            self._impossible(str(broken), broken)
        return self._out

    def _take(self, event: Event) -> None:
        match event:
            case Started():
                self._start(event)
            case _ if self._job is None:
                raise AssertionError("an event before Started")
            case ContainerJoined(container):
                if container not in self._lost | self._living:
                    self._living.add(container)
                    self._coming = max(0, self._coming - 1)
            case ContainerLost(container):
                self._lose(container)
            case BatchOffered(batch):
                self._offer(batch)
            case CheckpointWanted():
                self._checkpoints.wanted = True
            case OwnerSeen(incarnation):
                if incarnation > self._incarnation:
                    self._stop(incarnation)
            case Answer():
                instruction = self._pending.pop(event.to, None)
                if instruction is not None:  # else it is late, doubled, or about something given up
                    self._answer(instruction, event)
            case _:
                raise AssertionError("an event the master does not know")

    def _start(self, job: Started) -> None:
        assert self._job is None, "Started twice"
        assert (job.committed == 0) == (job.committed_batch is None), "commits without a batch"
        assert job.checkpoint <= job.committed, "a checkpoint of an epoch that is not committed"
        assert [p.level for p in job.prepared] == [*range(1, len(job.prepared) + 1)], "prepared levels with a hole"
        assert len({p.batch for p in job.prepared}) <= 1, "levels of one epoch prepared for several batches"
        assert len(job.prepared) <= job.levels, "more levels prepared than there are"
        self._job = job
        self.committed, self._committed_batch = job.committed, job.committed_batch
        self._progress = Progress(job.slices, job.levels)
        self._routing_version = self._routing_stored = job.routing.version if job.routing else 0
        self._checkpoints = Checkpointing(job.checkpoint_every, job.checkpoint, job.slices)
        for content in job.prepared:
            if content.fence.incarnation > job.incarnation:
                return self._stop(content.fence.incarnation)
        if job.prepared:
            self._flight = Flight(job.prepared[0].batch, list(job.prepared))
        return None

    def _lose(self, container: str) -> None:
        if container not in self._lost | self._living:
            self._coming = max(0, self._coming - 1)  # it died before it joined
        elif container in self._living:
            self._count_loss()
        self._lost.add(container)
        self._living.discard(container)
        self._progress.lose(container)
        for instruction in list(self._pending.values()):
            match instruction:
                case WriteCheckpoint(container=to) | VerifyPacks(by=to) if to == container:
                    self._give_up_checkpoint()
                case ToContainer(container=to) if to == container:
                    del self._pending[instruction.id]

    def _count_loss(self) -> None:
        flight, job = self._flight, self._job
        if job is None or flight is None or not (flight.waiting and flight.prepared):
            return
        flight.losses += 1
        if flight.losses > LOSSES * job.containers:
            self._fail(
                ContainerError(
                    f"Epoch {self.committed + 1} has cost {flight.losses} containers: they die when they work on it.",
                    safe="The epoch is prepared and not committed; nothing of it is visible, nothing is lost.",
                    todo="Look at run.status().events; if memory is short, start again with more or larger containers.",
                )
            )

    def _offer(self, batch: Batch) -> None:
        flight = self._flight
        if batch == self._committed_batch:
            self._ask(FinishBatch(batch, self.committed))
        elif flight and flight.waiting and batch == flight.batch:
            pass  # doubled: it gets its answer when the epoch has one
        elif refusal := refuse(batch, flight, self.committed, self._committed_batch):
            self._ask(refusal)
        else:
            if flight is None:
                flight = self._flight = Flight(batch)
            flight.batch, flight.waiting, flight.losses = batch, True, 0
            self._attempt += 1
            self._progress.try_broken_again()
            if self._routing_stored < self._routing_version and not self._is_pending(StoreRouting):
                self._ask(StoreRouting(self.fence, self.routing))

    # ---------------------------------------------------------------------------------------------- answers

    def _answer(self, instruction: Instruction, event: Answer) -> None:
        progress, flight = self._progress, self._flight
        if flight and flight.step is instruction:
            flight.step = None
        match instruction, event:
            case _, Failed(error=error):
                self._failed(instruction, error)
            case StoreRouting(routing=routing), RoutingStored():
                self._routing_stored = max(self._routing_stored, routing.version)
            case Restore(slices=slices, epoch=epoch), Restored():
                progress.finish(slices, event.to, progress.at(epoch))
            case RunIntake(fence=fence, level=level, batch=batch), IntakeDone(tags=tags):
                self._step(StorePrepare(fence, level, batch, tags))
            case StorePrepare(), PrepareStored(content=content):
                self._prepared(instruction, content)
            case Apply(slices=slices, fence=fence, level=level), Applied():
                progress.finish(slices, event.to, progress.at(fence.epoch - 1, level))
            case Undo(slices=slices, fence=fence), Undone():
                progress.finish(slices, event.to, progress.at(fence.epoch - 1))
            case RunSink(sink=sink), SinkDone():
                assert flight is not None, f"sink {sink} of no epoch"
                flight.sinks_done.add(sink)
            case StoreCommit(), CommitStored(fence=fence, batch=batch):
                self._commit(instruction, fence, batch)
            case WriteCheckpoint(), CheckpointWritten(file=file):
                self._ask(*self._checkpoints.written(instruction, file, self._living))
            case VerifyPacks(), PacksVerified():
                self._ask(*self._checkpoints.verified(instruction))
            case StoreManifest(), ManifestStored():
                self._ask(*self._checkpoints.stored(instruction))
            case _:
                raise AssertionError(f"{type(event).__name__} does not answer {type(instruction).__name__}")

    def _failed(self, instruction: Instruction, error: Exception) -> None:
        match instruction:
            case RunIntake() | StorePrepare() | RunSink() | StoreCommit():
                self._fail(error)
            case Restore(slices=slices):
                self._progress.break_(slices, instruction.id)
                self._fail(error)
            case Apply(slices=slices):
                self._progress.half_applied(slices, instruction.id)
                if self._flight and instruction.fence.epoch == self.committed + 1:
                    self._flight.failure = self._flight.failure or error
                    self._drop_job()
                else:  # committed meanwhile: nothing to take back, the slices are restored instead
                    self._progress.forget_half_applied()
            case Undo(slices=slices):
                self._progress.finish(slices, instruction.id, NOWHERE)
            case WriteCheckpoint() | VerifyPacks() | StoreManifest():
                self._give_up_checkpoint()
            case StoreRouting():
                pass  # the next offer tries again

    def _fail(self, error: Exception) -> None:
        flight = self._flight
        if flight and flight.waiting and not flight.failure:
            flight.waiting = False
            self._drop_job()
            self._ask(FailBatch(flight.batch, error))

    def _drop_job(self) -> None:
        """Forget the Spark job under way: FailBatch cancels it. What is being stored stays awaited."""
        flight = self._flight
        if flight and isinstance(flight.step, RunIntake | RunSink):
            self._pending.pop(flight.step.id, None)
            flight.step = None

    def _prepared(self, ours: StorePrepare, content: Prepared) -> None:
        flight = self._flight
        assert flight is not None, "a prepare of no epoch"
        assert ours.fence.epoch == self.committed + 1, "a prepare of another epoch than the one in flight"
        assert content.level == ours.level == len(flight.prepared) + 1, "levels are prepared one after the other"
        if content.fence.incarnation > self._incarnation:
            return self._stop(content.fence.incarnation)
        flight.prepared.append(content)
        if content.batch != flight.batch:
            refused, flight.batch, waiting, flight.waiting = (
                flight.batch,
                content.batch,
                flight.waiting,
                False,
            )
            assert len(flight.prepared) == 1, "levels of one epoch prepared for several batches"
            if waiting:
                refusal = refuse(refused, flight, self.committed, self._committed_batch)
                assert refusal is not None, "two unlike batches, both welcome"
                self._ask(refusal)
        return None

    def _commit(self, ours: StoreCommit, fence: Fence, batch: Batch) -> None:
        flight = self._flight
        if fence.incarnation > self._incarnation:
            return self._stop(fence.incarnation)
        assert flight is not None, "a commit of no epoch"
        assert ours.fence.epoch == fence.epoch == self.committed + 1, "committed epochs grow by one"
        assert batch == flight.batch, f"epoch {fence.epoch} was prepared for {flight.batch}, committed for {batch}"
        self.committed, self._committed_batch = fence.epoch, batch
        self._flight, self._attempt = None, 0
        self._progress.forget_half_applied()
        self._advance_checkpoint()  # before Spark goes on, so that containers still have this epoch at hand
        if flight.waiting:
            self._ask(FinishBatch(batch, self.committed))
        return None

    def _stop(self, successor: int) -> None:
        self._stopped = True
        self._pending.clear()
        self._ask(Stop(f"incarnation {successor} has taken over from {self._incarnation}", successor))

    # ---------------------------------------------------------------------------- whatever is possible now

    def _advance(self) -> None:
        self._advance_routing()
        if self._gathered:
            self._advance_recovery()
        if self._flight and self._flight.failure:
            self._advance_undo(self._flight)
        elif self._flight and self._flight.waiting:
            self._advance_epoch(self._flight)
        self._advance_checkpoint()

    def _advance_routing(self) -> None:
        wanted = self._job.containers if self._job else 0
        self._gathered = (self._gathered and bool(self._living)) or len(self._living) >= wanted
        missing = wanted - len(self._living) - self._coming
        if missing > 0 and not self._gathered:
            self._coming += missing
            self._ask(NeedContainers(missing))
        if self._gathered and self._progress.orphaned:
            self._progress.assign(self._living)
            self._routing_version += 1
            self._ask(StoreRouting(self.fence, self.routing))

    def _advance_recovery(self) -> None:
        behind = self._progress.behind(self._progress.at(self.committed))
        for container, slices in behind.items():
            self._task(Restore(container, self.fence, slices, self.committed, self._checkpoints.newest))

    def _advance_epoch(self, flight: Flight) -> None:
        progress, levels = self._progress, len(flight.prepared)
        start = progress.at(self.committed)
        for (container, position), slices in progress.between(start, start + levels).items():
            self._task(Apply(container, self.fence, slices, position - start + 1))
        if flight.step or (levels and not self._all_applied(levels)):
            return
        if levels < progress.levels:
            self._step(RunIntake(self.fence, levels + 1, flight.batch))
        elif sink := next((sink for sink in self._sinks if sink not in flight.sinks_done), None):
            self._step(RunSink(self.fence, sink))
        else:
            self._step(StoreCommit(self.fence, flight.batch))

    def _all_applied(self, level: int) -> bool:
        return self._progress.reached(self._progress.at(self.committed, level))

    def _advance_undo(self, flight: Flight) -> None:
        if isinstance(flight.step, StoreCommit) or self._is_pending(Apply):
            return  # whether there is something to take back is only known after these
        for container, slices in self._progress.past(self._progress.at(self.committed)).items():
            self._task(Undo(container, self.fence, slices))
        if not self._is_pending(Undo):
            error, flight.failure = flight.failure, None
            assert error is not None, "an undo without a failure"
            self._fail(error)

    def _advance_checkpoint(self) -> None:
        if self.whole and self._checkpoints.due(self.committed):
            self._ask(*self._checkpoints.begin(self.committed, self.fence, self._progress.held()))

    def _give_up_checkpoint(self) -> None:
        self._checkpoints.give_up()
        for id_, instruction in list(self._pending.items()):
            if isinstance(instruction, WriteCheckpoint | VerifyPacks | StoreManifest):
                del self._pending[id_]

    # ------------------------------------------------------------------------------------------ bookkeeping

    def _ask(self, *instructions: Instruction) -> None:
        for instruction in instructions:
            self._number(instruction)

    def _number(self, instruction: Asked) -> Asked:
        self._asked += 1
        numbered = replace(instruction, id=f"{self._incarnation}.{self._asked}")
        if numbered.answered:
            self._pending[numbered.id] = numbered
        self._out.append(numbered)
        self._story.append(numbered)
        return numbered

    def _task(self, instruction: ToContainer) -> None:
        self._progress.begin(instruction.slices, self._number(instruction).id)

    def _step(self, instruction: RunIntake | StorePrepare | RunSink | StoreCommit) -> None:
        flight = self._flight
        assert flight is not None, "a step of no epoch"
        assert flight.step is None, "one step at a time"
        flight.step = self._number(instruction)

    def _is_pending(self, kind: type[Instruction]) -> bool:
        return any(isinstance(instruction, kind) for instruction in self._pending.values())

    @property
    def _incarnation(self) -> int:
        return self._job.incarnation if self._job else 0

    @property
    def _sinks(self) -> tuple[str, ...]:
        return self._job.sinks if self._job else ()

    def _impossible(self, what: str, cause: AssertionError) -> NoReturn:
        story = "\n".join(f"  {'→' if isinstance(entry, Event) else '←'} {entry}" for entry in self._story)
        raise Impossible(f"{what}\nThe story so far:\n{story}") from cause
