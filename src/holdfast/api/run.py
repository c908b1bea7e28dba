"""A running job: wait for it, look at it, read its state, scale it, stop it."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.api.keyed import StageStream
from holdfast.api.state import State
from holdfast.api.status import SECTION as SECTION  # it is asked for here
from holdfast.api.status import Status, status_of
from holdfast.driver.autoscaler import Scaling
from holdfast.driver.endpoint import Desk
from holdfast.driver.epochs import EpochJobs
from holdfast.driver.loop import Shell, Stopping
from holdfast.errors import ContainerError, FencedError, HoldfastError, PlanError, SparkError
from holdfast.interpreter import until_exit
from holdfast.invariants import some
from holdfast.launch.fleet import Fleet
from holdfast.log.ledger import Ledger
from holdfast.log.records import Batch, JobFile
from holdfast.master import events as ev
from holdfast.master.autoscale import Autoscale, PerExecutor
from holdfast.spark.query import Waiter, interruptible, is_gone
from holdfast.spark.words import spark_failed
from holdfast.wire import tokens
from holdfast.wire.questions import AskStatus, SetThreads

if TYPE_CHECKING:
    from holdfast.api.job import Job
    from holdfast.spark.stream import JobPlan

END_SECONDS = 30.0  # of Spark's query, once it was told to end
LOG = logging.getLogger("holdfast")


class Run:
    """What ``job.start`` returns. Also a context manager: leaving it stops the job."""

    def __init__(
        self,
        job: Job,
        plan: JobPlan,
        ledger: Ledger,
        shell: Shell,
        fleet: Fleet,
        desk: Desk,
        jobs: EpochJobs,
        file: JobFile,
        trigger: Mapping[str, Any],
        autoscale: Autoscale | PerExecutor | None,
        safety: str = "",
    ) -> None:
        self.job = job
        self.query: StreamingQuery | None = None
        self._plan = plan
        self._ledger = ledger
        self._shell = shell
        self._fleet = fleet
        self._desk = desk
        self._jobs = jobs
        self._file = file
        self._safety = safety
        self._stopped = threading.RLock()  # a signal's handler may stop a run that is being stopped
        self._is_stopping = False
        self._is_stopped = False
        self._termination: Waiter | None = None
        self._waiters: list[Waiter] = []
        self._query_id = ""
        self._trigger = dict(trigger)
        self._scaling = Scaling(autoscale, self._trigger, self._recent_progress, fleet.launcher.executors, shell)
        shell.on_error = self._end_query
        shell.look = self._session_gone

    # --- start --------------------------------------------------------------------------------------------

    def _start_query(self) -> None:
        checkpoint = f"{self._ledger.section.uri}/{self._ledger.spark}"

        def on_batch(frame: DataFrame, batch_id: int) -> None:
            self._shell.offer(frame, self._batch(batch_id))

        writer = (
            self._plan.stream()
            .writeStream.queryName(self.job.name)
            .option("checkpointLocation", checkpoint)
            .foreachBatch(on_batch)
        )
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        query = self.query = writer.start()
        self._termination = Waiter(query.awaitTermination, "holdfast-query")
        self._jobs.query.started(query)
        if self._shell.error is not None:
            self._end_query()

    # --- wait and stop ------------------------------------------------------------------------------------

    def process_all_available(self) -> None:
        """Return when everything that the sources have now is in a committed epoch."""
        waiter = Waiter(self._query.processAllAvailable, "holdfast-waits")
        self._waiters = [one for one in self._waiters if not one.over] + [waiter]
        waiter.wait()
        self._raise_error_of(waiter, done=False)
        if self._is_stopping:
            raise self._stopped_early()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the query ends: by itself (``availableNow``), by ``stop``, or by an error, which is raised.

        Ctrl-C ends the waiting with ``KeyboardInterrupt``, and only that: the run goes on until it is stopped.
        """
        termination = some(self._termination, "the query starts with the run")
        if not termination.wait(timeout):
            self._raise_error()
            return False
        self._raise_error_of(termination, done=not self._trigger.keys() & {"availableNow", "once"})
        return True

    def stop(self, patience: float = 10.0) -> None:
        """Let the epoch in flight end, then stop the query and end every container.

        An epoch that takes longer than ``patience`` seconds from now is given up: what Spark runs for it is cancelled,
        and the next start does it again, from its ``prepare`` on if it has one. A sink's own function is not
        interrupted outside of Spark's jobs; its end is waited for.

        Called by a sink, it returns at once: the epoch goes on to its commit, and the run ends behind it.
        """
        if self._shell.inside:
            self._shell.begin_no_other()
            later = until_exit(lambda: self.stop(threading.TIMEOUT_MAX))
            threading.Thread(target=later, daemon=True, name="holdfast-stop").start()
            return
        gone = None if self._is_stopped else self._session_gone() or self._shell.error
        try:
            self._shell.stop(patience)
        finally:  # also when that was interrupted: then the epoch in flight is not waited for
            self._close()
        if isinstance(gone, SparkError):
            raise gone

    def _close(self) -> None:
        with self._stopped:
            if self._is_stopping:
                return
            self._is_stopping = True
            try:
                # In this order, and each whatever becomes of the others.
                with contextlib.ExitStack() as steps:
                    steps.callback(tokens.forget, self._file.job_id, self._shell.incarnation)
                    for sink in self._jobs.sinks.values():
                        steps.callback(sink.close)
                    steps.callback(self._shell.close)
                    steps.callback(self._jobs.routes.close)
                    steps.callback(self._desk.close)
                    steps.callback(self._fleet.close)
                    steps.callback(self._stop_query)
            finally:
                self._is_stopped = True

    def _stop_query(self) -> None:
        if self.query is None:
            return
        try:
            self.query.stop()
        except Exception:
            if not is_gone(self.job.spark):
                raise
        for waiter in filter(None, [self._termination, *self._waiters]):
            waiter.join(END_SECONDS)

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
        self._refuse_stopped()
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
        self._refuse_stopped()
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
        self._refuse_stopped()
        deadline = time.monotonic() + timeout
        with interruptible():
            settled = (
                self._fleet.await_reports(timeout)
                and self._shell.drained(max(deadline - time.monotonic(), 0.0))
                and self._shell.wait_for(lambda: self._shell.machine.settled, max(deadline - time.monotonic(), 0.0))
            )
        self._refuse_stopped()
        return settled

    def kill(self, name: str) -> None:
        """Kill a container, as a drill: with SIGKILL, telling nobody. ``await_settled`` awaits its recovery too."""
        self._refuse_stopped()
        self._fleet.kill(name)

    # --- look and read ------------------------------------------------------------------------------------

    def state(self, stream: StageStream) -> State:
        """The live state behind a stage's stream, as of a committed epoch."""
        names = [stage.name for stage in self._plan.stages]
        there = f"The stages of this run are: {', '.join(names)}."
        if not isinstance(stream, StageStream) or stream._job is not self.job:
            raise PlanError(
                f"run.state takes a stream of this job that keeps state, not {stream!r}.",
                safe="Reading changes nothing.",
                todo=f"Pass what agg(...) or another such verb returned. {there}",
            )
        if stream.name not in names:
            raise PlanError(
                f"Stage '{stream.name}' was drawn when this run had started, and is not part of it.",
                safe="The run goes on as it was started.",
                todo=f"Stop the run and start the job again to have it. {there}",
            )
        return State(self, stream.name)

    def scrub(self) -> int:
        """Read back the log above the newest checkpoint, every byte of it; checkpoint at once if something is wrong."""
        return self._shell.scrub()

    def status(self) -> Status:
        """How the job is at this moment."""
        answers = {} if self._is_stopped else self._fleet.call_all(AskStatus(), timeout=5.0)
        return status_of(
            self.job.name,
            self._plan,
            self._shell,
            self._fleet.all(),
            answers,
            self._jobs.preaggregation.on,
            self._scaling.advice,
            safety=self._safety,
            progress=self._told_progress(),
            stopped=self._is_stopping or self._shell.error is not None,
        )

    # --- within -------------------------------------------------------------------------------------------

    @property
    def _query(self) -> StreamingQuery:
        return some(self.query, "the query starts with the run")

    def _batch(self, batch_id: int) -> Batch:
        """Which micro-batch this is, by Spark's own files: the query's id and the offsets written before it ran."""
        notes = self._jobs.log.notes
        if not self._query_id:
            self._query_id = json.loads(notes.metadata())["id"]
        _version, _settings, *offsets = notes.offsets(batch_id).decode().splitlines()
        return Batch(self._query_id, batch_id, " ".join(offsets))

    def _raise_error_of(self, waiter: Waiter, *, done: bool) -> None:
        """What ended the query: our own error rather than Spark's words about it. ``done``: whoever stops the run does
        not keep it from anything that was waited for."""
        self._raise_error()
        if waiter.error is None:
            return
        if isinstance(self._shell.failure, HoldfastError):
            raise self._shell.failure from self._shell.failure.__cause__
        if isinstance(self._shell.failure, Stopping):
            if done:
                return
            raise self._stopped_early() from None
        failed = self._shell.failure or waiter.error
        raise self._session_gone() or spark_failed(failed, f"job '{self.job.name}' ran") from None

    def _stopped_early(self) -> HoldfastError:
        return HoldfastError(
            f"Job '{self.job.name}' was stopped before it was done.",
            safe="Every committed epoch; the next start goes on after the last one.",
        )

    def _session_gone(self) -> HoldfastError | None:
        """An error if Spark's session has ended under a query that had not."""
        over = self._termination is None or (self._termination.over and self._termination.error is None)
        if over or self._is_stopping or not is_gone(self.job.spark):
            return None
        return SparkError(
            f"Spark's session was stopped while job '{self.job.name}' ran in it.",
            safe="Every committed epoch; the next start of the job goes on after the last one.",
            todo="Call run.stop() before spark.stop().",
        )

    def _end_query(self) -> None:
        """The run is over by an error: whoever waits for the query shall hear of it, also on a quiet stream."""
        ending = until_exit(self._end_query_between_epochs)
        threading.Thread(target=ending, daemon=True, name="holdfast-end").start()

    def _end_query_between_epochs(self) -> None:
        with self._shell.between_epochs():
            pass  # a batch under way fails by itself; one that waits for its turn must get it, or the query never ends
        if self.query is not None:
            with contextlib.suppress(Exception):  # Spark's session is gone, and the query with it
                self.query.stop()

    def _refuse_stopped(self) -> None:
        self._raise_error()
        if self._is_stopping:
            raise ContainerError("The run is stopped.", safe="The state is in the store.", todo="Start the job again.")

    def _refuse_stale(self) -> None:
        """What was read now would be of no use: a run that is over has no state, and a replaced one an old one."""
        if self._is_stopping or isinstance(self._shell.error, FencedError):
            self._refuse_stopped()

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

    def _recent_progress(self) -> Any:
        return self.query.lastProgress if self.query is not None else None

    def _told_progress(self) -> Any:
        """What Spark last told of the query; None once there is nobody to ask."""
        try:
            return None if self._is_stopped else self._recent_progress()
        except (Py4JError, OSError):
            return None

    def _raise_error(self) -> None:
        if self._shell.error is not None:
            raise self._shell.error
