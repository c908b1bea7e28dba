"""Checkpoint packs: one file per container and checkpoint, with all its slices of all stages inside.

Each slice's state is an Arrow IPC stream in a frame of its own, compressed on its own, so that whoever
recovers some slices reads the index and then just those. A file per slice would be simpler and, at 128
slices and more a stage, far too many files for an object store. Packs are written as a stream: one slice in
memory at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from holdfast.errors import CorruptionError, StoreError
from holdfast.log.files import Part
from holdfast.log.frames import FrameFile, FrameWriter
from holdfast.log.records import Fence
from holdfast.log.store import Store

_KIND = b"pack"
_NAME = re.compile(r"(?:.*/)?(\d{10,})-(\d+)-(\d+)-(.+)\.pack")

Stage = int | str


class SliceState(NamedTuple):
    """The state of one slice of one stage at one epoch, to be written."""

    stage: Stage
    slice: int
    epoch: int
    rows: pa.RecordBatch | pa.Table


class Entry(NamedTuple):
    """What the index says about a slice."""

    frame: int
    epoch: int
    rows: int


def pack_name(fence: Fence, container: str) -> str:
    """``checkpoint/<epoch>-<incarnation>-<attempt>-<container>.pack``"""
    return f"checkpoint/{fence.epoch:010d}-{fence.incarnation}-{fence.attempt}-{container}.pack"


def parse_pack_name(name: str) -> tuple[Fence, str] | None:
    """The fence and the container that a pack's name says; None if it is no pack's name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return Fence(int(match[2]), int(match[1]), int(match[3])), match[4]


class PackWriter:
    """Lays a pack out. ``write`` streams it to a store, ``parts`` is what it streams."""

    def __init__(self, compression: str | None = "zstd") -> None:
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        self._frames = FrameWriter(_KIND)
        self._index: dict[tuple[Stage, int], Entry] = {}

    def add(self, stage: Stage, slice: int, epoch: int, rows: pa.RecordBatch | pa.Table) -> list[Part]:
        if (stage, slice) in self._index:
            raise ValueError(f"slice {slice} of stage {stage} is in the pack already")
        self._index[stage, slice] = Entry(len(self._frames), epoch, rows.num_rows)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema, options=self._options) as stream:
            stream.write(rows)
        return self._frames.add(sink.getvalue())

    def finish(self) -> list[Part]:
        return self._frames.finish({"slices": [[*key, *entry] for key, entry in self._index.items()]})

    def parts(self, states: Iterable[SliceState]) -> Iterator[Part]:
        """The whole pack, one slice in memory at a time."""
        for state in states:
            yield from self.add(*state)
        yield from self.finish()

    def write(self, store: Store, name: str, states: Iterable[SliceState]) -> int:
        """Write all of it, synced; the number of bytes."""
        return store.write(name, self.parts(states))


class Pack:
    """A pack to read. Opening it checks foot and index; each slice is checked as it is taken."""

    def __init__(self, frames: FrameFile) -> None:
        self._frames = frames
        self.name = frames.name
        self.checksum = frames.checksum
        self.entries: dict[tuple[Stage, int], Entry] = {
            (stage, slice): Entry(*entry) for stage, slice, *entry in frames.meta["slices"]
        }

    @staticmethod
    def open(store: Store, name: str) -> Pack:
        """From a store: mapped when that is local, else by ranged reads of only what is asked for."""
        return Pack(FrameFile.at(store, name, _KIND))

    @staticmethod
    def of(source: pa.Buffer | bytes, name: str) -> Pack:
        return Pack(FrameFile.of(source, name, _KIND))

    def slice(self, stage: Stage, slice: int) -> pa.Table:
        entry = self.entries.get((stage, slice))
        if entry is None:
            raise StoreError(f"{self.name} has no slice {slice} of stage {stage}")
        rows = pa.ipc.open_stream(self._frames.frame(entry.frame)).read_all()
        if rows.num_rows != entry.rows:
            raise CorruptionError(
                f"{self.name}: slice {slice} of stage {stage} has {rows.num_rows} rows, not {entry.rows}"
            )
        return rows

    def nbytes(self, stage: Stage, slice: int) -> int:
        """How much of the file a slice is."""
        return self._frames.length(self.entries[stage, slice].frame)

    def verify(self) -> int:
        """Read every frame and its checksum; the number of slices."""
        self._frames.verify()
        return len(self.entries)
