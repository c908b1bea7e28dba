"""Star, line and tree between real containers against recovery from a store, with fast links and with slow ones.

Eight containers (real processes, driven without Spark) with state of one of them saved to the ring; that one is killed
and the other seven bring its slices back and make them active. Every container sends and receives at most 1 Gb/s, or
100 Mb/s. The store is behind one link of the same speed, shared evenly by the seven that read from it. Everything
runs on the cores of this machine, so where links are fast it is the work that is compared, not the network. Times are
from the loss being known to the last slice being active, medians.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from common import console, median, parser, report, scratch, table

from holdfast.container.client import Client
from holdfast.log.ledger import Ledger
from holdfast.log.records import Commit, Fence, Prepare, SegmentRef
from holdfast.log.segment import SegmentWriter, segment_name
from holdfast.log.store import Store
from holdfast.operators.aggregate import AggregateSpec, Column, StageSpec
from holdfast.plan.stage import InputPlan, StagePlan
from holdfast.recovery.policies import Auto, Line, Star, Structure, Tree
from holdfast.safety.shards import Cut
from holdfast.spark.launcher import ChildLauncher, ContainerSettings

CONTAINERS = 8
SLICES = 56
EPOCH_ROWS = 1_000_000
ROW_BYTES = 70
"""Of a row of this job in a full copy: what is sent, saved and read counts, as in the paper."""
CUT = Cut(m=4, n=2, parts=2)
LINKS = {"1 Gb/s": 125e6, "100 Mb/s": 12.5e6}
POLICIES: dict[str, Structure | Auto] = {
    "star": Star(fanout=8),
    "line": Line(length=3),
    "tree": Tree(fanout_bits=2, depth=2),
    "auto": Auto(),
}
STAGE = StagePlan(
    "counts",
    1,
    (InputPlan(1, 0),),
    StageSpec(
        (Column("k", "bigint"),),
        (
            AggregateSpec("n", "count", None, None),
            AggregateSpec("total", "sum", "v0", "double"),
            AggregateSpec("least", "min", "v0", "double"),
            AggregateSpec("most", "max", "v0", "double"),
        ),
    ),
)
TOKEN = "of this benchmark only"


class Fleet:
    """Containers of one job, called as a master would call them."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(Store(str(folder)), "main")
        self._launcher = ChildLauncher(ContainerSettings(TOKEN))
        names = [f"c{number}" for number in range(CONTAINERS)]
        self.handles = {name: self._launcher.start(name) for name in names}
        self.clients = {name: Client(handle.await_ready(), TOKEN) for name, handle in self.handles.items()}
        known: list[list[str]] = []
        for name, client in self.clients.items():
            ring = {"terms": {}, "contacts": list(known), **policy_terms(Star())}
            store = {"store": self.ledger.store.uri, "section": "main", "slices": SLICES}
            self.call(name, "host", stages=[STAGE.to_dict()], ring=ring, **store)
            known.append([name, client.address.location])
        while any(len(self.call(name, "leaves")["leaves"]) < CONTAINERS for name in names):
            time.sleep(0.05)

    def call(self, container: str, action: str, *blobs: bytes, **header: Any) -> dict[str, Any]:
        return self.clients[container].call(action, {"job": "j", "incarnation": 1, **header}, *blobs)[0]

    def limit(self, link: float | None) -> None:
        readers = CONTAINERS - 1
        for name in self.clients:
            share = None if link is None else link / readers
            self.call(name, "limit", upload=link, download=link, from_store=share)

    def kill(self, name: str) -> None:
        self.handles[name].kill()
        self.clients.pop(name).close()

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        for handle in self.handles.values():
            handle.close()
        self._launcher.close()


def policy_terms(policy: Structure | Auto) -> dict[str, Any]:
    return {"cut": asdict(CUT), "policy": type(policy).__name__, "parameters": asdict(policy)}


