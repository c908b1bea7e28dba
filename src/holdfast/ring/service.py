"""What a container answers to its peers and to the master about the ring: the Flight side of ``ring``, ``saving``,
``providing`` and ``healing``.

There is one ring for a container, from the first job on that wants one, and for each such job the pieces it holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from holdfast.container.job import HostedJob
from holdfast.container.priority import gently
from holdfast.errors import ContainerError
from holdfast.ring.branches import provide
from holdfast.ring.healing import Healing
from holdfast.ring.job import RingedJob, Terms
from holdfast.ring.node import Ring, RingTerms
from holdfast.ring.saving import save
from holdfast.safety.shards import PieceName, Version
from holdfast.state import copies
from holdfast.wire import framing as wire
from holdfast.wire.client import Address

Answer = tuple[dict[str, Any], list[bytes]]
Headers = dict[str, Any]


class RingFace:
    """``hosted`` finds the job that a request is about, and refuses an old master's."""

    def __init__(self, token: str, hosted: Callable[[Headers], HostedJob]) -> None:
        self._token = token
        self._hosted = hosted
        self._lock = threading.Lock()
        self._ring: Ring | None = None
        self._jobs: dict[str, tuple[RingedJob, Healing]] = {}
        self.actions: dict[str, Callable[[Headers, list[memoryview]], Answer]] = {
            "ring": self._letter,
            "leaves": self._leaves,
            "meet": self._meet,
            "pieces": lambda header, _: (self._job(header)[0].holding(set(header["slices"])), []),
            "owned": lambda header, _: (self._job(header)[1].owned(header["owners"]), []),
            "report": lambda header, _: (self._job(header)[1].report(header["owners"]), []),
            "drop-pieces": self._drop,
            "save": self._save,
            "gather": self._gather,
            "drill": self._drill,
        }

    def host(self, me: Address, job: HostedJob, header: Headers) -> None:
        """Take part in the ring for this job, if it wants that."""
        wanted = header.get("ring")
        if wanted is None:
            return
        with self._lock:
            if self._ring is None:
                self._ring = Ring(me, self._token, RingTerms.from_dict(wanted["terms"]), self._lost, self._found)
            if job.job not in self._jobs:
                ringed = RingedJob(job, header["incarnation"], self._ring, Terms.from_dict(wanted), self._token)
                self._jobs[job.job] = ringed, Healing(ringed, wanted.get("store", 0.0))
        self._ring.meet(Address(*one) for one in wanted["contacts"])

    def close(self) -> None:
        """Before the service stops: nothing of the ring is at work afterwards."""
        with self._lock:
            ring, jobs = self._ring, list(self._jobs.values())
        if ring is not None:
            ring.close()
        for ringed, healing in jobs:
            healing.close()
            ringed.close()

    # --- rows ---------------------------------------------------------------------------------------------

    def branch(self, header: Headers) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, bytes]]]:
        ringed, _ = self._job(header)
        return copies.schema(ringed.layouts[header["table"]]), provide(ringed, header)

    def take(self, header: Headers, reader: flight.MetadataRecordBatchReader) -> None:
        """An owner's pieces."""
        ringed, healing = self._job(header)
        saving, owner, table = header["saving"], header["owner"], header["table"]
        slices = set()
        try:
            for part in reader:
                self._hosted(header)  # it can take long enough for the master to be replaced
                about, _ = wire.unpack(part.app_metadata.to_pybytes())
                slices.add(PieceName(*about["piece"]).slice)
                ringed.pieces.receive(saving, owner, table, about, part.data)
        finally:
            ringed.pieces.end(saving, table)
        healing.overtaken(owner, slices)

    # --- actions ------------------------------------------------------------------------------------------

    def _letter(self, header: Headers, _: list[memoryview]) -> Answer:
        self._the_ring().receive(header)
        return {}, []

    def _leaves(self, _header: Headers, _: list[memoryview]) -> Answer:
        ring = self._the_ring()
        return {"leaves": [[one.container, one.location] for one in (ring.me, *ring.neighbours)]}, []

    def _meet(self, header: Headers, _: list[memoryview]) -> Answer:
        contacts = [Address(*one) for one in header["contacts"]]
        ring = self._the_ring()
        if any(one.container != ring.me.container for one in contacts):
            ring.meet(contacts)
        return {}, []

    def _drop(self, header: Headers, _: list[memoryview]) -> Answer:
        kept = {PieceName(*piece) for piece in header["kept"]}
        self._job(header)[0].pieces.drop(header["slices"], Version(*header["version"]), kept)
        return {}, []

    def _save(self, header: Headers, _: list[memoryview]) -> Answer:
        ringed, _healing = self._job(header)
        return gently(lambda: save(ringed, header["epoch"], header["slices"], header.get("bandwidth"))), []

    def _gather(self, header: Headers, _: list[memoryview]) -> Answer:
        ringed, healing = self._job(header)
        for container in header["lost"]:
            ringed.ring.ended(container)
        return healing.ready(set(header["slices"]), header["lost"], header["seconds"]), []

    def _drill(self, header: Headers, _: list[memoryview]) -> Answer:
        terms = Terms.from_dict(header["terms"])
        self._job(header)[1].drill(terms.policy, header["slices"], header["lost"])
        return {}, []

    # --- who ----------------------------------------------------------------------------------------------

    def _lost(self, container: str) -> None:
        with self._lock:
            jobs = list(self._jobs.values())
        for _, healing in jobs:
            healing.lost([container])

    def _found(self, container: str) -> None:
        with self._lock:
            jobs = list(self._jobs.values())
        for _, healing in jobs:
            healing.found(container)

    def _the_ring(self) -> Ring:
        if self._ring is None:
            raise ContainerError("This container is not part of a ring.", safe="Nothing was changed.")
        return self._ring

    def _job(self, header: Mapping[str, Any]) -> tuple[RingedJob, Healing]:
        self._hosted(dict(header))
        found = self._jobs.get(header["job"])
        if found is None:
            raise ContainerError(
                f"Job '{header['job']}' keeps nothing on the ring here.",
                safe="Nothing was read or changed.",
                todo="Start it with safety=hf.Shards(…).",
            )
        return found
