"""The driver's part in eventual checkpoints: what they are refused for, and what containers wrote of an epoch on its
way into the commit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.driver.options import Options
from holdfast.errors import PlanError
from holdfast.invariants import some
from holdfast.log.footprints import Footprints, Wrote
from holdfast.log.ledger import Ledger

if TYPE_CHECKING:
    from holdfast.spark.stream import JobPlan

_SAFE = "Nothing was started."


class Written:
    """What containers have written of the epoch in flight. The commit has it of each slice's owner."""

    def __init__(self, footprints: Footprints | None) -> None:
        self.footprints = footprints
        """As the last commit left them; None: the log has no units."""
        self._lock = threading.Lock()
        self._wrote: dict[int, dict[tuple[str, int, str], Wrote]] = {}  # epoch → (stage, slice, container)

    def take(self, epoch: int, container: str, wrote: Wrote | None) -> None:
        if wrote is None:
            return
        with self._lock:
            of = self._wrote.setdefault(epoch, {})
            for stage, slices in wrote.told.items():
                of |= {(stage, number, container): wrote for number, _, _ in slices}

    def named(self, epoch: int, owners: Sequence[str | None]) -> tuple[Footprints | None, tuple[bytes, ...]]:
        """What the commit of the epoch says of units, and what is attached to it."""
        if self.footprints is None:
            return None, ()
        with self._lock:
            of = self._wrote.get(epoch, {})
            mine = sorted((stage, number) for stage, number, container in of if owners[number] == container)
            return self.footprints.after(epoch, [(*key, of[*key, str(owners[key[1]])]) for key in mine])

    def committed(self, epoch: int, footprints: Footprints | None) -> None:
        with self._lock:
            self.footprints = footprints
            self._wrote = {one: of for one, of in self._wrote.items() if one > epoch}


def written(ledger: Ledger, plan: JobPlan, options: Options, slices: int) -> Written:
    """As the store left it."""
    commit, graph = ledger.last_committed(), ledger.graph()
    if options.terms().checks is None:
        return Written(None)
    if commit is None:
        return Written(Footprints.begin([stage.name for stage in plan.stages], slices))
    if graph is not None and graph.units and graph.epoch == commit.fence.epoch:
        return Written(Footprints.above(graph))
    return Written(some(commit.footprints, "the log has units"))


def logged(ledger: Ledger) -> bool | None:
    """Whether the log has units of the state as of the last commit; None: nothing was committed yet."""
    commit, graph = ledger.last_committed(), ledger.graph()
    if commit is None:
        return None
    if graph is not None and graph.manifest is not None and graph.epoch == commit.fence.epoch:
        return bool(graph.units)  # what its commit says was before
    return commit.footprints is not None


def refuse(plan: JobPlan, options: Options) -> None:
    """What eventual checkpoints cannot do, before anything is started."""
    if options.terms().checks is None:
        return
    for stage in plan.stages:
        if (why := stage.operator.undivided) is not None:
            raise PlanError(
                f"safety=hf.Eventual(…) does not fit stage '{stage.name}' ({stage.operator.label}): {why}.",
                safe=_SAFE,
                todo="Change the stage, or use another safety for the job.",
            )
    if options.ring:
        raise PlanError(
            "safety=hf.Eventual(…) is for jobs by themselves, without a ring: hubs and ring=True have other policies.",
            safe=_SAFE,
            todo="Leave ring= out, or use hf.Delta or hf.Shards.",
        )


def not_under_eventual(what: str, options: Options) -> None:
    """Refuses what a job that runs so cannot do yet."""
    if options.terms().checks is not None:
        raise PlanError(
            f"{what} is not there under safety=hf.Eventual(…).",
            safe="The job goes on as it was.",
            todo="Use hf.Delta for jobs that are changed or forked.",
        )
