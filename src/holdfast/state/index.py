"""The open-addressing index of a slice: from a key's hash to its slot.

Entries are slot numbers in an int32 array of a power-of-two size, probed linearly, filled to at most 0.6.
All keys of a slice agree in ``pmod(hash, slices)``, so the place to start probing comes from the upper half
of a product into which every bit of the hash went. A slot is the key's only if hash, words and tail bytes
all agree: two keys of one 64-bit hash stay two keys.
"""

from __future__ import annotations

import numba
import numpy as np

from holdfast.state.kernel import (
    Int,
    RBytes,
    RInts,
    RPairs,
    RShorts,
    Void,
    WBytes,
    WInts,
    WPairs,
    WShorts,
    kernel,
)

EMPTY = -1
ROWS, TOUCHED, TAIL = 0, 1, 2  # what ``place`` counts in its cursor
_FILL = 0.6
_BLOCK = 1024  # rows whose slots are guessed at a time: few enough to stay in the nearest cache

# The caches of compiled kernels are per file: this file's helpers serve this file's kernels only.
_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


def room(entries: int) -> int:
    """How many rows an index of that size may hold."""
    return int(entries * _FILL)


@numba.njit(nogil=True, inline="always")
def _home(key_hash, mask):  # type: ignore[no-untyped-def]
    mixed = np.uint64(key_hash)
    mixed = (mixed ^ (mixed >> _HALF)) * _MIX
    return np.int64(mixed >> _HALF) & mask


@numba.njit(nogil=True)
def _guess(start, stop, hashes, index, all_hashes, slots):  # type: ignore[no-untyped-def]
    """For most rows that have a slot, that slot: the first or second entry of the probe, if its hash agrees.

    Without one branch that depends on what memory holds, so that the processor waits for many rows' memory
    at a time. Probing row by row would wait for each: this pass makes ``place`` several times faster.
    """
    mask = index.shape[0] - 1
    for i in range(start, stop):
        at = _home(hashes[i], mask)
        first, second = np.int64(index[at]), np.int64(index[(at + 1) & mask])
        # An empty entry (-1) looks at slot 0, which exists, and then does not count.
        match = (first != EMPTY) & (all_hashes[first if first != EMPTY else 0] == hashes[i])
        other = (second != EMPTY) & (all_hashes[second if second != EMPTY else 0] == hashes[i])
        slots[i] = first if match else (second if other else EMPTY)


@kernel(
    Int(
        *(Int, Int, RInts, RShorts, RPairs, RPairs, RBytes),
        *(WShorts, WInts, WShorts, WPairs, WPairs, WBytes, WShorts),
        *(Int, WInts, WInts, WInts, WShorts),
    )
)
def place(  # type: ignore[no-untyped-def]
    start, epoch, hashes, nulls, words, spans, tail,
    index, all_hashes, all_nulls, all_words, all_spans, all_tail, change,
    limit, cursor, slots, touched, changed_at,
):  # fmt: skip
    """Find the slot of every row from ``start`` on, or make one, and mark it changed at ``epoch``.

    Old slots that the epoch touches for the first time are noted with the epoch of their change before.
    Returns the row at which it ran out of room (rows, tail bytes), to go on from there with more, or the
    number of rows.
    """
    mask = index.shape[0] - 1
    rows, noted, used = cursor[ROWS], cursor[TOUCHED], cursor[TAIL]
    done = hashes.shape[0]
    tailed = spans.shape[0] != 0
    guessed = start
    for i in range(start, hashes.shape[0]):
        if i == guessed:
            guessed = min(i + _BLOCK, hashes.shape[0])
            _guess(i, guessed, hashes, index, all_hashes, slots)
        slot = slots[i]
        at = np.int64(EMPTY)  # no entry yet: the guess comes first, then the probe from its beginning
        while True:
            if slot != EMPTY:
                same = all_hashes[slot] == hashes[i] and all_nulls[slot] == nulls[i]
                for w in range(words.shape[1]):
                    same = same and all_words[slot, w] == words[i, w]
                if same and tailed:  # equal words: every part of the tail has equal length
                    for j in range(spans[i, 1]):
                        if tail[spans[i, 0] + j] != all_tail[all_spans[slot, 0] + j]:
                            same = False
                            break
                if same:
                    break
            elif at != EMPTY:
                break
            at = _home(hashes[i], mask) if at == EMPTY else (at + 1) & mask
            slot = np.int64(index[at])
        if slot == EMPTY:
            length = spans[i, 1] if tailed else 0
            if rows >= limit or used + length > all_tail.shape[0]:
                done = i
                break
            slot = rows
            index[at] = slot
            all_hashes[slot] = hashes[i]
            all_nulls[slot] = nulls[i]
            for w in range(words.shape[1]):
                all_words[slot, w] = words[i, w]
            if tailed:
                all_spans[slot, 0] = used
                all_spans[slot, 1] = length
                for j in range(length):
                    all_tail[used + j] = tail[spans[i, 0] + j]
                used += length
            change[slot] = epoch
            rows += 1
        elif change[slot] != epoch:
            touched[noted] = slot
            changed_at[noted] = change[slot]
            noted += 1
            change[slot] = epoch
        slots[i] = slot
    cursor[ROWS], cursor[TOUCHED], cursor[TAIL] = rows, noted, used
    return done


@kernel(
    Void(RInts, RShorts, RPairs, RPairs, RBytes, RShorts, RInts, RShorts, RPairs, RPairs, RBytes, WInts),
)
def find(  # type: ignore[no-untyped-def]
    hashes, nulls, words, spans, tail, index, all_hashes, all_nulls, all_words, all_spans, all_tail, slots
):
    """The slot of every row, or -1. The comparison is written out here as in ``place``: as a function of its
    own it would count references to eight arrays for every row, which costs more than the comparison."""
    mask = index.shape[0] - 1
    for i in range(hashes.shape[0]):
        at = _home(hashes[i], mask)
        slot = np.int64(index[at])
        while slot != EMPTY:
            same = all_hashes[slot] == hashes[i] and all_nulls[slot] == nulls[i]
            for w in range(words.shape[1]):
                same = same and all_words[slot, w] == words[i, w]
            if same and spans.shape[0] != 0:
                for j in range(spans[i, 1]):
                    if tail[spans[i, 0] + j] != all_tail[all_spans[slot, 0] + j]:
                        same = False
                        break
            if same:
                break
            at = (at + 1) & mask
            slot = np.int64(index[at])
        slots[i] = slot


@kernel(Void(RInts, Int, WShorts))
def rebuild(hashes, rows, index):  # type: ignore[no-untyped-def]
    """The index of the first ``rows`` slots, whose keys are known to differ."""
    mask = index.shape[0] - 1
    index[:] = EMPTY
    for slot in range(rows):
        at = _home(hashes[slot], mask)
        while index[at] != EMPTY:
            at = (at + 1) & mask
        index[at] = slot
