"""Columns of a slice: growable NumPy arrays, and arenas for bytes.

A column is plain memory that grows by doubling, so that kernels see one contiguous array. Bytes of any
length live in an arena, append-only, and a column of spans (offset, length) points into it. Nothing in an
arena is ever overwritten, which is what lets an undo set keep spans instead of copies; what became garbage
is left behind when the arena is copied to a new one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.state.kernel import RBytes, RInts, RPairs, Void, WBytes, kernel

Array = NDArray[Any]
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

NO_BYTES: Bytes = np.empty(0, np.uint8)
NO_INTS: Ints = np.empty(0, np.int64)
NO_SPANS: Ints = np.empty((0, 2), np.int64)
SMALLEST = 64


@dataclass(frozen=True)
class ColumnSpec:
    """One column of accumulators: ``width`` 0 is a flat column, ``spans`` says that it points into an
    arena.

    ``name`` tells it from the others of its table when a graph changes. One that was ``added`` is not in checkpoints of
    the first format, where it would be 0.
    """

    dtype: str
    width: int = 0
    spans: bool = False
    name: str = ""
    added: bool = False

    def named(self, name: str, *, added: bool = False) -> ColumnSpec:
        return replace(self, name=name, added=added)

    def empty(self, rows: int) -> Array:
        return np.empty((rows, self.width) if self.width else rows, self.dtype)


INT, FLOAT, FLAG = ColumnSpec("int64"), ColumnSpec("float64"), ColumnSpec("uint8")
DECIMAL, SPANS = ColumnSpec("int64", 2), ColumnSpec("int64", 2, spans=True)
QUADS = ColumnSpec("float64", 4)


def grown(column: Array, used: int, capacity: int) -> Array:
    """The same column with room for ``capacity`` rows."""
    wider = np.empty((capacity, *column.shape[1:]), column.dtype)
    wider[:used] = column[:used]
    return wider


class Arena:
    """Append-only bytes."""

    def __init__(self) -> None:
        self.data: Bytes = np.empty(0, np.uint8)
        self.used = 0
        self.copy_at = 1 << 16  # when used passes this, garbage may be worth leaving behind

    def reserve(self, extra: int) -> None:
        if self.used + extra > len(self.data):
            self.data = grown(self.data, self.used, max(2 * len(self.data), self.used + extra, 1024))


@kernel(Void(RPairs, RBytes, RInts, WBytes))
def copy_spans(spans, source, starts, target):  # type: ignore[no-untyped-def]
    """Row by row, the bytes of ``spans`` to ``starts`` in ``target``."""
    for i in range(spans.shape[0]):
        at, to = spans[i, 0], starts[i]
        for j in range(spans[i, 1]):
            target[to + j] = source[at + j]


def packed(spans: Ints, source: Bytes) -> tuple[Ints, Bytes]:
    """The bytes of ``spans``, end to end, with n + 1 offsets into them, as Arrow lays them out."""
    offsets = np.zeros(len(spans) + 1, np.int64)
    np.cumsum(spans[:, 1], out=offsets[1:])
    target = np.empty(int(offsets[-1]), np.uint8)
    copy_spans(np.ascontiguousarray(spans), source, offsets[:-1], target)
    return offsets, target


def spans_of(offsets: Ints) -> Ints:
    """Spans of consecutive values from their n + 1 offsets."""
    spans = np.empty((len(offsets) - 1, 2), np.int64)
    spans[:, 0] = offsets[:-1]
    np.subtract(offsets[1:], offsets[:-1], out=spans[:, 1])
    return spans


def joined(parts: list[tuple[Ints, Bytes]]) -> tuple[Ints, Bytes]:
    """Several runs of spans as one. Spans stand in row order, so that each run's bytes are one range of its
    arena.
    """
    spans, chunks, at = [], [], 0
    for rows, source in parts:
        if not len(rows):
            continue
        first, last = int(rows[0, 0]), int(rows[-1, 0] + rows[-1, 1])
        moved = rows.copy()
        moved[:, 0] += at - first
        spans.append(moved)
        chunks.append(source[first:last])
        at += last - first
    return (np.concatenate(spans), np.concatenate(chunks)) if spans else (NO_SPANS, NO_BYTES)
