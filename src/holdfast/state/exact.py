"""Sums of floats that lose nothing, so that whatever was added can be taken out again.

The sum of doubles is a number of at most some two thousand bits. Nearly always two doubles hold it (``high`` is the sum
rounded, ``low`` what is left), and four the sum of the squares: these are columns, and a row that they can take without
rounding costs a few additions. The rows of the other keys, and those that are NaN, infinite or of a size whose square
a double cannot hold, go through a number of fixed point: words of 32 bits from 2**-2176 upwards. As much of it as fits
goes back into the columns. What does not is kept beside them, in the key's bytes in an arena, with the numbers of NaN
and infinities: words of int64, ``COUNTS`` of them first, then where the words of the sum and of the squares begin and
how many they are (less than none: it is negative), then these words.

So the state is a function of the rows that are there, not of the way they came, and a result that is rounded once, at
the end, is the same as if the rows that were taken back had never been.

Nothing here may be compiled with fast or contracted arithmetic: the errors that it would optimise away are the point.

It is long because Numba's disk cache looks only at a kernel's own file: what kernels call must be in it.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from holdfast.state.kernel import (
    Bool,
    Int,
    RBytes,
    RFloats,
    RInts,
    RPairs,
    RQuads,
    Void,
    WFloats,
    WInts,
    WQuads,
    kernel,
)

WORDS = 140
"""Of 32 bits: from 2**-2176, below the square of the smallest double, to 2**2304, above any number of largest ones."""
_LOWEST = -2176
COUNTS = 4
NANS, UPS, DOWNS, LARGE = 0, 1, 2, 3  # NaN, +inf, -inf, and values whose square is not finite
HEADER = COUNTS + 4
MOST = HEADER + 2 * WORDS
"""So many words a key has at most beside its columns."""

_SPLIT = 134217729.0  # 2**27 + 1
_MASK = 0xFFFFFFFF
_LARGEST_ROOT = 1.3407807929942596e154  # its square is finite, that of the next double is not
# Within these, products of values and of sums of them neither leave the range of doubles nor lose bits below it.
_BAND_LOW, _BAND_HIGH = 2.0**-400, 2.0**400
_SUM_BITS = (-460, 460)
_SQUARE_BITS = (-920, 850)


@numba.njit(nogil=True, inline="always")
def _two_sum(a, b):  # type: ignore[no-untyped-def]
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


@numba.njit(nogil=True, inline="always")
def _two_product(a, b):  # type: ignore[no-untyped-def]
    product = a * b
    wide = _SPLIT * a
    a_high = wide - (wide - a)
    a_low = a - a_high
    wide = _SPLIT * b
    b_high = wide - (wide - b)
    b_low = b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


@numba.njit(nogil=True, inline="always")
def _added(high, low, value):  # type: ignore[no-untyped-def]
    """A pair and a value as a pair, and whether nothing was lost."""
    total, error = _two_sum(low, value)
    high, rest = _two_sum(high, total)
    low, lost = _two_sum(rest, error)
    high, low = _two_sum(high, low)
    return high, low, lost == 0.0 and abs(high) < math.inf


@numba.njit(nogil=True)
def _grown(parts, count, value):  # type: ignore[no-untyped-def]
    """Shewchuk's expansion: parts that do not overlap, smallest first, and one value more. How many they are now."""
    kept = 0
    for at in range(count):
        value, error = _two_sum(value, parts[at])
        if error != 0.0:
            parts[kept] = error
            kept += 1
    if value != 0.0:
        parts[kept] = value
        kept += 1
    return kept


@numba.njit(nogil=True)
def _compressed(parts, count):  # type: ignore[no-untyped-def]
    """The same sum in as few parts as Shewchuk's way of compressing finds."""
    value, bottom = parts[count - 1], count - 1
    for at in range(count - 2, -1, -1):
        value, error = _two_sum(value, parts[at])
        if error != 0.0:
            parts[bottom] = value
            bottom -= 1
            value = error
    top = 0
    for at in range(bottom + 1, count):
        value, error = _two_sum(parts[at], value)
        if error != 0.0:
            parts[top] = error
            top += 1
    parts[top] = value
    return top + 1


