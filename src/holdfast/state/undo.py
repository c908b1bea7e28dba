"""Undo sets: what an epoch changed, as it was before.

A set is made by every epoch and lives until that epoch is released. It takes the epoch back, and it is
also how a slice is read as of an older epoch while newer ones are already in its columns: of all sets above
that epoch the oldest has the row as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.state.columns import NO_INTS, Array, Ints
from holdfast.state.table import Placed, Table


@dataclass(slots=True)
class UndoSet:
    """One epoch's pre-images. ``former`` is the whole table before, where the epoch began with a purge."""

    epoch: int
    rows: int
    tail_used: int
    former: Table | None
    slots: Ints
    changed_at: Array
    columns: list[Array]

    @staticmethod
    def begin(epoch: int, table: Table, former: Table | None) -> UndoSet:
        return UndoSet(epoch, table.rows, table.tail.used, former, NO_INTS, np.empty(0, np.int32), [])

    def take(self, table: Table, placed: Placed) -> None:
        """Keep the rows that the epoch is about to change."""
        self.slots, self.changed_at = placed.touched, placed.changed_at
        self.columns = [column[self.slots] for column in table.columns]

    def restore(self, table: Table) -> Table:
        """The table as it was before the epoch."""
        if self.former is not None:
            return self.former
        if len(self.slots):
            table.change[self.slots] = self.changed_at
            for column, before in zip(table.columns, self.columns, strict=True):
                column[self.slots] = before
        table.truncate(self.rows, self.tail_used)
        return table

    @property
    def nbytes(self) -> int:
        own = self.slots.nbytes + self.changed_at.nbytes + sum(column.nbytes for column in self.columns)
        return own + (self.former.nbytes if self.former is not None else 0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The rows of a slice as of one epoch. Its keys are the table's; only the first ``rows`` slots belong
    to it.
    """

    table: Table
    rows: int
    change: Array
    columns: Sequence[Array]

    @staticmethod
    def of(table: Table) -> Snapshot:
        rows = table.rows
        return Snapshot(table, rows, table.change[:rows], [column[:rows] for column in table.columns])

    @staticmethod
    def before(table: Table, newest_first: Sequence[UndoSet]) -> Snapshot:
        """As it was before all of these epochs."""
        since: list[UndoSet] = []
        for undo in newest_first:
            since.append(undo)
            if undo.former is not None:  # below a purge slots have other numbers
                table, since = undo.former, []
        if not since:
            return Snapshot.of(table)
        rows = since[-1].rows
        change = table.change[:rows].copy()
        columns = [column[:rows].copy() for column in table.columns]
        for undo in since:
            if not len(undo.slots):
                continue
            mine = undo.slots < rows
            slots = undo.slots[mine]
            change[slots] = undo.changed_at[mine]
            for column, before in zip(columns, undo.columns, strict=True):
                column[slots] = before[mine]
        return Snapshot(table, rows, change, columns)

    def slots(self) -> Ints:
        return np.arange(self.rows)

    def changed(self, since: int) -> Ints:
        """Slots changed after that epoch."""
        return np.flatnonzero(self.change > since)

    def living(self, slots: Ints) -> Ints:
        alive = self.table.layout.alive
        return slots if alive is None else slots[self.columns[alive][slots] > 0]
