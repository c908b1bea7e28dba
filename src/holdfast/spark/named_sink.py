"""The sink of ``stream.named``: an epoch's rows become the next block of a named stream, once.

It stands where sinks stand, before the commit: rows first, in files by ranges of slices, synced; then the block, by
put-if-absent. An epoch that is finished again finds its block by its number, and writes nothing. So blocks have no gap,
though epochs without rows have none.
"""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from holdfast import faults
from holdfast.errors import FencedError, HoldfastError, PlanError
from holdfast.invariants import some
from holdfast.log.files import Part
from holdfast.log.store import Store
from holdfast.log.streams import Layout, NamedStream, RowsFile, StreamBlock, rows_name, streams_of
from holdfast.plan.graph import Sink
from holdfast.spark.tables import Wants
from holdfast.spark.workers import set_aside
from holdfast.wire.codec import pack, unpack

TAG_SCHEMA = "tag binary"
INLINE_BYTES = 65_536
"""What a task puts out up to here is in the block itself."""
BLOCK_BYTES = 8 << 20
"""And no more than this in all."""


@dataclass(frozen=True)
class Put:
    """What a task answers: the file that it has written, or its few rows."""

    partition: int
    rows: int
    nbytes: int
    checksum: int
    name: str = ""
    data: bytes = b""


class NamedSink:
    exactly_once = True
    forgets = False
    wants: Wants = "changed"

    def __init__(self, store: Store, sink: Sink, job: str, job_name: str) -> None:
        named = some(sink.named, "a sink of a named stream")
        self.name, self._signed, self._whole = sink.name, sink.signed, named.whole
        self.stream = NamedStream(store, named.stream)
        schema = StructType([StructField(one.name, one.dataType) for one in sink.schema.fields])  # any may be null
        self._about = Layout(0, schema.json(), sink.signed, named.windowed, named.keep, job, job_name)
        self._layout = 0

    def declare(self, *, first: bool, running: bool = False) -> None:
        """Say what the stream is, also before it has rows. Not before the start is certain: one that is refused changes
        nothing. ``first``: the job has not committed anything yet; ``running``: the sink comes while it runs."""
        newest = self.stream.layouts.newest()
        if self._signed and not first and not self._whole and newest is None:
            raise PlanError(
                f"Stream '{self.stream.name}' would begin in the middle: its rows change, the stage behind it does not "
                "hold all of them, and the job has put out some before.",
                safe="Nothing was written to it.",
                todo="Name the aggregate itself, or its top_k, or closed windows; or begin with an empty store.",
            )
        if self._signed and newest is not None and (newest.left or running):
            raise PlanError(
                f"Stream '{self.stream.name}' was not written for a while: what changed meanwhile is not in it, so its "
                "readers would have wrong rows.",
                safe="Its blocks are as they were.",
                todo="Give the stream another name, and its readers that one.",
            )
        self._layout = _declared(self.stream, self._about)

    @property
    def from_all(self) -> bool:
        """Whether the next block is of all rows that there are, not of what has changed: the first one, so that nothing
        that is ever withdrawn was not there before."""
        return self._signed and self._whole and self.stream.blocks.newest() is None

    def write(self, df: DataFrame, epoch: int, counter: int) -> None:
        newest = self.stream.blocks.newest()
        if newest is not None and newest.epoch >= epoch:
            if newest.epoch > epoch:
                raise self._replaced(epoch, newest)
            return
        number = 1 if newest is None else newest.number + 1
        task = WriteTask(self.stream.store, number, uuid.uuid4().hex)
        found = sorted(_put(df, task), key=lambda one: one.partition)
        faults.place("driver", "before-stream-block", epoch)
        if not found:
            return
        block = _block(self.stream.store, task, epoch, self._layout, found)
        stored, won = self.stream.blocks.put(number, block)
        if not won and stored.epoch != epoch:
            raise self._replaced(epoch, stored)
        faults.place("driver", "after-stream-block", epoch)

    def close(self) -> None:
        return

    def _replaced(self, epoch: int, block: StreamBlock) -> FencedError:
        return FencedError(
            f"Block {block.number} of stream '{self.stream.name}' is of epoch {block.epoch}, and this driver is at "
            f"epoch {epoch}: another one has taken over.",
            safe="The stream has every epoch once.",
            todo="Let the other driver go on.",
        )


