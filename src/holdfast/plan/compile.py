"""From the user's graph to what runs: levels, stage inputs, the streaming plan, the job's fingerprint.

Fixed stateless steps go into the streaming plan, before ``foreachBatch``: inside it the batch is an opaque RDD that
nothing can be pushed into. With one stage input the stream's columns are the intake's columns. With more, the stream
is a tagged union: ``_input`` and one struct per branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import StructType

from holdfast.errors import PlanError
from holdfast.operators.aggregate import AggregateOperator, AggregateSpec, StageSpec
from holdfast.operators.aggregate import Column as KeyColumn
from holdfast.plan.graph import DIFF, Node, Sink, Source, Stage, evaluate, leaves
from holdfast.plan.stage import StagePlan
from holdfast.spark.hashing import can_hash
from holdfast.spark.types import aggregate_result_type, key_type_error

MAX_SLICES = 32_768


@dataclass(frozen=True, eq=False)
class StageInput:
    """The rows of one stage: how Spark makes them, and which stages they come from (none: the sources)."""

    plan: StagePlan
    node: Stage
    upstream: tuple[Stage, ...]
    values: tuple[Column, ...]

    @property
    def hashed_at_intake(self) -> bool:
        """Whether the intake computes the keys' hash itself, so that it need not cross from Spark."""
        return can_hash([key.type for key in self.plan.operator.keys])

    def rows(self, frame: DataFrame) -> DataFrame:
        """The intake's columns, from the frame that the stage's parent evaluates to."""
        keys = [column(key) for key in self.node.keys]
        hidden = [F.col(DIFF)] if self.plan.operator.updating_input else []
        return frame.select(
            *([] if self.hashed_at_intake else [F.xxhash64(*keys).alias("_h")]),
            *hidden,
            *[key.alias(f"k{at}") for at, key in enumerate(keys)],
            *[value.alias(f"v{at}") for at, value in enumerate(self.values)],
        )


@dataclass(frozen=True, eq=False)
class JobPlan:
    spark: SparkSession
    inputs: tuple[StageInput, ...]
    sinks: tuple[Sink, ...]
    schemas: Mapping[str, StructType]

    @property
    def levels(self) -> int:
        return max(item.plan.level for item in self.inputs)

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        return tuple(item.plan for item in self.inputs)

    def at_level(self, level: int) -> list[StageInput]:
        return [item for item in self.inputs if item.plan.level == level]

    @property
    def stateless_sinks(self) -> list[Sink]:
        return [sink for sink in self.sinks if all(isinstance(leaf, Source) for leaf in leaves(sink.node))]

    @property
    def tagged(self) -> bool:
        return len(self.at_level(1)) + len(self.stateless_sinks) > 1

    def stream(self) -> DataFrame:
        """The one streaming DataFrame of the section."""
        branches = [
            item.rows(evaluate(item.node.parent, _source_frames(item.node.parent))) for item in self.at_level(1)
        ] + [evaluate(sink.node, _source_frames(sink.node)) for sink in self.stateless_sinks]
        return branches[0] if len(branches) == 1 else tagged_union(branches)

    def branch(self, batch: DataFrame, sink: Sink) -> DataFrame:
        """The rows of a stateless sink, out of the tagged batch."""
        number = len(self.at_level(1)) + self.stateless_sinks.index(sink)
        return batch.where(F.col("_input") == number).select(f"i{number}.*")

    def stage_rows(self, batch: DataFrame) -> DataFrame:
        """The rows of level 1's stages, out of the batch."""
        if not self.tagged:
            return batch
        count = len(self.at_level(1))
        rows = batch.where(F.col("_input") < count)
        return rows.select("i0.*") if count == 1 else rows.select("_input", *[f"i{at}" for at in range(count)])

    def higher_rows(self, level: int, changelog: Callable[[Stage], DataFrame]) -> DataFrame:
        """The rows of a level above the first, from the changelogs of the stages below."""
        branches = []
        for item in self.at_level(level):
            frames: dict[Node, DataFrame] = {stage: changelog(stage) for stage in item.upstream}
            branches.append(item.rows(evaluate(item.node.parent, frames, (DIFF,))))
        return branches[0] if len(branches) == 1 else tagged_union(branches)

    def sink_rows(self, sink: Sink, outputs: Callable[[Stage], DataFrame]) -> DataFrame:
        return evaluate(sink.node, {leaf: outputs(leaf) for leaf in leaves(sink.node) if isinstance(leaf, Stage)})

    def fingerprint(self) -> dict[str, Any]:
        """What a store must agree on with a job that opens it."""
        # In the order in which the streaming plan has them: Spark tells their offsets apart by position alone.
        nodes = [item.node.parent for item in self.at_level(1)] + [sink.node for sink in self.stateless_sinks]
        sources = [leaf.name for node in nodes for leaf in leaves(node) if isinstance(leaf, Source)]
        stages = {
            item.plan.name: {
                "level": item.plan.level,
                "keys": [f"{key.name}: {key.type}" for key in item.plan.operator.keys],
                "aggregates": [
                    f"{spec.name}: {spec.function}({spec.input_type or '*'})"
                    + "".join(f", {k}={v}" for k, v in spec.options)
                    for spec in item.plan.operator.aggregates
                ],
                "ansi": item.plan.operator.ansi,
            }
            for item in self.inputs
        }
        return {"sources": sources, "stages": stages}


