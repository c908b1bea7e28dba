"""The Spark jobs of a batch and of an epoch: intake per level, one job per sink.

Those of a batch, its intake and the sinks straight over the source, run in ``foreachBatch``'s own thread and with its
session; those of an epoch in the pump's thread, with a session that is a clone of the query's.

Intake is run by the master to its end, never by a sink: what a sink executes of a lazy plan differs from sink to sink.
No Spark lineage passes through a container, so nothing a sink does can run state again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ParamSpec

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ByteType, StructField, StructType

from holdfast import faults
from holdfast.driver.counts import Counts, counted
from holdfast.driver.intake import IntakeHandlers
from holdfast.driver.loops import PARTITIONS
from holdfast.driver.routes import Routes
from holdfast.driver.sink_counters import sink_is_gone
from holdfast.driver.sizes import SMALL_BYTES, Sizes
from holdfast.driver.store import StoreHandlers
from holdfast.errors import HoldfastError, from_wire
from holdfast.invariants import some
from holdfast.log.records import Fence, SegmentRef
from holdfast.log.store import Store
from holdfast.master import events as ev
from holdfast.master import instructions as do
from holdfast.master.feed import RunSourceSink, TakeIn
from holdfast.operators.ahead import TO
from holdfast.plan.compile import StageInput
from holdfast.plan.graph import DIFF, Output, Sink, outputs, united
from holdfast.plan.passes import Crossing
from holdfast.spark.feedback import FeedbackSink
from holdfast.spark.frames import LOCAL_BYTES, frame_of
from holdfast.spark.intake import TAG_SCHEMA, EventTime, Intake, Push
from holdfast.spark.named_sink import NamedSink
from holdfast.spark.observing import observed, seen_by
from holdfast.spark.partials import Preaggregation, aggregable, aggregated
from holdfast.spark.scan import Scan, in_ranges
from holdfast.spark.sinks import Sink as OpenSink
from holdfast.spark.sinks import failed_sink
from holdfast.spark.stream import JobPlan, read_by, rows_of_all
from holdfast.spark.words import spark_failed
from holdfast.state.slice import MAIN
from holdfast.wire.causes import named
from holdfast.wire.codec import unpack
from holdfast.wire.handlers import handler
from holdfast.wire.messages import Address, Mode, Tag
from holdfast.wire.tokens import token_for

P = ParamSpec("P")
ARROW_BATCH_ROWS = 32_768
_WIDE_TYPES = {"string": 40, "binary": 40, "decimal": 16}  # about so many bytes a value; others have 8 at most


class Query:
    """Spark's query, once it has started: Spark may be in the first batch before it has told us of it."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._query: StreamingQuery | None = None

    def started(self, query: StreamingQuery) -> None:
        self._query = query
        self._started.set()

    def observed(self) -> dict[str, int]:
        """Largest event times of the batch, also of rows that filters have dropped."""
        self._started.wait()
        return observed(some(self._query, "it has started"))


