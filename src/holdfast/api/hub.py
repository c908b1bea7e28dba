"""A hub: many jobs over the same sources, in one run, each by its name (ELF 2.1, 3.1).

A hub is a job whose stages and sinks carry the names of the jobs that drew them (``promotion/top``). Rows of a source
are read once for all of them, equal stages of several jobs are one stage, and jobs read each other's stages as streams.
Jobs come, go and change while it runs (``hub_run``).

What a job calls a stage and what the store calls it may differ: of equal stages the store has one, by the name of the
job that drew it first, and keeps that when this job goes; and no name in a store is ever given to another stage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.api.drawing import Drawing
from holdfast.api.job import Job
from holdfast.api.keyed import StageStream
from holdfast.api.recalled import Updates
from holdfast.api.stream import Stream
from holdfast.driver.live_job import SECTION
from holdfast.errors import PlanError
from holdfast.log.graphs import Graphs
from holdfast.log.ledger import Ledger
from holdfast.log.past import Names, Past
from holdfast.log.store import Store
from holdfast.plan.compile import Notes, Plan, PlannedStage
from holdfast.plan.frames import Frame
from holdfast.plan.graph import Output, Sink, Stage, outputs
from holdfast.spark.hub_stream import HubPlan
from holdfast.spark.twins import Twins

if TYPE_CHECKING:
    from holdfast.api.hub_run import HubRun
    from holdfast.driver.live_job import LiveJob

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
        self._updates = Updates(self)
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

    def job(self, name: str, *, creator: str = "") -> HubJob:
        """A job to be drawn on this hub's sources. ``creator`` says whose it is.

        While the hub runs the job becomes part of it by ``run.add(job)``.
        """
        if not _JOB.fullmatch(name):
            raise PlanError(f"'{name}' cannot be a job's name.", todo="Use letters, digits, _, - and dots.")
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
        if options.pop("ring", True) is not True:
            raise PlanError(
                "A hub's containers always form a ring.", safe="Nothing was started.", todo="Leave ring= out."
            )
        self._updates.recall(updates)
        return super().start(ring=True, **options)  # type: ignore[return-value]

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


def stages_of(jobs: Mapping[str, HubJob]) -> dict[str, Stage]:
    """The stages of these jobs by what people call them."""
    return {f"{job.name}/{name}": node for job in jobs.values() for name, node in job._called.items()}


def now_of(stream: StageStream) -> Stage:
    """The stage, which may have been one with another job's when the stream was drawn."""
    stage, job = stream._stage, stream._job
    return job._now.get(stage, stage) if isinstance(job, HubJob) else stage


