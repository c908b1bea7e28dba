"""One class per kind of aggregate: its columns in the state, how rows fold into them, how they become a
result.

Nulls, overflow and result types are Spark's. An accumulator also says what a partial input carries for it, if
Spark SQL can aggregate ahead of it, whether a row can be taken back from it, and how accumulators of one key go into
others: windows are combined from panes, and sessions from sessions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.invariants import Impossible, invariant
from holdfast.operators.accumulator import Accumulator, Input
from holdfast.operators.chosen import Distinct, Extreme, Pick
from holdfast.operators.spec import AggregateSpec
from holdfast.state import arrow, combine, decimals, fold
from holdfast.state.columns import DECIMAL, FLOAT, INT, NO_BYTES, NO_INTS, Arena, Array, Bytes, Ints
from holdfast.state.rows import Values
from holdfast.state.types import BIGINT, DOUBLE, AtomicType, decimal

__all__ = ["Accumulator", "Count", "Distinct", "Extreme", "Input", "Mean", "Moments", "Pick", "Sum"]

_DECIMAL_HEADROOM = 10
_MEAN_DIGITS = 4
_SHORT_INTEGERS = ("tinyint", "smallint", "int")


class Count(Accumulator):
    """count(*) and count(column)."""

    invertible = True
    invertible_exactly = True
    output = BIGINT
    columns = (INT,)
    partials = (BIGINT,)

    def __init__(self, spec: AggregateSpec, ansi: bool) -> None:
        super().__init__(spec, ansi)
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
    """Sums of integers (to bigint), floats (to double) and decimals (ten digits wider)."""

    invertible = True

    def __init__(self, spec: AggregateSpec, ansi: bool, kind: AtomicType) -> None:
        super().__init__(spec, ansi)
        if spec.input is None:
            raise Impossible("this aggregate is of a column")
        if kind.kind == "decimal":
            self.output = decimal(kind.precision + _DECIMAL_HEADROOM, kind.scale)
        else:
            self.output = BIGINT if kind.kind == "int" else DOUBLE
        self.columns = ({"int": INT, "float": FLOAT, "decimal": DECIMAL}[kind.kind], INT)
        self.inputs = ((spec.input, kind, kind.kind),)
        self.partials = (self.output,)
        self._bound = decimals.limit(self.output.precision)
        # A decimal sum that becomes null when it overflows stays so; with all its headroom it does not get there.
        roomy = self.output.precision == kind.precision + _DECIMAL_HEADROOM
        self.invertible_exactly = kind.kind == "int" or (kind.kind == "decimal" and (ansi or roomy))

    def fold(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        sign: Ints,
    ) -> None:
        (total, seen), data, valid = columns, values[0].values, values[0].valid
        failed = -1
        if self.output.kind == "int":
            failed = fold.sum_ints(total, seen, slots, data, valid, sign, self.ansi)
        elif self.output.kind == "float":
            fold.sum_floats(total, seen, slots, data, valid, sign, sign)
        else:
            failed = decimals.sum_decimals(total, seen, slots, data, valid, sign, sign, self._bound, self.ansi)
        if failed >= 0:
            raise self.overflow(self.output)

    def combine(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        others: Sequence[Array],
        other_arenas: Sequence[Arena | None],
        sign: int = 1,
    ) -> None:
        (total, seen), (other, count) = columns, others
        if self.output.kind == "int":
            if combine.combine_ints(total, seen, slots, other, count, sign < 0, self.ansi) >= 0:
                raise self.overflow(self.output)
        elif self.output.kind == "float":
            _combine_floats(total, seen, slots, other, count, sign)
        elif _combine_decimals(total, seen, slots, other, count, sign, self._bound, self.ansi) >= 0:
            raise self.overflow(self.output)

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        return arrow.of_fixed(self.output, columns[0], (columns[1] > 0).view(np.uint8))


class Mean(Accumulator):
    """Means: of decimals exactly, four digits finer; of other numbers in double, as Spark's."""

    invertible = True

    def __init__(self, spec: AggregateSpec, ansi: bool, kind: AtomicType) -> None:
        super().__init__(spec, ansi)
        if spec.input is None:
            raise Impossible("this aggregate is of a column")
        self._exact = kind.kind == "decimal"
        if self._exact:
            self._total = decimal(kind.precision + _DECIMAL_HEADROOM, kind.scale)
            self.output = decimal(kind.precision + _MEAN_DIGITS, kind.scale + _MEAN_DIGITS)
        else:
            self._total = self.output = DOUBLE
        self.columns = (DECIMAL if self._exact else FLOAT, INT)
        self.inputs = ((spec.input, kind, "decimal" if self._exact else "float"),)
        self.partials = (self._total, BIGINT)
        self._bound = decimals.limit(self._total.precision)
        # Doubles add integers of 32 bits exactly up to 2 ** 22 of them, and round as they do everywhere above that.
        roomy = self._total.precision == kind.precision + _DECIMAL_HEADROOM
        self.invertible_exactly = (ansi or roomy) if self._exact else kind.name in _SHORT_INTEGERS

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
        total, seen = columns
        if not self._exact:
            fold.sum_floats(total, seen, slots, values.values, values.valid, sign, weight)
        elif (
            decimals.sum_decimals(total, seen, slots, values.values, values.valid, sign, weight, self._bound, self.ansi)
            >= 0
        ):
            raise self.overflow(self._total)

    def combine(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        others: Sequence[Array],
        other_arenas: Sequence[Arena | None],
        sign: int = 1,
    ) -> None:
        (total, seen), (other, count) = columns, others
        if not self._exact:
            _combine_floats(total, seen, slots, other, count, sign)
        elif _combine_decimals(total, seen, slots, other, count, sign, self._bound, self.ansi) >= 0:
            raise self.overflow(self._total)

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        total, seen = columns
        if not self._exact:
            valid = seen > 0
            return arrow.of_fixed(self.output, total / np.where(valid, seen, 1), valid.view(np.uint8))
        result, flags = np.empty_like(total), np.empty(len(total), np.uint8)
        digits = self.output.scale - self._total.scale
        bound = decimals.limit(self.output.precision)
        if decimals.mean_decimals(total, seen, digits, bound, self.ansi, result, flags) >= 0:
            raise self.overflow(self.output)
        return arrow.of_fixed(self.output, result, flags)


