"""Masters with one bug each. Whatever watches masters must find all of them."""

from __future__ import annotations

from dataclasses import replace

from holdfast.master.events import Applied, CommitStored, Event, Started
from holdfast.master.flight import Flight
from holdfast.master.instructions import (
    Activate,
    Apply,
    CutLog,
    Demote,
    EndContainer,
    EpochCommitted,
    EpochDone,
    Instruction,
    Restore,
    SendCopies,
    StoreCommit,
)
from holdfast.master.machine import Master
from holdfast.master.migration import Migration
from holdfast.master.moves import Phase
from holdfast.master.progress import Moment


class ScansTooEarly(Master):
    def ready(self, slice_: int, epoch: int, level: int) -> bool:
        return self.owner(slice_) is not None


class LevelsTooEarly(Master):
    def _all_applied(self, level: int) -> bool:
        return True


class HealsHalfway(Master):
    """Takes a restored slice for one that has applied the epoch in flight too."""

    def _advance_epoch(self, flight: Flight) -> None:
        start, end = self._progress.at(self.committed), self._progress.at(self.committed, len(flight.prepared))
        for (_, position), slices in self._progress.between(start, end).items():
            if self._routing_version > 1 and position == start:
                self._progress.begin(slices, "skip")
                self._progress.finish(slices, "skip", end)
        super()._advance_epoch(flight)


class ForgetsToUndo(Master):
    def _advance_undo(self, flight: Flight) -> None:
        error, flight.failure = flight.failure, None
        self._progress._half.clear()
        self._fail(error or ValueError())


class FinishesBeforeTheCommit(Master):
    def handle(self, event: Event) -> list[Instruction]:
        told = super().handle(event)
        for one in told:
            if isinstance(one, StoreCommit):
                told = [*told, EpochCommitted(one.ranges, one.fence.epoch), EpochDone(one.fence.epoch)]
        return told


class CutsTooMuch(Master):
    def handle(self, event: Event) -> list[Instruction]:
        told = super().handle(event)
        newest = self._checkpoints.newest
        return [replace(one, epoch=newest) if isinstance(one, CutLog) else one for one in told]


class BelievesLateAnswers(Master):
    """Knows an answer by its kind, not by the id of what it answers."""

    def _take(self, event: Event) -> None:
        if isinstance(event, Applied) and event.to not in self._asking.pending:
            pending = [one.id for one in self._asking.pending.values() if isinstance(one, Apply)]
            event = Applied(pending[0]) if pending else event
        super()._take(event)


class RestoresTooLittle(Master):
    """Does not see that the epoch was committed while a slice was restored."""

    def _commit(self, ours: StoreCommit, stored: CommitStored) -> None:
        super()._commit(ours, stored)
        for id_, one in self._asking.pending.items():
            if isinstance(one, Restore | Activate):
                self._asking.pending[id_] = replace(one, epoch=self.committed)


class TakesReadyForActive(Master):
    """Believes that what the ring has ready needs no one to make it active."""

    def _advance_recovery(self) -> None:
        here = self._progress.at(self.committed)
        for container, slices in self._progress.behind(here).items():
            ready = [slice_ for slice_ in slices if container in self._elastic.copies.held[slice_]]
            self._progress.begin(ready, "skip")
            self._progress.finish(ready, "skip", here)
        super()._advance_recovery()


class WaitsForEver(Master):
    """Never gives up on the ring."""

    def _advance_routing(self) -> None:
        if self._job.by_ring and self._started:
            self._elastic._readies.awaited = lambda orphans, *_: frozenset(orphans)  # type: ignore[method-assign]
        super()._advance_routing()


class SwitchesInsideAnEpoch(Master):
    """Hands a slice over as soon as its destination is in dual mode, wherever the two are in the epoch."""

    def _advance_routing(self) -> None:
        if self._flight and self._flight.prepared:
            for move in list(self._elastic.moves.of.values()):
                free = move.task is None and self._progress._task[move.slice] is None
                if move.phase is Phase.DUAL and free and self.owner(move.slice):
                    here = self._progress.at(self.committed)
                    self._progress.give(move.slice, move.to, here)
                    del self._elastic.moves.of[move.slice]
                    self._asking.ask(Demote(move.source, self.fence, frozenset([move.slice]), self.committed))
        super()._advance_routing()


class KeepsHalfAppliedDestinations(Master):
    """A destination on which applying raised is taken for one that has not begun."""

    def _failed(self, instruction: Instruction, error: Exception) -> None:
        if isinstance(instruction, Apply):
            for move in self._elastic.moves.with_task(instruction.id):
                move.task = None
        super()._failed(instruction, error)


class CopiesAnEpochInFlight(Master):
    def handle(self, event: Event) -> list[Instruction]:
        told = super().handle(event)
        return [replace(one, epoch=one.epoch + 1) if isinstance(one, SendCopies) else one for one in told]


class DoesNotWaitUntilAllIsForgotten(Master):
    def _advance(self) -> None:
        self._elastic.drops.unsettled = lambda container: set()  # type: ignore[method-assign]
        super()._advance()


class TakesActivatedForNewer(Master):
    """Does not see that an epoch was committed while a copy was made active."""

    def _commit(self, ours: StoreCommit, stored: CommitStored) -> None:
        super()._commit(ours, stored)
        for id_, one in self._asking.pending.items():
            if isinstance(one, Activate):
                self._asking.pending[id_] = replace(one, epoch=self.committed)


class EndsOwners(Master):
    def handle(self, event: Event) -> list[Instruction]:
        told = super().handle(event)
        return [*told, *(EndContainer(container) for container in sorted(self._elastic.members.leaving))]


class HasTwoOwners(Master):
    """The destination takes over while the source still is the owner of the log's next epoch."""

    def owner(self, slice_: int) -> str | None:
        move = self._elastic.moves.of.get(slice_)
        return move.to if move is not None and move.phase is not Phase.COPY else super().owner(slice_)


class SwitchesTooEarly(Master):
    """A slice changes hands as soon as its destination has a copy, wherever that copy is by then."""

    def _start(self, job: Started) -> None:
        super()._start(job)
        self._elastic.migration.__class__ = Hasty


class Hasty(Migration):
    def switch(self, moment: Moment, leaving: set[str]) -> bool:
        here = self._progress.at(moment.committed)
        for move in self.moves.of.values():
            if move.phase is Phase.REBUILD:
                move.phase, move.position, move.proven, move.task = Phase.DUAL, here, True, None
        return super().switch(moment, leaving)


class ForgetsToReplace(Master):
    """Gives up on a container that could not start."""

    def handle(self, event: Event) -> list[Instruction]:
        before = self._elastic.members.lost.copy()
        told = super().handle(event)
        if self._elastic.members.lost - before:
            self._elastic.members.wanted = max(1, len(self._elastic.members.hosts))
        return told
