"""Windows kept whole: a row of the state for every key and window.

For tumbling windows, and for all that are shown before they close: results of the sliding windows that an epoch has
changed are as many rows as there are windows to change, so nothing is lost by keeping them. An epoch's rows fold into
panes first, outside the state, and each pane goes to its windows once.

With early results a second table holds what was shown of a window last, for that must be taken back when a newer result
takes its place, and a third the clock and epoch of the last show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.errors import FunctionError
from holdfast.operators.aggregates.accumulator import ROWS, Accumulators, Arenas, copy_rows
from holdfast.operators.grid import Grid
from holdfast.state import combine, fold
from holdfast.state.columns import INT, NO_BYTES, NO_INTS, NO_SPANS, Array, Ints
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.slice import NEVER, Work
from holdfast.state.table import Layout, Table
from holdfast.state.table_slice import changelog

if TYPE_CHECKING:
    from holdfast.operators.window import WindowOperator

COUNT = 0
ONLY = KeyRows(np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros((1, 1), np.int64), NO_SPANS, NO_BYTES)
"""The key of a table that has one row."""


class WholeWindows:
    """Table 0: windows. By rows, table 1: how many rows a key had. Early results: the last two tables."""

    def __init__(self, operator: WindowOperator, grid: Grid, aggregates: Accumulators) -> None:
        spec, codec = operator.spec, operator.codec
        self._operator, self._grid, self._aggregates = operator, grid, aggregates
        self._update, self._early, self._signed = spec.mode == "update", spec.early, spec.updating_input
        if self._update:
            self._early = 0
        self._by_rows, self._by_clock = spec.unit == "rows", spec.unit == "clock"
        self.clocked = self._by_clock or self._early > 0
        layout = Layout(codec.words + 1, codec.tail, (INT.named(ROWS), *aggregates.columns), COUNT, "windows")
        layouts = [layout]
        if self._by_rows:
            alive = None if spec.numbered else COUNT  # a key that has no open window is forgotten
            layouts.append(Layout(codec.words, codec.tail, (INT.named(ROWS),), alive, "counters"))
        self._shown, self._said = len(layouts), len(layouts) + 1
        if self._early:
            said = Layout(1, False, (INT.named("clock"), INT.named("epoch")), name="said")
            layouts += [replace(layout, name="shown"), said]
        self.layouts = tuple(layouts)

    def due(self, tables: Sequence[Table]) -> int | None:
        """When the earliest window closes by the clock, or early results are to be shown, whichever comes first."""
        found = []
        first = earliest(tables[0]) if self._by_clock else None
        if first is not None:
            found.append(first + self._grid.reach)
        if self._early and tables[self._said].rows:
            clock, epoch = (int(column[0]) for column in tables[self._said].columns)
            windows = tables[0]
            changed = windows.change[: windows.rows] > epoch
            if (changed & (windows.columns[COUNT][: windows.rows] > 0)).any():
                found.append(clock + self._early)
        return min(found, default=None)

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Arenas) -> pa.RecordBatch:
        edges = self._grid.edges(keys.words[:, -1])
        return self._operator.results(keys, *edges, self._aggregates.finish(columns, arenas))

    def apply(self, work: Work, rows: Rows | None, times: Ints, late: int, upto: int) -> None:
        closes = self._grid.last_end(upto) > self._grid.last_end(late) and work.tables[0].rows > 0
        if rows is None and not closes and not self._early:
            return
        ended: Ints = NO_INTS
        if rows is not None:
            if self._by_rows:
                times = numbered(work, rows, 1)
            self._add(work, rows, self._grid.panes(times), late)
            if self._by_rows:
                ended = self._completed(work, rows, times)
        if not self._by_rows and (closes or rows is not None):
            ended = self._ended(work.tables[0], upto)
        if self._update:
            self._put_out_changed(work)
        elif self._early:
            self._put_out_early(work, ended)
        elif len(ended):
            self._emit(work, ended)
        if self._signed and rows is not None:
            self._bury_empty(work)
            ended = ended[work.tables[0].columns[COUNT][ended] > 0]
        if len(ended):
            if self._by_rows and not self._operator.spec.numbered:
                self._forget(work, ended)
            work.bury(ended)

    def _forget(self, work: Work, ended: Ints) -> None:
        """Keys begin anew with each window; those without an open one are gone."""
        counters = work.tables[1]
        slots = np.unique(counters.find(work.tables[0].keys(ended).shortened(1)))
        empty = counters.columns[COUNT][slots] % self._grid.size == 0
        work.remade(slots[~empty], 1)
        work.bury(slots[empty], 1)

    # -- rows into windows

    def _add(self, work: Work, rows: Rows, panes: Ints, late: int) -> None:
        if self._grid.every == self._grid.size:
            self._fold(work, rows, panes)
        elif self._signed:
            # A pane of an epoch may have more rows taken back than put in, which moments cannot say.
            number, starts = self._open(panes, late)
            self._fold(work, rows.take(number), starts)
        else:
            self._combine(work, rows, panes, late)

    def _open(self, panes: Ints, late: int) -> tuple[Ints, Ints]:
        number, starts = self._grid.spread(panes)
        is_open = starts > late - self._grid.reach
        return (number, starts) if is_open.all() else (number[is_open], starts[is_open])

    def _fold(self, work: Work, rows: Rows, starts: Ints) -> None:
        slots = work.place(rows.keys.extended(starts))
        table = work.tables[0]
        fold.count(table.columns[COUNT], slots, NO_BYTES, rows.sign)
        self._aggregates.fold(table.columns, table.arenas, slots, rows)

    def _combine(self, work: Work, rows: Rows, panes: Ints, late: int) -> None:
        epoch = Table(self.layouts[0])
        slots = epoch.place(rows.keys.extended(panes), 0).slots
        fold.count(epoch.columns[COUNT], slots, NO_BYTES, rows.sign)
        self._aggregates.fold(epoch.columns, epoch.arenas, slots, rows)
        order = np.argsort(epoch.words[: epoch.rows, -1], kind="stable")
        number, starts = self._open(epoch.words[order, -1], late)
        number = order[number]
        slots = work.place(epoch.keys(number).shortened(1).extended(starts))
        table, others = work.tables[0], [column[number] for column in epoch.columns]
        fold.count(table.columns[COUNT], slots, NO_BYTES, others[COUNT])
        self._aggregates.combine(table.columns, table.arenas, slots, others, epoch.arenas)

    # -- windows that end

    def _ended(self, table: Table, upto: int) -> Ints:
        """By (end, slot)."""
        return living(table, NEVER, upto - self._grid.reach + 1)[0]

    def _completed(self, work: Work, rows: Rows, numbers: Ints) -> Ints:
        """Windows by rows, in the order of the rows that complete them."""
        at = np.flatnonzero((numbers + 1) % self._grid.every == 0)
        keys = rows.keys.take(at).extended(numbers[at] + 1 - self._grid.size)
        return work.tables[0].find(keys)

    def _bury_empty(self, work: Work) -> None:
        """Windows whose rows were all taken back."""
        concerned = work.concerned()
        counts = work.tables[0].columns[COUNT][concerned]
        refuse_negative(counts)
        empty = concerned[counts == 0]
        if self._early and len(empty):
            shown = work.tables[self._shown]
            old = _alive(shown, shown.find(work.tables[0].keys(empty)))
            work.take_back(self.finish, old, self._shown)
            work.bury(old, self._shown)
        work.bury(empty)

    # -- results

    def _emit(self, work: Work, slots: Ints) -> None:
        table = work.tables[0]
        if len(slots):
            self._aggregates.judge(table.columns, slots)
            work.emit(self.finish(table.keys(slots), [column[slots] for column in table.columns], table.arenas))

    def _put_out_changed(self, work: Work) -> None:
        table, changed = work.tables[0], work.concerned()
        if len(changed):
            refuse_negative(table.columns[COUNT][changed])
            self._aggregates.judge(table.columns, changed)
            work.emit(
                *changelog(
                    self._operator, table, work.before(), changed, lambda at: [column[at] for column in table.columns]
                )
            )

    def _put_out_early(self, work: Work, ended: Ints) -> None:
        """What closes now, and when it is time, all that has changed since that time was last."""
        table, said = work.tables[0], work.tables[self._said]
        if not said.rows:
            if not table.rows:
                return
            work.place(ONLY, self._said)
            said.columns[0][0] = work.time.clock
        clock, epoch = int(said.columns[0][0]), int(said.columns[1][0])
        shown_before = work.tables[self._shown].find(table.keys(ended))
        shown_before = np.where(_is_alive(work.tables[self._shown], shown_before), shown_before, -1)
        news = (shown_before < 0) | (table.change[ended] > epoch)
        self._replace(work, ended[news], shown_before[news])
        work.bury(shown_before[shown_before >= 0], self._shown)
        if work.time.clock - clock < self._early:
            return
        fresh = (table.change[: table.rows] > epoch) & (table.columns[COUNT][: table.rows] > 0)
        fresh[ended] = False
        slots = np.flatnonzero(fresh)
        if not len(slots):
            return  # the time goes on from when something was shown
        work.touch(np.zeros(1, np.int64), self._said)
        said.columns[0][0], said.columns[1][0] = work.time.clock, work.epoch
        shown = work.place(table.keys(slots), self._shown)
        self._replace(work, slots, np.where(_is_alive(work.tables[self._shown], shown), shown, -1))
        into = work.tables[self._shown]
        copy_rows([column[slots] for column in table.columns], table.arenas, into.columns, into.arenas, shown)

    def _replace(self, work: Work, slots: Ints, shown: Ints) -> None:
        """Put windows out, and take back what was shown of them (-1: nothing was)."""
        work.take_back(self.finish, shown[shown >= 0], self._shown)
        self._emit(work, slots)


def numbered(work: Work, rows: Rows, table: int) -> Ints:
    """Each row's number among the rows of its key, from 0; the table of counters goes on."""
    slots = work.place(rows.keys, table)
    numbers = np.empty(len(slots), np.int64)
    combine.number_rows(work.tables[table].columns[COUNT], slots, numbers)
    return numbers


def living(table: Table, start: int, stop: int) -> tuple[Ints, Ints]:
    """Slots of the windows or panes that start in [start, stop), by (start, slot), and their starts."""
    slots = np.empty(combine.count_between(table.words, table.rows, start, stop), np.int64)
    slots = slots[combine.living_between(table.words, table.columns[COUNT], table.rows, start, stop, slots) :]
    starts = table.words[slots, -1]
    order = np.argsort(starts, kind="stable")
    return slots[order], starts[order]


def earliest(table: Table) -> int | None:
    """The start of the first window or pane."""
    starts = table.words[: table.rows, -1][table.columns[COUNT][: table.rows] > 0]
    return int(starts.min()) if len(starts) else None


def refuse_negative(counts: Array) -> None:
    if (counts < 0).any():
        raise FunctionError(
            f"{int((counts < 0).sum())} windows had more rows taken back than they ever got.",
            safe="the slice is as it was before this epoch.",
            todo="check that the updating input sends every row with +1 before it takes it back with -1.",
        )


def _is_alive(table: Table, slots: Ints) -> Array:
    return (slots >= 0) & (table.columns[COUNT][slots] > 0)


def _alive(table: Table, slots: Ints) -> Ints:
    return slots[_is_alive(table, slots)]
