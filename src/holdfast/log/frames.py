"""Files of checksummed frames, with an index at the end. Segments, packs and records are all made of it.

    head     "HOLDFAST", format, kind
    frames   each at a multiple of 64 bytes, so that Arrow can use mapped bytes as they are
    index    the number of frames; offset, length and CRC-32 of each; then what the writer has to say, as JSON
    foot     where the index is, its CRC-32, format, kind, a CRC-32 of all that, "TSAFDLOH"

The index comes last so that a writer need not know the end when it begins, and so that a file cut short is
known by its missing foot. A reader takes foot and index and then only the frames it wants; whatever it
takes is checked first. The CRC of the index covers those of all frames, so it stands for the whole file's
content: that is its ``checksum``.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import CorruptionError, FormatError
from holdfast.invariants import invariant
from holdfast.log.files import Part
from holdfast.log.store import Store

FORMAT = 4
"""The format of all files of a store. It grows when an older Holdfast could no longer read what is new."""

_HEAD = struct.Struct("<8sI4s")
_FOOT = struct.Struct("<QQII4sI8s")
_FOOT_SUMMED = _FOOT.size - 12  # all but its own CRC and the closing magic
_MAGIC = b"HOLDFAST"
_END = b"TSAFDLOH"
_ALIGN = 64
_TAIL = 64 * 1024
_ENTRY = np.dtype([("offset", "<u8"), ("length", "<u8"), ("crc", "<u4")])
_NOUNS = {
    b"segm": "a segment",
    b"pack": "a checkpoint pack",
    b"blck": "a block",
    b"bgun": "a note of a batch that sinks have begun with",
    b"entr": "a file of entries",
    b"prep": "a prepare file",
    b"mark": "a mark of an epoch that failed",
    b"left": "a note of what an epoch goes on without",
    b"takn": "a note that a sink has an epoch",
    b"cmit": "a commit file",
    b"ownr": "an owner file",
    b"rout": "a routing table",
    b"mani": "a checkpoint manifest",
    b"snap": "a snapshot",
    b"strm": "a block of a named stream",
    b"layt": "a layout of a named stream",
    b"clam": "a reader's claim",
}

ReadRange = Callable[[int, int], pa.Buffer]


def newer_format(name: str, found: int) -> FormatError:
    return FormatError(
        f"{name} was written by a newer Holdfast (format {found}; this one knows {FORMAT})",
        safe="Nothing was changed.",
        todo="Use the Holdfast that wrote it, or a newer one.",
    )


class FrameWriter:
    """Lays frames out. It keeps none: ``add`` and ``finish`` return the buffers to write next, in order."""

    def __init__(self, kind: bytes) -> None:
        invariant(kind in _NOUNS, f"no kind of file begins with {kind!r}")
        self.nbytes = 0
        self.checksum: int | None = None  # known once finished
        self._kind = kind
        self._entries: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, *parts: Part) -> list[Part]:
        """The next frame, made of ``parts`` one behind the other."""
        out = self._start() + self._pad()
        offset, crc = self.nbytes, 0
        for part in parts:
            crc = zlib.crc32(part, crc)
            out.append(part)
            self.nbytes += len(part)
        self._entries.append((offset, self.nbytes - offset, crc))
        return out

    def finish(self, meta: dict[str, Any]) -> list[Part]:
        out = self._start() + self._pad()
        entries = np.array(self._entries, _ENTRY).tobytes()
        said = json.dumps(meta, separators=(",", ":")).encode()
        index = len(self._entries).to_bytes(8, "little") + entries + said
        self.checksum = zlib.crc32(index)
        foot = _FOOT.pack(self.nbytes, len(index), self.checksum, FORMAT, self._kind, 0, _END)
        summed = foot[:_FOOT_SUMMED]
        foot = summed + zlib.crc32(summed).to_bytes(4, "little") + _END
        self.nbytes += len(index) + len(foot)
        return [*out, index, foot]

    def _start(self) -> list[Part]:
        invariant(self.checksum is None, "a file that is finished gets no more frames")
        if self.nbytes:
            return []
        self.nbytes = _HEAD.size
        return [_HEAD.pack(_MAGIC, FORMAT, self._kind)]

    def _pad(self) -> list[Part]:
        short = -self.nbytes % _ALIGN
        self.nbytes += short
        return [bytes(short)] if short else []


class FrameFile:
    """A file of frames, read frame by frame. Opening it checks foot and index; ``frame`` checks the frame."""

    def __init__(self, read: ReadRange, size: int, name: str, kind: bytes) -> None:
        self.name = name
        self.size = size
        self._read = read
        tail_at = max(0, size - _TAIL)
        tail = read(tail_at, size - tail_at)
        if len(tail) != size - tail_at or size < _HEAD.size + _FOOT.size:
            raise self._corrupt("is cut short", 0, size)
        at, length, crc, found, its_kind, foot_crc, end = _FOOT.unpack(tail[-_FOOT.size :])
        foot_at = size - _FOOT.size
        if end != _END or zlib.crc32(tail[-_FOOT.size :][:_FOOT_SUMMED]) != foot_crc:
            raise self._corrupt("is cut short, or its foot has changed", foot_at, size)
        if found > FORMAT:
            raise newer_format(name, found)
        if its_kind != kind:
            raise CorruptionError(f"{name} is {_NOUNS.get(its_kind, 'something else')}, not {_NOUNS[kind]}")
        if at + length != foot_at:  # also a file cut where an embedded one ends
            raise self._corrupt("is cut short, or has been added to", 0, size)
        if tail_at == 0 and bytes(tail[: _HEAD.size]) != _HEAD.pack(_MAGIC, found, kind):
            raise self._corrupt("has a changed head", 0, _HEAD.size)
        index = tail[at - tail_at : foot_at - tail_at] if at >= tail_at else read(at, length)
        if len(index) != length or zlib.crc32(index) != crc:
            raise self._corrupt("has a changed index", at, at + length)
        count = int.from_bytes(bytes(index[:8]), "little")
        said_at = 8 + count * _ENTRY.itemsize
        self.checksum: int = crc
        self.meta: dict[str, Any] = json.loads(bytes(index[said_at:]))
        self._entries = np.frombuffer(index[8:said_at], _ENTRY)

    @classmethod
    def of(cls, source: pa.Buffer | bytes, name: str, kind: bytes) -> FrameFile:
        """Over bytes in memory, or mapped. Frames are slices of them, not copies."""
        buffer = source if isinstance(source, pa.Buffer) else pa.py_buffer(source)
        return cls(lambda at, length: buffer.slice(at, length), buffer.size, name, kind)

    @classmethod
    def at(cls, store: Store, name: str, kind: bytes, *, mapped: bool = True) -> FrameFile:
        """Over a file of a store: mapped when that is local, else (or if not ``mapped``) by ranged reads of what is
        asked for."""
        if store.is_local and mapped:
            return cls.of(store.open(name), name, kind)
        return cls(lambda at, length: store.read_range(name, at, length), store.size(name), name, kind)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def lengths(self) -> np.ndarray:
        """Of all frames."""
        found: np.ndarray = self._entries["length"]
        return found

    def length(self, number: int) -> int:
        return int(self._entries[number][1])

    def frame(self, number: int) -> pa.Buffer:
        offset, length, crc = self._entries[number].tolist()
        data = self._read(offset, length)
        if len(data) != length or zlib.crc32(data) != crc:
            raise self._corrupt(f"frame {number} is not what was written", offset, offset + length)
        return data

    def verify(self) -> int:
        """Read the head and every frame; the number of frames."""
        if bytes(self._read(0, len(_MAGIC))) != _MAGIC:
            raise self._corrupt("has a changed head", 0, _HEAD.size)
        for number in range(len(self)):
            self.frame(number)
        return len(self)

    def _corrupt(self, what: str, start: int, end: int) -> CorruptionError:
        return CorruptionError(f"{self.name}: {what} (bytes {start} to {end} of {self.size})")
