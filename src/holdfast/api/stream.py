"""Streams: what flows between a job's sources, stages and sinks.

The stateless verbs are Spark's own and go straight to Spark; each is checked at once against the stream's schema, so
that a misspelt column is an error on the line that has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from holdfast.api.columns import ColumnOrName
from holdfast.api.columns import columns as columns_of
from holdfast.api.naming import named_sink
from holdfast.errors import PlanError
from holdfast.plan import epochs
from holdfast.plan.epochs import Epoch
from holdfast.plan.frames import DIFF, Constant, Given, no_epoch_here
from holdfast.plan.graph import (
    Node,
    Sink,
    Step,
    Union,
    hidden_last,
    leaves,
    loops,
    outputs,
    sources,
    union_of,
    updating,
)
from holdfast.spark.analysis import asking_spark, origins, selected, with_column

if TYPE_CHECKING:
    from holdfast.api.drawing import Drawing
    from holdfast.api.keyed import KeyedStream, StageStream
    from holdfast.api.writer import StreamWriter

_FED = re.compile(r"[\w.-]+")
WINDOW = ("window_start", "window_end")
Order = ColumnOrName | tuple[ColumnOrName, str]


class Stream:
    """Rows on their way. Made by ``job.read`` and by the verbs below; never changed."""

    def __init__(self, job: Drawing, node: Node, frame: Any, *, windowed: bool = False, complete: bool = False) -> None:
        self._job = job
        self._node = node
        self._frame = frame  # for its schema alone, and, over sources, what Spark will run
        self._windowed = windowed  # all rows of a window come in one epoch
        self._complete = complete  # the stage can give all rows there are, not only those that changed

    @property
    def schema(self) -> StructType:
        return StructType([field for field in self._frame.schema.fields if field.name != DIFF])

    @property
    def columns(self) -> list[str]:
        return [name for name in self._frame.columns if name != DIFF]

    def select(self, *columns: ColumnOrName | Sequence[ColumnOrName]) -> Stream:
        chosen = columns_of("A column of select", columns)
        return self._step(
            "select",
            lambda frame, hidden: selected(frame, [*chosen, *hidden]),
            filters=False,
            before=origins,
            given=chosen,
        )

    def where(self, condition: str | Column) -> Stream:
        return self._step(
            "where",
            lambda frame, _: frame.where(condition),
            before=lambda _: lambda name: name,
            given=(condition,),
            said=condition,
        )

    filter = where

    def with_column(self, name: str, value: str | Column) -> Stream:
        """One more column, or another in place of one; text is SQL: ``with_column("cents", "price * 100")``."""
        return self._step(
            "with_column",
            lambda frame, _: with_column(frame, name, value),
            filters=False,
            before=origins,
            given=(value,),
        )

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Stream:
        """Any stateless change that Spark can make of a DataFrame."""
        return self._step(getattr(function, "__name__", "transform"), lambda frame, _: function(frame), opaque=True)

    def union(self, other: Stream) -> Stream:
        if other._job is not self._job:
            raise PlanError("Streams of two jobs cannot be one stream.", todo="Read both sources in the same job.")
        both = (self._node, other._node)
        if any(map(outputs, both)) and any(map(sources, both)):
            raise PlanError(
                "A source's rows and a stage's rows come at unlike moments of an epoch and cannot be one stream.",
                todo="Union sources before key_by, or the outputs of stages after it; a join may have one of each.",
            )
        hidden = (DIFF,) if DIFF in (*self._frame.columns, *other._frame.columns) else ()
        if any(map(loops, both)) and any(map(sources, both)):
            other = self._alike(other)
        if hidden and any(map(loops, both)):
            raise PlanError(
                "Rows that go round a loop are never taken back, and these can be: they cannot be one stream.",
                safe="Nothing was started.",
                todo="Give each a key_by of its own and join them, or use rows that stay (closed windows, process).",
            )
        with asking_spark(self._frame, "union of these streams"):
            frame = union_of(self._frame, other._frame, hidden)
        across = dict(zip(self.columns, other.columns, strict=True))
        return Stream(self._job, Union(self._node, other._node, across), frame)

    def _alike(self, other: Stream) -> Stream:
        """The other with the names of this one. Rows of sources and of loops come at unlike moments, and one side is
        then the whole stream: it must be what the union is."""
        mine, theirs = ([(one.name, one.dataType.simpleString()) for one in side.schema] for side in (self, other))
        if [kind for _, kind in mine] != [kind for _, kind in theirs]:
            raise PlanError(
                f"A union of a source's rows and a loop's needs the same types on both sides, not {_shown(mine)} and "
                f"{_shown(theirs)}.",
                safe="Nothing was started.",
                todo="Select the same columns in the same order; cast those that differ.",
            )
        if mine == theirs:
            return other
        names, before = [name for name, _ in mine], dict(zip(self.columns, other.columns, strict=True))
        return other._step(
            "union",
            lambda frame, hidden: hidden_last(frame, hidden).toDF(*names, *hidden),
            filters=False,
            before=lambda _: before.get,
        )

    def key_by(self, *keys: ColumnOrName | Sequence[ColumnOrName], name: str | None = None) -> KeyedStream:
        """Bring rows together by key, for one of the verbs that keep state. ``name`` is the stage's, by which it finds
        its state again; without one it is made from what the stage does: ``clicks_by_product_agg``.
        """
        from holdfast.api.keyed import KeyedStream

        chosen = columns_of("A key", keys)
        if not chosen:
            raise PlanError("key_by needs at least one column.")
        return KeyedStream(self, chosen, name)

    def top_k(
        self,
        k: int,
        by: Order | Sequence[Order],
        *,
        per: str | Column | Sequence[str | Column] | None = None,
        ties: str = "cut",
        rank: str = "rank",
        name: str | None = None,
    ) -> StageStream:
        """The ``k`` best rows, largest first, with their ``rank``: of each window where the rows are a window's
        results, of each group where ``per`` names columns, else of all.

        ``by="clicks"``, ``by=[("price", "desc"), ("at", "asc")]`` or ``by=F.col("price").asc()``. Rows that are equal
        in that are ordered by their other columns; ``ties="all"`` keeps all that are equal to the last one. When a
        group changes, the whole of it is put out.
        """
        from holdfast.api.keyed import KeyedStream

        windowed = all(column in self.columns for column in WINDOW) and self._windowed
        if per is None:
            keys: tuple[Given, ...] = WINDOW if windowed else (Constant("all", 0),)
        else:
            keys = columns_of("per of top_k", [per])
        plain = {self._job._view(self._frame).plain(key) for key in keys}
        final = windowed and plain.issuperset(WINDOW) and not updating(self._node)
        hidden = per is None and not windowed
        keyed = KeyedStream(self, keys, name, by=() if per is None else None)
        return keyed._top_k(k, by, ties, rank, final=final, hidden=hidden)

    def write(
        self,
        format: str,
        path: str | None = None,
        *,
        mode: str = "update",
        name: str | None = None,
        partition_by: str | list[str] | None = None,
        stamp: bool = True,
        after: str = "",
        **options: object,
    ) -> Stream:
        """Send this stream to one of Spark's formats, once per epoch.

        ``mode="update"`` sends the rows that are new or changed in the epoch, ``"complete"`` all that there are, where
        the stage holds them (running aggregates, ``top_k``). ``"append"`` is for rows that never change.

        ``stamp``: rows carry whose they are, so that those that come twice after a crash can be told: columns ``_job``,
        ``_sink`` and ``_epoch`` in tables, ``_epoch`` alone in files, headers ``holdfast-job``, ``holdfast-sink`` and
        ``holdfast-epoch`` in Kafka.

        The sinks of an epoch run side by side; ``after`` names one that has it before this one does.
        """
        by = [partition_by] if isinstance(partition_by, str) else partition_by or []
        given = options | ({} if path is None else {"path": path})
        return self._written(format, mode, name, by, given, stamp=stamp, after=after)

    @property
    def writeStream(self) -> StreamWriter:  # noqa: N802 - Spark's own name
        """Spark's builder over ``write``: ``writeStream.format("parquet").option("path", "out").start()``."""
        from holdfast.api.writer import StreamWriter

        return StreamWriter(self)

    def _written(
        self,
        format: str,
        mode: str,
        name: str | None,
        partition_by: Sequence[str],
        options: Mapping[str, object],
        *,
        stamp: bool = True,
        table: str = "",
        after: str = "",
    ) -> Stream:
        if mode not in ("update", "append", "complete"):
            raise PlanError(f"There is no output mode '{mode}'.", todo="Use 'update', 'append' or 'complete'.")
        if mode == "append" and updating(self._node):
            raise PlanError(
                "This stream changes rows it has put out before, so it cannot be appended.",
                todo="Use mode='update' or mode='complete', or windows that put out a result when they close.",
            )
        self._refuse_incomplete(mode)
        given = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
        self._job._add_sink(
            Sink(
                name or "",
                self._node,
                format,
                mode,
                self.schema,
                given,
                tuple(partition_by),
                stamp=stamp,
                table=table,
                after=after,
            )
        )
        return self

    def for_each_batch(
        self,
        function: Callable[[DataFrame, Epoch], None],
        *,
        mode: str = "update",
        name: str | None = None,
        after: str = "",
    ) -> Stream:
        """Call ``function(df, epoch)`` for every epoch; again, with identical rows, if one had to be finished twice.

        ``epoch`` is an ``int`` that knows its ``job`` and ``sink``; ``hf.once`` remembers it with what is written.
        With other sinks in the job it is called in a thread of its own, beside them; ``after`` names one that comes
        first.
        """
        sink = Sink(name or "", self._node, "for_each_batch", mode, self.schema, function=function, after=after)
        self._job._add_sink(sink)
        return self

    def feedback(self, name: str, *, mode: str = "update") -> Stream:
        """Give what this stream has in an epoch to all functions of the next one, as ``context.feedback[name]``; in a
        hub, to those of all its jobs, as ``context.feedback["job/name"]``.

        With ``mode="update"`` these are the rows that are new or changed in the epoch, with ``"complete"`` all that
        there are, where the stage holds them (running aggregates, ``top_k``). At most 64 KiB: more ends the run, with
        the epoch not committed.
        """
        if not _FED.fullmatch(name):
            raise PlanError(f"'{name}' cannot be a feedback's name.", todo="Use letters, digits, _, - and dots.")
        if mode not in ("update", "complete"):
            raise PlanError(f"There is no feedback of mode '{mode}'.", todo="Use 'update' or 'complete'.")
        if len(outputs(self._node)) != len(list(leaves(self._node))):
            raise PlanError(
                "Only what a stage puts out can be fed back: a source's rows are no result, and may be many.",
                safe="Nothing was started.",
                todo="Aggregate them first: key_by(…).agg(…), then top_k(…) or where(…), then feedback(…).",
            )
        self._refuse_incomplete(mode)
        self._job._add_sink(Sink(f"feedback:{name}", self._node, "feedback", mode, self.schema, feeds=name))
        return self

    def named(self, name: str, *, keep: str | None = None) -> Stream:
        """Make what this stream has in each epoch a block of the stream ``name``, for other jobs to read:
        ``job.stream(name, store=…)`` there, or ``spark.readStream.format("holdfast")``.

        ``keep`` says for how long blocks are there though all readers have read them, and how long a reader may be away
        without losing any: "1 day", or "all" for ever. None: until every reader that there is has read them.
        """
        self._job._add_sink(named_sink(self, name, keep))
        return self

    def _refuse_incomplete(self, mode: str) -> None:
        if mode == "complete" and not self._complete:
            raise PlanError(
                "Only rows that a stage still holds can be written in 'complete' mode.", todo="Leave mode as it is."
            )

    def _step(
        self,
        label: str,
        run: Callable[[Any, tuple[str, ...]], Any],
        *,
        filters: bool = True,
        before: Callable[[Any], Callable[[str], str | None]] = lambda _: lambda _: None,
        given: Sequence[object] = (),
        opaque: bool = False,
        said: str | Column = "",
    ) -> Stream:
        """``before`` of the frame that the step makes tells which column of this one each of its columns is."""
        hidden = (DIFF,) if DIFF in self._frame.columns else ()
        epochal = epochs.mentions(*given)
        if epochal and not outputs(self._node):
            raise no_epoch_here()
        run = epochs.seeing(run) if epochal else run
        with asking_spark(self._frame, f"'{label}' step"):
            frame = run(self._frame, hidden)
        if sources(self._node) and not frame.isStreaming:
            raise PlanError(f"The step '{label}' returned a DataFrame that is not a stream any more.")
        step = Step(self._node, label, run, filters, before(frame), epochal, opaque, str(said))
        return Stream(self._job, step, frame, windowed=self._windowed, complete=self._complete)


def _shown(columns: Sequence[tuple[str, str]]) -> str:
    return "(" + ", ".join(f"{name} {kind}" for name, kind in columns) + ")"
