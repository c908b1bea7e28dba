"""What Spark runs of a plan: the streaming DataFrame, and the rows of every level and sink.

Fixed stateless steps go into the streaming plan, before ``foreachBatch``: inside it the batch is an opaque RDD that
nothing can be pushed into. With one input the stream's columns are the intake's columns. With more, the stream is a
tagged union.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from holdfast.invariants import Impossible, some
from holdfast.plan import epochs
from holdfast.plan.compile import LEAF, Plan, StageInput
from holdfast.plan.fingerprint import Fingerprint
from holdfast.plan.graph import Node, Output, Sink, Source, evaluate, leaves, outputs
from holdfast.plan.tagging import INPUT, Tagging, tagging
from holdfast.plan.types import quoted
from holdfast.spark.observing import observe
from holdfast.state.slice import Mode


@dataclass(frozen=True, eq=False)
class JobPlan(Plan):
    """What Spark runs of it."""

    spark: SparkSession

    @property
    def tagged(self) -> bool:
        return len(self.intake(1)) + len(self.stateless_sinks) > 1

    def fingerprint(self) -> Fingerprint:
        """With the sources that Spark reads as one, because they are made of the same streaming DataFrame."""
        frames = {source.name: source.frame for source in self.places}
        leaves_of = {name: _streaming_leaves(frame) for name, frame in frames.items()} if len(frames) > 1 else {}
        shared = tuple(
            (one, other)
            for one, other in itertools.combinations(leaves_of, 2)
            if any(mine.equals(others) for mine in leaves_of[one] for others in leaves_of[other])
        )
        return replace(super().fingerprint(), shared=shared)

    def stream(self) -> DataFrame:
        """The one streaming DataFrame of the section."""
        return self._stream[0]

    @cached_property
    def _stream(self) -> tuple[DataFrame, Tagging | None]:
        rows = [rows_of(item, _source_frames(item.node)) for item in self.intake(1)]
        rows += [evaluate(sink.node, _source_frames(sink.node)) for sink in self.stateless_sinks]
        return _together(rows)

    @property
    def _tagging(self) -> Tagging:
        if self._stream[1] is None:
            raise Impossible("asked before: tagged")
        return self._stream[1]

    def branch(self, batch: DataFrame, sink: Sink) -> DataFrame:
        """The rows of a stateless sink, out of the tagged batch."""
        return branch(batch, self._tagging, len(self.intake(1)) + self.stateless_sinks.index(sink))

    def stage_rows(self, batch: DataFrame) -> tuple[DataFrame, Tagging | None]:
        """The rows of the first level's intake, out of the batch; tagged if there are several inputs."""
        count = len(self.intake(1))
        if not self.tagged:
            return batch, None
        if count == 1:
            return branch(batch, self._tagging, 0), None
        return (batch.where(F.col(INPUT) < count) if self.stateless_sinks else batch), self._tagging

    def higher_rows(self, level: int, scanned: Callable[[Output, Mode], DataFrame]) -> tuple[DataFrame, Tagging | None]:
        """The rows of a level above the first, from what the stages below put out."""
        branches = []
        for item in self.intake(level):
            branches.append(rows_of(item, {leaf: scanned(leaf, item.mode) for leaf in outputs(item.node)}))
        return _together(branches)

    def higher_inputs(self, level: int) -> list[tuple[Output, Mode]]:
        """Of which stages below a level reads what, and in which mode."""
        return [(leaf, item.mode) for item in self.intake(level) for leaf in outputs(item.node)]

    def sink_rows(self, sink: Sink, epoch: int, rows: Callable[[Output], DataFrame]) -> DataFrame:
        with epochs.at(epoch):
            return evaluate(sink.node, {leaf: rows(leaf) for leaf in outputs(sink.node)})


def rows_of(item: StageInput, frames: Mapping[Node, DataFrame]) -> DataFrame:
    """The intake's columns of an input, from the frames of the leaves."""
    several = len(item.observed) > 1
    if several:
        numbers = {leaf: at for at, (leaf, _) in enumerate(item.observed)}
        frames = {
            leaf: frame.withColumn(LEAF, F.lit(numbers.get(leaf, -1)))  # type: ignore[arg-type]
            for leaf, frame in frames.items()
        }

    def look(frame: DataFrame, column: str, names: Mapping[int, str]) -> DataFrame:
        which = [(name, F.col(LEAF) == number if several else None) for number, name in names.items()]
        return observe(frame, column, which, item.ahead)

    frame = item.evaluated(frames, look)
    # The hash comes last: Spark keeps every way to write what it knows of a column, and each key that is renamed
    # behind it would double the ways to write the hash.
    return frame.select(
        *item.hidden,
        *[key.alias(f"k{at}") for at, key in enumerate(item.keys)],
        *[value.alias(f"v{at}") for at, value in enumerate(item.values)],
        *([] if item.hashed_at_intake else [F.xxhash64(*item.keys).alias("_h")]),
    )


def tagged_union(branches: Sequence[DataFrame]) -> tuple[DataFrame, Tagging]:
    found, types = tagging([branch.schema for branch in branches])
    union: DataFrame | None = None
    for number, (branch, own) in enumerate(zip(branches, found.branches, strict=True)):
        names = {at: name for name, at in own}
        columns = [
            (F.col(quoted(names[at])) if at in names else F.lit(None).cast(kind)).alias(f"c{at}")
            for at, kind in enumerate(types)
        ]
        rows = branch.select(F.lit(number).alias(INPUT), *columns)
        union = rows if union is None else union.union(rows)
    union = some(union, "a union of nothing")
    return union, found


def branch(union: DataFrame, found: Tagging, number: int) -> DataFrame:
    """The rows of one branch, as they were."""
    own = [F.col(f"c{at}").alias(name) for name, at in found.branches[number]]
    return union.where(F.col(INPUT) == number).select(*own)


def _together(branches: list[DataFrame]) -> tuple[DataFrame, Tagging | None]:
    return tagged_union(branches) if len(branches) > 1 else (branches[0], None)


def _streaming_leaves(frame: DataFrame) -> list[Any]:
    """What Spark reads for a DataFrame: equal ones have one reader, and one place in Spark's checkpoint."""
    found = frame._jdf.queryExecution().analyzed().collectLeaves()
    return [leaf for number in range(found.size()) if (leaf := found.apply(number)).isStreaming()]


def _source_frames(node: Node) -> dict[Node, DataFrame]:
    return {leaf: leaf.frame for leaf in leaves(node) if isinstance(leaf, Source)}
