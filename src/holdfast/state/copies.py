"""A slice's rows as Arrow: how deltas and full copies travel and rest.

A copy is record batches in slot order, each part with a small header in its schema's metadata. Everything is
carried as bits (floats, null marks, hashes), so that a slice rebuilt from copies goes on exactly as the
original would have. A copy may be taken in parts, a range of slots each, so that nobody who takes one holds
up the slice for longer than a part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import CorruptionError
from holdfast.invariants import invariant
from holdfast.state import arrow
from holdfast.state.columns import NO_BYTES, SMALLEST, Arena, Array, Bytes, ColumnSpec, Ints
from holdfast.state.table import Layout, Table
from holdfast.state.undo import Snapshot

_HEADER = b"holdfast.slice"
_FORMAT = 1


@dataclass(frozen=True)
class Header:
    """Rows changed in (base, epoch], or all of them if ``full``, among the slots from ``start`` to ``stop``.

    ``rows`` is how many slots the slice has at ``epoch``: the part that reaches it is a copy's last.
    """

    base: int
    epoch: int
    full: bool
    rows: int
    purged_at: int
    start: int
    stop: int
    table: int = 0
    format: int = _FORMAT

    @property
    def last(self) -> bool:
        return self.stop >= self.rows

    def continues(self, before: Header) -> bool:
        """This part comes right after that one, in one copy."""
        return not before.last and self == replace(before, start=before.stop, stop=self.stop) and self.stop > self.start

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> Header:
        # Copies were not taken in parts at first; packs of that time say nothing of slots.
        return Header(**{"start": 0, "stop": fields["rows"], **fields})


@lru_cache
def schema(layout: Layout) -> pa.Schema:
    fields = [("slot", pa.int32()), ("change", pa.int32()), ("hash", pa.int64()), ("nulls", pa.int32())]
    if layout.words:
        fields.append(("words", pa.binary(8 * layout.words)))
    if layout.tail:
        fields.append(("tail", pa.large_binary()))
    fields += [(f"a{number}", _arrow_type(column)) for number, column in enumerate(layout.columns)]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])


@lru_cache
def width(layout: Layout) -> int | None:
    """Bytes of a row, where all rows have as many. Arrow's own count of a batch's bytes takes 50 µs."""
    if layout.tail or any(column.spans for column in layout.columns):
        return None
    return sum(int(field.type.bit_width) // 8 for field in schema(layout))


def encode(snapshot: Snapshot, slots: Ints) -> pa.RecordBatch:
    """Rows of a copy, without a word about them."""
    table = snapshot.table
    keys = table.keys(slots)
    flat = (slots.astype(np.int32), snapshot.change(slots), keys.hash, keys.nulls)
    arrays = [pa.array(values) for values in flat]
    if table.layout.words:
        arrays.append(arrow.of_rows(keys.words))
    if table.layout.tail:
        arrays.append(arrow.of_spans(pa.large_binary(), keys.spans, keys.tail, NO_BYTES))
    for spec, values, arena in zip(table.layout.columns, snapshot.columns(slots), table.arenas, strict=True):
        if arena is not None:
            arrays.append(arrow.of_spans(pa.large_binary(), values, arena.data, NO_BYTES))
        else:
            arrays.append(arrow.of_rows(values) if spec.width else pa.array(values))
    return pa.RecordBatch.from_arrays(arrays, schema=schema(table.layout))


def labelled(rows: pa.RecordBatch, header: Header) -> pa.RecordBatch:
    """With what they are, where that does not travel apart from them."""
    return rows.replace_schema_metadata(_labelled(rows.schema, header).metadata)


def whole(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All parts of one copy as one."""
    headers = [header_of(part) for part in parts]
    invariant(headers[0].start == 0, "a copy begins at its first slot")
    invariant(headers[-1].last, "a copy ends at its last slot")
    invariant(all(after.continues(before) for before, after in pairwise(headers)), "parts of a copy follow one another")
    if len(parts) == 1:
        return parts[0]
    joined = replace(headers[0], stop=headers[-1].stop)
    return pa.concat_batches(parts).replace_schema_metadata(_labelled(parts[0].schema, joined).metadata)


def reshaped(copy: pa.RecordBatch, number: int, layout: Layout, columns: Sequence[int | None]) -> pa.RecordBatch:
    """A copy as one of table ``number`` of another layout: slots, keys and change epochs as they are; columns from
    where they were, or zeros, which is no value."""
    plain, arrays = schema(layout), []
    for field in plain:
        if not field.name.startswith("a"):
            arrays.append(copy.column(field.name))
            continue
        at = columns[int(field.name[1:])]
        arrays.append(_zeros(field.type, len(copy)) if at is None else copy.column(f"a{at}"))
    header = replace(header_of(copy), table=number)
    return pa.RecordBatch.from_arrays(arrays, schema=_labelled(plain, header))


def _zeros(kind: pa.DataType, rows: int) -> pa.Array:
    if pa.types.is_large_binary(kind):
        return pa.array([b""] * rows, kind)
    if pa.types.is_fixed_size_binary(kind):
        return pa.FixedSizeBinaryArray.from_buffers(kind, rows, [None, pa.py_buffer(bytes(rows * kind.byte_width))])
    return pa.array(np.zeros(rows, kind.to_pandas_dtype()))


def _labelled(plain: pa.Schema, header: Header) -> pa.Schema:
    return plain.with_metadata({_HEADER: json.dumps(asdict(header))})