class HubJob(Drawing):
    """One job of a hub. It is drawn like any other; its streams begin with ``stream(name)``."""

    def __init__(self, hub: Hub, name: str, creator: str) -> None:
        super().__init__(name)
        self.hub, self.creator = hub, creator
        self.spark = hub.spark
        self._called: dict[str, Stage] = {}
        """Its stages by the names that it knows them by; some of them other jobs have drawn."""
        self._sources = hub._sources
        self._texts: list[dict[str, str | None]] = []
        """What it is, if it is drawn by text alone."""
        self._verbs = self._reading = False
        """Something was drawn otherwise, which only the program can draw again; a text is drawn just now."""
        self._asked: set[str] = set()
        self._now: dict[Stage, Stage] = {}
        """What it reads of other jobs, by their names for it; what has become of stages that were one with others'."""

    def stream(self, name: str) -> Stream:
        """A source of the hub, or a stage: of this job by its name, of another as ``"job/stage"``."""
        found = self._stream_called(name)
        if found is None:
            sources = ", ".join(source.name for source in self._sources) or "none"
            stages = ", ".join(stages_of(self.hub._jobs)) or "none"
            raise PlanError(
                f"There is no stream '{name}' in hub '{self.hub.name}'.",
                safe="Nothing was changed.",
                todo=f"Its sources are: {sources}; its stages: {stages}.",
            )
        return found[0]

    def sql(self, text: str, name: str | None = None, *, dialect: str = "spark") -> Stream:
        with self._by_text():
            stream = super().sql(text, name, dialect=dialect)
        self._texts.append({"text": text, "name": name, "dialect": dialect})
        return stream

    def plan(self) -> HubPlan:
        return self.hub.plan()

    @contextmanager
    def _by_text(self) -> Iterator[None]:
        self._reading = True
        try:
            yield
        finally:
            self._reading = False

    # --- names --------------------------------------------------------------------------------------------

    def _stream_called(self, name: str) -> tuple[Stream, Mapping[str, str]] | None:
        own = super()._stream_called(name)
        if own is not None:
            return own
        job, _, stage = name.partition("/" if "/" in name else ".")
        planned = self.hub._stage(job, stage) if stage else None
        if planned is not None:
            self._asked.add(f"{job}/{stage}")
            return self._stage_stream(planned), self._times_of(planned)
        known = self.hub._stream_called(name)
        return None if known is None else (Stream(self, known[0]._node, known[0]._frame), known[1])

    @property
    def _every_stage(self) -> Sequence[PlannedStage]:
        return list(self.hub._planned_of.values())

    def _stage_called(self, name: str) -> PlannedStage | None:
        node = self._called.get(name)
        return None if node is None else self.hub._planned_of[node]

    def _stored_name(self, name: str) -> str:
        return self.hub._stored_name(f"{self.name}/{name}")

    def _named_sink(self, sink: Sink) -> Sink:
        after = f"{self.name}/{sink.after}" if sink.after else ""
        feeds = f"{self.name}/{sink.feeds}" if sink.feeds else ""
        return replace(sink, name=f"{self.name}/{sink.name}", after=after, feeds=feeds)

    def _add_sink(self, sink: Sink) -> None:
        self._verbs = self._verbs or not self._reading
        super()._add_sink(sink)

    def _taken_in(self, name: str, planned: PlannedStage) -> PlannedStage:
        self._verbs = self._verbs or not self._reading
        hub, public = self.hub, f"{self.name}/{name}"
        known = hub._names.get(public)
        twin = hub._twins.of(planned, known)
        if public in hub._updates.stored:  # another may be as it is drawn, and not as it is
            hub._twins.keep_apart(twin)
        if twin is not planned.node:
            self._called[name] = twin
            if known is None:
                hub._ever = hub._ever.without(planned.plan.name)
            return hub._planned_of[twin]
        if any(one.plan.name == planned.plan.name for one in hub._planned_of.values()):
            raise PlanError(
                f"Stage '{public}' was one with '{planned.plan.name}' when this hub ran last, and is another now.",
                safe="Nothing was started.",
                todo="Give it another name, key_by(…, name='…'): it then starts empty. Or draw it as it was.",
            )
        hub._planned_of[planned.node] = planned
        self._called[name] = planned.node
        return planned

    def _looked_into(self, stream: StageStream) -> PlannedStage:
        now, job = now_of(stream), stream._job
        if isinstance(job, HubJob) and job is not self:
            self._asked.update(f"{job.name}/{name}" for name, node in job._called.items() if node is now)
        return self._planned(now)

    def _frame_of(self, output: Output, planned: PlannedStage) -> Any:
        make: Callable[[], Any] = lambda: super(HubJob, self)._frame_of(output, planned)  # noqa: E731
        return self.hub._twins.frame(output, make)

    # --- as its hub does ----------------------------------------------------------------------------------

    def _declared_source(self, name: str, ddl: str, format: str | None, options: Mapping[str, str]) -> Stream:
        raise PlanError(
            f"Stream '{name}' would be a source, and a hub's jobs read its sources.",
            safe="Nothing was started.",
            todo=f"hub.read(df, name='{name}'), before the hub is started.",
        )

    def _table_columns(self, name: str) -> list[str] | None:
        return self.hub._table_columns(name)

    @property
    def _default_format(self) -> str:
        return self.hub._default_format

    @property
    def _ansi(self) -> bool:
        return self.hub._ansi

    def _view(self, frame: Any) -> Frame:
        return self.hub._view(frame)

    def _empty(self, schema: StructType) -> DataFrame:
        return self.hub._empty(schema)