# --- numbers of fixed point ------------------------------------------------------------------------------------------


@numba.njit(nogil=True)
def _add(number, value, sign, exponent):  # type: ignore[no-untyped-def]
    """``value`` times 2**``exponent``, a finite one, to words that may get as large as int64 until they are carried."""
    if value == 0.0:
        return
    fraction, power = math.frexp(value)
    whole = np.int64(fraction * 9007199254740992.0)  # 2**53
    if whole < 0:
        whole, sign = -whole, -sign
    place = power - 53 + exponent - _LOWEST
    if place < 0:  # a subnormal value: what is below are zeros
        whole >>= -place
        place = 0
    at, shift = place >> 5, place & 31
    low, high = (whole & _MASK) << shift, (whole >> 32) << shift
    number[at] += sign * (low & _MASK)
    number[at + 1] += sign * ((low >> 32) + (high & _MASK))
    number[at + 2] += sign * (high >> 32)


@numba.njit(nogil=True)
def _add_square(number, value, sign):  # type: ignore[no-untyped-def]
    fraction, power = math.frexp(value)
    product, error = _two_product(fraction, fraction)
    _add(number, product, sign, 2 * power)
    _add(number, error, sign, 2 * power)


@numba.njit(nogil=True)
def _carry(number):  # type: ignore[no-untyped-def]
    """Words of 32 bits again. The sign, and the magnitude in their place."""
    for at in range(number.shape[0] - 1):
        number[at + 1] += number[at] >> 32
        number[at] &= _MASK
    if number[number.shape[0] - 1] >= 0:
        return 1
    for at in range(number.shape[0]):
        number[at] = -number[at]
    for at in range(number.shape[0] - 1):
        number[at + 1] += number[at] >> 32
        number[at] &= _MASK
    return -1


@numba.njit(nogil=True)
def _top(number):  # type: ignore[no-untyped-def]
    at = number.shape[0] - 1
    while at >= 0 and number[at] == 0:
        at -= 1
    return at


@numba.njit(nogil=True)
def _rounded(number):  # type: ignore[no-untyped-def]
    """A magnitude as a whole number of 53 bits, to the nearest and ties to even, times a power of two."""
    at = _top(number)
    if at < 0:
        return 0.0, 0
    bits = 1
    while (number[at] >> bits) != 0:
        bits += 1
    second = number[at - 1] if at > 0 else np.int64(0)
    third = number[at - 2] if at > 1 else np.int64(0)
    # 55 bits from the highest on, and whether there is anything below them.
    if bits >= 23:
        more = 87 - bits - 32  # of the second word
        kept = (number[at] << more) | (second >> (32 - more))
        below = (second & ((np.int64(1) << (32 - more)) - 1)) != 0 or third != 0
    else:
        more = 23 - bits  # of the third
        kept = (((number[at] << 32) | second) << more) | (third >> (32 - more))
        below = (third & ((np.int64(1) << (32 - more)) - 1)) != 0
    for lower in range(at - 2):
        below = below or number[lower] != 0
    low = kept & 3
    kept >>= 2
    if low == 3 or (low == 2 and (below or (kept & 1) != 0)):
        kept += 1
    return float(kept), 32 * at + bits - 55 + _LOWEST + 2


@numba.njit(nogil=True)
def _scaled(whole, power):  # type: ignore[no-untyped-def]
    """As a double, infinite if it is too large for one."""
    if whole == 0.0 or power > 1023:
        return 0.0 if whole == 0.0 else math.inf
    if power < -1200:
        return 0.0
    return math.ldexp(whole, power)


