"""Undo sets: what an epoch changed, as it was before.

A set is made by every epoch and lives until that epoch is released. It takes the epoch back, and it is
also how a slice is read as of an older epoch while newer ones are already in its columns: of all sets above
that epoch the oldest has the row as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.state.columns import NO_INTS, Array, Ints
from holdfast.state.table import Table


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

    def take(self, table: Table, slots: Ints, changed_at: Array) -> None:
        """Keep rows that the epoch is about to change for the first time."""
        old = slots < self.rows  # what the epoch itself made needs no image: it will be cut off
        if not old.all():
            slots, changed_at = slots[old], changed_at[old]
        images = [column[slots] for column in table.columns]
        if not len(self.slots):
            self.slots, self.changed_at, self.columns = slots, changed_at, images
        elif len(slots):
            self.slots = np.concatenate([self.slots, slots])
            self.changed_at = np.concatenate([self.changed_at, changed_at])
            self.columns = [np.concatenate(both) for both in zip(self.columns, images, strict=True)]

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
    """The rows of a slice as of one epoch: the first ``rows`` slots of ``table``, seen through the undo sets of the
    epochs ``since``, newest first.

    Nothing is copied until rows are asked for, and then only those rows: a small delta of a large slice is cheap.
    """

    table: Table
    rows: int
    since: Sequence[UndoSet] = ()

    @staticmethod
    def of(table: Table) -> Snapshot:
        return Snapshot(table, table.rows)

    @staticmethod
    def before(table: Table, newest_first: Sequence[UndoSet]) -> Snapshot:
        """As it was before all of these epochs."""
        since: list[UndoSet] = []
        for undo in newest_first:
            since.append(undo)
            if undo.former is not None:  # below a purge slots have other numbers
                table, since = undo.former, []
        return Snapshot(table, since[-1].rows if since else table.rows, since)

    def slots(self, start: int = 0, stop: int | None = None) -> Ints:
        return np.arange(start, self.rows if stop is None else min(stop, self.rows))

    def changed(self, after: int, start: int = 0, stop: int | None = None) -> Ints:
        """Slots of that range changed after that epoch."""
        stop = self.rows if stop is None else min(stop, self.rows)
        change = self.table.change[start:stop]
        if self.since:
            change = change.copy()
        for undo in self.since:  # the oldest comes last, and its word counts
            mine = (undo.slots >= start) & (undo.slots < stop)
            change[undo.slots[mine] - start] = undo.changed_at[mine]
        return np.flatnonzero(change > after) + start

    def change(self, slots: Ints) -> Array:
        """The epochs in which those rows changed last."""
        found = self.table.change[slots]
        for at, undo, images in self._touched(slots):
            found[at] = undo.changed_at[images]
        return found

    def columns(self, slots: Ints) -> list[Array]:
        """Copies of the accumulators of those rows."""
        found = [column[slots] for column in self.table.columns]
        for at, undo, images in self._touched(slots):
            for column, before in zip(found, undo.columns, strict=True):
                column[at] = before[images]
        return found

    def living(self, slots: Ints) -> Ints:
        alive = self.table.layout.alive
        if alive is None or not len(slots):
            return slots
        counts = self.table.columns[alive][slots]
        for at, undo, images in self._touched(slots):
            counts[at] = undo.columns[alive][images]
        return slots[counts > 0]

    def _touched(self, slots: Ints) -> Iterator[tuple[Array, UndoSet, Array]]:
        """Which of ``slots`` a later epoch touched, and where its undo set has them; oldest epoch last."""
        if not self.since or not len(slots):
            return
        first, last = int(slots.min()), int(slots.max())
        image = np.empty(last - first + 1, np.int32)
        for undo in self.since:
            mine = np.flatnonzero((undo.slots >= first) & (undo.slots <= last))
            if not len(mine):
                continue
            image.fill(-1)
            image[undo.slots[mine] - first] = mine
            images = image[slots - first]
            at = np.flatnonzero(images >= 0)
            yield at, undo, images[at]
