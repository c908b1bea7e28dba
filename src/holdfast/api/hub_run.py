"""A hub that runs: jobs come, go and change, exactly from one epoch on (ELF 2.4).

A change is in force from the epoch that it says, for every row of it and of those after it, whatever dies: it is
written into the store, and named by that epoch's prepare, before the epoch is. See ``driver.live_changes``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.cloudpickle import cloudpickle

from holdfast.api import recalled
from holdfast.api.apart import Apart
from holdfast.api.hub import now_of, stages_of
from holdfast.api.keyed import StageStream
from holdfast.api.named import Named
from holdfast.api.rows import Rows
from holdfast.api.run import Run
from holdfast.api.states import compiled, parameters_text
from holdfast.api.status import JobStatus
from holdfast.driver.live_changes import Update
from holdfast.driver.live_job import LiveJob
from holdfast.errors import FunctionError, PlanError
from holdfast.log.past import Past
from holdfast.plan.graph import Stage
from holdfast.plan.updates import drawn_as, refuse_more, refuse_unemptied
from holdfast.spark.analysis import asking_spark
from holdfast.spark.stream import read_alone
from holdfast.wire.questions import HostedStatus

if TYPE_CHECKING:
    from holdfast.api.hub import Hub, HubJob


@dataclass(frozen=True)
class Change:
    """A change of a hub's graph: what, since which version of it, by whom and when it was asked for."""

    version: int
    text: str
    by: str
    at: datetime