@numba.njit(nogil=True)
def _lowest_bit(number):  # type: ignore[no-untyped-def]
    for at in range(number.shape[0]):
        if number[at] != 0:
            bit = 0
            while (number[at] >> bit) & 1 == 0:
                bit += 1
            return 32 * at + bit + _LOWEST
    return 1 << 20


@numba.njit(nogil=True)
def _within(number, bits):  # type: ignore[no-untyped-def]
    return _top(number) * 32 + 32 + _LOWEST <= bits[1] and _lowest_bit(number) >= bits[0]


@numba.njit(nogil=True)
def _take(number, sign):  # type: ignore[no-untyped-def]
    """Out of a magnitude and its sign the double nearest to it: that, and the sign of what is left."""
    whole, power = _rounded(number)
    value = _scaled(whole, power)
    _add(number, value, -1, 0)
    return sign * value + 0.0, sign * _carry(number)


# --- a key's bytes -----------------------------------------------------------------------------------------------


@numba.njit(nogil=True)
def _read_number(number, words, at, first, count, sign):  # type: ignore[no-untyped-def]
    if count < 0:
        count, sign = -count, -sign
    for place in range(count):
        number[first + place] += sign * words[at + place]


@numba.njit(nogil=True)
def _read(words, at, stop, counts, total, squares, sign):  # type: ignore[no-untyped-def]
    if at == stop:
        return
    for which in range(COUNTS):
        counts[which] += sign * words[at + which]
    first, count, first_square, count_square = (
        words[at + COUNTS],
        words[at + COUNTS + 1],
        words[at + COUNTS + 2],
        words[at + COUNTS + 3],
    )
    _read_number(total, words, at + HEADER, first, count, sign)
    _read_number(squares, words, at + HEADER + abs(count), first_square, count_square, sign)


@numba.njit(nogil=True)
def _write_number(number, sign, words, at, header):  # type: ignore[no-untyped-def]
    top = _top(number)
    if top < 0:
        words[header] = words[header + 1] = 0
        return at
    first = 0
    while number[first] == 0:
        first += 1
    words[header], words[header + 1] = first, sign * (top - first + 1)
    for place in range(first, top + 1):
        words[at] = number[place]
        at += 1
    return at


@numba.njit(nogil=True)
def _write(words, at, counts, total, total_sign, squares, squares_sign):  # type: ignore[no-untyped-def]
    """Where it ends: nothing is written where nothing is left."""
    if _top(total) < 0 and _top(squares) < 0 and not counts.any():
        return at
    for which in range(COUNTS):
        words[at + which] = counts[which]
    stop = _write_number(total, total_sign, words, at + HEADER, at + COUNTS)
    return _write_number(squares, squares_sign, words, stop, at + COUNTS + 2)


@numba.njit(nogil=True)
def _add_value(counts, total, squares, value, sign, squared):  # type: ignore[no-untyped-def]
    if value != value:
        counts[NANS] += sign
    elif value == math.inf:
        counts[UPS] += sign
    elif value == -math.inf:
        counts[DOWNS] += sign
    else:
        _add(total, value, sign, 0)
        if squared:
            _add_square(squares, value, sign)
            if abs(value) > _LARGEST_ROOT:
                counts[LARGE] += sign


@numba.njit(nogil=True)
def _settle(high, low, quads, slot, counts, total, squares, squared, words, at):  # type: ignore[no-untyped-def]
    """Numbers back into a slot's columns as far as they fit, the rest into words. Where these end."""
    total_sign, squares_sign = _carry(total), _carry(squares)
    if not squared or (_within(total, _SUM_BITS) and _within(squares, _SQUARE_BITS)):
        whole, power = _rounded(total)
        if _scaled(whole, power) < math.inf:
            high[slot], total_sign = _take(total, total_sign)
            low[slot], total_sign = _take(total, total_sign)
        if squared:
            for part in range(3, -1, -1):  # the largest last, as an expansion has it
                quads[slot, part], squares_sign = _take(squares, squares_sign)
    return _write(words, at, counts, total, total_sign, squares, squares_sign)


