"""``key_by(...).agg(...)``: running aggregates for every key.

An operator is built once a stage, on the driver for its schemas and in every container for its work. It
decodes chunks of Arrow into ``Rows`` (each value column once, however many aggregates read it) and makes
the slices that apply them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import FunctionError
from holdfast.invariants import invariant
from holdfast.operators.aggregates.accumulator import ROWS, Inputs
from holdfast.operators.aggregates.count_distinct import ValuesSeen, values_seen
from holdfast.operators.aggregates.spec import AggregatingSpec, Wanted, aggregates_of
from holdfast.operators.ahead import Partials
from holdfast.operators.bounds import Columns, Reading
from holdfast.operators.draft import Draft
from holdfast.operators.keyed import KeyedOperator, refuse_doubles
from holdfast.operators.spec import AggregateSpec, Column, shown_keys
from holdfast.state import arrow, fold
from holdfast.state.columns import INT, NO_BYTES, NO_INTS, Arena, Array, Ints
from holdfast.state.keys import KeyRows
from holdfast.state.payload import of_batch
from holdfast.state.rows import Rows
from holdfast.state.slice import MAIN, Work
from holdfast.state.table import Layout, Table
from holdfast.state.types import BIGINT


@dataclass(frozen=True)
class StageSpec(AggregatingSpec):
    """A keyed aggregation. An updating input carries ``_d`` (+1, -1) and may take rows back.

    ``overflow`` is what becomes of results that are too large for their type ("fail", "null"); "": as ``ansi`` says.
    """

    kind = "aggregate"
    free = frozenset({"aggregates", "overflow"})
    label = "agg"
    exact_distinct = True
    updates = True
    complete = True
    holds_rows_by_key = True
    undivided = None

    keys: tuple[Column, ...]
    aggregates: tuple[AggregateSpec, ...]
    updating_input: bool = False
    ansi: bool = True
    overflow: str = ""

    @classmethod
    def drafted(cls, draft: Draft, wanted: Mapping[str, Wanted]) -> StageSpec:
        return cls(draft.inputs[0].keys, aggregates_of(draft, wanted), draft.updating, draft.ansi)

    def build(self) -> AggregateOperator:
        return AggregateOperator(self)

    @property
    def takes_back(self) -> bool:
        return self.updating_input

    @property
    def empties(self) -> bool:
        return not self.updating_input

    def partials(self) -> Partials | None:
        columns = self.partial_columns()
        return None if columns is None else Partials(columns)

    def bounds(self, name: str, inputs: Sequence[Reading], ports: Mapping[str, Sequence[str]]) -> Mapping[str, Columns]:
        return {MAIN: inputs[0].bounded_keys}

    def described(self) -> dict[str, Any]:
        """In the words of the first stores, which knew no other kind."""
        aggregates = [
            f"{one.name}: {one.function}({one.input_type or '*'})" + "".join(f", {k}={v}" for k, v in one.options)
            for one in self.aggregates
        ]
        return {"keys": shown_keys(self), "aggregates": aggregates, "ansi": self.ansi}


class AggregateOperator(KeyedOperator):
    """Table 0: keys and their aggregates. For each column whose distinct values are counted, one of the values."""

    emits = False

    def __init__(self, spec: StageSpec) -> None:
        super().__init__(spec.keys, ())
        self.spec = spec
        # Where rows may be taken back, a column ahead of all others counts the rows a key has.
        hidden = (INT.named(ROWS),) if spec.updating_input else ()
        self._inputs = Inputs()
        self._aggregates = spec.accumulators(self._inputs, len(hidden))
        alive = 0 if spec.updating_input else None
        columns = (*hidden, *self._aggregates.columns)
        self.layout = Layout(self.codec.words, self.codec.tail, columns, alive, "keys")
        self._seen = values_seen(self._aggregates.members)
        # Of a value taken back in one piece and put in again in a later one nobody has thought.
        self.gradual = not (self._seen and spec.updating_input)
        seen = [one.layout(self.codec, taken_back=spec.updating_input) for one in self._seen]
        self.layouts: tuple[Layout, ...] = (self.layout, *seen)
        # What a partial input carries beside: whether a row is of a key or of a value, and the values.
        beside = [("_g", BIGINT), *((f"d{at}", one.kind) for at, one in enumerate(self._seen))] if self._seen else []
        self._partial_values = [self._inputs.number((name, kind, kind.kind), partial=True) for name, kind in beside]
        self._ahead = not spec.updating_input and all(one.partials is not None for one in self._aggregates.members)
        self.state = (*self.keys, *self._aggregates.fields)
        self.outputs = {MAIN: self.state}
        refuse_doubles([name for name, _ in self.state])

    # -- rows

    def decode(self, batch: pa.RecordBatch, *, port: int = 0, partial: bool = False) -> Rows:
        """Arrow to NumPy, once a chunk."""
        keys = self.codec.decode(batch)
        invariant(not partial or self._ahead, "this stage has no partial input")
        inputs = self._inputs.partial if partial else self._inputs.wanted
        sign = arrow.ints(batch.column("_d")) if self.spec.updating_input else NO_INTS
        return Rows(keys, [of_batch(batch, name, kind, how) for name, kind, how in inputs], sign, partial)

    # -- the operator of a slice

    def apply(self, work: Work, *inputs: Rows | None) -> None:
        (rows,) = inputs
        if rows is not None and len(rows):
            self.take(work, rows)
            self.settle(work)

    def take(self, work: Work, rows: Rows) -> None:
        slots = work.place(rows.keys)
        if self._seen and rows.partial:
            self._apply_partial(work, slots, rows)
            return
        self.fold(work.tables[0], slots, rows)
        for table, seen in enumerate(self._seen, 1):
            wanted = [[rows.values[at] for at in self._aggregates.numbers[number]] for number in seen.counts]
            wheres = [where[0].valid if where else NO_BYTES for _, *where in wanted]
            seen.add(work, table, slots, rows, wanted[0][0], wheres, self._totals(work, seen))

    def settle(self, work: Work) -> None:
        """Keys whose rows were all taken back die, and results must fit: within an epoch they need not."""
        if self.layout.alive is not None:
            self._bury(work, self.layout.alive)
        if self._aggregates.bounded:
            self._aggregates.judge(work.tables[0].columns, work.concerned())

    def _apply_partial(self, work: Work, slots: Ints, rows: Rows) -> None:
        """Rows of keys, and rows of values: how often each came counts for nothing, but whether it did."""
        groups, *values = [rows.values[at] for at in self._partial_values]
        at = np.flatnonzero(groups.values == 0)
        self.fold(work.tables[0], slots[at], rows.take(at))
        wanted = self._aggregates.partials
        for table, (seen, value) in enumerate(zip(self._seen, values, strict=True), 1):
            at = np.flatnonzero(groups.values == table)
            counted = [[rows.values[number].values[at] for number in wanted[one]] for one in seen.counts]
            wheres = [(times[0] > 0).view(np.uint8) if times else NO_BYTES for times in counted]
            mine = Rows(rows.keys.take(at))
            seen.add(work, table, slots[at], mine, value.take(at), wheres, self._totals(work, seen))

    def _totals(self, work: Work, seen: ValuesSeen) -> list[Ints]:
        return [work.tables[0].columns[self._aggregates.first_column(number)] for number in seen.counts]

    def _bury(self, work: Work, alive: int) -> None:
        """Keys whose count came down to 0 are dead."""
        concerned = work.concerned()
        counts = work.tables[0].columns[alive][concerned]
        if (counts < 0).any():
            raise FunctionError(
                f"{int((counts < 0).sum())} keys had more rows taken back than they ever got.",
                safe="the slice is as it was before this epoch.",
                todo="check that the updating input sends every row with +1 before it takes it back with -1.",
            )
        work.bury(concerned[counts == 0])

    def fold(self, table: Table, slots: Ints, rows: Rows) -> None:
        if table.layout.alive is not None:
            fold.count(table.columns[table.layout.alive], slots, NO_BYTES, rows.sign)
        self._aggregates.fold(table.columns, table.arenas, slots, rows)

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.RecordBatch:
        arrays = [*self.codec.encode(keys), *self._aggregates.finish(columns, arenas)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.output_schema)
