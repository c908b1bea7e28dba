"""Reading a named stream, as Spark's Python streaming source: an offset is the number of a block.

Spark asks in a process of its own, beside the driver: where to begin, how far one may go, and what is in between; then
tasks read files of blocks and give Arrow batches. What is done up to an offset it never asks for again: that renews the
reader's lease in the writer's store. A batch ends where the layout of the rows changes, since a query has one schema.
"""

from __future__ import annotations

import inspect
import json
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ByteType, StructType

from holdfast.errors import CorruptionError, HoldfastError, PlanError, StoreError
from holdfast.invariants import Impossible, some
from holdfast.log.store import Store
from holdfast.log.streams import Layout, Lease, NamedStream, RowsFile, StreamBlock, described, found_stream, hash_of
from holdfast.plan.frames import DIFF
from holdfast.spark.workers import set_aside

try:  # from Spark 4.2 on
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as BoundedByTrigger
except ImportError:

    class BoundedByTrigger:  # type: ignore[no-redef]
        """Spark 4.1 bounds such a run itself."""


BLOCK = "block"
PART_BYTES = 32 << 20
RENEW_SECONDS = 60.0
ANYBODY = "a query of Spark's"
SAFE = "Nothing was read. The stream and its readers are as they were."
P = ParamSpec("P")
R = TypeVar("R")


def told(error: HoldfastError) -> RuntimeError:
    """Of what a source's process raises, Spark passes text on, and nothing else: for people, and for us."""
    return RuntimeError(f"{error}\n{error.to_wire()}")


def spoken(method: Callable[P, R]) -> Callable[P, R]:
    """For what Spark calls."""

    @wraps(method)
    def speaking(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except HoldfastError as error:
            raise told(error) from error

    return speaking


@dataclass(frozen=True)
class Wanted:
    """What a query asks for."""

    store: str
    stream: str
    reader: str = ""
    """Whose lease it is; "": it has none."""
    holder: str = ""
    at_once: int = 0
    """So many blocks a batch takes at most; 0: all that there are."""

    @staticmethod
    def of(options: Mapping[str, Any], store: str, stream: str) -> Wanted:
        said = {name: str(options.get(name) or "") for name in ("reader", "holder", "blocks")}
        if said["blocks"] and not said["blocks"].isdecimal():
            raise PlanError(
                f"Option 'blocks' cannot be {said['blocks']!r}: it is how many blocks a batch takes at most.",
                safe="Nothing was started.",
                todo=".option('blocks', 10)",
            )
        return Wanted(store, stream, said["reader"], said["holder"] or ANYBODY, int(said["blocks"] or 0))

    @property
    def found(self) -> NamedStream:
        return found_stream(Store(self.store), self.stream)

    def lease(self, stream: NamedStream) -> Lease | None:
        """That of this reader; an error if another one has it."""
        lease = stream.lease(self.reader) if self.reader else None
        if lease is not None and lease.holder != self.holder:
            raise second_reader(self, f"{lease.holder}, which has read up to block {lease.position}")
        return lease


def first_of(wanted: Wanted) -> int:
    """The first block that the reader has not read and that is there, or the first that will be."""
    stream = wanted.found
    lease, kept = wanted.lease(stream), stream.kept()
    return max([lease.position + 1 if lease is not None else 1, *kept[:1]])


def layout_of(wanted: Wanted) -> Layout:
    """In which a query reads the stream: that of the first block that the reader has not read, else of the newest."""
    stream, first = wanted.found, first_of(wanted)
    block = stream.blocks.get(first)
    if block is None:
        return some(stream.layouts.newest(), "it was looked at")
    return some(stream.layouts.get(block.layout), f"the layout of block {first}")


def arrow_schema(schema: StructType) -> pa.Schema:
    """As Spark has it for what a source reads: exactly that it wants to see."""
    named: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **named)


def schema_of(layout: Layout) -> StructType:
    """With the sign of rows that may be withdrawn."""
    schema = StructType.fromJson(json.loads(layout.schema))
    return schema.add(DIFF, ByteType()) if layout.updating else schema


@dataclass(frozen=True)
class Rows:
    """A file of a block."""

    block: int
    at: int


@dataclass
class BlocksPart(InputPartition):
    """What one task reads, in this order."""

    rows: tuple[Rows, ...]


