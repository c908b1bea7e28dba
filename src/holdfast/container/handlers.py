"""What a container does when it is asked: one method for each call, found by its type.

Handlers only translate; what happens is in ``job`` and what that is made of.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from holdfast import faults
from holdfast.container import copies_out, splits
from holdfast.container.job import HostedJob
from holdfast.container.messages import CopiesPush, CopyPart, Host
from holdfast.container.priority import gently
from holdfast.container.staging import Staging
from holdfast.container.thread_table import ThreadTable
from holdfast.errors import ContainerError
from holdfast.log.ledger import Ledger
from holdfast.log.pack import pack_name
from holdfast.log.records import Fence, Prepare
from holdfast.log.segment import Chunk
from holdfast.log.store import Store
from holdfast.wire.codec import MessageError, Sender, Tagged, part_of
from holdfast.wire.handlers import handler
from holdfast.wire.messages import (
    Activate,
    Activated,
    Applied,
    Apply,
    CheckpointWritten,
    CopiesSent,
    Demote,
    Demoted,
    DigestsTaken,
    Done,
    DropCopies,
    Dropped,
    Forget,
    PacksVerified,
    Restore,
    Restored,
    SendCopies,
    TakeDigests,
    Undo,
    Undone,
    VerifyPacks,
    WriteCheckpoint,
)
from holdfast.wire.questions import (
    AskLoads,
    AskStatus,
    AskVersions,
    Collect,
    Collected,
    CopyVersions,
    Get,
    Got,
    HostedStatus,
    Pin,
    Ping,
    Pong,
    Renew,
    Renewed,
    RowsPart,
    RowsPush,
    ScanPart,
    ScanTicket,
    Scrub,
    Scrubbed,
    SetLimits,
    SetThreads,
    SliceLoads,
    ThreadsSet,
    Unpin,
)

SCAN_ROWS = 65_536


class Jobs:
    """The jobs that a container hosts, each behind the fence of its newest master."""

    def __init__(self, container: str) -> None:
        self._container = container
        self._jobs: dict[str, HostedJob] = {}

    def of(self, sender: Sender, leads: bool = True) -> HostedJob:
        job = self._jobs.get(sender.job)
        if job is None:
            raise ContainerError(
                f"Container '{self._container}' does not host job '{sender.job}'.",
                safe="Nothing was read or changed.",
                todo="Ask the job's master for its containers.",
            )
        job.admit(sender.incarnation, leads)
        return job

    def __contains__(self, job: str) -> bool:
        return job in self._jobs

    def add(self, job: HostedJob) -> None:
        self._jobs[job.job] = job

    def close(self) -> None:
        for job in self._jobs.values():
            job.close()


class Handlers:
    """Those that are about a job are given it; it has heard by then which master asks."""

    def __init__(self, container: str, token: str, jobs: Jobs, threads: ThreadTable, staging_bytes: int) -> None:
        self._container, self._token = container, token
        self._jobs, self._threads = jobs, threads
        self._staging_bytes = staging_bytes
        self._lock = threading.Lock()

    # --- about the container itself -----------------------------------------------------------------------

    @handler
    def ping(self, call: Ping) -> Pong:
        return Pong(self._container, os.getpid())

    @handler
    def host(self, call: Host) -> Done:
        with self._lock:
            if call.job not in self._jobs:
                ledger = Ledger(Store(call.store), call.section)
                self._jobs.add(
                    HostedJob(
                        call.job,
                        call.stages,
                        call.slices,
                        ledger,
                        self._threads,
                        Staging(self._staging_bytes),
                        call.upload,
                        call.copy_bandwidth,
                        call.graph,
                        call.checks,
                    )
                )
        return Done()

    @handler
    def set_threads(self, job: HostedJob, call: SetThreads) -> ThreadsSet:
        began = time.perf_counter()
        if call.repartition:
            job.repartition()
        self._threads.resize(call.threads)
        return ThreadsSet(time.perf_counter() - began)

    @handler
    def set_limits(self, job: HostedJob, call: SetLimits) -> Done:
        job.limit(call.links)
        return Done()

    @handler
    def ask_status(self, job: HostedJob, call: AskStatus) -> HostedStatus:
        return job.status(self._threads.threads)

    @handler
    def ask_loads(self, job: HostedJob, call: AskLoads) -> SliceLoads:
        return SliceLoads(job.loads.snapshot())

    # --- epochs -------------------------------------------------------------------------------------------

    @handler
    def apply(self, job: HostedJob, call: Apply) -> Applied:
        epoch, level = call.fence.epoch, call.level
        file = Prepare.file_of(epoch, level)
        prepare = Prepare.from_bytes(call.prepare, file) if call.prepare else job.log.prepare(epoch, level)
        job.commit(epoch - 1)
        stages = job.apply(prepare, sorted(call.slices), shadow=call.shadow)
        entries = job.entries(prepare, sorted(call.slices), f"{self._container}-{call.id}")
        return Applied(call.id, job.digests(level, epoch, sorted(call.digests)), stages, entries)

    @handler
    def undo(self, job: HostedJob, call: Undo) -> Undone:
        job.undo(call.fence.epoch, sorted(call.slices))
        return Undone(call.id)

    # --- slices come and go -------------------------------------------------------------------------------

    @handler
    def restore(self, job: HostedJob, call: Restore) -> Restored:
        return Restored(call.id, *job.restore(sorted(call.slices), call.epoch, call.checkpoint))

    @handler
    def activate(self, job: HostedJob, call: Activate) -> Activated:
        nbytes, replayed = job.activate(sorted(call.slices), call.epoch)
        return Activated(call.id, nbytes, replayed)

    @handler
    def demote(self, job: HostedJob, call: Demote) -> Demoted:
        job.demote(sorted(call.slices), call.epoch)
        return Demoted(call.id)

    @handler
    def take_digests(self, job: HostedJob, call: TakeDigests) -> DigestsTaken:
        graph, found = gently(lambda: job.state_digests(call.epoch, sorted(call.slices)))
        return DigestsTaken(call.id, found, graph)

    @handler
    def forget(self, job: HostedJob, call: Forget) -> Dropped:
        job.forget(call.slices)
        job.backups.drop(call.slices)
        return Dropped(call.id)

    # --- copies and packs ---------------------------------------------------------------------------------

    @handler
    def send_copies(self, job: HostedJob, call: SendCopies) -> CopiesSent:
        return copies_out.copy(job, call, self._token)

    @handler
    def drop_copies(self, job: HostedJob, call: DropCopies) -> Dropped:
        job.backups.drop(call.slices)
        return Dropped(call.id)

    @handler
    def ask_versions(self, job: HostedJob, call: AskVersions) -> CopyVersions:
        return CopyVersions(job.backups.versions(call.slices))

    @handler
    def take_copies(self, job: HostedJob, push: CopiesPush, reader: flight.MetadataRecordBatchReader) -> None:
        """An owner's copies of slices of one stage. What does not fit here is left out; the owner asks what we have."""
        job.adopt(push.graph)
        try:
            for part in reader:
                job.admit(push.incarnation)  # a copy can take long enough for its master to be replaced
                told = part_of(part.app_metadata, CopyPart)
                message = job.backups.opened(push.table, part.data)
                if message is None:
                    continue
                start = 0
                for number, rows, tables, header in zip(told.slices, told.rows, told.tables, told.headers, strict=True):
                    mine = message.slice(start, start + rows)
                    job.backups.receive(push.copy, push.table, number, header, mine, tables)
                    start += rows
        finally:
            job.backups.end(push.copy, push.table)

    @handler
    def write_checkpoint(self, job: HostedJob, call: WriteCheckpoint) -> CheckpointWritten:
        pack = pack_name(Fence(call.fence.incarnation, call.epoch, call.fence.attempt), call.label)

        def write() -> int:
            splits.refuse_gone(job.splits, job.stages, call.epoch)
            return job.checkpoints.write(call.epoch, sorted(call.slices), pack)

        return CheckpointWritten(call.id, pack, write() if job.checkpoints.hurried else gently(write))

    @handler
    def verify_packs(self, job: HostedJob, call: VerifyPacks) -> PacksVerified:
        gently(lambda: job.checkpoints.verify(str(pack.file) for pack in call.packs))
        return PacksVerified(call.id)

    @handler
    def scrub(self, job: HostedJob, call: Scrub) -> Scrubbed:
        return Scrubbed(job.log.scrub(call.first, call.last, job.levels_of))

    # --- reading ------------------------------------------------------------------------------------------

    @handler
    def pin(self, job: HostedJob, call: Pin) -> Done:
        job.reading.pin(call.reader, call.epoch)
        return Done()

    @handler
    def renew(self, job: HostedJob, call: Renew) -> Renewed:
        return Renewed(job.reading.renew(call.reader))

    @handler
    def unpin(self, job: HostedJob, call: Unpin) -> Done:
        job.reading.unpin(call.reader, job.committed)
        return Done()

    @handler
    def get(self, job: HostedJob, call: Get) -> Got:
        keys = _keys(call)
        if call.epoch is None:
            epoch, batch = job.backups.read(call.stage, call.slice, keys)
            splits.refuse_unborn(job.splits, call.stage, epoch)
        else:
            epoch, batch = call.epoch, job.reading.get(call.stage, call.slice, call.epoch, keys)
        return Got(epoch, _stream(batch.schema, [batch]))

    @handler
    def collect(self, job: HostedJob, call: Collect) -> Collected:
        found = []
        for stage, port in call.outputs:
            outputs = job.reading.outputs(stage, call.slices, call.epoch, call.mode, port)
            batches = [batch for _, batch in outputs if batch.num_rows]
            found.append(_stream(batches[0].schema, [pa.concat_batches(batches)]) if batches else b"")
            faults.place("container", "mid-sink", call.epoch)
        return Collected(tuple(found))

    @handler
    def scan(self, job: HostedJob, ticket: ScanTicket) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, Tagged]]]:
        try:
            schema = job.reading.schema(ticket.stage, ticket.mode, ticket.port)
            if ticket.columns:
                schema = pa.schema([schema.field(name) for name in ticket.columns])
        except KeyError as error:
            raise MessageError(
                f"There is no such stage, output or column of '{ticket.stage}' here: {error}.",
                safe="Nothing was read.",
                todo="Read a stage that run.status() names, and columns that its schema has.",
            ) from None
        return schema, _scanned(job, ticket)

    @handler
    def take_rows(self, job: HostedJob, push: RowsPush, reader: flight.MetadataRecordBatchReader) -> None:
        """One task's rows of one input for the slices that live here. Best effort: the log has them too."""
        staging = job.staging
        key = (push.segment, push.input)
        entry = staging.begin(push.epoch, key, frozenset(push.slices))
        for chunk in reader:
            slices, bounds = _places(chunk.data, part_of(chunk.app_metadata, RowsPart))
            if not staging.add(key, entry, Chunk(push.input, chunk.data, slices, bounds)):
                raise ContainerError("Staging is full: read the log.", safe="The rows are in their segment.")
        staging.seal(key, entry, push.chunks, push.rows)


