"""What runs inside Spark's tasks: rows in, one tag out.

A task sorts its rows by slice, writes them as one segment, synced, and answers with a tag that names it. A small
task's rows travel inside the tag itself and end up inside ``prepare``: no file. What is pushed to the containers is a
cache fill: if it fails, is late or comes twice, nothing happens but a read of the log. Imports stay light (no Numba),
because Spark starts these workers often.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast import faults
from holdfast.errors import HoldfastError
from holdfast.invariants import some
from holdfast.log.files import Part
from holdfast.log.records import Fence, SegmentRef
from holdfast.log.segment import Chunk, SegmentWriter, segment_name
from holdfast.log.store import Store
from holdfast.operators.ahead import Cut
from holdfast.plan.passes import Crossing
from holdfast.spark.cutting import cut
from holdfast.spark.workers import set_aside
from holdfast.state.hashing import xxhash64
from holdfast.wire.client import Client
from holdfast.wire.codec import Sender, pack
from holdfast.wire.messages import Address, Tag
from holdfast.wire.questions import RowsPart, RowsPush

TAG_SCHEMA = "tag binary"
"""A packed ``Tag``."""
BLOCK_ROWS = 131_072  # what is sorted at once: larger blocks fall out of the cache, smaller ones make short chunks
BLOCK_BYTES = 32 << 20  # of wide rows fewer: a block is in memory twice while it is sorted
HELD_BYTES = 64 << 20
PUSH_SECONDS = 5.0


@dataclass(frozen=True)
class Push:
    """Where each slice lives, as far as the master knew when the intake began."""

    token: str = field(repr=False)
    job: str
    incarnation: int
    targets: tuple[tuple[Address, tuple[int, ...]], ...]


@dataclass(frozen=True)
class EventTime:
    """The column with the event time of one input. ``names`` are what the largest one of each leaf is reported as; with
    more than one, ``_s`` tells a row's leaf. Rows without a time, or later than ``latest``, are dropped and counted.
    """

    stage: str
    column: str
    names: tuple[str, ...]
    latest: int | None  # µs


class Crossed(NamedTuple):
    """So many rows have come from Spark, and every input takes its own of them."""

    rows: int
    taken: Iterable[tuple[int, pa.RecordBatch]]


@dataclass(frozen=True)
class Intake:
    """The function that ``mapInArrow`` runs on every partition of a level's input."""

    store: Store
    fence: Fence
    level: int
    slices: int
    # For each input, how many key columns are to be hashed here; 0: Spark has put their hash into `_h`.
    hashed_keys: tuple[int, ...]
    crossing: Crossing | None = None  # with one input the columns are the rows
    partial: tuple[int, ...] = ()
    times: tuple[EventTime | None, ...] = ()
    cuts: tuple[Cut | None, ...] = ()
    inline_bytes: int = 65_536
    push: Push | None = None
    batch: int | None = None  # what segments are named by, where it is not the epoch; the fence has the block to be
    numbers: tuple[int, ...] = ()  # what the inputs are called in the log, where that is not their places here
    first: int = 0  # the number of the first partition, where several intakes are one level's

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        context = some(context, "intake runs inside a Spark task")
        task = IntakeTask(self, self.first + context.partitionId(), context.taskAttemptId())
        try:
            tag = task.run(self._crossed(batches))
        except HoldfastError as error:
            raise RuntimeError(error.to_wire()) from error  # Spark passes text on, nothing else
        if tag is not None:
            yield pa.record_batch([pa.array([pack(tag)], pa.binary())], names=["tag"])
        set_aside("intake")

    def here(self, batches: Iterator[pa.RecordBatch]) -> list[Tag]:
        """What its only task would answer, without Spark. One job and attempt takes a level in once, one way or the
        other, so the name of its segment is nobody else's.
        """
        tag = IntakeTask(self, self.first, 0).run(self._crossed(batches))
        return [] if tag is None else [tag]

    def _crossed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Crossed]:
        for rows in batches:
            if rows.num_rows:
                yield Crossed(_many(rows), ((0, rows),) if self.crossing is None else self.crossing.split(rows))


