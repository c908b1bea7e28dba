"""``key_by(...).agg(...)`` on a slice: a stage's spec made into columns, kernels and schemas.

An operator is built once a stage, on the driver for its schemas and in every container for its work. It
decodes chunks of Arrow into ``Rows`` (each value column once, however many aggregates read it) and makes
the slices that apply them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from holdfast.errors import FunctionError, PlanError
from holdfast.invariants import invariant
from holdfast.operators.accumulator import Overflow
from holdfast.operators.accumulators import (
    Accumulator,
    Count,
    Distinct,
    Extreme,
    Input,
    Mean,
    Moments,
    Pick,
    Sum,
)
from holdfast.operators.count_distinct import CountDistinct, ValuesSeen, values_seen
from holdfast.operators.exact import ExactMoments, ExactSum
from holdfast.operators.spec import AggregateSpec, Column, StageSpec
from holdfast.state import arrow, fold, sketch
from holdfast.state.columns import INT, NO_BYTES, NO_INTS, Arena, Array, Ints
from holdfast.state.keys import KeyCodec, KeyRows
from holdfast.state.payload import of_batch
from holdfast.state.rows import Rows
from holdfast.state.slice import MAIN, SliceState, Work
from holdfast.state.table import Layout, Table
from holdfast.state.table_slice import TableSlice
from holdfast.state.types import BIGINT, AtomicType, required

__all__ = ["AggregateOperator", "AggregateSpec", "Column", "Rows", "StageSpec"]

_Made = Callable[[AggregateSpec, Overflow, AtomicType], Accumulator]
_NUMERIC: dict[str, _Made] = {"sum": Sum, "mean": Mean, "var": Moments, "stddev": Moments}
_TAKEN_BACK: dict[str, _Made] = {"sum": ExactSum, "mean": ExactSum, "var": ExactMoments, "stddev": ExactMoments}
_CHOSEN: dict[str, _Made] = {
    "min": Extreme,
    "max": Extreme,
    "first": Pick,
    "last": Pick,
}
_REFUSED = "nothing was started or written."


class AggregateOperator:
    """Running aggregates per key."""

    emits = False
    clocked = False

    def __init__(self, spec: StageSpec) -> None:
        self.spec = spec
        self._key_types = tuple(required(key.type, f"key '{key.name}'") for key in spec.keys)
        self._codec = KeyCodec(self._key_types)
        self._accumulators = tuple(accumulator_of(aggregate, spec) for aggregate in spec.aggregates)
        # Where rows may be taken back, a column ahead of all others counts the rows a key has.
        hidden = (INT,) if spec.updating_input else ()
        columns = [*hidden]
        self._ranges: list[slice] = []
        for accumulator in self._accumulators:
            self._ranges.append(slice(len(columns), len(columns) + len(accumulator.columns)))
            columns += accumulator.columns
        self.layout = Layout(
            self._codec.words, self._codec.tail, tuple(columns), alive=0 if spec.updating_input else None
        )
        self._seen = values_seen(self._accumulators)
        # Of a value taken back in one piece and put in again in a later one nobody has thought.
        self.gradual = not (self._seen and spec.updating_input)
        seen = [one.layout(self._codec, taken_back=spec.updating_input) for one in self._seen]
        self.layouts: tuple[Layout, ...] = (self.layout, *seen)
        self._inputs, self._wanted = _shared([accumulator.inputs for accumulator in self._accumulators])
        self._partial_inputs, self._partial_wanted = _shared([*self._all_partials(), self._all_values()])
        *self._partial_wanted, self._partial_values = self._partial_wanted
        names = [key.name for key in spec.keys] + [aggregate.name for aggregate in spec.aggregates]
        if len(set(names)) != len(names):
            raise PlanError(
                f"two output columns have the same name: {', '.join(names)}.",
                safe=_REFUSED,
                todo="give every aggregate a name of its own.",
            )
        self._outputs = (*self._key_types, *(accumulator.output for accumulator in self._accumulators))
        self.output_schema = pa.schema(
            [pa.field(name, kind.arrow) for name, kind in zip(names, self._outputs, strict=True)]
        )
        self.state_schema = self.output_schema

    def output_types(self, port: str = MAIN) -> tuple[tuple[str, str], ...]:
        """(name, Spark type) of every output column."""
        invariant(port == MAIN, f"an aggregation has no output '{port}'")
        names = self.output_schema.names
        return tuple((name, kind.name) for name, kind in zip(names, self._outputs, strict=True))

    def state_types(self) -> tuple[tuple[str, str], ...]:
        return self.output_types()

    def partial_columns(self, aggregate: int) -> tuple[tuple[str, str], ...] | None:
        """What a partial input carries for that aggregate: (column, Spark type); None if Spark cannot go
        ahead.
        """
        partials = self._accumulators[aggregate].partials
        if partials is None or self.spec.updating_input:
            return None
        return tuple((f"p{aggregate}_{number}", kind.name) for number, kind in enumerate(partials))

    # -- rows

    def decode(self, batch: pa.RecordBatch, *, port: int = 0, partial: bool = False) -> Rows:
        """Arrow to NumPy, once a chunk."""
        keys = self._codec.decode(batch)
        invariant(
            not partial or all(self.partial_columns(i) is not None for i in range(len(self._accumulators))),
            "this stage has no partial input",
        )
        inputs = self._partial_inputs if partial else self._inputs
        sign = arrow.ints(batch.column("_d")) if self.spec.updating_input else NO_INTS
        return Rows(keys, [of_batch(batch, name, kind, how) for name, kind, how in inputs], sign, partial)

    def decode_keys(self, batch: pa.RecordBatch) -> KeyRows:
        """Keys to look up: the columns ``_h`` and ``k0`` … ``kn``."""
        return self._codec.decode(batch)

    def concat(self, rows: Sequence[Rows]) -> Rows:
        return Rows.concat(rows)

    def _all_partials(self) -> list[tuple[Input, ...]]:
        found: list[tuple[Input, ...]] = []
        for number, accumulator in enumerate(self._accumulators):
            named = zip(self.partial_columns(number) or (), accumulator.partials or (), strict=False)
            found.append(tuple((name, kind, kind.kind) for (name, _), kind in named))
        return found

    def _all_values(self) -> tuple[Input, ...]:
        """What a partial input carries beside: whether a row is of a key or of a value, and the values."""
        values = [(f"d{number}", seen.kind, seen.kind.kind) for number, seen in enumerate(self._seen)]
        return (("_g", BIGINT, BIGINT.kind), *values) if values else ()

    # -- the operator of a slice

    def new_slice(self) -> SliceState:
        return TableSlice(self)

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
            wanted = [[rows.values[at] for at in self._wanted[number]] for number in seen.counts]
            wheres = [where[0].valid if where else NO_BYTES for _, *where in wanted]
            seen.add(work, table, slots, rows, wanted[0][0], wheres, self._totals(work, seen))

    def settle(self, work: Work) -> None:
        """Keys whose rows were all taken back die, and results must fit: within an epoch they need not."""
        if self.layout.alive is not None:
            self._bury(work, self.layout.alive)
        self._judge(work)

    def _judge(self, work: Work) -> None:
        bounded = [(one, own) for one, own in zip(self._accumulators, self._ranges, strict=True) if one.bounded]
        if bounded:
            concerned, columns = work.concerned(), work.tables[0].columns
            for accumulator, own in bounded:
                accumulator.judge(columns[own], concerned)

    def _apply_partial(self, work: Work, slots: Ints, rows: Rows) -> None:
        """Rows of keys, and rows of values: how often each came counts for nothing, but whether it did."""
        groups, *values = [rows.values[at] for at in self._partial_values]
        at = np.flatnonzero(groups.values == 0)
        self.fold(work.tables[0], slots[at], rows.take(at))
        for table, (seen, value) in enumerate(zip(self._seen, values, strict=True), 1):
            at = np.flatnonzero(groups.values == table)
            counted = [[rows.values[number].values[at] for number in self._partial_wanted[one]] for one in seen.counts]
            wheres = [(times[0] > 0).view(np.uint8) if times else NO_BYTES for times in counted]
            mine = Rows(rows.keys.take(at))
            seen.add(work, table, slots[at], mine, value.take(at), wheres, self._totals(work, seen))

    def _totals(self, work: Work, seen: ValuesSeen) -> list[Ints]:
        return [work.tables[0].columns[self._ranges[number].start] for number in seen.counts]

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

    def oldest(self, tables: Sequence[Table]) -> int | None:
        return None

    def due(self, tables: Sequence[Table]) -> int | None:
        return None

    def find(self, table: Table, keys: KeyRows) -> Ints:
        return table.find(keys)

    def empty(self, port: str) -> pa.RecordBatch:
        invariant(port == MAIN, f"an aggregation has no output '{port}'")
        return pa.RecordBatch.from_pylist([], self.output_schema)

    def fold(self, table: Table, slots: Ints, rows: Rows) -> None:
        columns, arenas = table.columns, table.arenas
        if table.layout.alive is not None:
            fold.count(columns[table.layout.alive], slots, NO_BYTES, rows.sign)
        wanted = self._partial_wanted if rows.partial else self._wanted
        for accumulator, own, numbers in zip(self._accumulators, self._ranges, wanted, strict=True):
            values = [rows.values[number] for number in numbers]
            if rows.partial:
                accumulator.merge(columns[own], arenas[own], slots, values)
            else:
                accumulator.fold(columns[own], arenas[own], slots, values, rows.sign)

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.RecordBatch:
        arrays = self._codec.encode(keys)
        for accumulator, own in zip(self._accumulators, self._ranges, strict=True):
            arrays.append(accumulator.finish(columns[own], arenas[own]))
        return pa.RecordBatch.from_arrays(arrays, schema=self.output_schema)


def accumulator_of(spec: AggregateSpec, stage: StageSpec) -> Accumulator:
    """The accumulator of one aggregate, or the reason why there is none."""
    what, overflow = f"{spec.function} '{spec.name}'", _overflow(stage)
    if spec.function == "count":
        return Count(spec, overflow)
    if spec.function not in (*_NUMERIC, *_CHOSEN, "approx_distinct", "count_distinct"):
        known = ", ".join(["count", *_NUMERIC, *_CHOSEN, "approx_distinct", "count_distinct"])
        raise PlanError(f"{what}: there is no such aggregate.", safe=_REFUSED, todo=f"use one of {known}.")
    if spec.input is None or spec.input_type is None:
        raise PlanError(f"{what} needs a column.", safe=_REFUSED, todo="name the column to aggregate.")
    if spec.function == "count_distinct":
        return CountDistinct(spec, overflow, required(spec.input_type, f"the column of {what}"))
    if stage.updating_input and spec.function not in _NUMERIC:
        raise PlanError(
            f"{what} is over an updating input: a value taken back cannot be taken out of a {spec.function}.",
            safe=_REFUSED,
            todo="use count, count_distinct, sum, mean, var or stddev, or make the input final by an append window.",
        )
    if spec.function == "approx_distinct":
        return Distinct(spec, overflow, _sketch_precision(spec))
    kind = required(spec.input_type, f"the column of {what}")
    if spec.function in _CHOSEN:
        return _CHOSEN[spec.function](spec, overflow, kind)
    if not kind.is_numeric:
        raise PlanError(
            f"{what} is over a column of type {kind.name}, which is not a number.",
            safe=_REFUSED,
            todo="cast the column to a number first.",
        )
    # Sums of integers and of decimals lose nothing anyway, and nor does the mean of decimals.
    lossy = kind.kind == "float" or spec.function in ("var", "stddev") or (spec.function, kind.kind) == ("mean", "int")
    return (_TAKEN_BACK if stage.updating_input and lossy else _NUMERIC)[spec.function](spec, overflow, kind)


def _overflow(stage: StageSpec) -> Overflow:
    if stage.overflow:
        invariant(stage.overflow in ("fail", "null"), f"unknown overflow {stage.overflow!r}")
        return "fail" if stage.overflow == "fail" else "null"
    return "fail" if stage.ansi else "wrap"


def _sketch_precision(spec: AggregateSpec) -> int:
    rsd = float(spec.option("rsd", 0.05))
    bits = sketch.precision(rsd) if rsd > 0 else sketch.MOST_PRECISION + 1
    if not sketch.LEAST_PRECISION <= bits <= sketch.MOST_PRECISION:
        raise PlanError(
            f"approx_distinct '{spec.name}' asks for a relative deviation of {rsd}.",
            safe=_REFUSED,
            todo="ask for one between 0.005 and 0.39; 0.05 is the default and takes 512 bytes a key.",
        )
    return bits


def _shared(wanted: Sequence[Sequence[Input]]) -> tuple[list[Input], list[list[int]]]:
    """The distinct inputs of all aggregates, and which of them each aggregate takes."""
    distinct = list(dict.fromkeys(one for inputs in wanted for one in inputs))
    return distinct, [[distinct.index(one) for one in inputs] for inputs in wanted]
