"""Keys as words and bytes: what makes two keys equal is decided here, once, when rows are decoded.

Every key column becomes one or two int64 words; a string or binary gives its length as its word and its
bytes to the row's tail; a bit per column says null (its words are then 0). With floats made canonical (one
NaN, no -0.0) two keys are equal as Spark's ``groupBy`` has it exactly when bits, words and tail are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.errors import PlanError
from holdfast.state import arrow
from holdfast.state.columns import NO_BYTES, NO_SPANS, Array, Bytes, Ints, copy_spans, joined
from holdfast.state.kernel import Int, RInts, RPairs, Void, WInts, kernel
from holdfast.state.types import AtomicType

MAX_COLUMNS = 31


class KeyRows:
    """The keys of some rows: hash, null bits, words, and spans of the tail (no rows where no column needs
    one).
    """

    __slots__ = ("hash", "nulls", "spans", "tail", "words")

    def __init__(self, key_hash: Ints, nulls: Array, words: Ints, spans: Ints, tail: Bytes) -> None:
        self.hash = key_hash
        self.nulls = nulls
        self.words = words
        self.spans = spans
        self.tail = tail

    def __len__(self) -> int:
        return len(self.hash)

    def slice(self, start: int, stop: int) -> KeyRows:
        spans = self.spans[start:stop] if len(self.spans) else self.spans
        return KeyRows(self.hash[start:stop], self.nulls[start:stop], self.words[start:stop], spans, self.tail)

    def take(self, at: Array) -> KeyRows:
        """Those rows, in that order. They may be looked up and placed, but not be concatenated any more."""
        spans = self.spans[at] if len(self.spans) else self.spans
        return KeyRows(self.hash[at], self.nulls[at], self.words[at], spans, self.tail)

    def extended(self, *extra: Ints) -> KeyRows:
        """The same keys with words of our own after them (a window's start, a number), as keys of another table."""
        words = np.empty((len(self), self.words.shape[1] + len(extra)), np.int64)
        words[:, : self.words.shape[1]] = self.words
        for number, column in enumerate(extra, self.words.shape[1]):
            words[:, number] = column
        return KeyRows(_mixed(self.hash, words, len(extra)), self.nulls, words, self.spans, self.tail)

    def shortened(self, count: int) -> KeyRows:
        """The keys that were extended by ``count`` words."""
        words = np.ascontiguousarray(self.words[:, :-count])
        return KeyRows(_mixed(self.hash, self.words, count), self.nulls, words, self.spans, self.tail)

    def belongs(self, keys: KeyRows, count: int) -> Array:
        """Which of these rows, extended by ``count`` words, belong to one of ``keys`` by their hashes."""
        return np.isin(self.shortened(count).hash, keys.hash)

    @staticmethod
    def concat(parts: Sequence[KeyRows]) -> KeyRows:
        spans, tail = joined([(part.spans, part.tail) for part in parts])
        return KeyRows(
            np.concatenate([part.hash for part in parts]),
            np.concatenate([part.nulls for part in parts]),
            np.concatenate([part.words for part in parts]),
            spans,
            tail,
        )


class KeyCodec:
    """Between the key columns of Arrow batches and ``KeyRows``."""

    def __init__(self, types: Sequence[AtomicType]) -> None:
        if len(types) > MAX_COLUMNS:
            raise PlanError(
                f"a key of {len(types)} columns is more than the {MAX_COLUMNS} that Holdfast takes.",
                safe="nothing was started or written.",
                todo="put some of the columns into one string or hash.",
            )
        self.types = tuple(types)
        self.tail = any(kind.kind == "bytes" for kind in types)
        self._first: list[int] = []  # of each column's words
        self.words = 0
        for kind in types:
            self._first.append(self.words)
            self.words += 2 if kind.kind == "decimal" else 1

    def decode(self, batch: pa.RecordBatch) -> KeyRows:
        """Rows with the columns ``_h`` and ``k0`` … ``kn``."""
        count = batch.num_rows
        nulls = np.zeros(count, np.int32)
        columns: list[Ints] = []
        tails: list[tuple[Ints, Bytes]] = []
        for number, kind in enumerate(self.types):
            array = batch.column(f"k{number}")
            valid = arrow.validity(array)
            if kind.kind == "bytes":
                spans, data = arrow.spans(array)
                tails.append((spans, data))
                words = spans[:, 1:]
            else:
                words = _words(array, kind)
            if len(valid):
                absent = valid == 0
                nulls[absent] |= 1 << number
                words = words.copy()
                words[absent] = 0
            columns.append(words)
        # One column is its own matrix; that is the common case, and it costs no copy.
        matrix = columns[0] if len(columns) == 1 else _side_by_side(columns, count)
        spans, tail = _one_tail(tails)
        return KeyRows(arrow.ints(batch.column("_h")), nulls, np.ascontiguousarray(matrix), spans, tail)

    def encode(self, keys: KeyRows) -> list[pa.Array]:
        """The key columns, as Arrow."""
        arrays = []
        at = keys.spans[:, 0].copy()
        for number, (kind, first) in enumerate(zip(self.types, self._first, strict=True)):
            valid = (keys.nulls >> number) & 1 == 0
            flags = NO_BYTES if valid.all() else valid.astype(np.uint8)
            if kind.kind == "bytes":
                length = keys.words[:, first]
                arrays.append(arrow.of_spans(kind.arrow, np.stack([at, length], axis=1), keys.tail, flags))
                at += length
            elif kind.kind == "decimal":
                arrays.append(arrow.of_fixed(kind, keys.words[:, first : first + 2].copy(), flags))
            else:
                values = keys.words[:, first].copy()
                arrays.append(arrow.of_fixed(kind, values.view(np.float64) if kind.kind == "float" else values, flags))
        return arrays


def _mixed(hashes: Ints, words: Ints, extra: int) -> Ints:
    """The hashes, with the last ``extra`` words mixed in; the same call takes them out again."""
    found = np.empty(len(hashes), np.int64)
    mix(hashes, words, extra, found)
    return found


@kernel(Void(RInts, RPairs, Int, WInts))
def mix(hashes, words, extra, found):  # type: ignore[no-untyped-def]
    first = words.shape[1] - extra
    for i in range(hashes.shape[0]):
        total = np.uint64(hashes[i])
        for w in range(extra):
            mixed = np.uint64(words[i, first + w]) + np.uint64(w + 1) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            total ^= mixed ^ (mixed >> np.uint64(31))
        found[i] = np.int64(total)


def _words(array: pa.Array, kind: AtomicType) -> Ints:
    if kind.kind == "decimal":
        return arrow.decimals(array, kind)
    if kind.kind == "int":
        return arrow.ints(array).reshape(-1, 1)
    values = arrow.floats(array) + 0.0  # -0.0 + 0.0 is 0.0; and a copy that may be written
    values[np.isnan(values)] = np.nan
    return values.view(np.int64).reshape(-1, 1)


def _side_by_side(columns: list[Ints], count: int) -> Ints:
    return np.concatenate(columns, axis=1) if columns else np.empty((count, 0), np.int64)


def _one_tail(tails: list[tuple[Ints, Bytes]]) -> tuple[Ints, Bytes]:
    """Several columns' bytes, row after row in one run."""
    if not tails:
        return NO_SPANS, NO_BYTES
    if len(tails) == 1:
        return tails[0]
    lengths = np.stack([spans[:, 1] for spans, _ in tails])
    total = lengths.sum(axis=0)
    start = np.cumsum(total) - total
    merged = np.empty(int(total.sum()), np.uint8)
    at = start.copy()
    for (spans, data), length in zip(tails, lengths, strict=True):
        copy_spans(spans, data, at, merged)
        at += length
    return np.stack([start, total], axis=1), merged
