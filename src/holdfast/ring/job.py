"""A job whose state is kept in pieces on the ring: what saving, providing and gathering share in one container."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holdfast.container.job import HostedJob
from holdfast.container.slices import table_name
from holdfast.errors import EpochGone
from holdfast.ids import id_of
from holdfast.ring.crew import Crew
from holdfast.ring.messages import Holding, Policy
from holdfast.ring.meters import Meters, known
from holdfast.ring.node import Ring
from holdfast.ring.pieces import Pieces
from holdfast.safety.shards import Cut, key_of
from holdfast.state.table import Layout
from holdfast.wire.client import Client
from holdfast.wire.codec import Sender
from holdfast.wire.messages import Address


@dataclass(frozen=True)
class Terms:
    """How a job's slices are cut, and by which structure they come back."""

    cut: Cut
    policy: Policy


class RingedJob:
    def __init__(self, job: HostedJob, incarnation: int, ring: Ring, terms: Terms, token: str) -> None:
        self.job, self.incarnation, self.ring, self.terms = job, incarnation, ring, terms
        self.upload, self.download = job.upload, job.download
        self._known: tuple[int, dict[str, Layout]] = (-1, {})
        self.pieces = Pieces(lambda table: self.layouts.get(table))
        self.meters = Meters()
        self.crew = Crew("holdfast-ringed")
        self._token = token
        self._lock = threading.Lock()
        self._clients: dict[Address, Client] = {}

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """Of the tables of the graph that the job has by now."""
        graph = self.job.graph
        if self._known[0] != graph:
            stages = list(self.job.stages.items())
            tables = ((name, at, layout) for name, stage in stages for at, layout in enumerate(stage.operator.layouts))
            self._known = graph, {table_name(name, at): layout for name, at, layout in tables}
        return self._known[1]

    def layout(self, table: str) -> Layout:
        found = self.layouts.get(table)
        if found is None:
            raise EpochGone(
                f"There is no table '{table}' of job '{self.job.job}' here.",
                safe="Reading changes nothing.",
                todo="Its stage was removed while the job ran.",
            )
        return found

    @property
    def me(self) -> str:
        return self.ring.me.container

    def client(self, peer: Address) -> Client:
        """One for each peer, for as long as this job is here: a connection costs more than most of what is asked."""
        with self._lock:
            if peer not in self._clients:
                self._clients[peer] = Client(peer, self._token, Sender(self.job.job, self.incarnation))
            return self._clients[peer]

    def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()
        self.crew.close()

    def holding(self, slices: Collection[int]) -> Holding:
        """What this container tells those who may need it: its pieces of these slices, and how fast it is."""
        upload, held = known(self.upload.rate, self.meters.upload.value), tuple(self.pieces.inventory(slices))
        return Holding(held, upload, self.meters.merge.value, self.job.graph)

    def leaf(self, slice_: int) -> tuple[Address, ...]:
        """The containers that may hold pieces of a slice, the nearest to its key first."""
        return self.ring.leaf(key_of(self.job.job, slice_))

    def around(self) -> dict[str, Address]:
        """This container and its leaves, in the order of the ring."""
        everyone = sorted((self.ring.me, *self.ring.neighbours), key=lambda one: id_of(one.container))
        return {one.container: one for one in everyone}