def column(given: str | Column) -> Column:
    return F.col(given) if isinstance(given, str) else given


def tagged_union(branches: list[DataFrame]) -> DataFrame:
    """Rows of unlike shape in one frame: `_input` tells which struct is filled."""
    types = [branch.schema for branch in branches]
    tagged = []
    for number, branch in enumerate(branches):
        columns = [
            F.struct(*[F.col(f"`{name}`") for name in branch.columns]).alias(f"i{at}")
            if at == number
            else F.lit(None).cast(types[at]).alias(f"i{at}")
            for at in range(len(branches))
        ]
        tagged.append(branch.select(F.lit(number).alias("_input"), *columns))
    union = tagged[0]
    for branch in tagged[1:]:
        union = union.union(branch)
    return union


def compile_stage(spark: SparkSession, node: Stage, frame: DataFrame, level: int, number: int) -> StageInput:
    """Check a stage against the rows it will see, and plan it. ``frame`` is for its schema alone."""
    upstream = tuple(leaf for leaf in leaves(node.parent) if isinstance(leaf, Stage))
    keys = _key_columns(node, frame)
    values: list[Column] = []
    seen: dict[str, str] = {}
    specs = []
    for name, aggregate in node.aggregates.items():
        if aggregate.column is None:
            specs.append(AggregateSpec(name, aggregate.function, None, None, aggregate.options))
            continue
        value = column(aggregate.column)
        kind = _type_of(frame, value, f"aggregate '{name}' of stage '{node.name}'")
        aggregate_result_type(aggregate.function, kind)
        if aggregate.function == "approx_distinct":
            value = F.when(value.isNotNull(), F.xxhash64(value))
        source = seen.setdefault(str(value), f"v{len(values)}")
        if source == f"v{len(values)}":
            values.append(value)
        specs.append(AggregateSpec(name, aggregate.function, source, kind, aggregate.options))
    _refuse_doubles([key.name for key in keys] + [spec.name for spec in specs], node.name)
    operator = StageSpec(
        keys=tuple(keys),
        aggregates=tuple(specs),
        updating_input=bool(upstream),
        ansi=str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "true",
    )
    AggregateOperator(operator)  # raises what it cannot do, now and not in the first epoch
    return StageInput(StagePlan(node.name, level, number, operator), node, upstream, tuple(values))


def output_schema(item: StageInput) -> StructType:
    columns = [f"`{name.replace('`', '``')}` {kind}" for name, kind in item.plan.build().output_types()]
    schema = StructType.fromDDL(", ".join(columns))
    assert isinstance(schema, StructType)
    return schema


def _key_columns(node: Stage, frame: DataFrame) -> list[KeyColumn]:
    keys = []
    for key in node.keys:
        selected = _select(frame, column(key), f"key of stage '{node.name}'")
        only = selected.schema.fields[0]
        problem = key_type_error(only.dataType)
        if problem is not None:
            raise PlanError(
                f"'{only.name}' cannot be a key of stage '{node.name}': {problem}",
                safe="Nothing was started.",
            )
        keys.append(KeyColumn(only.name, only.dataType.simpleString()))
    return keys


def _type_of(frame: DataFrame, value: Column, role: str) -> str:
    return _select(frame, value, role).schema.fields[0].dataType.simpleString()


def _select(frame: DataFrame, value: Column, role: str) -> DataFrame:
    try:
        return frame.select(value)
    except AnalysisException as error:
        raise unknown_column(error, frame, role) from None


def unknown_column(error: AnalysisException, frame: DataFrame, role: str) -> PlanError:
    columns = [name for name in frame.columns if name != DIFF]
    return PlanError(
        f"Spark cannot resolve the {role}: {str(error).splitlines()[0]}",
        safe="Nothing was started.",
        todo=f"The columns there are: {', '.join(columns)}.",
    )


def _refuse_doubles(names: list[str], stage: str) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise PlanError(f"Stage '{stage}' would put out two columns named {', '.join(map(repr, doubled))}.")


def _source_frames(node: Node) -> dict[Node, DataFrame]:
    return {leaf: leaf.frame for leaf in leaves(node) if isinstance(leaf, Source)}
