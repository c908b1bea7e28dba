"""Counts, sums, means and variances: their columns in the state, how rows fold into them, how they become a result.

Nulls, overflow and result types are Spark's. An accumulator also says what a partial input carries for it, if
Spark SQL can aggregate ahead of it, whether a row can be taken back from it, and how accumulators of one key go into
others: windows are combined from panes, and sessions from sessions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.invariants import Impossible, invariant
from holdfast.operators.aggregates.accumulator import Accumulator, Overflow
from holdfast.operators.spec import AggregateSpec
from holdfast.state import arrow, combine, decimals, fold, moments
from holdfast.state.columns import DECIMAL, FLOAT, INT, NO_BYTES, NO_INTS, Arena, Array, Bytes, Ints
from holdfast.state.rows import Values
from holdfast.state.types import BIGINT, DOUBLE, AtomicType, decimal

_DECIMAL_HEADROOM = 10
_AHEAD_PRECISION = 28
"""Of wider decimals Spark's own sums may be too large, which is for the stage to say, of all its rows together."""
_MEAN_DIGITS = 4
_SHORT_INTEGERS = ("tinyint", "smallint", "int")
_NO_FLOATS = np.empty(0, np.float64)


class Count(Accumulator):
    """count(*) and count(column)."""

    invertible = True
    invertible_exactly = True
    output = BIGINT
    columns = (INT,)
    partials = (BIGINT,)

    def __init__(self, spec: AggregateSpec, overflow: Overflow) -> None:
        super().__init__(spec, overflow)
        self.inputs = () if spec.input is None else ((spec.input, None, "valid"),)

    def fold(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        sign: Ints,
    ) -> None:
        fold.count(columns[0], slots, values[0].valid if values else NO_BYTES, sign)

    def merge(
        self, columns: Sequence[Array], arenas: Sequence[Arena | None], slots: Ints, values: Sequence[Values]
    ) -> None:
        fold.count(columns[0], slots, values[0].valid, values[0].values)

    def combine(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        others: Sequence[Array],
        other_arenas: Sequence[Arena | None],
        sign: int = 1,
    ) -> None:
        fold.count(columns[0], slots, NO_BYTES, others[0] if sign > 0 else -others[0])

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        return arrow.of_fixed(BIGINT, columns[0], NO_BYTES)