def leave_others(store: Store, written: Collection[str]) -> list[str]:
    """Say of the streams of a job that it writes no more that it does not; their names."""
    found = []
    for stream in streams_of(store):
        newest = stream.layouts.newest()
        if stream.name not in written and newest is not None and not newest.left:
            stream.layouts.put(newest.number + 1, replace(newest, number=newest.number + 1, left=True))
            found.append(stream.name)
    return found


def _declared(stream: NamedStream, wanted: Layout) -> int:
    """Have the newest layout of the stream be as wanted; its number."""
    while True:
        newest = stream.layouts.newest()
        number = newest.number if newest is not None else 0
        if newest == replace(wanted, number=number):
            return number
        ours = replace(wanted, number=number + 1)
        if stream.layouts.put(number + 1, ours)[0] == ours:
            return number + 1


@dataclass(frozen=True)
class WriteTask:
    """The function that ``mapInArrow`` runs on every part of the epoch's rows."""

    store: Store
    number: int
    writing: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = some(TaskContext.get(), "it runs inside a Spark task")
        try:
            put = self.put(batches, context.partitionId(), context.taskAttemptId())
        except HoldfastError as error:
            raise RuntimeError(error.to_wire()) from error  # Spark passes text on, nothing else
        if put is not None:
            yield pa.record_batch([pa.array([pack(put)], pa.binary())], names=["tag"])
        set_aside("named")

    def put(self, batches: Iterator[pa.RecordBatch], partition: int, task: int) -> Put | None:
        batches = (batch for batch in batches if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return None
        writing = _Writing(first.schema)
        for batch in chain([first], batches):
            writing.take(batch)
            if writing.nbytes > INLINE_BYTES:
                break
        else:
            data = b"".join(writing.end())
            return Put(partition, writing.rows, len(data), zlib.crc32(data), data=data)
        name = rows_name(self.number, self.writing, partition, task)
        nbytes = self.store.write(name, writing.parts(batches))
        return Put(partition, writing.rows, nbytes, writing.checksum, name)


class _Writing:
    """An Arrow stream on its way to a file, or to few bytes."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows, self.nbytes, self.checksum = 0, 0, 0
        self._held: list[Part] = [schema.serialize()]

    def take(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        message = batch.serialize()
        self.nbytes += message.size
        self._held.append(message)

    def end(self) -> list[Part]:
        """What is held, and the end."""
        parts, self._held = [*self._held, _END], []
        return parts

    def parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Part]:
        """The file: what is held, then what still comes, batch by batch."""
        while True:
            held, self._held = self._held, []
            yield from map(self._counted, held)
            batch = next(batches, None)
            if batch is None:
                break
            self.take(batch)
        yield self._counted(_END)

    def _counted(self, part: Part) -> Part:
        self.checksum = zlib.crc32(part, self.checksum)
        return part


_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end of an Arrow stream."""


def _put(df: DataFrame, task: WriteTask) -> list[Put]:
    plan = df._jdf.queryExecution().optimizedPlan().getClass().getSimpleName()
    if plan == "LocalRelation":  # few rows, in the driver: a task would take longer to start than they take
        found = task.put(iter(df.toArrow().to_batches()), 0, 0)
        return [] if found is None else [found]
    return [unpack(row.tag, Put) for row in df.mapInArrow(lambda batches: task(batches), TAG_SCHEMA).collect()]


def _block(store: Store, task: WriteTask, epoch: int, layout: int, found: list[Put]) -> StreamBlock:
    """The block over what was written. Few rows are inside, as long as they are few in all."""
    files, attachments, room = [], list[bytes](), BLOCK_BYTES
    for one in found:
        name, inline = one.name, None
        if not name and len(one.data) <= room:
            room -= len(one.data)
            inline = len(attachments)
            attachments.append(one.data)
        elif not name:
            name = rows_name(task.number, task.writing, one.partition, 0)
            store.write(name, [one.data])
        files.append(RowsFile(one.rows, one.nbytes, one.checksum, name, inline))
    return StreamBlock(task.number, epoch, layout, tuple(files), time.time_ns() // 1_000_000, tuple(attachments))
