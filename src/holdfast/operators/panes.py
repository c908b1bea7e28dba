"""Sliding windows in time, put out when they close: panes, and a running window for every key.

A row folds into the pane of its key, once. When a window closes, the panes that its end brings in are combined into the
key's running window, and after its result is out those that the next window no longer has are taken out again: two
steps a pane, however many windows it is in. Only aggregates that come out exactly go that way. The others (floats
would keep rounding errors and infinities; an extreme cannot be undone) are combined from all panes of a window when it
closes, which costs as many steps as it has panes, for those keys only that have a row in it.

The running window of a key with no row left goes. A window costs as much as it has results, so time that leaps over
many empty windows costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.operators.accumulating import Accumulators, Arenas, fresh, take_rows
from holdfast.operators.grid import Grid
from holdfast.operators.whole import COUNT, ONLY, earliest, living, refuse_negative
from holdfast.state import fold
from holdfast.state.columns import INT, NO_BYTES, Arena, Array, Ints
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.slice import Work
from holdfast.state.table import Layout, Table

if TYPE_CHECKING:
    from holdfast.operators.window import WindowOperator

PANES, RUNNING, CLOSED = 0, 1, 2


class SlidingPanes:
    """Table 0: panes by (key, start). Table 1: per key, the panes of [next window's start, last closed window's end).
    Table 2, for windows by the clock: up to when they are closed (in event time the epoch says it).
    """

    def __init__(self, operator: WindowOperator, grid: Grid, aggregates: Accumulators) -> None:
        codec = operator.codec
        self._operator, self._grid, self._aggregates = operator, grid, aggregates
        self._signed, self._by_clock = operator.spec.updating_input, operator.spec.unit == "clock"
        self.clocked = self._by_clock
        self._exact_numbers, self._other_numbers = aggregates.chosen(True), aggregates.chosen(False)
        self._exact = aggregates.part(self._exact_numbers, 1)
        self._others = aggregates.part(self._other_numbers, 0)
        panes = Layout(codec.words + 1, codec.tail, (INT, *aggregates.columns), alive=COUNT)
        running = Layout(codec.words, codec.tail, (INT, *self._exact.columns), alive=COUNT)
        self.layouts: tuple[Layout, ...] = (panes, running)
        if self._by_clock:
            self.layouts += (Layout(1, False, (INT,)),)

    def due(self, tables: Sequence[Table]) -> int | None:
        """The end of the next window that has a row in it."""
        closed = tables[CLOSED]
        if closed.rows and len(_living(tables[RUNNING])):
            return self._grid.last_end(int(closed.columns[0][0])) + self._grid.every
        first = earliest(tables[PANES])
        return None if first is None else self._grid.last_end(first) + self._grid.every

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Arenas) -> pa.RecordBatch:
        """Panes, as if they were windows."""
        results = self._aggregates.finish(columns, arenas)
        return self._operator.results(keys, keys.words[:, -1], self._grid.pane, results)

    def apply(self, work: Work, rows: Rows | None, times: Ints, late: int, upto: int) -> None:
        if self._by_clock:
            closed = work.tables[CLOSED]
            late = int(closed.columns[0][0]) if closed.rows else late
        before, after = self._grid.last_end(late), self._grid.last_end(upto)
        if rows is not None:
            self._add(work, rows, self._grid.panes(times), before)
        if after > before and work.tables[PANES].rows:
            self._close(work, before, after)
            if self._by_clock:
                work.place(ONLY, CLOSED)
                work.tables[CLOSED].columns[0][0] = upto

    # -- rows into panes

    def _add(self, work: Work, rows: Rows, panes: Ints, closed: int) -> None:
        slots = work.place(rows.keys.extended(panes), PANES)
        table = work.tables[PANES]
        fold.count(table.columns[COUNT], slots, NO_BYTES, rows.sign)
        self._aggregates.fold(table.columns, table.arenas, slots, rows)
        if int(panes.min()) < closed:
            self._add_to_running(work, take_rows(rows, np.flatnonzero(panes < closed)))
        if self._signed:
            for number in (PANES, RUNNING):
                concerned = work.concerned(number)
                counts = work.tables[number].columns[COUNT][concerned]
                refuse_negative(counts)
                work.bury(concerned[counts == 0], number)

    def _add_to_running(self, work: Work, rows: Rows) -> None:
        """Rows of panes that running windows already have."""
        slots = work.place(rows.keys, RUNNING)
        running = work.tables[RUNNING]
        fold.count(running.columns[COUNT], slots, NO_BYTES, rows.sign)
        self._exact.fold(running.columns, running.arenas, slots, rows)

    # -- windows that close

    def _close(self, work: Work, before: int, after: int) -> None:
        """Windows that end after ``before``, up to ``after``."""
        panes, every, size = work.tables[PANES], self._grid.every, self._grid.size
        entering, starts = living(panes, before, after)
        into = work.place(panes.keys(entering).shortened(1), RUNNING)
        running = work.tables[RUNNING]
        live = _living(running)
        closing = _Closing(self, work, before + every - size, after) if len(entering) or len(live) else None
        end, at = before + every, 0
        while closing is not None and end <= after:
            if not len(live):
                if at == len(entering):
                    break
                end = max(end, self._grid.last_end(int(starts[at])) + every)
                if end > after:
                    break
            stop = int(np.searchsorted(starts, end))
            if stop > at:
                self._move(panes, entering[at:stop], running, into[at:stop], 1)
                live, at = _living(running), stop
            closing.put_out(live, end)
            for leaving in range(end - size, end - size + every, self._grid.pane):
                self._take_out(work, live, leaving)
            has_rows = running.columns[COUNT][live] > 0
            work.bury(live[~has_rows], RUNNING)
            live, end = live[has_rows], end + every
        if closing is not None:
            closing.emit()

    def _move(self, panes: Table, slots: Ints, running: Table, into: Ints, sign: int) -> None:
        """Panes into running windows, or out of them."""
        counts = panes.columns[COUNT][slots]
        fold.count(running.columns[COUNT], into, NO_BYTES, counts if sign > 0 else -counts)
        others = [counts, *(column[slots] for column in self._aggregates.pick(panes.columns, self._exact_numbers))]
        self._exact.combine(running.columns, running.arenas, into, others, [None] * len(others), sign)

    def _take_out(self, work: Work, live: Ints, start: int) -> None:
        """The panes that start then, out of all running windows, and out of the state."""
        panes, running = work.tables[PANES], work.tables[RUNNING]
        slots = panes.find(running.keys(live).extended(np.full(len(live), start)))
        has = (slots >= 0) & (panes.columns[COUNT][slots] > 0)
        slots, into = slots[has], live[has]
        work.touch(into, RUNNING)
        self._move(panes, slots, running, into, -1)
        work.bury(slots, PANES)


class _Closing:
    """The windows that an epoch closes, and their results as of then; they go out together, which is cheaper."""

    def __init__(self, of: SlidingPanes, work: Work, start: int, stop: int) -> None:
        self._of, self._work = of, work
        self._slots: list[Ints] = []
        self._ends: list[Ints] = []
        self._exact: list[list[Array]] = []
        self._others: list[list[Array]] = []
        self._arenas: list[Arena | None] = []
        if of._others.members:
            panes, running = work.tables[PANES], work.tables[RUNNING]
            self._panes, self._starts = living(panes, start, stop)
            self._owners = running.find(panes.keys(self._panes).shortened(1))
            _, self._arenas = fresh(of._others.columns, 0)

    def put_out(self, live: Ints, end: int) -> None:
        self._slots.append(live)
        self._ends.append(np.full(len(live), end))
        self._exact.append([column[live] for column in self._work.tables[RUNNING].columns])
        if self._of._others.members:
            self._others.append(self._combined(live, end))

    def _combined(self, live: Ints, end: int) -> list[Array]:
        """The aggregates that can only be combined, for all keys of a window."""
        of, panes, running = self._of, self._work.tables[PANES], self._work.tables[RUNNING]
        first, stop = np.searchsorted(self._starts, [end - of._grid.size, end])
        place = np.empty(running.rows, np.int64)
        place[live] = np.arange(len(live))
        slots = self._panes[first:stop]
        columns, _ = fresh(of._others.columns, len(live))
        others = [column[slots] for column in of._aggregates.pick(panes.columns, of._other_numbers)]
        arenas = of._aggregates.pick_arenas(panes.arenas, of._other_numbers)
        of._others.combine(columns, self._arenas, place[self._owners[first:stop]], others, arenas)
        return columns

    def emit(self) -> None:
        if not self._slots:
            return
        of, slots, ends = self._of, np.concatenate(self._slots), np.concatenate(self._ends)
        exact = [np.concatenate(parts) for parts in zip(*self._exact, strict=True)]
        others = [np.concatenate(parts) for parts in zip(*self._others, strict=True)]
        found = dict(zip(of._exact_numbers, of._exact.finish(exact, [None] * len(exact)), strict=True))
        found |= zip(of._other_numbers, of._others.finish(others, self._arenas), strict=True)
        results = [found[number] for number in range(len(found))]
        keys, size = self._work.tables[RUNNING].keys(slots), of._grid.size
        self._work.emit(of._operator.results(keys, ends - size, size, results))


def _living(running: Table) -> Ints:
    return np.flatnonzero(running.columns[COUNT][: running.rows] > 0)
