"""``key_by(...).window(...).agg(...)`` on a slice: tumbling and sliding windows, in time or by rows of a key.

Two ways to keep them. Whole windows (``whole``), one row each, where a window is one pane or has to be shown before it
closes. Panes (``panes``, ``row_panes``) for sliding windows that are put out when they close: a row folds into one
pane, however many windows that pane is in. ``first`` and ``last`` go by the order of rows within a pane, and by the
order of the panes across them; sliding windows kept whole have that order within each epoch.

A row whose windows have all closed before comes too late; one that some have missed still counts in the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from holdfast.errors import PlanError
from holdfast.invariants import invariant
from holdfast.operators.accumulating import Arenas, Inputs, accumulators
from holdfast.operators.grid import Grid
from holdfast.operators.keyed import Fields, KeyedOperator, refuse_doubles
from holdfast.operators.panes import SlidingPanes
from holdfast.operators.row_panes import RowPanes
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.timed import LATE, TimedInput
from holdfast.operators.whole import WholeWindows
from holdfast.state import arrow
from holdfast.state.columns import NO_BYTES, Array
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.slice import MAIN, NEVER, Work
from holdfast.state.table import Layout, Table
from holdfast.state.types import BIGINT, required

_REFUSED = "nothing was started or written."
TIMESTAMP = required("timestamp", "a window's start")


@dataclass(frozen=True)
class WindowSpec:
    """Windows over a keyed stream; aggregates read value columns ``v0`` …, ``size`` is in microseconds or in rows."""

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
        aggregates = accumulators(
            spec.aggregates, inputs, 1, updating=spec.updating_input, ansi=spec.ansi, overflow=spec.overflow
        )
        self._input = TimedInput(inputs, spec.values, spec.time if spec.unit == "event" else None, spec.late)
        edge = BIGINT if spec.unit == "rows" else TIMESTAMP
        self.state: Fields = (*self.keys, ("window_start", edge), ("window_end", edge), *aggregates.fields)
        self.outputs = {MAIN: self.state}
        if spec.late:
            self.outputs[LATE] = (*self.keys, *self._input.late_fields)
        for fields in self.outputs.values():
            refuse_doubles([name for name, _ in fields])
        self._rows = spec.unit == "rows"
        # By rows a window ends after every so many of them; the first ones began before there was a row.
        self._grid = Grid(spec.size, spec.every, -spec.size if self._rows else spec.offset)
        whole = spec.every == spec.size or spec.mode == "update" or spec.early > 0
        kept = WholeWindows if whole else RowPanes if self._rows else SlidingPanes
        self._windows: Windows = kept(self, self._grid, aggregates)
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
        late = work.time.late
        if self._grid.final_ends(times.min(keepdims=True))[0] > late:
            return rows, times
        return self._input.without_late(work, self, rows, times, self._grid.final_ends(times) <= late)

    def due(self, tables: Sequence[Table]) -> int | None:
        return self._windows.due(tables)

    def find(self, table: Table, keys: KeyRows) -> Array:
        return self.find_extended(table, keys, 1)

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Arenas) -> pa.RecordBatch:
        return self._windows.finish(keys, columns, arenas)

    def results(self, keys: KeyRows, starts: Array, length: int, results: Sequence[pa.Array]) -> pa.RecordBatch:
        """Rows as people see them: keys, where the window begins and ends, aggregates."""
        ends = starts + length
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
    elif spec.unit == "rows" and (spec.offset or spec.late):
        what, todo = "by rows has no offset and no late rows", "leave these options out."
    if what:
        raise PlanError(f"a window {what}.", safe=_REFUSED, todo=todo)
