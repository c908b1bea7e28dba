"""One class per kind of aggregate: its columns in the state, how rows fold into them, how they become a
result.

Nulls, overflow and result types are Spark's. An accumulator also says what a partial input carries for it, if
Spark SQL can aggregate ahead of it, and whether a row can be taken back from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from holdfast.errors import FunctionError
from holdfast.operators.spec import AggregateSpec
from holdfast.state import arrow, decimals, fold, sketch
from holdfast.state.columns import (
    DECIMAL,
    FLAG,
    FLOAT,
    INT,
    NO_BYTES,
    NO_INTS,
    SPANS,
    Arena,
    Array,
    Bytes,
    ColumnSpec,
    Ints,
)
from holdfast.state.rows import Values
from holdfast.state.types import BIGINT, DOUBLE, AtomicType, Kind, decimal

# A value column as an accumulator wants it: name, type, and the kind to decode it to ("valid": nulls only).
Input = tuple[str, AtomicType | None, Kind | Literal["valid"]]

_DECIMAL_HEADROOM = 10
_MEAN_DIGITS = 4


class Accumulator(ABC):
    """The state of one aggregate, for all keys of a slice."""

    invertible: ClassVar[bool] = False
    output: AtomicType
    columns: tuple[ColumnSpec, ...]
    inputs: tuple[Input, ...]
    partials: tuple[AtomicType, ...] | None = None

    def __init__(self, spec: AggregateSpec, ansi: bool) -> None:
        self.spec = spec
        self.ansi = ansi

    @abstractmethod
    def fold(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        sign: Ints,
    ) -> None:
        """Rows into columns; ``sign`` is empty unless rows may be taken back."""

    def merge(
        self, columns: Sequence[Array], arenas: Sequence[Arena | None], slots: Ints, values: Sequence[Values]
    ) -> None:
        """Rows of a partial input into columns."""
        self.fold(columns, arenas, slots, values, NO_INTS)

    @abstractmethod
    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        """Results of the rows whose columns these are."""

    def overflow(self, kind: AtomicType) -> FunctionError:
        return FunctionError(
            f"{self.spec.function} '{self.spec.name}' overflowed {kind.name}.",
            safe="no slice keeps anything of this epoch.",
            todo="cast the input to a wider type (decimal(38,0), double), or set spark.sql.ansi.enabled=false.",
        )


class Count(Accumulator):
    """count(*) and count(column)."""

    invertible = True
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

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        return arrow.of_fixed(BIGINT, columns[0], NO_BYTES)


class Sum(Accumulator):
    """Sums of integers (to bigint), floats (to double) and decimals (ten digits wider)."""

    invertible = True

    def __init__(self, spec: AggregateSpec, ansi: bool, kind: AtomicType) -> None:
        super().__init__(spec, ansi)
        assert spec.input is not None
        if kind.kind == "decimal":
            self.output = decimal(kind.precision + _DECIMAL_HEADROOM, kind.scale)
        else:
            self.output = BIGINT if kind.kind == "int" else DOUBLE
        self.columns = ({"int": INT, "float": FLOAT, "decimal": DECIMAL}[kind.kind], INT)
        self.inputs = ((spec.input, kind, kind.kind),)
        self.partials = (self.output,)
        self._bound = decimals.limit(self.output.precision)

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

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        return arrow.of_fixed(self.output, columns[0], (columns[1] > 0).view(np.uint8))


class Mean(Accumulator):
    """Means: of decimals exactly, four digits finer; of other numbers in double, as Spark's."""

    invertible = True

    def __init__(self, spec: AggregateSpec, ansi: bool, kind: AtomicType) -> None:
        super().__init__(spec, ansi)
        assert spec.input is not None
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
        assert spec.input is not None
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

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        count, _, squares = columns
        valid = count > 1
        result = squares / np.where(valid, count - 1, 1.0)
        if self.spec.function == "stddev":
            result = np.sqrt(result)
        return arrow.of_fixed(DOUBLE, result, valid.view(np.uint8))


