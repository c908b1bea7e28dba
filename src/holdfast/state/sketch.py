"""HyperLogLog: how many distinct values a key has seen, in a fixed number of bytes.

One byte a register, which Numba updates without bit packing. The estimate is Ertl's improved one ("New
cardinality estimation algorithms for HyperLogLog sketches", 2017, algorithm 6): no tables of measured bias,
no switch between regimes, good from 0 to far beyond 2 ** 32. Values arrive as Spark's xxhash64 of them.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from holdfast.state.kernel import RBytes, RInts, RSketches, Void, WFloats, WSketches, kernel

LEAST_PRECISION, MOST_PRECISION = 4, 16


def precision(rsd: float) -> int:
    """Bits that choose the register, for a relative standard deviation, by the formula of Spark's own
    sketch.
    """
    return math.ceil(2.0 * math.log2(1.106 / rsd))


@kernel(Void(WSketches, RInts, RInts, RBytes))
def add(registers, slots, hashes, valid):  # type: ignore[no-untyped-def]
    one = np.uint64(1)
    bits = 0
    while (1 << bits) < registers.shape[1]:
        bits += 1
    for i in range(slots.shape[0]):
        if valid.shape[0] != 0 and not valid[i]:
            continue
        value = np.uint64(hashes[i])
        register = np.int64(value >> np.uint64(64 - bits))
        rest = (value << np.uint64(bits)) | (one << np.uint64(bits - 1))
        rank = 1
        while rest < np.uint64(1 << 63):
            rest <<= one
            rank += 1
        if rank > registers[slots[i], register]:
            registers[slots[i], register] = rank


@numba.njit(nogil=True)
def _sigma(x):  # type: ignore[no-untyped-def]
    if x == 1.0:
        return np.inf
    y, z = 1.0, x
    while True:
        x *= x
        before = z
        z += x * y
        y += y
        if z == before:
            return z


@numba.njit(nogil=True)
def _tau(x):  # type: ignore[no-untyped-def]
    if x == 0.0 or x == 1.0:
        return 0.0
    y, z = 1.0, 1.0 - x
    while True:
        x = math.sqrt(x)
        before = z
        y *= 0.5
        z -= (1.0 - x) ** 2 * y
        if z == before:
            return z / 3.0


@kernel(Void(RSketches, WFloats))
def estimate(registers, estimates):  # type: ignore[no-untyped-def]
    size = registers.shape[1]
    bits = 0
    while (1 << bits) < size:
        bits += 1
    most = 64 - bits
    for i in range(registers.shape[0]):
        histogram = np.zeros(most + 2, np.int64)
        for r in range(size):
            histogram[registers[i, r]] += 1
        z = size * _tau(1.0 - histogram[most + 1] / size)
        for k in range(most, 0, -1):
            z = 0.5 * (z + histogram[k])
        z += size * _sigma(histogram[0] / size)
        estimates[i] = size / (2.0 * math.log(2.0)) * (size / z)
