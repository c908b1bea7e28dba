"""Rows of copies that go into a table that lives: units of state that come back one by one."""

from __future__ import annotations

import numpy as np

from holdfast.invariants import invariant
from holdfast.state.columns import NO_BYTES, NO_SPANS, spans_of
from holdfast.state.copies import Picked, fill_values
from holdfast.state.keys import KeyRows
from holdfast.state.table import Table


def keys_of(part: Picked) -> KeyRows:
    """Of rows of a copy."""
    hashes, nulls, *rest = part.columns[2:]
    words = rest.pop(0) if part.layout.words else np.empty((part.rows, 0), np.int64)
    spans, tail = NO_SPANS, NO_BYTES
    if part.layout.tail:
        offsets, tail = rest[0]
        spans = spans_of(offsets)
    return KeyRows(np.asarray(hashes), np.asarray(nulls), np.ascontiguousarray(words), spans, tail)


def insert(table: Table, part: Picked, epoch: int) -> None:
    """Rows of a copy, in their order, behind those that a table has; of none it has the key."""
    born = table.rows
    slots = table.place(keys_of(part), epoch).slots
    invariant(len(slots) == table.rows - born, "rows come to a table that has them")
    fill_values(table, part, slots)
