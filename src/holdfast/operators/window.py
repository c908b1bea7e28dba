"""``key_by(...).window(...).agg(...)`` on a slice: tumbling and sliding windows, in time or by rows of a key.

Two ways to keep them. Whole windows (``whole``), one row each, where a window is one pane or has to be shown before it
closes. Panes (``panes``, ``row_panes``) for sliding windows that are put out when they close: a row folds into one
pane, however many windows that pane is in. ``first`` and ``last`` go by the order of rows within a pane, and by the
order of the panes across them; sliding windows kept whole have that order within each epoch.

A row whose windows have all closed before comes too late; one that some have missed still counts in the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self

import numpy as np
import pyarrow as pa

from holdfast.errors import PlanError
from holdfast.invariants import invariant
from holdfast.operators.aggregates.accumulator import Accumulators, Arenas, Inputs
from holdfast.operators.aggregates.spec import AggregatingSpec, Wanted, aggregates_of
from holdfast.operators.ahead import Partials
from holdfast.operators.bounds import END, START, Bound, Columns, Reading
from holdfast.operators.draft import Draft, Given
from holdfast.operators.grid import Grid
from holdfast.operators.keyed import Fields, KeyedOperator, refuse_doubles
from holdfast.operators.late import LATE, late_columns, past_windows
from holdfast.operators.panes import SlidingPanes
from holdfast.operators.row_panes import RowPanes
from holdfast.operators.spec import AggregateSpec, Column, Difference, unlike
from holdfast.operators.timed import TimedInput, stretch_of
from holdfast.operators.whole import WholeWindows
from holdfast.state import arrow
from holdfast.state.columns import NO_BYTES, Array, Ints
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.slice import MAIN, NEVER, Work
from holdfast.state.table import Layout, Table
from holdfast.state.types import BIGINT, required

_REFUSED = "nothing was started or written."
TIMESTAMP = required("timestamp", "a window's start")


@dataclass(frozen=True)
class WindowSpec(AggregatingSpec):
    """Windows over a keyed stream; aggregates read value columns ``v0`` …, ``size`` is in microseconds or in rows."""

    kind = "window"
    free = frozenset({"aggregates", "values", "time", "late", "early", "overflow"})

    keys: tuple[Column, ...]
    aggregates: tuple[AggregateSpec, ...]
    values: tuple[Column, ...]
    size: int
    every: int
    unit: str
    time: str | None
    offset: int = 0
    mode: str = "append"
    early: int = 0
    late: tuple[int, ...] = ()
    updating_input: bool = False
    ansi: bool = True
    overflow: str = ""
    numbered: bool = True
    """Windows by rows say which rows of their key they are: then a key's rows are counted for ever."""

    @classmethod
    def drafted(
        cls,
        draft: Draft,
        wanted: Mapping[str, Wanted],
        *,
        size: int,
        every: int,
        unit: Literal["event", "clock", "rows"],
        offset: int,
        time: Given | None,
        mode: str,
        early: int,
        keep_late: bool,
        numbered: bool = True,
    ) -> Self:
        if unit == "rows" and time is not None:
            raise PlanError("A window of rows has no event time.", safe=_REFUSED, todo="Leave 'time' out.")
        aggregates = aggregates_of(draft, wanted)
        number = draft.take_time(time)
        return cls(
            keys=draft.inputs[0].keys,
            aggregates=aggregates,
            size=size,
            every=every,
            unit=unit,
            time=None if number is None else f"v{number}",
            offset=offset,
            mode=mode,
            early=early,
            late=late_columns(draft, keep_late),
            updating_input=draft.updating,
            ansi=draft.ansi,
            values=tuple(draft.inputs[0].values.plain),
            numbered=numbered,
        )

    def build(self) -> WindowOperator:
        return WindowOperator(self)

    @property
    def grid(self) -> Grid:
        """By rows a window ends after every so many of them; the first ones began before there was a row."""
        return Grid(self.size, self.every, -self.size if self.unit == "rows" else self.offset)

    def windows(self, operator: WindowOperator, aggregates: Accumulators) -> Windows:
        """How they are kept: whole, where a window is one pane or is shown before it closes."""
        whole = self.every == self.size or self.mode == "update" or self.early > 0
        kept = WholeWindows if whole else RowPanes if self.unit == "rows" else SlidingPanes
        return kept(operator, self.grid, aggregates)

    @property
    def apart(self) -> bool:
        """Whether windows of a key have nothing to do with each other: then each is a unit."""
        return self.every == self.size and self.unit != "rows"

    @property
    def undivided(self) -> str | None:
        if self.early:
            return "early results of all keys are shown together: leave early= out, or use hf.Delta"
        if self.unit == "clock" and not self.apart:
            return "windows by the clock that overlap close together: give them an event time, or use hf.Delta"
        return None

    @property
    def label(self) -> str:
        return "rows window" if self.unit == "rows" else "time window"

    @property
    def takes_back(self) -> bool:
        return self.updating_input

    @property
    def updates(self) -> bool:
        return self.mode == "update" or self.early > 0

    @property
    def windowed(self) -> bool:
        return self.unit != "rows" and not self.updates

    @property
    def timed(self) -> bool:
        return self.unit == "event"

    def partials(self) -> Partials | None:
        """By panes: those of one share every decision that a window takes."""
        columns = self.partial_columns()
        stretch = stretch_of(self.time, self.values, self.grid.pane, self.offset)
        if self.unit == "rows" or self.late or columns is None or (self.time is not None and stretch is None):
            return None
        return Partials(columns, stretch)

    def bounds(self, name: str, inputs: Sequence[Reading], ports: Mapping[str, Sequence[str]]) -> Mapping[str, Columns]:
        own = (Bound(name),)
        if not self.numbered:
            return {MAIN: {}}
        return {MAIN: {START: (Bound(name, self.size),), END: own}, LATE: dict.fromkeys(inputs[0].times, own)}

    def difference(self, asked: Self) -> Difference:
        found = super().difference(asked)
        refused = unlike("early results", bool(self.early), bool(asked.early))
        return replace(found, refused=(*found.refused, *refused)) if refused else found


