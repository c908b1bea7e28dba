"""A job: what a user draws, then starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import StructType

from holdfast.api.aggregates import Aggregate
from holdfast.api.options import DEFAULT, Options, Where
from holdfast.api.stream import AggregatedStream, Stream
from holdfast.errors import PlanError
from holdfast.master.autoscaling import Autoscale
from holdfast.plan.compile import JobPlan, StageInput, compile_stage, output_schema
from holdfast.plan.graph import DIFF, Sink, Source, Stage, leaves, refuse_stateful
from holdfast.recovery.policies import Recovery
from holdfast.safety.policies import Safety
from holdfast.spark.fleet import Silence
from holdfast.spark.source import HoldfastDataSource

if TYPE_CHECKING:
    from holdfast.api.run import Run


class Job:
    """A graph of stages over one or more Spark streams, with its state in ``store``.

    ``store`` is a folder of this job alone: a local path, or any place that both Spark and Arrow know (``s3://``, ``hdfs://``).
    """

    def __init__(self, name: str, spark: SparkSession, *, store: str) -> None:
        if not name or "/" in name:
            raise PlanError(f"'{name}' cannot be a job's name.", todo="Use letters, digits, dashes and dots.")
        _share_python(spark)
        self.name = name
        self.spark = spark
        self.store = store
        self._sources: list[Source] = []
        self._inputs: list[StageInput] = []
        self._sinks: list[Sink] = []
        self._schemas: dict[str, StructType] = {}
        spark.dataSource.register(HoldfastDataSource)

    def read(self, df: DataFrame, name: str | None = None) -> Stream:
        """Take any streaming DataFrame in. From the second source on, each needs a name that stays the same."""
        if not df.isStreaming:
            raise PlanError(
                "job.read was given a DataFrame that is not a stream.", todo="Make it with spark.readStream."
            )
        refuse_stateful(df)
        if self._sources and (name is None or any(source.name == "source" for source in self._sources)):
            raise PlanError(
                "A job with several sources needs a name for each.",
                todo="job.read(df, name='orders'): the names tell Spark's offsets apart after a restart.",
            )
        chosen = name or "source"
        if any(source.name == chosen for source in self._sources):
            raise PlanError(f"Two sources are named '{chosen}'.", todo="Give each its own name.")
        source = Source(chosen, df)
        self._sources.append(source)
        return Stream(self, source, df)

    def start(
        self,
        *,
        containers: int = 2,
        threads: int = 1,
        slices: int | Literal["auto"] = 128,
        trigger: Mapping[str, Any] | None = None,
        safety: Safety | None = DEFAULT.safety,
        recovery: Recovery = DEFAULT.recovery,
        autoscale: Autoscale | None = None,
        where: Where = "auto",
        copy_bandwidth: float | None = DEFAULT.copy_bandwidth,
        silence: Silence = DEFAULT.silence,
        preaggregate: bool | Literal["auto"] = "auto",
        push: bool | Literal["auto"] = "auto",
        listen: str = "auto",
    ) -> Run:
        """Start the job, or go on where it was if the store has it already.

        ``trigger`` takes what Spark's ``DataStreamWriter.trigger`` takes. ``slices`` is for the life of the job; "auto"
        chooses by the cores there are. ``safety`` says how state is made safe (``Delta``, ``Sync``, or None: by the log
        alone), ``recovery`` how it comes back (``Chained``, ``Store``). ``autoscale`` lets the job choose its number of
        containers. Containers run ``where`` Spark's executors are ("executors"), or beside the driver ("driver");
        "auto" is the driver for a local master. ``listen`` is the driver's address for them ("auto": loopback, or with
        executors ``spark.driver.host``). ``copy_bandwidth`` bounds the bytes a second that each container sends
        to others for backups and moves, so that epochs do not feel it; None: as fast as it goes.
        """
        from holdfast.api.starting import start

        options = Options(
            containers=containers,
            threads=threads,
            slices=slices,
            trigger=dict(trigger or {}),
            safety=safety,
            recovery=recovery,
            autoscale=autoscale,
            where=where,
            copy_bandwidth=copy_bandwidth,
            silence=silence,
            preaggregate=preaggregate,
            push=push,
            listen=listen,
        )
        return start(self, self.plan(), options)

    def plan(self) -> JobPlan:
        if not self._inputs:
            raise PlanError(
                f"Job '{self.name}' keeps no state.",
                todo="Use key_by(...).agg(...), or plain Spark (df.writeStream) for a stateless query.",
            )
        used = {leaf for item in self._inputs for leaf in leaves(item.node.parent)}
        used |= {leaf for sink in self._sinks for leaf in leaves(sink.node)}
        for source in self._sources:
            if source not in used:
                raise PlanError(f"Nothing uses the source '{source.name}'.", todo="Use it, or do not read it.")
        return JobPlan(self.spark, tuple(self._inputs), tuple(self._sinks), dict(self._schemas))

    def _add_stage(
        self, stream: Stream, keys: tuple[str | Column, ...], aggregates: Mapping[str, Aggregate]
    ) -> AggregatedStream:
        below = [leaf for leaf in leaves(stream._node) if isinstance(leaf, Stage)]
        level = 1 + max((self._level(stage) for stage in below), default=0)
        node = Stage(f"stage{len(self._inputs) + 1}", stream._node, keys, aggregates)
        number = sum(1 for item in self._inputs if item.plan.level == level)
        item = compile_stage(self.spark, node, stream._frame, level, number)
        schema = output_schema(item)
        self._inputs.append(item)
        self._schemas[node.name] = schema
        frame = self.spark.createDataFrame([], schema).withColumn(DIFF, F.lit(1).cast("tinyint"))
        return AggregatedStream(self, node, frame)

    def _add_sink(self, sink: Sink) -> None:
        # A sink keeps its number of epochs by its name, so a name must not depend on what else the job writes.
        path = next((value for key, value in sink.options.items() if key.lower() == "path"), None)
        named = replace(sink, name=sink.name or (f"{sink.format}:{path}" if path else f"sink{len(self._sinks) + 1}"))
        if any(other.name == named.name for other in self._sinks):
            raise PlanError(f"Two sinks are named '{named.name}'.", todo="Give each its own name.")
        self._sinks.append(named)

    def _level(self, stage: Stage) -> int:
        return next(item.plan.level for item in self._inputs if item.node is stage)


def _share_python(spark: SparkSession) -> None:
    """Without PYSPARK_PYTHON Spark takes the first python3 of the path; locally the driver's own is the right one."""
    context = spark.sparkContext
    if (context.master or "").startswith("local") and not os.environ.get("PYSPARK_PYTHON"):
        context.pythonExec = sys.executable
