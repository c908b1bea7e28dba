"""What Spark runs of a plan: the streaming DataFrame, and the rows of every level and sink.

Fixed stateless steps go into the streaming plan, before ``foreachBatch``: inside it the batch is an opaque RDD that
nothing can be pushed into. With one input the stream's columns are the intake's columns. Readers of one source share
a pass over it where they can (``one_pass``); passes, and the rows of readers that cannot, are a tagged union.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from holdfast.invariants import Impossible, some
from holdfast.plan import epochs
from holdfast.plan.compile import LEAF, Notes, Plan, StageInput
from holdfast.plan.compile import Look as LookAt
from holdfast.plan.fingerprint import Fingerprint
from holdfast.plan.frames import DIFF, with_sign
from holdfast.plan.graph import Node, Output, Sink, Source, evaluate, leaves, outputs, united
from holdfast.plan.passes import Crossing, Share
from holdfast.plan.tagging import INPUT, Tagging, tagging
from holdfast.plan.types import quoted
from holdfast.spark.bundles import Bundle, bundles
from holdfast.spark.observing import Look, largest, observe
from holdfast.spark.one_pass import Pass, Reader, readable, share_of
from holdfast.state.slice import Mode

Takers = tuple[tuple[int, Share | None], ...]
"""Who reads rows that come together: numbers among the readers, with what each takes."""


@dataclass(frozen=True)
class Branch:
    """Rows of the stream that come together."""

    rows: DataFrame
    readers: Takers


@dataclass(frozen=True, eq=False)
class JobPlan(Plan):
    """What Spark runs of it. Those who read sources are the inputs of the first level and the stateless sinks, numbered
    in this order. ``apart``: each reader has a branch for itself, and a place of its own in Spark's checkpoint, as it
    was before there were passes."""

    spark: SparkSession
    apart: bool = False
    noted: Notes = field(default_factory=Notes)
    streaming: JobPlan | None = None
    """Whose stream the query runs, if the job was changed since it began: it goes on as it was drawn."""

    @property
    def notes(self) -> Notes:
        return self.noted

    @property
    def places(self) -> list[Source]:
        """Sources in the order in which the streaming plan has them: Spark tells their offsets apart by that alone."""
        nodes = [node for node, _ in self._readers]
        first = [nodes[branch.readers[0][0]] for branch in self._branches]
        return [leaf for node in first for leaf in leaves(node) if isinstance(leaf, Source)]

    filters_in_stream: ClassVar[bool] = True
    """Whether filters over sources are in the streaming query, and with them looks at event times ahead of them."""

    stages_may_come: ClassVar[bool] = False
    """Whether stages are added while the job runs."""

    @property
    def reads(self) -> dict[str, int]:
        """How often Spark reads each source for a batch: at each place, for the intake and again for every sink that
        has its rows from the batch."""
        names = [source.name for source in self.places]
        return {name: names.count(name) * (1 + len(self.stateless_sinks)) for name in names}

    @property
    def passes(self) -> bool:
        """Whether some readers share a source."""
        return any(len(branch.readers) > 1 for branch in self._branches)

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

    def draw(self) -> None:
        """Whatever of it is drawn once, now and not with the first rows."""
        if self.streaming is not None:
            mine, theirs = ([item.place for item in plan.intake(1)] for plan in (self, self.streaming))
            if mine != theirs:
                raise Impossible(f"the query has rows for the inputs {theirs}, and the job wants {mine}")

    def stream(self) -> DataFrame:
        """The one streaming DataFrame of the section."""
        return self._stream[0]

    @cached_property
    def _readers(self) -> list[tuple[Node, StageInput | None]]:
        sinks: list[tuple[Node, StageInput | None]] = [(sink.node, None) for sink in self.stateless_sinks]
        return [*((item.node, item) for item in self.intake(1)), *sinks]

    @cached_property
    def _branches(self) -> list[Branch]:
        """In the order of their first readers."""
        if self.streaming is not None:
            return self.streaming._branches
        together: dict[Source, list[int]] = {}
        for number, (node, _) in enumerate(self._readers):
            below = list(leaves(node))
            if len(below) == 1 and isinstance(below[0], Source) and not self.apart:
                together.setdefault(below[0], []).append(number)
        found: dict[int, Branch] = {}
        for source, numbers in together.items():
            readers = {number: self._reader(number) for number in numbers} if len(numbers) > 1 else {}
            if (shared := one_pass(source.frame, readers)) is not None:
                drawn, takers = shared
                found[takers[0][0]] = Branch(drawn.over(source.frame), takers)
        passed = {number for branch in found.values() for number, _ in branch.readers}
        for number, (node, item) in enumerate(self._readers):
            if number not in passed:
                frames = _source_frames(node)
                rows = evaluate(node, frames) if item is None else rows_of(item, frames)
                found[number] = Branch(rows, ((number, None),))
        return [found[number] for number in sorted(found)]

    def _reader(self, number: int) -> Reader:
        node, item = self._readers[number]
        frames = _source_frames(node)
        return Reader(evaluate(node, frames)) if item is None else read_alone(item, frames)

    @cached_property
    def _stream(self) -> tuple[DataFrame, Tagging | None]:
        if self.streaming is not None:
            return self.streaming._stream
        return together([branch.rows for branch in self._branches])

    def branch(self, batch: DataFrame, sink: Sink) -> DataFrame:
        """The rows of a stateless sink, out of the batch."""
        return self._reader_rows(batch, len(self.intake(1)) + self.stateless_sinks.index(sink))

    def stage_rows(self, batch: DataFrame) -> tuple[DataFrame, Crossing | None]:
        """The rows of the first level's intake, out of the batch, and how to tell those of several inputs apart."""
        count = len(self.intake(1))
        if count == 1:
            return self._reader_rows(batch, 0), None
        tagging = self._stream[1]
        for_stages = [any(number < count for number, _ in branch.readers) for branch in self._branches]
        if not all(for_stages):
            batch = batch.where(F.col(INPUT).isin([number for number, mine in enumerate(for_stages) if mine]))
        takers = [tuple(taker for taker in branch.readers if taker[0] < count) for branch in self._branches]
        return batch, Crossing(tagging, tuple(takers))

    def _reader_rows(self, batch: DataFrame, number: int) -> DataFrame:
        """The rows of one reader, as they were."""
        tagging = self._stream[1]
        for at, branch in enumerate(self._branches):
            for reader, share in branch.readers:
                if reader == number:
                    mine = batch if tagging is None else untagged(batch, tagging, at)
                    return mine if share is None else share_of(mine, share)
        raise Impossible(f"there is no reader {number}")

    def sink_rows(self, sink: Sink, epoch: int, rows: Callable[[Sequence[Output]], DataFrame]) -> DataFrame:
        """The rows of a sink over stages; ``rows`` has those of several outputs of the same columns together."""
        if not sink.signed and (found := self._bundles_of(sink)) is not None:
            return united([evaluate(one.branch, {one.outputs[0]: rows(one.outputs)}) for one in found])
        hidden = (DIFF,) if sink.signed else ()
        frames: dict[Node, DataFrame] = {leaf: rows([leaf]) for leaf in outputs(sink.node)}
        if hidden:  # all rows that there are come without a sign
            frames = {leaf: one if DIFF in one.columns else with_sign(one) for leaf, one in frames.items()}
        with epochs.at(epoch):
            return evaluate(sink.node, frames, hidden)

    def _bundles_of(self, sink: Sink) -> list[Bundle] | None:
        if sink not in self._bundles:
            self._bundles[sink] = bundles(
                sink.node,
                lambda leaf: self.stage(leaf.stage.name).outputs[leaf.port],
                lambda schema: self.spark.createDataFrame([], schema),
            )
        return self._bundles[sink]

    @cached_property
    def _bundles(self) -> dict[Sink, list[Bundle] | None]:
        return {}