class Windows(Protocol):
    """A way to keep windows in tables."""

    layouts: tuple[Layout, ...]
    clocked: bool

    def due(self, tables: Sequence[Table]) -> int | None:
        """The clock at which something closes or is shown."""

    def apply(self, work: Work, rows: Rows | None, times: Array, late: int, upto: int) -> None:
        """Rows with their times into the windows that end after ``late``; those that end by ``upto`` close."""

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Arenas) -> pa.RecordBatch:
        """Rows of the first table."""


class WindowOperator(KeyedOperator):
    """Windows of one size, each a row of aggregates for every key that has a row in it."""

    def __init__(self, spec: WindowSpec) -> None:
        _check(spec)
        super().__init__(spec.keys, [spec.values], signed=spec.updating_input)
        self.spec = spec
        inputs = Inputs()
        # Ahead of all aggregates a column counts the rows of a window or pane.
        aggregates = spec.accumulators(inputs, 1)
        self._input = TimedInput(inputs, spec.values, spec.time if spec.unit == "event" else None, spec.late)
        edge = BIGINT if spec.unit == "rows" else TIMESTAMP
        edges = (("window_start", edge), ("window_end", edge)) if spec.numbered else ()
        self.state: Fields = (*self.keys, *edges, *aggregates.fields)
        self.outputs = {MAIN: self.state}
        if spec.late:
            self.outputs[LATE] = (*self.keys, *self._input.late_fields)
        for fields in self.outputs.values():
            refuse_doubles([name for name, _ in fields])
        self._rows = spec.unit == "rows"
        self._apart = spec.apart
        self._grid = spec.grid
        self._windows = spec.windows(self, aggregates)
        self.layouts, self.clocked = self._windows.layouts, self._windows.clocked

    def decode(self, batch: pa.RecordBatch, *, port: int = 0, partial: bool = False) -> Rows:
        return self._input.decode(batch, self.codec, signed=self._signed, partial=partial)

    def apply(self, work: Work, *inputs: Rows | None) -> None:
        rows, time = inputs[0] if inputs[0] is not None and len(inputs[0]) else None, work.time
        if self._rows:
            self._windows.apply(work, rows, np.empty(0, np.int64), NEVER, NEVER)
        elif self.spec.unit == "clock":
            times = np.full(0 if rows is None else len(rows), time.clock, np.int64)
            self._windows.apply(work, rows, times, NEVER, time.clock)
        else:
            rows, times = (None, np.empty(0, np.int64)) if rows is None else self._in_time(work, rows)
            self._windows.apply(work, rows, times, time.late, time.watermark)

    def _in_time(self, work: Work, rows: Rows) -> tuple[Rows | None, Array]:
        """The rows that have a time and some window still open, with their times."""
        rows, times = self._input.timed(work, rows)
        if not len(rows):
            return None, times
        gone = past_windows(work, self._grid, times)
        return (rows, times) if gone is None else self._input.without_late(work, self, rows, times, gone)

    def units(self, table: int, keys: KeyRows) -> Ints:
        return keys.hash if self._apart else super().units(table, keys)

    def row_units(self, rows: Rows, port: int, clock: int) -> Ints:
        if not self._apart:
            return rows.keys.hash
        times = self._input.times(rows) if self.spec.unit == "event" else np.full(len(rows), clock, np.int64)
        return rows.keys.extended(self._grid.panes(times)).hash

    def due(self, tables: Sequence[Table]) -> int | None:
        return self._windows.due(tables)

    def find(self, table: Table, keys: KeyRows) -> Array:
        return self.find_extended(table, keys, 1)

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Arenas) -> pa.RecordBatch:
        return self._windows.finish(keys, columns, arenas)

    def results(self, keys: KeyRows, starts: Array, ends: Array, results: Sequence[pa.Array]) -> pa.RecordBatch:
        """Rows as people see them: keys, where the window begins and ends, aggregates."""
        if not self.spec.numbered:
            return pa.RecordBatch.from_arrays([*self.codec.encode(keys), *results], schema=self.output_schema)
        edge = self.state[len(self.keys)][1]
        if self._rows:
            starts = np.maximum(starts, 0)
        edges = [arrow.of_fixed(edge, np.ascontiguousarray(one), NO_BYTES) for one in (starts, ends)]
        return pa.RecordBatch.from_arrays([*self.codec.encode(keys), *edges, *results], schema=self.output_schema)


