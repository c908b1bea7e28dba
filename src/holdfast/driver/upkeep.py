"""What is looked after behind the epochs: who owns the job, how much work slices are, what may go, and the log."""

from __future__ import annotations

from holdfast.driver.brain import Brain
from holdfast.driver.loads import shares
from holdfast.driver.store import StoreHandlers
from holdfast.errors import CorruptionError, HoldfastError, PlanError
from holdfast.launch.fleet import Fleet
from holdfast.master import events as ev
from holdfast.wire.questions import AskLoads, Scrub


class Upkeep:
    def __init__(self, brain: Brain, fleet: Fleet, store: StoreHandlers) -> None:
        self._brain, self._fleet, self._store = brain, fleet, store

    def still_ours(self) -> bool:
        """A look at ``owner/``; the master hears of a successor."""
        newest = self._store.newest_owner()
        if newest > self._store.incarnation:
            self._brain.tell(ev.OwnerSeen(newest))
            return False
        return True

    def tidy(self) -> None:
        try:
            if not self._brain.over and self.still_ours():
                self._store.tidy()
        except HoldfastError as error:  # nothing depends on it, and the next round is due before long
            self._brain.history.failed("tidying up", error)

    def look_at_loads(self) -> None:
        answers = self._fleet.call_all(AskLoads(), timeout=10.0)
        with self._brain.changed:
            owners = self._brain.machine.routing.table
        if loads := shares({name: answer.loads for name, answer in answers.items()}, owners):
            self._brain.tell(ev.LoadsSeen(loads))

    def scrub(self) -> int:
        """Read the log above the newest checkpoint back; if part is bad, checkpoint while live state is past it."""
        if self._store.written.footprints is not None:
            raise PlanError(
                "Scrubbing is not there under safety=hf.Eventual(…): files are read back before the log is cut.",
                safe="The job goes on as it was.",
                todo="Leave it out.",
            )
        machine = self._brain.machine
        with self._brain.changed:
            committed, table = machine.committed, machine.routing.table
        container = next((name for name in table if name), None)
        manifests = self._store.manifests()
        if container is None:
            return 0
        try:
            first = manifests[-1].epoch + 1 if manifests else 1
            return self._fleet.call(container, Scrub(first, committed)).segments
        except CorruptionError as error:
            self._brain.history.corrupt(error)
            self._brain.tell(ev.CheckpointWanted(error.what))
            raise