class Sum(Accumulator):
    """Sums of integers (to bigint), floats (to double) and decimals (ten digits wider).

    Integers and decimals are summed on more bits than their result has. Whether a sum fits is asked when a row leaves
    the stage: rows of one epoch may take it out of its range and back.
    """

    invertible = True

    def __init__(self, spec: AggregateSpec, overflow: Overflow, kind: AtomicType) -> None:
        super().__init__(spec, overflow)
        if spec.input is None:
            raise Impossible("this aggregate is of a column")
        if kind.kind == "decimal":
            self.output = decimal(kind.precision + _DECIMAL_HEADROOM, kind.scale)
        else:
            self.output = BIGINT if kind.kind == "int" else DOUBLE
        self.columns = {"int": (INT, INT, INT), "float": (FLOAT, INT), "decimal": (DECIMAL, INT, INT)}[kind.kind]
        self.inputs = ((spec.input, kind, kind.kind),)
        # Values of 64 bits come from Spark in halves, because their sum may be more; the upper halves are second.
        self.partials = (BIGINT, BIGINT) if kind.name == "bigint" else (self.output,)
        if kind.precision > _AHEAD_PRECISION:
            self.partials = None
        self._bound = decimals.limit(self.output.precision)
        self.invertible_exactly = self.bounded = kind.kind != "float"

    @property
    def formerly(self) -> int:
        return 2

    def fold(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        sign: Ints,
    ) -> None:
        total, seen, *wraps = columns
        data, valid = values[0].values, values[0].valid
        if self.output.kind == "int":
            fold.sum_ints(total, seen, *wraps, slots, data, valid, sign)
        elif self.output.kind == "float":
            fold.sum_floats(total, seen, slots, data, valid, sign, sign)
        else:
            decimals.sum_decimals(total, seen, *wraps, slots, data, valid, sign, sign)

    def merge(
        self, columns: Sequence[Array], arenas: Sequence[Arena | None], slots: Ints, values: Sequence[Values]
    ) -> None:
        if len(values) == 1:
            self.fold(columns, arenas, slots, values, NO_INTS)
        else:
            low, high = values
            fold.sum_halves(*columns, slots, low.values, high.values, low.valid)

    def combine(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        others: Sequence[Array],
        other_arenas: Sequence[Arena | None],
        sign: int = 1,
    ) -> None:
        if self.output.kind == "int":
            combine.combine_ints(*columns, slots, *others, sign < 0)
        elif self.output.kind == "float":
            _combine_floats(columns, slots, others, sign)
        else:
            _combine_decimals(columns, slots, others, sign)

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        total, seen, *wraps = columns
        if self.output.kind == "decimal":
            return arrow.of_fixed(self.output, total, _fitting(total, seen, wraps[0], self._bound))
        valid = seen > 0
        if self.output.kind == "int" and self.overflow != "wrap":
            valid &= wraps[0] == 0
        return arrow.of_fixed(self.output, total, valid.view(np.uint8))

    def lost(self, columns: Sequence[Array], slots: Ints) -> bool:
        if self.output.kind == "int":
            return bool(columns[2][slots].any())
        total, seen, wraps = (column[slots] for column in columns)
        return bool(((_fitting(total, seen, wraps, self._bound) == 0) & (seen > 0)).any())


class Mean(Accumulator):
    """Means: of decimals exactly, four digits finer; of other numbers in double, as Spark's."""

    invertible = True

    def __init__(self, spec: AggregateSpec, overflow: Overflow, kind: AtomicType) -> None:
        super().__init__(spec, overflow)
        if spec.input is None:
            raise Impossible("this aggregate is of a column")
        self.bounded = kind.kind == "decimal"
        if self.bounded:
            self._total = decimal(kind.precision + _DECIMAL_HEADROOM, kind.scale)
            self.output = decimal(kind.precision + _MEAN_DIGITS, kind.scale + _MEAN_DIGITS)
        else:
            self._total = self.output = DOUBLE
        self.columns = (DECIMAL, INT, INT) if self.bounded else (FLOAT, INT)
        self.inputs = ((spec.input, kind, "decimal" if self.bounded else "float"),)
        self.partials = None if kind.precision > _AHEAD_PRECISION else (self._total, BIGINT)
        self._bound = decimals.limit(self._total.precision)
        # A mean is no larger than the largest value: that it does not fit takes digits that are cut off at 38.
        self._tight = self.output.precision < kind.precision + _MEAN_DIGITS
        # Doubles add integers of 32 bits exactly up to 2 ** 22 of them, and round as they do everywhere above that.
        self.invertible_exactly = self.bounded or kind.name in _SHORT_INTEGERS

    @property
    def formerly(self) -> int:
        return 2

    def fold(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        sign: Ints,
    ) -> None:
        self._add(columns, slots, values[0], sign, sign)

    def merge(
        self, columns: Sequence[Array], arenas: Sequence[Arena | None], slots: Ints, values: Sequence[Values]
    ) -> None:
        self._add(columns, slots, values[0], NO_INTS, values[1].values)

    def _add(self, columns: Sequence[Array], slots: Ints, values: Values, sign: Ints, weight: Ints) -> None:
        summed = decimals.sum_decimals if self.bounded else fold.sum_floats
        summed(*columns, slots, values.values, values.valid, sign, weight)

    def combine(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        others: Sequence[Array],
        other_arenas: Sequence[Arena | None],
        sign: int = 1,
    ) -> None:
        (_combine_decimals if self.bounded else _combine_floats)(columns, slots, others, sign)

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        total, seen = columns[:2]
        if not self.bounded:
            valid = seen > 0
            return arrow.of_fixed(self.output, total / np.where(valid, seen, 1), valid.view(np.uint8))
        result, flags = self._means(*columns)
        return arrow.of_fixed(self.output, result, flags)

    def _means(self, total: Array, seen: Ints, wraps: Ints) -> tuple[Array, Bytes]:
        result, flags = np.empty_like(total), _fitting(total, seen, wraps, self._bound)
        digits = self.output.scale - self._total.scale
        decimals.mean_decimals(total, seen, digits, decimals.limit(self.output.precision), result, flags)
        return result, flags

    def lost(self, columns: Sequence[Array], slots: Ints) -> bool:
        total, seen, wraps = (column[slots] for column in columns)
        flags = self._means(total, seen, wraps)[1] if self._tight else _fitting(total, seen, wraps, self._bound)
        return bool(((flags == 0) & (seen > 0)).any())


