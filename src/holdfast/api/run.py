"""A running job: wait for it, look at it, read its state, scale it, stop it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.api.keyed import StageStream
from holdfast.api.state import State
from holdfast.api.status import Status, status_of
from holdfast.errors import ContainerError, HoldfastError, PlanError, StoreError
from holdfast.invariants import Impossible
from holdfast.log.ledger import Ledger
from holdfast.log.records import JobFile
from holdfast.master import events as ev
from holdfast.master.autoscaling import Autoscale, PerExecutor
from holdfast.spark import tokens
from holdfast.spark.desk import Desk
from holdfast.spark.epoch import EpochJobs
from holdfast.spark.fleet import Fleet
from holdfast.spark.observing import observed
from holdfast.spark.scaling import Scaling
from holdfast.spark.scan import groups_to_wire
from holdfast.spark.shell import Shell, Stopping

if TYPE_CHECKING:
    from holdfast.api.job import Job
    from holdfast.plan.compile import JobPlan

SECTION = "main"
Method = Literal["reconstruct", "stop-and-copy"]
ThreadMethod = Literal["table", "repartition"]


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
        self._stopped = threading.Lock()
        self._is_stopped = False
        self._query_id = ""
        self._query_started = threading.Event()  # Spark may be in the first batch before it has told us of the query
        self._trigger = dict(trigger)
        self._scaling = Scaling(autoscale, self._trigger, self._recent_progress, fleet.launcher.executors, shell)

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
        self.query = writer.start()
        self._query_started.set()

    # --- wait and stop ------------------------------------------------------------------------------------

    def process_all_available(self) -> None:
        """Return when everything that the sources have now is in a committed epoch."""
        self._following(self._query.processAllAvailable)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the query ends, by itself (``availableNow``) or by an error, which is raised."""

        def wait() -> bool:
            if timeout is None:
                self._query.awaitTermination()
                return True
            return bool(self._query.awaitTermination(timeout))  # type: ignore[arg-type]  # it takes fractions too

        return bool(self._following(wait))

    def stop(self, patience: float = 10.0) -> None:
        """Let the epoch in flight end, then stop the query and end every container.

        An epoch that takes longer than ``patience`` seconds from now is given up: what Spark runs for it is cancelled,
        and the next start does it again, from its ``prepare`` on if it has one. A sink's own function is not
        interrupted outside of Spark's jobs; its end is waited for.
        """
        with self._stopped:
            if self._is_stopped:
                return
            # In this order, and each whatever becomes of the others.
            with contextlib.ExitStack() as steps:
                steps.callback(tokens.forget, self._file.job_id, self._shell.incarnation)
                for sink in self._jobs.sinks.values():
                    steps.callback(sink.close)
                steps.callback(self._shell.close)
                steps.callback(self._desk.close)
                steps.callback(self._fleet.close)
                if self.query is not None:
                    steps.callback(self.query.stop)
                self._shell.stop(patience)
            self._is_stopped = True

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- change while it runs -----------------------------------------------------------------------------

    def scale(
        self,
        containers: int | None = None,
        *,
        threads: int | None = None,
        container: str | None = None,
        method: Method | ThreadMethod | None = None,
    ) -> None:
        """Have so many containers, or so many threads in each (or in one ``container``), while the job runs.

        Returns at once for containers: slices move behind the epochs, and ``await_settled`` waits for them. Threads
        have changed when it returns. ``method="stop-and-copy"`` (containers) and ``"repartition"`` (threads) are how
        others do it, for comparison: no epoch runs meanwhile.
        """
        self._refuse_stopped()
        if containers is None and threads is None:
            raise PlanError("scale needs containers=… or threads=….", safe="Nothing was changed.")
        if (containers is not None and containers < 1) or (threads is not None and threads < 1):
            raise PlanError("There must be at least one container and one thread.", safe="Nothing was changed.")
        if containers is not None:
            self._shell.tell(ev.ScaleWanted(containers, stopping=method == "stop-and-copy"))
        if threads is not None:
            self._scale_threads(threads, container, repartition=method == "repartition")

    def move(self, slices: Iterable[int], to: str, *, method: Method = "reconstruct") -> None:
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
        self._shell.tell(ev.MoveWanted(wanted, to, stopping=method == "stop-and-copy"))

    def await_settled(self, timeout: float = 600.0) -> bool:
        """Wait until nothing recovers, moves, comes or leaves and every copy is where it shall be; whether it is so."""
        self._shell.drained()
        settled = self._shell.wait_for(lambda: self._shell.machine.settled, timeout)
        self._raise_error()
        return settled

    def kill(self, name: str) -> None:
        """Kill a container, as a drill: with SIGKILL, and without telling anybody."""
        self._fleet.kill(name)

    # --- look and read ------------------------------------------------------------------------------------

    def state(self, stream: StageStream) -> State:
        """The live state behind a stage's stream, as of a committed epoch."""
        if not isinstance(stream, StageStream) or stream._job is not self.job:
            raise HoldfastError(
                "run.state takes a stream of this job that keeps state.", todo="Pass what agg(...) returned."
            )
        return State(self, stream.name)

    def scrub(self) -> int:
        """Read back the log above the newest checkpoint, every byte of it; checkpoint at once if something is wrong."""
        return self._shell.scrub()

    def status(self) -> Status:
        """How the job is at this moment."""
        answers = {} if self._is_stopped else self._fleet.call_all("status", {}, timeout=5.0)
        return status_of(
            self.job.name,
            self._plan,
            self._shell,
            self._fleet.all(),
            answers,
            self._jobs.preaggregation.on,
            self._scaling.advice,
        )

    # --- within -------------------------------------------------------------------------------------------

    @property
    def _query(self) -> StreamingQuery:
        if self.query is None:
            raise Impossible("the query starts with the run")
        return self.query

    def _batch(self, batch_id: int) -> ev.Batch:
        """Which micro-batch this is, by Spark's own files: the query's id and the offsets written before it ran."""
        notes = self._shell.notes
        if not self._query_id:
            self._query_id = json.loads(notes.metadata())["id"]
        _version, _settings, *offsets = notes.offsets(batch_id).decode().splitlines()
        return ev.Batch(self._query_id, batch_id, " ".join(offsets))

    def _observed(self) -> dict[str, int]:
        self._query_started.wait()
        return observed(self._query)

    def _following(self, wait: Any) -> Any:
        try:
            result = wait()
        except StreamingQueryException:
            self._raise_error()
            if isinstance(self._shell.failure, HoldfastError):
                raise self._shell.failure from None
            if isinstance(self._shell.failure, Stopping):
                raise HoldfastError(
                    f"Job '{self.job.name}' was stopped before it was done.",
                    safe="Every committed epoch; the next start goes on after the last one.",
                ) from None
            raise
        self._raise_error()
        return result

    def _refuse_stopped(self) -> None:
        self._raise_error()
        if self._is_stopped:
            raise ContainerError("The run is stopped.", safe="The state is in the store.", todo="Start the job again.")

    def _scale_threads(self, threads: int, container: str | None, *, repartition: bool) -> None:
        if container is not None and container not in self._fleet.alive():
            raise ContainerError(f"There is no living container '{container}'.", safe="Nothing was changed.")
        began = time.monotonic()
        header = {"threads": threads, "repartition": repartition}
        with self._shell.between_epochs() if repartition else contextlib.nullcontext():
            if container is not None:
                self._fleet.call(container, "threads", header)
            else:
                launcher = self._fleet.launcher
                launcher.settings = replace(launcher.settings, threads=threads)  # those that come later too
                self._fleet.call_all("threads", header, timeout=None)
        where = container or "every container"
        self._shell.history.note("threads", f"{threads} threads in {where}", seconds=time.monotonic() - began)

    def _recent_progress(self) -> Any:
        return self.query.lastProgress if self.query is not None else None

    def _raise_error(self) -> None:
        if self._shell.error is not None:
            raise self._shell.error

    def _locate(self, header: dict[str, Any]) -> dict[str, Any]:
        groups = self._shell.located(header["slices"], header["epoch"], header["level"], header["mode"], 30.0)
        return {"groups": groups_to_wire(groups)}

    def _describe(self, header: dict[str, Any]) -> dict[str, Any]:
        """What a data source must know of a stage to read it."""
        name = header["stage"]
        if name not in [stage.name for stage in self._plan.stages]:
            raise StoreError(
                f"Job '{self.job.name}' has no stage '{name}'.",
                todo=f"Its stages are: {', '.join(stage.name for stage in self._plan.stages)}.",
            )
        epoch = self._shell.machine.committed
        if header["lease"]:
            self._fleet.call_all("pin", {"reader": uuid.uuid4().hex, "epoch": epoch})
        return {
            "job": self._file.job_id,
            "incarnation": self._shell.incarnation,
            "schema": self._plan.stage(name).state.json(),
            "epoch": epoch,
            "groups": groups_to_wire(self._shell.groups()),
        }
