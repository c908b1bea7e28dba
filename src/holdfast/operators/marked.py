"""An operator whose slices know of every unit of their state where the log has it last: eventual checkpoints.

A **unit** is what can be brought back by itself: the rows of one key, or of one key's window. An operator says which
unit its rows are of (``units``, ``row_units``). Beside the operator's own tables stand two more: of every living unit
how many rows it has and its **footprint**, the epoch whose entry in the log has all of its rows; and what the slice
has taken and logged in all. They are tables like the others, so undo, copies and packs have them too; and not the
operator's, whose change column says what an epoch puts out.

What an epoch has to say goes into its **entry**: a unit all of whose rows it made (open), one of which it left none
(close), and some of those whose footprint is oldest (check), as many as the pace allows. Open and check have the unit
whole, as of the end of the epoch. Which units open and close depends on the rows alone; which are checked, on the
clock.

After Sebepou and Magoutis' CEC (ICS-FORTH), with epochs in the place of rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from holdfast.errors import CorruptionError
from holdfast.invariants import Impossible
from holdfast.operators.spec import Operator
from holdfast.operators.unit_table import (
    CHECK,
    CLOSE,
    EPOCH,
    LARGEST,
    NOWHERE,
    ONE,
    OPEN,
    POSITION,
    ROWS,
    TAKEN,
    TOTAL_LIVING,
    TOTAL_LOGGED,
    TOTAL_TAKEN,
    TOTALS,
    UNITS,
    Pace,
    keys_of,
    oldest,
)
from holdfast.state import copies
from holdfast.state.columns import NO_INTS, Arena, Array, Ints
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.slice import MAIN, Cutting, Gradual, SliceState
from holdfast.state.table import Layout, Table
from holdfast.state.table_slice import TableSlice
from holdfast.state.undo import Snapshot
from holdfast.state.work import SliceEntry, Work

TURNS = 32
"""In so many turns at most all units of a slice are written again."""

Noting = Literal["writes", "elsewhere", "nowhere"]
"""Whether what an epoch opens is in its own entry, in that of the slice's owner, or in none."""


