"""A hub: many jobs over the same sources, in one run, each by its name (ELF 2.1, 3.1).

A hub is a job whose stages and sinks carry the names of the jobs that drew them (``promotion/top``). Rows of a source
are read once for all of them, equal stages of several jobs are one stage, and jobs read each other's stages as streams.
Jobs come, go and change while it runs (``hub_run``).

What a job calls a stage and what the store calls it may differ: of equal stages the store has one, by the name of the
job that drew it first, and keeps that when this job goes; and no name in a store is ever given to another stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from pyspark.sql import DataFrame, SparkSession

from holdfast.api.apart import Apart
from holdfast.api.hub_job import HubJob, now_of, stages_of
from holdfast.api.job import Job
from holdfast.api.keyed import StageStream
from holdfast.api.recalled import HubUpdates, Record
from holdfast.api.stream import Stream
from holdfast.driver.live_job import SECTION
from holdfast.errors import PlanError
from holdfast.log.graphs import Graphs
from holdfast.log.ledger import Ledger
from holdfast.log.past import Names, Past
from holdfast.log.store import Store
from holdfast.plan.compile import Notes, Plan, PlannedStage
from holdfast.plan.graph import Node, Sink, Stage, outputs
from holdfast.spark.hub_stream import HubPlan
from holdfast.spark.stream import JobPlan
from holdfast.spark.twins import Twins

if TYPE_CHECKING:
    from holdfast.api.hub_run import HubRun
    from holdfast.driver.live_job import LiveJob
    from holdfast.driver.snapshots import Snapshot

_JOB = re.compile(r"[\w.-]+")


class Hub(Job):
    """Sources, and the jobs that read them. ``store`` is a folder of this hub alone, as a job's is.

    ``hub.read`` takes sources in, ``hub.job(name)`` gives a job to draw on them, ``hub.start`` runs all of them.
    """

    def __init__(self, name: str, spark: SparkSession, *, store: Any) -> None:
        super().__init__(name, spark, store=store)
        self._jobs: dict[str, HubJob] = {}
        self._later: dict[str, HubJob] = {}
        """Drawn while the hub runs, and not part of it yet."""
        self._planned_of: dict[Stage, PlannedStage] = {}
        self._twins = Twins()
        self._updates: HubUpdates = HubUpdates(self)
        self._run: HubRun | None = None

    def read(  # type: ignore[override]
        self, df: DataFrame, name: str | None = None, *, time: str | None = None, lateness: str | None = None
    ) -> None:
        """Take a streaming DataFrame in, for every job, under a ``name``. All its columns are read, for jobs that may
        come: narrow it with ``df.select`` before."""
        if name is None:
            raise PlanError("A source of a hub needs a name.", todo="hub.read(df, name='clicks').")
        if self._running:
            raise PlanError(
                f"Hub '{self.name}' runs: what it reads is what it was started with.",
                safe="It goes on as it was.",
                todo="Stop it, read the further source, start it again.",
            )
        super().read(df, name, time=time, lateness=lateness)

    def stream(self, name: str, **_: Any) -> NoReturn:
        raise PlanError(
            f"Hub '{self.name}' cannot read stream '{name}' of another job yet: a hub reads DataFrames alone.",
            safe="Nothing was started.",
            todo="Read it by a job (hf.Job.stream); or, if its rows never change, by "
            "hub.read(spark.readStream.format('holdfast').option('stream', …).option('store', …).load(), …).",
        )

    def job(self, name: str, *, creator: str = "") -> HubJob:
        """A job to be drawn on this hub's sources. ``creator`` says whose it is.

        While the hub runs the job becomes part of it by ``run.add(job)``.
        """
        if not isinstance(name, str) or not _JOB.fullmatch(name):
            raise PlanError(f"{name!r} cannot be a job's name.", todo="Use letters, digits, _, - and dots.")
        if name in self._jobs:
            raise PlanError(
                f"Hub '{self.name}' has a job '{name}' already.",
                safe="Nothing was changed.",
                todo="Give this one another name" + (", or remove that one." if self._running else "."),
            )
        made = HubJob(self, name, creator)
        (self._later if self._running else self._jobs)[name] = made
        return made

    def start(self, *, updates: Literal["keep", "drop"] | None = None, **options: Any) -> HubRun:
        """Start all jobs, or go on where they were: with what ``Job.start`` takes. Its containers always form a ring.

        What was changed while the hub ran last time (``run.add``, ``run.remove``, ``run.update``) is changed again, and
        ``run.status().events`` say so. ``updates="drop"`` starts with what the program draws. If the program draws a
        changed stage otherwise than it did then, only one of the two can be meant, and the start is refused until it is
        said: ``"keep"`` the changes, or ``"drop"`` them.
        """
        for given, why in (
            ("ring", "A hub's containers always form a ring."),
            ("live_filters", "A hub's filters can always be changed."),
        ):
            if options.pop(given, True) is not True:
                raise PlanError(why, safe="Nothing was started.", todo=f"Leave {given}= out.")
        self._refuse_unheard()
        return super().start(ring=True, updates=updates, **options)  # type: ignore[return-value]

    def _refuse_unheard(self) -> None:
        """It has every change in it that its last run began: also one that no epoch came to have."""
        graph = Ledger(Store(self.store), SECTION).graph() if self._run is not None else None
        if self._run is not None and self._run._live.changes.version > (graph.version if graph else 0):
            raise PlanError(
                f"The last change of hub '{self.name}' never came into force: its run ended before an epoch had it.",
                safe="Nothing was started; the store is as it was before that change.",
                todo="Draw a new hf.Hub and start that; then change it again.",
            )

    def _run_of(self, live: LiveJob) -> HubRun:
        from holdfast.api.hub_run import HubRun

        self._run = HubRun(self, live)
        return self._run

    @property
    def _running(self) -> bool:
        return self._run is not None and not self._run.stopped

    # --- what was drawn -----------------------------------------------------------------------------------

    def plan(self) -> HubPlan:
        return self._plan_of(self._jobs, self._updates.made)

    def _plan_of(
        self,
        jobs: Mapping[str, HubJob],
        updates: Sequence[Mapping[str, Any]],
        instead: Mapping[Stage, PlannedStage] | None = None,
    ) -> HubPlan:
        """``instead``: stages as they are to be."""
        stages = self._needed(jobs.values())
        sinks = [sink for job in jobs.values() for sink in job._sinks]
        if not stages:
            raise PlanError(
                f"No job of hub '{self.name}' keeps state.",
                safe="Nothing was started.",
                todo="Draw one: hub.job('totals').stream('clicks').key_by(…).agg(…).",
            )
        notes = Notes({name: node.name for name, node in stages_of(jobs).items()}, tuple(updates))
        planned_of = {**self._planned_of, **(instead or {})}
        planned = tuple(planned_of[stage] for stage in stages)
        plan = HubPlan(planned, tuple(sinks), self.spark, sources=tuple(self._sources), noted=notes).in_order()
        self._refuse_shared_folders(plan)
        return plan

    def _needed(self, jobs: Iterable[HubJob]) -> list[Stage]:
        """The stages that these jobs call theirs, and all below them, each after those that it reads."""
        found: dict[Stage, None] = {}

        def need(stage: Stage) -> None:
            if stage not in found:
                for below in self._below(stage):
                    need(below)
                found[stage] = None

        for job in jobs:
            for stage in [*job._called.values(), *(leaf.stage for sink in job._sinks for leaf in outputs(sink.node))]:
                need(stage)
        return list(found)

    def _below(self, stage: Stage) -> list[Stage]:
        planned = self._planned_of[stage]
        found = [leaf.stage for item in planned.inputs for leaf in outputs(item.node)]
        peers = planned.plan.peers  # by name: most have none
        return found + [node for node, one in self._planned_of.items() if one.plan.name in peers] if peers else found

    def _readers_of(self, gone: HubJob) -> dict[str, str]:
        """The jobs that read a stage which only that job calls its own, each with the stage."""
        others = [job for job in self._jobs.values() if job is not gone]
        kept = {stage for job in others for stage in job._called.values()}
        found: dict[str, str] = {}
        for job in others:
            lent = [stage for stage in self._needed([job]) if stage in gone._called.values() and stage not in kept]
            if lent:
                found[job.name] = lent[0].name
        return found

    def _drop_later(self, stages: Iterable[Stage]) -> None:
        """Jobs that are drawn and not added yet, and stand on one of these stages, must be drawn again: it is gone, or
        another by now."""
        gone = set(stages)
        self._later = {name: job for name, job in self._later.items() if gone.isdisjoint(self._needed([job]))}

    def _forget_unneeded(self) -> None:
        """Of stages that no job calls its own, or reads, nothing is kept."""
        needed = set(self._needed([*self._jobs.values(), *self._later.values()]))
        for stage in [stage for stage in self._planned_of if stage not in needed]:
            self._twins.forget(stage)
            self._twins.forget_rows(stage)
            del self._planned_of[stage]

    # --- what is changed while it runs --------------------------------------------------------------------

    def _changeable(self, stage: StageStream | str, running: JobPlan) -> tuple[str, PlannedStage]:
        """A stage of one job, by what the job calls it."""
        called = stages_of(self._jobs)
        if isinstance(stage, StageStream):
            now, job = now_of(stage), f"{stage._job.name}/"
            mine = [name for name, node in called.items() if node is now and name.startswith(job)]
            public = mine[0] if mine else stage.name
        else:
            public = stage
        if public not in called:
            raise PlanError(
                f"There is no stage '{public}'.",
                safe="Nothing was changed.",
                todo=f"The stages of this run are: {', '.join(called)}.",
            )
        return public, self._planned_of[called[public]]

    def _apart(self, public: str, node: Stage) -> Apart | None:
        """A stage that another job has, too, or the job by two names."""
        shared = any(other is node and name != public for name, other in stages_of(self._jobs).items())
        return Apart(self, public, node) if shared else None

    def _plan_with(self, made: PlannedStage, running: JobPlan, updates: Sequence[Record]) -> HubPlan:
        return self._plan_of(self._jobs, updates, {made.node: made})

    def _take_change(self, made: PlannedStage, *, other: bool = True) -> None:
        self._planned_of[made.node] = made
        if other:
            self._drop_later([made.node])
            self._twins.forget(made.node)  # an equal one of before is equal no more

    def _leaf_frames(self, node: Node) -> dict[Node, DataFrame]:
        return self._twins.leaf_frames(node)

    def _noted_updates(self) -> Sequence[Record]:
        return self._stored.notes()[1]

    # --- names --------------------------------------------------------------------------------------------

    @cached_property
    def _stored(self) -> Graphs:
        """What the store has of this hub, when it is first asked."""
        return Ledger(Store(self.store), SECTION).graphs()

    @cached_property
    def _names(self) -> dict[str, str]:
        """What the store calls stages by the names that jobs have for them."""
        return dict(self._stored.notes()[0])

    @cached_property
    def _ever(self) -> Names:
        """Every name that the store has ever had for a stage, or is to have for one that is drawn."""
        return Past.of(self._stored).names

    def _fork(self, snapshot: Snapshot | str) -> None:
        """The store was empty when the jobs were drawn, and has the names of the hub that it was forked from now."""
        super()._fork(snapshot)
        drawn = {name: node.name for name, node in stages_of(self._jobs).items()}
        for cached in ("_stored", "_names", "_ever"):
            self.__dict__.pop(cached, None)
        self._ever = self._ever.with_names(drawn.values())
        if other := [name for name, stored in drawn.items() if self._names.get(name, stored) != stored]:
            raise PlanError(
                f"Stage '{other[0]}' has another name in the store that was forked: it was removed and came back.",
                safe=f"The fork is whole, in {self.store}, and nothing runs in it.",
                todo="Draw the hub anew, over that store, and start it: it goes on from the snapshot.",
            )

    def _stored_name(self, name: str) -> str:
        """What the store calls a stage that a job calls so: as it did before, or by a name that no stage has had."""
        if name in self._names:
            return self._names[name]
        free = self._ever.free(name)
        self._ever = self._ever.with_names([free])
        return free

    def _stage_names(self, plan: Plan) -> dict[str, str]:
        there = {stage.name for stage in plan.stages}
        return {name: node.name for name, node in stages_of(self._jobs).items() if node.name in there}

    def _stage(self, job: str, name: str) -> PlannedStage | None:
        found = self._jobs.get(job) or self._later.get(job)
        return None if found is None else found._stage_called(name)

    def _owns(self, stream: Stream) -> bool:
        return stream._job in self._jobs.values()

    def _name_of(self, stream: StageStream) -> str:
        return now_of(stream).name

    # --- a hub draws nothing itself -----------------------------------------------------------------------

    def _draft(self, *given: Any, **named: Any) -> Any:
        raise self._no_job()

    def _add_sink(self, sink: Sink) -> None:
        raise self._no_job()

    def sql(self, text: str, name: str | None = None, *, dialect: str = "spark") -> Stream:
        raise self._no_job()

    def _no_job(self) -> PlanError:
        return PlanError(
            "A hub draws nothing itself: its jobs do.",
            safe="Nothing was changed.",
            todo="job = hub.job('name'), then job.stream('clicks'), or job.sql(…).",
        )
