"""Blocked Bloom filters: have we seen this key, in about a dozen bits a key and one line of memory.

A key's hash picks one block of 512 bits and some bits of it. Bits are only ever set, so a key that was added is always
found; a key that was not is found with a small probability, which grows with how full the blocks are. Because keys do
not spread evenly over blocks, a blocked filter needs more bits than a plain one for the same error: ``plan`` adds up
the error over the blocks' loads, and takes the fewest bits that keep the promise. (Putze, Sanders and Singler, "Cache-,
Hash- and Space-Efficient Bloom Filters", 2007.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np

from holdfast.state.columns import Array, Ints
from holdfast.state.kernel import Int, RInts, RPairs, Void, WBytes, WPairs, kernel

BLOCK = 512
WORDS = BLOCK // 64
_MOST_BITS = 64.0  # a key

# The caches of compiled kernels are per file: this file's helpers serve this file's kernels only.
_FIRST, _SECOND = np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA0761D6478BD642F)
_HALF, _NINE, _LOW = np.uint64(32), np.uint64(9), np.uint64(BLOCK - 1)
_SIX, _ONE = np.uint64(6), np.uint64(1)


@dataclass(frozen=True)
class Plan:
    """How many blocks a filter has, and how many bits of its block each key sets."""

    blocks: int
    probes: int


def plan(keys: float, error: float) -> Plan:
    """The smallest filter that, with so many keys in it, takes a new one for an old one no more often than that."""
    low, high = 1.0, _MOST_BITS
    while high - low > 0.05:
        bits = (low + high) / 2
        if min(expected_error(bits, probes) for probes in _sensible(bits)) <= error:
            high = bits
        else:
            low = bits
    probes = min(_sensible(high), key=lambda count: expected_error(high, count))
    return Plan(max(1, math.ceil(keys * high / BLOCK)), probes)


def expected_error(bits: float, probes: int) -> float:
    """Of a filter with so many bits a key: a block's load is a Poisson number, and its error that of a plain filter."""
    mean = BLOCK / bits
    total, weight = 0.0, math.exp(-mean)
    for load in range(int(mean + 12 * math.sqrt(mean) + 12)):
        total += weight * (1 - (1 - 1 / BLOCK) ** (load * probes)) ** probes
        weight *= mean / (load + 1)
    return total


def _sensible(bits: float) -> range:
    best = max(1, round(bits * math.log(2)))
    return range(max(1, best - 5), best + 1)


def blocks_of(hashes: Ints, blocks: int) -> Ints:
    """The block of each key. Keys of a slice agree in some bits of their hash, so it is mixed first."""
    mixed = hashes.view(np.uint64)
    mixed = (mixed ^ (mixed >> _HALF)) * _FIRST
    return (((mixed >> _HALF) * np.uint64(blocks)) >> _HALF).view(np.int64)


@numba.njit(nogil=True, inline="always")
def _bits(key_hash):  # type: ignore[no-untyped-def]
    """The first bit and the step to the next; other bits than those that chose the block."""
    mixed = np.uint64(key_hash)
    mixed = (mixed ^ (mixed >> _HALF)) * _SECOND
    mixed ^= mixed >> _HALF
    mixed *= _FIRST
    return mixed >> _HALF, (mixed << _ONE) | _ONE


@kernel(Void(Int, RInts, RInts, RPairs, WBytes))
def seen(probes, hashes, slots, filters, found):  # type: ignore[no-untyped-def]
    """Set ``found`` where all bits of a key are set in the block at its slot (-1: there is none)."""
    for i in range(hashes.shape[0]):
        if slots[i] < 0:
            continue
        at, step = _bits(hashes[i])
        every = True
        for _ in range(probes):
            bit = (at >> _NINE) & _LOW
            if (np.uint64(filters[slots[i], np.int64(bit >> _SIX)]) >> (bit & np.uint64(63))) & _ONE == 0:
                every = False
                break
            at += step
            step += _SECOND
        if every:
            found[i] = 1


@kernel(Void(Int, RInts, RInts, WPairs, WBytes))
def add(probes, hashes, slots, filters, found):  # type: ignore[no-untyped-def]
    """One key after the other: set ``found`` where it was there already, and add it."""
    for i in range(hashes.shape[0]):
        at, step = _bits(hashes[i])
        every = True
        for _ in range(probes):
            bit = (at >> _NINE) & _LOW
            word, mask = np.int64(bit >> _SIX), _ONE << (bit & np.uint64(63))
            if np.uint64(filters[slots[i], word]) & mask == 0:
                every = False
                filters[slots[i], word] = np.int64(np.uint64(filters[slots[i], word]) | mask)
            at += step
            step += _SECOND
        if every:
            found[i] = 1


def bits_set(filters: Array) -> Ints:
    """How many bits each block has set."""
    flat = np.unpackbits(np.ascontiguousarray(filters).view(np.uint8), axis=1)
    found: Ints = flat.sum(axis=1, dtype=np.int64)
    return found
