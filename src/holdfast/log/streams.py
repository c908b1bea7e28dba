"""Named streams: what a stage puts out, kept as blocks for other jobs to read.

``stream/<name>/block/<n>`` is what one epoch has put out, numbered from 1 without gaps, written once: few rows are
inside, more are in files that it names, in the order in which they are to be read. Whoever finishes the epoch finds the
block, so its rows are there once. ``stream/<name>/layout/<v>`` says what rows look like and how long they are kept; a
block names the layout that it is in.

A reader has a *lease*: ``stream/<name>/reader/<its name>/…``, a file for every position that it has come to, of which
the highest counts. Blocks above it stay (``holds``). Readers write in Spark's processes, which cannot decide between
rivals on every kind of store: so who has a name is decided by one file, ``claim``, and positions are marks, empty files
whose names say all.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from holdfast.errors import StoreError
from holdfast.log.numbered import Numbered, read_record
from holdfast.log.records import packed, unpacked
from holdfast.log.store import Store

FOLDER = "stream"
_ROWS = re.compile(r"rows/(\d{10,})-.+\.arrow")
_MARK = re.compile(r"(\d{10,})-(\d{13,})-([0-9a-f]{32})")


@dataclass(frozen=True)
class Layout:
    """What the rows of a stream look like. ``number``: a stream that is drawn otherwise gets the next one."""

    number: int
    schema: str
    """Spark's JSON of it, without what says whether a row is withdrawn."""
    updating: bool
    """Rows may withdraw or replace earlier ones: then each has a sign, ``_d``."""
    windowed: bool
    """All rows of a window are in one block."""
    keep: float | None
    """Seconds for which blocks are kept, whoever has read them; infinite for all; None: until every reader has."""
    job: str
    """Its id."""
    name: str
    """Of the job, for people."""
    left: bool = False
    """The job writes it no more."""

    @staticmethod
    def file_of(number: int) -> str:
        return f"layout/{number:010d}"

    @property
    def file(self) -> str:
        return self.file_of(self.number)

    @property
    def hash(self) -> str:
        """Of what readers must agree with."""
        return hash_of(self.schema, updating=self.updating)

    def to_bytes(self) -> bytes:
        return packed(b"layt", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Layout:
        said, _ = unpacked(data, name, b"layt")
        return cls(**said)


@dataclass(frozen=True)
class RowsFile:
    """Rows of a range of slices, as an Arrow stream: a file of the stream, or an attachment of the block."""

    rows: int
    nbytes: int
    checksum: int
    name: str = ""
    inline: int | None = None


@dataclass(frozen=True)
class StreamBlock:
    """What one epoch put out."""

    number: int
    epoch: int
    layout: int
    files: tuple[RowsFile, ...]
    written: int  # ms
    attachments: tuple[bytes, ...] = field(default=(), repr=False)

    @staticmethod
    def file_of(number: int) -> str:
        return f"block/{number:010d}"

    @property
    def file(self) -> str:
        return self.file_of(self.number)

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.files)

    def to_bytes(self) -> bytes:
        said = {name: getattr(self, name) for name in ("number", "epoch", "layout", "written")}
        return packed(b"strm", said | {"files": [asdict(one) for one in self.files]}, self.attachments)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> StreamBlock:
        said, attachments = unpacked(data, name, b"strm")
        files = tuple(RowsFile(**one) for one in said.pop("files"))
        return cls(**said, files=files, attachments=attachments)