class BlocksReader:
    """Tasks' side."""

    def __init__(self, wanted: Wanted, schema: StructType) -> None:
        self._wanted, self._schema = wanted, schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, BlocksPart):
            raise Impossible(f"{partition!r} is no BlocksPart")
        stream, block = NamedStream(Store(self._wanted.store), self._wanted.stream), None
        wanted = arrow_schema(self._schema)
        try:
            for one in partition.rows:
                if block is None or block.number != one.block:
                    block = block_of(stream, one.block)
                for rows in rows_of(stream, block, block.files[one.at]):
                    yield rows.cast(wanted)  # another time zone's name, and nothing else
        except HoldfastError as error:
            raise told(error) from error
        set_aside("named")


class KeptBlocks(BlocksReader, DataSourceReader):
    """A batch query over all blocks that there are."""

    @spoken
    def partitions(self) -> Sequence[InputPartition]:
        stream = self._wanted.found
        kept = stream.kept()
        return parts_of(stream, kept[0], kept[-1]) if kept else []


class BlockStream(BlocksReader, DataSourceStreamReader, BoundedByTrigger):
    """A streaming query. One process has it from the start of the query to its end."""

    def __init__(self, wanted: Wanted, schema: StructType) -> None:
        super().__init__(wanted, schema)
        self._updating = DIFF in schema.names
        plain = StructType([one for one in schema.fields if one.name != DIFF])
        self._hash = hash_of(plain.json(), updating=self._updating)
        self._me = uuid.uuid4().hex
        self._known: frozenset[str] | None = None
        """Which processes have renewed the lease before this one did."""
        self._renewed = (-1, 0.0)
        self._planned = 0
        self._last: int | None = None
        """With the trigger ``availableNow``: the newest block when the query began."""
        self._layouts: dict[int, str] = {}

    @cached_property
    def _stream(self) -> NamedStream:
        return self._wanted.found

    @spoken
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        stream, reader = self._stream, self._wanted.reader
        kept = stream.kept()
        first = kept[0] if kept else 1
        if self._updating and first > 1:
            raise StoreError(
                f"Stream '{stream.name}' begins with block {first} by now, and its rows change: a reader that comes "
                "now would see rows withdrawn that it has never had.",
                safe=SAFE,
                todo="Start its readers before blocks go, or have it written with keep='all'; closed windows, whose "
                "rows never change, can be read from anywhere.",
            )
        if not reader:
            return {BLOCK: first - 1}
        lease = stream.claim(reader, self._wanted.holder, first) or self._wanted.lease(stream)
        lease = some(lease, f"the lease of '{reader}' was just there")
        if lease.position >= lease.first:
            raise StoreError(
                f"Reader '{reader}' of stream '{stream.name}' has read up to block {lease.position}, and this query "
                "begins anew: it would be a second reader by that name.",
                safe=SAFE,
                todo="Give it a name of its own (reader=…). If the first one is no more, let its name go with "
                f"run.forget({reader!r}) of the job that writes the stream.",
            )
        return {BLOCK: lease.first - 1}

    @spoken
    def latestOffset(self, start: dict[str, int] | None = None, limit: object = None) -> dict[str, int]:  # noqa: N802
        """From Spark 4.2 on it says where the next batch begins, and with that how far those before are done. Before
        that, the first batch of a restarted query begins somewhere above what the lease says."""
        if start is not None or self._planned:
            position = self._planned if start is None else start[BLOCK]
            self._renew(position)
            return {BLOCK: self._readable(position, getattr(limit, "max_files", None))}
        stream, lease = self._stream, self._wanted.lease(self._stream)
        newest = stream.blocks.newest()
        if newest is None or self._looks_alike(newest):
            return {BLOCK: 0 if newest is None else newest.number}
        return {BLOCK: self._readable(max([lease.position if lease is not None else 0, stream.kept()[0] - 1]))}

    @spoken
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = self._stream.newest()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Asked for from Spark 4.2 on."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

        return ReadMaxFiles(self._wanted.at_once) if self._wanted.at_once else ReadAllAvailable()

    @spoken
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        self._planned = end[BLOCK]
        for number in range(start[BLOCK] + 1, end[BLOCK] + 1):
            if not self._looks_alike(block_of(self._stream, number)):
                raise self._of_another_layout(number)
        return parts_of(self._stream, start[BLOCK] + 1, end[BLOCK])

    @spoken
    def commit(self, end: dict[str, int]) -> None:
        self._renew(end[BLOCK])

    def _readable(self, position: int, at_once: int | None = None) -> int:
        """Up to where the rows look alike, and one may take."""
        stream = self._stream
        newest = stream.blocks.newest() if self._last is None else stream.blocks.get(self._last)
        if newest is None or newest.number <= position:
            return position
        end = newest.number if at_once is None else min(newest.number, position + at_once)
        if self._looks_alike(newest) and block_of(stream, position + 1).layout == newest.layout:
            return end
        last = position
        while last < end and self._looks_alike(block_of(stream, last + 1)):
            last += 1
        if last == position:
            raise self._of_another_layout(position + 1)
        return last

    def _looks_alike(self, block: StreamBlock) -> bool:
        if block.layout not in self._layouts:
            layout = some(self._stream.layouts.get(block.layout), f"the layout of block {block.number}")
            self._layouts[block.layout] = layout.hash
        return self._layouts[block.layout] == self._hash

    def _of_another_layout(self, number: int) -> StoreError:
        stream = self._stream
        block = block_of(stream, number)
        layout = some(stream.layouts.get(block.layout), f"the layout of block {number}")
        return StoreError(
            f"From block {number} on, stream '{stream.name}' of job '{layout.name}' has other columns than this query "
            f"was started with: {described(layout)}.",
            safe=f"Everything up to block {number - 1} is read; the blocks after it stay for this reader.",
            todo="Change what reads it to the new columns, and start it again: it goes on with that block.",
        )

    def _renew(self, position: int) -> None:
        """Tell the writer's store how far this reader is, when it has come on or has not told for a while."""
        reader, (told, at) = self._wanted.reader, self._renewed
        if not reader or (position <= told and time.monotonic() - at < RENEW_SECONDS):
            return
        stream = self._stream
        lease = self._wanted.lease(stream) or stream.claim(reader, self._wanted.holder, position + 1)
        lease = some(lease, f"the lease of '{reader}' was just there")
        if self._known is None:
            self._known = lease.by | {self._me}
        if not lease.by <= self._known:
            raise second_reader(self._wanted, "another query has come since this one began")
        stream.renew(reader, position, self._me)
        self._renewed = max(told, position), time.monotonic()


