"""The master of one job as a pure state machine: ``handle(event) -> instructions``.

Events only change facts: who lives, how far each slice has come, what is stored. After each one ``_advance``
looks at the facts and asks for whatever is possible now and not yet under way. So there is no path for "lost
while restoring during the second sink": a lost container makes facts untrue, and the next steps follow from
that. The trade-off is a scan over the slices per event, some microseconds for 128 of them, instead of
counters that every path would have to keep right.

No clock, socket, thread, Spark or file in here. Events may come late, doubled and in any order; what cannot
happen raises ``Impossible``, which tells the story so far; a master that has met it asks for nothing more.

It is long because the order of an epoch's steps, there and back, stands in one place; what runs beside the epochs does
not (``elastic``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from holdfast.errors import ContainerError, StoreError
from holdfast.invariants import Impossible, invariant, some
from holdfast.log.records import Ranges
from holdfast.master.checkpoints import Checkpointing
from holdfast.master.elastic import Elastic
from holdfast.master.events import (
    Activated,
    Answer,
    Applied,
    CheckpointWanted,
    CheckpointWritten,
    Clock,
    CommitStored,
    ContainerJoined,
    ContainerLost,
    ContainersStarted,
    CopiesSent,
    Demoted,
    DigestsTaken,
    DoneWanted,
    Dropped,
    EpochUnwanted,
    EpochWanted,
    Event,
    Failed,
    GraphChanged,
    IntakeDone,
    LoadsSeen,
    ManifestStored,
    MoveWanted,
    OwnerSeen,
    PacksVerified,
    Prepared,
    PrepareStored,
    ReadySeen,
    Restored,
    RoutingStored,
    ScaleWanted,
    ShardsSaved,
    SinkDone,
    SinksLeftOut,
    Started,
    Undone,
)
from holdfast.master.flight import Flight, check_instructions
from holdfast.master.instructions import (
    Activate,
    Apply,
    Demote,
    DropCopies,
    EpochCommitted,
    EpochDone,
    EpochFailed,
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
    Stop,
    StoreCommit,
    StoreManifest,
    StorePrepare,
    StoreRouting,
    TakeDigests,
    TellPeople,
    ToContainer,
    Undo,
    VerifyPacks,
    WriteCheckpoint,
    performer,
)
from holdfast.master.membership import Membership, NoneStarted
from holdfast.master.progress import NOWHERE, Moment, Progress
from holdfast.master.view import View

LOSSES = 4
"""So many losses in one epoch, for each container there should be, and the epoch is given up."""


class Master(View):
    # ----------------------------------------------------------------------------------------------- events

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; what to do now, in this order where order matters to the one who does it."""
        if self._stopped:
            return []
        self._asking.heard(event)
        try:
            self._take(event)
            if not self._stopped:
                self._advance()
                check_instructions(
                    self._asking.new,
                    flight=self._flight,
                    progress=self._progress,
                    committed=self.committed,
                    job=self._job,
                )
                if self.gathered:
                    owners = {*self._progress.owners} - ({None} if self._job.by_ring else set())
                    invariant(owners <= self._elastic.members.hosts.keys(), "a slice has no living owner")
        except Exception as broken:
            self._stopped = True  # its facts are wrong, and so would be whatever it asked for next
            self._impossible(broken)
        return self._asking.new

    def _take(self, event: Event) -> None:
        elastic = self._elastic
        match event:
            case Started():
                self._start(event)
            case _ if not self._started:
                raise Impossible("an event before Started")
            case Clock(at):
                self._now = max(self._now, at)
                elastic.clock(at)
            case GraphChanged():
                self._change(event)
            case SinksLeftOut(sinks):
                self._job = replace(self._job, sinks_left_out=sinks)
            case ContainerJoined():
                elastic.join(event)
            case ContainerLost():
                self._lose(event)
            case EpochWanted(ranges):
                self._want(ranges)
            case EpochUnwanted(error):
                self._fail(error)
            case DoneWanted():
                self._finish = EpochDone(self.committed)
            case ScaleWanted():
                elastic.scale(event)
            case MoveWanted():
                elastic.move(event)
            case LoadsSeen():
                elastic.loads(event)
            case CheckpointWanted():
                self._checkpoints.want(self.committed)
            case OwnerSeen(incarnation):
                if incarnation > self._job.incarnation:
                    self._stop(incarnation)
            case Answer():
                instruction = self._asking.pending.pop(event.to, None)
                if instruction is not None:  # else it is late, doubled, or about something given up
                    self._answer(instruction, event)
            case _:
                raise Impossible("an event the master does not know")

    def _start(self, job: Started) -> None:
        invariant(not self._started, "Started twice")
        invariant((job.committed == 0) == (not job.ranges), "commits of nothing")
        invariant(job.checkpoint <= job.committed, "a checkpoint of an epoch that is not committed")
        invariant([p.level for p in job.prepared] == [*range(1, len(job.prepared) + 1)], "prepared levels with a hole")
        invariant(all(p.ranges == job.prepared[0].ranges for p in job.prepared), "levels of one epoch prepared unlike")
        invariant(len(job.prepared) <= job.levels, "more levels prepared than there are")
        self._job, self._started = job, True
        self._asking.incarnation = job.incarnation
        self.committed = job.committed
        self._progress = Progress(job.slices, job.levels)
        self._elastic = Elastic(job, Membership(job.containers), self._progress, self._asking)
        self._routing_version = self._routing_stored = job.routing.version if job.routing else 0
        self._checkpoints = Checkpointing(job.safety.store_every, job.checkpoint, job.slices, job.checkpoint_before)
        for content in job.prepared:
            if content.fence.incarnation > job.incarnation:
                return self._stop(content.fence.incarnation)
        if job.prepared:
            self._flight = Flight(job.prepared[0].ranges, list(job.prepared), sinks_done=set(job.sinks_done))
        return None

    def _change(self, graph: GraphChanged) -> None:
        invariant(not self._busy and self.resting, "the graph changes in the middle of an epoch")
        self._job = replace(
            self._job,
            levels=graph.levels,
            sinks=graph.sinks,
            sinks_after=graph.sinks_after,
            sinks_read=graph.sinks_read,
        )
        self._progress.levels = graph.levels

    def _lose(self, event: ContainerLost) -> None:
        container = event.container
        if self._elastic.lose(event):
            self._count_loss()
        self._progress.lose(container)
        pending = self._asking.pending.values()
        if any(isinstance(one, WriteCheckpoint | VerifyPacks) and performer(one) == container for one in pending):
            self._give_up_checkpoint()
        self._asking.give_up(lambda one: isinstance(one, ToContainer) and one.container == container)

    def _count_loss(self) -> None:
        flight = self._flight
        if flight is None or not (flight.waiting and flight.prepared):
            return
        flight.losses += 1
        if flight.losses > LOSSES * self._elastic.members.wanted:
            self._fail(
                ContainerError(
                    f"Epoch {self.committed + 1} has cost {flight.losses} containers: they die when they work on it.",
                    safe="The epoch is prepared and not committed; nothing of it is visible, nothing is lost.",
                    todo="Look at run.status().events; if memory is short, start again with more or larger containers.",
                )
            )

    def _want(self, ranges: Ranges) -> None:
        flight = self._flight
        if flight and (flight.waiting or flight.prepared):
            invariant(ranges == flight.ranges, f"{ranges} are wanted while {flight.ranges} are in flight")
        if flight and flight.waiting:
            return  # doubled: it is answered when the epoch is over
        if flight is None:
            flight = self._flight = Flight(ranges)
        flight.ranges, flight.waiting, flight.losses, flight.sink_failure = ranges, True, 0, None
        self._attempt += 1
        self._progress.try_broken_again()
        if self._routing_stored < self._routing_version and not self._asking.awaits(StoreRouting):
            self._asking.ask(StoreRouting(self.fence, self.routing))

    # ---------------------------------------------------------------------------------------------- answers

    def _answer(self, instruction: Instruction, event: Answer) -> None:
        progress, elastic, flight = self._progress, self._elastic, self._flight
        if flight and flight.step is instruction:
            flight.step = None
        if flight and isinstance(instruction, RunSink):
            flight.sinks_running.pop(instruction.sink, None)
        match instruction, event:
            case _, Failed(error=error):
                self._failed(instruction, error)
            case NeedContainers(), ContainersStarted():
                pass  # each has been told of
            case StoreRouting(routing=routing), RoutingStored():
                self._routing_stored = max(self._routing_stored, routing.version)
            case Restore(epoch=epoch), Restored():
                progress.finish(instruction.slices, event.to, progress.at(epoch))
            case Activate(epoch=epoch), Activated():
                progress.finish(self._owned(instruction), event.to, progress.at(epoch))
                elastic.activated(instruction)
            case RunIntake(fence=fence, level=level, ranges=ranges), IntakeDone(tags=tags):
                self._step(StorePrepare(fence, level, ranges, tags, self.routing.version))
            case StorePrepare(), PrepareStored(content=content):
                self._prepared(instruction, content)
            case Apply(fence=fence, level=level), Applied(digests=digests, stages=stages):
                if flight and fence.epoch == self.committed + 1:
                    flight.stirred.update(stage for stage, figures in stages.items() if figures.changed)
                position = progress.at(fence.epoch - 1, level)
                progress.finish(self._owned(instruction), event.to, position)
                elastic.applied(instruction, position, dict(digests))
            case Undo(slices=slices, fence=fence), Undone():
                progress.finish(slices, event.to, progress.at(fence.epoch - 1))
            case RunSink(sink=sink), SinkDone():
                flight = some(flight, f"sink {sink} of no epoch")
                flight.sinks_done.add(sink)
            case StoreCommit(), CommitStored():
                self._commit(instruction, event)
            case SendCopies(), CopiesSent():
                elastic.sent(instruction, event)
            case SaveShards(), ShardsSaved():
                elastic.saved(instruction, event)
            case Gather(), ReadySeen():
                elastic.ready(instruction, event)
            case Demote(), Demoted():
                elastic.demoted(instruction)
            case TakeDigests(), DigestsTaken():
                elastic.digested(instruction, event)
            case ((Forget() | DropCopies()), Dropped()):
                pass
            case WriteCheckpoint(), CheckpointWritten(file=file):
                self._asking.ask_all(self._checkpoints.written(instruction, file, elastic.members.hosts))
            case VerifyPacks(), PacksVerified():
                self._asking.ask_all(self._checkpoints.verified(instruction))
            case StoreManifest(), ManifestStored():
                self._asking.ask_all(self._checkpoints.stored(instruction))
            case _:
                raise Impossible(f"{type(event).__name__} does not answer {type(instruction).__name__}")

    def _owned(self, instruction: ToContainer) -> frozenset[int]:
        """The slices of an instruction that it was given as their owner, not as the destination of a move."""
        return self._progress.with_task(instruction.slices, instruction.id)

    def _failed(self, instruction: Instruction, error: Exception) -> None:
        match instruction:
            case RunIntake() | StorePrepare() | StoreCommit():
                self._fail(error)
            case RunSink():
                flight = some(self._flight, "a sink of no epoch")
                flight.sink_failure = flight.sink_failure or error
            case Restore():
                self._not_restored(instruction, error)
            case Activate():  # the store and the log have it too
                self._progress.finish(self._owned(instruction), instruction.id, NOWHERE)
                self._elastic.failed(instruction)
            case Apply():
                owned = self._owned(instruction)
                self._progress.half_applied(owned, instruction.id)
                self._elastic.failed(instruction)
                if not owned:
                    pass  # a destination in dual mode: the owner is not concerned
                elif self._flight and instruction.fence.epoch == self.committed + 1:
                    self._flight.failure = self._flight.failure or error
                    self._drop_job()
                else:  # committed meanwhile: nothing to take back, the slices are restored instead
                    self._progress.forget_half_applied()
            case Undo(slices=slices):
                self._progress.finish(slices, instruction.id, NOWHERE)
            case WriteCheckpoint() | VerifyPacks() | StoreManifest():
                self._give_up_checkpoint()
                self._checkpoints.pause(self._now)
            case SendCopies() | SaveShards() | Gather() | Demote() | Forget() | DropCopies() | TakeDigests():
                self._elastic.failed(instruction)
            case StoreRouting():
                pass  # the next offer tries again
            case NeedContainers(count=count):
                for last in self._elastic.members.handle(NoneStarted(count, error)):
                    self._rest(last)

    def _not_restored(self, instruction: Restore, error: Exception) -> None:
        """If the store cannot give a checkpoint, another one and the log above it still make the state: the one before,
        or one that was completed while this one was tried and has had the log cut that it needs."""
        first, before = self._fallbacks.pop(instruction.id, (error, frozenset()))
        tried = before | {instruction.checkpoint}
        other = self._checkpoints.other_than(tried) if isinstance(error, StoreError) else None
        if other is not None:
            self._progress.finish(instruction.slices, instruction.id, NOWHERE)
            self._asking.ask(TellPeople("corrupt", str(error).splitlines()[0]))
            again = Restore(instruction.container, self.fence, instruction.slices, self.committed, other)
            self._fallbacks[self._task(again).id] = first, tried
        else:
            self._progress.break_(instruction.slices, instruction.id)
            self.unrestored = first
            self._fail(first)

    def _fail(self, error: Exception) -> None:
        flight = self._flight
        if flight and flight.waiting and not flight.failure:
            flight.waiting = False
            self._drop_job()
            self._asking.ask(EpochFailed(error))

    def _drop_job(self) -> None:
        """Forget the Spark jobs under way: EpochFailed cancels them. What is being stored stays awaited."""
        flight = self._flight
        if flight is None:
            return
        for sink in flight.sinks_running.values():
            self._asking.pending.pop(sink.id, None)
        flight.sinks_running.clear()
        if isinstance(flight.step, RunIntake):
            self._asking.pending.pop(flight.step.id, None)
            flight.step = None

    def _prepared(self, ours: StorePrepare, content: Prepared) -> None:
        flight = self._flight
        flight = some(flight, "a prepare of no epoch")
        invariant(ours.fence.epoch == self.committed + 1, "a prepare of another epoch than the one in flight")
        invariant(content.level == ours.level == len(flight.prepared) + 1, "levels are prepared one after the other")
        if content.fence.incarnation > self._job.incarnation:
            return self._stop(content.fence.incarnation)
        flight.prepared.append(content)
        if content.level == 1:
            self._asking.ask(EpochPrepared(content.ranges))
        if content.ranges != flight.ranges:  # somebody was first, with others: nobody waits for those
            invariant(len(flight.prepared) == 1, "levels of one epoch prepared unlike")
            flight.ranges, flight.waiting = content.ranges, False
        return None

    def _commit(self, ours: StoreCommit, stored: CommitStored) -> None:
        flight, fence, ranges = self._flight, stored.fence, stored.ranges
        if fence.incarnation > self._job.incarnation:
            return self._stop(fence.incarnation)
        flight = some(flight, "a commit of no epoch")
        invariant(ours.fence.epoch == fence.epoch == self.committed + 1, "committed epochs grow by one")
        invariant(
            ranges == flight.ranges, f"epoch {fence.epoch} was prepared of {flight.ranges}, committed of {ranges}"
        )
        self.committed = fence.epoch
        self._asking.ask(EpochCommitted(ranges, self.committed, stored.waiting))
        self._flight, self._attempt = None, 0
        self._progress.forget_half_applied()
        self._advance_checkpoint()  # before Spark goes on, so that containers still have this epoch at hand
        if flight.waiting:
            self._finish = EpochDone(self.committed)
        return None

    def _stop(self, successor: int) -> None:
        ours = self._job.incarnation
        self._rest(Stop(f"incarnation {successor} has taken over from {ours}", successor))

    def _rest(self, last: Instruction) -> None:
        """Ask for this, and for nothing more."""
        self._stopped = True
        self._asking.pending.clear()
        self._asking.ask(last)

    # ---------------------------------------------------------------------------- whatever is possible now

    def _advance(self) -> None:
        self._advance_routing()
        if self.gathered:
            self._advance_recovery()
        if self._flight and self._flight.failure:
            self._advance_undo(self._flight)
        elif self._flight and self._flight.waiting:
            self._advance_epoch(self._flight)
        self._advance_checkpoint()
        if self._finish and not (self._job.safety.blocking and self._checkpoints.running):
            self._asking.ask(self._finish)
            self._finish = None

    def _advance_routing(self) -> None:
        elastic = self._elastic
        elastic.stand(whole=self.whole, busy=self._busy)
        changed = self.gathered and self._progress.orphaned and elastic.adopt(self.committed, self.fence)
        if self.gathered:
            changed = elastic.advance(self._moment()) or changed
        if changed:
            self._routing_version += 1
            self._asking.ask(StoreRouting(self.fence, self.routing))

    @property
    def _busy(self) -> bool:
        return self._flight is not None and self._flight.waiting

    def _moment(self) -> Moment:
        flight = self._flight
        written = [one.slices for one in self._asking.pending.values() if isinstance(one, WriteCheckpoint)]
        return Moment(
            self.committed,
            self.fence,
            self._now,
            whole=self.whole,
            between=flight is None or not flight.prepared,
            busy=self._busy,
            writing=frozenset().union(*written),
        )

    def _advance_recovery(self) -> None:
        for container, slices in self._progress.behind(self._progress.at(self.committed)).items():
            free = slices - self._elastic.drops.unsettled(container)
            held = self._elastic.copies.held
            copied = frozenset(slice_ for slice_ in free if self._job.from_copies and container in held[slice_])
            # Those that a commit overtook on their way back are there themselves: only the newest epoch is missing.
            here = copied | frozenset(slice_ for slice_ in free if self._progress.has(slice_, self._progress.at(1)))
            if here:
                self._task(Activate(container, self.fence, here, self.committed))
            if free - here:
                newest = self._checkpoints.newest
                self._task(Restore(container, self.fence, free - here, self.committed, newest))

    def _advance_epoch(self, flight: Flight) -> None:
        progress, elastic, levels = self._progress, self._elastic, len(flight.prepared)
        prepared = progress.at(self.committed), progress.at(self.committed, levels)
        dual = elastic.moves.dual
        for (container, position), slices in progress.between(*prepared).items():
            self._task(Apply(container, self.fence, slices, position.level + 1, slices & dual))
        for (container, position), slices in elastic.migration.shadows(*prepared).items():
            apply = Apply(container, self.fence, slices, position.level + 1, slices, shadow=True)
            elastic.migration.begin(self._asking.ask(apply))
        if flight.sink_failure is not None:
            if not flight.sinks_running:
                self._fail(flight.sink_failure)
            return
        if flight.step or (levels and not self._all_applied(levels)):
            return
        if levels < progress.levels:
            self._step(RunIntake(self.fence, levels + 1, flight.ranges))
        elif left := flight.sinks_left(self._job):
            self._begin_sinks(flight, left)
        else:
            given = flight.sinks(self._job.sinks)
            silent = flight.silent(self._job) - flight.sinks_done
            skipped = tuple(sink for sink in given if sink in silent)
            self._step(StoreCommit(self.fence, flight.ranges, skipped, progress.owners))

    def _begin_sinks(self, flight: Flight, left: list[str]) -> None:
        running, after = flight.sinks_running, self._job.sinks_after
        may = [sink for sink in left if sink not in running and after.get(sink) not in left]
        for sink in may[: self._job.sinks_at_once - len(running)]:
            running[sink] = self._asking.ask(RunSink(self.fence, sink, last=len(left) == 1))

    def _all_applied(self, level: int) -> bool:
        return self._progress.reached(self._progress.at(self.committed, level))

    def _advance_undo(self, flight: Flight) -> None:
        if isinstance(flight.step, StoreCommit) or self._asking.awaits(Apply):
            return  # whether there is something to take back is only known after these
        here = self._progress.at(self.committed)
        for container, slices in self._progress.past(here).items():
            self._task(Undo(container, self.fence, slices))
        self._elastic.begin_again_past(here, self.fence)
        if not self._asking.awaits(Undo):
            error, flight.failure = flight.failure, None
            flight.stirred.clear()  # all slices will apply it anew
            error = some(error, "an undo without a failure")
            self._fail(error)

    def _advance_checkpoint(self) -> None:
        if not self.whole or not self._checkpoints.due(self.committed, self._now):
            return
        # A slice does not change hands while its owner writes it. Where writing takes longer than the interval, those
        # that wait for that would wait for ever.
        urgent = self._job.safety.blocking or self._checkpoints.wanted
        if urgent or not self._elastic.moves.dual:
            begun = self._checkpoints.begin(self.committed, self._now, self.fence, self._progress.held())
            self._asking.ask_all(begun)

    def _give_up_checkpoint(self) -> None:
        self._checkpoints.give_up()
        self._asking.give_up(lambda one: isinstance(one, WriteCheckpoint | VerifyPacks | StoreManifest))

    # ------------------------------------------------------------------------------------------ bookkeeping

    def _task(self, instruction: ToContainer) -> ToContainer:
        asked = self._asking.ask(instruction)
        self._progress.begin(asked.slices, asked.id)
        return asked

    def _step(self, instruction: RunIntake | StorePrepare | StoreCommit) -> None:
        flight = self._flight
        flight = some(flight, "a step of no epoch")
        invariant(flight.step is None, "one step at a time")
        flight.step = self._asking.ask(instruction)

    def _impossible(self, cause: Exception) -> NoReturn:
        what = str(cause) if isinstance(cause, Impossible) else f"{type(cause).__name__}: {cause}"
        impossible = Impossible(what)
        impossible.story = self._asking.story()
        impossible.add_note(f"The story so far:\n{impossible.story}")
        raise impossible from cause
