"""Decimal arithmetic in 128 bits and more: sums, whether they fit their precision, and means rounded half up.

A decimal is two int64 words, low then high, in two's complement, which is Arrow's own layout. Numba has no
128-bit integer, so carries are made by hand; mixing signed and unsigned words would silently make floats,
hence the casts.
"""

from __future__ import annotations

import numba
import numpy as np

from holdfast.state.columns import Ints
from holdfast.state.kernel import Int, RBytes, RInts, RPairs, Void, WBytes, WInts, WPairs, kernel


def limit(precision: int) -> Ints:
    """10 ** precision as two words: what a value of that precision stays below, up and down."""
    value = 10**precision
    return np.array([value & (1 << 64) - 1, value >> 64], np.uint64).view(np.int64)


@numba.njit(nogil=True, inline="always")
def _negated(low, high):  # type: ignore[no-untyped-def]
    flipped = ~np.uint64(low) + np.uint64(1)
    return np.int64(flipped), ~high + (np.int64(1) if flipped == np.uint64(0) else np.int64(0))


@numba.njit(nogil=True, inline="always")
def _below(low, high, other_low, other_high):  # type: ignore[no-untyped-def]
    return high < other_high or (high == other_high and np.uint64(low) < np.uint64(other_low))


@kernel(Void(WPairs, WInts, WInts, RInts, RPairs, RBytes, RInts, RInts))
def sum_decimals(total, seen, wraps, slots, values, valid, sign, weight):  # type: ignore[no-untyped-def]
    """A sum is ``total`` and ``wraps`` times 2**128: whether it fits its precision is asked when somebody wants it."""
    for i in range(slots.shape[0]):
        if valid.shape[0] != 0 and not valid[i]:
            continue
        slot = slots[i]
        low, high = values[i, 0], values[i, 1]
        if sign.shape[0] != 0 and sign[i] < 0:
            low, high = _negated(low, high)
        old_high = total[slot, 1]
        new_low = np.uint64(total[slot, 0]) + np.uint64(low)
        carry = np.int64(1) if new_low < np.uint64(low) else np.int64(0)
        new_high = old_high + high + carry
        if ((old_high ^ new_high) & (high ^ new_high)) < 0:
            wraps[slot] += 1 if old_high >= 0 else -1
        total[slot, 0], total[slot, 1] = np.int64(new_low), new_high
        seen[slot] += weight[i] if weight.shape[0] != 0 else 1


@kernel(Void(RPairs, RInts, RInts, RInts, WBytes))
def fitting(total, seen, wraps, bound, fits):  # type: ignore[no-untyped-def]
    """Which sums are of any values, and within a precision."""
    least_low, least_high = _negated(bound[0], bound[1])
    for i in range(total.shape[0]):
        low, high = total[i, 0], total[i, 1]
        within = _below(low, high, bound[0], bound[1]) and _below(least_low, least_high, low, high)
        fits[i] = 1 if seen[i] > 0 and wraps[i] == 0 and within else 0


@numba.njit(nogil=True)
def _divided(low, high, divisor):  # type: ignore[no-untyped-def]
    """An unsigned 128-bit number by one below 2 ** 63, bit by bit: quotient (low, high) and remainder."""
    rest = np.uint64(0)
    one = np.uint64(1)
    quotient_low, quotient_high = np.uint64(0), np.uint64(0)
    for bit in range(127, -1, -1):
        word = high if bit >= 64 else low
        taken = (word >> np.uint64(bit & 63)) & one
        rest = (rest << one) | taken
        if rest >= divisor:
            rest -= divisor
            if bit >= 64:
                quotient_high |= one << np.uint64(bit - 64)
            else:
                quotient_low |= one << np.uint64(bit)
    return quotient_low, quotient_high, rest


@numba.njit(nogil=True)
def _times(low, high, factor):  # type: ignore[no-untyped-def]
    """An unsigned 128-bit number times one below 2 ** 32, and whether that no longer fits into 127 bits."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    a = (low & mask) * factor
    b = (low >> half) * factor + (a >> half)
    c = (high & mask) * factor + (b >> half)
    d = (high >> half) * factor + (c >> half)
    return (a & mask) | (b << half), (c & mask) | (d << half), (d >> np.uint64(31)) != np.uint64(0)


@kernel(Void(RPairs, RInts, Int, RInts, WPairs, WBytes))
def mean_decimals(total, seen, digits, bound, result, valid):  # type: ignore[no-untyped-def]
    """total / seen with ``digits`` more digits, half up, where ``valid``; no longer valid where it does not fit."""
    ten, one, zero = np.uint64(10), np.uint64(1), np.uint64(0)
    for i in range(total.shape[0]):
        result[i, 0] = result[i, 1] = 0
        if not valid[i]:
            continue
        negative = total[i, 1] < 0
        signed_low, signed_high = total[i, 0], total[i, 1]
        if negative:
            signed_low, signed_high = _negated(signed_low, signed_high)
        divisor = np.uint64(seen[i])
        low, high, rest = _divided(np.uint64(signed_low), np.uint64(signed_high), divisor)
        lost = False
        for _ in range(digits):
            low, high, over = _times(low, high, ten)
            lost = lost or over
            # rest * 10 may pass 64 bits, so the next digit comes from a long division too
            rest_low, rest_high, _over = _times(rest, zero, ten)
            digit, _high, rest = _divided(rest_low, rest_high, divisor)
            low += digit
            if low < digit:
                high += one
        if rest >= divisor - rest:
            low += one
            if low == zero:
                high += one
        if lost or not _below(np.int64(low), np.int64(high), bound[0], bound[1]):
            valid[i] = 0
            continue
        signed_low, signed_high = np.int64(low), np.int64(high)
        if negative:
            signed_low, signed_high = _negated(signed_low, signed_high)
        result[i, 0], result[i, 1] = signed_low, signed_high
