"""Rows in pieces: cut apart, changed, merged in any shape, they are the table they came from, bit for bit."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CorruptionError
from holdfast.operators.aggregate import AggregateSpec, Column, StageSpec
from holdfast.safety.shards import bounds
from holdfast.state import copies, merging
from holdfast.state.table_slice import TableSlice

OPERATOR = StageSpec(
    (Column("k", "string"),),
    (AggregateSpec("n", "count", None, None), AggregateSpec("most", "max", "v0", "string")),
).build()
(LAYOUT,) = OPERATOR.layouts


def advanced(state: TableSlice, keys: list[int]) -> None:
    texts = pa.array([f"key {key}" for key in keys])
    hashed = pa.array([(key * 0x9E3779B97F4A7C15) % (1 << 64) - (1 << 63) for key in keys], pa.int64())
    rows = pa.record_batch({"_h": hashed, "k0": texts, "v0": pa.array([str(key % 7) * (key % 5) for key in keys])})
    state.apply(state.epoch + 1, OPERATOR.decode(rows))


def full(state: TableSlice) -> pa.RecordBatch:
    return state.delta(0, state.epoch)


def pieces(part: pa.RecordBatch, count: int) -> list[pa.RecordBatch]:
    plain = part.replace_schema_metadata(None)
    found = dict(merging.cut(plain, bounds(count)))
    return [found.get(place, plain.slice(0, 0)) for place in range(count)]


def tree(streams: list[list[pa.RecordBatch]], chance: random.Random) -> list[pa.RecordBatch]:
    """Merged in some shape: neighbours first, then those, until one is left."""
    while len(streams) > 1:
        size = chance.randint(2, 3)
        groups = [streams[at : at + size] for at in range(0, len(streams), size)]
        streams = [list(merging.merged(iter(one) for one in group)) for group in groups]
    return streams[0]


@settings(max_examples=60, deadline=None)
@given(
    epochs=st.lists(st.lists(st.integers(0, 60), max_size=80), min_size=1, max_size=5),
    count=st.integers(1, 6),
    chunk=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_pieces_put_together_are_the_table(epochs: list[list[int]], count: int, chunk: int, seed: int) -> None:
    state, chance = OPERATOR.new_slice(), random.Random(seed)
    layers: list[list[pa.RecordBatch]] = []  # saved after the first epoch and after some others: full, then deltas
    base = 0
    for number, keys in enumerate(epochs, start=1):
        advanced(state, keys)
        if number in (1, len(epochs)) or chance.random() < 0.5:
            layers.append(pieces(state.delta(base, state.epoch), count))
            base = state.epoch
    streams = []
    for place in range(count):
        rows = merging.collapsed([layer[place] for layer in layers])
        streams.append([rows.slice(at, chunk) for at in range(0, rows.num_rows, chunk)])
    chance.shuffle(streams)
    header = copies.header_of(full(state))
    assembly = copies.Assembly(LAYOUT, state.epoch, header.rows, header.purged_at)
    for part in tree(streams, chance):
        assembly.add(part)
    assert assembly.whole
    again = OPERATOR.new_slice()
    again.activate([assembly.loader()])
    assert full(again).equals(full(state))
    advanced(state, [1, 2, 99])
    advanced(again, [1, 2, 99])
    assert full(again).equals(full(state)), "it goes on as the original does"


def test_a_merged_stream_is_in_the_order_of_slots() -> None:
    state = OPERATOR.new_slice()
    advanced(state, list(range(500)))
    parts = [[rows.slice(at, 37) for at in range(0, rows.num_rows, 37)] for rows in pieces(full(state), 4)]
    slots = [slot for rows in merging.merged(map(iter, parts)) for slot in rows.column("slot").to_pylist()]
    assert slots == list(range(500))


def test_loose_rows_are_all_there_in_chunks_that_are_neither_small_nor_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "CHUNK_ROWS", 40)
    state = OPERATOR.new_slice()
    advanced(state, list(range(500)))
    whole = full(state).replace_schema_metadata(None)
    parts = [whole.slice(start, stop - start) for start, stop in ((0, 3), (3, 10), (10, 10), (10, 400), (400, 500))]
    found = list(merging.loose(parts))
    assert all(rows.num_rows <= 40 for rows in found)
    assert sum(rows.num_rows < 20 for rows in found) <= 2, "what was left of small ones, and the end of a large one"
    slots = sorted(slot for rows in found for slot in rows.column("slot").to_pylist())
    assert slots == list(range(500))
    assert list(merging.loose(parts[2:3])) == []


def test_rows_may_come_twice_but_none_may_be_missing_or_foreign() -> None:
    state = OPERATOR.new_slice()
    advanced(state, list(range(50)))
    first, second = pieces(full(state), 2)
    assembly = copies.Assembly(LAYOUT, 1, 50, 0)
    assembly.add(first)
    assembly.add(first)
    assert not assembly.whole
    with pytest.raises(AssertionError, match="rows are missing"):
        assembly.loader()
    with pytest.raises(CorruptionError, match="more rows"):
        copies.Assembly(LAYOUT, 1, 10, 0).add(second)
    with pytest.raises(CorruptionError, match="other columns"):
        assembly.add(second.drop_columns(["a0"]))
    assembly.add(second)
    again = OPERATOR.new_slice()
    again.activate([assembly.loader()])
    assert full(again).equals(full(state))