def header_of(part: pa.RecordBatch) -> Header:
    raw = (part.schema.metadata or {}).get(_HEADER)
    if raw is None:
        raise CorruptionError(
            "a copy of a slice has no header.",
            safe="nothing was loaded from it.",
            todo="recover the slice from another copy or from the log.",
        )
    return Header.from_dict(json.loads(raw))


class Loader:
    """Builds a table from a full copy and the deltas after it, part by part.

    Its table has no index until ``finish``: a backup takes deltas for as long as it likes and pays for an index only
    when it becomes active. Between two parts of one copy the table is of no epoch, and only the next part may follow.
    """

    def __init__(self, layout: Layout, table: Table | None = None, epoch: int = 0) -> None:
        self._layout = layout
        self._schema = schema(layout)
        self._before: Header | None = None
        self.table = Table(layout, indexed=False) if table is None else table
        self.table.drop_index()
        self.epoch = epoch

    def add(self, part: pa.RecordBatch, header: Header | None = None) -> None:
        """Take one part; ``header`` where it travelled apart from it."""
        header = header_of(part) if header is None else header
        if not part.schema.equals(self._schema) or not self._fits(header):
            raise CorruptionError(
                f"a copy of epochs ({header.base}, {header.epoch}] does not continue a slice"
                f" at epoch {self.epoch} with columns {', '.join(self._schema.names)}.",
                safe="the slice is as it was.",
                todo="recover the slice from another copy or from the log.",
            )
        if header.full and header.start == 0:
            self.table = Table(self._layout, max(SMALLEST, header.rows), indexed=False)
        self._scatter(part, header)
        self._before = header
        if header.last:
            self._before, self.epoch, self.table.purged_at = None, header.epoch, header.purged_at
            self.table.leave_garbage()

    def finish(self) -> Table:
        invariant(self._before is None, "the last parts of a copy are missing")
        self.table.reindex(self.table.rows)
        return self.table

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def _fits(self, header: Header) -> bool:
        if self._before is not None:
            return header.continues(self._before)
        return header.start == 0 and (header.full or header.base <= self.epoch <= header.epoch)

    def _scatter(self, part: pa.RecordBatch, header: Header) -> None:
        table = self.table
        slots = arrow.column_of(part.column("slot"), "i4").astype(np.int64)
        # Slots are in order, so those of keys not seen before are the last ones.
        young = int(np.searchsorted(slots, table.rows))
        rows = max(table.rows, header.stop)
        invariant(len(slots) - young == rows - table.rows, "a copy must bring every row born since its base")
        if rows > len(table.hash):
            table.grow(max(2 * len(table.hash), header.rows))
        born = slice(table.rows, rows)
        _fill_keys(table, part.slice(young), born)
        _fill_values(table, part, slots)
        table.rows = rows


class Assembly:
    """Builds a table of one epoch from rows that come in any order: the pieces of a slice, from many sides.

    A row that comes again, because whoever sent it first did not end well, is the same row, and is skipped.
    """

    def __init__(self, layout: Layout, epoch: int, rows: int, purged_at: int) -> None:
        self._schema = schema(layout)
        self._layout, self._epoch = layout, epoch
        self._table = Table(layout, max(SMALLEST, rows), indexed=False)
        self._table.rows, self._table.purged_at = rows, purged_at
        self._there = np.zeros(rows, bool)

    def add(self, part: pa.RecordBatch) -> None:
        slots = arrow.column_of(part.column("slot"), "i4").astype(np.int64)
        if not part.schema.equals(self._schema) or (len(slots) and slots.max() >= len(self._there)):
            raise CorruptionError(
                f"A piece of a slice at epoch {self._epoch} has other columns, or more rows, than the slice.",
                safe="Nothing was made of it.",
                todo="The slice comes from other holders, or from the store and the log.",
            )
        known = self._there[slots]
        if known.any():
            slots, part = slots[~known], part.filter(pa.array(~known))
        _fill_keys(self._table, part, slots)
        _fill_values(self._table, part, slots)
        self._there[slots] = True

    @property
    def whole(self) -> bool:
        return bool(self._there.all())

    def loader(self) -> Loader:
        invariant(self.whole, "rows are missing")
        return Loader(self._layout, self._table, self._epoch)


def _fill_keys(table: Table, part: pa.RecordBatch, at: Ints | slice) -> None:
    table.hash[at] = arrow.column_of(part.column("hash"), "i8")
    table.nulls[at] = arrow.column_of(part.column("nulls"), "i4")
    if table.layout.words:
        table.words[at] = arrow.rows_of(part.column("words"), "i8", table.layout.words)
    if table.layout.tail:
        table.spans[at] = _append(table.tail, *arrow.spans(part.column("tail")))


def _fill_values(table: Table, part: pa.RecordBatch, slots: Ints) -> None:
    table.change[slots] = arrow.column_of(part.column("change"), "i4")
    for number, (spec, arena) in enumerate(zip(table.layout.columns, table.arenas, strict=True)):
        array = part.column(f"a{number}")
        if arena is not None:
            table.columns[number][slots] = _append(arena, *arrow.spans(array))
        elif spec.width:
            table.columns[number][slots] = arrow.rows_of(array, spec.dtype, spec.width)
        else:
            table.columns[number][slots] = arrow.column_of(array, spec.dtype)


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
