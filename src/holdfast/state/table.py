"""The rows of a slice as columns: keys, the epoch of each row's last change, accumulators, and the index
over them.

A row's slot never changes while the table lives, and slots are given in order of first appearance. So slot
order is part of the state: a copy that keeps slot numbers puts out the same rows in the same order as the
original.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.state import index as indexing
from holdfast.state.columns import NO_BYTES, SMALLEST, Arena, Array, ColumnSpec, Ints, grown, packed, spans_of
from holdfast.state.keys import KeyRows

UNBORN = 1
"""Rows that a table has room for before it has had one: a stage may have thousands of slices that no row ever comes to.
None would not do: kernels read ahead of what they know to be there."""


@dataclass(frozen=True)
class Layout:
    """Which columns a table has. ``alive`` is the column that counts a key's rows, where rows may be taken
    back.

    A stage's tables are told apart by their ``name`` when its columns come or go; one without is known by its columns.
    """

    words: int
    tail: bool
    columns: tuple[ColumnSpec, ...]
    alive: int | None = None
    name: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


@dataclass(frozen=True)
class Placed:
    """Where an epoch's rows went: the slot of each, and the old slots among them, with their change epochs
    before.
    """

    slots: Ints
    touched: Ints
    changed_at: Array


class Table:
    """The columns of one slice. Plain data: what an epoch means is ``slice``'s business."""

    def __init__(self, layout: Layout, capacity: int = UNBORN, *, indexed: bool = True) -> None:
        self.layout = layout
        self.rows = 0
        self.purged_at = 0
        self.hash: Ints = np.empty(capacity, np.int64)
        self.nulls: Array = np.empty(capacity, np.int32)
        self.words: Ints = np.empty((capacity, layout.words), np.int64)
        self.spans: Ints = np.empty((capacity if layout.tail else 0, 2), np.int64)
        self.tail = Arena()
        self.change: Array = np.empty(capacity, np.int32)
        self.columns: list[Array] = [column.empty(capacity) for column in layout.columns]
        self.arenas: list[Arena | None] = [Arena() if column.spans else None for column in layout.columns]
        self.index: Array = np.full(2 * UNBORN, indexing.EMPTY, np.int32)
        if indexed and indexing.room(len(self.index)) < capacity:
            self.reindex(capacity)

    @property
    def nbytes(self) -> int:
        arrays = (self.hash, self.nulls, self.words, self.spans, self.change, self.index, *self.columns)
        arenas = (self.tail, *(arena for arena in self.arenas if arena is not None))
        return sum(array.nbytes for array in arrays) + sum(arena.data.nbytes for arena in arenas)

    def place(self, keys: KeyRows, epoch: int) -> Placed:
        """Slots for all keys; new ones get a row of zeros. If memory runs out, nothing has happened."""
        count, born, tail_used = len(keys), self.rows, self.tail.used
        slots, touched = np.empty(count, np.int64), np.empty(min(count, born), np.int64)
        changed_at = np.empty(len(touched), np.int32)
        cursor = np.array([born, 0, tail_used], np.int64)
        done = 0
        try:
            while True:
                limit = min(len(self.hash), indexing.room(len(self.index)))
                done = indexing.place(
                    *(done, epoch, keys.hash, keys.nulls, keys.words, keys.spans, keys.tail),
                    *(self.index, self.hash, self.nulls, self.words, self.spans, self.tail.data, self.change),
                    *(limit, cursor, slots, touched, changed_at),
                )
                self.rows, self.tail.used = int(cursor[indexing.ROWS]), int(cursor[indexing.TAIL])
                if done == count:
                    break
                if self.rows == len(self.hash):
                    self.grow(max(SMALLEST, 2 * self.rows))
                if self.rows == indexing.room(len(self.index)):
                    self.reindex(max(SMALLEST, self.rows + 1))
                if self.layout.tail:
                    self.tail.reserve(int(keys.spans[done, 1]))
        except BaseException:
            noted = int(cursor[indexing.TOUCHED])
            self.change[touched[:noted]] = changed_at[:noted]
            self.truncate(born, tail_used)
            raise
        for column in self.columns:
            column[born : self.rows] = 0
        noted = int(cursor[indexing.TOUCHED])
        return Placed(slots, touched[:noted], changed_at[:noted])

    def find(self, keys: KeyRows) -> Ints:
        slots = np.empty(len(keys), np.int64)
        indexing.find(
            *(keys.hash, keys.nulls, keys.words, keys.spans, keys.tail),
            *(self.index, self.hash, self.nulls, self.words, self.spans, self.tail.data, slots),
        )
        return slots

    def grow(self, capacity: int) -> None:
        rows = self.rows
        self.hash, self.nulls = grown(self.hash, rows, capacity), grown(self.nulls, rows, capacity)
        self.words, self.change = grown(self.words, rows, capacity), grown(self.change, rows, capacity)
        if self.layout.tail:
            self.spans = grown(self.spans, rows, capacity)
        self.columns = [grown(column, rows, capacity) for column in self.columns]

    def reindex(self, rows: int) -> None:
        """A fresh index over the rows there are, with room for ``rows``."""
        entries = len(self.index)
        while indexing.room(entries) < rows:
            entries *= 2
        if entries > len(self.index):
            self.index = np.empty(entries, np.int32)
        indexing.rebuild(self.hash, self.rows, self.index)

    def drop_index(self) -> None:
        """Save the index's memory while nobody looks keys up; ``reindex`` makes it again."""
        self.index = np.full(2 * UNBORN, indexing.EMPTY, np.int32)

    def leave_garbage(self, images: Sequence[Sequence[Array]] = ()) -> None:
        """Copy an arena that has doubled, without the bytes that neither a row nor one of ``images`` points at."""
        for number, arena in enumerate(self.arenas):
            if arena is None or arena.used <= arena.copy_at:
                continue
            holders = [self.columns[number][: self.rows], *(columns[number] for columns in images)]
            offsets, data = packed(np.concatenate(holders), arena.data)
            moved, at = spans_of(offsets), 0
            for holder in holders:
                holder[:] = moved[at : at + len(holder)]
                at += len(holder)
            arena.data, arena.used = data, len(data)
            arena.copy_at = max(arena.copy_at, 2 * arena.used)

    def truncate(self, rows: int, tail_used: int) -> None:
        """Forget the youngest rows."""
        if rows < self.rows:
            self.rows, self.tail.used = rows, tail_used
            self.reindex(rows)

    def kept(self, slots: Ints) -> Table:
        """A new table of those rows only, renumbered in the order they are given."""
        table = Table(self.layout, max(SMALLEST, len(slots)))
        table.rows, table.purged_at = len(slots), self.purged_at
        table.hash[: len(slots)] = self.hash[slots]
        table.nulls[: len(slots)] = self.nulls[slots]
        table.words[: len(slots)] = self.words[slots]
        table.change[: len(slots)] = self.change[slots]
        for new, old, into, of in zip(table.columns, self.columns, table.arenas, self.arenas, strict=True):
            if into is None or of is None:
                new[: len(slots)] = old[slots]
            else:
                offsets, into.data = packed(old[slots], of.data)
                into.used, into.copy_at = len(into.data), max(into.copy_at, 2 * len(into.data))
                new[: len(slots)] = spans_of(offsets)
        if self.layout.tail:
            offsets, table.tail.data = packed(self.spans[slots], self.tail.data)
            table.tail.used = len(table.tail.data)
            table.spans[: len(slots)] = spans_of(offsets)
        table.reindex(len(slots))
        return table

    def keys(self, slots: Ints) -> KeyRows:
        """The keys of those slots."""
        spans = self.spans[slots] if self.layout.tail else self.spans
        tail = self.tail.data if self.layout.tail else NO_BYTES
        return KeyRows(self.hash[slots], self.nulls[slots], self.words[slots], spans, tail)
