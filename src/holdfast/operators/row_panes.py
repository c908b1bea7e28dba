"""Sliding windows by rows of a key, put out when their last row has come: panes of rows, and runs of panes.

One epoch may complete any number of windows of a key. Their panes are laid out one after the other, and runs of 1, 2,
4, … panes are combined from runs half as long; a window is the few runs that its length in panes is the sum of. So a
pane costs as many steps as that length has binary digits, every aggregate keeps the order of its rows, and nothing is
ever taken out of an accumulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.operators.aggregates.accumulator import ROWS, Accumulators, Arenas, copy_rows, fresh
from holdfast.operators.grid import Grid
from holdfast.operators.whole import COUNT
from holdfast.state import combine, fold
from holdfast.state.columns import INT, NO_BYTES, NO_INTS, Arena, Array, Ints
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.slice import Work
from holdfast.state.table import Layout, Table

if TYPE_CHECKING:
    from holdfast.operators.window import WindowOperator

PANES, COUNTERS = 0, 1
AT_ONCE = 1 << 18  # panes that are laid out at a time


class RowPanes:
    """Table 0: panes by (key, number of their first row). Table 1: how many rows a key had."""

    clocked = False

    def __init__(self, operator: WindowOperator, grid: Grid, aggregates: Accumulators) -> None:
        codec = operator.codec
        self._operator, self._grid, self._aggregates = operator, grid, aggregates
        self._length, self._step = grid.size // grid.pane, grid.every // grid.pane
        panes = Layout(codec.words + 1, codec.tail, (INT.named(ROWS), *aggregates.columns), COUNT, "panes")
        counters = Layout(codec.words, codec.tail, (INT.named(ROWS),), name="counters")
        self.layouts: tuple[Layout, ...] = (panes, counters)

    def due(self, tables: Sequence[Table]) -> int | None:
        return None

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Arenas) -> pa.RecordBatch:
        """Panes, as if they were windows."""
        results, starts = self._aggregates.finish(columns, arenas), keys.words[:, -1]
        return self._operator.results(keys, starts, starts + self._grid.pane, results)

    def apply(self, work: Work, rows: Rows | None, times: Ints, late: int, upto: int) -> None:
        if rows is None:
            return
        owners, numbers = work.place(rows.keys, COUNTERS), np.empty(len(rows), np.int64)
        combine.number_rows(work.tables[COUNTERS].columns[COUNT], owners, numbers)
        slots = work.place(rows.keys.extended(self._grid.panes(numbers)), PANES)
        panes = work.tables[PANES]
        fold.count(panes.columns[COUNT], slots, NO_BYTES, NO_INTS)
        self._aggregates.fold(panes.columns, panes.arenas, slots, rows)
        last = np.flatnonzero((numbers + 1) % self._grid.every == 0)
        if len(last):
            self._complete(work, owners[last], numbers[last] + 1)

    def _complete(self, work: Work, owners: Ints, ends: Ints) -> None:
        """Put out the windows of these keys (slots of their counters) that end there, in this order."""
        order = np.argsort(owners, kind="stable")
        keys, first, windows = np.unique(owners[order], return_index=True, return_counts=True)
        lengths = self._length + (windows - 1) * self._step
        columns, arenas = fresh(self.layouts[PANES].columns, len(ends))
        # A key's windows stay together; one key alone may be more than fits at a time.
        part = np.cumsum(lengths) // AT_ONCE
        for number in range(int(part[-1]) + 1):
            start, stop = np.searchsorted(part, [number, number + 1])
            if start < stop:
                into = np.arange(first[start], first[start] + windows[start:stop].sum())
                self._combine(work, keys[start:stop], ends[order[first[start:stop]]], windows[start:stop], columns,
                              arenas, into)  # fmt: skip
        placed = np.empty(len(order), np.int64)
        placed[order] = np.arange(len(order))
        results = self._aggregates.leave([column[placed] for column in columns], arenas)
        counters = work.tables[COUNTERS]
        work.emit(self._operator.results(counters.keys(owners), ends - self._grid.size, ends, results))

    def _combine(
        self,
        work: Work,
        keys: Ints,
        ends: Ints,
        windows: Ints,
        results: Sequence[Array],
        result_arenas: Sequence[Arena | None],
        into: Ints,
    ) -> None:
        """The windows of some keys, of which the first end at ``ends``, into rows of ``results``."""
        runs, arenas, stop = self._laid_out(work, keys, ends, windows)
        lengths = self._length + (windows - 1) * self._step
        owner = np.repeat(np.arange(len(keys)), windows)
        nth = np.arange(len(owner)) - np.repeat(np.cumsum(windows) - windows, windows)
        at = (np.cumsum(lengths) - lengths)[owner] + nth * self._step
        width = 1
        while True:
            if self._length & width:
                self._aggregates.combine(results, result_arenas, into, [run[at] for run in runs], arenas)
                at += width
            if 2 * width > self._length:
                break
            whole = np.flatnonzero(np.arange(len(stop)) + 2 * width <= stop)  # no run crosses into the next key
            self._aggregates.combine(runs, arenas, whole, [run[whole + width] for run in runs], arenas)
            width *= 2

    def _laid_out(
        self, work: Work, keys: Ints, ends: Ints, windows: Ints
    ) -> tuple[list[Array], list[Arena | None], Ints]:
        """All panes of those windows, key by key, and where each one's key stops; what no later one has is buried."""
        panes, counters, pane, size = work.tables[PANES], work.tables[COUNTERS], self._grid.pane, self._grid.size
        lengths = self._length + (windows - 1) * self._step
        owner = np.repeat(np.arange(len(keys)), lengths)
        nth = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        starts = (ends - size)[owner] + nth * pane
        slots = panes.find(counters.keys(keys[owner]).extended(starts))
        has = np.flatnonzero((slots >= 0) & (panes.columns[COUNT][slots] > 0))
        slots = slots[has]
        columns, arenas = fresh(self.layouts[PANES].columns, len(owner))
        copy_rows([column[slots] for column in panes.columns], panes.arenas, columns, arenas, has)
        next_start = ends + windows * self._grid.every - size
        work.bury(slots[starts[has] < next_start[owner[has]]], PANES)
        return columns, arenas, np.cumsum(lengths)[owner]
