"""Sums, means and variances of floats over rows that can be taken back: nothing is lost on the way, so nothing stays.

A running sum in a double forgets what is small beside what is large, and never gets over NaN or an infinity. Where rows
only come, that is what Spark's own sum does. Where they are replaced, it would be an error for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from holdfast.invariants import Impossible, invariant, some
from holdfast.operators.aggregates.accumulator import Accumulator, Overflow
from holdfast.operators.spec import AggregateSpec
from holdfast.state import arrow, exact, fold
from holdfast.state.columns import FLOAT, INT, NO_INTS, QUADS, SPANS, Arena, Array, ColumnSpec, Ints, packed, spans_of
from holdfast.state.rows import Values
from holdfast.state.types import DOUBLE, AtomicType

_AT_ONCE = 2048  # slots that go the long way together
_NO_QUADS = np.empty((0, 4), np.float64)


class _Exact(Accumulator):
    """What an exact sum has: a sum in two doubles, how many values it is of, and the rest in bytes; perhaps squares."""

    invertible = True
    sharpened = True
    output = DOUBLE
    squared = False
    columns: tuple[ColumnSpec, ...] = (FLOAT, INT, FLOAT, SPANS)

    def __init__(self, spec: AggregateSpec, overflow: Overflow, kind: AtomicType) -> None:
        super().__init__(spec, overflow)
        if spec.input is None:
            raise Impossible("this aggregate is of a column")
        self._whole = kind.name == "bigint" and not self.squared
        self.inputs = ((spec.input, kind, "int" if self._whole else "float"),)

    @property
    def formerly(self) -> int:
        """Of variances nothing can be made that is exact: a table with one of those is not read."""
        return 0 if self.squared else 2

    def fold(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        sign: Ints,
    ) -> None:
        found, valid = values[0].values, values[0].valid
        fold.count(columns[1], slots, valid, sign)
        # An integer of 64 bits is no double, but its halves are.
        halves = [found & ~0xFFFFFFFF, found & 0xFFFFFFFF] if self._whole else [found]
        for half in halves:
            self._add(columns, arenas, slots, Values(half.astype(np.float64, copy=False), valid), sign)

    def _add(
        self, columns: Sequence[Array], arenas: Sequence[Arena | None], slots: Ints, values: Values, sign: Ints
    ) -> None:
        high, _, low, *quads, rest = columns
        left = np.empty(len(slots), np.int64)
        if self.squared:
            count = exact.add_squared(high, low, *quads, rest, slots, values.values, values.valid, sign, left)
        else:
            count = exact.add(high, low, rest, slots, values.values, values.valid, sign, left)
        if not count:
            return
        data, quad = values.values, quads[0] if quads else _NO_QUADS

        def add(group: Ints, starts: Ints, rows: Ints, *beside: Ints) -> int:
            return int(exact.add_long(high, low, quad, group, starts, rows, data, sign, *beside, self.squared))

        _the_long_way(rest, arenas[-1], slots, left[:count], add)

    def combine(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        others: Sequence[Array],
        other_arenas: Sequence[Arena | None],
        sign: int = 1,
    ) -> None:
        invariant(sign > 0, "panes of floats are only put together")
        (high, seen, low, *quads, rest), (other_high, count, other_low, *other_quads, other_rest) = columns, others
        quad, other_quad = (quads[0], other_quads[0]) if quads else (_NO_QUADS, _NO_QUADS)
        fold.count(seen, slots, np.empty(0, np.uint8), count)
        other_offsets, other_words = _beside(other_rest, other_arenas[-1])

        def add(group: Ints, starts: Ints, rows: Ints, words: Ints, offsets: Ints, *written: Ints) -> int:
            mine = (high, low, quad, group, starts, rows, words, offsets)
            theirs = (other_high, other_low, other_quad, other_words, other_offsets)
            return int(exact.combine_long(*mine, *theirs, *written, self.squared))

        _the_long_way(rest, arenas[-1], slots, np.arange(len(slots)), add)


class ExactSum(_Exact):
    """Sums and means: what the exact result is, rounded once."""

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        high, seen, low, rest = columns
        offsets, words = _beside(rest, arenas[-1])
        found = np.empty(len(high))
        exact.sums(high, low, seen, words, offsets, self.spec.function == "mean", found)
        return arrow.of_fixed(DOUBLE, found, (seen > 0).view(np.uint8))


class ExactMoments(_Exact):
    """Sample variance and standard deviation; null below two values."""

    squared = True
    columns = (FLOAT, INT, FLOAT, QUADS, SPANS)

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        high, seen, low, quads, rest = columns
        offsets, words = _beside(rest, arenas[-1])
        found = np.empty(len(high))
        exact.variances(seen.astype(np.float64), high, low, quads, words, offsets, found)
        if self.spec.function == "stddev":
            found = np.sqrt(found)
        return arrow.of_fixed(DOUBLE, found, (seen > 1).view(np.uint8))


def _beside(rest: Ints, arena: Arena | None) -> tuple[Ints, Ints]:
    """What some keys have beside their columns: offsets, and words."""
    arena = some(arena, "exact sums have an arena")
    if not rest[:, 1].any():
        return np.zeros(len(rest) + 1, np.int64), NO_INTS
    offsets, data = packed(rest, arena.data)
    return offsets // 8, data.view(np.int64)


def _the_long_way(rest: Ints, arena: Arena | None, slots: Ints, rows: Ints, add: Callable[..., int]) -> None:
    """Rows (numbers into ``slots``) by way of ``add``; what their slots then have beside the columns goes to the arena.

    ``add`` gets some slots, where the rows of each start, the rows, and words and offsets as they were and as they
    will be.
    """
    arena = some(arena, "exact sums have an arena")
    rows = rows[np.argsort(slots[rows], kind="stable")]
    every, starts = np.unique(slots[rows], return_index=True)
    starts = np.append(starts, len(rows))
    written = np.empty(min(len(every), _AT_ONCE) * exact.MOST, np.int64)
    for first in range(0, len(every), _AT_ONCE):
        group = every[first : first + _AT_ONCE]
        offsets, words = _beside(rest[group], arena)
        ends = np.zeros(len(group) + 1, np.int64)
        used = add(group, starts[first : first + len(group) + 1], rows, words, offsets, written, ends[1:])
        arena.reserve(8 * used)
        arena.data[arena.used : arena.used + 8 * used] = written[:used].view(np.uint8)
        rest[group] = spans_of(8 * ends + arena.used)
        arena.used += 8 * used
