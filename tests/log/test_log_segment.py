"""Segments: what goes in comes out, in order; what was altered never does."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from holdfast.errors import CorruptionError, FormatError
from holdfast.log import frames, segment
from holdfast.log.records import Fence
from holdfast.log.segment import CHUNK_ROWS, Segment, SegmentWriter, parse_segment_name, segment_name
from holdfast.log.store import Store

VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.bool_(), st.booleans()),
    (pa.decimal128(20, 3), st.decimals(-1000, 1000, places=3)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
    (pa.list_(pa.int32()), st.lists(st.integers(0, 9), max_size=3)),
    (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.text(max_size=2)}),
    ),
]


@st.composite
def blocks(draw: st.DrawFn) -> tuple[int, list[tuple[int, pa.RecordBatch, np.ndarray]]]:
    slices = draw(st.sampled_from([1, 3, 128, 256, 257, 32768]))
    columns = {
        n: draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=4)) for n in range(draw(st.integers(1, 3)))
    }
    found = []
    for _ in range(draw(st.integers(0, 5))):
        number = draw(st.sampled_from(sorted(columns)))
        rows = draw(st.integers(0, 12))
        arrays = []
        for kind, values in columns[number]:
            some = values if draw(st.booleans()) else st.none() | values
            arrays.append(pa.array(draw(st.lists(some, min_size=rows, max_size=rows)), kind))
        batch = pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])
        cut = draw(st.integers(0, rows))  # offsets other than 0 are what Spark's slices look like
        where = draw(st.lists(st.integers(0, slices - 1), min_size=rows, max_size=rows))
        found.append((number, batch.slice(cut), np.array(where[cut:], np.int64)))
    return slices, found


def rows_by_slice(chunks: Any) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        rows = chunk.rows.to_pylist()
        assert len(rows) == chunk.bounds[-1]
        assert list(chunk.slices) == sorted(set(chunk.slices))
        for number, start, end in zip(chunk.slices, chunk.bounds, chunk.bounds[1:], strict=False):
            found.setdefault(int(number), []).extend(rows[start:end])
    return found


def expected(given: list[tuple[int, pa.RecordBatch, np.ndarray]], input: int) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for number, batch, where in given:
        if number == input:
            for row, at in zip(batch.to_pylist(), where, strict=True):
                found.setdefault(int(at), []).append(row)
    return found


@settings(max_examples=150, deadline=None)
@given(blocks(), st.booleans(), st.sampled_from([1, 3, CHUNK_ROWS]))
def test_every_row_comes_back_in_its_slice_and_in_order(
    made: tuple[int, list[tuple[int, pa.RecordBatch, np.ndarray]]], as_table: bool, chunk_rows: int
) -> None:
    slices, given = made
    writer = SegmentWriter(slices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "CHUNK_ROWS", chunk_rows)
        pushed = []
        for number, batch, where in given:
            rows = pa.Table.from_batches([batch.slice(0, 1), batch.slice(1)]) if as_table else batch
            pushed += writer.append(number, rows, where)
    data = writer.to_bytes()
    found = Segment.open(data, "s")
    assert found.nbytes == writer.nbytes == len(data)
    assert found.checksum == writer.checksum
    assert found.slices == slices
    assert found.rows == writer.rows == found.verify() == sum(len(where) for _, _, where in given)
    assert set(found.inputs) == {number for number, batch, _ in given if batch.num_rows}
    for number in (0, 1, 2):
        want = expected(given, number)
        assert rows_by_slice(found.chunks(number)) == want
        assert rows_by_slice(c for c in pushed if c.input == number) == want
        assert rows_by_slice(c for c in writer.chunks() if c.input == number) == want


def block(rows: int, slices: int, seed: int = 0) -> tuple[pa.RecordBatch, np.ndarray]:
    rng = np.random.default_rng(seed)
    where = rng.integers(0, slices, rows)
    batch = pa.record_batch(
        {"at": pa.array(range(rows)), "name": [f"n{i % 7}" if i % 5 else None for i in range(rows)]}
    )
    return batch, where


def test_chunks_hold_whole_slices_and_are_neither_small_nor_many() -> None:
    writer = SegmentWriter(64)
    chunks = writer.append(0, *block(50_000, 64))
    assert len(chunks) == 50_000 // (CHUNK_ROWS + 800)
    assert all(chunk.rows.num_rows >= CHUNK_ROWS for chunk in chunks)
    seen = [number for chunk in chunks for number in chunk.slices]
    assert seen == sorted(set(seen)) == list(range(64))
    assert (chunks[0].first_slice, chunks[-1].last_slice) == (0, 63)
    assert len(writer.append(0, *block(100, 64))) == 1


def test_only_wanted_slices_are_read(tmp_path: Path) -> None:
    writer = SegmentWriter(64)
    batch, where = block(60_000, 64)
    for start in (0, 30_000):
        writer.append(2, batch.slice(start, 30_000), where[start : start + 30_000])
    Store(str(tmp_path)).write("log/a.seg", writer.parts())
    wanted = np.zeros(64, bool)
    wanted[[5, 40]] = True
    every = expected([(2, batch, where)], 2)
    for store in (Store(str(tmp_path)), Store.on(fs.LocalFileSystem(), str(tmp_path))):
        found = Segment.at(store, "log/a.seg")
        chunks = list(found.chunks(2, wanted))
        assert len(chunks) == 4
        assert sum(chunk.rows.num_rows for chunk in chunks) < 25_000
        rows = rows_by_slice(chunks)
        assert rows[5] == every[5]
        assert rows[40] == every[40]
        assert list(found.chunks(2, np.zeros(64, bool))) == list(found.chunks(1)) == []


def test_damage_to_an_unwanted_slice_does_not_matter_and_to_a_wanted_one_is_named() -> None:
    writer = SegmentWriter(64)
    batch, where = block(30_000, 64)
    writer.append(0, batch, where)
    data = bytearray(writer.to_bytes())
    data[100_000] ^= 1
    found = Segment.open(bytes(data), "log/x.seg")
    errors: list[CorruptionError] = []
    good = 0
    every = expected([(0, batch, where)], 0)
    for number in range(64):
        wanted = np.zeros(64, bool)
        wanted[number] = True
        try:
            rows = rows_by_slice(found.chunks(0, wanted))
        except CorruptionError as error:
            errors.append(error)
        else:
            good += 1
            assert rows[number] == every[number]
    assert good > len(errors) > 0
    for error in errors:
        place = re.search(r"log/x.seg: frame \d+ is .* \(bytes (\d+) to (\d+) of \d+\)", str(error))
        assert place
        assert int(place[1]) <= 100_000 < int(place[2])
    with pytest.raises(CorruptionError):
        found.verify()


def small() -> tuple[bytes, dict[int, Any]]:
    writer = SegmentWriter(4)
    for number in range(2):
        rows = pa.record_batch({"a": [1, 2, 3], "b": ["x", None, "z"], "c": [Decimal("1.5"), None, Decimal("2.5")]})
        writer.append(number, rows, np.array([3, 1, 3]))
    return writer.to_bytes(), read_all(writer.to_bytes())


def read_all(data: bytes) -> dict[int, Any]:
    found = Segment.open(data, "s")
    return {number: rows_by_slice(found.chunks(number)) for number in found.inputs}


def test_a_segment_cut_anywhere_is_known() -> None:
    data, _ = small()
    for end in range(len(data)):
        with pytest.raises(CorruptionError):
            Segment.open(data[:end], "s")
    with pytest.raises(CorruptionError):
        Segment.open(data + b"\0", "s")


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_segment_with_any_byte_altered_is_known_or_reads_the_same(flip: int) -> None:
    data, rows = small()
    harmless = 0
    for at in range(len(data)):
        altered = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
        try:
            found = read_all(altered)
        except CorruptionError:
            continue
        assert found == rows
        harmless += 1
    assert harmless < len(data) // 4  # the padding between frames


def test_a_newer_format_is_refused_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(frames, "FORMAT", 9)
        data = SegmentWriter(4).to_bytes()
    with pytest.raises(FormatError, match=r"s was written by a newer Holdfast \(format 9; this one knows 4\)"):
        Segment.open(data, "s")


def test_dictionaries_become_their_values() -> None:
    writer = SegmentWriter(2)
    rows = pa.record_batch({"d": pa.array(["a", "b", "a"]).dictionary_encode()})
    writer.append(0, rows, np.array([1, 0, 1]))
    found = Segment.open(writer.to_bytes(), "s")
    assert found.schema(0).field("d").type == pa.string()
    assert rows_by_slice(found.chunks(0)) == {0: [{"d": "b"}], 1: [{"d": "a"}, {"d": "a"}]}


def test_what_a_caller_may_not_do() -> None:
    writer = SegmentWriter(4)
    rows = pa.record_batch({"a": [1, 2]})
    for where in ([0, 4], [-1, 0]):
        with pytest.raises(ValueError, match="outside 0 to 3"):
            writer.append(0, rows, np.array(where))
    with pytest.raises(ValueError, match="2 rows, but 1"):
        writer.append(0, rows, np.array([0]))
    writer.append(0, rows, np.array([0, 1]))
    with pytest.raises(ValueError, match="has had schema"):
        writer.append(0, pa.record_batch({"a": ["x"]}), np.array([0]))
    nested = pa.record_batch({"a": pa.array([[1]], pa.list_(pa.dictionary(pa.int8(), pa.int64())))})
    with pytest.raises(ValueError, match="dictionary inside"):
        writer.append(1, nested, np.array([0]))
    writer.parts()
    with pytest.raises(ValueError, match="closed"):
        writer.append(0, rows, np.array([0, 1]))
    with pytest.raises(ValueError, match="may be 1 to 32768"):
        SegmentWriter(32769)


def test_names_sort_by_epoch_and_say_who_wrote_them() -> None:
    name = segment_name(Fence(3, 42, 0), 1, 2, 17)
    assert name == "log/0000000042.1-3-0-00002-17.seg"
    for spelt in (name, name.removeprefix("log/"), f"store/{name}"):
        parsed = parse_segment_name(spelt)
        assert parsed is not None
        assert (parsed.fence, parsed.level, parsed.partition, parsed.task) == (Fence(3, 42, 0), 1, 2, 17)
    assert parse_segment_name("log/0000000042.1") is None
    assert segment_name(Fence(9, 9, 9), 2, 0, 0) < segment_name(Fence(1, 10, 0), 1, 0, 0)


def test_a_worker_that_writes_segments_imports_nothing_slow() -> None:
    script = """
import sys, tempfile, numpy as np, pyarrow as pa
from holdfast.log.segment import Segment, SegmentWriter
from holdfast.log.store import Store
writer = SegmentWriter(2)
numbers = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(np.array([1, 2]))])
words = numbers.cast(pa.string())  # pa.array would import pandas itself
writer.append(0, pa.RecordBatch.from_arrays([numbers, words], ["a", "b"]), np.array([1, 0], np.int32))
with tempfile.TemporaryDirectory() as folder:
    store = Store(folder)
    store.write("log/a", writer.parts())
    assert len(list(Segment.at(store, "log/a").chunks(0))) == 1
print(sorted({"pandas", "numba", "pyspark", "pyarrow.fs"} & set(sys.modules)))
"""
    env = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
