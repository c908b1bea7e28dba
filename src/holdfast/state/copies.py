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
from holdfast.invariants import invariant, some
from holdfast.state import arrow
from holdfast.state.columns import NO_INTS, SMALLEST, Arena, Array, Bytes, ColumnSpec, Ints, packed, spans_of
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


Spread = tuple[Ints, Bytes]
"""Values of any length: n + 1 offsets, and the bytes they lie in, end to end."""


class Picked:
    """Rows of a copy as plain columns, in the order of its schema. Arrow is made of many of them at once: its fixed
    costs are more than all there is to a slice that few rows came to."""

    __slots__ = ("columns", "layout", "rows")

    def __init__(self, layout: Layout, rows: int, columns: Sequence[Array | Spread]) -> None:
        self.layout, self.rows, self.columns = layout, rows, columns

    @property
    def nbytes(self) -> int:
        wide = width(self.layout)
        if wide is not None:
            return self.rows * wide
        sizes = (_spread_bytes(one) if isinstance(one, tuple) else one.nbytes for one in self.columns)
        return int(sum(sizes))

    def slice(self, start: int, stop: int) -> Picked:
        """Views of some of them."""
        columns: list[Array | Spread] = [
            (one[0][start : stop + 1], one[1]) if isinstance(one, tuple) else one[start:stop] for one in self.columns
        ]
        return Picked(self.layout, stop - start, columns)


def pick(snapshot: Snapshot, slots: Ints) -> Picked:
    """Rows of a copy, without a word about them."""
    table = snapshot.table
    layout, keys = table.layout, table.keys(slots)
    columns: list[Array | Spread] = [slots.astype(np.int32), snapshot.change(slots), keys.hash, keys.nulls]
    if layout.words:
        columns.append(keys.words)
    if layout.tail:
        columns.append(packed(keys.spans, keys.tail))
    for values, arena in zip(snapshot.columns(slots), table.arenas, strict=True):
        columns.append(values if arena is None else packed(values, arena.data))
    return Picked(layout, len(slots), columns)


def encode(parts: Sequence[Picked]) -> pa.RecordBatch:
    """Parts of one table's copies as Arrow, one after the other."""
    plain = schema(parts[0].layout)
    rows = sum(part.rows for part in parts)
    arrays = []
    for field, column in zip(plain, zip(*(part.columns for part in parts), strict=True), strict=True):
        buffers = _joined(column) if isinstance(column[0], tuple) else (_end_to_end(column),)
        arrays.append(arrow.of_buffers(field.type, rows, *buffers))
    return pa.RecordBatch.from_arrays(arrays, schema=plain)


def decode(rows: pa.RecordBatch, layout: Layout) -> Picked | None:
    """Views of what was encoded; None if it has other columns."""
    plain = schema(layout)
    if not rows.schema.equals(plain):
        return None
    matrices = {f"a{number}": (one.dtype, one.width) for number, one in enumerate(layout.columns) if one.width}
    matrices["words"] = ("i8", layout.words)
    columns: list[Array | Spread] = []
    for field, array in zip(plain, rows.columns, strict=True):
        if pa.types.is_large_binary(field.type):
            columns.append(arrow.offsets(array))
        elif field.name in matrices:
            columns.append(arrow.rows_of(array, *matrices[field.name]))
        else:
            columns.append(arrow.column_of(array, field.type.to_pandas_dtype()))
    return Picked(layout, rows.num_rows, columns)


def _end_to_end(columns: Sequence[Array]) -> Array:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _joined(parts: Sequence[Spread]) -> Spread:
    if len(parts) == 1:
        return parts[0]
    offsets, data, used = [np.zeros(1, np.int64)], [], 0
    for starts, source in parts:
        first, last = int(starts[0]), int(starts[-1])
        offsets.append(starts[1:] + (used - first))
        data.append(source[first:last])
        used += last - first
    return np.concatenate(offsets), np.concatenate(data)


