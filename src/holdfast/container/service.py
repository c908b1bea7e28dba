"""The Flight face of a container: DoPut brings rows in, DoGet takes outputs out, DoAction is control.

No call moves bulk data both ways, so none can fill both directions and stick. Handlers only translate; what happens is
in ``hosting``. An error of ours crosses as its wire form inside a Flight error.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from holdfast import faults
from holdfast.container import copies_out as copying
from holdfast.container.job import HostedJob
from holdfast.container.priority import gently
from holdfast.container.staging import Staging
from holdfast.container.threads import ThreadTable
from holdfast.errors import ContainerError, HoldfastError
from holdfast.log.ledger import Ledger
from holdfast.log.records import Prepare
from holdfast.log.segment import Chunk
from holdfast.log.store import Store
from holdfast.operators.stage import StagePlan
from holdfast.ring.service import RingFace
from holdfast.state.copies import Header
from holdfast.state.slice import MAIN
from holdfast.wire import framing as wire
from holdfast.wire.causes import named
from holdfast.wire.client import Address

SCAN_ROWS = 65_536
Answer = tuple[dict[str, Any], list[bytes]]
T = TypeVar("T")


class ContainerService(flight.FlightServerBase):
    def __init__(self, container: str, token: str, host: str, threads: int, staging_bytes: int) -> None:
        super().__init__(f"grpc://{host}:0", middleware={"door": wire.Doorkeeper(token, container)})
        self.container = container
        self._token = token
        self._host_name = host
        self._threads = ThreadTable(threads)
        self._staging_bytes = staging_bytes
        self._jobs: dict[str, HostedJob] = {}
        self._lock = threading.Lock()
        self._ring = RingFace(token, self._job)
        self._actions: dict[str, Callable[[dict[str, Any], list[memoryview]], Answer]] = {
            "ping": lambda _header, _blobs: ({"container": self.container, "pid": os.getpid()}, []),
            "host": self._host,
            "restore": self._restore,
            "apply": self._apply,
            "undo": _quiet(lambda header: self._job(header).undo(header["epoch"], header["slices"])),
            "forget": _quiet(lambda header: self._job(header).forget(header["slices"])),
            "activate": lambda header, _: (self._job(header).activate(header["slices"], header["epoch"]), []),
            "demote": _quiet(lambda header: self._job(header).demote(header["slices"], header["epoch"])),
            "copy": self._copy,
            "versions": lambda header, _: ({"versions": self._job(header).backups.versions(header["slices"])}, []),
            "drop": _quiet(lambda header: self._job(header).backups.drop(header["slices"])),
            "loads": lambda header, _: ({"loads": self._job(header).loads.snapshot()}, []),
            "threads": lambda header, _: ({"seconds": self._resized(header)}, []),
            "limit": _quiet(lambda header: self._job(header).limit(header)),
            "checkpoint": self._checkpoint,
            "verify": lambda header, _: ({"bytes": gently(lambda: self._job(header).verify(header["packs"]))}, []),
            "scrub": self._scrub,
            "pin": _quiet(lambda header: self._job(header).reading.pin(header["reader"], header["epoch"])),
            "renew": lambda header, _: ({"renewed": self._job(header).reading.renew(header["reader"])}, []),
            "unpin": self._unpin,
            "get": self._get,
            "collect": self._collect,
            "status": lambda header, _: (self._job(header).status() | {"threads": self._threads.threads}, []),
            **self._ring.actions,
        }

    def close(self) -> None:
        self._ring.close()
        self.shutdown()
        self._threads.close()
        for job in self._jobs.values():
            job.close()

    # --- Flight's three verbs -----------------------------------------------------------------------------

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        with _crossing():
            run = self._actions.get(action.type)
            if run is None:
                raise HoldfastError(f"This container knows no action '{action.type}'.")
            header, blobs = run(*wire.unpack(action.body.to_pybytes()))
        return iter([flight.Result(wire.pack(header, *blobs))])

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        with _crossing():
            header, _ = wire.unpack(ticket.ticket)
            if header.get("kind") == "branch":
                schema, chunks = self._ring.branch(header)
                return flight.GeneratorStream(schema, _crossing_all(chunks))
            job = self._job(header)
            schema = job.reading.schema(header["stage"], header["mode"], header.get("port", MAIN))
        return flight.GeneratorStream(schema, self._scan(job, header))

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Rows that Spark's tasks push, or copies or pieces that another container sends."""
        with _crossing():
            header, _ = wire.unpack(descriptor.command)
            if header.get("kind") == "pieces":
                self._ring.take(header, reader)
                return
            take = self._take_copies if header.get("kind") == "copy" else self._take_rows
            take(self._job(header), header, reader)

    def _take_rows(self, job: HostedJob, header: dict[str, Any], reader: flight.MetadataRecordBatchReader) -> None:
        """One task's rows of one input for the slices that live here. Best effort: the log has them too."""
        staging = job.staging
        key = (header["segment"], header["input"])
        entry = staging.begin(header["epoch"], key, frozenset(header["slices"]))
        for chunk in reader:
            _, blobs = wire.unpack(chunk.app_metadata.to_pybytes())
            slices, bounds = (np.frombuffer(blob, dtype=np.int64) for blob in blobs)
            if not staging.add(key, entry, Chunk(header["input"], chunk.data, slices, bounds)):
                raise ContainerError("Staging is full: read the log.", safe="The rows are in their segment.")
        staging.seal(key, entry, header["chunks"], header["rows"])

    def _take_copies(self, job: HostedJob, header: dict[str, Any], reader: flight.MetadataRecordBatchReader) -> None:
        """An owner's copies of slices of one stage. What does not fit here is left out; the owner asks what we have."""
        try:
            for part in reader:
                job.admit(header["incarnation"])  # a copy can take long enough for its master to be replaced
                about, _ = wire.unpack(part.app_metadata.to_pybytes())
                told = Header.from_dict(about["copy"])
                job.backups.receive(header["copy"], header["table"], about["slice"], told, part.data)
        finally:
            job.backups.end(header["copy"], header["table"])

    # --- actions ------------------------------------------------------------------------------------------

    def _host(self, header: dict[str, Any], _: list[memoryview]) -> Answer:
        plans = [StagePlan.from_dict(plan) for plan in header["stages"]]
        with self._lock:
            if header["job"] not in self._jobs:
                self._jobs[header["job"]] = HostedJob(
                    header["job"],
                    plans,
                    header["slices"],
                    Ledger(Store(header["store"]), header["section"]),
                    self._threads,
                    Staging(self._staging_bytes),
                    header.get("upload"),
                )
        me = Address(self.container, f"grpc://{self._host_name}:{self.port}")
        self._ring.host(me, self._job(header), header)
        return {}, []

    def _restore(self, header: dict[str, Any], _: list[memoryview]) -> Answer:
        result = self._job(header).restore(header["slices"], header["epoch"], header["checkpoint"], header["packs"])
        return result, []

    def _apply(self, header: dict[str, Any], blobs: list[memoryview]) -> Answer:
        prepare = Prepare.from_bytes(bytes(blobs[0]), header["name"])
        job = self._job(header)
        job.commit(header["committed"])
        return job.apply(prepare, header["slices"], header.get("digests", ())), []

    def _copy(self, header: dict[str, Any], _: list[memoryview]) -> Answer:
        to = [copying.Destination.from_dict(one) for one in header["to"]]
        limits = {name: header[name] for name in ("bandwidth", "silence") if name in header}
        job = self._job(header)
        return copying.copy(job, header["incarnation"], header["epoch"], to, self._token, **limits), []

    def _resized(self, header: dict[str, Any]) -> float:
        self._job(header)
        began = time.perf_counter()
        if header.get("repartition"):
            self._job(header).repartition()
        self._threads.resize(header["threads"])
        return time.perf_counter() - began

    def _checkpoint(self, header: dict[str, Any], _: list[memoryview]) -> Answer:
        job = self._job(header)

        def write() -> dict[str, Any]:
            return job.checkpoint(header["epoch"], header["slices"], header["pack"])

        return write() if job.checkpoints.hurried else gently(write), []

    def _scrub(self, header: dict[str, Any], _: list[memoryview]) -> Answer:
        job = self._job(header)
        return {"segments": job.log.scrub(header["first"], header["last"], job.levels)}, []

    def _unpin(self, header: dict[str, Any], _: list[memoryview]) -> Answer:
        job = self._job(header)
        job.reading.unpin(header["reader"], job.committed)
        return {}, []

    def _get(self, header: dict[str, Any], blobs: list[memoryview]) -> Answer:
        with pa.ipc.open_stream(blobs[0]) as reader:
            keys = reader.read_next_batch()
        job, stage, number = self._job(header), header["stage"], header["slice"]
        if header.get("backup"):
            epoch, batch = job.backups.read(stage, number, keys)
        else:
            epoch = header["epoch"]
            batch = job.reading.get(stage, number, epoch, keys)
        return {"epoch": epoch}, [_stream(batch.schema, [batch])]

    def _collect(self, header: dict[str, Any], _: list[memoryview]) -> Answer:
        """A small output in one answer; large ones are scanned."""
        job = self._job(header)
        outputs = job.reading.outputs(
            header["stage"], header["slices"], header["epoch"], header["mode"], header.get("port", MAIN)
        )
        batches = [batch for _, batch in outputs if batch.num_rows]
        faults.place("container", "mid-sink", header["epoch"])
        if not batches:
            return {}, []
        return {}, [_stream(batches[0].schema, [pa.concat_batches(batches)])]

    def _scan(self, job: HostedJob, header: dict[str, Any]) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        skip = {int(number): rows for number, rows in header.get("skip", {}).items()}
        with _crossing():
            what = (header["stage"], header["slices"], header["epoch"], header["mode"], header.get("port", MAIN))
            for number, batch in job.reading.outputs(*what, header.get("reader", "")):
                for start in range(skip.get(number, 0), batch.num_rows, SCAN_ROWS):
                    part = batch.slice(start, SCAN_ROWS)
                    yield part, wire.pack({"slice": number, "row": start})
                    faults.place("container", "mid-sink", header["epoch"])

    def _job(self, header: dict[str, Any]) -> HostedJob:
        job = self._jobs.get(header["job"])
        if job is None:
            raise ContainerError(
                f"Container '{self.container}' does not host job '{header['job']}'.",
                safe="Nothing was read or changed.",
                todo="Ask the job's master for its containers.",
            )
        job.admit(header["incarnation"])
        return job


def _stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as out:
        for batch in batches:
            out.write_batch(batch)
    return bytes(sink.getvalue())


def _crossing_all(chunks: Iterator[T]) -> Iterator[T]:
    with _crossing():
        yield from chunks


def _quiet(run: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any], list[memoryview]], Answer]:
    """An action with nothing to tell."""

    def action(header: dict[str, Any], _: list[memoryview]) -> Answer:
        run(header)
        return {}, []

    return action


class _crossing:  # noqa: N801 - reads as a statement: with _crossing()
    """Turns our errors into Flight errors that carry them whole, and any other into one that says where it was."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, flight.FlightError | GeneratorExit):
            return
        if not isinstance(error, HoldfastError):
            _report(error)
        raise flight.FlightServerError(named(error, "A container").to_wire()) from error


def _report(error: BaseException) -> None:
    traceback.print_exception(error, file=sys.stderr)
