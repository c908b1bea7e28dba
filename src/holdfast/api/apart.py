"""A stage of one job that was one with other jobs', on its own: as a hub would be that had drawn it apart.

The job's sinks and stages over it go over to the new one: at the epoch at which they do, both hold the same. What other
jobs draw on the old one stays there. That must be what the same program makes of it at the next start, where the two
are known by their names in the store: so whoever reads the stage by the name that another job has for it is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from holdfast.errors import PlanError
from holdfast.plan.compile import PlannedStage
from holdfast.plan.graph import Sink, Stage
from holdfast.plan.splitting import Instead
from holdfast.spark.hub_stream import HubPlan

if TYPE_CHECKING:
    from holdfast.api.hub import Hub
    from holdfast.api.hub_job import HubJob
    from holdfast.api.recalled import Record


class Apart:
    def __init__(self, hub: Hub, public: str, old: Stage) -> None:
        self._hub = hub
        job, _, self._called = public.partition("/")
        self._job: HubJob = hub._jobs[job]
        self.public, self.old = public, old
        self._refuse_named()
        self.new = Stage(hub._ever.free(public), old.inputs)
        instead = Instead(old, self.new)
        self.planned = instead.beside(hub._planned_of[old])
        """The stage as it is, by another name."""
        direct = [node for node in self._job._called.values() if node is not old and self._reads(node, [old])]
        self._refuse_shared(direct)
        # Who reads the old one by its name, and what is over the new one beside it, goes on with both.
        moved = [node for node in self._above(direct) if node in direct or not self._reads(node, [old])]
        self._moved = {node: instead.reader(hub._planned_of[node]) for node in moved}
        self._direct = direct
        self._sinks: list[Sink] = [instead.sink(sink) for sink in self._job._sinks]

    def plan(self, updates: Iterable[Record], changed: PlannedStage) -> HubPlan:
        """The plan of the hub with the stage apart, and ``changed``."""
        hub = copy.copy(self._hub)
        hub._planned_of = self._all(changed)
        job = copy.copy(self._job)
        job._called, job._sinks = self._names, self._sinks
        hub._jobs = {**self._hub._jobs, job.name: job}
        return hub._plan_of(hub._jobs, tuple(updates))

    def take(self, changed: PlannedStage) -> None:
        """So the hub has it from now on."""
        hub, job = self._hub, self._job
        hub._twins.as_rows_of(self.old, self.new)
        hub._drop_later([self.old, *self._moved])
        for node in self._direct:
            hub._twins.forget(node)
        hub._planned_of = self._all(changed)
        job._called, job._sinks = self._names, self._sinks
        job._now[self.old] = self.new
        hub._names[self.public] = self.new.name
        hub._ever = hub._ever.with_names([self.new.name])

    def _all(self, changed: PlannedStage) -> dict[Stage, PlannedStage]:
        return {**self._hub._planned_of, self.new: changed, **self._moved}

    @property
    def _names(self) -> dict[str, Stage]:
        return {**self._job._called, self._called: self.new}

    # --- who reads it -------------------------------------------------------------------------------------

    def _reads(self, node: Stage, below: Iterable[Stage]) -> bool:
        wanted = list(below)
        return any(one is stage for one in self._hub._below(node) for stage in wanted)

    def _above(self, direct: Iterable[Stage]) -> list[Stage]:
        """Those that read it, and all over them: they may follow its watermark."""
        found: list[Stage] = list(direct)
        for node in self._hub._needed(self._hub._jobs.values()):  # each after those that it reads
            if node not in found and self._reads(node, found):
                found.append(node)
                if self._reads(node, [self.old]) and self._goes_by(self._hub._planned_of[node]):
                    raise PlanError(
                        f"Stage '{self.public}' is one with another job's, and '{node.name}' goes by the watermarks of "
                        "both.",
                        safe="Nothing was changed.",
                        todo="Add a job with a stage of its own that is as you want it, and remove this one.",
                    )
        return found

    def _goes_by(self, planned: PlannedStage) -> bool:
        """Whether its time, or that of somebody over it, may be the old stage's."""
        bounded = {one.stage for of in planned.bounds.values() for bounds in of.values() for one in bounds}
        return self.old.name in {*planned.plan.time.follows, *bounded}

    def _refuse_named(self) -> None:
        """Who has asked for it by another name than the job that it is split off for has for it."""
        for name, node in self._job._called.items():
            if node is self.old and name != self._called:
                raise PlanError(
                    f"Stage '{self.public}' is one with another job's, and also '{self._job.name}/{name}': by which of "
                    "the two names the job goes on with it cannot be told.",
                    safe="Nothing was changed.",
                    todo="Add a job with a stage of its own that is as you want it, and remove this one.",
                )
        called: Mapping[str, Stage] = {
            f"{job.name}/{name}": node for job in self._hub._jobs.values() for name, node in job._called.items()
        }
        for job in self._hub._jobs.values():
            for name in sorted(job._asked):
                if called.get(name) is self.old and (name == self.public or job is self._job):
                    raise PlanError(
                        f"Stage '{self.public}' is one with another job's, and job '{job.name}' reads it as '{name}': "
                        "it cannot go over to another stage while it runs.",
                        safe="Nothing was changed.",
                        todo=f"Remove '{job.name}', update, and add it again; or add a job with a stage of its own "
                        "that is as you want it.",
                    )

    def _refuse_shared(self, direct: Iterable[Stage]) -> None:
        for node in direct:
            mine = next(name for name, one in self._job._called.items() if one is node)
            for other in self._hub._jobs.values():
                shared = [name for name, one in other._called.items() if one is node]
                if other is not self._job and shared:
                    raise PlanError(
                        f"Stage '{self.public}' is one with another job's, and so is '{self._job.name}/{mine}', which "
                        f"reads it, with '{other.name}/{shared[0]}': it would have to be split off, too.",
                        safe="Nothing was changed.",
                        todo=f"Update '{self._job.name}/{mine}' first, by which it becomes a stage of its own; or add "
                        "a job that is as you want it, and remove this one.",
                    )
