"""Exact ``count_distinct``: the values each key has had, in tables of their own.

A value is a row there, with the key of its group and itself as its key. All counts of one value column share a table,
in which each has a column: whether a row that counts for it had this value. So a value is looked for and kept once,
however many counts with conditions of their own there are. Where rows may be taken back, the columns say how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.invariants import Impossible
from holdfast.operators.aggregates.accumulator import ROWS, Accumulator, Input, Overflow
from holdfast.operators.spec import AggregateSpec
from holdfast.state import arrow, fold
from holdfast.state.columns import FLAG, INT, NO_BYTES, Arena, Array, Bytes, Ints
from holdfast.state.content import content, tailed, words
from holdfast.state.keys import KeyCodec
from holdfast.state.rows import Rows, Values
from holdfast.state.slice import Work
from holdfast.state.table import Layout
from holdfast.state.types import BIGINT, AtomicType


class CountDistinct(Accumulator):
    """The number as a column of its group; which values are behind it is known to ``ValuesSeen``."""

    invertible = True
    output = BIGINT
    columns = (INT,)

    def __init__(self, spec: AggregateSpec, overflow: Overflow, kind: AtomicType) -> None:
        super().__init__(spec, overflow)
        if spec.input is None:
            raise Impossible("this aggregate is of a column")
        self.kind = kind
        self.partials = () if spec.where is None else (BIGINT,)
        value: Input = (spec.input, kind, kind.kind)
        self.inputs: tuple[Input, ...] = (value,) if spec.where is None else (value, (spec.where, None, "valid"))

    def fold(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        sign: Ints,
    ) -> None:
        """Nothing: only ``ValuesSeen`` knows which values are new."""

    def combine(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        others: Sequence[Array],
        other_arenas: Sequence[Arena | None],
        sign: int = 1,
    ) -> None:
        raise Impossible("numbers of distinct values do not add up: windows refuse them")

    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        return arrow.of_fixed(BIGINT, columns[0], NO_BYTES)


@dataclass(frozen=True)
class ValuesSeen:
    """The values of one column, for the aggregates (by their numbers in the stage) that count them."""

    kind: AtomicType
    counts: tuple[int, ...]
    names: tuple[str, ...]

    def layout(self, codec: KeyCodec, *, taken_back: bool) -> Layout:
        """A table without a name: it is that of the counts which share it, and such come and go."""
        columns = tuple((INT if taken_back else FLAG).named(name) for name in self.names)
        if taken_back:
            columns = (INT.named(ROWS), *columns)
        tail = codec.tail or tailed([self.kind])
        return Layout(codec.words + words([self.kind]), tail, columns, alive=0 if taken_back else None)

    def add(
        self, work: Work, table: int, slots: Ints, rows: Rows, values: Values, wheres: list[Bytes], totals: list[Ints]
    ) -> None:
        """Bring ``totals`` up to date with rows that went to ``slots`` of the first table.

        Each count has its ``where``: 1 in rows that it takes, empty if it takes all.
        """
        if len(values.valid):
            at = np.flatnonzero(values.valid)
            rows, slots = Rows(rows.keys, (), rows.sign).take(at), slots[at]
            values = Values(values.values[at], NO_BYTES, values.data)
            wheres = [where[at] if len(where) else where for where in wheres]
        if not len(rows):
            return
        placed = work.place(content(rows.keys, [values], [self.kind]), table)
        held = work.tables[table]
        if held.layout.alive is None:
            for seen, where, total in zip(held.columns, wheres, totals, strict=True):
                fold.see(seen, total, placed, slots, where)
            return
        every, *own = held.columns
        for times, where, total in zip(own, wheres, totals, strict=True):
            fold.see_or_take_back(times, total, placed, slots, where, rows.sign)
        different = np.unique(placed)
        before = every[different] > 0
        fold.count(every, placed, NO_BYTES, rows.sign)
        work.bury(different[(every[different] == 0) & before], table)


def values_seen(accumulators: Sequence[Accumulator]) -> list[ValuesSeen]:
    """The tables of values that a stage with these aggregates has, in the order of their first counts."""
    found: dict[str, tuple[AtomicType, list[int]]] = {}
    for number, one in enumerate(accumulators):
        if isinstance(one, CountDistinct):
            found.setdefault(one.inputs[0][0], (one.kind, []))[1].append(number)
    return [
        ValuesSeen(kind, tuple(numbers), tuple(accumulators[number].spec.name for number in numbers))
        for kind, numbers in found.values()
    ]
