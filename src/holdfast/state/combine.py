"""Kernels that fold accumulators into accumulators: panes into windows, sessions into one another.

Row order is again the order in which things are done, and ``slots`` says where each row goes. What ``fold`` already has
for rows that stand for many is used from there; here is the rest.
"""

from __future__ import annotations

from holdfast.state.kernel import (
    Bool,
    Int,
    RInts,
    RPairs,
    RSketches,
    Void,
    WInts,
    WSketches,
    kernel,
)


@kernel(Void(WInts, WInts, WInts, RInts, RInts, RInts, RInts, Bool))
def combine_ints(total, seen, wraps, slots, other, other_seen, other_wraps, taken_out):  # type: ignore[no-untyped-def]
    """Sums into sums, or out of them."""
    for i in range(slots.shape[0]):
        slot = slots[i]
        old, value = total[slot], other[i]
        if taken_out:
            new = old - value
            overflow = (old ^ value) & (old ^ new)
            seen[slot] -= other_seen[i]
            carried = -other_wraps[i]
        else:
            new = old + value
            overflow = (old ^ new) & (value ^ new)
            seen[slot] += other_seen[i]
            carried = other_wraps[i]
        if overflow < 0:
            carried += 1 if old >= 0 else -1
        if carried:
            wraps[slot] += carried
        total[slot] = new


@kernel(Void(WSketches, RInts, RSketches))
def combine_sketches(registers, slots, other):  # type: ignore[no-untyped-def]
    for i in range(slots.shape[0]):
        slot = slots[i]
        for r in range(registers.shape[1]):
            if other[i, r] > registers[slot, r]:
                registers[slot, r] = other[i, r]


@kernel(Void(WInts, RInts, WInts))
def number_rows(counters, slots, numbers):  # type: ignore[no-untyped-def]
    """Each row's number among those of its slot; the counters go on."""
    for i in range(slots.shape[0]):
        slot = slots[i]
        numbers[i] = counters[slot]
        counters[slot] += 1


@kernel(Int(RInts, RInts, RInts, RInts, Int, WInts, WInts, WInts, WInts, WInts, WInts))
def join_sessions(  # type: ignore[no-untyped-def]
    order, owners, firsts, lasts, gap, latest, group, group_owner, group_first, group_last, group_number
):
    """Intervals of owners, taken in the order of their firsts, into groups whose members are less than ``gap`` apart.

    ``latest`` is 0 for every owner: then the number of its latest group, and 1. ``group`` is each interval's; a
    group's own number counts those of its owner. Returns how many groups there are.
    """
    count = 0
    for at in range(order.shape[0]):
        i = order[at]
        owner = owners[i]
        found = latest[owner] - 1
        if found >= 0 and firsts[i] - group_last[found] < gap:
            if lasts[i] > group_last[found]:
                group_last[found] = lasts[i]
        else:
            group_number[count] = group_number[found] + 1 if found >= 0 else 0
            found = count
            group_owner[found], group_first[found], group_last[found] = owner, firsts[i], lasts[i]
            latest[owner] = found + 1
            count += 1
        group[i] = found
    return count


@kernel(Int(RPairs, Int, Int, Int))
def count_between(words, rows, start, stop):  # type: ignore[no-untyped-def]
    """How many slots have a last word in [start, stop)."""
    found, last = 0, words.shape[1] - 1
    for slot in range(rows):
        found += (words[slot, last] >= start) & (words[slot, last] < stop)
    return found


@kernel(Int(RPairs, RInts, Int, Int, Int, WInts))
def living_between(words, counts, rows, start, stop, slots):  # type: ignore[no-untyped-def]
    """Those of them that count something; ``slots`` has room for all. Returns where in it they begin.

    The youngest first, for windows and panes that somebody asks for are most often young: the rest is not looked at.
    """
    left, first, slot, last = slots.shape[0], slots.shape[0], rows, words.shape[1] - 1
    while left > 0:
        slot -= 1
        if words[slot, last] >= start and words[slot, last] < stop:
            left -= 1
            if counts[slot] > 0:
                first -= 1
                slots[first] = slot
    return first