@numba.njit(nogil=True)
def _load(high, low, quads, slot, counts, total, squares, squared, sign):  # type: ignore[no-untyped-def]
    """A slot's columns into numbers."""
    _add_value(counts, total, squares, high[slot], sign, False)
    _add_value(counts, total, squares, low[slot], sign, False)
    if squared:
        for part in range(4):
            _add(squares, quads[slot, part], sign, 0)


# --- rows into keys ------------------------------------------------------------------------------------------


@kernel(Int(WFloats, WFloats, RPairs, RInts, RFloats, RBytes, RInts, WInts))
def add(high, low, rest, slots, values, valid, sign, left):  # type: ignore[no-untyped-def]
    """Rows into sums. Those that must go the long way are left: how many, and which."""
    count = 0
    for i in range(slots.shape[0]):
        if valid.shape[0] != 0 and not valid[i]:
            continue
        slot, value = slots[i], values[i]
        if sign.shape[0] != 0 and sign[i] < 0:
            value = -value
        new_high, new_low, exact = _added(high[slot], low[slot], value)
        if exact and rest[slot, 1] == 0:
            high[slot], low[slot] = new_high + 0.0, new_low + 0.0
        else:
            left[count] = i
            count += 1
    return count


@kernel(Int(WFloats, WFloats, WQuads, RPairs, RInts, RFloats, RBytes, RInts, WInts))
def add_squared(high, low, quads, rest, slots, values, valid, sign, left):  # type: ignore[no-untyped-def]
    """The same with the sums of the squares."""
    count = 0
    parts = np.empty(6, np.float64)
    for i in range(slots.shape[0]):
        if valid.shape[0] != 0 and not valid[i]:
            continue
        slot, value = slots[i], values[i]
        size = abs(value)
        exact = rest[slot, 1] == 0 and (size == 0.0 or (size >= _BAND_LOW and size <= _BAND_HIGH))
        if exact:
            taken_back = sign.shape[0] != 0 and sign[i] < 0
            product, error = _two_product(value, value)
            new_high, new_low, exact = _added(high[slot], low[slot], -value if taken_back else value)
            for part in range(4):
                parts[part] = quads[slot, part]
            held = 4
            held = _grown(parts, held, -error if taken_back else error)
            held = _grown(parts, held, -product if taken_back else product)
            if held > 4:
                held = _compressed(parts, held)
            exact = exact and held <= 4
            if exact:
                high[slot], low[slot] = new_high + 0.0, new_low + 0.0
                for part in range(4):
                    quads[slot, part] = parts[part] if part < held else 0.0
        if not exact:
            left[count] = i
            count += 1
    return count


@kernel(Int(WFloats, WFloats, WQuads, RInts, RInts, RInts, RFloats, RInts, RInts, RInts, WInts, WInts, Bool))
def add_long(  # type: ignore[no-untyped-def]
    high, low, quads, slots, starts, rows, values, sign, words, offsets, written, ends, squared
):
    """Rows of some slots, those of slot i from ``starts[i]`` on in ``rows``, by way of numbers of fixed point.

    ``words`` and ``offsets`` are what the slots have beside their columns, ``written`` and ``ends`` get what they will
    have. How many words that is.
    """
    total, squares = np.zeros(WORDS, np.int64), np.zeros(WORDS, np.int64)
    counts, at = np.zeros(COUNTS, np.int64), 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        total[:] = 0
        squares[:] = 0
        counts[:] = 0
        _read(words, offsets[i], offsets[i + 1], counts, total, squares, 1)
        _load(high, low, quads, slot, counts, total, squares, squared, 1)
        high[slot] = low[slot] = 0.0
        if squared:
            for part in range(4):
                quads[slot, part] = 0.0
        for number in range(starts[i], starts[i + 1]):
            row = rows[number]
            _add_value(counts, total, squares, values[row], sign[row] if sign.shape[0] != 0 else 1, squared)
            if (number & 0xFFFFFF) == 0xFFFFFF:  # before words pass 63 bits
                _keep_small(total)
                _keep_small(squares)
        at = _settle(high, low, quads, slot, counts, total, squares, squared, written, at)
        ends[i] = at
    return at


