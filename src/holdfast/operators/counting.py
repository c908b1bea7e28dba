"""Exact ``count_distinct``: the values each key has had, in a table of their own.

A value is a row there, with the key of its group and itself as its key. A row that is born is a value its group had not
seen. Where rows may be taken back, each value counts how often it came.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.operators.accumulator import Accumulator, Input
from holdfast.operators.spec import AggregateSpec
from holdfast.state import arrow, fold
from holdfast.state.columns import INT, NO_BYTES, NO_INTS, Arena, Array, Ints
from holdfast.state.content import content, tailed, words
from holdfast.state.keys import KeyCodec
from holdfast.state.rows import Rows, Values
from holdfast.state.slice import Work
from holdfast.state.table import Layout
from holdfast.state.types import BIGINT, AtomicType


class CountDistinct(Accumulator):
    """The number as a column of its group; which values are behind it is known to a table of this aggregate."""

    invertible = True
    output = BIGINT
    columns = (INT,)

    def __init__(self, spec: AggregateSpec, ansi: bool, kind: AtomicType) -> None:
        super().__init__(spec, ansi)
        assert spec.input is not None
        self._kind = kind
        self.inputs: tuple[Input, ...] = ((spec.input, kind, kind.kind),)

    def layout(self, codec: KeyCodec, *, taken_back: bool) -> Layout:
        """Of the table of values."""
        columns = (INT,) if taken_back else ()
        tail = codec.tail or tailed([self._kind])
        return Layout(codec.words + words([self._kind]), tail, columns, alive=0 if taken_back else None)

    def count(self, work: Work, table: int, slots: Ints, total: Array, rows: Rows, values: Values) -> None:
        """Bring ``total`` up to date with rows that went to ``slots`` of the first table."""
        if len(values.valid):
            at = np.flatnonzero(values.valid)
            rows, slots = Rows(rows.keys.take(at), (), rows.sign[at] if len(rows.sign) else NO_INTS), slots[at]
            values = Values(values.values[at], NO_BYTES, values.data)
        if not len(rows):
            return
        known = work.tables[table].rows
        placed = work.place(content(rows.keys, [values], [self._kind]), table)
        if work.tables[table].layout.alive is None:
            new = np.flatnonzero(placed >= known)
            _, first = np.unique(placed[new], return_index=True)
            fold.count(total, slots[new[first]], NO_BYTES, NO_INTS)
            return
        times = work.tables[table].columns[0]
        different, first = np.unique(placed, return_index=True)
        before = times[different] > 0
        fold.count(times, placed, NO_BYTES, rows.sign)
        change = (times[different] > 0).astype(np.int64) - before
        fold.count(total, slots[first], NO_BYTES, change)
        work.bury(different[(times[different] == 0) & before], table)

    def fold(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        sign: Ints,
    ) -> None:
        """Nothing: only ``count`` knows which values are new."""

    def combine(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        others: Sequence[Array],
        other_arenas: Sequence[Arena | None],
        sign: int = 1,
    ) -> None:
        raise AssertionError("numbers of distinct values do not add up: windows refuse them")

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        return arrow.of_fixed(BIGINT, columns[0], NO_BYTES)
