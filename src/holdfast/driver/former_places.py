"""Stores from before there were passes over sources: in Spark's checkpoint each reader of a source has its own place.

An epoch that was prepared then is finished by readers as they were, and Spark's checkpoint moves to the new places
afterwards (``spark.rebase``). Where it cannot be moved, they stay for the life of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.driver.history import RunEvent
from holdfast.driver.live_job import LiveJob
from holdfast.log.ledger import Ledger
from holdfast.plan.fingerprint import Fingerprint

if TYPE_CHECKING:
    from holdfast.spark.stream import JobPlan

LOOK_SECONDS = 1.0
STOP_SECONDS = 180.0


def laid_out(plan: JobPlan, ledger: Ledger, start: Callable[[JobPlan], LiveJob]) -> tuple[JobPlan, Sequence[RunEvent]]:
    """The plan with sources at places that Spark's checkpoint of this store has or can be given, and what there is to
    be told of that."""
    file, graph = ledger.find_job(), ledger.graph()
    known = Fingerprint.from_dict(graph.graph if graph else file.graph if file else {}).sources
    if known == plan.fingerprint().sources:
        return plan, ()
    former = replace(plan, apart=True)
    before = former.fingerprint()
    if known != before.sources:
        return plan, ()  # it is another job by now: what is to be said of that comes later
    if before.shared:
        return former, ()
    commit, prepared = ledger.last_committed(), ledger.last_prepared()
    committed = commit.fence.epoch if commit else 0
    if prepared is not None and prepared[0] > committed:
        return plan, _finish(start(former), committed + 1)
    return plan, ()


def _finish(run: LiveJob, epoch: int) -> Sequence[RunEvent]:
    """Commit it, and end the run: what it had to tell of the store."""
    try:
        while not run.shell.wait_for(lambda: run.shell.machine.committed >= epoch, LOOK_SECONDS):
            if run.await_termination(0):
                break
        run.raise_error()
    finally:
        run.stop(STOP_SECONDS)
    return [event for event in run.shell.history.events if event.kind in ("changed", "mended", "warning")]
