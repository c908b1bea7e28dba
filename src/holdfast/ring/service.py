"""What a container answers to its peers and to the master about the ring: the handlers over ``node``, ``saving``,
``branches`` and ``healing``.

There is one ring for a container, from the first job on that wants one, and for each such job the pieces it holds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as flight

from holdfast.container.job import HostedJob
from holdfast.container.priority import gently
from holdfast.errors import ContainerError
from holdfast.ring.branches import provide
from holdfast.ring.healing import Healing
from holdfast.ring.job import RingedJob, Terms
from holdfast.ring.messages import (
    AskLeaves,
    AskOwned,
    AskPieces,
    AskReport,
    BranchTicket,
    Drill,
    DropPieces,
    Holding,
    JoinRing,
    LeafSet,
    Letter,
    Meet,
    Owned,
    PiecePart,
    PiecesPush,
    Report,
)
from holdfast.ring.node import Ring
from holdfast.ring.saving import save
from holdfast.state import copies
from holdfast.wire.codec import Tagged, part_of
from holdfast.wire.handlers import handler
from holdfast.wire.messages import Address, Done, Gather, ReadySeen, SaveShards, ShardsSaved


class RingHandlers:
    def __init__(self, me: Address, token: str) -> None:
        self._me, self._token = me, token
        self._lock = threading.Lock()
        self._ring: Ring | None = None
        self._jobs: dict[str, tuple[RingedJob, Healing]] = {}

    def close(self) -> None:
        """Before the service stops: nothing of the ring is at work afterwards."""
        with self._lock:
            ring, jobs = self._ring, list(self._jobs.values())
        if ring is not None:
            ring.close()
        for ringed, healing in jobs:
            healing.close()
            ringed.close()

    # --- the ring itself ----------------------------------------------------------------------------------

    @handler
    def join(self, job: HostedJob, call: JoinRing) -> Done:
        with self._lock:
            if self._ring is None:
                self._ring = Ring(self._me, self._token, call.terms, self._lost, self._found)
            if call.cut is not None and job.job not in self._jobs:
                terms = Terms(call.cut, call.policy)
                ringed = RingedJob(job, job.incarnation, self._ring, terms, self._token)
                self._jobs[job.job] = ringed, Healing(ringed, call.store)
        self._ring.meet(call.contacts)
        return Done()

    @handler
    def meet(self, call: Meet) -> Done:
        ring = self.the_ring()
        if any(one.container != ring.me.container for one in call.contacts):
            ring.meet(call.contacts)
        return Done()

    @handler
    def letter(self, call: Letter) -> Done:
        self.the_ring().receive(call)
        return Done()

    @handler
    def ask_leaves(self, call: AskLeaves) -> LeafSet:
        ring = self.the_ring()
        return LeafSet((ring.me, *ring.neighbours))

    # --- pieces -------------------------------------------------------------------------------------------

    @handler
    def save(self, job: HostedJob, call: SaveShards) -> ShardsSaved:
        ringed, _ = self._of(job)
        return gently(lambda: save(ringed, call))

    @handler
    def ask_pieces(self, job: HostedJob, call: AskPieces) -> Holding:
        return self._of(job)[0].holding(call.slices)

    @handler
    def drop_pieces(self, job: HostedJob, call: DropPieces) -> Done:
        self._of(job)[0].pieces.drop(call.slices, call.version, set(call.kept))
        return Done()

    @handler
    def take_pieces(self, job: HostedJob, push: PiecesPush, reader: flight.MetadataRecordBatchReader) -> None:
        """An owner's pieces."""
        ringed, healing = self._of(job)
        slices = set()
        job.adopt(push.graph)
        try:
            for part in reader:
                job.admit(push.incarnation)  # it can take long enough for the master to be replaced
                told = part_of(part.app_metadata, PiecePart)
                slices.add(told.piece.slice)
                ringed.pieces.receive(push.saving, push.owner, push.table, push.tables, told, part.data)
        finally:
            ringed.pieces.end(push.saving, push.table)
        healing.overtaken(push.owner, slices)

    # --- bringing back ------------------------------------------------------------------------------------

    @handler
    def ask_owned(self, job: HostedJob, call: AskOwned) -> Owned:
        return self._of(job)[1].owned(call.owners)

    @handler
    def ask_report(self, job: HostedJob, call: AskReport) -> Report:
        return Report(self._of(job)[1].report(call.owners))

    @handler
    def branch(self, job: HostedJob, ticket: BranchTicket) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, Tagged]]]:
        ringed, _ = self._of(job)
        job.adopt(ticket.graph)
        return copies.schema(ringed.layout(ticket.table)), provide(ringed, ticket)

    @handler
    def gather(self, job: HostedJob, call: Gather) -> ReadySeen:
        ringed, healing = self._of(job)
        for container in call.lost:
            ringed.ring.ended(container)
        return healing.ready(call)

    @handler
    def drill(self, job: HostedJob, call: Drill) -> Done:
        self._of(job)[1].drill(call.policy, call.slices, call.lost)
        return Done()

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

    def the_ring(self) -> Ring:
        if self._ring is None:
            raise ContainerError(
                "This container is not part of a ring.",
                safe="Nothing was changed.",
                todo="Start the job with ring=True, or with safety=hf.Shards(…).",
            )
        return self._ring

    def _of(self, job: HostedJob) -> tuple[RingedJob, Healing]:
        found = self._jobs.get(job.job)
        if found is None:
            raise ContainerError(
                f"Job '{job.job}' keeps nothing on the ring here.",
                safe="Nothing was read or changed.",
                todo="Start it with safety=hf.Shards(…).",
            )
        return found