@dataclass
class EpochJobs:
    """Runs what an epoch needs of Spark; ``routes`` tells which container has which slices now."""

    plan: JobPlan
    store: Store
    job: str
    incarnation: int
    slices: int
    token: str = field(repr=False)
    master: Address
    routes: Routes
    log: StoreHandlers
    blocks: IntakeHandlers
    sizes: Sizes
    counts: Counts
    push: bool
    preaggregation: Preaggregation
    sinks: dict[str, OpenSink]
    query: Query = field(default_factory=Query)
    seconds: dict[str, float] = field(default_factory=dict)
    session: SparkSession = field(init=False)
    """Where higher levels and sinks run, with a batch or in a tick: as the query's own, it is the user's as it was when
    the run began, and what is set on it is set nowhere else."""

    def __post_init__(self) -> None:
        spark = self.plan.spark
        self.session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
        _prepare(self.session)
        self.session.conf.set("spark.sql.cbo.enabled", "false")  # as Spark does in the query's own
        self.session.conf.set(LOCAL_BYTES, str(SMALL_BYTES))

    @handler
    def take_in(self, batch: DataFrame | None, instruction: TakeIn) -> ev.IntakeDone:
        fence = instruction.fence
        tags = tuple(self._taken_in(some(batch, "a source's rows come with a batch"), instruction))
        faults.place("driver", "after-segments", fence.epoch)
        return ev.IntakeDone(instruction.id, tags)

    @handler
    def run_source_sink(self, batch: DataFrame | None, instruction: RunSourceSink) -> ev.SinkDone:
        """A sink straight over the source: its rows are of the batch, and its number is of the block."""
        number, name = instruction.fence.epoch, instruction.sink
        sink = next(sink for sink in self.plan.stateless_sinks if sink.name == name)
        rows = self.plan.branch(some(batch, "a source's rows come with a batch"), sink)
        self._write(rows, sink, number, self.blocks.number_of(name))
        if not instruction.last and self.sinks[name].forgets:
            self.blocks.note_taken(instruction.fence, name)
        faults.place("driver", "after-source-sink", number)
        return ev.SinkDone(instruction.id)

    @handler
    def run_intake(self, _: DataFrame | None, instruction: do.RunIntake) -> ev.IntakeDone:
        fence, level = instruction.fence, instruction.level
        around = self.log.loops.tags(fence.epoch, level)
        if level == 1:  # the rows of sources are in blocks
            tags = (*around, *self.blocks.tags(instruction.ranges))
            self.counts.taken(fence.epoch, level, self.blocks.counted(instruction.ranges))
        else:
            tags = (*around, *self._intake(fence, level))
            self.counts.taken(fence.epoch, level, counted(tags))
            faults.place("driver", "after-segments", fence.epoch)
        return ev.IntakeDone(instruction.id, tags)

    @handler
    def run_sink(self, _: DataFrame | None, instruction: do.RunSink) -> ev.SinkDone:
        fence, name = instruction.fence, instruction.sink
        drawn = {sink.name: sink for sink in self.plan.sinks}
        if name not in drawn:
            raise sink_is_gone([name], fence.epoch)
        if drawn[name].closes:
            self._around(fence, drawn[name])
            return ev.SinkDone(instruction.id)
        counter = self.log.prepare_of(fence.epoch, 1).sinks[name]
        self.sink(fence.epoch, drawn[name], counter)
        if isinstance(opened := self.sinks[name], FeedbackSink):
            self.log.feed_back(fence.epoch, opened.feeds, opened.rows)
        if not instruction.last and self.sinks[name].forgets:
            self.log.note_taken(fence, name)
        return ev.SinkDone(instruction.id)

    def cause(self, error: Exception, instruction: do.Instruction) -> Exception:
        """Ours, which reaches us as text if a task raised it; else what Spark, or a function that it runs, says."""
        if (known := from_wire(str(error))) is not None:
            return known
        if not isinstance(instruction, do.RunIntake | TakeIn):
            return error
        if isinstance(error, PySparkException | Py4JError):
            what = "block" if isinstance(instruction, TakeIn) else "epoch"
            return spark_failed(error, f"the rows of {what} {instruction.fence.epoch} were read")
        return named(error, "The driver")

    def _taken_in(self, batch: DataFrame, instruction: TakeIn) -> list[Tag]:
        """Take in the rows of a batch. Its segments are named by it, and not by the number that its block will have."""
        began, inputs, now = time.perf_counter(), self.plan.intake(1), self.log.clock.now()
        _prepare(batch.sparkSession)
        rows, crossing = self.plan.stage_rows(batch)
        partial: tuple[int, ...] = ()
        if self.preaggregation.on and len(inputs) == 1 and aggregable(inputs[0]):
            item = inputs[0]
            rows = aggregated(item, rows, self.blocks.time.watermarks.get(item.plan.name), _latest(item, now))
            partial = (0,)
        task = self._task(instruction.fence, 0, inputs, crossing, partial, now)
        task = replace(task, batch=instruction.batch.batch_id)
        told = rows.mapInArrow(lambda batches: task(batches), TAG_SCHEMA)
        tags = [unpack(row.tag, Tag) for row in told.collect()]
        if any(item.watches for item in inputs):
            streamed = self.plan.filters_in_stream
            latest = self.query.observed() if streamed else seen_by(told._jdf.queryExecution())
            tags.append(Tag(SegmentRef("", 0, 0, 0, len(tags), 0), times=latest))
        self.seconds["intake1"] = time.perf_counter() - began
        return sorted(tags, key=lambda tag: tag.segment.partition)

    def _intake(self, fence: Fence, level: int) -> list[Tag]:
        """Take in the rows of a level above the first."""
        began, inputs = time.perf_counter(), self.plan.intake(level)
        if not inputs:
            return []  # a stage that only looks into others has no rows of stages
        task = self._task(fence, level, inputs, None, (), self.log.clock.now())
        tags = self._put_out(fence.epoch, inputs, task)
        self.seconds[f"intake{level}"] = time.perf_counter() - began
        return tags

    def _around(self, fence: Fence, sink: Sink) -> None:
        """Take in what stages have put out for the next epoch, as it will take it."""
        began, loop = time.perf_counter(), some(sink.closes, "it closes a loop")
        after, place = replace(fence, epoch=fence.epoch + 1), 1 + self.plan.closing.index(sink)
        found = {}
        for level, inputs in self.plan.around(sink).items():
            task = self._task(after, level, inputs, None, (), self.log.clock.now())
            task = replace(task, first=place * PARTITIONS, push=None)
            found[level] = self._put_out(fence.epoch, inputs, task)
            self.counts.taken(fence.epoch, place * PARTITIONS + level, counted(found[level]))
        self.log.loops.take(fence.epoch, loop.name, found)
        faults.place("driver", "after-loop", fence.epoch)
        self.seconds[f"loop {loop.name}"] = time.perf_counter() - began

    def _put_out(self, epoch: int, inputs: Sequence[StageInput], task: Intake) -> list[Tag]:
        """Take in rows that stages have put out in the epoch."""
        wanted = read_by(inputs)
        few = all(self._is_small(output, mode) for output, mode in wanted)
        read = self._reading(wanted, epoch)
        rows, crossing = rows_of_all(inputs, lambda output, mode: read([output], mode))
        task = replace(task, crossing=crossing)
        if few:  # then a task of Spark's takes longer to start than they take
            tags = task.here(iter(rows.toArrow().to_batches()))
        else:
            told = rows.mapInArrow(lambda batches: task(batches), TAG_SCHEMA)
            tags = [unpack(row.tag, Tag) for row in told.collect()]
        return sorted(tags, key=lambda tag: tag.segment.partition)

    def _task(
        self,
        fence: Fence,
        level: int,
        inputs: Sequence[StageInput],
        crossing: Crossing | None,
        partial: tuple[int, ...],
        now: int,
    ) -> Intake:
        cuts = tuple(item.cut for item in inputs)
        aggregated_ones = partial
        partial += tuple(number for number, cut in enumerate(cuts) if cut is not None and cut.window is not None)
        return Intake(
            self.store,
            fence,
            level,
            self.slices,
            tuple(len(item.plan.operator.keys) if item.hashed_at_intake else 0 for item in inputs),
            crossing,
            partial,
            tuple(_times(item, now, partial=number in aggregated_ones) for number, item in enumerate(inputs)),
            cuts,
            push=self._push(),
            numbers=tuple(item.place.number for item in inputs),
        )

    def sink(self, epoch: int, sink: Sink, counter: int) -> None:
        mode: Mode = "all" if sink.mode == "complete" else "changelog" if sink.signed else "changed"
        opened = self.sinks[sink.name]
        if isinstance(opened, NamedSink) and opened.from_all:
            mode = "all"
        read = self._reading([(leaf, mode) for leaf in outputs(sink.node)], epoch)
        self._write(self.plan.sink_rows(sink, epoch, lambda outputs: read(outputs, mode)), sink, epoch, counter)

    def _write(self, frame: DataFrame, sink: Sink, number: int, counter: int) -> None:
        began = time.perf_counter()
        opened = self.sinks[sink.name]
        try:
            opened.write(frame, number, counter)
        except HoldfastError:
            raise
        except Exception as error:  # what a task of ours raised reaches us as text
            raise from_wire(str(error)) or failed_sink(opened, number, error) from error
        faults.place("driver", "mid-sink", number)
        self.seconds[f"sink {sink.name}"] = time.perf_counter() - began

    def beside(self, run: Callable[P, None]) -> Callable[P, None]:
        """To be run in another thread as it would be in this one: as a job of the query, which ends with it, and with
        an active session, which Spark's writers and users' functions look for."""
        inheriting: Callable[[Callable[P, None]], Callable[P, None]] = inheritable_thread_target(self.plan.spark)

        def active(*args: P.args, **kwargs: P.kwargs) -> None:
            session = self.session._jsparkSession
            session.setActiveSession(session)
            run(*args, **kwargs)

        return inheriting(active)

    @contextlib.contextmanager
    def cancellable(self, job: do.Instruction) -> Iterator[None]:
        """What Spark runs for this thread meanwhile ends with ``cancel``; not so what a sink's own threads start."""
        context, tag = self.plan.spark.sparkContext, self._tag(job)
        context.addJobTag(tag)
        try:
            yield
        finally:
            context.removeJobTag(tag)

    def cancel(self, job: do.Instruction) -> None:
        """End what Spark runs for it now. A job that begins right afterwards goes on: ask again."""
        self.plan.spark.sparkContext.cancelJobsWithTag(self._tag(job))

    def _tag(self, job: do.Instruction) -> str:
        """What Spark knows a job of ours by, in an application that may run many."""
        return f"holdfast-{self.job}-{job.id}"

    def scan(self, stage: str, epoch: int, mode: Mode, port: str = MAIN, parts: int | None = None) -> Scan:
        level = self.plan.stage(stage).plan.level
        ranges = in_ranges(self.routes.groups(), parts)
        token = token_for("reads", self.token)
        return Scan(self.master, token, self.job, self.incarnation, stage, level, epoch, mode, ranges, port)

    def _reading(
        self, wanted: Iterable[tuple[Output, Mode]], epoch: int
    ) -> Callable[[Sequence[Output], Mode], DataFrame]:
        """The rows of outputs of the same columns, when they are asked for. All that are small come by one call."""
        small: dict[Mode, dict[tuple[str, str], None]] = {}
        for output, mode in wanted:
            if self._is_small(output, mode):
                small.setdefault(mode, {})[output.stage.name, output.port] = None
        found = {mode: self.routes.collect(list(outputs), epoch, mode) or {} for mode, outputs in small.items()}

        def read(outputs: Sequence[Output], mode: Mode) -> DataFrame:
            few = [one for one in outputs if (one.stage.name, one.port) in small.get(mode, ())]
            frames = [self._scan(one, epoch, mode) for one in outputs if one not in few]
            if few:  # one may stand there twice: then its rows are wanted twice
                fetched = [self._fetched(one, epoch, mode, found[mode].get((one.stage.name, one.port))) for one in few]
                frames.append(self._frame([table for tables in fetched for table in tables], few[0], mode))
            return united(frames)

        return read

    def _fetched(self, output: Output, epoch: int, mode: Mode, tables: list[pa.Table] | None) -> list[pa.Table]:
        if tables is not None:
            return tables
        # A container went away meanwhile: a scan knows how to wait for the next owner.
        scan = self.scan(output.stage.name, epoch, mode, output.port)
        batches = [batch for part in range(len(scan.parts)) for batch in scan.part(part)]
        return [pa.Table.from_batches(batches)] if batches else []

    def _frame(self, tables: Sequence[pa.Table], output: Output, mode: Mode) -> DataFrame:
        session, schema = self.session, self._schema(output, mode)
        return frame_of(session, pa.concat_tables(tables), schema) if tables else session.createDataFrame([], schema)

    def _scan(self, output: Output, epoch: int, mode: Mode) -> DataFrame:
        stage, width = output.stage.name, _width(self._schema(output, mode))
        tasks = self.sizes.tasks(stage, mode, width, self.session.sparkContext.defaultParallelism)
        scan = self.scan(stage, epoch, mode, output.port, tasks)
        parts = len(scan.parts)
        rows = self.session.range(0, parts, 1, parts)
        return rows.mapInArrow(lambda batches: scan(batches), self._schema(output, mode))

    def _schema(self, output: Output, mode: Mode) -> StructType:
        schema = self.plan.stage(output.stage.name).outputs[output.port]
        return StructType([*schema.fields, StructField(DIFF, ByteType())]) if mode == "changelog" else schema

    def _is_small(self, output: Output, mode: Mode) -> bool:
        return self.sizes.small(output.stage.name, mode, _width(self._schema(output, mode)))

    def _push(self) -> Push | None:
        if not self.push:
            return None
        return Push(token_for("pushes", self.token), self.job, self.incarnation, self.routes.push_groups())


def _prepare(session: SparkSession) -> None:
    """No plan that changes while it runs, and batches as large as a container likes them."""
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ARROW_BATCH_ROWS))


def _width(schema: StructType) -> int:
    """About how many bytes a row has."""
    return sum(_WIDE_TYPES.get(field.dataType.typeName(), 8) for field in schema.fields)


def _times(item: StageInput, now: int, *, partial: bool) -> EventTime | None:
    if item.time is None:
        return None
    column = TO if partial else item.time
    return EventTime(item.plan.name, column, tuple(name for _, name in item.observed), _latest(item, now))


def _latest(item: StageInput, now: int) -> int | None:
    """The largest event time that can be right, µs."""
    return None if item.ahead is None else now + item.ahead
