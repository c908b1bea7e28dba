"""Spark's ``xxhash64`` over Arrow columns of fixed width, vectorised in NumPy.

A hash column computed by Spark costs each row another field to write, send and read on its way into Python, about a
tenth of the whole crossing. For keys of fixed width the same number is a dozen NumPy operations here. Strings, binaries
and decimals stay with Spark: their bytes would need a loop per row. The seed is Spark's 42, each column's hash is the
seed of the next, nulls leave it as it is, and floats are hashed by their canonical bits, as Spark does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HASHED_HERE = frozenset(
    ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp", "timestamp_ntz"]
)
SEED = 42

Words = npt.NDArray[np.uint64]
Bits = npt.NDArray[Any]  # uint32 or uint64

_PRIME1 = np.uint64(0x9E3779B185EBCA87)
_PRIME2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME3 = np.uint64(0x165667B19E3779F9)
_PRIME4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME5 = np.uint64(0x27D4EB2F165667C5)


def can_hash(types: Sequence[str]) -> bool:
    return all(kind in HASHED_HERE for kind in types)


def xxhash64(columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """The hash of each row over these columns, as ``pyspark.sql.functions.xxhash64`` gives it."""
    hashes: Words = np.full(len(columns[0]), SEED, np.uint64)
    for column in columns:
        values = values_of(column)
        hashed = _hash_int(values, hashes) if values.dtype == np.uint32 else _hash_long(values, hashes)
        if column.null_count:
            hashed = np.where(np.asarray(column.is_null()), hashes, hashed)
        hashes = hashed
    return hashes.view(np.int64)


def values_of(column: pa.Array) -> Bits:
    """The bits that are hashed: 32 of them for types up to an int's width, else 64."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return np.asarray(column.fill_null(False).cast(pa.int32())).view(np.uint32)
    width = kind.bit_width // 8
    values: Bits = np.frombuffer(column.buffers()[1], np.dtype(f"i{width}"), len(column), column.offset * width)
    if pa.types.is_floating(kind):
        floats = values.view(np.dtype(f"f{width}")) + 0.0  # -0.0 becomes 0.0
        floats[np.isnan(floats)] = np.nan
        values = floats.view(np.dtype(f"i{width}"))
    if width < 4:
        values = values.astype(np.int32)
    return values.view(np.uint32 if values.itemsize == 4 else np.uint64)


def _hash_int(values: Bits, seed: Words) -> Words:
    hashed: Words = seed + (_PRIME5 + np.uint64(4))
    hashed ^= values.astype(np.uint64) * _PRIME1
    hashed = _rotated(hashed, 23)
    hashed *= _PRIME2
    hashed += _PRIME3
    return _mixed(hashed)


def _hash_long(values: Bits, seed: Words) -> Words:
    word: Words = values * _PRIME2
    word = _rotated(word, 31)
    word *= _PRIME1
    hashed: Words = seed + (_PRIME5 + np.uint64(8))
    hashed ^= word
    hashed = _rotated(hashed, 27)
    hashed *= _PRIME1
    hashed += _PRIME4
    return _mixed(hashed)


def _rotated(words: Words, bits: int) -> Words:
    low = words >> np.uint64(64 - bits)
    words <<= np.uint64(bits)
    words |= low
    return words


def _mixed(words: Words) -> Words:
    words ^= words >> np.uint64(33)
    words *= _PRIME2
    words ^= words >> np.uint64(29)
    words *= _PRIME3
    words ^= words >> np.uint64(32)
    return words
