"""Checkpoint packs: any slice alone, all of it checked."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from holdfast.errors import CorruptionError, FormatError, StoreError
from holdfast.log import frames
from holdfast.log.pack import Pack, PackWriter, SliceState, pack_name, parse_pack_name
from holdfast.log.records import Fence
from holdfast.log.store import Store


def state(slice: int, rows: int) -> pa.Table:
    return pa.table({"key": [f"k{slice}-{i}" for i in range(rows)], "count": pa.array(range(rows), pa.int64())})


def packed(*states: SliceState, compression: str | None = "zstd") -> bytes:
    writer = PackWriter(compression)
    parts = [part for one in states for part in writer.add(*one)]
    return b"".join(parts + writer.finish())


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.integers(0, 3) | st.text(max_size=3), st.integers(0, 200)), st.integers(0, 50), max_size=8
    ),
    st.sampled_from([None, "lz4", "zstd"]),
)
def test_every_slice_comes_back(sizes: dict[tuple[Any, int], int], compression: str | None) -> None:
    states = [SliceState(stage, slice, 7 + slice, state(slice, rows)) for (stage, slice), rows in sizes.items()]
    pack = Pack.of(packed(*states, compression=compression), "p")
    assert pack.verify() == len(states)
    assert set(pack.entries) == set(sizes)
    for stage, slice, epoch, rows in states:
        assert pack.slice(stage, slice).equals(rows)
        assert (pack.entries[stage, slice].epoch, pack.entries[stage, slice].rows) == (epoch, rows.num_rows)


class Watched(Store):
    """Counts the bytes that are really asked for."""

    taken = 0

    def read_range(self, name: str, offset: int, length: int) -> pa.Buffer:
        self.taken += length
        return super().read_range(name, offset, length)


def test_a_reader_takes_only_the_slices_it_wants(tmp_path: Path) -> None:
    name = pack_name(Fence(1, 40, 0), "c1")
    states = [SliceState(0, slice, 40, state(slice, 5000)) for slice in range(32)]
    size = PackWriter().write(Store(str(tmp_path)), name, iter(states))
    store = Watched.on(fs.LocalFileSystem(), str(tmp_path))
    assert isinstance(store, Watched)
    assert size == store.size(name) > 300_000
    pack = Pack.open(store, name)
    assert pack.slice(0, 3).equals(state(3, 5000))
    assert store.taken < size / 2
    assert pack.verify() == 32
    assert store.taken > size
    assert Pack.open(Store(str(tmp_path)), name).slice(0, 31).equals(state(31, 5000))
    with pytest.raises(StoreError, match="has no slice 99 of stage 0"):
        pack.slice(0, 99)


def test_a_pack_cut_or_altered_anywhere_is_known_or_reads_the_same() -> None:
    data = packed(SliceState(0, 1, 5, state(1, 3)), SliceState("b", 2, 5, state(2, 2)))

    def read(data: bytes) -> list[dict[str, Any]]:
        pack = Pack.of(data, "p")
        return [row for key in pack.entries for row in pack.slice(*key).to_pylist()]

    rows = read(data)
    assert len(rows) == 5
    for end in range(len(data)):
        with pytest.raises(CorruptionError):
            Pack.of(data[:end], "p")
    for flip in (0x01, 0xFF):
        for at in range(len(data)):
            altered = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
            with contextlib.suppress(CorruptionError):
                assert read(altered) == rows


def test_verify_finds_damage_that_nobody_has_read_yet(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    PackWriter(None).write(store, "checkpoint/a.pack", [SliceState(0, s, 5, state(s, 9000)) for s in range(4)])
    path = tmp_path / "checkpoint/a.pack"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    pack = Pack.open(store, "checkpoint/a.pack")
    assert pack.slice(0, 0).num_rows == 9000
    with pytest.raises(CorruptionError, match=r"checkpoint/a.pack: frame [12] is not what was written \(bytes"):
        pack.verify()


def test_a_newer_format_is_refused_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(frames, "FORMAT", 9)
        data = packed()
    with pytest.raises(FormatError, match="format 9; this one knows 4"):
        Pack.of(data, "p")


def test_a_slice_is_in_a_pack_once() -> None:
    with pytest.raises(ValueError, match="in the pack already"):
        packed(SliceState(0, 1, 5, state(1, 3)), SliceState(0, 1, 5, state(1, 3)))


def test_names_say_epoch_fence_and_container() -> None:
    name = pack_name(Fence(3, 42, 1), "c-1")
    assert name == "checkpoint/0000000042-3-1-c-1.pack"
    assert parse_pack_name(name) == (Fence(3, 42, 1), "c-1")
    assert parse_pack_name("checkpoint/0000000042.complete") is None