def _spread_bytes(spread: Spread) -> int:
    offsets = spread[0]
    return offsets.nbytes + int(offsets[-1] - offsets[0])


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
        self._before: Header | None = None
        self.table = Table(layout, indexed=False) if table is None else table
        self.table.drop_index()
        self.epoch = epoch

    def add(self, part: pa.RecordBatch | Picked, header: Header | None = None) -> None:
        """Take one part; ``header`` where it travelled apart from it."""
        if isinstance(part, Picked):
            rows: Picked | None = part if part.layout == self._layout else None
            header = some(header, "rows by themselves do not say what they are")
        else:
            header = header_of(part) if header is None else header
            rows = decode(part, self._layout)
        if rows is None or not self._fits(header):
            raise CorruptionError(
                f"a copy of epochs ({header.base}, {header.epoch}] does not continue a slice"
                f" at epoch {self.epoch} with columns {', '.join(schema(self._layout).names)}.",
                safe="the slice is as it was.",
                todo="recover the slice from another copy or from the log.",
            )
        if header.full and header.start == 0:
            self.table = Table(self._layout, max(SMALLEST, header.rows), indexed=False)
        self._scatter(rows, header)
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

    def _scatter(self, part: Picked, header: Header) -> None:
        table = self.table
        slots = _slots(part)
        # Slots are in order, so those of keys not seen before are the last ones.
        young = int(np.searchsorted(slots, table.rows))
        rows = max(table.rows, header.stop)
        invariant(len(slots) - young == rows - table.rows, "a copy must bring every row born since its base")
        if rows > len(table.hash):
            table.grow(max(2 * len(table.hash), header.rows))
        born = slice(table.rows, rows)
        if young < len(slots):
            _fill_keys(table, part.slice(young, part.rows), born)
        fill_values(table, part, slots)
        table.rows = rows


class Assembly:
    """Builds a table of one epoch from rows that come in any order: the pieces of a slice, from many sides.

    A row that comes again, because whoever sent it first did not end well, is the same row, and is skipped.
    """

    def __init__(self, layout: Layout, epoch: int, rows: int, purged_at: int) -> None:
        self._layout, self._epoch = layout, epoch
        self._table = Table(layout, max(SMALLEST, rows), indexed=False)
        self._table.rows, self._table.purged_at = rows, purged_at
        self._there = np.zeros(rows, bool)

    def add(self, part: pa.RecordBatch) -> None:
        rows = decode(part, self._layout)
        slots = NO_INTS if rows is None else _slots(rows)
        if rows is None or (len(slots) and slots.max() >= len(self._there)):
            raise CorruptionError(
                f"A piece of a slice at epoch {self._epoch} has other columns, or more rows, than the slice.",
                safe="Nothing was made of it.",
                todo="The slice comes from other holders, or from the store and the log.",
            )
        known = self._there[slots]
        if known.any():
            slots, rows = slots[~known], some(decode(part.filter(pa.array(~known)), self._layout), "the same columns")
        _fill_keys(self._table, rows, slots)
        fill_values(self._table, rows, slots)
        self._there[slots] = True

    @property
    def whole(self) -> bool:
        return bool(self._there.all())

    def loader(self) -> Loader:
        invariant(self.whole, "rows are missing")
        return Loader(self._layout, self._table, self._epoch)


def _slots(part: Picked) -> Ints:
    slots = part.columns[0]
    invariant(not isinstance(slots, tuple), "slots are numbers")
    return np.asarray(slots).astype(np.int64)


def _fill_keys(table: Table, part: Picked, at: Ints | slice) -> None:
    _, _, table.hash[at], table.nulls[at], *rest = part.columns
    if table.layout.words:
        table.words[at] = rest.pop(0)
    if table.layout.tail:
        table.spans[at] = _append(table.tail, rest[0])


def fill_values(table: Table, part: Picked, slots: Ints) -> None:
    table.change[slots] = part.columns[1]
    values = part.columns[len(part.columns) - len(table.columns) :]
    for column, arena, value in zip(table.columns, table.arenas, values, strict=True):
        column[slots] = value if arena is None else _append(arena, value)


def _append(arena: Arena, spread: Any) -> Array:
    """Bytes that lie end to end, to the arena; their spans in it."""
    offsets, data = spread
    spans = spans_of(offsets)
    if not len(spans):
        return spans
    first, last = int(offsets[0]), int(offsets[-1])
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
