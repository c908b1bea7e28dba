"""Star, line and tree between real containers against recovery from a store, with fast links and with slow ones.

Eight containers (real processes, driven without Spark); the state of one of them is saved to the ring and checkpointed.
That one is killed; the other seven bring its slices back and make them active at the committed epoch. Every container
sends and receives at most 1 Gb/s, or 100 Mb/s; the store is behind one link of the same speed, shared evenly by the
seven that read from it. Both ways begin when the loss is known, which costs both the same, and end when the last slice
is active; sizes are what the pieces of one copy come to. The store is a local file: nobody spends processor time on
sending what is read from it, while everything that the ring sends is sent and received on these two cores. On the other
hand a restore reads a slice, then loads it, then reads the next, while several branches come side by side; and a
checkpoint is compressed, which pieces are not.

A second, smaller experiment: sixteen containers with b = 1 and a leaf set of eight, where trees can be deep.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from common import console, median, parser, report, scratch, table
from kit.plots import plot
from matplotlib.ticker import LogLocator

from holdfast.container.messages import Host
from holdfast.launch.local import ChildLauncher, ContainerSettings
from holdfast.log.ledger import Ledger
from holdfast.log.records import FEED, Commit, Fence, Manifest, Prepare, Range, SegmentRef
from holdfast.log.segment import SegmentWriter, segment_name
from holdfast.log.store import Store
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.recovery.policies import Auto, Line, Star, Structure, Tree
from holdfast.ring.messages import AskLeaves, Drill, JoinRing, RingTerms
from holdfast.safety.shards import Cut
from holdfast.state import copies
from holdfast.wire import socket_folder
from holdfast.wire.client import Client
from holdfast.wire.codec import Sender
from holdfast.wire.messages import (
    Activate,
    Address,
    Apply,
    Call,
    Forget,
    Gather,
    GatherFigures,
    Reply,
    Restore,
    SaveShards,
    WriteCheckpoint,
)
from holdfast.wire.questions import SetLimits

MB = 1 << 20
EPOCH_ROWS = 1_000_000
CUT = Cut(m=4, n=2, parts=2)
LINKS = {"1 Gb/s": 125e6, "100 Mb/s": 12.5e6}
STRUCTURES: dict[str, Structure] = {"star": Star(fanout=8), "line": Line(length=3), "tree": Tree(2, depth=2)}
WAYS: dict[str, Structure | Auto] = {**STRUCTURES, "auto": Auto()}
DEPTHS = (1, 2, 3, 4)
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
Row = dict[str, Any]
T = TypeVar("T")
A = TypeVar("A", bound=Reply)


@dataclass(frozen=True)
class Shape:
    """So many containers, of which the first has so many slices; and what kind of ring they make."""

    containers: int
    slices: int
    ring: dict[str, int]


EIGHT = Shape(8, 14, {})
"""Of the default 128 slices one of eight containers has 16; with 14 seven heirs have equally much to do."""
SIXTEEN = Shape(16, 45, {"bits": 1, "leaves": 8})
"""More slices: in a ring larger than a leaf set each comes back where its key is at home, and chance deals them out."""


class Fleet:
    """Containers of one job, called as a master would call them."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.shape = shape
        self.every = list(range(shape.slices))
        self.ledger = Ledger(Store(str(folder)), "main")
        self._sockets = socket_folder.make()
        self._launcher = ChildLauncher(ContainerSettings(TOKEN, self._sockets))
        names = [f"c{number}" for number in range(shape.containers)]
        self.handles = {name: self._launcher.start(name) for name in names}
        self.clients = {
            name: Client(handle.await_ready(), TOKEN, Sender("j", 1)) for name, handle in self.handles.items()
        }
        known: tuple[Address, ...] = ()
        for name, client in self.clients.items():
            self.call(name, Host("j", (STAGE,), shape.slices, self.ledger.store.uri, "main"))
            self.call(name, JoinRing(CUT, Star(), RingTerms(**shape.ring), contacts=known))
            known += (client.address,)
        leaves = min(shape.containers - 1, shape.ring.get("leaves", shape.containers))
        while any(len(self.call(name, AskLeaves()).leaves) <= leaves for name in names):
            time.sleep(0.05)

    def call(self, container: str, message: Call[A]) -> A:
        return self.clients[container].call(message)

    def together(self, work: Callable[[str], T]) -> list[T]:
        with ThreadPoolExecutor(len(self.clients)) as pool:
            return list(pool.map(work, self.clients))

    def limit(self, link: float) -> None:
        share = link / len(self.clients)
        self.together(lambda name: self.call(name, SetLimits({"upload": link, "download": link, "from_store": share})))

    def append(self, epoch: int, rows: int) -> None:
        """One epoch of keys that are all new: ids and measurements, which hardly compress."""
        chance = np.random.default_rng(epoch)
        keys = chance.integers(-(1 << 63), 1 << 63, rows, dtype=np.int64)
        hashed = (keys.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
        batch = pa.record_batch({"_h": hashed, "k0": keys, "v0": chance.random(rows)})
        slices = np.mod(hashed, self.shape.slices)
        order = np.argsort(slices, kind="stable")
        writer = SegmentWriter(self.shape.slices)
        writer.append(0, batch.take(pa.array(order)), slices[order])
        fence = Fence(1, epoch, 1)
        name = segment_name(fence, 1, 0, epoch)
        nbytes = self.ledger.section.write(name, writer.parts())
        ref = SegmentRef(name, writer.rows, nbytes, writer.checksum, 0, epoch)
        ranges = {FEED: Range(epoch, epoch)}
        prepare = self.ledger.put_prepare(Prepare(fence, 1, ranges, (ref,), clock=0))
        self.call("c0", Apply("c0", fence, frozenset(self.every), 1, prepare=prepare.to_bytes()))
        self.ledger.put_commit(Commit(fence, ranges))

    def kill(self, name: str) -> float:
        """Seconds until the last of the others has noticed, though nobody told it."""
        began = time.perf_counter()
        self.handles[name].kill()
        self.clients.pop(name).close()
        while any(any(one.container == name for one in self.call(other, AskLeaves()).leaves) for other in self.clients):
            time.sleep(0.01)
        return time.perf_counter() - began

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        for handle in self.handles.values():
            handle.close()
        self._launcher.close()
        socket_folder.remove(self._sockets)


@dataclass(frozen=True)
class Loss:
    """Containers that have lost ``c0``, and what there is of its state."""

    fleet: Fleet
    epoch: int
    nbytes: int
    """Of one copy of its pieces."""
    facts: Row


@contextmanager
def lost(megabytes: int, shape: Shape) -> Iterator[Loss]:
    with scratch() as folder:
        fleet = Fleet(folder / "store", shape)
        try:
            every = frozenset(fleet.every)
            fleet.call("c0", Restore("c0", Fence(1, 1, 1), every, 0, 0))
            width = sum(field.type.bit_width // 8 for field in copies.schema(STAGE.build().layouts[0]))
            epoch, left = 0, megabytes * MB // width
            while left:
                epoch += 1
                rows = min(EPOCH_ROWS, left)
                fleet.append(epoch, rows)
                left -= rows
            fence = Fence(1, epoch, 1)
            written = fleet.call("c0", WriteCheckpoint("c0", fence, every, epoch, id="1"))
            packs = (str(written.file),)
            fleet.ledger.put_manifest(Manifest(epoch, fence, packs, (0,) * shape.slices, "the benchmark"))
            saved = fleet.call("c0", SaveShards("c0", fence, every, epoch))
            assert {copies for _, copies in saved.copies} == {CUT.n}, saved.copies
            nbytes = saved.nbytes // CUT.n
            assert abs(nbytes / (megabytes * MB) - 1) < 0.01, f"{nbytes} bytes are not {megabytes} MB"
            noticed = fleet.kill("c0")
            facts = {"pack_mb": written.nbytes / MB, "saving": saved.seconds, "noticed": noticed}
            yield Loss(fleet, epoch, nbytes, {name: round(value, 2) for name, value in facts.items()})
        finally:
            fleet.close()


# ------------------------------------------------------------------------------------------------------- recoveries


@dataclass(frozen=True)
class Recovery:
    """Seconds until every slice was active again; and of the slowest container, until it had asked and gathered."""

    seconds: float
    asked: float = 0.0
    gathered: float = 0.0
    chosen: frozenset[str] = frozenset()


def from_ring(loss: Loss, policy: Structure | Auto) -> Recovery:
    fleet = loss.fleet
    every, gone, fence = frozenset(fleet.every), frozenset({"c0"}), Fence(1, loss.epoch + 1, 1)

    def one(name: str) -> tuple[list[int], tuple[GatherFigures, ...]]:
        answer = fleet.call(name, Gather(name, fence, every, gone, seconds=120.0))
        assert not answer.beyond, answer.beyond
        ready = [number for number, _ in answer.ready]
        if ready:
            fleet.call(name, Activate(name, fence, frozenset(ready), loss.epoch))
        return ready, answer.figures

    # Nobody begins before all have forgotten.
    fleet.together(lambda name: fleet.call(name, Drill(policy, every, gone)))
    began = time.perf_counter()
    found = fleet.together(one)
    seconds = time.perf_counter() - began
    active = sorted(number for ready, _ in found for number in ready)
    assert active == fleet.every, "each slice is active once"
    assert sum(bool(ready) for ready, _ in found) >= 3, "at least three containers replace"
    figures = [one for _, some in found for one in some]
    return Recovery(
        seconds,
        max(one.asked for one in figures),
        max(one.gathered for one in figures),
        frozenset(one.structure.partition("(")[0].lower() for one in figures),
    )


def from_store(loss: Loss) -> Recovery:
    fleet = loss.fleet
    names, fence = list(fleet.clients), Fence(1, loss.epoch + 1, 1)
    work = {name: fleet.every[at :: len(names)] for at, name in enumerate(names)}

    def forget(name: str) -> None:
        fleet.call(name, Forget(name, fence, frozenset(fleet.every)))

    def restore(name: str) -> None:
        fleet.call(name, Restore(name, fence, frozenset(work[name]), loss.epoch, loss.epoch))

    fleet.together(forget)
    began = time.perf_counter()
    fleet.together(restore)
    return Recovery(time.perf_counter() - began)


def measured(loss: Loss, ways: dict[str, Callable[[], Recovery]], runs: int) -> Row:
    """Medians; round after round, each begun by another way, so that noise and what a way leaves behind meet all."""
    found: dict[str, list[Recovery]] = {way: [] for way in ways}
    names = list(ways)
    for number in range(runs):
        for at in range(len(names)):
            way = names[(number + at) % len(names)]
            found[way].append(ways[way]())
    row: Row = {way: round(median([one.seconds for one in some]), 3) for way, some in found.items()}
    row["runs"] = {way: [round(one.seconds, 3) for one in some] for way, some in found.items()}
    row["asked"] = {way: round(median([one.asked for one in some]), 3) for way, some in found.items()}
    row["gathered"] = {way: round(median([one.gathered for one in some]), 3) for way, some in found.items()}
    row["chosen"] = "/".join(sorted(frozenset[str]().union(*(one.chosen for one in found.get("auto", ())))))
    return row | loss.facts


def grid(megabytes: int, runs: int) -> list[Row]:
    rows = []
    with lost(megabytes, EIGHT) as loss:
        ways = {way: (lambda policy=policy: from_ring(loss, policy)) for way, policy in WAYS.items()}
        for link, rate in LINKS.items():
            loss.fleet.limit(rate)
            from_ring(loss, Star())  # connections are made, pages touched
            row = measured(loss, {**ways, "store": lambda: from_store(loss)}, runs)
            rows.append({"mb": megabytes, "link": link, **row})
            console.print(f"  {megabytes} MB, {link}: " + ", ".join(f"{way} {row[way]}" for way in (*WAYS, "store")))
    return rows


def depths(megabytes: int, runs: int) -> list[Row]:
    rows = []
    with lost(megabytes, SIXTEEN) as loss:
        ways = {str(depth): (lambda depth=depth: from_ring(loss, Tree(1, depth))) for depth in DEPTHS}
        for link, rate in LINKS.items():
            loss.fleet.limit(rate)
            from_ring(loss, Star())
            rows.append({"mb": megabytes, "link": link, **measured(loss, ways, runs)})
    return rows


# --------------------------------------------------------------------------------------------------------- findings


def best(row: Row) -> float:
    return min(float(row[way]) for way in STRUCTURES)


def judged(rows: Sequence[Row]) -> dict[str, float]:
    """Over the grid, the median and the worst: the share of the store's time that the best structure saves, and
    ``Auto``'s time over that of the best.
    """
    found: dict[str, float] = {}
    for name, link in (("best_vs_store", "1 Gb/s"), ("best_vs_store_limited", "100 Mb/s")):
        gains = [1 - best(row) / row["store"] for row in rows if row["link"] == link]
        found |= {name: round(median(gains), 3), f"{name}_worst": round(min(gains), 3)}
    ratios = [row["auto"] / best(row) for row in rows]
    return found | {"auto_vs_best": round(median(ratios), 3), "auto_vs_best_worst": round(max(ratios), 3)}


def draw(rows: Sequence[Row], deep: Sequence[Row], quick: bool) -> None:
    question = "How soon is a lost container's state active again, from the ring and from a store?"
    note = "Seven heirs; the store behind one link of the same speed."
    with plot("structures", question, "SR3, Figures 8a, 8b and 9c", note, panels=3, quick=quick) as axes:
        for axis, link in zip(axes, LINKS, strict=False):
            some = [row for row in rows if row["link"] == link]
            for way in (*WAYS, "store"):
                style = {"store": "k--", "auto": "0.5"}.get(way, "")
                axis.plot([row["mb"] for row in some], [row[way] for row in some], style or "-", marker="o", label=way)
            axis.set(title=f"links of {link}", xlabel="MB of state", ylabel="seconds", xscale="log", yscale="log")
            axis.set_xticks([row["mb"] for row in some], [str(row["mb"]) for row in some])
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.minorticks_off()
        for row in deep:
            axes[2].plot(DEPTHS, [row[str(depth)] for depth in DEPTHS], marker="o", label=row["link"])
        size = deep[0]["mb"] if deep else 0
        axes[2].set(title=f"tree of fan-out 2, 16 containers, {size} MB", xlabel="depth", ylabel="seconds")
        axes[2].set_xticks(DEPTHS)
        axes[2].set_ylim(bottom=0)


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--sizes", type=int, nargs="+", default=[8, 32, 64, 128, 256], help="MB of state")
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--depth-size", type=int, default=64, help="MB of state for the trees; 0: none of them")
    given: argparse.Namespace = options.parse_args()
    sizes, runs, deep_size = ([8, 32], 3, 8) if given.quick else (given.sizes, given.runs, given.depth_size)
    rows = [row for megabytes in sizes for row in grid(megabytes, runs)]
    deep = depths(deep_size, runs) if deep_size else []
    columns = ("mb", "link", *WAYS, "chosen", "store", "pack_mb", "noticed")
    shown = table("Seconds until every lost slice is active", *columns)
    for row in rows:
        shown.add_row(*(str(row[name]) for name in columns))
        order = sorted(STRUCTURES, key=lambda way: row[way])
        console.print(f"{row['mb']} MB, {row['link']}: {' < '.join(order)}; runs {row['runs']}")
        console.print(f"    asked by {row['asked']}, gathered by {row['gathered']}")
    for row in deep:
        named = ", ".join(f"{depth}: {row[str(depth)]} s" for depth in DEPTHS)
        console.print(f"Trees of depth {named}; {row['mb']} MB, {row['link']}, 16 containers.")
    found = judged(rows)
    summary = table("Over the grid", "", "median", "worst")
    for name in ("best_vs_store", "best_vs_store_limited", "auto_vs_best"):
        summary.add_row(name, str(found[name]), str(found[f"{name}_worst"]))
    console.print(shown)
    draw(rows, deep, given.quick)
    report(summary, {**found, "trees": {row["link"]: [row[str(depth)] for depth in DEPTHS] for row in deep}})


if __name__ == "__main__":
    main()
