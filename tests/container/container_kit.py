"""Several real containers of one job with two stages, and a hand that writes the log as intake and master would."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import incubator
import numpy as np
import pyarrow as pa

from holdfast.container.service import ContainerService
from holdfast.launch.local import ContainerProcess, ContainerSettings
from holdfast.log.ledger import Ledger
from holdfast.log.records import FEED, Batch, Fence, Prepare, SegmentRef
from holdfast.log.segment import SegmentWriter, segment_name
from holdfast.log.store import Store
from holdfast.operators.aggregate import AggregateSpec, Column, StageSpec
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.wire.client import Address, Client

SLICES = 4
ALL = list(range(SLICES))
TOKEN = "secret"
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
        ring: Mapping[str, Any] | None = None,
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
            self.services = [ContainerService(name, TOKEN, "127.0.0.1", 2, 1 << 20) for name in names]
            addresses = [Address(one.container, f"grpc://127.0.0.1:{one.port}") for one in self.services]
        self.clients = {address.container: Client(address, TOKEN) for address in addresses}
        plans = [plan.to_dict() for plan in self.plans]
        known: list[list[str]] = []
        for name in names:
            more = {} if ring is None else {"ring": {**ring, "contacts": list(known)}}
            store = self.ledger.store.uri
            self.call(name, "host", stages=plans, slices=self.slices, store=store, section="main", **more)
            known.append([name, self.clients[name].address.location])

    def call(self, container: str, action: str, *blobs: bytes, **header: Any) -> dict[str, Any]:
        answer, _ = self.clients[container].call(action, {"job": "j", "incarnation": 1, **header}, *blobs)
        return answer

    def own(self, name: str, slices: Sequence[int] = ALL) -> None:
        self.call(name, "restore", slices=list(slices), epoch=0, checkpoint=0, packs={})

    def log(self, epoch: int, batches: Sequence[pa.RecordBatch]) -> Prepare:
        writer = SegmentWriter(self.slices)
        for number, rows in enumerate(batches[: len(self.plans)]):
            writer.append(number, rows, np.asarray(rows.column(0)) % self.slices)
        fence = Fence(1, epoch, 1)
        name = segment_name(fence, 1, 0, epoch)
        nbytes = self.ledger.section.write(name, writer.parts())
        ref = SegmentRef(name, writer.rows, nbytes, writer.checksum, 0, epoch)
        prepare = Prepare(fence, 1, {FEED: Batch("q", epoch - 1, f"offsets of {epoch}")}, (ref,), clock=0)
        self.prepares[epoch] = self.ledger.put_prepare(prepare)
        return self.prepares[epoch]

    def random_epoch(self, epoch: int, rng: random.Random, keys: int = 300) -> Prepare:
        picked = [rng.randrange(keys) for _ in range(rng.randrange(keys))] or [0]
        return self.log(epoch, inputs(picked, [rng.randrange(1000) for _ in picked]))

    def apply(self, name: str, epoch: int, slices: Sequence[int] = ALL, **more: Any) -> dict[str, Any]:
        prepare = self.prepares[epoch]
        head = {"name": prepare.file, "slices": list(slices), "committed": epoch - 1}
        return self.call(name, "apply", prepare.to_bytes(), **head, **more)

    def to(self, name: str, slices: Sequence[int] = ALL) -> dict[str, Any]:
        return {"container": name, "location": self.clients[name].address.location, "slices": list(slices)}

    def copy(self, name: str, epoch: int, *to: dict[str, Any], **more: Any) -> dict[str, Any]:
        return self.call(name, "copy", epoch=epoch, to=list(to), **{"bandwidth": None, **more})

    def versions(self, name: str, slices: Sequence[int] = ALL) -> dict[int, int]:
        found = self.call(name, "versions", slices=list(slices))["versions"]
        return {int(number): version for number, version in found.items()}

    def state(self, name: str, epoch: int, slices: Sequence[int] = ALL, mode: str = "read") -> list[Any]:
        """Every row of every stage in order: slot order is part of the state."""
        found: list[Any] = []
        for plan in self.plans:
            head = {"job": "j", "incarnation": 1, "stage": plan.name, "epoch": epoch, "mode": mode}
            for place, batch in self.clients[name].scan({**head, "slices": list(slices)}):
                found += [(plan.name, place["slice"], *row.values()) for row in batch.to_pylist()]
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


def until(true: Any, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)
