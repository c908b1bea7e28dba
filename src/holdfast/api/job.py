"""A job: what a user draws, then starts."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from holdfast.api.keyed import StageStream
from holdfast.api.options import DEFAULT, Options, Where
from holdfast.api.stream import Stream
from holdfast.errors import PlanError
from holdfast.master.autoscaling import Autoscale
from holdfast.operators.build import Spec
from holdfast.plan.compile import JobPlan, PlannedStage, planned_stage
from holdfast.plan.drafts import Draft
from holdfast.plan.explain import as_svg, as_text
from holdfast.plan.graph import DIFF, Node, Output, Sink, Source, Stage, leaves, refuse_stateful
from holdfast.plan.stage import StagePlan
from holdfast.recovery.policies import Recovery
from holdfast.safety.policies import Safety
from holdfast.spark.fleet import Silence
from holdfast.spark.source import HoldfastDataSource
from holdfast.state.slice import MAIN

if TYPE_CHECKING:
    from holdfast.api.run import Run

_NAME = re.compile(r"[\w.-]+")


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
        self._stages: list[PlannedStage] = []
        self._sinks: list[Sink] = []
        self._expected_slices = 128
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

    def explain(self, picture: str | None = None) -> None:
        """Print the plan: levels, stages, what they read and put out. ``picture`` is an SVG file to draw it to."""
        plan = self.plan()
        print(as_text(self.name, plan))
        if picture is not None:
            Path(picture).write_text(as_svg(self.name, plan))

    def plan(self) -> JobPlan:
        if not self._stages:
            raise PlanError(
                f"Job '{self.name}' keeps no state.",
                todo="Use key_by(...).agg(...), or plain Spark (df.writeStream) for a stateless query.",
            )
        used = {leaf for stage in self._stages for item in stage.inputs for leaf in leaves(item.node)}
        used |= {leaf for sink in self._sinks for leaf in leaves(sink.node)}
        for source in self._sources:
            if source not in used:
                raise PlanError(f"Nothing uses the source '{source.name}'.", todo="Use it, or do not read it.")
        return JobPlan(self.spark, tuple(self._stages), tuple(self._sinks))

    def _draft(self, name: str | None, rows: Sequence[tuple[Node, DataFrame, tuple[str | Column, ...]]]) -> Draft:
        chosen = name or f"stage{len(self._stages) + 1}"
        if any(stage.plan.name == chosen for stage in self._stages):
            raise PlanError(f"Two stages are named '{chosen}'.", todo="Give each its own name: key_by(..., name=...).")
        if not _NAME.fullmatch(chosen):
            raise PlanError(f"'{chosen}' cannot be a stage's name.", todo="Use letters, digits, _, - and dots.")
        return Draft.of(chosen, rows, ansi=str(self.spark.conf.get("spark.sql.ansi.enabled")).lower() == "true")

    def _add_stage(
        self,
        draft: Draft,
        spec: Spec,
        label: str,
        *,
        updating: bool,
        complete: bool = False,
        windowed: bool = False,
    ) -> StageStream:
        plans: dict[Stage, StagePlan] = {stage.node: stage.plan for stage in self._stages}
        taken = Counter(item.place.level for stage in self._stages for item in stage.inputs)
        node, plan, inputs = draft.finish(spec, plans, taken)
        planned = planned_stage(node, plan, inputs, label, tuple(draft.ports))
        self._stages.append(planned)
        output = Output(node, MAIN, updating)
        return StageStream(self, output, self._frame_of(output, planned), windowed=windowed, complete=complete)

    def _output(self, stage: Stage, port: str) -> Stream:
        planned = next(one for one in self._stages if one.node is stage)
        if port not in planned.outputs:
            known = ", ".join(f"'{name}'" for name in planned.outputs if name) or "none"
            raise PlanError(f"Stage '{stage.name}' has no output '{port}'.", todo=f"Its further outputs: {known}.")
        output = Output(stage, port, updating=False)
        return Stream(self, output, self._frame_of(output, planned))

    def _frame_of(self, output: Output, planned: PlannedStage) -> DataFrame:
        """No rows, but the columns that steps and stages will see."""
        frame = self.spark.createDataFrame([], planned.outputs[output.port])
        return frame.withColumn(DIFF, F.lit(1).cast("tinyint")) if output.updating else frame

    def _add_sink(self, sink: Sink) -> None:
        # A sink keeps its number of epochs by its name, so a name must not depend on what else the job writes.
        path = next((value for key, value in sink.options.items() if key.lower() == "path"), None)
        named = replace(sink, name=sink.name or (f"{sink.format}:{path}" if path else f"sink{len(self._sinks) + 1}"))
        if any(other.name == named.name for other in self._sinks):
            raise PlanError(f"Two sinks are named '{named.name}'.", todo="Give each its own name.")
        self._sinks.append(named)


def _share_python(spark: SparkSession) -> None:
    """Without PYSPARK_PYTHON Spark takes the first python3 of the path; locally the driver's own is the right one."""
    context = spark.sparkContext
    if (context.master or "").startswith("local") and not os.environ.get("PYSPARK_PYTHON"):
        context.pythonExec = sys.executable