@dataclass(frozen=True)
class Claim:
    """Whose the name of a reader is, and with which block it began."""

    reader: str
    holder: str
    """What tells this reader from another of the same name: a job and its store."""
    first: int
    at: int  # ms

    file = "claim"

    def to_bytes(self) -> bytes:
        return packed(b"clam", asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Claim:
        said, _ = unpacked(data, name, b"clam")
        return cls(**said)


@dataclass(frozen=True)
class Lease:
    """A reader as the writer's store knows it: it has all blocks up to ``position``."""

    reader: str
    holder: str
    first: int
    position: int
    renewed: int  # ms
    by: frozenset[str] = frozenset()
    """The processes that have said so, as far as that is known."""


class Mark(NamedTuple):
    """What a reader has left to say how far it is."""

    position: int
    at: int  # ms
    by: str


class NamedStream:
    """The files of one stream, in the store of the job that writes it."""

    def __init__(self, store: Store, name: str) -> None:
        self.name = name
        self.job_store = store
        self.folder = folder_of(name)
        self.store = store.sub(self.folder)
        self.layouts: Numbered[Layout] = Numbered(self.store, Layout.file_of, Layout.from_bytes)
        self.blocks: Numbered[StreamBlock] = Numbered(self.store, StreamBlock.file_of, StreamBlock.from_bytes)

    def newest(self) -> int:
        """The number of the newest block: 0 if there has never been one."""
        found = self.blocks.newest()
        return found.number if found is not None else 0

    def kept(self) -> list[int]:
        return self.blocks.numbers()

    # --- readers ------------------------------------------------------------------------------------------

    def leases(self) -> list[Lease]:
        found = (self.lease(unquote(folder)) for folder in self.store.list_folders("reader"))
        return [one for one in found if one is not None]

    def lease(self, reader: str) -> Lease | None:
        claim = read_record(self.store.sub(_reader(reader)), Claim.file, Claim.from_bytes)
        if claim is None:
            return None
        marks = self._marks(reader).values()
        position = max([claim.first - 1, *(mark.position for mark in marks)])
        renewed = max([claim.at, *(mark.at for mark in marks)])
        return Lease(reader, claim.holder, claim.first, position, renewed, frozenset(mark.by for mark in marks))

    def claim(self, reader: str, holder: str, first: int) -> Lease | None:
        """The name of a reader, for who begins with that block. None: somebody else was first."""
        claim, store = Claim(reader, holder, first, _now()), self.store.sub(_reader(reader))
        if store.is_local:
            won = store.put_if_absent(Claim.file, claim.to_bytes())
        else:  # only a driver can decide between rivals there: of two that come at once, one finds out by its marks
            won = not store.exists(Claim.file) and bool(store.write(Claim.file, [claim.to_bytes()]))
        return self.lease(reader) if won else None

    def renew(self, reader: str, position: int, by: str) -> None:
        """Blocks up to ``position`` are needed no more, by that reader. ``by`` is which process of its says so."""
        marks = self._marks(reader)
        at = max([position, *(mark.position for mark in marks.values())])
        made = f"{at:010d}-{_now():013d}-{by}"
        # What a power cut may lose is a mark, and with that only that something could go.
        self.store.write(f"{_reader(reader)}/{made}", [b""], sync=False)
        self.store.delete(f"{_reader(reader)}/{name}" for name in marks)

    def forget(self, reader: str) -> bool:
        """Whether there was one."""
        there = self.store.exists(f"{_reader(reader)}/{Claim.file}")
        self.store.delete_folder(_reader(reader))
        return there

    def _marks(self, reader: str) -> dict[str, Mark]:
        names = ((name, _MARK.fullmatch(name)) for name in self.store.list(_reader(reader)))
        return {name: Mark(int(found[1]), int(found[2]), found[3]) for name, found in names if found}


def streams_of(store: Store) -> Iterator[NamedStream]:
    """Those that a job's store has."""
    return (NamedStream(store, unquote(folder)) for folder in store.list_folders(FOLDER))


def found_stream(store: Store, name: str) -> NamedStream:
    """The stream of that name, if there is one."""
    stream = NamedStream(store, name)
    if stream.layouts.newest() is None:
        known = ", ".join(f"'{one.name}'" for one in streams_of(store)) or "none"
        raise StoreError(
            f"The store {store.uri} has no stream '{name}'.",
            safe="Nothing was started.",
            todo=f"Those that it has: {known}. A stream is there as soon as a job that names it has started: "
            f"stage.named({name!r}).",
        )
    return stream


def hash_of(schema: str, *, updating: bool) -> str:
    """Of a layout, by which a reader knows its own."""
    return hashlib.sha256(f"{updating} {schema}".encode()).hexdigest()[:16]


def rows_name(number: int, writing: str, partition: int, task: int) -> str:
    """``rows/<block>-<attempt>-<partition>-<taskAttemptId>.arrow``: the block leads, so that what no block names can be
    told by it."""
    return f"rows/{number:010d}-{writing}-{partition:05d}-{task}.arrow"


def rows_number(name: str) -> int | None:
    """The number of the block that a file of rows was written for."""
    match = _ROWS.fullmatch(name)
    return int(match[1]) if match else None


def folder_of(name: str) -> str:
    return f"{FOLDER}/{_quoted(name)}"


def _reader(name: str) -> str:
    return f"reader/{_quoted(name)}"


def _quoted(name: str) -> str:
    """A folder's name: as it is, but for what a path may not have, or what would be hidden."""
    quoted = quote(name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def _now() -> int:
    return time.time_ns() // 1_000_000


def described(layout: Layout) -> dict[str, Any]:
    """For errors: the columns and their types."""
    return {field["name"]: field["type"] for field in json.loads(layout.schema)["fields"]}
