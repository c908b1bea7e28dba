"""Whole rows as keys: which rows are equal, when rows can be taken back by saying them again with -1.

A row's content is its key extended by its values: a word for each (two for a decimal, a length and a hash for bytes),
words of null bits before them, and bytes at the end of the tail. Values are equal as keys are: one NaN, no -0.0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.invariants import Impossible
from holdfast.state.columns import NO_BYTES, NO_SPANS, SMALLEST, Array, Bytes, Ints, copy_spans
from holdfast.state.kernel import RBytes, RPairs, Void, WInts, kernel
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Values
from holdfast.state.table import Layout, Table
from holdfast.state.types import AtomicType

_BITS = 62  # null bits a word


@kernel(Void(RPairs, RBytes, WInts))
def hash_spans(spans, data, hashes):  # type: ignore[no-untyped-def]
    """FNV-1a of the bytes of every span."""
    for i in range(spans.shape[0]):
        found = np.uint64(0xCBF29CE484222325)
        for j in range(spans[i, 0], spans[i, 0] + spans[i, 1]):
            found = (found ^ np.uint64(data[j])) * np.uint64(0x100000001B3)
        hashes[i] = np.int64(found)


def words(types: Sequence[AtomicType]) -> int:
    """By how many words such values make a key longer."""
    return -(-len(types) // _BITS) + sum(1 if kind.kind in ("int", "float") else 2 for kind in types)


def tailed(types: Sequence[AtomicType]) -> bool:
    return any(kind.kind == "bytes" for kind in types)


def content(keys: KeyRows, values: Sequence[Values], types: Sequence[AtomicType]) -> KeyRows:
    """The rows as keys."""
    count = len(keys)
    nulls: list[Ints] = [np.zeros(count, np.int64) for _ in range(-(-len(types) // _BITS))]
    found: list[Ints] = []
    tails: list[tuple[Ints, Bytes]] = []
    for number, (value, kind) in enumerate(zip(values, types, strict=True)):
        absent = np.zeros(0, bool)
        if len(value.valid):
            absent = value.valid == 0
            nulls[number // _BITS][absent] |= 1 << number % _BITS
        for word in _words(value, kind):
            if len(absent):
                word[absent] = 0
            found.append(word)
        if kind.kind == "bytes":
            if value.data is None:
                raise Impossible("bytes without their data")
            spans = value.values.copy()
            if len(absent):
                spans[absent, 1] = 0
            tails.append((spans, value.data))
    if not nulls:
        return keys
    longer = keys.extended(*nulls, *found)
    if tails:
        own = [(keys.spans, keys.tail)] if len(keys.spans) else []
        longer.spans, longer.tail = _one_run([*own, *tails], count)
    return longer


def values_of(rows: KeyRows, types: Sequence[AtomicType]) -> list[Values]:
    """The values that ``content`` put behind the keys."""
    own = rows.words.shape[1] - words(types)
    bits = rows.words[:, own : own - (-len(types) // _BITS)]
    at, found = own + bits.shape[1], []
    start: Ints = rows.spans[:, 0] + rows.spans[:, 1]
    for first in _byte_words(types, at):
        start -= rows.words[:, first]
    for number, kind in enumerate(types):
        valid = (bits[:, number // _BITS] >> (number % _BITS) & 1 == 0).astype(np.uint8)
        valid = NO_BYTES if valid.all() else valid
        word = np.ascontiguousarray(rows.words[:, at])
        if kind.kind == "bytes":
            found.append(Values(np.stack([start, word], axis=1), valid, rows.tail))
            start = start + word
            at += 2
        elif kind.kind == "decimal":
            found.append(Values(np.ascontiguousarray(rows.words[:, at : at + 2]), valid))
            at += 2
        else:
            found.append(Values(word.view(np.float64) if kind.kind == "float" else word, valid))
            at += 1
    return found


def keys_of(rows: KeyRows, types: Sequence[AtomicType], *, tail: bool) -> KeyRows:
    """The keys that ``content`` made longer; ``tail`` says whether they have one."""
    keys = rows.shortened(words(types))
    if not tail:
        keys.spans, keys.tail = NO_SPANS, NO_BYTES
    elif tailed(types):
        keys.spans = rows.spans.copy()
        first = rows.words.shape[1] - words(types) - (-len(types) // _BITS)
        for at in _byte_words(types, first):
            keys.spans[:, 1] -= rows.words[:, at]
    return keys


def same(keys: KeyRows) -> tuple[Ints, Table]:
    """Equal keys get equal numbers, in order of first appearance; and a table that finds the numbers of others."""
    layout = Layout(keys.words.shape[1], bool(len(keys.spans)), ())
    table = Table(layout, max(SMALLEST, len(keys)))
    return table.place(keys, 1).slots, table


def settled(numbers: Ints, sign: Array) -> Array:
    """Which of an epoch's signed rows are left when equal ones of both signs have cancelled out, the first of each."""
    up, down = np.bincount(numbers[sign > 0]), np.bincount(numbers[sign < 0])
    common = np.zeros(int(numbers.max(initial=-1)) + 1, np.int64)
    shared = min(len(up), len(down))
    common[:shared] = np.minimum(up[:shared], down[:shared])
    if not common.any():
        return np.ones(len(numbers), bool)
    return nth(2 * numbers + (sign > 0)) >= common[numbers]


def nth(numbers: Ints) -> Ints:
    """How many of the same number stand before each."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(order) else order
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    return found


def _byte_words(types: Sequence[AtomicType], at: int) -> list[int]:
    """Where the lengths of bytes stand, if the first value's words stand ``at``."""
    found = []
    for kind in types:
        if kind.kind == "bytes":
            found.append(at)
        at += 1 if kind.kind in ("int", "float") else 2
    return found


def _words(value: Values, kind: AtomicType) -> list[Ints]:
    """Copies that may be written."""
    if kind.kind == "decimal":
        return [value.values[:, 0].copy(), value.values[:, 1].copy()]
    if kind.kind == "float":
        floats = value.values + 0.0
        floats[np.isnan(floats)] = np.nan
        return [floats.view(np.int64)]
    if kind.kind == "bytes":
        if value.data is None:
            raise Impossible("bytes without their data")
        hashes = np.empty(len(value.values), np.int64)
        hash_spans(np.ascontiguousarray(value.values), value.data, hashes)
        return [value.values[:, 1].copy(), hashes]
    return [value.values.copy()]


def _one_run(tails: Sequence[tuple[Ints, Bytes]], count: int) -> tuple[Ints, Bytes]:
    """Several columns' bytes, row after row in one run."""
    lengths = np.stack([spans[:, 1] for spans, _ in tails])
    total = lengths.sum(axis=0)
    start = np.cumsum(total) - total
    merged, at = np.empty(int(total.sum()), np.uint8), start.copy()
    for (spans, data), length in zip(tails, lengths, strict=True):
        copy_spans(np.ascontiguousarray(spans), data, at, merged)
        at += length
    return np.stack([start, total], axis=1), merged