class Moments(Accumulator):
    """Sample variance and standard deviation of rows that stay; null below two values."""

    sharpened = True
    output = DOUBLE
    columns = (FLOAT, FLOAT, FLOAT, FLOAT, FLOAT, FLOAT)
    partials = (DOUBLE, DOUBLE, DOUBLE)

    def __init__(self, spec: AggregateSpec, overflow: Overflow, kind: AtomicType) -> None:
        super().__init__(spec, overflow)
        if spec.input is None:
            raise Impossible("this aggregate is of a column")
        self.inputs = ((spec.input, kind, "float"),)

    @property
    def formerly(self) -> int:
        return 3

    def fold(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        sign: Ints,
    ) -> None:
        moments.add(*columns, slots, values[0].values, values[0].valid)

    def merge(
        self, columns: Sequence[Array], arenas: Sequence[Arena | None], slots: Ints, values: Sequence[Values]
    ) -> None:
        parts = [column.values for column in values]
        moments.combine(*columns, slots, *parts, _NO_FLOATS, _NO_FLOATS, _NO_FLOATS, _all_valid(values))

    def combine(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        others: Sequence[Array],
        other_arenas: Sequence[Arena | None],
        sign: int = 1,
    ) -> None:
        invariant(sign > 0, "rounding stays behind when moments are taken out of moments")
        moments.combine(*columns, slots, *others, NO_BYTES)

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        count, _, *sums = columns
        result = np.empty(len(count))
        moments.variances(count, *sums, result)
        if self.spec.function == "stddev":
            result = np.sqrt(result)
        return arrow.of_fixed(DOUBLE, result, (count > 1).view(np.uint8))


def _all_valid(values: Sequence[Values]) -> Bytes:
    found = [column.valid for column in values if len(column.valid)]
    return np.bitwise_and.reduce(found) if found else NO_BYTES


def _fitting(total: Array, seen: Ints, wraps: Ints, bound: Ints) -> Bytes:
    fits = np.empty(len(total), np.uint8)
    decimals.fitting(total, seen, wraps, bound, fits)
    return fits


def _combine_floats(columns: Sequence[Array], slots: Ints, others: Sequence[Array], sign: int) -> None:
    (total, seen), (other, count) = columns, others
    signs = NO_INTS if sign > 0 else np.full(len(slots), -1, np.int64)
    fold.sum_floats(total, seen, slots, other, (count != 0).view(np.uint8), signs, count if sign > 0 else -count)


def _combine_decimals(columns: Sequence[Array], slots: Ints, others: Sequence[Array], sign: int) -> None:
    (total, seen, wraps), (other, count, other_wraps) = columns, others
    signs = NO_INTS if sign > 0 else np.full(len(slots), -1, np.int64)
    decimals.sum_decimals(total, seen, wraps, slots, other, NO_BYTES, signs, count if sign > 0 else -count)
    fold.count(wraps, slots, NO_BYTES, other_wraps if sign > 0 else -other_wraps)
