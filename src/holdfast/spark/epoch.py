"""The Spark jobs of one epoch: intake per level, one job per sink. All of them run in ``foreachBatch``'s own thread.

Intake is run by the master to its end, never by a sink: what a sink executes of a lazy plan differs from sink to sink.
No Spark lineage passes through a container, so nothing a sink does can run state again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import ByteType, StructField, StructType

from holdfast import faults
from holdfast.container.client import Address
from holdfast.log.records import Fence
from holdfast.log.store import Store
from holdfast.plan.compile import JobPlan, StageInput
from holdfast.plan.graph import DIFF, Sink, Stage
from holdfast.spark.frames import frame_of
from holdfast.spark.intake import TAG_SCHEMA, Intake, Push
from holdfast.spark.preaggregate import PartialColumnSpec, can_preaggregate, partial_aggregate
from holdfast.spark.scan import Groups, Scan
from holdfast.spark.sinks import Sink as OpenSink

ARROW_BATCH_ROWS = 32_768
SMALL_ROWS = 20_000


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


@dataclass
class Preaggregation:
    """Whether Spark should aggregate before the rows cross to Python: it pays when keys repeat within a task.

    Off, the containers tell how many keys an epoch's rows had, which bounds what the tasks would have put out.
    On, the tags tell directly. Between the two thresholds nothing changes.
    """

    wish: bool | Literal["auto"] = "auto"
    on: bool = False
    least_rows: int = 10_000
    begin_below: float = 0.3
    end_above: float = 0.6

    def __post_init__(self) -> None:
        self.on = self.wish is True

    def saw(self, input_rows: int, logged_rows: int, tasks: int, changed: int) -> None:
        if self.wish != "auto" or input_rows < self.least_rows:
            return
        if self.on:
            self.on = logged_rows <= self.end_above * input_rows
        else:
            self.on = changed * max(1, tasks) < self.begin_below * input_rows


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
    collect: Callable[[str, int, str], list[pa.Table] | None]  # (stage, epoch, mode) -> a small output's tables
    sizes: Callable[[str, str], int]  # (stage, mode) -> about how many rows an output has
    seconds: dict[str, float] = field(default_factory=dict)

    def intake(self, batch: DataFrame, fence: Fence, level: int) -> list[Tag]:
        began = time.perf_counter()
        session = batch.sparkSession
        session.conf.set("spark.sql.adaptive.enabled", "false")
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ARROW_BATCH_ROWS))
        inputs = self.plan.at_level(level)
        partial: tuple[int, ...] = ()
        if level == 1:
            rows = self.plan.stage_rows(batch)
            if self.preaggregation.on and len(inputs) == 1 and preaggregable(inputs[0], rows):
                rows, partial = preaggregated(inputs[0], rows), (0,)
        else:
            rows = self.plan.higher_rows(level, lambda stage: self._scan(session, stage, fence.epoch, "changelog"))
        keys = tuple(len(item.plan.operator.keys) if item.hashed_at_intake else 0 for item in inputs)
        task = Intake(self.store, fence, level, self.slices, keys, partial, push=self._push())
        answers = rows.mapInArrow(lambda batches: task(batches), TAG_SCHEMA).collect()
        tags = [_tag(row) for row in answers]
        self.seconds[f"intake{level}"] = time.perf_counter() - began
        return sorted(tags, key=lambda tag: tag.partition)

    def sink(self, batch: DataFrame, epoch: int, sink: Sink, counter: int) -> None:
        began = time.perf_counter()
        session = batch.sparkSession
        if sink in self.plan.stateless_sinks:
            frame = self.plan.branch(batch, sink)
        else:
            mode = "all" if sink.mode == "complete" else "changed"
            frame = self.plan.sink_rows(sink, lambda stage: self._outputs(session, stage, epoch, mode))
        self.sinks[sink.name].write(frame, epoch, counter)
        faults.place("driver", "mid-sink", epoch)
        self.seconds[f"sink {sink.name}"] = time.perf_counter() - began

    def scan(self, stage: str, level: int, epoch: int, mode: str) -> Scan:
        return Scan(self.master(), self.token, self.job, self.incarnation, stage, level, epoch, mode, self.groups())

    def _outputs(self, session: SparkSession, stage: Stage, epoch: int, mode: str) -> DataFrame:
        if self.sizes(stage.name, mode) > SMALL_ROWS:
            return self._scan(session, stage, epoch, mode)
        tables = self.collect(stage.name, epoch, mode)
        if tables is None:  # a container went away meanwhile: a scan knows how to wait for the next owner
            scan = self.scan(stage.name, self._level(stage), epoch, mode)
            batches = [batch for part in range(len(scan.parts)) for batch in scan.part(part)]
            tables = [pa.Table.from_batches(batches)] if batches else []
        schema = self.plan.schemas[stage.name]
        return frame_of(session, pa.concat_tables(tables), schema) if tables else session.createDataFrame([], schema)

    def _scan(self, session: SparkSession, stage: Stage, epoch: int, mode: str) -> DataFrame:
        scan = self.scan(stage.name, self._level(stage), epoch, mode).split(session.sparkContext.defaultParallelism)
        schema = self.plan.schemas[stage.name]
        if mode == "changelog":
            schema = StructType([*schema.fields, StructField(DIFF, ByteType())])
        parts = len(scan.parts)
        return session.range(0, parts, 1, parts).mapInArrow(lambda batches: scan(batches), schema)

    def _push(self) -> Push | None:
        if not self.push:
            return None
        return Push(self.token, self.job, self.incarnation, self.push_groups())

    def _level(self, stage: Stage) -> int:
        return next(item.plan.level for item in self.plan.inputs if item.node is stage)


def preaggregable(item: StageInput, rows: DataFrame) -> bool:
    return can_preaggregate(rows.schema, _keys(item), _partials(item), ansi=item.plan.operator.ansi)


def preaggregated(item: StageInput, rows: DataFrame) -> DataFrame:
    keys = _keys(item)
    grouped = partial_aggregate(rows, keys, _partials(item))
    assert grouped is not None, "asked before: preaggregable"
    return grouped if item.hashed_at_intake else grouped.select(F.xxhash64(*keys).alias("_h"), "*")


def _keys(item: StageInput) -> list[str]:
    return [f"k{at}" for at in range(len(item.plan.operator.keys))]


def _partials(item: StageInput) -> list[PartialColumnSpec]:
    return [PartialColumnSpec(spec.function, spec.input) for spec in item.plan.operator.aggregates]


def _tag(row: Any) -> Tag:
    found = json.loads(row["tag"])
    return Tag(
        name=found["name"],
        rows=found["rows"],
        nbytes=found["bytes"],
        checksum=found["checksum"],
        partition=found["partition"],
        task=found["task"],
        input_rows=found["input_rows"],
        partial=tuple(found["partial"]),
        inline=bytes(row["rows"]) if row["rows"] is not None else None,
    )
