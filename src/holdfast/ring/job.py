"""A job whose state is kept in pieces on the ring: what saving, providing and gathering share in one container."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.container.job import HostedJob
from holdfast.container.slices import table_name
from holdfast.ids import id_of
from holdfast.invariants import Impossible
from holdfast.recovery.policies import Auto, Line, Star, Structure, Tree
from holdfast.ring.crew import Crew
from holdfast.ring.meters import Meters, known
from holdfast.ring.node import Ring
from holdfast.ring.pieces import Pieces
from holdfast.safety.shards import Cut, key_of
from holdfast.state.table import Layout
from holdfast.wire.client import Address, Client

_POLICIES = {kind.__name__: kind for kind in (Star, Line, Tree, Auto)}


@dataclass(frozen=True)
class Terms:
    """How a job's slices are cut, and by which structure they come back."""

    cut: Cut
    policy: Structure | Auto

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Terms:
        made = _POLICIES[data["policy"]](**data["parameters"])
        if not isinstance(made, Star | Line | Tree | Auto):
            raise Impossible(f"{made!r} is no Star | Line | Tree | Auto")
        return Terms(Cut(**data["cut"]), made)


class RingedJob:
    def __init__(self, job: HostedJob, incarnation: int, ring: Ring, terms: Terms, token: str) -> None:
        self.job, self.incarnation, self.ring, self.terms = job, incarnation, ring, terms
        self.upload, self.download = job.upload, job.download
        self.layouts: dict[str, Layout] = {
            table_name(stage, at): job.stages[stage].operator.layouts[at] for stage, at in job.tables
        }
        self.pieces = Pieces(self.layouts)
        self.meters = Meters()
        self.crew = Crew("holdfast-ringed")
        self._token = token
        self._lock = threading.Lock()
        self._clients: dict[Address, Client] = {}

    @property
    def me(self) -> str:
        return self.ring.me.container

    @property
    def header(self) -> dict[str, Any]:
        """What every request to a peer begins with."""
        return {"job": self.job.job, "incarnation": self.incarnation}

    def client(self, peer: Address) -> Client:
        """One for each peer, for as long as this job is here: a connection costs more than most of what is asked."""
        with self._lock:
            if peer not in self._clients:
                self._clients[peer] = Client(peer, self._token)
            return self._clients[peer]

    def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()
        self.crew.close()

    def holding(self, slices: Collection[int]) -> dict[str, Any]:
        """What this container tells those who may need it: its pieces of these slices, and how fast it is."""
        held = [[list(one.piece), list(one.version), one.nbytes] for one in self.pieces.inventory(slices)]
        upload = known(self.upload.rate, self.meters.upload.value)
        return {"held": held, "upload": upload, "merge": self.meters.merge.value}

    def leaf(self, slice_: int) -> tuple[Address, ...]:
        """The containers that may hold pieces of a slice, the nearest to its key first."""
        return self.ring.leaf(key_of(self.job.job, slice_))

    def around(self) -> dict[str, Address]:
        """This container and its leaves, in the order of the ring."""
        everyone = sorted((self.ring.me, *self.ring.neighbours), key=lambda one: id_of(one.container))
        return {one.container: one for one in everyone}
