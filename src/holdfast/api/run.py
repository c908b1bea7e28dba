"""A running job: wait for it, look at it, read its state, scale it, stop it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.api.asked import RunQuestions
from holdfast.api.keyed import StageStream
from holdfast.api.rows import Rows
from holdfast.api.state import State
from holdfast.api.status import SECTION as SECTION  # it is asked for here
from holdfast.api.status import JobStatus, SnapshotStatus, Status, StreamStatus, status_of
from holdfast.api.updating import update
from holdfast.api.vertices import Vertices
from holdfast.api.vertices import start as start_vertices
from holdfast.driver import named_streams, snapshots
from holdfast.driver.live_changes import Update
from holdfast.driver.live_job import LiveJob
from holdfast.driver.snapshots import Snapshot
from holdfast.errors import ContainerError, HoldfastError, PlanError
from holdfast.log.past import Past
from holdfast.master import events as ev
from holdfast.ring.vertex import Vertex
from holdfast.ring.vertex_messages import AppName
from holdfast.spark.query import interruptible
from holdfast.wire.questions import AskStatus, HostedStatus, SetThreads

if TYPE_CHECKING:
    from holdfast.api.job import Job
    from holdfast.spark.stream import JobPlan

END_SECONDS = 30.0  # of Spark's query, once it was told to end
LOG = logging.getLogger("holdfast")


@dataclass(frozen=True)
class Change:
    """A change of a running job's graph: what, since which version of it, by whom and when it was asked for."""

    version: int
    text: str
    by: str
    at: datetime


