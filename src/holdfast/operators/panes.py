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

from holdfast.operators.aggregates.accumulator import ROWS, Accumulators, Arenas, fresh
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
        panes = Layout(codec.words + 1, codec.tail, (INT.named(ROWS), *aggregates.columns), COUNT, "panes")
        running = Layout(codec.words, codec.tail, (INT.named(ROWS), *self._exact.columns), COUNT, "running")
        self.layouts: tuple[Layout, ...] = (panes, running)
        if self._by_clock:
            self.layouts += (Layout(1, False, (INT.named("clock"),), name="closed"),)

    def due(self, tables: Sequence[Table]) -> int | None:
        """The end of the next window that has a row in it."""
        closed = tables[CLOSED]
        if closed.rows and len(_living(tables[RUNNING])):
            return self._grid.last_end(int(closed.columns[0][0])) + self._grid.every
        first = earliest(tables[PANES])
        return None if first is None else self._grid.last_end(first) + self._grid.every

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Arenas) -> pa.RecordBatch:
        """Panes, as if they were windows."""
        results, starts = self._aggregates.finish(columns, arenas), keys.words[:, -1]
        return self._operator.results(keys, starts, starts + self._grid.pane, results)

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
            self._add_to_running(work, rows.take(np.flatnonzero(panes < closed)))
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
        if not len(entering) and not len(live):
            return
        leaving, lefts = living(panes, before + every - size, after + every - size)
        owners = running.find(panes.keys(leaving).shortened(1))
        work.touch(np.unique(owners), RUNNING)
        come, go = _Moving(self, work, entering, starts, into, 1), _Moving(self, work, leaving, lefts, owners, -1)
        closing = _Closing(self, work, before + every - size, after)
        end = before + every
        while len(live) or come.next is not None:
            if not len(live) and come.next is not None:
                end = max(end, self._grid.last_end(come.next) + every)
            if end > after:
                break
            if come.move(end):
                live = _living(running)
            closing.put_out(live, end)
            if go.move(end - size + every):
                live = live[running.columns[COUNT][live] > 0]
            end += every
        closing.emit()
        work.bury(leaving, PANES)
        concerned = np.union1d(into, owners)
        work.bury(concerned[running.columns[COUNT][concerned] == 0], RUNNING)


class _Moving:
    """Panes on their way into running windows (``sign`` 1) or out of them, in the order of time."""

    def __init__(self, of: SlidingPanes, work: Work, slots: Ints, starts: Ints, into: Ints, sign: int) -> None:
        panes, self._running = work.tables[PANES], work.tables[RUNNING]
        self._exact, self._sign = of._exact, sign
        self._starts, self._into, self._at = starts, into, 0
        counts = panes.columns[COUNT][slots]
        self._counts = counts if sign > 0 else -counts
        self._others = [counts, *(column[slots] for column in of._aggregates.pick(panes.columns, of._exact_numbers))]

    @property
    def next(self) -> int | None:
        """The start of the first that has not moved."""
        return int(self._starts[self._at]) if self._at < len(self._starts) else None

    def move(self, before: int) -> bool:
        """Those that start before that time; whether there are any."""
        stop = int(np.searchsorted(self._starts, before))
        if stop == self._at:
            return False
        some, running = slice(self._at, stop), self._running
        self._at = stop
        fold.count(running.columns[COUNT], self._into[some], NO_BYTES, self._counts[some])
        others = [column[some] for column in self._others]
        self._exact.combine(running.columns, running.arenas, self._into[some], others, [None] * len(others), self._sign)
        return True


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
        found = dict(zip(of._exact_numbers, of._exact.leave(exact, [None] * len(exact)), strict=True))
        found |= zip(of._other_numbers, of._others.leave(others, self._arenas), strict=True)
        results = [found[number] for number in range(len(found))]
        keys = self._work.tables[RUNNING].keys(slots)
        self._work.emit(of._operator.results(keys, ends - of._grid.size, ends, results))


def _living(running: Table) -> Ints:
    return np.flatnonzero(running.columns[COUNT][: running.rows] > 0)
