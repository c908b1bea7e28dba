"""Segments: the rows that one intake task read for one level of an epoch, of all inputs, sorted by slice.

Each block that arrives is sorted by slice on its own (stable, so rows of one slice stay in order), then cut
at slice boundaries into chunks of a few thousand rows, each an Arrow record batch message in a frame. A
reader that owns some of the slices takes only the chunks they are in. Sorting all blocks into one would
give longer runs to read, but hold every row twice and start writing only at the end; blocks of Spark's size
give chunks that are long enough.

Rows of a slice come in the order of ``append``, then of position. That order is part of what an epoch is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.invariants import Impossible
from holdfast.log.files import Part
from holdfast.log.frames import FrameFile, FrameWriter
from holdfast.log.records import Fence
from holdfast.log.store import Store

CHUNK_ROWS = 4096
MAX_SLICES = 32768
_KIND = b"segm"
_CHUNK = np.dtype([("input", "<u2"), ("frame", "<u4"), ("entries", "<u4")])
_ENTRY = np.dtype([("slice", "<u2"), ("rows", "<u4")])
_NAME = re.compile(r"(?:.*/)?(\d{10,})\.(\d+)-(\d+)-(\d+)-(\d{5,})-(\d+)\.seg")

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SegmentName:
    fence: Fence
    level: int
    partition: int
    task: int


def segment_name(fence: Fence, level: int, partition: int, task: int) -> str:
    """``log/<epoch>.<level>-<incarnation>-<attempt>-<partition>-<taskAttemptId>.seg``: the epoch leads, so
    that a listing is sorted by it."""
    who = f"{fence.incarnation}-{fence.attempt}-{partition:05d}-{task}"
    return f"log/{fence.epoch:010d}.{level}-{who}.seg"


def parse_segment_name(name: str) -> SegmentName | None:
    """What a segment's name says; None if it is no segment's name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    epoch, level, incarnation, attempt, partition, task = map(int, match.groups())
    return SegmentName(Fence(incarnation, epoch, attempt), level, partition, task)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Whole slices of a block of one input: rows ``bounds[i]`` to ``bounds[i + 1]`` are of ``slices[i]``."""

    input: int
    rows: pa.RecordBatch
    slices: IntArray
    bounds: IntArray

    @property
    def first_slice(self) -> int:
        return int(self.slices[0])

    @property
    def last_slice(self) -> int:
        return int(self.slices[-1])

    def only(self, wanted: npt.NDArray[np.bool_]) -> Chunk:
        """The rows of wanted slices, copied, so that the others need not stay in memory for their sake."""
        mine = wanted[self.slices]
        lengths = np.diff(self.bounds)
        rows = np.flatnonzero(np.repeat(mine, lengths))
        return Chunk(
            self.input, _take(self.rows, rows), self.slices[mine], np.concatenate(([0], np.cumsum(lengths[mine])))
        )


class SegmentWriter:
    """Collects the rows of one task, serialised; ``parts`` closes it."""

    def __init__(self, slices: int) -> None:
        if not 0 < slices <= MAX_SLICES:
            raise ValueError(f"{slices} slices: there may be 1 to {MAX_SLICES}")
        self.slices = slices
        self.rows = 0
        self._narrow = np.dtype(np.uint8 if slices <= 256 else np.uint16)  # numpy sorts 8 and 16 bits by radix
        self._frames = FrameWriter(_KIND)
        self._parts: list[Part] = []
        self._nbytes_taken = 0
        self._closed = False
        self._schemas: dict[int, tuple[int, pa.Schema]] = {}
        self._rows_of: dict[int, int] = {}
        self._chunks: list[tuple[int, int, int]] = []
        self._messages: list[pa.Buffer | None] = []
        self._entries: list[npt.NDArray[np.void]] = []

    @property
    def inputs(self) -> tuple[int, ...]:
        """Those that have rows in it."""
        return tuple(self._schemas)

    @property
    def nbytes(self) -> int:
        """Bytes so far; of the whole file, once closed."""
        return self._frames.nbytes

    @property
    def nbytes_held(self) -> int:
        """Bytes that were not taken yet."""
        return self._frames.nbytes - self._nbytes_taken

    @property
    def checksum(self) -> int:
        """Stands for the whole content; what ``Segment.checksum`` is when it is read."""
        self._close()
        if self._frames.checksum is None:
            raise Impossible("a segment that is not finished has no checksum")
        return self._frames.checksum

    def append(self, input: int, rows: pa.RecordBatch | pa.Table, slice_of_row: npt.NDArray[Any]) -> list[Chunk]:
        """Add a block of rows of an input. Returns its chunks, the same rows again, for pushing."""
        if rows.num_rows != len(slice_of_row):
            raise ValueError(f"{rows.num_rows} rows, but {len(slice_of_row)} slice numbers")
        if self._closed:
            raise ValueError("the segment is closed")
        batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.combine_chunks().to_batches()
        chunks: list[Chunk] = []
        start = 0
        for batch in batches:
            end = start + batch.num_rows
            if end > start:
                chunks += self._append(input, _without_dictionaries(batch), slice_of_row[start:end])
            start = end
        return chunks

    def _append(self, input: int, rows: pa.RecordBatch, slice_of_row: npt.NDArray[Any]) -> list[Chunk]:
        if slice_of_row.min() < 0 or slice_of_row.max() >= self.slices:
            raise ValueError(f"a slice number is outside 0 to {self.slices - 1}")
        self._know(input, rows.schema)
        numbers = slice_of_row.astype(self._narrow, copy=False)
        order = np.argsort(numbers, kind="stable")
        counts = np.bincount(numbers, minlength=self.slices)
        present = np.flatnonzero(counts)
        counts = counts[present]
        ends = np.cumsum(counts)
        rows = _take(rows, order)
        chunks: list[Chunk] = []
        for first, last in _cuts(ends):
            start = int(ends[first - 1]) if first else 0
            bounds = np.concatenate(([0], ends[first:last] - start))
            batch = rows.slice(start, int(bounds[-1]))
            message = batch.serialize()
            entries = np.empty(last - first, _ENTRY)
            entries["slice"] = present[first:last]
            entries["rows"] = counts[first:last]
            self._chunks.append((input, len(self._frames), last - first))
            self._entries.append(entries)
            self._messages.append(message)
            self._parts += self._frames.add(message)
            chunks.append(Chunk(input, batch, present[first:last], bounds))
        self.rows += rows.num_rows
        self._rows_of[input] = self._rows_of.get(input, 0) + rows.num_rows
        return chunks

    def chunks(self) -> Iterator[Chunk]:
        """Every chunk that is still held, in write order, read from the serialised bytes without a copy."""
        for (input, _, _), message, entries in zip(self._chunks, self._messages, self._entries, strict=True):
            if message is None:
                continue
            yield _chunk(input, message, self._schemas[input][1], entries)

    def parts(self) -> list[Part]:
        """The file, or what of it was not taken yet, as buffers to be written one behind the other. Closes it."""
        self._close()
        return self._parts

    def take_parts(self) -> list[Part]:
        """What can be written already. For a task too large to be held: its chunks are not kept for a push either."""
        taken, self._parts = self._parts, []
        self._nbytes_taken = self._frames.nbytes
        self._messages = [None] * len(self._messages)
        return taken

    def to_bytes(self) -> bytes:
        """The file in one piece, for rows that travel inside the tag and end up inside ``prepare``."""
        return b"".join(self.parts())

    def _know(self, input: int, schema: pa.Schema) -> None:
        if input not in self._schemas:
            self._schemas[input] = (len(self._frames), schema)
            self._parts += self._frames.add(schema.serialize())
        elif not self._schemas[input][1].equals(schema):
            raise ValueError(f"input {input} has had schema\n{self._schemas[input][1]}\nand now has\n{schema}")

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        entries = np.concatenate(self._entries) if self._entries else np.empty(0, _ENTRY)
        self._parts += self._frames.add(np.array(self._chunks, _CHUNK).tobytes(), entries.tobytes())
        inputs = [[input, frame, self._rows_of[input]] for input, (frame, _) in self._schemas.items()]
        self._parts += self._frames.finish(
            {"slices": self.slices, "rows": self.rows, "inputs": inputs, "chunks": len(self._chunks)}
        )


class Segment:
    """A segment to read. Opening it checks foot, index and directory; taking a chunk checks the chunk."""

    def __init__(self, frames: FrameFile) -> None:
        self._frames = frames
        self.name = frames.name
        self.checksum = frames.checksum
        self.nbytes = frames.size
        self.slices: int = frames.meta["slices"]
        self.rows: int = frames.meta["rows"]
        self.rows_of: dict[int, int] = {input: rows for input, _, rows in frames.meta["inputs"]}
        self._schema_frames: dict[int, int] = {input: frame for input, frame, _ in frames.meta["inputs"]}
        directory = frames.frame(len(frames) - 1)
        self._chunks = np.frombuffer(directory, _CHUNK, frames.meta["chunks"])
        self._entries = np.frombuffer(directory[self._chunks.nbytes :], _ENTRY)
        self._starts = np.concatenate(([0], np.cumsum(self._chunks["entries"], dtype=np.int64)))

    @staticmethod
    def open(source: pa.Buffer | bytes, name: str) -> Segment:
        return Segment(FrameFile.of(source, name, _KIND))

    @staticmethod
    def at(store: Store, name: str, *, mapped: bool = True) -> Segment:
        """From a store: mapped when that is local, else (or if not ``mapped``) by ranged reads of what is wanted."""
        return Segment(FrameFile.at(store, name, _KIND, mapped=mapped))

    @property
    def inputs(self) -> tuple[int, ...]:
        return tuple(self._schema_frames)

    def schema(self, input: int) -> pa.Schema:
        return pa.ipc.read_schema(self._frames.frame(self._schema_frames[input]))

    def nbytes_of(self, input: int) -> npt.NDArray[np.float64]:
        """About how many bytes of an input each slice has here, from the directory alone."""
        rows = self._entries["rows"].astype(np.float64)
        of_chunk = np.add.reduceat(rows, self._starts[:-1]) if len(rows) else rows
        width = self._frames.lengths[self._chunks["frame"]] / np.maximum(of_chunk, 1.0)
        mine = np.repeat(np.where(self._chunks["input"] == input, width, 0.0), self._chunks["entries"])
        return np.bincount(self._entries["slice"], weights=rows * mine, minlength=self.slices).astype(np.float64)

    def chunks(self, input: int, wanted: npt.NDArray[np.bool_] | None = None) -> Iterator[Chunk]:
        """The chunks of an input, in write order; with ``wanted`` (a flag per slice) only those that hold a
        wanted slice. Such a chunk comes whole, with its other slices."""
        if input not in self._schema_frames:
            return
        taken = self._chunks["input"] == input
        if wanted is not None:
            if len(wanted) != self.slices:
                raise ValueError(f"{len(wanted)} flags for {self.slices} slices")
            taken &= np.logical_or.reduceat(wanted[self._entries["slice"]], self._starts[:-1])
        numbers = np.flatnonzero(taken).tolist()
        if not numbers:
            return
        schema = self.schema(input)
        for number in numbers:
            entries = self._entries[self._starts[number] : self._starts[number + 1]]
            yield _chunk(input, self._frames.frame(int(self._chunks[number]["frame"])), schema, entries)

    def verify(self) -> int:
        """Read everything; the number of rows."""
        self._frames.verify()
        return self.rows


def _chunk(input: int, message: pa.Buffer, schema: pa.Schema, entries: npt.NDArray[np.void]) -> Chunk:
    bounds = np.concatenate(([0], np.cumsum(entries["rows"], dtype=np.int64)))
    return Chunk(input, pa.ipc.read_record_batch(message, schema), entries["slice"].astype(np.int64), bounds)


def _cuts(ends: IntArray) -> Iterator[tuple[int, int]]:
    """Runs of slices, given where each ends, with at least CHUNK_ROWS rows in each run; the last one takes
    what would be too little for a run of its own."""
    total = int(ends[-1])
    first = start = 0
    while start < total:
        last = int(np.searchsorted(ends, start + CHUNK_ROWS)) + 1
        if last > len(ends) or total - int(ends[last - 1]) < CHUNK_ROWS:
            last = len(ends)
        yield first, last
        first, start = last, int(ends[last - 1])


def _take(rows: pa.RecordBatch, order: IntArray) -> pa.RecordBatch:
    """Those rows, in that order. NumPy is faster than Arrow on columns of fixed width without nulls."""
    columns: list[pa.Array | None] = [_take_fixed(column, order) for column in rows.columns]
    rest = [number for number, column in enumerate(columns) if column is None]
    if rest:
        indices = pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])
        for number, column in zip(rest, rows.select(rest).take(indices).columns, strict=True):
            columns[number] = column
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema) if columns else rows


def _take_fixed(column: pa.Array, order: IntArray) -> pa.Array | None:
    kind = column.type
    primitive = pa.types.is_primitive(kind) and not pa.types.is_boolean(kind)
    if column.null_count or not (primitive or pa.types.is_decimal(kind)):
        return None
    width = kind.bit_width // 8
    dtype = np.dtype(f"u{width}" if width <= 8 else f"V{width}")
    values = np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * width)
    # from_buffers, because pa.array(ndarray) imports pandas, which takes a cold worker most of a second.
    return pa.Array.from_buffers(kind, len(order), [None, pa.py_buffer(values.take(order, mode="clip"))])


def _without_dictionaries(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A dictionary is not in the record batch message, so its values go there instead."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            plain = rows.column(number).dictionary_decode()
            rows = rows.set_column(number, pa.field(field.name, plain.type, field.nullable, field.metadata), plain)
        elif "dictionary<" in str(field.type):
            raise ValueError(f"column {field.name}: a dictionary inside {field.type} cannot go into a segment")
    return rows