@numba.njit(nogil=True)
def _keep_small(number):  # type: ignore[no-untyped-def]
    for at in range(number.shape[0] - 1):
        number[at + 1] += number[at] >> 32
        number[at] &= _MASK


@kernel(
    Int(
        *(WFloats, WFloats, WQuads, RInts, RInts, RInts, RInts, RInts),
        *(RFloats, RFloats, RQuads, RInts, RInts, WInts, WInts, Bool),
    )
)
def combine_long(  # type: ignore[no-untyped-def]
    high, low, quads, slots, starts, rows, words, offsets,
    other_high, other_low, other_quads, other_words, other_offsets, written, ends, squared,
):  # fmt: skip
    """The same for rows that are sums themselves."""
    total, squares = np.zeros(WORDS, np.int64), np.zeros(WORDS, np.int64)
    counts, at = np.zeros(COUNTS, np.int64), 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        total[:] = 0
        squares[:] = 0
        counts[:] = 0
        _read(words, offsets[i], offsets[i + 1], counts, total, squares, 1)
        _load(high, low, quads, slot, counts, total, squares, squared, 1)
        high[slot] = low[slot] = 0.0
        if squared:
            for part in range(4):
                quads[slot, part] = 0.0
        for number in range(starts[i], starts[i + 1]):
            row = rows[number]
            _read(other_words, other_offsets[row], other_offsets[row + 1], counts, total, squares, 1)
            _load(other_high, other_low, other_quads, row, counts, total, squares, squared, 1)
        at = _settle(high, low, quads, slot, counts, total, squares, squared, written, at)
        ends[i] = at
    return at


# --- results ------------------------------------------------------------------------------------------------


@numba.njit(nogil=True)
def _odd(counts):  # type: ignore[no-untyped-def]
    """What a sum with NaN or infinities in it is; 0 if there is none."""
    if counts[NANS] > 0 or (counts[UPS] > 0 and counts[DOWNS] > 0):
        return math.nan
    if counts[UPS] > 0:
        return math.inf
    return -math.inf if counts[DOWNS] > 0 else 0.0


@numba.njit(nogil=True)
def _quotient(high, low, divisor):  # type: ignore[no-untyped-def]
    """A pair by a whole number, rounded once."""
    first = high / divisor
    product, error = _two_product(first, divisor)
    return first + ((high - product) - error + low) / divisor


@kernel(Void(RFloats, RFloats, RInts, RInts, RInts, Bool, WFloats))
def sums(high, low, seen, words, offsets, mean, found):  # type: ignore[no-untyped-def]
    """Sums, or means, of rows whose columns these are; ``words`` and ``offsets``: what they have beside them."""
    total, squares, counts = np.zeros(WORDS, np.int64), np.zeros(WORDS, np.int64), np.zeros(COUNTS, np.int64)
    for i in range(high.shape[0]):
        first, second, scale = high[i], low[i], 0
        if offsets[i] != offsets[i + 1] or not abs(first) < math.inf:
            total[:] = 0
            counts[:] = 0
            _read(words, offsets[i], offsets[i + 1], counts, total, squares, 1)
            _add_value(counts, total, squares, first, 1, False)
            _add_value(counts, total, squares, second, 1, False)
            odd = _odd(counts)
            if odd != 0.0:
                found[i] = odd
                continue
            sign = _carry(total)
            whole, power = _rounded(total)
            if mean:
                scale = 256 if power > 700 else 0
                _add(total, _scaled(whole, power - scale), -1, scale)
                sign_left = sign * _carry(total)
                whole_left, power_left = _rounded(total)
                second = sign_left * _scaled(whole_left, power_left - scale)
            first = sign * _scaled(whole, power - scale)
        elif mean and abs(first) > 1e200:
            scale = 256
            first, second = first * 2.0**-256, second * 2.0**-256
        if mean and seen[i] > 0:
            first = _quotient(first, second, float(seen[i])) * (2.0**256 if scale else 1.0)
        found[i] = first + 0.0


