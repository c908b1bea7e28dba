"""Checksums of what a slice holds: two that hold the same have the same, wherever their rows lie.

A row's checksum is of its key and of every column, bit for bit, as they travel in copies; not of its slot, nor of the
epoch that changed it last. Those of a table are added up, so neither the order of its rows nor the parts in which they
are looked at play a part; rows that have died count for nothing. Bits it is because a slice goes on from them: a NaN is
equal to itself here, and -0.0 is not 0.0. Bytes of any length count by their content, wherever they lie in their arena.

64 bits: against faults, not against somebody who wants two states to look alike.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from holdfast.invariants import Impossible
from holdfast.state.columns import Array, Bytes, Ints
from holdfast.state.content import hash_spans
from holdfast.state.copies import Picked

Words = NDArray[np.uint64]
NOT_CONTENT = 2
"""Columns of a copy that come first: slot and change."""
_BITS = 2**64
_ODD = np.uint64(0x9E3779B97F4A7C15)
_OTHER = np.uint64(0xC2B2AE3D27D4EB4F)
_HALF, _THIRD = np.uint64(32), np.uint64(29)


def of_part(part: Picked) -> int:
    """Of some rows of a table. That of all of them is the sum of its parts'."""
    found: Words = np.full(part.rows, _OTHER)
    for column in part.columns[NOT_CONTENT:]:
        found = (found ^ (_spread(*column) if isinstance(column, tuple) else _plain(column))) * _ODD
        found ^= found >> _HALF
    found = (found ^ (found >> _THIRD)) * _OTHER
    found ^= found >> _HALF
    return int(found[_living(part)].sum(dtype=np.uint64))


def together(digests: list[int]) -> int:
    """Of several tables, in their order."""
    told = b"".join((digest % _BITS).to_bytes(8, "little") for digest in digests)
    return int.from_bytes(blake2b(told, digest_size=8).digest(), "little")


def _living(part: Picked) -> slice | Array:
    layout = part.layout
    if layout.alive is None:
        return slice(None)
    column = part.columns[len(part.columns) - len(layout.columns) + layout.alive]
    if isinstance(column, tuple):
        raise Impossible("bytes do not say whether a row lives")
    living: Array = column > 0
    return living


def _plain(column: Array) -> Words:
    if column.ndim > 1:  # rows of several numbers: their bytes
        width = column.dtype.itemsize * column.shape[1]
        data = np.ascontiguousarray(column).view(np.uint8).reshape(-1)
        return _spread(np.arange(len(column) + 1, dtype=np.int64) * width, data)
    if column.dtype.itemsize == 8:
        return np.ascontiguousarray(column).view(np.uint64)
    return column.astype(np.int64).view(np.uint64)


def _spread(offsets: Ints, data: Bytes) -> Words:
    hashes = np.empty(len(offsets) - 1, np.int64)
    hash_spans(np.stack([offsets[:-1], np.diff(offsets)], axis=1), data, hashes)
    return hashes.view(np.uint64)