class Moments(Accumulator):
    """Sample variance and standard deviation; null below two values."""

    invertible = True
    output = DOUBLE
    columns = (FLOAT, FLOAT, FLOAT)
    partials = (DOUBLE, DOUBLE, DOUBLE)

    def __init__(self, spec: AggregateSpec, ansi: bool, kind: AtomicType) -> None:
        super().__init__(spec, ansi)
        if spec.input is None:
            raise Impossible("this aggregate is of a column")
        self.inputs = ((spec.input, kind, "float"),)

    def fold(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        sign: Ints,
    ) -> None:
        fold.moments(*columns, slots, values[0].values, values[0].valid, sign)

    def merge(
        self, columns: Sequence[Array], arenas: Sequence[Arena | None], slots: Ints, values: Sequence[Values]
    ) -> None:
        fold.merge_moments(*columns, slots, *(column.values for column in values), _all_valid(values))

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
        combine.combine_moments(*columns, slots, *others)

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        count, _, squares = columns
        valid = count > 1
        result = squares / np.where(valid, count - 1, 1.0)
        if self.spec.function == "stddev":
            result = np.sqrt(result)
        return arrow.of_fixed(DOUBLE, result, valid.view(np.uint8))


def _all_valid(values: Sequence[Values]) -> Bytes:
    found = [column.valid for column in values if len(column.valid)]
    return np.bitwise_and.reduce(found) if found else NO_BYTES


def _combine_floats(total: Array, seen: Ints, slots: Ints, other: Array, count: Ints, sign: int) -> None:
    signs = NO_INTS if sign > 0 else np.full(len(slots), -1, np.int64)
    fold.sum_floats(total, seen, slots, other, (count != 0).view(np.uint8), signs, count if sign > 0 else -count)


def _combine_decimals(
    total: Ints, seen: Ints, slots: Ints, other: Ints, count: Ints, sign: int, bound: Ints, ansi: bool
) -> int:
    lost = slots[count < decimals.OVERFLOWED // 2]
    signs = NO_INTS if sign > 0 else np.full(len(slots), -1, np.int64)
    weight, valid = count if sign > 0 else -count, (count > 0).view(np.uint8)
    seen[lost] = decimals.OVERFLOWED
    return int(decimals.sum_decimals(total, seen, slots, other, valid, signs, weight, bound, ansi))