class IntakeTask:
    def __init__(self, intake: Intake, partition: int, attempt: int) -> None:
        self._intake = intake
        self._partition = partition
        self._attempt = attempt
        self._writer = SegmentWriter(intake.slices)
        self._pending: list[list[pa.RecordBatch]] = [[] for _ in intake.hashed_keys]
        self._pending_rows = [0] * len(self._pending)
        self._pending_bytes = 0
        self._input_rows = 0
        self._spilled = False
        self._times: dict[str, int] = {}
        self._dropped: dict[str, dict[str, int]] = {}
        self._came: dict[str, int] = {}  # rows that should have had an event time, by stage

    def run(self, batches: Iterator[Crossed]) -> Tag | None:
        """The task's tag, with its rows if they are few. None if it had no rows."""
        intake, writer = self._intake, self._writer
        self._take_until(batches, max(HELD_BYTES, intake.inline_bytes))
        if writer.rows == 0 and not self._dropped:
            return None
        name, rows = "", None
        if writer.nbytes <= intake.inline_bytes:
            rows = writer.to_bytes()
            nbytes = len(rows)
        else:
            fence = intake.fence if intake.batch is None else replace(intake.fence, epoch=intake.batch)
            name = segment_name(fence, intake.level, self._partition, self._attempt)
            nbytes = intake.store.write(name, self._parts(batches))
            if intake.push is not None and not self._spilled:
                self._push(name, intake.push)
        segment = SegmentRef(
            name,
            writer.rows,
            nbytes,
            writer.checksum,
            self._partition,
            self._attempt,
            input_rows=self._input_rows,
            partial=tuple(self._number(at) for at in intake.partial),
            inputs=writer.inputs,
        )
        return Tag(segment, rows, self._times, self._dropped, self._came)

    def _parts(self, batches: Iterator[Crossed]) -> Iterator[Part]:
        """The file, written while rows still come: no task holds more than HELD_BYTES of its segment."""
        while self._writer.nbytes_held > HELD_BYTES:
            self._spilled = True
            yield from self._writer.take_parts()
            self._take_until(batches, HELD_BYTES)
        yield from self._writer.parts()

    def _take_until(self, batches: Iterator[Crossed], held: int) -> None:
        for batch in batches:
            self._input_rows += batch.rows
            for number, rows in batch.taken:
                self._take(number, rows)
            faults.place("task", "in-intake", self._intake.fence.epoch)
            if self._writer.nbytes_held > held:
                return
        self._flush()

    def _take(self, number: int, rows: pa.RecordBatch) -> None:
        if self._intake.times and (time := self._intake.times[number]) is not None:
            rows = self._timed(rows, time)
        self._pending[number].append(rows)
        self._pending_rows[number] += rows.num_rows
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= BLOCK_BYTES:
            self._flush()
        elif self._pending_rows[number] >= BLOCK_ROWS:  # each input for itself: of many, none comes in crumbs
            self._flush_one(number)

    def _timed(self, rows: pa.RecordBatch, time: EventTime) -> pa.RecordBatch:
        """Note the largest event times; rows whose time cannot be right stay out."""
        times = rows.column(time.column).cast(pa.int64())
        self._came[time.stage] = self._came.get(time.stage, 0) + _many(rows)
        if times.null_count:
            rows = self._without(rows, pc.is_null(times), time, "null time")
            times = rows.column(time.column).cast(pa.int64())
        if time.latest is not None:
            future = pc.greater(times, time.latest)
            if pc.any(future).as_py():
                rows = self._without(rows, future, time, "future")
                times = rows.column(time.column).cast(pa.int64())
        several = len(time.names) > 1
        leaf = rows.column("_s") if several else None
        for number, name in enumerate(time.names):
            mine = times if leaf is None else times.filter(pc.equal(leaf, number))
            if len(mine):
                self._times[name] = max(pc.max(mine).as_py(), self._times.get(name, -(1 << 63)))
        return rows.drop_columns(["_s"]) if several else rows

    def _without(self, rows: pa.RecordBatch, bad: pa.Array, time: EventTime, why: str) -> pa.RecordBatch:
        counts = self._dropped.setdefault(time.stage, {})
        counts[why] = counts.get(why, 0) + _many(rows.filter(bad))
        return rows.filter(pc.invert(bad))

    def _flush(self) -> None:
        for number, batches in enumerate(self._pending):
            if batches:
                self._flush_one(number)

    def _flush_one(self, number: int) -> None:
        batches = self._pending[number]
        block = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        self._pending_bytes -= sum(rows.nbytes for rows in batches)
        keys = self._intake.hashed_keys[number]
        block = with_hashes(block, keys) if keys else hash_first(block)
        if self._intake.cuts and (wanted := self._intake.cuts[number]) is not None:
            block = cut(block, keys, wanted)
        self._writer.append(self._number(number), block, slice_numbers(block, self._intake.slices))
        batches.clear()
        self._pending_rows[number] = 0

    def _number(self, place: int) -> int:
        return self._intake.numbers[place] if self._intake.numbers else place

    def _push(self, name: str, push: Push) -> None:
        for address, slices in push.targets:
            with contextlib.suppress(Exception):  # best effort by design: the container reads the log instead
                self._push_to(name, push, address, slices)

    def _push_to(self, name: str, push: Push, address: Address, slices: tuple[int, ...]) -> None:
        wanted = np.zeros(self._intake.slices, dtype=bool)
        wanted[list(slices)] = True
        chunks: dict[int, list[Chunk]] = {}
        for chunk in self._writer.chunks():
            if wanted[chunk.slices].any():
                chunks.setdefault(chunk.input, []).append(chunk)
        epoch, sender = self._intake.fence.epoch, Sender(push.job, push.incarnation)
        with Client(address, push.token, sender) as client:
            for input, mine in chunks.items():
                rows = sum(chunk.rows.num_rows for chunk in mine)
                header = RowsPush(epoch, name, input, slices, len(mine), rows)
                stream = client.push(header, mine[0].rows.schema, PUSH_SECONDS)
                for chunk in mine:
                    part = RowsPart(chunk.slices.tobytes(), chunk.bounds.tobytes())
                    stream.write_with_metadata(chunk.rows, pack(part))
                stream.close()


