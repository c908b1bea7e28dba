"""A job that runs, as the driver has it: Spark's query over it, what waits for that, and how all of it ends.

What a user sees of it is ``holdfast.api.run``.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.driver.autoscaler import Scaling
from holdfast.driver.endpoint import Desk
from holdfast.driver.epochs import EpochJobs
from holdfast.driver.loop import Shell, Stopping
from holdfast.errors import ContainerError, FencedError, HoldfastError, PlanError, SparkError, from_wire
from holdfast.interpreter import until_exit
from holdfast.launch.fleet import Fleet
from holdfast.log.ledger import Ledger
from holdfast.log.records import Batch, JobFile
from holdfast.log.snapshots import Snapshots
from holdfast.master.autoscale import Autoscale, PerExecutor
from holdfast.spark.query import Waiter, interruptible, is_gone
from holdfast.spark.words import spark_failed
from holdfast.wire import tokens
from holdfast.wire.locations import words

if TYPE_CHECKING:
    from holdfast.driver.live_changes import LiveChanges
    from holdfast.spark.stream import JobPlan

SECTION = "main"
LOOK_SECONDS = 1.0
END_SECONDS = 30.0  # of Spark's query, once it was told to end


class LiveJob:
    """What a start has put together, from the first batch to the last container's end."""

    def __init__(
        self,
        name: str,
        spark: SparkSession,
        plan: JobPlan,
        ledger: Ledger,
        shell: Shell,
        fleet: Fleet,
        desk: Desk,
        jobs: EpochJobs,
        file: JobFile,
        trigger: Mapping[str, Any],
        autoscale: Autoscale | PerExecutor | None,
        safety: str,
    ) -> None:
        self.name = name
        self.spark = spark
        self.query: StreamingQuery | None = None
        self.plan = plan
        self.ledger = ledger
        self.snapshots = Snapshots(ledger.store)
        self.shell = shell
        self.fleet = fleet
        self.desk = desk
        self.jobs = jobs
        self.file = file
        self.safety = safety
        """In words."""
        self.changes: LiveChanges
        """Set by whoever starts it, once there is all that a change touches."""
        self.stopping = False
        self.stopped = False
        self.draining = False
        """Without a query: what is taken in is read, and that is all."""
        self._ending = threading.RLock()  # a signal's handler may stop a run that is being stopped
        self._termination: Waiter | None = None
        self._waiters: list[Waiter] = []
        self._query_id = ""
        self._trigger = dict(trigger)
        self.scaling = Scaling(autoscale, self._trigger, self._recent_progress, fleet.launcher.executors, shell)
        shell.on_error = self._end_query
        shell.look = self._session_gone

    @property
    def security(self) -> str:
        """How its processes talk to each other, in words."""
        return words(self.desk.address.location)

    def start_query(self) -> None:
        checkpoint = f"{self.ledger.section.uri}/{self.ledger.spark}"

        def on_batch(frame: DataFrame, batch_id: int) -> None:
            self.shell.offer(frame, self._batch(batch_id))

        writer = (
            self.plan.stream()
            .writeStream.queryName(self.name)
            .option("checkpointLocation", checkpoint)
            .foreachBatch(on_batch)
        )
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        with self._guarding():
            query = self.query = writer.start()
        self._termination = Waiter(query.awaitTermination, "holdfast-query")
        self.jobs.query.started(query)
        if self.shell.error is not None or self.shell.epochs_failed is not None:
            self._end_query()

    @contextlib.contextmanager
    def _guarding(self) -> Iterator[None]:
        """The query takes the session's settings as they are when it starts. In a pass a condition is a column, and
        Spark would compute what several columns share ahead of all of them, also where a condition forbids it."""
        name, conf = "spark.sql.subexpressionElimination.enabled", self.spark.conf
        if not self.plan.passes:
            yield
            return
        before = conf.get(name)
        conf.set(name, "false")
        try:
            yield
        finally:
            conf.set(name, str(before))

    def process_all_available(self) -> None:
        """Return when everything that the sources have now is in a committed epoch."""
        self.refuse_inside("process_all_available")
        if self.query is not None:
            waiter = Waiter(self.query.processAllAvailable, "holdfast-waits")
            self._waiters = [one for one in self._waiters if not one.over] + [waiter]
            waiter.wait()
            self._raise_error_of(waiter, done=False)
        self._await_drained(None, self.shell.taken_in)  # and not what has come since: it might never be all
        if self.stopping:
            raise self._stopped_early()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the query ends: by itself (``availableNow``), by ``stop``, or by an error, which is raised."""
        self.refuse_inside("await_termination")
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._termination is not None:
            if not self._termination.wait(timeout):
                self.raise_error()
                return False
            self._raise_error_of(self._termination, done=not self._trigger.keys() & {"availableNow", "once"})
        return self._await_drained(deadline)

    def refuse_inside(self, what: str) -> None:
        if self.shell.inside:
            raise PlanError(
                f"run.{what}() in a sink would wait for the epoch, which waits for the sink.",
                safe="The sink's epoch is not committed; the next start gives it the same rows again.",
                todo="Call it in the program's own thread, or in one that the sink does not wait for.",
            )

    def _await_drained(self, deadline: float | None, number: int | None = None) -> bool:
        """Wait until all that is taken in is read too, or up to this block; errors of epochs are raised."""
        while True:
            left = LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, max(deadline - time.monotonic(), 0.0))
            with interruptible():
                done = self.shell.drained_in(left, number) or self.stopping
            self.raise_error()
            if self.shell.epochs_failed is not None and not self.stopping:
                raise self.shell.epochs_failed from self.shell.epochs_failed.__cause__
            if isinstance(self.shell.failure, HoldfastError) and not self.stopping:
                raise self.shell.failure from self.shell.failure.__cause__
            if done or (deadline is not None and time.monotonic() >= deadline):
                return done

    def stop(self, patience: float = 10.0) -> None:
        """Let the batch under way end and the epochs of what is taken in, then stop the query and every container."""
        if self.shell.inside:
            self.shell.begin_no_other()
            later = until_exit(lambda: self.stop(threading.TIMEOUT_MAX))
            threading.Thread(target=later, daemon=True, name="holdfast-stop").start()
            return
        gone = None if self.stopped else self._session_gone() or self.shell.error
        try:
            self.shell.stop(patience)
        finally:  # also when that was interrupted: then the epoch in flight is not waited for
            self._close()
        if isinstance(gone, SparkError):
            raise gone

    def _close(self) -> None:
        with self._ending:
            if self.stopping:
                return
            self.stopping = True
            try:
                # In this order, and each whatever becomes of the others.
                with contextlib.ExitStack() as steps:
                    steps.callback(tokens.forget, self.file.job_id, self.shell.incarnation)
                    for sink in self.jobs.sinks.values():
                        steps.callback(sink.close)
                    steps.callback(self.shell.close)
                    steps.callback(self.jobs.routes.close)
                    steps.callback(self.desk.close)
                    steps.callback(self.fleet.close)
                    steps.callback(self._stop_query)
            finally:
                self.stopped = True

    def _stop_query(self) -> None:
        if self.query is None:
            return
        try:
            self.query.stop()
        except Exception:
            if not is_gone(self.spark):
                raise
        for waiter in filter(None, [self._termination, *self._waiters]):
            waiter.join(END_SECONDS)

    def refuse_stopped(self) -> None:
        self.raise_error()
        if self.stopping:
            raise ContainerError("The run is stopped.", safe="The state is in the store.", todo="Start the job again.")

    def refuse_failed(self) -> None:
        """No epoch will come any more."""
        self.refuse_stopped()
        ended = self._termination
        if self.shell.epochs_failed is not None:
            raise self.shell.epochs_failed from self.shell.epochs_failed.__cause__
        if ended is not None and ended.over and ended.error is not None:
            self._raise_error_of(ended, done=False)

    def refuse_ending(self) -> None:
        """No epoch would come that has the change, and whoever ends the run must not wait for whoever waits for one."""
        self.refuse_failed()
        if self.shell.ending:
            raise ContainerError(
                "The run is being stopped, and no further epoch begins that could have the change.",
                safe="Nothing was changed.",
                todo="Start the job again, and change it then.",
            )

    def refuse_stale(self) -> None:
        """What was read now would be of no use: a run that is over has no state, and a replaced one an old one."""
        if self.stopping or isinstance(self.shell.error, FencedError):
            self.refuse_stopped()

    def raise_error(self) -> None:
        if self.shell.error is not None:
            raise self.shell.error

    def _raise_error_of(self, waiter: Waiter, *, done: bool) -> None:
        """What ended the query: our own error rather than Spark's words about it. ``done``: whoever stops the run does
        not keep it from anything that was waited for."""
        self.raise_error()
        if self.shell.epochs_failed is not None:
            raise self.shell.epochs_failed from self.shell.epochs_failed.__cause__
        if waiter.error is None:
            return
        if isinstance(self.shell.failure, HoldfastError):
            raise self.shell.failure from self.shell.failure.__cause__
        if isinstance(self.shell.failure, Stopping):
            if done:
                return
            raise self._stopped_early() from None
        failed = self.shell.failure or waiter.error
        known = from_wire(str(failed))  # a source of ours raised it, in a process of Spark's
        raise self._session_gone() or known or spark_failed(failed, f"job '{self.name}' ran") from None

    def _stopped_early(self) -> HoldfastError:
        return HoldfastError(
            f"Job '{self.name}' was stopped before it was done.",
            safe="Every committed epoch; the next start goes on after the last one.",
        )

    def _session_gone(self) -> HoldfastError | None:
        """An error if Spark's session has ended under a query that had not."""
        over = self._termination is None or (self._termination.over and self._termination.error is None)
        if over or self.stopping or not is_gone(self.spark):
            return None
        return SparkError(
            f"Spark's session was stopped while job '{self.name}' ran in it.",
            safe="Every committed epoch; the next start of the job goes on after the last one.",
            todo="Call run.stop() before spark.stop().",
        )

    def _end_query(self) -> None:
        """The run is over by an error: whoever waits for the query shall hear of it, also on a quiet stream."""
        ending = until_exit(self._end_query_between_epochs)
        threading.Thread(target=ending, daemon=True, name="holdfast-end").start()

    def _end_query_between_epochs(self) -> None:
        with self.shell.between_batches():
            pass  # a batch under way fails by itself; one that waits for its turn must get it, or the query never ends
        if self.query is not None:
            with contextlib.suppress(Exception):  # Spark's session is gone, and the query with it
                self.query.stop()

    def _batch(self, batch_id: int) -> Batch:
        """Which micro-batch this is, by Spark's own files: the query's id and the offsets written before it ran."""
        notes = self.jobs.log.notes
        if not self._query_id:
            self._query_id = json.loads(notes.metadata())["id"]
        _version, _settings, *offsets = notes.offsets(batch_id).decode().splitlines()
        return Batch(self._query_id, batch_id, " ".join(offsets))

    def _recent_progress(self) -> Any:
        return self.query.lastProgress if self.query is not None else None
