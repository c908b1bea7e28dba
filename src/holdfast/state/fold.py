"""Kernels that fold rows into accumulators, one pass over the rows each.

Arguments common to all: ``slots`` is each row's slot; ``valid`` is 1 where the value is not null and empty
if none is null; ``sign`` is the row's +1 or -1 and empty if all are +1; ``weight`` is how many rows this
one stands for and empty if it is one. Row order is fold order, so that floats come out bit for bit the same
every time.
"""

from __future__ import annotations

import numba
import numpy as np

from holdfast.state.kernel import (
    Bool,
    Int,
    RBytes,
    RFloats,
    RInts,
    RPairs,
    Void,
    WBytes,
    WFloats,
    WInts,
    WPairs,
    kernel,
)

UNSEEN, SEEN, SEEN_NULL = 0, 1, 2


@kernel(Void(WInts, RInts, RBytes, RInts))
def count(total, slots, valid, weight):  # type: ignore[no-untyped-def]
    for i in range(slots.shape[0]):
        if valid.shape[0] == 0 or valid[i]:
            total[slots[i]] += weight[i] if weight.shape[0] != 0 else 1


@kernel(Void(WBytes, WInts, RInts, RInts, RBytes))
def see(seen, total, values, slots, where):  # type: ignore[no-untyped-def]
    """``values`` are the slots of the rows' values; a value counts when a row that is taken first has it."""
    for i in range(values.shape[0]):
        if (where.shape[0] == 0 or where[i]) and not seen[values[i]]:
            seen[values[i]] = 1
            total[slots[i]] += 1


@kernel(Void(WInts, WInts, RInts, RInts, RBytes, RInts))
def see_or_take_back(times, total, values, slots, where, sign):  # type: ignore[no-untyped-def]
    for i in range(values.shape[0]):
        if where.shape[0] == 0 or where[i]:
            before = times[values[i]]
            times[values[i]] = before + sign[i]
            total[slots[i]] += (1 if before + sign[i] > 0 else 0) - (1 if before > 0 else 0)


@kernel(Void(WInts, WInts, WInts, RInts, RInts, RBytes, RInts))
def sum_ints(total, seen, wraps, slots, values, valid, sign):  # type: ignore[no-untyped-def]
    """A sum is ``total`` and ``wraps`` times 2**64: the latter is touched only where 64 bits are not enough."""
    for i in range(slots.shape[0]):
        if valid.shape[0] != 0 and not valid[i]:
            continue
        slot, value = slots[i], values[i]
        old = total[slot]
        if sign.shape[0] != 0 and sign[i] < 0:
            new = old - value
            overflow = (old ^ value) & (old ^ new)
            seen[slot] -= 1
        else:
            new = old + value
            overflow = (old ^ new) & (value ^ new)
            seen[slot] += 1
        if overflow < 0:
            wraps[slot] += 1 if old >= 0 else -1
        total[slot] = new


@kernel(Void(WInts, WInts, WInts, RInts, RInts, RInts, RBytes))
def sum_halves(total, seen, wraps, slots, low, high, valid):  # type: ignore[no-untyped-def]
    """Sums of the lower and of the upper 32 bits of many values each."""
    for i in range(slots.shape[0]):
        if valid.shape[0] != 0 and not valid[i]:
            continue
        slot, carried = slots[i], high[i] >> 32
        value = high[i] << 32
        if value < 0:
            carried += 1
        for addend in (value, low[i]):
            old = total[slot]
            new = old + addend
            if ((old ^ new) & (addend ^ new)) < 0:
                carried += 1 if old >= 0 else -1
            total[slot] = new
        seen[slot] += 1
        if carried:
            wraps[slot] += carried


@kernel(Void(WFloats, WInts, RInts, RFloats, RBytes, RInts, RInts))
def sum_floats(total, seen, slots, values, valid, sign, weight):  # type: ignore[no-untyped-def]
    for i in range(slots.shape[0]):
        if valid.shape[0] != 0 and not valid[i]:
            continue
        slot = slots[i]
        if sign.shape[0] != 0 and sign[i] < 0:
            total[slot] -= values[i]
        else:
            total[slot] += values[i]
        seen[slot] += weight[i] if weight.shape[0] != 0 else 1


@numba.njit(nogil=True, inline="always")
def _less(a, b):  # type: ignore[no-untyped-def]
    return a < b or (b != b and a == a)  # NaN is the largest float