@contextmanager
def saved(megabytes: int) -> Iterator[tuple[Fleet, int, str, int, float]]:
    """Containers of which ``c0`` had so much state, and is dead: epoch, checkpoint, bytes of it, seconds of saving."""
    with scratch() as folder:
        fleet = Fleet(folder / "store")
        try:
            every = list(range(SLICES))
            fleet.call("c0", "restore", slices=every, epoch=0, checkpoint=0, packs={})
            epoch, held = 0, 0
            while held < megabytes << 20:
                epoch += 1
                append(fleet, epoch, min(EPOCH_ROWS, 1 + ((megabytes << 20) - held) // ROW_BYTES))
                held = ROW_BYTES * fleet.call("c0", "status")["stages"]["counts"]["rows"]
            pack = "checkpoint/benchmark.pack"
            size = fleet.call("c0", "checkpoint", epoch=epoch, slices=every, pack=pack)["bytes"]
            began = time.perf_counter()
            copies = fleet.call("c0", "save", epoch=epoch, slices=every)["copies"]
            assert set(copies.values()) == {CUT.n}, copies
            seconds = time.perf_counter() - began
            fleet.kill("c0")
            yield fleet, epoch, pack, size, seconds
        finally:
            fleet.close()


def append(fleet: Fleet, epoch: int, rows: int) -> None:
    """One epoch of keys that are all new: ids and measurements, which hardly compress."""
    chance = np.random.default_rng(epoch)
    keys = chance.integers(-(1 << 63), 1 << 63, rows, dtype=np.int64)
    hashed = (keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    batch = pa.record_batch({"_h": hashed, "k0": keys, "v0": chance.random(rows)})
    slices = np.mod(hashed, SLICES)
    order = np.argsort(slices, kind="stable")
    writer = SegmentWriter(SLICES)
    writer.append(0, batch.take(pa.array(order)), slices[order])
    fence = Fence(1, epoch, 1)
    name = segment_name(fence, 1, 0, epoch)
    nbytes = fleet.ledger.section.write(name, writer.parts())
    ref = SegmentRef(name, writer.rows, nbytes, writer.checksum, 0, epoch)
    prepare = fleet.ledger.put_prepare(Prepare(fence, 1, "q", epoch - 1, f"{epoch}", (ref,), clock=0))
    head = {"name": prepare.file, "slices": list(range(SLICES)), "committed": epoch - 1}
    fleet.call("c0", "apply", prepare.to_bytes(), **head)
    fleet.ledger.put_commit(Commit(fence, "q", epoch - 1, f"{epoch}"))


# ------------------------------------------------------------------------------------------------------- recoveries


def from_ring(fleet: Fleet, epoch: int, policy: Structure | Auto) -> tuple[float, set[str]]:
    """Seconds until every slice is active again, and what was chosen."""
    every = list(range(SLICES))
    drill = {"slices": every, "lost": ["c0"], "seconds": 120.0}

    def one(name: str) -> tuple[list[int], set[str]]:
        answer = fleet.call(name, "gather", **drill)
        assert not answer["beyond"], answer["beyond"]
        ready = [int(number) for number in answer["ready"]]
        if ready:
            fleet.call(name, "activate", slices=ready, epoch=epoch)
        return ready, {figures["structure"].partition("(")[0] for figures in answer["figures"]}

    for name in fleet.clients:  # nobody begins before all have forgotten
        fleet.call(name, "drill", **drill, terms=policy_terms(policy))
    began = time.perf_counter()
    found = together(fleet, one)
    seconds = time.perf_counter() - began
    active = sorted(number for ready, _ in found for number in ready)
    assert active == every, "each slice is active once"
    assert sum(bool(ready) for ready, _ in found) >= 3, "at least three containers replace"
    return seconds, set().union(*(chosen for _, chosen in found))


def from_store(fleet: Fleet, epoch: int, pack: str) -> float:
    names = list(fleet.clients)
    shares = [list(range(at, SLICES, len(names))) for at in range(len(names))]
    work = dict(zip(names, shares, strict=True))
    for name in names:
        fleet.call(name, "forget", slices=list(range(SLICES)))
        fleet.call(name, "drop", slices=list(range(SLICES)))
    began = time.perf_counter()
    together(
        fleet,
        lambda name: fleet.call(
            name, "restore", slices=work[name], epoch=epoch, checkpoint=epoch, packs={pack: work[name]}
        ),
    )
    return time.perf_counter() - began


def together(fleet: Fleet, work: Any) -> list[Any]:
    with ThreadPoolExecutor(len(fleet.clients)) as pool:
        return list(pool.map(work, fleet.clients))


def measure(megabytes: int, runs: int) -> list[dict[str, Any]]:
    """All ways of one size of state; one after the other, and round after round, so that noise meets all of them."""
    rows = []
    with saved(megabytes) as (fleet, epoch, pack, size, saving):
        for link, rate in LINKS.items():
            fleet.limit(rate)
            from_ring(fleet, epoch, Star())  # connections are made, pages touched
            seconds: dict[str, list[float]] = {way: [] for way in (*POLICIES, "store")}
            chosen: set[str] = set()
            for _ in range(runs):
                for way, policy in POLICIES.items():
                    took, how = from_ring(fleet, epoch, policy)
                    seconds[way].append(took)
                    chosen |= how if way == "auto" else set()
                seconds["store"].append(from_store(fleet, epoch, pack))
            row: dict[str, Any] = {"mb": megabytes, "link": link, "chosen": "/".join(sorted(chosen)).lower()}
            row |= {way: round(median(found), 3) for way, found in seconds.items()}
            row |= {"runs": {way: [round(one, 3) for one in found] for way, found in seconds.items()}}
            row |= {"pack_mb": round(size / 2**20, 1), "saving": round(saving, 2)}
            rows.append(row)
            console.print(f"  {megabytes} MB, {link}: " + ", ".join(f"{way} {row[way]} s" for way in seconds))
    return rows


def best(row: dict[str, Any]) -> float:
    return min(float(row[way]) for way in ("star", "line", "tree"))


def judged(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The share of the store's time that the best structure saves; and ``auto``'s time over that of the best."""
    found: dict[str, Any] = {}
    for name, link in (("best_vs_store", "1 Gb/s"), ("best_vs_store_limited", "100 Mb/s")):
        gains = [
            1 - min(row[way] for way in ("star", "line", "tree")) / row["store"] for row in rows if row["link"] == link
        ]
        found[name] = round(median(gains), 3)
        found[name + "_least"] = round(min(gains), 3)
    ratios = [row["auto"] / best(row) for row in rows]
    found["auto_vs_best"] = round(median(ratios), 3)
    found["auto_vs_best_most"] = round(max(ratios), 3)
    return found


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--sizes", type=int, nargs="+", default=[8, 32, 64, 128, 256], help="MB of state")
    options.add_argument("--runs", type=int, default=5)
    given: argparse.Namespace = options.parse_args()
    sizes, runs = ([8, 32], 3) if given.quick else (given.sizes, given.runs)
    rows = [row for megabytes in sizes for row in measure(megabytes, runs)]
    columns = ("mb", "link", "star", "line", "tree", "auto", "chosen", "store")
    shown = table("Seconds until every lost slice is active", *columns)
    for row in rows:
        shown.add_row(*(str(row[name]) for name in columns))
    for row in rows:
        order = sorted(("star", "line", "tree"), key=lambda way: row[way])
        console.print(f"{row['mb']} MB, {row['link']}: {' < '.join(order)}; runs {row['runs']}")
    report(shown, judged(rows))


if __name__ == "__main__":
    main()