def _many(rows: pa.RecordBatch) -> int:
    """How many rows of the source these are: one of a partial input stands for ``_n``."""
    at = rows.schema.get_field_index("_n")
    return rows.num_rows if at < 0 else pc.sum(rows.column(at)).as_py() or 0


def with_hashes(rows: pa.RecordBatch, keys: int) -> pa.RecordBatch:
    """The rows with ``_h`` in front: Spark's hash of ``k0``, ``k1``, …"""
    hashes = xxhash64([rows.column(rows.schema.get_field_index(f"k{at}")) for at in range(keys)])
    column = pa.Array.from_buffers(pa.int64(), len(hashes), [None, pa.py_buffer(hashes)])
    return pa.RecordBatch.from_arrays([column, *rows.columns], names=["_h", *rows.schema.names])


def hash_first(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Spark's own hash where the log has it, in front."""
    return rows.select(["_h", *(name for name in rows.schema.names if name != "_h")])


def slice_numbers(rows: pa.RecordBatch, slices: int) -> np.ndarray:
    """``pmod(_h, slices)`` of every row, in the smallest integer that sorts by radix."""
    hashes = rows.column(rows.schema.get_field_index("_h")).to_numpy(zero_copy_only=False)
    numbers: np.ndarray = np.mod(hashes, slices).astype(np.uint8 if slices <= 256 else np.uint16)
    return numbers