def _check(spec: WindowSpec) -> None:
    invariant(spec.unit in ("event", "clock", "rows"), f"unknown unit {spec.unit!r}")
    invariant(spec.mode in ("append", "update"), f"unknown mode {spec.mode!r}")
    invariant((spec.time is not None) or spec.unit != "event", "windows in event time need a time column")
    what = todo = ""
    if spec.size <= 0 or spec.every <= 0:
        what, todo = "has to be longer than nothing, and so have the steps between windows", "give a positive length."
    elif spec.every > spec.size:
        what = f"of size {spec.size} every {spec.every} leaves rows out that are in no window"
        todo = "filter such rows out before, or make the window at least as long as its step."
    elif spec.updating_input and spec.unit != "event":
        what = "by rows or clock over an updating input: a row taken back would be taken from another window"
        todo = "use event time, or make the input final first with an append window."
    elif not spec.numbered and (spec.unit != "rows" or spec.every != spec.size or spec.mode != "append" or spec.early):
        what = "without its numbers is one of rows, one after the other, that comes out when it is full"
        todo = "leave numbered=False out; a window that slides keeps a key's last rows for ever, numbered or not."
    elif spec.unit == "rows" and (spec.offset or spec.late):
        what, todo = "by rows has no offset and no late rows", "leave these options out."
    if what:
        raise PlanError(f"a window {what}.", safe=_REFUSED, todo=todo)