class _Chosen(Accumulator):
    """An aggregate whose result is one of its values: a value column and a mark whether there is one."""

    def __init__(self, spec: AggregateSpec, ansi: bool, kind: AtomicType) -> None:
        super().__init__(spec, ansi)
        assert spec.input is not None
        self.output = kind
        self.columns = ({"int": INT, "float": FLOAT, "decimal": DECIMAL, "bytes": SPANS}[kind.kind], FLAG)
        self.inputs = ((spec.input, kind, kind.kind),)

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        valid = (columns[1] == fold.SEEN).view(np.uint8)
        if arenas[0] is not None:
            return arrow.of_spans(self.output.arrow, columns[0], arenas[0].data, valid)
        return arrow.of_fixed(self.output, columns[0], valid)

    @staticmethod
    def _settle(spans: Ints, arena: Arena, pending: Ints, total: int, values: Values) -> None:
        arena.reserve(total)
        fold.settle_bytes(spans, arena.data, arena.used, pending, values.values, values.data)
        arena.used += total


class Extreme(_Chosen):
    """min and max; NaN is the largest float, strings compare by their bytes."""

    def __init__(self, spec: AggregateSpec, ansi: bool, kind: AtomicType) -> None:
        super().__init__(spec, ansi, kind)
        self._largest = spec.function == "max"
        self.partials = (kind,)

    def fold(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        sign: Ints,
    ) -> None:
        (best, seen), column, arena = columns, values[0], arenas[0]
        if arena is not None:
            pending = np.full(len(seen), -1, np.int64)
            total = fold.extreme_bytes(
                *(
                    best,
                    arena.data,
                    seen,
                    slots,
                    column.values,
                    column.data,
                    column.valid,
                    self._largest,
                    pending,
                )
            )
            self._settle(best, arena, pending, total, column)
        elif self.output.kind == "decimal":
            fold.extreme_decimal(best, seen, slots, column.values, column.valid, self._largest)
        else:
            fold.extreme(best, seen, slots, column.values, column.valid, self._largest)


class Pick(_Chosen):
    """first and last, by row order; nulls count unless told otherwise."""

    def __init__(self, spec: AggregateSpec, ansi: bool, kind: AtomicType) -> None:
        super().__init__(spec, ansi, kind)
        self._last = spec.function == "last"
        self._ignore_nulls = bool(spec.option("ignore_nulls", False))

    def fold(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        sign: Ints,
    ) -> None:
        (chosen, seen), column, arena = columns, values[0], arenas[0]
        if arena is not None:
            pending = np.full(len(seen), -1, np.int64)
            total = fold.pick_bytes(
                chosen, seen, slots, column.values, column.valid, self._last, self._ignore_nulls, pending
            )
            self._settle(chosen, arena, pending, total, column)
        else:
            fold.pick(
                *(_as_words(chosen), seen, slots, _as_words(column.values), column.valid),
                *(self._last, self._ignore_nulls),
            )


class Distinct(Accumulator):
    """approx_distinct: a sketch per key."""

    output = BIGINT

    def __init__(self, spec: AggregateSpec, ansi: bool, precision: int) -> None:
        super().__init__(spec, ansi)
        assert spec.input is not None
        self.columns = (ColumnSpec("uint8", 1 << precision),)
        self.inputs = ((spec.input, BIGINT, "int"),)

    def fold(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        sign: Ints,
    ) -> None:
        sketch.add(columns[0], slots, values[0].values, values[0].valid)

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        estimates = np.empty(len(columns[0]))
        sketch.estimate(columns[0], estimates)
        return arrow.of_fixed(BIGINT, np.rint(estimates).astype(np.int64), NO_BYTES)


def _as_words(column: Array) -> Ints:
    return column.view(np.int64).reshape(len(column), -1)


def _all_valid(values: Sequence[Values]) -> Bytes:
    found = [column.valid for column in values if len(column.valid)]
    return np.bitwise_and.reduce(found) if found else NO_BYTES