class Marked:
    """The operator with its units. ``noting``, and whether it writes checks at a ``pace``, may differ by slice."""

    def __init__(self, operator: Operator, noting: Noting = "writes", pace: Pace | None = None) -> None:
        self.operator, self._noting, self._pace = operator, noting, pace
        self.layouts: tuple[Layout, ...] = (*operator.layouts, UNITS, TOTALS)
        self.emits, self.clocked, self.sweeps = operator.emits, operator.clocked, operator.sweeps
        self.gradual, self.stands = operator.gradual, operator.stands
        self.units_table, self.totals_table = len(operator.layouts), len(operator.layouts) + 1

    def noting(self, noting: Noting, pace: Pace | None = None) -> Marked:
        return Marked(self.operator, noting, pace)

    # -- what the operator does

    def apply(self, work: Work, *inputs: Rows | None) -> None:
        self.operator.apply(work, *inputs)
        self.mark(work, sum(len(rows) for rows in inputs if rows is not None))

    def take(self, work: Work, rows: Rows) -> None:
        if not isinstance(self.operator, Gradual):
            raise Impossible("rows came in pieces to an operator that needs all of them at once")
        self.operator.take(work, rows)
        work.taken += len(rows)

    def settle(self, work: Work) -> None:
        if isinstance(self.operator, Gradual):
            self.operator.settle(work)
        self.mark(work, work.taken)

    def cut_down(self, work: Work) -> None:
        if isinstance(self.operator, Cutting):
            self.operator.cut_down(work)

    # -- units

    def mark(self, work: Work, taken: int) -> None:
        """Note what became of the units, and what the log shall say of it."""
        born, units, delta, made = self._changes(work)
        if not taken and not len(units) and self._pace is None:
            return
        work.place(ONE, self.totals_table)
        totals = work.tables[self.totals_table].columns
        totals[TOTAL_TAKEN][0] += taken
        self._opened_and_closed(work, born, units, delta, made)
        if self._pace is not None:
            self._check(work, self._pace)

    def _changes(self, work: Work) -> tuple[list[tuple[Ints, Ints]], Ints, Ints, Ints]:
        """The rows that the epoch made, table by table, with their units; the units whose rows it made or that lost
        some, by how many they are more, and how many of theirs it made."""
        born: list[tuple[Ints, Ints]] = []
        found, more, new = [NO_INTS], [NO_INTS], [np.zeros(0, bool)]
        for at in range(self.units_table):
            came, went = _came_and_went(work, at)
            table = work.tables[at]
            anew = np.setdiff1d(np.concatenate([NO_INTS, *work.made.get(at, ())]), came)
            every = np.concatenate([came, anew])
            units = self._units_of(table, at, every)
            born.append((every, units))
            found += [units, self._units_of(table, at, went)]
            more += [np.repeat([1, 0], [len(came), len(anew)]), np.full(len(went), -1)]
            new += [np.ones(len(every), bool), np.zeros(len(went), bool)]
        units, inverse = np.unique(np.concatenate(found), return_inverse=True)
        delta = np.bincount(inverse, np.concatenate(more), len(units)).astype(np.int64)
        made = np.bincount(inverse[np.concatenate(new)], minlength=len(units))
        return born, units, delta, made

    def _opened_and_closed(
        self, work: Work, born: list[tuple[Ints, Ints]], units: Ints, delta: Ints, made: Ints
    ) -> None:
        table = work.tables[self.units_table]
        known = _known(table, units)
        worth = known | (delta != 0)  # others were born and are gone: nobody has to hear of them
        units, delta, made = units[worth], delta[worth], made[worth]
        if not len(units):
            return
        slots = work.place(keys_of(units), self.units_table)
        rows = table.columns[ROWS]
        before = rows[slots].copy()
        after = before + delta
        if (after < 0).any():
            raise Impossible("a unit lost more rows than it had")
        opened, closed = (after > 0) & (after == made), (after == 0)
        rows[slots] = after
        totals = work.tables[self.totals_table].columns
        totals[TOTAL_LIVING][0] += int(np.count_nonzero((before == 0) & (after > 0)))
        totals[TOTAL_LIVING][0] -= int(np.count_nonzero((before > 0) & (after == 0)))
        if closed.any():
            for column in table.columns:
                column[slots[closed]] = 0
        parts = []
        for at, (came, of) in enumerate(born):
            mine = np.isin(of, units[opened])
            parts.append(copies.pick(Snapshot.of(work.tables[at]), np.sort(came[mine])))
        said = np.concatenate([units[opened], units[closed]])
        kinds = np.repeat(np.array([OPEN, CLOSE], np.int8), [int(opened.sum()), int(closed.sum())])
        self._log(work, said, kinds, np.concatenate([slots[opened], slots[closed]]), parts)

    def _log(self, work: Work, units: Ints, kinds: Array, slots: Ints, parts: list[copies.Picked]) -> None:
        """These rows of the log come next; ``slots`` are the units', which have their footprint here."""
        if not len(units):
            return
        table, totals = work.tables[self.units_table], work.tables[self.totals_table].columns
        logged = int(totals[TOTAL_LOGGED][0])
        totals[TOTAL_LOGGED][0] += len(units)
        lives = kinds != CLOSE
        alive = slots[lives]
        table.columns[EPOCH][alive] = NOWHERE if self._noting == "nowhere" else work.epoch
        table.columns[POSITION][alive] = np.arange(logged + 1, logged + 1 + len(units))[lives]
        table.columns[TAKEN][alive] = totals[TOTAL_TAKEN][0]
        entry = work.emitted.entry = work.emitted.entry or SliceEntry()
        entry.add(units, kinds, table.columns[ROWS][slots], parts)
        entry.living, entry.logged, entry.taken = (
            int(totals[at][0]) for at in (TOTAL_LIVING, TOTAL_LOGGED, TOTAL_TAKEN)
        )
        entry.oldest = oldest(table, work.epoch)

    def _check(self, work: Work, pace: Pace) -> None:
        """Write the units again whose footprint is oldest, until the pace is kept or its time is over; a unit that is
        more than there is time for is written whole, and paid for later."""
        units, totals = work.tables[self.units_table], work.tables[self.totals_table].columns
        pace.moved(int(totals[TOTAL_LOGGED][0]), int(totals[TOTAL_TAKEN][0]))
        while pace.seconds > 0:
            began = time.perf_counter()
            living = np.flatnonzero(units.columns[ROWS][: units.rows] > 0)
            due = pace.due(units, living, int(totals[TOTAL_LOGGED][0]), int(totals[TOTAL_TAKEN][0]), work.epoch)
            # To find a unit's rows all rows are looked at, so few at a time would be dearer than they are.
            some = due[: max(1, len(living) // TURNS, int(pace.seconds / pace.each))]
            if not len(some):
                pace.seconds -= time.perf_counter() - began
                return
            chosen = np.sort(units.words[some, 0])
            work.touch(some, self.units_table)
            parts = []
            for at in range(self.units_table):
                table = work.tables[at]
                slots = _living(table)
                of = self._units_of(table, at, slots)
                parts.append(copies.pick(Snapshot.of(table), slots[_among(of, chosen)]))
            self._log(work, units.words[some, 0].copy(), np.full(len(some), CHECK, np.int8), some, parts)
            spent = time.perf_counter() - began
            pace.seconds -= spent
            if pace.left > len(some):
                following = due[len(some)]
                pace.first, pace.since = int(units.columns[POSITION][following]), int(units.columns[TAKEN][following])
                pace.moved(int(totals[TOTAL_LOGGED][0]), int(totals[TOTAL_TAKEN][0]))
            pace.left -= len(some)
            pace.each = max(spent / len(some), 1e-9)

    def _units_of(self, table: Table, at: int, slots: Ints) -> Ints:
        return self.operator.units(at, table.keys(slots)) if len(slots) else NO_INTS

    # -- what a slice is asked

    def due(self, tables: Sequence[Table]) -> int | None:
        return self.operator.due(tables)

    def oldest(self, tables: Sequence[Table]) -> int | None:
        return self.operator.oldest(tables)

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.RecordBatch:
        return self.operator.finish(keys, columns, arenas)

    def find(self, table: Table, keys: KeyRows) -> Ints:
        return self.operator.find(table, keys)

    def empty(self, port: str) -> pa.RecordBatch:
        return self.operator.empty(port)

    @property
    def state_schema(self) -> pa.Schema:
        return self.operator.state_schema

    def decode(self, batch: pa.RecordBatch, *, port: int = 0, partial: bool = False) -> Rows:
        return self.operator.decode(batch, port=port, partial=partial)

    def decode_keys(self, batch: pa.RecordBatch) -> KeyRows:
        return self.operator.decode_keys(batch)

    def concat(self, rows: Sequence[Rows]) -> Rows:
        return self.operator.concat(rows)

    def new_slice(self) -> SliceState:
        return TableSlice(self)

    def units(self, table: int, keys: KeyRows) -> Ints:
        return self.operator.units(table, keys)

    def row_units(self, rows: Rows, port: int, clock: int) -> Ints:
        return self.operator.row_units(rows, port, clock)

    @property
    def ports(self) -> tuple[str, ...]:
        return self.operator.ports

    def output_types(self, port: str = MAIN) -> tuple[tuple[str, str], ...]:
        return self.operator.output_types(port)

    def state_types(self) -> tuple[tuple[str, str], ...]:
        return self.operator.state_types()


@dataclass(frozen=True)
class Floors:
    """Of units that the log speaks of, the last epoch whose rows they have, or had when they were over: from there on
    they are replayed."""

    units: Ints
    """Sorted."""
    epochs: Ints

    def past(self, units: Ints, epoch: int) -> Array:
        """Which of these rows' units do not have the rows of that epoch yet."""
        if not len(self.units):
            return np.ones(len(units), bool)
        at = np.minimum(np.searchsorted(self.units, units), len(self.units) - 1)
        passed: Array = (self.units[at] != units) | (self.epochs[at] < epoch)
        return passed


class Replaying(Marked):
    """The operator while it brings units forward, each from its own footprint, through what the log has already: no
    unit opens in it, and none closes."""

    def __init__(self, operator: Operator, floors: Floors, logged: int) -> None:
        super().__init__(operator, "nowhere")
        self._floors, self._through = floors, logged

    def apply(self, work: Work, *inputs: Rows | None) -> None:
        kept = [None if rows is None else self._kept(work, rows, port) for port, rows in enumerate(inputs)]
        self.operator.apply(work, *kept)
        self.mark(work, 0 if work.epoch <= self._through else sum(len(rows) for rows in inputs if rows is not None))

    def take(self, work: Work, rows: Rows) -> None:
        super().take(work, self._kept(work, rows, 0))

    def settle(self, work: Work) -> None:
        if work.epoch <= self._through:
            work.taken = 0
        super().settle(work)

    def _kept(self, work: Work, rows: Rows, port: int) -> Rows:
        units = self.operator.row_units(rows, port, work.time.clock)
        keep = self._floors.past(units, work.epoch)
        return rows if keep.all() else rows.take(np.flatnonzero(keep))

    def _log(self, work: Work, units: Ints, kinds: Array, slots: Ints, parts: list[copies.Picked]) -> None:
        if len(units):
            raise CorruptionError(
                f"In the replay of epoch {work.epoch} {len(units)} units open or close of which the log says nothing.",
                safe="Nothing was changed.",
                todo="Bring the files under 'entry' and 'commit' back from a copy of the store.",
            )


def largest_units(operator: Operator, states: Iterable[SliceState]) -> tuple[int, ...]:
    """Of the largest units how many rows each has, where the slices know of units."""
    if not isinstance(operator, Marked):
        return ()
    found = NO_INTS
    for state in states:
        if isinstance(state, TableSlice):
            table = state.tables[operator.units_table]
            found = np.concatenate([found, table.columns[ROWS][: table.rows]])
            found = found if len(found) <= LARGEST else np.partition(found, -LARGEST)[-LARGEST:]
    return tuple(sorted((int(rows) for rows in found if rows), reverse=True))


def counted(operator: Operator, tables: Sequence[Table]) -> Mapping[int, int]:
    """Units and how many rows each has, by the operator's own tables."""
    found = [operator.units(at, table.keys(_living(table))) for at, table in enumerate(tables) if table.rows]
    units, rows = np.unique(np.concatenate([NO_INTS, *found]), return_counts=True)
    return dict(zip(units.tolist(), rows.tolist(), strict=True))


def _came_and_went(work: Work, at: int) -> tuple[Ints, Ints]:
    """The slots of a table that are alive and were not before the epoch, and the other way round."""
    table = work.tables[at]
    came = np.arange(work.born(at), table.rows)
    alive = table.layout.alive
    if alive is None:
        return came, NO_INTS
    now = table.columns[alive]
    old, images = work.before(at)
    was, lives = images[alive] > 0, now[old] > 0
    return np.concatenate([old[~was & lives], came[now[came] > 0]]), old[was & ~lives]


def _living(table: Table) -> Ints:
    alive = table.layout.alive
    return np.arange(table.rows) if alive is None else np.flatnonzero(table.columns[alive][: table.rows] > 0)


def _known(table: Table, units: Ints) -> Array:
    slots = table.find(keys_of(units))
    known: Array = slots >= 0
    known[known] = table.columns[ROWS][slots[known]] > 0
    return known


def _among(units: Ints, chosen: Ints) -> Array:
    at = np.minimum(np.searchsorted(chosen, units), len(chosen) - 1)
    found: Array = chosen[at] == units
    return found
