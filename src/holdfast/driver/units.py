"""The driver's part in eventual checkpoints: what they are refused for, and what containers wrote of an epoch on its
way into the commit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.driver.options import Options
from holdfast.errors import PlanError
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
    commit = ledger.last_committed()
    if options.terms().checks is None:
        return Written(None)
    return Written(commit.footprints if commit else Footprints.begin([stage.name for stage in plan.stages], slices))


def refuse(ledger: Ledger, plan: JobPlan, options: Options, *, changed: bool) -> None:
    """What eventual checkpoints cannot do, before anything is started."""
    commit = ledger.last_committed()
    before = commit is not None and commit.footprints is not None
    eventual = options.terms().checks is not None
    if commit is not None and before != eventual:
        raise PlanError(
            "This job's log has units of its state, which only safety=hf.Eventual(…) goes on with."
            if before
            else "safety=hf.Eventual(…) needs the units of the state in the log from the first epoch on, and this job "
            "has run without.",
            safe=_SAFE,
            todo="Start it with safety=hf.Eventual()." if before else "Use the safety that it had, or a new store.",
        )
    if not eventual:
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
    if changed:
        raise PlanError(
            "This job is not what it was, and under safety=hf.Eventual(…) a job cannot be changed yet.",
            safe=_SAFE,
            todo="Start it as it was, or with a new store.",
        )


def not_under_eventual(what: str, options: Options) -> None:
    """Refuses what a job that runs so cannot do yet."""
    if options.terms().checks is not None:
        raise PlanError(
            f"{what} is not there under safety=hf.Eventual(…).",
            safe="The job goes on as it was.",
            todo="Use hf.Delta for jobs that are changed or forked.",
        )
