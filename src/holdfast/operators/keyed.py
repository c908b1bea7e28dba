"""What every operator on keyed rows has in common: keys and values decoded, outputs described, slices made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from holdfast.errors import PlanError
from holdfast.invariants import invariant
from holdfast.operators.spec import Column
from holdfast.state import arrow
from holdfast.state.columns import NO_INTS, Ints
from holdfast.state.keys import KeyCodec, KeyRows
from holdfast.state.payload import Payload
from holdfast.state.rows import Rows
from holdfast.state.slice import MAIN, SliceState
from holdfast.state.table import Layout, Table
from holdfast.state.table_slice import TableSlice
from holdfast.state.types import AtomicType, required

Fields = tuple[tuple[str, AtomicType], ...]


def typed(columns: Sequence[Column], what: str) -> Fields:
    """Columns with their types, or the refusal that names the one the state cannot hold."""
    return tuple((column.name, required(column.type, f"{what} '{column.name}'")) for column in columns)


def schema_of(fields: Fields) -> pa.Schema:
    return pa.schema([pa.field(name, kind.arrow) for name, kind in fields])


class KeyedOperator:
    """Base of the operators whose rows come as keys ``k0`` … and values ``v0`` …, one set of values an input.

    ``outputs`` are the columns of each output; ``state`` those of the rows that ``run.state`` reads.
    """

    emits = True
    clocked = False
    sweeps = False
    gradual = False
    stands = False
    outputs: Mapping[str, Fields]
    state: Fields
    layouts: tuple[Layout, ...]

    def __init__(self, keys: Sequence[Column], values: Sequence[Sequence[Column]], *, signed: bool = False) -> None:
        self.keys = typed(keys, "key")
        self.codec = KeyCodec([kind for _, kind in self.keys])
        self.values = [typed(columns, "column") for columns in values]
        self.payloads = [Payload([kind for _, kind in columns]) for columns in self.values]
        self._signed = signed

    @property
    def ports(self) -> tuple[str, ...]:
        return tuple(self.outputs)

    @cached_property
    def output_schema(self) -> pa.Schema:
        return schema_of(self.outputs[MAIN])

    @cached_property
    def state_schema(self) -> pa.Schema:
        return schema_of(self.state)

    def output_types(self, port: str = MAIN) -> tuple[tuple[str, str], ...]:
        """(name, Spark type) of every column of that output."""
        return tuple((name, kind.name) for name, kind in self.outputs[port])

    def state_types(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, kind.name) for name, kind in self.state)

    def decode(self, batch: pa.RecordBatch, *, port: int = 0, partial: bool = False) -> Rows:
        """A chunk of one input: ``_h``, keys, values, and ``_d`` where rows can be taken back."""
        invariant(not partial, "this stage has no partial input")
        names = [f"v{number}" for number in range(len(self.values[port]))]
        sign = arrow.ints(batch.column("_d")) if "_d" in batch.schema.names else NO_INTS
        return Rows(self.codec.decode(batch), self.payloads[port].decode(batch, names), sign)

    def decode_keys(self, batch: pa.RecordBatch) -> KeyRows:
        return self.codec.decode(batch)

    def concat(self, rows: Sequence[Rows]) -> Rows:
        return Rows.concat(rows)

    def new_slice(self) -> SliceState:
        return TableSlice(self)  # type: ignore[arg-type]  # the operators themselves are complete

    def units(self, table: int, keys: KeyRows) -> Ints:
        """All rows of one key, by its hash: keys of one hash share a unit, which does no harm."""
        longer = self.layouts[table].words - self.codec.words
        return keys.shortened(longer).hash if longer else keys.hash

    def row_units(self, rows: Rows, port: int, clock: int) -> Ints:
        return rows.keys.hash

    def due(self, tables: Sequence[Table]) -> int | None:
        return None

    def oldest(self, tables: Sequence[Table]) -> int | None:
        return None

    def find(self, table: Table, keys: KeyRows) -> Ints:
        return table.find(keys)

    def find_extended(self, table: Table, keys: KeyRows, words: int) -> Ints:
        """The slots of keys that were extended by ``words``: a pass over all of them, for a few keys now and then."""
        every = table.keys(np.arange(table.rows))
        likely = np.flatnonzero(every.belongs(keys, words))
        wanted = {_identity(keys, at) for at in range(len(keys))}
        short = every.take(likely).shortened(words)
        return likely[[at for at in range(len(likely)) if _identity(short, at) in wanted]].astype(np.int64)

    def empty(self, port: str) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema_of(self.outputs[port]))


def refuse_doubles(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise PlanError(
            f"two output columns have the same name: {', '.join(names)}.",
            safe="nothing was started or written.",
            todo="rename one of them before with select or with_column.",
        )


def _identity(keys: KeyRows, at: int) -> tuple[int, bytes, bytes]:
    tail = b""
    if len(keys.spans):
        start, length = keys.spans[at]
        tail = keys.tail[start : start + length].tobytes()
    return int(keys.nulls[at]), keys.words[at].tobytes(), tail