@kernel(
    Void(WInts, WBytes, RInts, RInts, RBytes, Bool),
    Void(WFloats, WBytes, RInts, RFloats, RBytes, Bool),
)
def extreme(best, seen, slots, values, valid, largest):  # type: ignore[no-untyped-def]
    for i in range(slots.shape[0]):
        if valid.shape[0] != 0 and not valid[i]:
            continue
        slot, value = slots[i], values[i]
        if seen[slot] == UNSEEN or (_less(best[slot], value) if largest else _less(value, best[slot])):
            best[slot] = value
            seen[slot] = SEEN


@kernel(Void(WPairs, WBytes, RInts, RPairs, RBytes, Bool))
def extreme_decimal(best, seen, slots, values, valid, largest):  # type: ignore[no-untyped-def]
    for i in range(slots.shape[0]):
        if valid.shape[0] != 0 and not valid[i]:
            continue
        slot = slots[i]
        low, high = np.uint64(values[i, 0]), values[i, 1]
        best_low, best_high = np.uint64(best[slot, 0]), best[slot, 1]
        less = high < best_high or (high == best_high and low < best_low)
        more = high > best_high or (high == best_high and low > best_low)
        if seen[slot] == UNSEEN or (more if largest else less):
            best[slot, 0], best[slot, 1] = values[i, 0], values[i, 1]
            seen[slot] = SEEN


@kernel(Void(WPairs, WBytes, RInts, RPairs, RBytes, Bool, Bool))
def pick(chosen, seen, slots, values, valid, last, ignore_nulls):  # type: ignore[no-untyped-def]
    """The first or last value of any fixed width: its words are copied, never read."""
    for i in range(slots.shape[0]):
        slot = slots[i]
        null = valid.shape[0] != 0 and not valid[i]
        if (null and ignore_nulls) or (seen[slot] != UNSEEN and not last):
            continue
        seen[slot] = SEEN_NULL if null else SEEN
        for w in range(values.shape[1]):
            chosen[slot, w] = 0 if null else values[i, w]


@numba.njit(nogil=True)
def _compare_bytes(a, a_at, a_length, b, b_at, b_length):  # type: ignore[no-untyped-def]
    for j in range(min(a_length, b_length)):
        if a[a_at + j] != b[b_at + j]:
            return -1 if a[a_at + j] < b[b_at + j] else 1
    return a_length - b_length


@kernel(Int(RPairs, RBytes, WBytes, RInts, RPairs, RBytes, RBytes, Bool, WInts))
def extreme_bytes(best, arena, seen, slots, spans, data, valid, largest, pending):  # type: ignore[no-untyped-def]
    """Which row each slot's new value comes from (``pending``, -1 for none), and how many bytes they all
        have.

    Only the winner of an epoch is copied into the arena (by ``settle_bytes``), not everyone that led for a
    while.
    """
    total = 0
    for i in range(slots.shape[0]):
        if valid.shape[0] != 0 and not valid[i]:
            continue
        slot = slots[i]
        leader = pending[slot]
        if leader >= 0:
            order = _compare_bytes(data, spans[i, 0], spans[i, 1], data, spans[leader, 0], spans[leader, 1])
        elif seen[slot] != UNSEEN:
            order = _compare_bytes(data, spans[i, 0], spans[i, 1], arena, best[slot, 0], best[slot, 1])
        else:
            order = 1 if largest else -1
        if order != 0 and (order > 0) == largest:
            if leader >= 0:
                total -= spans[leader, 1]
            total += spans[i, 1]
            pending[slot] = i
            seen[slot] = SEEN
    return total


@kernel(Int(WPairs, WBytes, RInts, RPairs, RBytes, Bool, Bool, WInts))
def pick_bytes(chosen, seen, slots, spans, valid, last, ignore_nulls, pending):  # type: ignore[no-untyped-def]
    """As ``pick``, for spans; ``pending`` and the answer as in ``extreme_bytes``."""
    total = 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        null = valid.shape[0] != 0 and not valid[i]
        if (null and ignore_nulls) or (seen[slot] != UNSEEN and not last):
            continue
        if pending[slot] >= 0:
            total -= spans[pending[slot], 1]
        if null:
            seen[slot], pending[slot] = SEEN_NULL, -1
            chosen[slot, 0] = chosen[slot, 1] = 0
        else:
            seen[slot], pending[slot] = SEEN, i
            total += spans[i, 1]
    return total


@kernel(Void(WPairs, WBytes, Int, RInts, RPairs, RBytes))
def settle_bytes(chosen, arena, used, pending, spans, data):  # type: ignore[no-untyped-def]
    """Append the pending values to the arena and point their slots at them."""
    for slot in range(pending.shape[0]):
        i = pending[slot]
        if i >= 0:
            chosen[slot, 0], chosen[slot, 1] = used, spans[i, 1]
            for j in range(spans[i, 1]):
                arena[used + j] = data[spans[i, 0] + j]
            used += spans[i, 1]