class HubRun(Run):
    """What ``hub.start`` returns: a ``Run`` whose jobs can be changed."""

    def __init__(self, hub: Hub, live: LiveJob) -> None:
        super().__init__(hub, live)
        self.hub = hub
        self._changing = threading.Lock()
        self._raised: dict[str, str] = {}
        """Jobs that go along without rows, and why."""
        live.shell.go_on_without = self._go_on_without
        for job in self._jobs_with(live.jobs.log.left_out):
            self._raised[job] = "it raised in an earlier run"
        for line in hub._updates.told:
            live.shell.history.note("changed", line)

    # --- change while it runs -----------------------------------------------------------------------------

    def add(self, job: HubJob) -> Update:
        """Run this job too, from the next epoch on: its stages begin without rows, unless they are one with stages
        that are there. Returns when that is certain, whatever dies then.

        At the next start of the hub it is drawn again by itself if it was drawn by SQL alone; else the program has to.
        """
        hub = self.hub
        self._live.changes.refuse_inside()
        with self._changing:
            if job.hub is not hub or hub._later.get(job.name) is not job:
                raise PlanError(
                    f"run.add takes a job that was drawn since hub '{hub.name}' runs, and is not part of it yet; nor "
                    "may a stage that it stands on have been removed or changed meanwhile.",
                    safe="Nothing was changed.",
                    todo="job = hub.job('name'), draw it, run.add(job).",
                )
            if left := {node.name for node in hub._needed([job])}.intersection(self._live.jobs.log.left_out):
                raise PlanError(
                    f"Job '{job.name}' stands on '{min(left)}', which is left out: its job has raised.",
                    safe="Nothing was changed.",
                    todo=f"Mend it and run.resume({self._jobs_with(left)[0]!r}) first; or remove that job.",
                )
            record = recalled.added(job)
            made = hub._updates.following(record)
            update = self._change(hub._plan_of({**hub._jobs, job.name: job}, made), record)
            hub._jobs[job.name] = hub._later.pop(job.name)
            self._remember(made)
        return update

    def remove(self, job: HubJob | str) -> Update:
        """Have this job no more, from the next epoch on. Its stages go, and their state, unless other jobs have equal
        ones; refused while another job reads one of them."""
        hub = self.hub
        self._live.changes.refuse_inside()
        with self._changing:
            name = job if isinstance(job, str) else job.name
            gone = hub._jobs.get(name)
            if gone is None:
                raise PlanError(
                    f"Hub '{hub.name}' has no job '{name}'.",
                    safe="Nothing was changed.",
                    todo=f"Its jobs are: {', '.join(hub._jobs)}.",
                )
            if readers := hub._readers_of(gone):
                reader, stage = next(iter(readers.items()))
                raise PlanError(
                    f"Job '{reader}' reads '{stage}' of job '{name}'.",
                    safe="Nothing was changed.",
                    todo=f"Remove '{reader}' first.",
                )
            jobs = {other: one for other, one in hub._jobs.items() if other != name}
            record = recalled.removed(name)
            made = hub._updates.following(record)
            going = set(hub._needed(hub._jobs.values())) - set(hub._needed(jobs.values()))
            update = self._change(hub._plan_of(jobs, made), record)
            del hub._jobs[name]
            hub._drop_later(going)
            self._raised.pop(name, None)
            for called in gone._called:
                hub._names.pop(f"{name}/{called}", None)
            hub._forget_unneeded()
            self._remember(made)
        return update

    def update(
        self,
        stage: StageStream | str,
        *,
        where: str | None = None,
        function: Callable[..., Any] | type | None = None,
        parameters: Mapping[str, Any] | None = None,
        k: int | None = None,
        reset: bool = False,
    ) -> Update:
        """Replace one thing of a stage, from the next epoch on; its state stays.

        ``where``: the filter nearest in front of it, as SQL text over the columns there; if it has none, it gets one.
        ``function``: what ``process`` calls, with the same states. ``parameters``: what that finds as
        ``context.parameters``. ``k``: how many rows ``top_k`` shows, fewer than until now; those behind them are taken
        back. ``reset``, beside one of these or alone: the epoch begins with the stage emptied, and whoever follows its
        changes sees all of it taken back. Returns when that is certain, whatever dies then.
        """
        hub = self.hub
        self._live.changes.refuse_inside()
        with self._changing:
            public, node = self._found(stage)
            apart = Apart(hub, public, node) if self._shared(public, node) else None
            if apart is not None:
                node = apart.new
            planned = hub._planned_of[node] if apart is None else apart.planned
            given = {"where": where, "function": function, "parameters": parameters, "k": k}
            said = {what: value for what, value in given.items() if value is not None}
            if len(said) > 1 or not (said or reset):
                raise PlanError(
                    "run.update replaces one thing of a stage at a time.",
                    safe="Nothing was changed.",
                    todo="Give where=, function=, parameters= or k=; reset=True beside one of them, or alone.",
                )
            shown = replace(planned, plan=replace(planned.plan, name=public))  # as people know it
            if reset:
                refuse_unemptied(shown)
            text = {what: self._as_text(public, planned.plan.operator, what, value) for what, value in said.items()}
            was = hub._updates.was.get(public) or drawn_as(planned)
            record = recalled.updated(public, was, text, reset=reset)
            recalled.changed(shown, record)
            made = recalled.changed(planned, record)
            if k is not None and not reset:
                refuse_more(shown, k)
            for item in made.inputs:
                frames = hub._twins.leaf_frames(item.node)
                with asking_spark(next(iter(frames.values())), f"change of '{public}'"):
                    read_alone(item, frames)
            made.plan.build()
            updates = hub._updates.following(record)
            reset_of = [node.name] if reset else []
            if apart is not None:
                idle = [node.name] if public.partition("/")[0] in self._raised else []
                splits = {} if planned.plan.peers else {node.name: apart.old.name}  # a lookup holds nothing
                update = self._change(apart.plan(updates, made), record, reset_of, splits, idle)
                apart.take(made)
            else:
                update = self._change(hub._plan_of(hub._jobs, updates, {node: made}), record, reset_of)
            hub._planned_of[node] = made
            if said:
                hub._drop_later([node])
                hub._updates.was[public] = was
                hub._twins.forget(node)  # an equal one of before is equal no more
            self._remember(updates)
        return update

    def resume(self, job: HubJob | str) -> Update:
        """Let a job that raised have rows again, from the next epoch on. What came since it raised it has not had, and
        ``run.status().events`` keep the gap. Mend it first: ``run.update(stage, function=…)``."""
        hub, name = self.hub, job if isinstance(job, str) else job.name
        self._live.changes.refuse_inside()
        with self._changing:
            if name not in self._raised:
                raise PlanError(
                    f"Job '{name}' is not left out.",
                    safe="Nothing was changed.",
                    todo=f"Those that are: {', '.join(self._raised) or 'none'}.",
                )
            update = self._live.changes.go_on_with({node.name for node in hub._jobs[name]._called.values()})
            why = self._raised.pop(name)
            self._shell.history.note("resumed", f"job '{name}' has rows again from epoch {update.epoch} on: {why}")
        return update

    def _go_on_without(self, epoch: int, error: FunctionError) -> bool:
        """A stage raised: all jobs that call it theirs are left out of the epoch, and of those after it, until they are
        resumed. Their stages go along without rows, but for those that other jobs have too."""
        jobs = self._jobs_with([error.stage] if error.stage else [])
        if error.stage in self._live.jobs.log.left_out:
            return False
        if not jobs or len({*jobs, *self._raised}) == len(self.hub._jobs):
            return False  # nobody is left who could go on
        others = [job for name, job in self.hub._jobs.items() if name not in jobs and name not in self._raised]
        kept = {
            node.name for node in self.hub._needed(others)
        }  # what they read of it, too: it may be prepared for them
        gone = {node.name for name in jobs for node in self.hub._jobs[name]._called.values()} - kept
        text = f"{error.what.splitlines()[0]} (epoch {epoch})"
        if error.stage not in gone or not self._live.changes.go_on_without(epoch, gone, text):
            return False
        for name in jobs:
            self._raised[name] = text
            self._shell.history.note("left out", f"job '{name}' goes along without rows: {text}")
        return True

    def _jobs_with(self, stages: Iterable[str]) -> list[str]:
        wanted = set(stages)
        jobs = self.hub._jobs.values()
        return [job.name for job in jobs if wanted & {node.name for node in job._called.values()}]

    def history(self) -> list[Change]:
        """What was changed of this hub while it ran, the oldest first, also in earlier runs: the last 100 changes."""
        with self._jobs.log.ledger_lock:
            past = Past.of(self._ledger.graphs())
        return [
            Change(one.version, one.text, one.by, datetime.fromtimestamp(one.at / 1000, UTC)) for one in past.changes
        ]

    # --- look ---------------------------------------------------------------------------------------------

    def ask(self, job: HubJob | str, query: str) -> Rows:
        """Ask one job in SQL: its stages are the tables, by the names that it has for them, and all rows are of one
        committed epoch. As ``run.sql``, which reads the stages of all jobs, as ``"job/stage"``."""
        name = job if isinstance(job, str) else job.name
        asked = self.hub._jobs.get(name)
        if asked is None or (not isinstance(job, str) and job is not asked):
            raise PlanError(
                f"Hub '{self.hub.name}' runs no job '{name}'.",
                safe="Reading changes nothing.",
                todo=f"Its jobs are: {', '.join(self.hub._jobs)}."
                + (f" Have this one run first: run.add({name})." if name in self.hub._later else ""),
            )
        own = {called: node.name for called, node in asked._called.items()}
        return self._answer(query, "run.ask", own | {f"{name}/{called}": there for called, there in own.items()}, name)

    def _asked(self, job: str, text: str) -> Rows:
        return self.ask(job, text) if job else self.sql(text)

    @property
    def jobs(self) -> Named[JobStatus]:
        """The jobs of the hub: what each holds, and what the last epoch cost for it."""
        return self.status().jobs

    def _job_statuses(self, answers: Mapping[str, HostedStatus]) -> list[JobStatus]:
        machine, work = self._shell.machine, self._live.jobs.sizes.work
        parts = self._shell.last.parts
        found = []
        for job in list(self.hub._jobs.values()):
            stages = {node.name for node in job._called.values()}
            sizes = [answer.stages[name] for answer in answers.values() for name in stages if name in answer.stages]
            taken = [work.get(name, (0, 0.0)) for name in stages]
            sinks = sum(parts.get(f"sink {sink.name}", 0.0) for sink in job._sinks)
            found.append(
                JobStatus(
                    job.name,
                    machine.committed,
                    "stopped" if self.stopped else machine.phase,
                    rows=sum(rows for rows, _ in taken),
                    creator=job.creator,
                    stages=tuple(job._called),
                    keys=sum(size.rows for size in sizes),
                    bytes=sum(size.nbytes for size in sizes),
                    seconds=sinks + sum(seconds for _, seconds in taken),
                    error=self._raised.get(job.name),
                )
            )
        return found

    # --- within -------------------------------------------------------------------------------------------

    def _change(
        self,
        plan: Any,
        record: recalled.Record,
        reset: Sequence[str] = (),
        splits: Mapping[str, str] = MappingProxyType({}),
        idle: Sequence[str] = (),
    ) -> Update:
        told = [recalled.text_of(record)]
        return self._live.changes.change(plan, told, record["by"], reset, splits, idle)

    def _remember(self, made: tuple[recalled.Record, ...]) -> None:
        self.hub._updates.made = made

    def _found(self, stage: StageStream | str) -> tuple[str, Stage]:
        """A stage of one job, by what the job calls it."""
        called = stages_of(self.hub._jobs)
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
        return public, called[public]

    def _shared(self, public: str, node: Stage) -> bool:
        """Whether another job has it, too; a job may also call it by two names."""
        return any(other is node and name != public for name, other in stages_of(self.hub._jobs).items())

    def _as_text(self, public: str, spec: Any, what: str, value: Any) -> Any:
        if what == "k":
            return value
        if what == "parameters":
            return parameters_text(value)
        if what == "where":
            if not isinstance(value, str):
                raise PlanError(
                    f"A filter that is changed while a job runs is SQL text, not {value!r}.",
                    safe="Nothing was changed.",
                    todo="Write where=\"price > 10 AND country = 'NZ'\": the store keeps it, for the next start.",
                )
            return value
        named = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
        if cloudpickle._should_pickle_by_reference(named):  # type: ignore[no-untyped-call]
            raise PlanError(
                f"{named.__qualname__} is in module '{named.__module__}', and only its name would reach containers: "
                "they would go on with the code that they have.",
                safe="Nothing was changed.",
                todo=f"pyspark.cloudpickle.register_pickle_by_value({named.__module__}), then update again.",
            )
        pickled, states = compiled(value, None)
        if states and states != getattr(spec, "states", states):
            raise PlanError(
                f"The function for '{public}' declares other states than the one that is there.",
                safe="Nothing was changed.",
                todo="Declare the same ones; or stop the hub, change the program, and start it.",
            )
        return recalled.as_function(pickled)
