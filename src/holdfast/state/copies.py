"""A slice's rows as Arrow: how deltas and full copies travel and rest.

A copy is one record batch in slot order with a small header in its schema's metadata. Everything is
carried as bits (floats, null marks, hashes), so that a slice rebuilt from copies goes on exactly as the
original would have.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from holdfast.errors import CorruptionError
from holdfast.state import arrow
from holdfast.state.columns import NO_BYTES, SMALLEST, Arena, Array, Bytes, ColumnSpec, Ints
from holdfast.state.table import Layout, Table
from holdfast.state.undo import Snapshot

_HEADER = b"holdfast.slice"
_FORMAT = 1


@dataclass(frozen=True)
class Header:
    """Rows changed in (base, epoch], or all of them if ``full``; ``rows`` is how many the slice has at
    ``epoch``.
    """

    base: int
    epoch: int
    full: bool
    rows: int
    purged_at: int
    format: int = _FORMAT


def schema(layout: Layout) -> pa.Schema:
    fields = [("slot", pa.int32()), ("change", pa.int32()), ("hash", pa.int64()), ("nulls", pa.int32())]
    if layout.words:
        fields.append(("words", pa.binary(8 * layout.words)))
    if layout.tail:
        fields.append(("tail", pa.large_binary()))
    fields += [(f"a{number}", _arrow_type(column)) for number, column in enumerate(layout.columns)]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])


def encode(snapshot: Snapshot, slots: Ints, header: Header) -> pa.RecordBatch:
    table = snapshot.table
    keys = table.keys(slots)
    flat = (slots.astype(np.int32), snapshot.change[slots], keys.hash, keys.nulls)
    arrays = [pa.array(values) for values in flat]
    if table.layout.words:
        arrays.append(arrow.of_rows(keys.words))
    if table.layout.tail:
        arrays.append(arrow.of_spans(pa.large_binary(), keys.spans, keys.tail, NO_BYTES))
    for spec, column, arena in zip(table.layout.columns, snapshot.columns, table.arenas, strict=True):
        values = column[slots]
        if arena is not None:
            arrays.append(arrow.of_spans(pa.large_binary(), values, arena.data, NO_BYTES))
        else:
            arrays.append(arrow.of_rows(values) if spec.width else pa.array(values))
    metadata = {_HEADER: json.dumps(asdict(header))}
    return pa.RecordBatch.from_arrays(arrays, schema=schema(table.layout).with_metadata(metadata))


def header_of(part: pa.RecordBatch) -> Header:
    raw = (part.schema.metadata or {}).get(_HEADER)
    if raw is None:
        raise CorruptionError(
            "a copy of a slice has no header.",
            safe="nothing was loaded from it.",
            todo="recover the slice from another copy or from the log.",
        )
    return Header(**json.loads(raw))


class Loader:
    """Builds a table from a full copy and the deltas after it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._schema = schema(layout)
        self.table = Table(layout)
        self.epoch = 0

    def add(self, part: pa.RecordBatch) -> None:
        header = header_of(part)
        if not part.schema.equals(self._schema) or not (header.full or header.base <= self.epoch):
            raise CorruptionError(
                f"a copy of epochs ({header.base}, {header.epoch}] does not continue a slice"
                f" at epoch {self.epoch} with columns {', '.join(self._schema.names)}.",
                safe="the slice is as it was.",
                todo="recover the slice from another copy or from the log.",
            )
        if header.full:
            self.table = Table(self._layout, max(SMALLEST, header.rows))
        self._scatter(part, header)
        self.epoch = header.epoch

    def finish(self) -> Table:
        self.table.reindex(self.table.rows)
        return self.table

    def _scatter(self, part: pa.RecordBatch, header: Header) -> None:
        table, layout = self.table, self._layout
        slots = arrow.column_of(part.column("slot"), "i4").astype(np.int64)
        # Slots are in order, so those of keys not seen before are the last ones.
        young = int(np.searchsorted(slots, table.rows))
        assert len(slots) - young == header.rows - table.rows, "a copy must bring every row born since its base"
        if header.rows > len(table.hash):
            table.grow(max(2 * len(table.hash), header.rows))
        table.change[slots] = arrow.column_of(part.column("change"), "i4")
        born = slice(table.rows, header.rows)
        table.hash[born] = arrow.column_of(part.column("hash"), "i8")[young:]
        table.nulls[born] = arrow.column_of(part.column("nulls"), "i4")[young:]
        if layout.words:
            table.words[born] = arrow.rows_of(part.column("words"), "i8", layout.words)[young:]
        if layout.tail:
            table.spans[born] = _append(table.tail, *arrow.spans(part.column("tail").slice(young)))
        for number, (spec, arena) in enumerate(zip(layout.columns, table.arenas, strict=True)):
            array = part.column(f"a{number}")
            if arena is not None:
                table.columns[number][slots] = _append(arena, *arrow.spans(array))
            elif spec.width:
                table.columns[number][slots] = arrow.rows_of(array, spec.dtype, spec.width)
            else:
                table.columns[number][slots] = arrow.column_of(array, spec.dtype)
        table.rows, table.purged_at = header.rows, header.purged_at


def _append(arena: Arena, spans: Ints, data: Bytes) -> Array:
    """Bytes that lie end to end, to the arena; their spans in it."""
    if not len(spans):
        return spans
    first, last = int(spans[0, 0]), int(spans[-1, 0] + spans[-1, 1])
    arena.reserve(last - first)
    arena.data[arena.used : arena.used + last - first] = data[first:last]
    spans[:, 0] += arena.used - first
    arena.used += last - first
    return spans


def _arrow_type(column: ColumnSpec) -> pa.DataType:
    if column.spans:
        return pa.large_binary()
    kind = pa.from_numpy_dtype(np.dtype(column.dtype))
    return pa.binary(column.width * kind.bit_width // 8) if column.width else kind