def _places(rows: pa.RecordBatch | None, told: RowsPart) -> tuple[np.ndarray, np.ndarray]:
    """The slices of a chunk, and where the rows of each begin and end: kernels go by that without another look."""
    if rows is not None and told.slices and not len(told.slices) % 8 and len(told.bounds) == len(told.slices) + 8:
        slices, bounds = (np.frombuffer(part, dtype=np.int64) for part in (told.slices, told.bounds))
        if bounds[0] == 0 and bounds[-1] == rows.num_rows and not (np.diff(bounds) < 0).any():
            return slices, bounds
    raise MessageError(
        "What was pushed does not say whose rows these are.",
        safe="Nothing of it is used: the rows are in their segment.",
    )


def _keys(call: Get) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(call.keys) as reader:
            return reader.read_next_batch()
    except (pa.ArrowException, StopIteration) as error:
        raise MessageError(
            f"The keys to get are no Arrow stream with a batch in it: {error}.", safe="Nothing was read."
        ) from None


def _scanned(job: HostedJob, ticket: ScanTicket) -> Iterator[tuple[pa.RecordBatch, Tagged]]:
    outputs = job.reading.outputs(ticket.stage, ticket.slices, ticket.epoch, ticket.mode, ticket.port, ticket.reader)
    # Where a slice comes back from its units its rows have another order: then they come all at once.
    for numbers, batch in _gathered(outputs, ticket.skip, whole=job.steering is not None):
        yield (batch.select(list(ticket.columns)) if ticket.columns else batch), ScanPart(*zip(*numbers, strict=True))
        faults.place("container", "mid-sink", ticket.epoch)


def _gathered(
    outputs: Iterable[tuple[int, pa.RecordBatch]], skip: Mapping[int, int], *, whole: bool
) -> Iterator[tuple[list[tuple[int, int]], pa.RecordBatch]]:
    """The rows in batches of a good size, however few each slice has or however many: whose they are, and through
    which row. If they are to be ``whole``, no slice is in two of them."""
    numbers: list[tuple[int, int]] = []
    parts: list[pa.RecordBatch] = []
    rows = 0
    for number, every in outputs:
        start = skip.get(number, 0)
        while start < every.num_rows:
            part = every.slice(start, every.num_rows if whole else SCAN_ROWS - rows)
            start += part.num_rows
            rows += part.num_rows
            numbers.append((number, start))
            parts.append(part)
            if rows >= SCAN_ROWS:
                yield numbers, pa.concat_batches(parts)
                numbers, parts, rows = [], [], 0
    if parts:
        yield numbers, parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as out:
        for batch in batches:
            out.write_batch(batch)
    return bytes(sink.getvalue())
