"""A running job: wait for it, look at it, read its state, stop it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.api.state import State
from holdfast.api.status import ContainerStatus, StageStatus, Status
from holdfast.api.stream import AggregatedStream
from holdfast.errors import ContainerError, CorruptionError, HoldfastError, StoreError
from holdfast.log.ledger import Ledger
from holdfast.log.records import JobFile
from holdfast.log.store import Store
from holdfast.master import messages as m
from holdfast.spark import tokens
from holdfast.spark.desk import Desk
from holdfast.spark.epoch import EpochJobs, Preaggregation
from holdfast.spark.fleet import Fleet
from holdfast.spark.hadoop import hadoop_creator
from holdfast.spark.launcher import ContainerSettings
from holdfast.spark.scan import groups_to_wire
from holdfast.spark.shell import Shell, Stopping
from holdfast.spark.sinks import FileSink, Sink, for_each_batch, open_sink

if TYPE_CHECKING:
    from holdfast.api.job import Job
    from holdfast.plan.compile import JobPlan
    from holdfast.plan.graph import Sink as SinkPlan

SECTION = "main"
READY_SECONDS = 180.0


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

    # --- start --------------------------------------------------------------------------------------------

    @classmethod
    def _start(cls, job: Job, plan: JobPlan, **options: Any) -> Run:
        spark = job.spark
        if any(query.name == job.name for query in spark.streams.active):
            raise StoreError(
                f"A query named '{job.name}' runs in this session already.",
                safe="It goes on undisturbed.",
                todo="Stop it first (run.stop()), or give this job another name and store.",
            )
        store = Store(job.store)
        if not store.is_local:
            store = Store(job.store, creator=hadoop_creator(spark, job.store))
        store.probe()
        ledger = Ledger(store, SECTION)
        wanted = JobFile(uuid.uuid4().hex, job.name, plan.fingerprint(), options["slices"], time.time_ns() // 1_000_000)
        file = ledger.open_or_create_job(wanted)
        sinks = {sink.name: _open(job, file, sink) for sink in plan.sinks}
        token = secrets.token_urlsafe(32)

        run: Run | None = None

        def the_run() -> Run:
            assert run is not None
            return run

        desk = Desk(
            options["listen"],
            token,
            {
                "locate": lambda header: the_run()._locate(header),
                "describe": lambda header: the_run()._describe(header),
            },
        )
        opened: list[Any] = [desk]
        try:
            owner = ledger.take_ownership(socket.gethostname(), os.getpid(), desk.address.location)
            shell = Shell(ledger, owner.incarnation, lambda: the_run()._fleet, {sink.name: sink for sink in plan.sinks})
            opened.append(shell)
            settings = ContainerSettings(token, options["listen"], options["threads"])
            host = {
                "job": file.job_id,
                "incarnation": owner.incarnation,
                "stages": [stage.to_dict() for stage in plan.stages],
                "slices": file.slices,
                "store": store.uri,
                "section": SECTION,
            }
            fleet = Fleet(settings, host, shell.lost)
            opened.append(fleet)
            push = options["push"]
            jobs = EpochJobs(
                plan=plan,
                store=ledger.section,
                job=file.job_id,
                incarnation=owner.incarnation,
                slices=file.slices,
                token=token,
                master=lambda: desk.address,
                groups=shell.groups,
                push=not store.is_local if push == "auto" else push,
                preaggregation=Preaggregation(options["preaggregate"]),
                sinks=sinks,
                collect=shell.collect,
                sizes=shell.size_of,
            )
            run = cls(job, plan, ledger, shell, fleet, desk, jobs, file)
            opened = [run]
            tokens.keep(file.job_id, owner.incarnation, token)
            run._begin(owner.incarnation, options)
        except BaseException:
            for thing in reversed(opened):
                thing.stop() if isinstance(thing, Run) else thing.close()
            raise
        return run

    def _begin(self, incarnation: int, options: dict[str, Any]) -> None:
        ledger, shell = self._ledger, self._shell
        commit = ledger.last_committed()
        committed = commit.fence.epoch if commit else 0
        prepared = []
        for level in range(1, self._plan.levels + 1):
            found = ledger.get_prepare(committed + 1, level)
            if found is None:
                break
            prepared.append(m.Prepared(level, found.fence, m.Batch(found.query_id, found.batch_id, found.offsets)))
        last = ledger.get_prepare(committed, 1) if committed else None
        if committed and last is None:
            raise CorruptionError(
                f"Epoch {committed} is committed, but its prepare is gone from {ledger.section.uri}.",
                safe="Nothing was changed.",
                todo="Bring the file back from a copy of the store.",
            )
        counters = last.sinks if last else {}
        self._check_sinks(counters, bool(prepared))
        manifests = ledger.manifests(shell._note_corrupt)
        routing = ledger.last_routing()
        shell.begin(
            m.Started(
                incarnation=incarnation,
                levels=self._plan.levels,
                sinks=tuple(sink.name for sink in self._plan.sinks),
                slices=self._file.slices,
                containers=options["containers"],
                checkpoint_every=options["checkpoint_every"],
                committed=committed,
                committed_batch=m.Batch(commit.query_id, commit.batch_id, commit.offsets) if commit else None,
                prepared=tuple(prepared),
                routing=m.Routing(routing.version, tuple(routing.owners)) if routing else None,
                checkpoint=manifests[-1].epoch if manifests else 0,
            ),
            self._jobs,
            counters,
            last.clock if last else 0,
        )
        if not committed and not prepared:
            # The first intake needs no container, so Spark may begin while they start.
            self._start_query(options["trigger"])
        if not shell.wait_for(lambda: shell.machine.gathered, READY_SECONDS):
            raise ContainerError(f"The containers of job '{self.job.name}' did not come up in {READY_SECONDS:.0f} s.")
        self._raise_error()
        if self.query is None:
            # State that cannot be brought back must be known before anything new is written.
            while not shell.wait_for(lambda: shell.machine.whole or shell.restore_failure is not None, 60):
                pass
            self._raise_error()
            if shell.restore_failure is not None:
                raise shell.restore_failure
            self._start_query(options["trigger"])

    def _check_sinks(self, counters: dict[str, int], prepared: bool) -> None:
        """Spark's file sink skips numbers that it has seen: a folder must be as far as this store says it is."""
        for name, sink in self._jobs.sinks.items():
            if not isinstance(sink, FileSink):
                continue
            expected = counters.get(name, -1)
            found = sink.newest()
            if found != expected and not (prepared and found == expected + 1):
                raise StoreError(
                    f"Sink '{name}' writes to {sink.path}, where {found + 1} epochs of it are, "
                    f"but this store knows of {expected + 1}.",
                    safe="Nothing was written.",
                    todo="Give the sink a folder of its own, or the folder and the name that it had with this store.",
                )

    def _start_query(self, trigger: dict[str, Any]) -> None:
        checkpoint = f"{self._ledger.section.uri}/spark"

        def on_batch(frame: DataFrame, batch_id: int) -> None:
            self._shell.offer(frame, self._batch(batch_id))

        writer = (
            self._plan.stream()
            .writeStream.queryName(self.job.name)
            .option("checkpointLocation", checkpoint)
            .foreachBatch(on_batch)
        )
        if trigger:
            writer = writer.trigger(**trigger)
        self.query = writer.start()

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

    def stop(self) -> None:
        """Let the epoch in flight end, then stop the query and end every container."""
        with self._stopped:
            if self._is_stopped:
                return
            # In this order, and each whatever becomes of the others.
            with contextlib.ExitStack() as steps:
                steps.callback(tokens.forget, self._file.job_id, self._shell.incarnation)
                for sink in self._jobs.sinks.values():
                    steps.callback(sink.close)
                steps.callback(self._shell.close)
                steps.callback(self._fleet.close)
                steps.callback(self._desk.close)
                if self.query is not None:
                    steps.callback(self.query.stop)
                self._shell.stop()
            self._is_stopped = True

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- look and read ------------------------------------------------------------------------------------

    def state(self, stream: AggregatedStream) -> State:
        """The live state behind a stage's stream, as of a committed epoch."""
        if not isinstance(stream, AggregatedStream) or stream._job is not self.job:
            raise HoldfastError(
                "run.state takes a stream of this job that keeps state.", todo="Pass what agg(...) returned."
            )
        return State(self, stream.name)

    def kill(self, name: str) -> None:
        """Kill a container, as a drill: with SIGKILL, and without telling anybody."""
        self._fleet.kill(name)

    def scrub(self) -> int:
        """Read back the log above the newest checkpoint, every byte of it; checkpoint at once if something is wrong."""
        return self._shell.scrub()

    def status(self) -> Status:
        shell = self._shell
        table = shell.machine.routing.table
        answers = {} if self._is_stopped else self._fleet.call_all("status", {}, timeout=5.0)
        containers = tuple(
            ContainerStatus(
                name,
                alive,
                table.count(name),
                0,
                answers.get(name, {}).get("threads", 0),
                pid,
                sum(stage["bytes"] for stage in answers.get(name, {}).get("stages", {}).values()),
            )
            for name, pid, alive in self._fleet.all()
        )
        stages = tuple(
            StageStatus(
                plan.name,
                sum(answer["stages"][plan.name]["rows"] for answer in answers.values()),
                sum(answer["stages"][plan.name]["bytes"] for answer in answers.values()),
            )
            for plan in self._plan.stages
        )
        return Status(
            job=self.job.name,
            epoch=shell.machine.committed,
            phase=shell.machine.phase,
            rows=shell.rows,
            epoch_rows=shell.last.rows,
            epoch_seconds=shell.last.seconds,
            epoch_parts=dict(shell.last.parts),
            containers=containers,
            stages=stages,
            events=tuple(shell.events),
            preaggregating=self._jobs.preaggregation.on,
        )

    # --- within -------------------------------------------------------------------------------------------

    @property
    def _query(self) -> StreamingQuery:
        assert self.query is not None, "the query starts with the run"
        return self.query

    def _batch(self, batch_id: int) -> m.Batch:
        """Which micro-batch this is, by Spark's own files: the query's id and the offsets written before it ran."""
        section = self._ledger.section
        if not self._query_id:
            self._query_id = json.loads(section.read("spark/metadata"))["id"]
        _version, _settings, *offsets = section.read(f"spark/offsets/{batch_id}").decode().splitlines()
        return m.Batch(self._query_id, batch_id, " ".join(offsets))

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

    def _raise_error(self) -> None:
        if self._shell.error is not None:
            raise self._shell.error

    def _locate(self, header: dict[str, Any]) -> dict[str, Any]:
        groups = self._shell.located(header["slices"], header["epoch"], header["level"], header["mode"], 30.0)
        return {"groups": groups_to_wire(groups)}

    def _describe(self, header: dict[str, Any]) -> dict[str, Any]:
        """What a data source must know of a stage to read it."""
        name = header["stage"]
        if name not in self._plan.schemas:
            raise StoreError(
                f"Job '{self.job.name}' has no stage '{name}'.",
                todo=f"Its stages are: {', '.join(self._plan.schemas)}.",
            )
        epoch = self._shell.machine.committed
        if header["lease"]:
            self._fleet.call_all("pin", {"reader": uuid.uuid4().hex, "epoch": epoch})
        return {
            "job": self._file.job_id,
            "incarnation": self._shell.incarnation,
            "schema": self._plan.schemas[name].json(),
            "epoch": epoch,
            "groups": groups_to_wire(self._shell.groups()),
        }


def _open(job: Job, file: JobFile, sink: SinkPlan) -> Sink:
    mode = "update" if sink.mode == "append" else sink.mode
    if sink.function is not None:
        return for_each_batch(sink.name, sink.function, mode)
    identity = f"{file.job_id}/{SECTION}/{sink.name}"
    return open_sink(job.spark, sink.name, sink.format, sink.options, mode, sink.partition_by, sink.schema, identity)
