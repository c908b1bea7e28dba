"""Whole rows in a table: columns of any atomic types, null or not, written by slot and read back as Arrow.

For operators that keep rows themselves and not aggregates of them: joins, ``top_k``, ``distinct``, windows that put
their late rows aside. A value takes its own column and, beside it, a byte that says whether there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.invariants import Impossible, some
from holdfast.state import arrow
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
    ColumnSpec,
    Ints,
    packed,
    spans_of,
)
from holdfast.state.rows import Values
from holdfast.state.types import AtomicType

_SPECS = {"int": INT, "float": FLOAT, "decimal": DECIMAL, "bytes": SPANS}


def decoded(array: pa.Array, kind: AtomicType | None, how: str) -> Values:
    """An Arrow column as one of the four kinds, or ("valid") as nothing but where it is null."""
    valid = arrow.validity(array)
    if how == "valid":
        return Values(NO_INTS, valid)
    if how == "bytes":
        spans, data = arrow.spans(array)
        return Values(spans, valid, data)
    if how == "decimal":
        kind = some(kind, "a decimal has a type")
        return Values(arrow.decimals(array, kind), valid)
    return Values(arrow.ints(array) if how == "int" else arrow.floats(array), valid)


def of_batch(batch: pa.RecordBatch, name: str, kind: AtomicType | None, how: str) -> Values:
    """A column of a batch by name. Upper halves of sums (``p…_1``) are not in a log from before there were any."""
    at = batch.schema.get_field_index(name)
    return decoded(batch.column(at), kind, how) if at >= 0 else Values(np.zeros(len(batch), np.int64))


class Payload:
    """Rows of these types, as two columns of a table for each."""

    def __init__(self, types: Sequence[AtomicType]) -> None:
        self.types = tuple(types)
        self.columns: tuple[ColumnSpec, ...] = tuple(spec for kind in types for spec in (_SPECS[kind.kind], FLAG))

    def decode(self, batch: pa.RecordBatch, names: Sequence[str]) -> list[Values]:
        return [decoded(batch.column(name), kind, kind.kind) for name, kind in zip(names, self.types, strict=True)]

    def write(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        at: Array | None = None,
    ) -> None:
        """Rows ``at`` (all of them) of ``values`` to ``slots``; for a slot that comes twice the last one stays."""
        for number, value in enumerate(values):
            column, flag, arena = columns[2 * number], columns[2 * number + 1], arenas[2 * number]
            flag[slots] = 1 if not len(value.valid) else (value.valid if at is None else value.valid[at])
            found = value.values if at is None else value.values[at]
            if arena is None:
                column[slots] = found
            else:
                if value.data is None:
                    raise Impossible("bytes without an arena")
                column[slots] = append(arena, found, value.data)

    def read(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> list[pa.Array]:
        """Arrow columns of rows whose columns these are."""
        arrays = []
        for number, kind in enumerate(self.types):
            values, flag, arena = columns[2 * number], columns[2 * number + 1], arenas[2 * number]
            valid = NO_BYTES if flag.all() else flag
            if arena is None:
                arrays.append(arrow.of_fixed(kind, values, valid))
            else:
                arrays.append(arrow.of_spans(kind.arrow, values, arena.data, valid))
        return arrays

    def arrays(self, values: Sequence[Values], at: Array) -> list[pa.Array]:
        """Arrow columns of rows ``at`` of what came in, straight from there."""
        arrays = []
        for kind, value in zip(self.types, values, strict=True):
            valid = value.valid[at] if len(value.valid) else NO_BYTES
            if value.data is None:
                arrays.append(arrow.of_fixed(kind, value.values[at], valid))
            else:
                arrays.append(arrow.of_spans(kind.arrow, value.values[at], value.data, valid))
        return arrays

    def nulls(self, rows: int) -> list[pa.Array]:
        return [pa.nulls(rows, kind.arrow) for kind in self.types]


def append(arena: Arena, spans: Ints, data: Array) -> Ints:
    """The bytes of ``spans``, wherever they lie, to the arena; their spans in it."""
    offsets, found = packed(spans, data)
    arena.reserve(len(found))
    arena.data[arena.used : arena.used + len(found)] = found
    moved = spans_of(offsets + arena.used)
    arena.used += len(found)
    return moved


def ordered(values: Values, kind: AtomicType, *, descending: bool) -> list[Array]:
    """Sort keys for ``np.lexsort``, least significant first: nulls before all values, or after them if descending."""
    valid = np.ones(len(values.values), np.uint8) if not len(values.valid) else values.valid
    if kind.kind == "bytes":
        if values.data is None:
            raise Impossible("bytes without an arena")
        texts = arrow.of_spans(pa.large_binary(), values.values, values.data, NO_BYTES)
        ranks = texts.dictionary_encode()
        order = np.empty(len(ranks.dictionary), np.int64)
        order[np.asarray(pc.sort_indices(ranks.dictionary))] = np.arange(len(ranks.dictionary))
        keys: list[Array] = [order[np.asarray(ranks.indices)]]
    elif kind.kind == "decimal":
        keys = [values.values[:, 0].view(np.uint64), values.values[:, 1]]
    elif kind.kind == "float":
        keys = [np.where(np.isnan(values.values), np.inf, values.values), np.isnan(values.values).astype(np.int8)]
    else:
        keys = [values.values]
    keys = [*(np.where(valid == 0, np.zeros(1, key.dtype), key) for key in keys), valid]
    return [_reversed(key) for key in keys] if descending else keys


def _reversed(key: Array) -> Array:
    return -key if key.dtype.kind == "f" else np.invert(key)