@numba.njit(nogil=True)
def _add_product(number, at, a, b, sign):  # type: ignore[no-untyped-def]
    """The product of two words, each below 2**32."""
    product = np.uint64(a) * np.uint64(b)
    number[at] += sign * np.int64(product & np.uint64(_MASK))
    number[at + 1] += sign * np.int64(product >> np.uint64(32))


@numba.njit(nogil=True)
def _nearest(parts, count):  # type: ignore[no-untyped-def]
    """The double nearest to the sum of parts that do not overlap, ties to even."""
    if count == 0:
        return 0.0
    at = count - 1
    high, low = parts[at], 0.0
    while at > 0:
        at -= 1
        high, low = _two_sum(high, parts[at])
        if low != 0.0:
            break
    if at > 0 and ((low < 0.0 and parts[at - 1] < 0.0) or (low > 0.0 and parts[at - 1] > 0.0)):
        twice = 2.0 * low
        moved = high + twice
        if moved - high == twice:
            high = moved
    return high


@numba.njit(nogil=True)
def _spread(high, low, quads, n, parts):  # type: ignore[no-untyped-def]
    """n times the sum of squares, minus the square of the sum."""
    count = 0
    for part in range(4):
        product, error = _two_product(quads[part], n)
        count = _grown(parts, count, error)
        count = _grown(parts, count, product)
    for a, b in ((high, high), (2.0 * high, low), (low, low)):
        product, error = _two_product(a, b)
        count = _grown(parts, count, -error)
        count = _grown(parts, count, -product)
    return _nearest(parts, count)


@kernel(Void(RFloats, RFloats, RFloats, RQuads, RInts, RInts, WFloats))
def variances(n, high, low, quads, words, offsets, found):  # type: ignore[no-untyped-def]
    """Sample variances. With values whose squares are no doubles they are what Spark's sums of squares come to."""
    total, squares, counts = np.zeros(WORDS, np.int64), np.zeros(WORDS, np.int64), np.zeros(COUNTS, np.int64)
    both, parts = np.zeros(WORDS, np.int64), np.empty(32, np.float64)
    for i in range(n.shape[0]):
        found[i] = 0.0
        if n[i] <= 1.0:
            continue
        if offsets[i] == offsets[i + 1]:
            found[i] = max(_spread(high[i], low[i], quads[i], n[i], parts), 0.0) / n[i] / (n[i] - 1.0)
            continue
        total[:] = 0
        squares[:] = 0
        both[:] = 0
        counts[:] = 0
        _read(words, offsets[i], offsets[i + 1], counts, total, squares, 1)
        _load(high, low, quads, i, counts, total, squares, True, 1)
        if _odd(counts) != 0.0:
            found[i] = math.nan
            continue
        _carry(total)
        sign, times = _carry(squares), np.int64(n[i])
        for at in range(WORDS - 2):
            if squares[at]:
                _add_product(both, at, squares[at], times & _MASK, sign)
                _add_product(both, at + 1, squares[at], times >> 32, sign)
        least = -_LOWEST // 64  # a sum has no bits below; so its square has none below 2**_LOWEST
        for at in range(least, WORDS):
            if total[at]:
                for other in range(least, WORDS):
                    if total[other]:
                        _add_product(both, at + other - 2 * least, total[at], total[other], -1)
        if _carry(both) < 0:
            continue
        whole, power = _rounded(both)
        if counts[LARGE] > 0:
            found[i] = _scaled(whole / n[i], power) / (n[i] - 1.0)
        else:
            found[i] = _scaled(whole / n[i] / (n[i] - 1.0), power)