def parts_of(stream: NamedStream, first: int, last: int) -> list[BlocksPart]:
    """Files of blocks in their order, some for each task: rows of a key stay in the order of epochs."""
    parts, held, room = list[BlocksPart](), list[Rows](), PART_BYTES
    for number in range(first, last + 1):
        for at, file in enumerate(block_of(stream, number).files):
            if held and file.nbytes > room:
                parts.append(BlocksPart(tuple(held)))
                held, room = [], PART_BYTES
            held.append(Rows(number, at))
            room -= file.nbytes
    return [*parts, BlocksPart(tuple(held))] if held else parts


def block_of(stream: NamedStream, number: int) -> StreamBlock:
    found = stream.blocks.get(number)
    if found is not None:
        return found
    kept = stream.kept()
    there = f"those that are kept begin with {kept[0]}" if kept else "it has none"
    raise StoreError(
        f"Block {number} of stream '{stream.name}' in {stream.job_store.uri} is not kept any more: {there}.",
        safe="Nothing was read; what was read before stays as it is.",
        todo="What has gone this reader cannot have: begin anew, with an empty store (or checkpoint) and a reader "
        "name of its own. A reader that has a name (reader=…) holds what it has not read, for as long as the stream's "
        "keep= allows it to be away.",
    )


def rows_of(stream: NamedStream, block: StreamBlock, file: RowsFile) -> Iterator[pa.RecordBatch]:
    """What one task of the writer has put out, checked."""
    name = file.name or f"{block.file}, attachment {file.inline}"
    data = block.attachments[file.inline] if file.inline is not None else stream.store.open(file.name)
    if len(data) != file.nbytes or zlib.crc32(data) != file.checksum:
        raise CorruptionError(
            f"{stream.store.uri}/{name} is not what was written for block {block.number} (epoch {block.epoch}).",
            safe="Nothing of this batch was read.",
            todo="Bring the file back from a backup of the store, then start the reader again.",
        )
    with pa.ipc.open_stream(data) as rows:
        yield from rows


def second_reader(wanted: Wanted, why: str) -> StoreError:
    return StoreError(
        f"Stream '{wanted.stream}' in {wanted.store} has a reader '{wanted.reader}' already: {why}.",
        safe=SAFE,
        todo="Give this one a name of its own (reader=…). If the other one is no more, let its name go with "
        f"run.forget({wanted.reader!r}) of the job that writes the stream.",
    )
