"""A hub that runs: jobs come, go and change, exactly from one epoch on (ELF 2.4).

A change is in force from the epoch that it says, for every row of it and of those after it, whatever dies: it is
written into the store, and named by that epoch's prepare, before the epoch is. See ``driver.live_changes``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.api import recalled
from holdfast.api.named import Named
from holdfast.api.rows import Rows
from holdfast.api.run import Run
from holdfast.api.status import JobStatus
from holdfast.driver.live_changes import Update
from holdfast.driver.live_job import LiveJob
from holdfast.errors import FunctionError, PlanError
from holdfast.wire.questions import HostedStatus

if TYPE_CHECKING:
    from holdfast.api.hub import Hub
    from holdfast.api.hub_job import HubJob


def _name(job: HubJob | str) -> str:
    return job if isinstance(job, str) else getattr(job, "name", None) or repr(job)


class HubRun(Run):
    """What ``hub.start`` returns: a ``Run`` whose jobs can be changed."""

    def __init__(self, hub: Hub, live: LiveJob) -> None:
        super().__init__(hub, live)
        self.hub = hub
        self._raised: dict[str, str] = {}
        """Jobs that go along without rows, and why."""
        live.shell.go_on_without = self._go_on_without
        for job in self._jobs_with(live.jobs.log.left_out):
            self._raised[job] = "it raised in an earlier run"

    # --- change while it runs -----------------------------------------------------------------------------

    def add(self, job: HubJob) -> Update:
        """Run this job too, from the next epoch on: its stages begin without rows, unless they are one with stages
        that are there. Returns when that is certain, whatever dies then.

        At the next start of the hub it is drawn again by itself if it was drawn by SQL alone; else the program has to.
        """
        hub = self.hub
        self._live.changes.refuse_inside()
        with self._changing:
            if getattr(job, "hub", None) is not hub or hub._later.get(job.name) is not job:
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

            def taken() -> None:
                hub._jobs[job.name] = hub._later.pop(job.name)
                hub._updates.made = made

            return self._change(hub._plan_of({**hub._jobs, job.name: job}, made), record, taken)

    def remove(self, job: HubJob | str) -> Update:
        """Have this job no more, from the next epoch on. Its stages go, and their state, unless other jobs have equal
        ones; refused while another job reads one of them."""
        hub = self.hub
        self._live.changes.refuse_inside()
        with self._changing:
            name = _name(job)
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

            def taken() -> None:
                del hub._jobs[name]
                hub._drop_later(going)
                self._raised.pop(name, None)
                for called in gone._called:
                    hub._names.pop(f"{name}/{called}", None)
                hub._forget_unneeded()
                hub._updates.made = made

            return self._change(hub._plan_of(jobs, made), record, taken)

    def resume(self, job: HubJob | str) -> Update:
        """Let a job that raised have rows again, from the next epoch on. What came since it raised it has not had, and
        ``run.status().events`` keep the gap. Mend it first: ``run.update(stage, function=…)``."""
        hub, name = self.hub, _name(job)
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

    # --- look ---------------------------------------------------------------------------------------------

    def ask(self, job: HubJob | str, query: str) -> Rows:
        """Ask one job in SQL: its stages are the tables, by the names that it has for them, and all rows are of one
        committed epoch. As ``run.sql``, which reads the stages of all jobs, as ``"job/stage"``."""
        name = _name(job)
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

    def _change(self, plan: Any, record: recalled.Record, taken: Callable[[], None]) -> Update:
        return self._live.changes.change(plan, [recalled.text_of(record)], record["by"], taken=taken)

    def _left_out(self, stage: str) -> bool:
        return stage.partition("/")[0] in self._raised
