"""Decimal arithmetic in 128 bits: sums that notice leaving their precision, and means rounded half up.

A decimal is two int64 words, low then high, in two's complement, which is Arrow's own layout. Numba has no
128-bit integer, so carries are made by hand; mixing signed and unsigned words would silently make floats,
hence the casts.
"""

from __future__ import annotations

import numba
import numpy as np

from holdfast.state.columns import Ints
from holdfast.state.kernel import Bool, Int, RBytes, RInts, RPairs, WBytes, WInts, WPairs, kernel

# In the count of values seen: this sum left its precision (and ANSI is off), so it is null for good.
OVERFLOWED = -(1 << 62)
_LOST = OVERFLOWED // 2


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


@kernel(Int(WPairs, WInts, RInts, RPairs, RBytes, RInts, RInts, RInts, Bool))
def sum_decimals(total, seen, slots, values, valid, sign, weight, bound, checked):  # type: ignore[no-untyped-def]
    """Returns the row whose sum left the precision, or -1; unchecked, that sum becomes null for good."""
    bound_low, bound_high = bound[0], bound[1]
    least_low, least_high = _negated(bound_low, bound_high)
    for i in range(slots.shape[0]):
        slot = slots[i]
        if (valid.shape[0] != 0 and not valid[i]) or seen[slot] < _LOST:
            continue
        low, high = values[i, 0], values[i, 1]
        if sign.shape[0] != 0 and sign[i] < 0:
            low, high = _negated(low, high)
        old_high = total[slot, 1]
        new_low = np.uint64(total[slot, 0]) + np.uint64(low)
        carry = np.int64(1) if new_low < np.uint64(low) else np.int64(0)
        new_high = old_high + high + carry
        wrapped = ((old_high ^ new_high) & (high ^ new_high)) < 0
        fits = _below(np.int64(new_low), new_high, bound_low, bound_high) and _below(
            least_low, least_high, np.int64(new_low), new_high
        )
        if wrapped or not fits:
            if checked:
                return i
            seen[slot] = OVERFLOWED
            continue
        total[slot, 0], total[slot, 1] = np.int64(new_low), new_high
        seen[slot] += weight[i] if weight.shape[0] != 0 else 1
    return -1


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


@kernel(Int(RPairs, RInts, Int, RInts, Bool, WPairs, WBytes))
def mean_decimals(total, seen, digits, bound, checked, result, valid):  # type: ignore[no-untyped-def]
    """total / seen with ``digits`` more digits, half up; null where nothing was seen or the result does not
    fit.

    Returns the row that does not fit, or -1.
    """
    ten, one, zero = np.uint64(10), np.uint64(1), np.uint64(0)
    for i in range(total.shape[0]):
        result[i, 0] = result[i, 1] = 0
        valid[i] = 0
        if seen[i] <= 0:
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
            if checked:
                return i
            continue
        signed_low, signed_high = np.int64(low), np.int64(high)
        if negative:
            signed_low, signed_high = _negated(signed_low, signed_high)
        result[i, 0], result[i, 1] = signed_low, signed_high
        valid[i] = 1
    return -1
