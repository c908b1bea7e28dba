"""Variances of rows that only come: sums of the differences from a key's first value, and of their squares.

Columns: how many values there are, the value that the others are seen from, the sum of the squares, the sum, and what
both lose in rounding. Differences from a value of the set are as small as its spread allows, and sums of twice a
double's digits forgive a first value that stands far off: so a large mean costs nothing, unlike in Welford's updates
(which round the mean with every row) or in plain sums of squares. A row takes no division.

Spark's partial rows have count, mean and squared differences from that; those come in as they are.
"""

from __future__ import annotations

import math

import numba

from holdfast.state.kernel import RBytes, RFloats, RInts, Void, WFloats, kernel

_SPLIT = 134217729.0  # 2**27 + 1
_LARGE = 2.0**500


@numba.njit(nogil=True, inline="always")
def _two_sum(a, b):  # type: ignore[no-untyped-def]
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


@numba.njit(nogil=True, inline="always")
def _two_product(a, b):  # type: ignore[no-untyped-def]
    """Where the product is infinite there is no error to speak of."""
    product = a * b
    if not (abs(product) < math.inf and abs(a) < _LARGE and abs(b) < _LARGE):
        return product, 0.0
    wide = _SPLIT * a
    a_high = wide - (wide - a)
    a_low = a - a_high
    wide = _SPLIT * b
    b_high = wide - (wide - b)
    b_low = b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


@numba.njit(nogil=True, inline="always")
def _plus(high, low, value, less):  # type: ignore[no-untyped-def]
    """A pair plus a pair, as a pair."""
    total, error = _two_sum(high, value)
    if not abs(total) < math.inf:
        return total, 0.0
    return _two_sum(total, error + (low + less))


@numba.njit(nogil=True, inline="always")
def _times(high, low, factor):  # type: ignore[no-untyped-def]
    product, error = _two_product(high, factor)
    return product, error + low * factor


@kernel(Void(WFloats, WFloats, WFloats, WFloats, WFloats, WFloats, RInts, RFloats, RBytes))
def add(n, origin, squares, total, total_low, squares_low, slots, values, valid):  # type: ignore[no-untyped-def]
    for i in range(slots.shape[0]):
        if valid.shape[0] != 0 and not valid[i]:
            continue
        slot, value = slots[i], values[i]
        n[slot] += 1.0
        if n[slot] == 1.0:
            origin[slot] = value
            continue
        far, error = _two_sum(value, -origin[slot])
        if not abs(far) < math.inf:
            squares[slot] = math.nan
            continue
        square, rest = _two_product(far, far)
        total[slot], total_low[slot] = _plus(total[slot], total_low[slot], far, error)
        squares[slot], squares_low[slot] = _plus(squares[slot], squares_low[slot], square, rest + 2.0 * far * error)


@kernel(
    Void(
        *(WFloats, WFloats, WFloats, WFloats, WFloats, WFloats, RInts),
        *(RFloats, RFloats, RFloats, RFloats, RFloats, RFloats, RBytes),
    )
)
def combine(  # type: ignore[no-untyped-def]
    n, origin, squares, total, total_low, squares_low, slots,
    other_n, other_origin, other_squares, other_total, other_total_low, other_squares_low, valid,
):  # fmt: skip
    """Moments into moments. Those of Spark are about their mean: their sums are 0, and come as no columns at all."""
    for i in range(slots.shape[0]):
        if (valid.shape[0] != 0 and not valid[i]) or other_n[i] == 0.0:
            continue
        slot, many = slots[i], other_n[i]
        alone = other_total.shape[0] == 0
        sum_high, sum_low = (0.0, 0.0) if alone else (other_total[i], other_total_low[i])
        squares_rest = 0.0 if alone else other_squares_low[i]
        if n[slot] == 0.0:
            n[slot], origin[slot], squares[slot] = many, other_origin[i], other_squares[i]
            total[slot], total_low[slot], squares_low[slot] = sum_high, sum_low, squares_rest
            continue
        n[slot] += many
        far, error = _two_sum(other_origin[i], -origin[slot])
        if not abs(far) < math.inf:
            squares[slot] = math.nan
            continue
        # Seen from here, each of the other's values is that much farther off.
        moved, moved_low = _times(far, error, many)
        square, square_low = _two_product(far, far)
        square, square_low = _times(square, square_low + 2.0 * far * error, many)
        crossed, crossed_low = _two_product(2.0 * far, sum_high)
        crossed_low += 2.0 * (far * sum_low + error * sum_high)
        high, low = _plus(total[slot], total_low[slot], sum_high, sum_low)
        total[slot], total_low[slot] = _plus(high, low, moved, moved_low)
        high, low = _plus(squares[slot], squares_low[slot], other_squares[i], squares_rest)
        high, low = _plus(high, low, crossed, crossed_low)
        squares[slot], squares_low[slot] = _plus(high, low, square, square_low)


@kernel(Void(RFloats, RFloats, RFloats, RFloats, RFloats, WFloats))
def variances(n, squares, total, total_low, squares_low, found):  # type: ignore[no-untyped-def]
    """Sample variances. As Spark's: infinite where the squares are, NaN where a value is not finite."""
    for i in range(n.shape[0]):
        found[i] = 0.0
        if n[i] <= 1.0:
            continue
        high, low, whole, rest, scale = total[i], total_low[i], squares[i], squares_low[i], 1.0
        if not abs(whole) < math.inf:
            found[i] = whole
            continue
        if abs(high) > _LARGE:
            scale = 2.0**-600
            high, low, whole, rest = high * scale, low * scale, whole * scale * scale, rest * scale * scale
        square, square_low = _two_product(high, high)
        square_low += 2.0 * high * low
        part = square / n[i]
        product, error = _two_product(part, n[i])
        part_low = ((square - product) - error + square_low) / n[i]
        left, left_low = _plus(whole, rest, -part, -part_low)
        left += left_low
        found[i] = (0.0 if left < 0.0 else left) / (n[i] - 1.0) / scale / scale
