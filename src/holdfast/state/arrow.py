"""Between Arrow arrays and the NumPy columns that kernels take, without a copy wherever the bits already
agree.

Inward, every array becomes one of the four kinds (see ``types``) and a validity array: a byte a row, or no
bytes at all when nothing is null. Outward, buffers are handed to Arrow as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.invariants import invariant
from holdfast.state.columns import NO_BYTES, Array, Bytes, Ints, packed, spans_of
from holdfast.state.types import AtomicType


def validity(array: pa.Array) -> Bytes:
    """1 where there is a value, or an empty array if there is one everywhere."""
    if array.null_count == 0:
        return NO_BYTES
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.uint8)
    return _bits(array.buffers()[0], array.offset, len(array))


def ints(array: pa.Array) -> Ints:
    """Booleans, integers, dates and timestamps (microseconds) as int64."""
    kind, buffer = array.type, array.buffers()[1]
    if pa.types.is_boolean(kind):
        return _bits(buffer, array.offset, len(array)).astype(np.int64)
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        array = array.cast(pa.timestamp("us", tz=kind.tz))
        buffer = array.buffers()[1]
    if not (pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        raise TypeError(f"a column of type {kind} came where integers, dates or timestamps were announced")
    sign = "u" if pa.types.is_unsigned_integer(kind) else "i"
    return _fixed(buffer, f"{sign}{kind.bit_width // 8}", array.offset, len(array)).astype(np.int64, copy=False)


def floats(array: pa.Array) -> Array:
    """Any number as float64."""
    kind = array.type
    if pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    elif not pa.types.is_floating(kind):
        return ints(array).astype(np.float64)
    width = array.type.bit_width // 8
    return _fixed(array.buffers()[1], f"f{width}", array.offset, len(array)).astype(np.float64, copy=False)


def decimals(array: pa.Array, expected: AtomicType) -> Ints:
    """Decimals as (low word, high word)."""
    if array.type != expected.arrow:
        array = array.cast(expected.arrow)
    words = _fixed(array.buffers()[1], "i8", 2 * array.offset, 2 * len(array))
    return words.reshape(-1, 2)


def spans(array: pa.Array) -> tuple[Ints, Bytes]:
    """Strings and binaries as spans and the bytes they point into; null has length 0."""
    kind = array.type
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    if not (large or pa.types.is_string(kind) or pa.types.is_binary(kind)):
        array = array.cast(pa.large_binary())  # views, dictionaries
        large = True
    _, offsets, data = array.buffers()
    found = spans_of(_fixed(offsets, "i8" if large else "i4", array.offset, len(array) + 1))
    valid = validity(array)
    if len(valid):
        found[valid == 0, 1] = 0
    return found, NO_BYTES if data is None else np.frombuffer(data, np.uint8)


def of_fixed(kind: AtomicType, values: Array, valid: Bytes) -> pa.Array:
    """An Arrow array of int64, float64 or decimal words; ``values`` must belong to nobody else."""
    if pa.types.is_boolean(kind.arrow):
        return _array(kind.arrow, len(values), valid, np.packbits(values.astype(bool), bitorder="little"))
    if kind.kind != "decimal":
        width = kind.arrow.bit_width // 8
        values = values.astype(f"{'f' if kind.kind == 'float' else 'i'}{width}", copy=False)
    return _array(kind.arrow, len(values), valid, np.ascontiguousarray(values))


def of_spans(kind: pa.DataType, where: Ints, source: Bytes, valid: Bytes) -> pa.Array:
    """An Arrow array of the bytes of ``where``."""
    offsets, data = packed(where, source)
    large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not large:
        invariant(offsets[-1] < 1 << 31, "one batch cannot carry 2 GiB of strings")
    return _array(kind, len(where), valid, offsets.astype(np.int64 if large else np.int32), data)


def of_rows(matrix: Array) -> pa.Array:
    """Rows of a matrix as binaries of one length."""
    matrix = np.ascontiguousarray(matrix)
    return _array(pa.binary(matrix.shape[1] * matrix.itemsize), len(matrix), NO_BYTES, matrix)


def rows_of(array: pa.Array, dtype: str, width: int) -> Array:
    """The matrix that ``of_rows`` packed."""
    return _fixed(array.buffers()[1], dtype, array.offset * width, len(array) * width).reshape(-1, width)


def offsets(array: pa.Array) -> tuple[Ints, Bytes]:
    """Large binaries without nulls, as they are: n + 1 offsets and the bytes."""
    _, where, data = array.buffers()
    found = _fixed(where, "i8", array.offset, len(array) + 1) if len(array) else np.zeros(1, np.int64)
    return found, NO_BYTES if data is None else np.frombuffer(data, np.uint8)


def of_buffers(kind: pa.DataType, length: int, *buffers: Array) -> pa.Array:
    """The array that ``column_of``, ``rows_of`` or ``offsets`` would take apart into these."""
    return pa.Array.from_buffers(kind, length, [None, *(pa.py_buffer(np.ascontiguousarray(one)) for one in buffers)])


def column_of(array: pa.Array, dtype: str) -> Array:
    """A primitive column without nulls, as it is."""
    return _fixed(array.buffers()[1], dtype, array.offset, len(array))


def _array(kind: pa.DataType, length: int, valid: Bytes, *buffers: Array) -> pa.Array:
    mask, nulls = None, 0
    if len(valid):
        nulls = length - int(np.count_nonzero(valid))
        mask = pa.py_buffer(np.packbits(valid.astype(bool), bitorder="little")) if nulls else None
    return pa.Array.from_buffers(kind, length, [mask, *map(pa.py_buffer, buffers)], null_count=nulls)


def _fixed(buffer: Any, dtype: str, offset: int, length: int) -> Array:
    if length == 0 or buffer is None:
        return np.zeros(length, dtype)
    found = np.frombuffer(buffer, dtype, count=length, offset=offset * np.dtype(dtype).itemsize)
    # A segment read from the middle of a file may begin anywhere; kernels want aligned words.
    return found if found.flags.aligned else found.copy()


def _bits(buffer: Any, offset: int, length: int) -> Bytes:
    if length == 0 or buffer is None:
        return np.zeros(length, np.uint8)
    data = np.frombuffer(buffer, np.uint8)
    first = offset // 8
    found = np.unpackbits(data[first : (offset + length + 7) // 8], bitorder="little")
    return found[offset - 8 * first : offset - 8 * first + length]
