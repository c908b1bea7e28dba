"""The Spark jobs of one epoch: intake per level, one job per sink. All of them run in ``foreachBatch``'s own thread.

Intake is run by the master to its end, never by a sink: what a sink executes of a lazy plan differs from sink to sink.
No Spark lineage passes through a container, so nothing a sink does can run state again.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ByteType, StructField, StructType

from holdfast import faults
from holdfast.driver.counts import CAME
from holdfast.errors import HoldfastError, from_wire
from holdfast.invariants import some
from holdfast.log.records import Fence
from holdfast.log.store import Store
from holdfast.operators.ahead import TO
from holdfast.plan.compile import StageInput
from holdfast.plan.graph import DIFF, Output, Sink
from holdfast.spark.frames import frame_of
from holdfast.spark.intake import TAG_SCHEMA, EventTime, Intake, Push
from holdfast.spark.partials import Preaggregation, aggregable, aggregated
from holdfast.spark.scan import Groups, Scan, in_ranges
from holdfast.spark.sinks import Sink as OpenSink
from holdfast.spark.sinks import failed_sink
from holdfast.spark.stream import JobPlan
from holdfast.state.slice import MAIN
from holdfast.wire.client import Address

ARROW_BATCH_ROWS = 32_768
SMALL_BYTES = 1 << 20
"""No larger an output goes through the driver: a job whose tasks ask the containers takes longer to start."""
_WIDE_TYPES = {"string": 40, "binary": 40, "decimal": 16}  # about so many bytes a value; others have 8 at most


@dataclass(frozen=True)
class Tag:
    """What one intake task answered."""

    name: str
    rows: int
    nbytes: int
    checksum: int
    partition: int
    task: int
    input_rows: int
    partial: tuple[int, ...]
    inline: bytes | None
    times: dict[str, int] = field(default_factory=dict)  # largest event times, by the names that the plan gave them
    dropped: dict[str, dict[str, int]] = field(default_factory=dict)  # stage → why → rows
    came: dict[str, int] = field(default_factory=dict)  # stage → rows that should have had an event time


@dataclass
class EpochJobs:
    """Runs what an epoch needs of Spark. ``groups`` tells which container has which slices now."""

    plan: JobPlan
    store: Store
    job: str
    incarnation: int
    slices: int
    token: str
    master: Callable[[], Address]
    groups: Callable[[], Groups]
    push_groups: Callable[[], Groups]
    push: bool
    preaggregation: Preaggregation
    sinks: dict[str, OpenSink]
    collect: Callable[[str, int, str, str], list[pa.Table] | None]  # (stage, epoch, mode, port) -> a small output
    sizes: Callable[[str, str], int]  # (stage, mode) -> about how many rows an output has
    observed: Callable[[], dict[str, int]]  # largest event times of the batch, also of rows that filters have dropped
    clock: Callable[[], int]  # the epoch clock as it would be now, µs
    watermark: Callable[[str], int | None]  # of a stage, before the epoch in flight
    seconds: dict[str, float] = field(default_factory=dict)
    session: SparkSession = field(init=False)
    """Where higher levels and sinks run, with a batch or in a tick: as the query's own, it is the user's as it was when
    the run began, and what is set on it is set nowhere else."""

    def __post_init__(self) -> None:
        spark = self.plan.spark
        self.session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
        _prepare(self.session)
        self.session.conf.set("spark.sql.cbo.enabled", "false")  # as Spark does in the query's own

    def intake(self, batch: DataFrame | None, fence: Fence, level: int) -> list[Tag]:
        """Take in the rows of a level. Without a ``batch`` it is a tick: sources have no rows in it."""
        began = time.perf_counter()
        if (batch is None and level == 1) or not self.plan.intake(level):
            return []  # a tick has no rows of sources; a stage that only looks into others has none of stages
        inputs = self.plan.intake(level)
        now = self.clock()
        partial: tuple[int, ...] = ()
        few = False
        if level == 1:
            batch = some(batch, "a source's rows come with a batch")
            _prepare(batch.sparkSession)
            rows, tagging = self.plan.stage_rows(batch)
            if self.preaggregation.on and len(inputs) == 1 and aggregable(inputs[0]):
                item = inputs[0]
                rows = aggregated(item, rows, self.watermark(item.plan.name), _latest(item, now))
                partial = (0,)
        else:
            few = all(self._is_small(output, mode) for output, mode in self.plan.higher_inputs(level))
            rows, tagging = self.plan.higher_rows(level, lambda output, mode: self._outputs(output, fence.epoch, mode))
        keys = tuple(len(item.plan.operator.keys) if item.hashed_at_intake else 0 for item in inputs)
        times = tuple(_times(item, now, partial=number in partial) for number, item in enumerate(inputs))
        cuts = tuple(item.cut for item in inputs)
        partial += tuple(number for number, cut in enumerate(cuts) if cut is not None and cut.window is not None)
        numbers = tuple(item.place.number for item in inputs)
        task = Intake(
            self.store,
            fence,
            level,
            self.slices,
            keys,
            tagging,
            partial,
            times,
            cuts,
            push=self._push(),
            numbers=numbers,
        )
        if few:  # then a task of Spark's takes longer to start than they take
            tags = [_tag(*answer) for answer in task.here(iter(rows.toArrow().to_batches()))]
        else:
            answers = rows.mapInArrow(lambda batches: task(batches), TAG_SCHEMA).collect()
            tags = [_tag(json.loads(row["tag"]), row["rows"]) for row in answers]
        if any(item.watches for item in inputs):
            tags.append(Tag("", 0, 0, 0, len(tags), 0, 0, (), None, self.observed()))
        self.seconds[f"intake{level}"] = time.perf_counter() - began
        return sorted(tags, key=lambda tag: tag.partition)

    def sink(self, batch: DataFrame | None, epoch: int, sink: Sink, counter: int) -> None:
        began = time.perf_counter()
        if sink in self.plan.stateless_sinks:
            frame = self.session.createDataFrame([], sink.schema) if batch is None else self.plan.branch(batch, sink)
        else:
            mode = "all" if sink.mode == "complete" else "changed"
            frame = self.plan.sink_rows(sink, epoch, lambda output: self._outputs(output, epoch, mode))
        opened = self.sinks[sink.name]
        try:
            opened.write(frame, epoch, counter)
        except HoldfastError:
            raise
        except Exception as error:  # what a task of ours raised reaches us as text
            raise from_wire(str(error)) or failed_sink(opened, epoch, error) from error
        faults.place("driver", "mid-sink", epoch)
        self.seconds[f"sink {sink.name}"] = time.perf_counter() - began

    @contextlib.contextmanager
    def cancellable(self, tag: str) -> Iterator[None]:
        """What Spark runs for this thread meanwhile ends with ``cancel``; not so what a sink's own threads start."""
        context = self.plan.spark.sparkContext
        context.addJobTag(tag)
        try:
            yield
        finally:
            context.removeJobTag(tag)

    def cancel(self, tag: str) -> None:
        """End the jobs that run now under this tag. One that begins right afterwards goes on: ask again."""
        self.plan.spark.sparkContext.cancelJobsWithTag(tag)

    def scan(self, stage: str, epoch: int, mode: str, port: str = MAIN, parts: int = 1) -> Scan:
        level = self.plan.stage(stage).plan.level
        master, ranges = self.master(), in_ranges(self.groups(), parts)
        return Scan(master, self.token, self.job, self.incarnation, stage, level, epoch, mode, ranges, port)

    def _outputs(self, output: Output, epoch: int, mode: str) -> DataFrame:
        session = self.session
        if not self._is_small(output, mode):
            return self._scan(output, epoch, mode)
        stage, port, schema = output.stage.name, output.port, self._schema(output, mode)
        tables = self.collect(stage, epoch, mode, port)
        if tables is None:  # a container went away meanwhile: a scan knows how to wait for the next owner
            scan = self.scan(stage, epoch, mode, port)
            batches = [batch for part in range(len(scan.parts)) for batch in scan.part(part)]
            tables = [pa.Table.from_batches(batches)] if batches else []
        return frame_of(session, pa.concat_tables(tables), schema) if tables else session.createDataFrame([], schema)

    def _scan(self, output: Output, epoch: int, mode: str) -> DataFrame:
        parallelism = self.session.sparkContext.defaultParallelism
        scan = self.scan(output.stage.name, epoch, mode, output.port, parallelism)
        parts = len(scan.parts)
        rows = self.session.range(0, parts, 1, parts)
        return rows.mapInArrow(lambda batches: scan(batches), self._schema(output, mode))

    def _schema(self, output: Output, mode: str) -> StructType:
        schema = self.plan.stage(output.stage.name).outputs[output.port]
        return StructType([*schema.fields, StructField(DIFF, ByteType())]) if mode == "changelog" else schema

    def _is_small(self, output: Output, mode: str) -> bool:
        return self.sizes(output.stage.name, mode) * _width(self._schema(output, mode)) <= SMALL_BYTES

    def _push(self) -> Push | None:
        if not self.push:
            return None
        return Push(self.token, self.job, self.incarnation, self.push_groups())


def _prepare(session: SparkSession) -> None:
    """No plan that changes while it runs, and batches as large as a container likes them."""
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ARROW_BATCH_ROWS))


def counted(tags: Iterable[Tag]) -> dict[str, Counter[str]]:
    """What an intake counted, stage by stage: rows that came with an event time or should have, and those dropped."""
    found: dict[str, Counter[str]] = {}
    for tag in tags:
        for stage, dropped in tag.dropped.items():
            found.setdefault(stage, Counter()).update(dropped)
        for stage, came in tag.came.items():
            found.setdefault(stage, Counter()).update({CAME: came})
    return found


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


def _tag(found: dict[str, Any], rows: bytes | None) -> Tag:
    return Tag(
        name=found["name"],
        rows=found["rows"],
        nbytes=found["bytes"],
        checksum=found["checksum"],
        partition=found["partition"],
        task=found["task"],
        input_rows=found["input_rows"],
        partial=tuple(found["partial"]),
        inline=None if rows is None else bytes(rows),
        times=found["times"],
        dropped=found["dropped"],
        came=found["came"],
    )
