"""Aggregates that nothing can be taken out of: those whose result is one of their values, and sketches.

They keep the value itself (strings in an arena, the winner of an epoch only), or for ``approx_distinct`` the sketch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.invariants import Impossible, invariant
from holdfast.operators.aggregates.accumulator import Accumulator, Overflow
from holdfast.operators.spec import AggregateSpec
from holdfast.state import arrow, combine, fold, sketch
from holdfast.state.columns import DECIMAL, FLAG, FLOAT, INT, NO_BYTES, NO_INTS, SPANS, Arena, Array, ColumnSpec, Ints
from holdfast.state.rows import Values
from holdfast.state.types import BIGINT, AtomicType


class _Chosen(Accumulator):
    """An aggregate whose result is one of its values: a value column and a mark whether there is one."""

    def __init__(self, spec: AggregateSpec, overflow: Overflow, kind: AtomicType) -> None:
        super().__init__(spec, overflow)
        if spec.input is None:
            raise Impossible("this aggregate is of a column")
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

    def __init__(self, spec: AggregateSpec, overflow: Overflow, kind: AtomicType) -> None:
        super().__init__(spec, overflow, kind)
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

    def combine(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        others: Sequence[Array],
        other_arenas: Sequence[Arena | None],
        sign: int = 1,
    ) -> None:
        invariant(sign > 0, "nothing can be taken out of an extreme")
        self.fold(columns, arenas, slots, [_as_values(others, other_arenas)], NO_INTS)


class Pick(_Chosen):
    """first and last, by row order; nulls count unless told otherwise."""

    def __init__(self, spec: AggregateSpec, overflow: Overflow, kind: AtomicType) -> None:
        super().__init__(spec, overflow, kind)
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

    def combine(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        others: Sequence[Array],
        other_arenas: Sequence[Arena | None],
        sign: int = 1,
    ) -> None:
        """What stands in a slot came before what comes now."""
        invariant(sign > 0, "nothing can be taken out of a first or last")
        has = np.flatnonzero(others[1] != fold.UNSEEN)
        value = _as_values([column[has] for column in others], other_arenas)
        self.fold(columns, arenas, slots[has], [value], NO_INTS)


class Distinct(Accumulator):
    """approx_distinct: a sketch per key."""

    output = BIGINT

    def __init__(self, spec: AggregateSpec, overflow: Overflow, precision: int) -> None:
        super().__init__(spec, overflow)
        if spec.input is None:
            raise Impossible("this aggregate is of a column")
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

    def combine(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        others: Sequence[Array],
        other_arenas: Sequence[Arena | None],
        sign: int = 1,
    ) -> None:
        invariant(sign > 0, "nothing can be taken out of a sketch")
        combine.combine_sketches(columns[0], slots, others[0])

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        estimates = np.empty(len(columns[0]))
        sketch.estimate(columns[0], estimates)
        return arrow.of_fixed(BIGINT, np.rint(estimates).astype(np.int64), NO_BYTES)


def _as_words(column: Array) -> Ints:
    return column.view(np.int64).reshape(len(column), 1 if column.ndim == 1 else column.shape[1])


def _as_values(columns: Sequence[Array], arenas: Sequence[Arena | None]) -> Values:
    """Chosen values as if they were rows; where none was chosen, or a null, they are null."""
    valid = (columns[1] == fold.SEEN).view(np.uint8)
    return Values(columns[0], valid, None if arenas[0] is None else arenas[0].data)
