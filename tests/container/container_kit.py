"""Several real containers of one job with two stages, and a hand that writes the log as intake and master would."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import incubator
import numpy as np
import pyarrow as pa

from holdfast.container.job import HostedJob
from holdfast.container.messages import Host
from holdfast.container.service import ContainerService
from holdfast.launch.local import ContainerProcess, ContainerSettings
from holdfast.launch.process import assembled
from holdfast.log.ledger import Ledger
from holdfast.log.records import FEED, Fence, Manifest, Prepare, Range, SegmentRef
from holdfast.log.segment import SegmentWriter, segment_name
from holdfast.log.store import Store
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.ring.messages import JoinRing
from holdfast.wire.client import Client
from holdfast.wire.codec import Sender
from holdfast.wire.messages import Address, Applied, Apply, Call, CopiesSent, Reply, Restore, SendCopies
from holdfast.wire.questions import AskVersions, ScanTicket

NEVER = 120.0
"""Seconds after which something that should have happened will not: no measure, only an end to waiting."""
SLICES = 4
ALL = list(range(SLICES))
TOKEN = "secret"
A = TypeVar("A", bound=Reply)
COUNTS = StagePlan(
    "counts",
    1,
    (InputPlan(1, 0),),
    StageSpec(
        (Column("k", "bigint"),),
        (AggregateSpec("n", "count", None, None), AggregateSpec("total", "sum", "v0", "bigint")),
    ),
)
TEXTS = StagePlan(
    "texts",
    1,
    (InputPlan(1, 1),),
    StageSpec(
        (Column("k", "string"),),
        (AggregateSpec("n", "count", None, None), AggregateSpec("most", "max", "v0", "string")),
    ),
)


def hashes(keys: Sequence[int]) -> np.ndarray:
    """Any hash will do, as long as it is always the same for a key."""
    mixed = np.asarray(keys, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(1)).astype(np.int64)


def inputs(keys: Sequence[int], values: Sequence[int]) -> list[pa.RecordBatch]:
    """The rows of both stages."""
    hashed = pa.array(hashes(keys))
    texts = [f"key {key}" for key in keys]
    return [
        pa.record_batch({"_h": hashed, "k0": pa.array(keys, pa.int64()), "v0": pa.array(values, pa.int64())}),
        pa.record_batch({"_h": hashed, "k0": pa.array(texts), "v0": pa.array([f"{value:05d}" for value in values])}),
    ]


class World:
    """Containers ``c0``, ``c1``, … over one store: services of this process, or ``processes`` where one must die."""

    def __init__(
        self,
        path: Path,
        containers: int = 2,
        plans: Sequence[StagePlan] = (COUNTS, TEXTS),
        slices: int = SLICES,
        processes: bool = False,
        environment: Mapping[str, str] | None = None,
        ring: JoinRing | None = None,
        copy_bandwidth: float | None = None,
    ) -> None:
        self.ledger = Ledger(Store(str(path / "store")), "main")
        self.plans, self.slices = plans, slices
        self.prepares: dict[int, Prepare] = {}
        self.processes: dict[str, ContainerProcess] = {}
        self.services: list[ContainerService] = []
        names = [f"c{number}" for number in range(containers)]
        if processes:
            settings = ContainerSettings(TOKEN, threads=2)
            self.processes = {
                name: ContainerProcess(name, settings, environment, nursery=incubator.nursery()) for name in names
            }
            addresses = [process.await_ready() for process in self.processes.values()]
        else:
            self.services = [assembled(name, TOKEN, "127.0.0.1", 2, 1 << 20) for name in names]
            addresses = [one.address for one in self.services]
        self.clients = {address.container: Client(address, TOKEN, Sender("j", 1)) for address in addresses}
        host = Host("j", tuple(self.plans), self.slices, self.ledger.store.uri, "main", copy_bandwidth=copy_bandwidth)
        for number, name in enumerate(names):
            self.call(name, host)
            if ring is not None:
                self.call(name, replace(ring, contacts=tuple(addresses[:number])))

    def call(self, container: str, message: Call[A], incarnation: int = 1) -> A:
        return self.clients[container].call(message, sender=Sender("j", incarnation))

    def tell(self, name: str, kind: Any, epoch: int = 0, slices: Sequence[int] = ALL, **more: Any) -> Any:
        """An instruction for slices, as the master would give it."""
        if "epoch" in {field.name for field in fields(kind)}:
            more["epoch"] = epoch
        return self.call(name, kind(name, Fence(1, epoch, 1), frozenset(slices), **more))

    def own(self, name: str, slices: Sequence[int] = ALL) -> None:
        self.tell(name, Restore, 0, slices, checkpoint=0)

    def log(self, epoch: int, batches: Sequence[pa.RecordBatch]) -> Prepare:
        writer = SegmentWriter(self.slices)
        for number, rows in enumerate(batches[: len(self.plans)]):
            writer.append(number, rows, np.asarray(rows.column(0)) % self.slices)
        fence = Fence(1, epoch, 1)
        name = segment_name(fence, 1, 0, epoch)
        nbytes = self.ledger.section.write(name, writer.parts())
        ref = SegmentRef(name, writer.rows, nbytes, writer.checksum, 0, epoch)
        prepare = Prepare(fence, 1, {FEED: Range(epoch, epoch)}, (ref,), clock=0)
        self.prepares[epoch] = self.ledger.put_prepare(prepare)
        return self.prepares[epoch]

    def complete(self, epoch: int, pack: str) -> None:
        """A checkpoint of one pack counts."""
        self.ledger.put_manifest(Manifest(epoch, Fence(1, epoch, 1), (pack,), (0,) * self.slices, "the test"))

    def random_epoch(self, epoch: int, rng: random.Random, keys: int = 300) -> Prepare:
        picked = [rng.randrange(keys) for _ in range(rng.randrange(keys))] or [0]
        return self.log(epoch, inputs(picked, [rng.randrange(1000) for _ in picked]))

    def apply(self, name: str, epoch: int, slices: Sequence[int] = ALL, digests: Sequence[int] = ()) -> Applied:
        prepare = self.prepares[epoch].to_bytes()
        fence = Fence(1, epoch, 1)
        return self.call(name, Apply(name, fence, frozenset(slices), 1, frozenset(digests), prepare))

    def to(self, name: str, slices: Sequence[int] = ALL) -> tuple[Address, frozenset[int]]:
        return self.clients[name].address, frozenset(slices)

    def copy(self, name: str, epoch: int, *to: tuple[Address, frozenset[int]], silence: float = 10.0) -> CopiesSent:
        return self.call(name, replace(self.sending(name, epoch, *to), silence=silence))

    def sending(self, name: str, epoch: int, *to: tuple[Address, frozenset[int]]) -> SendCopies:
        slices = frozenset().union(*(some for _, some in to))
        peers = tuple((address.container, some) for address, some in to)
        addresses = tuple(address for address, _ in to)
        return SendCopies(name, Fence(1, epoch, 1), slices, epoch, peers, addresses=addresses)

    def versions(self, name: str, slices: Sequence[int] = ALL, incarnation: int = 1) -> dict[int, int]:
        return dict(self.call(name, AskVersions(tuple(slices)), incarnation).versions)

    def state(self, name: str, epoch: int, slices: Sequence[int] = ALL, mode: str = "read") -> list[Any]:
        """Every row of every stage in order: slot order is part of the state."""
        found: list[Any] = []
        for plan in self.plans:
            ticket = ScanTicket(plan.name, epoch, mode, tuple(slices))  # type: ignore[arg-type]
            seen: dict[int, int] = {}
            for place, batch in self.clients[name].scan(ticket):
                rows = iter(batch.to_pylist())
                for number, through in zip(place.slices, place.through, strict=True):
                    mine = itertools.islice(rows, through - seen.get(number, 0))
                    found += [(plan.name, number, *row.values()) for row in mine]
                    seen[number] = through
                assert not list(rows)
        return found

    def kill(self, name: str) -> None:
        self.processes[name].kill()

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        for process in self.processes.values():
            process.close()
        for service in self.services:
            service.close()


def held(sent: CopiesSent) -> dict[str, dict[int, int]]:
    """Peer → slice → version."""
    found: dict[str, dict[int, int]] = {}
    for peer, number, version in sent.held:
        found.setdefault(peer, {})[number] = version
    return found


def job_at(service: ContainerService) -> HostedJob:
    return service.jobs._jobs["j"]


def ring_at(service: ContainerService) -> Any:
    ring, _ = service._rooms
    return ring


def until(true: Any) -> None:
    deadline = time.monotonic() + NEVER
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
