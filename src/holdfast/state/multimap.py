"""Many rows under one key in a table that knows only one: rows are numbered within their key and bucket.

A row's key is (key, bucket, number); numbers run from 0 without a hole, and the row of number 0 says in its first
column how many there are (the others say 1), which is also what makes a row alive. A row that leaves is replaced by
the last one, so that a bucket which rows come to and go from for ever stays as small as what is in it. The price is
that after that rows do not stand in the order they came; their order is part of the state all the same.
"""

from __future__ import annotations

import numpy as np

from holdfast.state.columns import Array, ColumnSpec, Ints
from holdfast.state.kernel import RInts, Void, WInts, WShorts, kernel
from holdfast.state.keys import KeyRows
from holdfast.state.slice import Work
from holdfast.state.table import Table

SIZE = ColumnSpec("int32")
"""The column that a table of such rows begins with; its layout names it as ``alive``."""
WORDS = 2
"""By how many words its keys are longer than those of the stage."""


@kernel(Void(RInts, WShorts, WInts))
def number_rows(heads, sizes, numbers):  # type: ignore[no-untyped-def]
    """Give every row the next number of its bucket, in order."""
    for i in range(heads.shape[0]):
        numbers[i] = sizes[heads[i]]
        sizes[heads[i]] += 1


def add(work: Work, keys: KeyRows, buckets: Ints, table: int) -> Ints:
    """Rows at the end of their buckets: their slots, to be filled."""
    heads = work.place(keys.extended(buckets, np.zeros(len(keys), np.int64)), table)
    numbers = np.empty(len(keys), np.int64)
    number_rows(heads, work.tables[table].columns[0], numbers)
    more = np.flatnonzero(numbers)
    if not len(more):
        return heads
    slots = heads.copy()
    slots[more] = work.place(keys.take(more).extended(buckets[more], numbers[more]), table)
    work.tables[table].columns[0][slots[more]] = 1
    return slots


def look(table: Table, keys: KeyRows, buckets: Ints) -> tuple[Ints, Ints]:
    """All rows of those buckets, bucket by bucket as asked and each by number: which was asked for, and the slot."""
    heads = table.find(keys.extended(buckets, np.zeros(len(keys), np.int64)))
    sizes = np.where(heads >= 0, table.columns[0][heads], 0)
    asked, numbers = runs(sizes)
    slots = heads[asked]
    more = np.flatnonzero(numbers)
    if len(more):
        slots[more] = _slots(table, keys, buckets, asked[more], numbers[more])
    return asked, slots


def remove(work: Work, slots: Ints, table: int) -> None:
    """Those rows leave (no slot twice); the last rows of their buckets take their numbers."""
    held = work.tables[table]
    if (held.words[slots, -1] == 0).all() and (held.columns[0][slots] == 1).all():
        work.bury(slots, table)  # each was alone
        return
    heads, of, gone = np.unique(_heads(held, slots), return_inverse=True, return_counts=True)
    numbers, sizes = held.words[slots, -1], held.columns[0]
    left = sizes[heads] - gone
    dead = np.zeros(held.rows, bool)
    dead[slots] = True
    # Of the numbers that will be too high, those of living rows move into the holes below.
    asked, above = runs(np.where(left > 0, gone, 0))
    last = _slots(held, *_bucket_of(held, heads), asked, above + left[asked])
    movers = last[~dead[last]]
    low = np.flatnonzero(numbers < left[of])
    holes = slots[low[np.lexsort((numbers[low], of[low]))]]
    staying = heads[left > 0]
    work.touch(np.union1d(holes, staying), table)
    for column in held.columns[1:]:
        column[holes] = column[movers]
    sizes[staying] = left[left > 0]
    work.bury(np.concatenate([movers, slots[numbers >= left[of]]]), table)


def runs(sizes: Array) -> tuple[Ints, Ints]:
    """For every one of those sizes as many entries: whose they are, and their numbers from 0 on."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return owner, np.arange(len(owner)) - (np.cumsum(sizes) - sizes)[owner]


def _slots(table: Table, keys: KeyRows, buckets: Ints, at: Ints, numbers: Ints) -> Ints:
    return table.find(keys.take(at).extended(buckets[at], numbers))


def _heads(table: Table, slots: Ints) -> Ints:
    heads = slots.copy()
    more = np.flatnonzero(table.words[slots, -1])
    if len(more):
        keys, buckets = _bucket_of(table, slots[more])
        heads[more] = table.find(keys.extended(buckets, np.zeros(len(more), np.int64)))
    return heads


def _bucket_of(table: Table, slots: Ints) -> tuple[KeyRows, Ints]:
    keys = table.keys(slots)
    return keys.shortened(WORDS), np.ascontiguousarray(keys.words[:, -2])