class Run:
    """What ``job.start`` returns. Also a context manager: leaving it stops the job."""

    def __init__(self, job: Job, live: LiveJob) -> None:
        self.job = job
        self._live = live
        self._ledger, self._file = live.ledger, live.file
        self._shell, self._fleet, self._jobs = live.shell, live.fleet, live.jobs
        self._applications: dict[AppName, Vertices] = {}
        self._changing = threading.Lock()
        live.desk.table.add(RunQuestions(self))
        for line in job._updates.told:
            live.shell.history.note("changed", line)
        for line in job._from_others:
            live.shell.history.note("stream", line)

    @property
    def _plan(self) -> JobPlan:
        """As it is now."""
        return self._live.plan

    @property
    def stopped(self) -> bool:
        """Whether it is over, by ``stop`` or by an error."""
        return self._live.stopping or self._shell.error is not None

    @property
    def query(self) -> StreamingQuery | None:
        """Spark's own streaming query."""
        return self._live.query

    # --- wait and stop ------------------------------------------------------------------------------------

    def process_all_available(self) -> None:
        """Return when everything that the sources have now is in a committed epoch."""
        self._live.process_all_available()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the query ends: by itself (``availableNow``), by ``stop``, or by an error, which is raised.

        Ctrl-C ends the waiting with ``KeyboardInterrupt``, and only that: the run goes on until it is stopped.
        """
        return self._live.await_termination(timeout)

    def stop(self, patience: float = 10.0) -> None:
        """Let the epoch in flight end, then stop the query and end every container.

        An epoch that takes longer than ``patience`` seconds from now is given up: what Spark runs for it is cancelled,
        and the next start does it again, from its ``prepare`` on if it has one. A sink's own function is not
        interrupted outside of Spark's jobs; its end is waited for.

        Called by a sink, it returns at once: the epoch goes on to its commit, and the run ends behind it.
        """
        self._live.stop(patience)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.stop()
        except HoldfastError as further:
            if error is None or isinstance(error, GeneratorExit):
                raise
            LOG.warning("while the run was stopped because of another error: %s", further)

    def __reduce__(self) -> tuple[object, ...]:
        raise PlanError(
            "A run cannot be sent to where functions run: it lives in the driver.",
            safe="Nothing was changed.",
            todo="Let the function put out a row that says what is wanted, and act on it in a sink or in the driver: "
            "run.stop() may be called there.",
        )

    # --- change while it runs -----------------------------------------------------------------------------

    def scale(
        self,
        containers: int | None = None,
        *,
        threads: int | None = None,
        container: str | None = None,
    ) -> None:
        """Have so many containers, or so many threads in each (or in one ``container``), while the job runs.

        Returns at once for containers: slices move behind the epochs, and ``await_settled`` waits for them. Threads
        have changed when it returns.
        """
        self._live.refuse_stopped()
        if containers is None and threads is None:
            raise PlanError("scale needs containers=… or threads=….", safe="Nothing was changed.")
        if (containers is not None and containers < 1) or (threads is not None and threads < 1):
            raise PlanError("There must be at least one container and one thread.", safe="Nothing was changed.")
        if containers is not None:
            self._shell.tell(ev.ScaleWanted(containers))
        if threads is not None:
            self._scale_threads(threads, container)

    def move(self, slices: Iterable[int], to: str) -> None:
        """Have these slices on that container, while the job runs. ``await_settled`` waits for it."""
        self._live.refuse_stopped()
        wanted = frozenset(slices)
        wrong = sorted(number for number in wanted if not 0 <= number < self._file.slices)
        if wrong:
            raise PlanError(
                f"There are no slices {wrong[:5]}: the job has {self._file.slices}, from 0.", safe="Nothing was moved."
            )
        if to not in self._fleet.alive():
            raise ContainerError(
                f"There is no living container '{to}'.",
                safe="Nothing was moved.",
                todo=f"Those alive are: {', '.join(self._fleet.alive())}.",
            )
        self._shell.tell(ev.MoveWanted(wanted, to))

    def await_settled(self, timeout: float = 600.0) -> bool:
        """Wait until nothing recovers, moves, comes or leaves and every copy is where it shall be; whether it is so.

        Ends of containers that have come by now, by ``kill`` or otherwise, count: their recovery is waited for.
        """
        self._live.refuse_stopped()
        deadline = time.monotonic() + timeout
        with interruptible():
            settled = (
                self._fleet.await_reports(timeout)
                and self._shell.drained(max(deadline - time.monotonic(), 0.0))
                and self._shell.wait_for(lambda: self._shell.machine.settled, max(deadline - time.monotonic(), 0.0))
            )
        self._live.refuse_stopped()
        return settled

    def kill(self, name: str) -> None:
        """Kill a container, as a drill: with SIGKILL, telling nobody. ``await_settled`` awaits its recovery too."""
        self._live.refuse_stopped()
        self._fleet.kill(name)

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
        Of a job, where rows come from a source, that needs ``start(live_filters=True)``.
        ``function``: what ``process`` calls, with the same states. ``parameters``: what that finds as
        ``context.parameters``. ``k``: how many rows ``top_k`` shows, fewer than until now; those behind them are taken
        back. ``reset``, beside one of these or alone: the epoch begins with the stage emptied, and whoever follows its
        changes sees all of it taken back. Returns when that is certain, whatever dies then.
        """
        self._live.changes.refuse_inside()
        given = {"where": where, "function": function, "parameters": parameters, "k": k}
        with self._changing:
            return update(self, stage, given, reset=reset)

    def history(self) -> list[Change]:
        """What was changed of it while it ran, the oldest first, also in earlier runs: the last 100 changes."""
        with self._jobs.log.ledger_lock:
            past = Past.of(self._ledger.graphs())
        return [
            Change(one.version, one.text, one.by, datetime.fromtimestamp(one.at / 1000, UTC)) for one in past.changes
        ]

    def vertices(self, vertex: type[Vertex], name: str, *, creator: str = "", **arguments: Any) -> Vertices:
        """Run a program of your own beside the job: a vertex of this class, called with the arguments, on every
        container, those that come later too. Its root is the container nearest to the hash of name and creator.

        It stands outside the log: messages come at most once, and what a vertex knows is gone with its container. The
        job needs a ring: ``start(ring=True)``, a hub, or ``safety=hf.Shards(…)``.
        """
        return start_vertices(self, vertex, name, creator, arguments)

    # --- snapshots ----------------------------------------------------------------------------------------

    def snapshot(self, timeout: float = 60.0, *, keep: str | None = None) -> Snapshot:
        """Keep a committed epoch, all of its state and its place in the sources, for ``job.start(fork=…)``.

        Epochs go on meanwhile. It is of the newest epoch when this is called, or of a later one. It stays until
        ``run.forget`` lets it go, or for the time that ``keep`` says ("7 days"). If no checkpoint is complete within
        ``timeout`` seconds it is given up, and that is raised.
        """
        return snapshots.take(self._live, timeout, keep)

    def snapshots(self) -> list[Snapshot]:
        """Those that the store holds, the oldest first; also of earlier runs."""
        return snapshots.every(self._live)

    def forget(self, what: Snapshot | int | str) -> None:
        """Let a snapshot go, or (by its name) a reader of a stream that the job has named.

        Jobs that were forked from the snapshot have all that they need in stores of their own. A reader that is let go
        holds no blocks any more, and its name is free; one that is alive takes it up again with its next batch.
        """
        if isinstance(what, str):
            named_streams.forget(self._live, what)
        else:
            snapshots.forget(self._live, what)

    # --- look and read ------------------------------------------------------------------------------------

    def state(self, stream: StageStream | str) -> State:
        """The live state of a stage, by its stream or its name, as of a committed epoch."""
        names = self.job._stage_names(self._plan)
        there = f"The stages of this run are: {', '.join(names)}."
        if isinstance(stream, str):
            if stream not in names:
                raise PlanError(f"There is no stage '{stream}'.", safe="Reading changes nothing.", todo=there)
            return State(self, names[stream])
        if not isinstance(stream, StageStream) or not self.job._owns(stream):
            raise PlanError(
                f"run.state takes a stream of this job that keeps state, not {stream!r}.",
                safe="Reading changes nothing.",
                todo=f"Pass what agg(...) or another such verb returned. {there}",
            )
        name = self.job._name_of(stream)
        if name not in names.values():
            raise PlanError(
                f"Stage '{stream.name}' was drawn when this run had started, and is not part of it.",
                safe="The run goes on as it was started.",
                todo=f"Stop the run and start the job again to have it. {there}",
            )
        return State(self, name)

    def sql(self, text: str) -> Rows:
        """Ask the live state in SQL: every stage is a table, and all rows are of one committed epoch.

        It means what Spark SQL means; ``EXPLAIN SELECT …`` says who would answer. It waits for slices that are being
        brought back.
        """
        return self._answer(text, "run.sql", self.job._stage_names(self._plan))

    def scrub(self) -> int:
        """Read back the log above the newest checkpoint, every byte of it; checkpoint at once if something is wrong."""
        return self._shell.scrub()

    def status(self) -> Status:
        """How the job is at this moment."""
        answers = {} if self._live.stopped else self._fleet.call_all(AskStatus(), timeout=5.0)
        return status_of(
            self.job.name,
            self._plan,
            self._shell,
            self._fleet.all(),
            answers,
            self._jobs.preaggregation.on,
            self._live.scaling.advice,
            safety=self._live.safety,
            security=self._live.security,
            progress=self._told_progress(),
            stopped=self.stopped,
            jobs=self._job_statuses(answers),
            snapshots=[] if self.stopped else self._snapshot_statuses(),
            streams=[] if self.stopped else self._stream_statuses(),
        )

    # --- within -------------------------------------------------------------------------------------------

    def _asked(self, job: str, text: str) -> Rows:
        """A question from another process, to one job of a hub if it says which."""
        if job:
            raise PlanError(
                f"There is no job '{job}' to ask: '{self.job.name}' is one job, and no hub.",
                safe="Reading changes nothing.",
                todo="Ask without naming a job.",
            )
        return self.sql(text)

    def _answer(self, text: str, call: str, stages: Mapping[str, str], whose: str = "") -> Rows:
        from holdfast.api.sql.needs import sqlglot_is_there

        sqlglot_is_there()
        from holdfast.api.sql.live import Asking, answer

        return answer(self, text, Asking(call, stages, whose))

    def _left_out(self, stage: str) -> bool:
        """Whether the stage goes along without rows, because its job has raised."""
        return False

    def _job_statuses(self, answers: Mapping[str, HostedStatus]) -> list[JobStatus]:
        """Of the jobs of a hub."""
        return []

    def _snapshot_statuses(self) -> list[SnapshotStatus]:
        return [SnapshotStatus(str(one.number), sum(one.epochs.values())) for one in snapshots.every(self._live)]

    def _stream_statuses(self) -> list[StreamStatus]:
        return [StreamStatus(one.name, one.blocks, one.backlog, one.held_by) for one in named_streams.every(self._live)]

    def _scale_threads(self, threads: int, container: str | None) -> None:
        if container is not None and container not in self._fleet.alive():
            raise ContainerError(f"There is no living container '{container}'.", safe="Nothing was changed.")
        began = time.monotonic()
        if container is not None:
            self._fleet.call(container, SetThreads(threads))
        else:
            launcher = self._fleet.launcher
            launcher.settings = replace(launcher.settings, threads=threads)  # those that come later too
            self._fleet.call_all(SetThreads(threads), timeout=None)
        where = container or "every container"
        self._shell.history.note("threads", f"{threads} threads in {where}", seconds=time.monotonic() - began)

    def _told_progress(self) -> Any:
        """What Spark last told of the query; None once there is nobody to ask."""
        try:
            return None if self._live.stopped else self._live._recent_progress()
        except (Py4JError, OSError):
            return None
