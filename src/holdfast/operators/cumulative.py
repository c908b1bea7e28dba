"""``key_by(...).window(hf.cumulative("1 day", every="1 hour"))``: windows of one start that grow by steps to a size.

A row is in every window of its day that ends after it. Put out as they close, nothing is kept twice: a row folds into
the pane of its key and step, once; when a step ends, its panes are combined into their keys' days, and each day that
has a row is put out as it is then. When the day ends, it goes. Nothing is ever taken out of an accumulator, so all
aggregates go this way. A row of a step that is over, in a day that is not, has missed the windows that closed, and goes
into the day itself.

Windows that are shown before they close are kept whole, as those that slide are (``whole``).

The order of what is put out: by the end of the window, then in slot order. ``first`` and ``last`` go by the order of
rows within a step, and by the order of the steps across them; what comes after its step comes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.errors import PlanError
from holdfast.operators.aggregates.accumulator import ROWS, Accumulators, Arenas
from holdfast.operators.grid import Grid
from holdfast.operators.whole import COUNT, ONLY, WholeWindows, earliest, living, refuse_negative
from holdfast.operators.window import WindowOperator, Windows, WindowSpec
from holdfast.state import fold
from holdfast.state.columns import INT, NO_BYTES, NO_INTS, Array, Ints
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.slice import Work
from holdfast.state.table import Layout, Table

DAYS, PANES, CLOSED = 0, 1, 2


@dataclass(frozen=True)
class CumulativeSpec(WindowSpec):
    """Windows [day, day + step), [day, day + 2 steps), … up to ``size``; a step is ``every``, microseconds both."""

    kind = "cumulative"
    label = "cumulative window"
    apart = False

    def build(self) -> WindowOperator:
        if self.every <= 0 or self.size % self.every:
            raise PlanError(
                f"a cumulative window of {self.size} µs does not grow to its size by steps of {self.every} µs.",
                safe="nothing was started or written.",
                todo="give steps that divide the size: hf.cumulative('1 day', every='1 hour').",
            )
        return WindowOperator(self)

    @property
    def grid(self) -> CumulativeGrid:
        return CumulativeGrid(self.size, self.every, self.offset)

    def windows(self, operator: WindowOperator, aggregates: Accumulators) -> Windows:
        if self.updates or self.every == self.size:
            return WholeWindows(operator, self.grid, aggregates)
        return Days(operator, self.grid, aggregates)


@dataclass(frozen=True)
class CumulativeGrid(Grid):
    """A window is known by the start of its last step: its end is a step later, its start that of its day."""

    @property
    def reach(self) -> int:
        return self.every

    def edges(self, windows: Ints) -> tuple[Ints, Ints]:
        return self.days(windows), windows + self.every

    def days(self, times: Ints) -> Ints:
        """The start of the day of each time."""
        found: Ints = (times - self.offset) // self.size * self.size + self.offset
        return found

    def final_ends(self, times: Ints) -> Ints:
        return self.days(times) + self.size

    def spread(self, panes: Ints) -> tuple[Ints, Ints]:
        """A pane is in the window that it ends, and in all later ones of its day."""
        count = (self.final_ends(panes) - panes) // self.every
        number = np.repeat(np.arange(len(panes)), count)
        nth = np.arange(len(number)) - np.repeat(np.cumsum(count) - count, count)
        return number, panes[number] + nth * self.every


class Days:
    """Table 0: by (key, day), what has come of the steps that are over. Table 1: panes of the others, by (key, start).
    Table 2, for windows by the clock: up to when they are closed (in event time the epoch says it).
    """

    def __init__(self, operator: WindowOperator, grid: CumulativeGrid, aggregates: Accumulators) -> None:
        codec, columns = operator.codec, (INT.named(ROWS), *aggregates.columns)
        self._operator, self._grid, self._aggregates = operator, grid, aggregates
        self._signed, self._by_clock = operator.spec.updating_input, operator.spec.unit == "clock"
        self.clocked = self._by_clock
        self.layouts: tuple[Layout, ...] = tuple(
            Layout(codec.words + 1, codec.tail, columns, COUNT, name) for name in ("days", "panes")
        )
        if self._by_clock:
            self.layouts += (Layout(1, False, (INT.named("clock"),), name="closed"),)

    def due(self, tables: Sequence[Table]) -> int | None:
        """The end of the next window that has a row in it."""
        if tables[CLOSED].rows and (tables[DAYS].columns[COUNT][: tables[DAYS].rows] > 0).any():
            return self._grid.last_end(int(tables[CLOSED].columns[0][0])) + self._grid.every
        first = earliest(tables[PANES])
        return None if first is None else first + self._grid.every

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Arenas) -> pa.RecordBatch:
        """Days as far as they have come, as if they were over."""
        starts = keys.words[:, -1]
        return self._operator.results(keys, starts, starts + self._grid.size, self._aggregates.finish(columns, arenas))

    def apply(self, work: Work, rows: Rows | None, times: Ints, late: int, upto: int) -> None:
        if self._by_clock:
            closed = work.tables[CLOSED]
            late = int(closed.columns[0][0]) if closed.rows else late
        before, after = self._grid.last_end(late), self._grid.last_end(upto)
        if rows is not None:
            self._add(work, rows, times, before)
        if after > before and (work.tables[PANES].rows or work.tables[DAYS].rows):
            self._close(work, before, after)
            if self._by_clock:
                work.place(ONLY, CLOSED)
                work.tables[CLOSED].columns[0][0] = upto

    # -- rows into panes

    def _add(self, work: Work, rows: Rows, times: Ints, closed: int) -> None:
        panes = self._grid.panes(times)
        over = panes < closed
        if not over.any():
            self._fold(work, rows, panes, PANES)
        else:
            gone, to_come = np.flatnonzero(over), np.flatnonzero(~over)
            self._fold(work, rows.take(gone), self._grid.days(times[gone]), DAYS)
            if len(to_come):
                self._fold(work, rows.take(to_come), panes[to_come], PANES)
        if self._signed:
            for number in (PANES, DAYS):
                concerned = work.concerned(number)
                counts = work.tables[number].columns[COUNT][concerned]
                refuse_negative(counts)
                work.bury(concerned[counts == 0], number)

    def _fold(self, work: Work, rows: Rows, starts: Ints, number: int) -> None:
        slots = work.place(rows.keys.extended(starts), number)
        table = work.tables[number]
        fold.count(table.columns[COUNT], slots, NO_BYTES, rows.sign)
        self._aggregates.fold(table.columns, table.arenas, slots, rows)

    # -- windows that close

    def _close(self, work: Work, before: int, after: int) -> None:
        """Windows that end after ``before``, up to ``after``: as many rounds as there are ends with a row."""
        panes, grid = work.tables[PANES], self._grid
        entering, starts = living(panes, before, after)
        into = work.place(panes.keys(entering).shortened(1).extended(grid.days(starts)), DAYS)
        others = [column[entering] for column in panes.columns]
        days, moved, end = work.tables[DAYS], 0, before + grid.every
        live = self._live(days, end)
        slots: list[Ints] = []
        ends: list[Ints] = []
        shown: list[list[Array]] = []
        over: list[Ints] = []
        while True:
            if not len(live):
                if moved == len(starts):
                    break
                end = max(end, int(starts[moved]) + grid.every)
            if end > after:
                break
            stop = int(np.searchsorted(starts, end))
            if stop > moved:
                some = slice(moved, stop)
                fold.count(days.columns[COUNT], into[some], NO_BYTES, others[COUNT][some])
                came = [column[some] for column in others]
                self._aggregates.combine(days.columns, days.arenas, into[some], came, panes.arenas)
                live, moved = self._live(days, end), stop
            slots.append(live)
            ends.append(np.full(len(live), end))
            shown.append([column[live] for column in days.columns])
            if (end - grid.offset) % grid.size == 0:
                over.append(live)
                live = NO_INTS
            end += grid.every
        if slots:
            every, columns = np.concatenate(slots), [np.concatenate(parts) for parts in zip(*shown, strict=True)]
            results, keys, at = self._aggregates.leave(columns, days.arenas), days.keys(every), np.concatenate(ends)
            work.emit(self._operator.results(keys, np.ascontiguousarray(keys.words[:, -1]), at, results))
        work.bury(entering, PANES)
        if over:
            work.bury(np.concatenate(over), DAYS)

    def _live(self, days: Table, end: int) -> Ints:
        """Those of the day that has a window with this end."""
        day = (end - 1 - self._grid.offset) // self._grid.size * self._grid.size + self._grid.offset
        return living(days, day, day + 1)[0]
