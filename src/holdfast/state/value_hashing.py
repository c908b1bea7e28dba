"""Spark's ``xxhash64`` of any key, a value at a time.

Slow beside what intake does for columns of fixed width, and good enough for a key that is read and for the rows of a
test. The numbers are Spark's, so a key is in the same slice here as in production, and a sketch counts the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.state import hashing

_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_LONG_DIGITS = 18
_EXACT = Context(prec=76)


def xxhash64(columns: Sequence[pa.Array], kinds: Sequence[str]) -> npt.NDArray[np.int64]:
    """The hash of each row over these columns, whose Spark types are ``kinds``."""
    if hashing.can_hash(kinds):
        return hashing.xxhash64(columns)
    hashes = [hashing.SEED] * len(columns[0])
    for column in columns:
        for at, value in enumerate(_hashable(column)):
            if value is not None:
                hashes[at] = _hash(value, hashes[at])
    return np.array(hashes, np.uint64).view(np.int64)


def _hashable(column: pa.Array) -> Iterator[np.unsignedinteger[Any] | bytes | None]:
    """What Spark hashes of each value: a word of 32 or 64 bits, or bytes."""
    kind = column.type
    if pa.types.is_decimal(kind):
        for value in column.to_pylist():
            yield None if value is None else _of_decimal(value, kind.precision, kind.scale)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        yield from column.cast(pa.binary()).to_pylist()
    else:
        bits = hashing.values_of(column)
        for at, missing in enumerate(column.is_null().to_pylist()):
            yield None if missing else bits[at]


def _of_decimal(value: Decimal, precision: int, scale: int) -> np.uint64 | bytes:
    unscaled = int(value.scaleb(scale, _EXACT))
    if precision <= _LONG_DIGITS:
        return np.int64(unscaled).view(np.uint64)
    magnitude = unscaled if unscaled >= 0 else -unscaled - 1
    return unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def _hash(value: np.unsignedinteger[Any] | bytes, seed: int) -> int:
    if isinstance(value, bytes):
        return _of_bytes(value, seed)
    if value.itemsize == 4:
        mixed = (seed + _P5 + 4 ^ int(value) * _P1) & _MASK
        return _end((_rotated(mixed, 23) * _P2 + _P3) & _MASK)
    mixed = (seed + _P5 + 8 ^ _round(0, int(value))) & _MASK
    return _end((_rotated(mixed, 27) * _P1 + _P4) & _MASK)


def _of_bytes(data: bytes, seed: int) -> int:
    at, size = 0, len(data)
    if size >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while at + 32 <= size:
            lanes = [_round(lane, word) for lane, word in zip(lanes, struct.unpack_from("<4Q", data, at), strict=True)]
            at += 32
        total = sum(_rotated(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            total = ((total ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        total = (seed + _P5) & _MASK
    total = (total + size) & _MASK
    while at + 8 <= size:
        total = (_rotated(total ^ _round(0, struct.unpack_from("<Q", data, at)[0]), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= size:
        total = (_rotated(total ^ (struct.unpack_from("<I", data, at)[0] * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        total = _rotated(total ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    return _end(total)


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _MASK


def _end(word: int) -> int:
    word = (word ^ word >> 33) * _P2 & _MASK
    word = (word ^ word >> 29) * _P3 & _MASK
    return word ^ word >> 32
