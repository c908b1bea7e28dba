"""Streams: what flows between a job's sources, stages and sinks.

The stateless verbs are Spark's own and go straight to Spark; each is checked at once against the stream's schema, so
that a misspelt column is an error on the line that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from holdfast.api.aggregates import Aggregate
from holdfast.errors import PlanError
from holdfast.plan.compile import unknown_column
from holdfast.plan.graph import DIFF, Node, Sink, Source, Stage, Step, Union, leaves

if TYPE_CHECKING:
    from holdfast.api.job import Job


class Stream:
    """Rows on their way. Made by ``job.read`` and by the verbs below; never changed."""

    def __init__(self, job: Job, node: Node, frame: DataFrame) -> None:
        self._job = job
        self._node = node
        self._frame = frame  # for its schema alone, and, over sources, what Spark will run

    @property
    def schema(self) -> StructType:
        return StructType([field for field in self._frame.schema.fields if field.name != DIFF])

    @property
    def columns(self) -> list[str]:
        return [name for name in self._frame.columns if name != DIFF]

    def select(self, *columns: str | Column) -> Stream:
        return self._step("select", lambda frame, hidden: frame.select(*columns, *hidden))

    def where(self, condition: str | Column) -> Stream:
        return self._step("where", lambda frame, _: frame.where(condition))

    filter = where

    def with_column(self, name: str, value: Column) -> Stream:
        return self._step("with_column", lambda frame, _: frame.withColumn(name, value))

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Stream:
        """Any stateless change that Spark can make of a DataFrame."""
        return self._step(getattr(function, "__name__", "transform"), lambda frame, _: function(frame))

    def union(self, other: Stream) -> Stream:
        if other._job is not self._job:
            raise PlanError("Streams of two jobs cannot be one stream.", todo="Read both sources in the same job.")
        mine, theirs = (any(isinstance(leaf, Stage) for leaf in leaves(node)) for node in (self._node, other._node))
        if mine != theirs:
            raise PlanError(
                "A source's rows and a stage's changing rows cannot be one stream: the second can be withdrawn.",
                todo="Union sources before key_by, or the outputs of stages after agg.",
            )
        try:
            frame = self._frame.union(other._frame)
        except AnalysisException as error:
            raise PlanError(f"These streams do not fit together: {str(error).splitlines()[0]}") from None
        return Stream(self._job, Union(self._node, other._node), frame)

    def key_by(self, *keys: str | Column) -> KeyedStream:
        if not keys:
            raise PlanError("key_by needs at least one column.")
        return KeyedStream(self, keys)

    def write(
        self,
        format: str,
        path: str | None = None,
        *,
        mode: str = "update",
        name: str | None = None,
        partition_by: str | list[str] | None = None,
        **options: object,
    ) -> Stream:
        """Send this stream to one of Spark's formats, once per epoch.

        ``mode="update"`` sends the rows that changed in the epoch, ``"complete"`` all of them.
        """
        over_stage = any(isinstance(leaf, Stage) for leaf in leaves(self._node))
        if mode == "append" and over_stage:
            raise PlanError(
                "A running aggregate changes rows it has put out before, so it cannot be appended.",
                todo="Use mode='update' or mode='complete'.",
            )
        if mode == "complete" and not over_stage:
            raise PlanError("Only a stage's rows can be written in 'complete' mode.", todo="Leave mode as it is.")
        given = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
        if path is not None:
            given["path"] = path
        by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
        self._job._add_sink(Sink(name or "", self._node, format, mode, self.schema, given, by))
        return self

    def for_each_batch(
        self, function: Callable[[DataFrame, int], None], *, mode: str = "update", name: str | None = None
    ) -> Stream:
        """Call ``function(df, epoch)`` for every epoch; again, with identical rows, if one had to be finished twice."""
        self._job._add_sink(Sink(name or "", self._node, "for_each_batch", mode, self.schema, function=function))
        return self

    def _step(self, label: str, run: Callable[[DataFrame, tuple[str, ...]], DataFrame]) -> Stream:
        hidden = (DIFF,) if DIFF in self._frame.columns else ()
        try:
            frame = run(self._frame, hidden)
        except AnalysisException as error:
            raise unknown_column(error, self._frame, f"'{label}' step") from None
        if all(isinstance(leaf, Source) for leaf in leaves(self._node)) and not frame.isStreaming:
            raise PlanError(f"The step '{label}' returned a DataFrame that is not a stream any more.")
        return Stream(self._job, Step(self._node, label, run), frame)


class KeyedStream:
    """A stream with its rows brought together by key."""

    def __init__(self, stream: Stream, keys: tuple[str | Column, ...]) -> None:
        self._stream = stream
        self._keys = keys

    def agg(self, **aggregates: Aggregate) -> AggregatedStream:
        """Keep running aggregates for every key, under the names given: ``agg(n=hf.count(), total=hf.sum("v"))``."""
        if not aggregates:
            raise PlanError("agg needs at least one aggregate.", todo="For example agg(n=hf.count()).")
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise PlanError(
                    f"'{name}' is not an aggregate but a {type(aggregate).__name__}.",
                    todo="Use hf.sum(...) and its like.",
                )
        return self._stream._job._add_stage(self._stream, self._keys, aggregates)


class AggregatedStream(Stream):
    """The rows of a stage: one per key, as of the last epoch. ``run.state`` can read it."""

    @property
    def name(self) -> str:
        assert isinstance(self._node, Stage)
        return self._node.name
