"""Keyed streams: the verbs that keep state, and the streams of rows that stages put out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import Column

from holdfast.api.columns import ColumnOrName, column
from holdfast.api.states import compiled, parameters_text
from holdfast.api.stream import Order, Stream
from holdfast.api.windows import Window, span
from holdfast.errors import PlanError
from holdfast.invariants import Impossible
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.distinct import DistinctSpec
from holdfast.operators.join import JoinSpec
from holdfast.operators.lookup import LookupSpec
from holdfast.operators.process import ProcessSpec
from holdfast.operators.spec import Column as PlainColumn
from holdfast.operators.top_k import TopKSpec
from holdfast.operators.window_top_k import WindowTopKSpec
from holdfast.plan.aggregate import Aggregate
from holdfast.plan.choices import one_of, without_on
from holdfast.plan.ddl import schema_of
from holdfast.plan.draft import Draft
from holdfast.plan.frames import Given
from holdfast.plan.graph import Output, Stage
from holdfast.plan.stage_names import stream_name
from holdfast.spark.sort_orders import sorted_as

if TYPE_CHECKING:
    from holdfast.api.drawing import Drawing

How = Literal["inner", "left", "right", "full"]
Late = Literal["count", "keep"]
AHEAD = "1 day"
"""So far may event time be ahead of the clock: more than any two time zones are apart."""


class KeyedStream:
    """A stream with its rows brought together by key."""

    def __init__(
        self, stream: Stream, keys: tuple[Given, ...], name: str | None, by: tuple[Given, ...] | None = None
    ) -> None:
        self._stream = stream
        self._keys = keys
        self._name = name
        self._by = keys if by is None else by  # in the name of a stage that is given none

    def agg(self, **aggregates: Aggregate) -> StageStream:
        """Keep running aggregates for every key, under the names given: ``agg(n=hf.count(), total=hf.sum("v"))``."""
        _refuse_strangers(aggregates)
        draft = self._draft("agg")
        return self._job._add_stage(draft, StageSpec.drafted(draft, aggregates))

    @without_on
    def window(
        self,
        window: Window,
        *,
        time: str | Column | None = None,
        lateness: str = "0 s",
        mode: Literal["append", "update"] = "append",
        early: str | None = None,
        late: Late = "count",
        ahead: str | None = AHEAD,
    ) -> WindowedStream:
        """Cut the rows of every key into windows, by event time in column ``time``; without it by processing time.

        A window's result comes out when the watermark (the largest event time, minus ``lateness``) has passed its end;
        with ``mode="update"`` whenever it changed; with ``early`` also now and then before it closes. Rows that come
        after that are counted, and with ``late="keep"`` are the stream ``.late`` of the result. Rows that are further
        ``ahead`` of the clock than that are dropped and counted: with None one wrong clock closes all windows.
        """
        one_of("late", late, "count", "keep")
        one_of("mode", mode, "append", "update")
        _check_time(time)
        return WindowedStream(self, window, time, span(lateness, least=0), mode, early, late == "keep", ahead)

    @without_on
    def join(
        self,
        other: KeyedStream,
        *,
        how: How = "inner",
        time: ColumnOrName | tuple[ColumnOrName, ColumnOrName] | None = None,
        within: str | tuple[str, str] | None = None,
        lateness: str = "0 s",
        late: Late = "count",
        ahead: str | None = AHEAD,
        name: str | None = None,
    ) -> StageStream:
        """Pairs of rows with equal keys, and with event times (``time``) within a bound of each other.

        ``within="10 s"`` is up to that long before or after; ``within=("0 s", "1 hour")`` up to the first before the
        left row and up to the second after it. Without a bound rows are kept for ever (inner joins only). A row of an
        outer side that found no partner comes out once none can come any more. Rows that come too late are counted.
        """
        if other._job is not self._job:
            raise PlanError("Streams of two jobs cannot be joined.", todo="Read both sources in the same job.")
        if other._name is not None:
            raise PlanError(
                f"The right side of a join was given the name '{other._name}', but a join is one stage.",
                safe="Nothing was started.",
                todo="Name the left side, key_by(…, name='…'), or the join, join(…, name='…').",
            )
        one_of("how", how, "inner", "left", "right", "full")
        _late_rows_are_counted("A join", late)
        times: tuple[ColumnOrName | None, ColumnOrName | None] = (None, None)
        if time is not None:
            left, right = time if isinstance(time, tuple) else (time, time)
            times = (column("The event time", left), column("The event time", right))
        if within is not None and time is None:
            raise PlanError("A join within a time needs the event time of both sides.", todo="join(…, time='ts')")
        bounds: tuple[int | None, int | None] = (None, None)
        if within is not None:
            before, after = (within, within) if isinstance(within, str) else within
            bounds = (span(before, least=0), span(after, least=0))
        verb = f"join_{stream_name(other._stream._node)}"
        draft = self._draft(verb, other, name=name or self._name, lateness=lateness, ahead=ahead)
        spec = JoinSpec.drafted(draft, how=how, times=times, before=bounds[0], after=bounds[1])
        return self._job._add_stage(draft, spec)

    def lookup(self, stage: StageStream, *, how: Literal["left", "inner"] = "left") -> StageStream:
        """Each row with what ``stage``, a running aggregate by the same key, holds for its key after this epoch's rows.

        ``how="inner"`` leaves out rows whose key it does not have.
        """
        one_of("how", how, "left", "inner")
        draft = self._draft(f"lookup_{stage.name}")
        peer = self._job._looked_into(stage)
        spec = LookupSpec.drafted(draft, peer.plan.name, peer.plan.operator, how=how)
        draft.after = peer.node
        return self._job._add_stage(draft, spec)

    @without_on
    def distinct(
        self,
        *,
        time: str | Column | None = None,
        within: str | None = None,
        error: float | None = None,
        expected: int | None = None,
        lateness: str = "0 s",
        late: Late = "count",
        ahead: str | None = AHEAD,
    ) -> StageStream:
        """The first row of every key; with ``within``, a key counts as new again when its first row's event time (in
        column ``time``) is further back than that. Rows that come too late to tell are counted.

        With ``error`` a Bloom filter remembers the keys: of ``expected`` keys no one comes out twice, and a share of at
        most ``error`` of new ones is dropped.
        """
        _late_rows_are_counted("distinct", late)
        _check_time(time)
        if (within is None) != (time is None):
            raise PlanError(
                "distinct needs both or neither of 'time' and 'within'.", todo="distinct(time='ts', within='1 h')"
            )
        if (error is None) != (expected is None):
            raise PlanError("A Bloom filter needs both: error, expected.", todo="distinct(error=0.01, expected=10**6)")
        bloom = None if error is None or expected is None else (expected, error)
        draft = self._draft("distinct", lateness=lateness, ahead=ahead)
        bound = None if within is None else span(within)
        spec = DistinctSpec.drafted(draft, time=time, within=bound, bloom=bloom)
        return self._job._add_stage(draft, spec)

    def top_k(self, k: int, by: Order | Sequence[Order], *, ties: str = "cut", rank: str = "rank") -> StageStream:
        """The ``k`` best rows of every key, largest first, with their ``rank``; see ``Stream.top_k``."""
        return self._top_k(k, by, ties, rank, final=False, hidden=False)

    def _top_k(
        self, k: int, by: Order | Sequence[Order], ties: str, rank: str, *, final: bool, hidden: bool
    ) -> StageStream:
        _check_top_k(k, ties)
        draft = self._draft("top_k")
        spec = TopKSpec.drafted(draft, k=k, by=_ordering(by), ties=ties, rank=rank, final=final, hidden_keys=hidden)
        return self._job._add_stage(draft, spec)

    @without_on
    def process(
        self,
        function: Callable[..., Any] | type,
        output: str,
        *,
        state: Mapping[str, Any] | None = None,
        outputs: Mapping[str, str] | None = None,
        time: str | Column | None = None,
        lateness: str = "0 s",
        late: Literal["give", "count"] = "give",
        rows: Literal["dicts", "arrow"] = "dicts",
        errors: Literal["fail", "dead_letter"] = "fail",
        ahead: str | None = AHEAD,
        parameters: Mapping[str, Any] | None = None,
    ) -> StageStream:
        """Run your own function or class on the rows of every key, with typed state and timers (``hf.states``).

        ``output`` is the schema of its rows as DDL ("user string, n bigint"), ``outputs`` those of further outputs by
        name: ``stage.output("alarms")``. With ``errors="dead_letter"`` rows that make it raise are
        ``stage.output("errors")`` instead of the end of the run. Late rows are given to it like others; with
        ``late="count"`` they are counted instead. The function finds ``parameters``, which are what JSON can say, as
        ``context.parameters``; ``run.update`` replaces them while the job runs.
        """
        _late_rows_are_counted("process", late, "give")
        _check_time(time)
        one_of("rows", rows, "dicts", "arrow")
        one_of("errors", errors, "fail", "dead_letter")
        draft = self._draft("process", lateness=lateness, ahead=ahead)
        pickled, states = compiled(function, state)
        produced = {"": _columns(output), **{port: _columns(ddl) for port, ddl in (outputs or {}).items()}}
        spec = ProcessSpec.drafted(
            draft,
            pickled,
            states,
            produced,
            time=time,
            rows=rows,
            errors=errors,
            drop_late=late == "count",
            parameters=parameters_text(parameters or {}),
        )
        draft.label = getattr(function, "__name__", "")
        return self._job._add_stage(draft, spec)

    @property
    def _job(self) -> Drawing:
        return self._stream._job

    def _draft(
        self, verb: str, *others: KeyedStream, name: str | None = None, lateness: str = "0 s", ahead: str | None = AHEAD
    ) -> Draft:
        rows = [(keyed._stream._node, keyed._stream._frame, keyed._keys) for keyed in (self, *others)]
        draft = self._job._draft(name or self._name, rows, verb, self._by)
        draft.lateness = span(lateness, least=0)
        draft.ahead = None if ahead is None else span(ahead)
        return draft


@dataclass(frozen=True)
class WindowedStream:
    """A keyed stream cut into windows; ``agg`` says what is kept of each."""

    _keyed: KeyedStream
    _window: Window
    _time: str | Column | None
    _lateness: int
    _mode: str
    _early: str | None
    _keep_late: bool
    _ahead: str | None

    def agg(self, **aggregates: Aggregate) -> StageStream:
        """Aggregates of every key and window; the rows also have ``window_start`` and ``window_end``, but for windows
        of rows with ``numbered=False``."""
        _refuse_strangers(aggregates)
        window = self._window
        draft = self._keyed._draft(window.verb, ahead=self._ahead)
        draft.lateness = self._lateness
        spec = window.spec.drafted(
            draft,
            aggregates,
            size=window.size,
            every=window.every,
            unit="rows" if window.kind == "rows" else "clock" if self._time is None else "event",
            offset=window.offset,
            time=self._time,
            mode=self._mode,
            early=span(self._early) if self._early else 0,
            keep_late=self._keep_late,
            **({} if window.numbered else {"numbered": False}),
        )
        return self._keyed._job._add_stage(draft, spec)

    def top_k(self, k: int, by: Order | Sequence[Order], *, ties: str = "cut", rank: str = "rank") -> StageStream:
        """The ``k`` best rows of every key in each window, with ``window_start``, ``window_end`` and their ``rank``,
        once it has closed; for tumbling windows in event time. See ``Stream.top_k``.
        """
        window = self._window
        _check_top_k(k, ties)
        if window.kind != "time" or window.every != window.size or self._time is None:
            raise PlanError(
                "Only tumbling windows in event time have a top_k.", todo="window(hf.tumbling(…), time='ts')"
            )
        if self._mode != "append" or self._early or self._keep_late:
            raise PlanError(
                "A window's top_k comes out when it closes, and its late rows are counted.",
                todo="Leave mode, early and late as they are.",
            )
        draft = self._keyed._draft(f"{window.verb}_top_k", ahead=self._ahead)
        draft.lateness = self._lateness
        spec = WindowTopKSpec.drafted(
            draft,
            k=k,
            by=_ordering(by),
            ties=ties,
            rank=rank,
            size=window.size,
            offset=window.offset,
            time=self._time,
        )
        return self._keyed._job._add_stage(draft, spec)


class StageStream(Stream):
    """The rows of a stage. ``run.state`` can read what it holds."""

    @property
    def name(self) -> str:
        return self._stage.name

    @property
    def late(self) -> Stream:
        """The rows that came too late, of a window with ``late="keep"``."""
        return self.output("late")

    def output(self, port: str) -> Stream:
        """A further output of the stage."""
        return self._job._output(self._stage, port)

    @property
    def _stage(self) -> Stage:
        if not isinstance(self._node, Output):
            raise Impossible(f"{self._node!r} is no Output")
        return self._node.stage


def _check_time(given: object) -> None:
    if given is not None:
        column("The event time", given)


def _check_top_k(k: int, ties: str) -> None:
    if k < 1 or ties not in ("cut", "all"):
        raise PlanError(f"There is no top_k({k}, ties={ties!r}).", todo="k from 1 on; ties='cut' or 'all'.")


def _late_rows_are_counted(verb: str, late: object, *others: str) -> None:
    """Of a verb that has no stream of late rows, whatever it may do with them besides (``others``)."""
    if late == "keep":
        raise PlanError(
            f"{verb} cannot keep its late rows: only windows put them out, as the stream .late.",
            safe="Nothing was started.",
            todo=f"Use late={' or '.join(map(repr, ('count', *others)))}; the stage's status has how many there were.",
        )
    one_of("late", late, *others, "count")


def _refuse_strangers(aggregates: Mapping[str, Aggregate]) -> None:
    if not aggregates:
        raise PlanError("agg needs at least one aggregate.", todo="For example agg(n=hf.count()).")
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise PlanError(
                f"'{name}' is not an aggregate but a {type(aggregate).__name__}.",
                todo="Use hf.sum(...) and its like.",
            )


def _ordering(by: Order | Sequence[Order]) -> list[tuple[ColumnOrName, bool]]:
    single = not isinstance(by, list | tuple) or (
        isinstance(by, tuple) and len(by) == 2 and isinstance(by[1], str) and by[1] in ("asc", "desc")
    )
    found: list[tuple[ColumnOrName, bool]] = []
    for one in [by] if single else by:  # type: ignore[union-attr]
        said = sorted_as(one) if isinstance(one, Column) else None
        if said is not None:
            if said.nulls_first == said.descending:
                raise PlanError(
                    "top_k has nulls first in ascending order and last in descending, as Spark has without a word.",
                    safe="Nothing was started.",
                    todo="Order by whether it is null before that: by=[F.col('n').isNull().asc(), F.col('n').asc()].",
                )
            found.append((said.column, said.descending))
            continue
        value, direction = one if isinstance(one, tuple) else (one, "desc")
        if direction not in ("asc", "desc"):
            raise PlanError(f"There is no order '{direction}'.", todo="Use 'asc' or 'desc'.")
        found.append((column("What top_k orders by", value), direction == "desc"))
    if not found:
        raise PlanError("top_k needs at least one column to order by.")
    return found


def _columns(ddl: str) -> tuple[PlainColumn, ...]:
    return tuple(PlainColumn(field.name, field.dataType.simpleString()) for field in schema_of(ddl).fields)