def rows_of_all(
    inputs: Sequence[StageInput], scanned: Callable[[Output, Mode], DataFrame]
) -> tuple[DataFrame, Crossing | None]:
    """The rows of inputs over stages, from what these have put out."""
    branches = []
    for item in inputs:
        branches.append(rows_of(item, {leaf: scanned(leaf, item.mode) for leaf in outputs(item.node)}))
    rows, tagging = together(branches)
    takers = tuple(((number, None),) for number in range(len(branches)))
    return rows, None if tagging is None else Crossing(tagging, takers)


def read_by(inputs: Sequence[StageInput]) -> list[tuple[Output, Mode]]:
    """Of which stages these inputs read what, and in which mode."""
    return [(leaf, item.mode) for item in inputs for leaf in outputs(item.node)]


def one_pass(source: DataFrame, readers: Mapping[int, Reader]) -> tuple[Pass, Takers] | None:
    """One pass for all of the readers that can share one, if several can."""
    can = [number for number, reader in readers.items() if readable(source, reader.rows)]
    if len(can) < 2:
        return None
    drawn = Pass(source, [readers[number] for number in can])
    return drawn, tuple(zip(can, drawn.shares, strict=True))


def read_alone(item: StageInput, frames: Mapping[Node, DataFrame]) -> Reader:
    """What an input reads of the frames of its leaves, and where it looks at event times on the way."""
    looks: list[Look] = []

    def look(frame: DataFrame, column: str, names: Mapping[int, str]) -> DataFrame:
        looks.append(Look(frame.select(quoted(column)), tuple(names.values()), item.ahead))
        return frame

    return Reader(rows_of(item, frames, look), tuple(looks))


def rows_of(item: StageInput, frames: Mapping[Node, DataFrame], looking: LookAt[DataFrame] | None = None) -> DataFrame:
    """The intake's columns of an input, from the frames of the leaves. ``looking`` is called where event times are to
    be seen, in place of Spark's ``observe``."""
    several = len(item.observed) > 1
    if several:
        numbers = {leaf: at for at, (leaf, _) in enumerate(item.observed)}
        frames = {
            leaf: frame.withColumn(LEAF, F.lit(numbers.get(leaf, -1)))  # type: ignore[arg-type]
            for leaf, frame in frames.items()
        }

    def look(frame: DataFrame, column: str, names: Mapping[int, str]) -> DataFrame:
        time, kind = F.col(quoted(column)), frame.schema[column].dataType
        which = [(name, F.col(LEAF) == number if several else None) for number, name in names.items()]
        return observe(frame, [((name,), largest(time, kind, item.ahead, among)) for name, among in which])

    frame = item.evaluated(frames, looking or look)
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


def untagged(union: DataFrame, found: Tagging, number: int) -> DataFrame:
    """The rows of one branch, as they were."""
    own = [F.col(f"c{at}").alias(name) for name, at in found.branches[number]]
    return union.where(F.col(INPUT) == number).select(*own)


def together(branches: list[DataFrame]) -> tuple[DataFrame, Tagging | None]:
    return tagged_union(branches) if len(branches) > 1 else (branches[0], None)


def _streaming_leaves(frame: DataFrame) -> list[Any]:
    """What Spark reads for a DataFrame: equal ones have one reader, and one place in Spark's checkpoint."""
    found = frame._jdf.queryExecution().analyzed().collectLeaves()
    return [leaf for number in range(found.size()) if (leaf := found.apply(number)).isStreaming()]


def _source_frames(node: Node) -> dict[Node, DataFrame]:
    return {leaf: leaf.frame for leaf in leaves(node) if isinstance(leaf, Source)}
