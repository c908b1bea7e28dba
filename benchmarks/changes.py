"""Changes of a hub under load (the ELF paper's Fig. 10b): how soon they are in force, and what others feel of it.

A hub with a steady job and a changing one, small epochs one after the other. ``message``: one call to 16 containers,
from the driver, until all have answered. ``filter``, ``function``: from the call to the first commit that has rows by
the new version, beyond the median epoch. ``gap``: the longest time between two commits while jobs are added, updated
and removed, in median epochs of a run without changes. And the steady job's rows, epoch by epoch, with and without.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import choose, files_of, measure_apart, median, parser, report, scratch, session, table
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.wire.questions import Ping

KEYS = 10_000
CONTAINERS = 16
SCHEMA = "k long, f int, v long"


def folder_of(epochs: int, rows: int) -> Path:
    def columns(random: np.random.Generator) -> dict[str, Any]:
        keys, values = random.integers(0, KEYS, rows), random.integers(0, 1000, rows)
        return {"k": keys, "f": pa.array(random.integers(0, 100, rows), pa.int32()), "v": values}

    return files_of(f"changes-{epochs}-{rows}", epochs, columns)


class Adding:
    """Adds up what comes."""

    total = hf.states.value("bigint", default=0)

    def rows(self, key: Any, rows: list[dict[str, Any]], context: Any) -> Any:
        context.state.total += sum(row["v"] for row in rows)
        yield {"total": context.state.total}


class Counting(Adding):
    def rows(self, key: Any, rows: list[dict[str, Any]], context: Any) -> Any:
        context.state.total += len(rows)
        yield {"total": context.state.total}


def drawn(spark: SparkSession, folder: Path, own: Path) -> Any:
    hub = hf.Hub("changes", spark, store=own / "store")
    hub.read(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder)), name="rows")
    steady = hub.job("steady").stream("rows").key_by("k", name="sums").agg(n=hf.count(), total=hf.sum("v"))
    steady.write("parquet", str(own / "steady"))
    rows = hub.job("moving").stream("rows").where("f < 10")
    rows.key_by("f", name="counts").agg(n=hf.count()).write("noop")
    hub.job("own").stream("rows").where("f = 1").key_by("k", name="mine").process(Adding, "total bigint").write("noop")
    return hub


class Commits:
    """When each epoch was committed, by a look every millisecond."""

    def __init__(self, run: Any) -> None:
        self.at: dict[int, float] = {}
        self._run, self._over = run, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.001):
            epoch = self._run._shell.machine.committed
            if epoch not in self.at:
                self.at[epoch] = time.perf_counter()

    def wait(self, epoch: int) -> float:
        while epoch not in self.at and not self._run.stopped:
            time.sleep(0.001)
        return self.at[epoch]

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def gaps(self, first: int) -> list[float]:
        times = [self.at[epoch] for epoch in sorted(self.at) if epoch >= first]
        return [later - earlier for earlier, later in itertools.pairwise(times)]


def steady_rows(own: Path) -> list[list[tuple[Any, ...]]]:
    """Epoch by epoch, whichever numbers they have."""
    found = pq.read_table(own / "steady").to_pylist()
    epochs: dict[int, list[tuple[Any, ...]]] = {}
    for row in found:
        epochs.setdefault(row.pop("_epoch"), []).append(tuple(row.values()))
    return [sorted(epochs[epoch]) for epoch in sorted(epochs)]


def ran(spark: SparkSession, folder: Path, warm_up: int, changes: int) -> dict[str, Any]:
    with scratch() as own:
        hub = drawn(spark, folder, own)
        run = hub.start(containers=2, trigger={"availableNow": True}, preaggregate=False)
        commits = Commits(run)
        commits.wait(warm_up)
        told: dict[str, list[float]] = {"filter": [], "function": [], "add": [], "remove": []}
        for number in range(changes):
            for kind, seconds in told.items():
                began = time.perf_counter()
                epoch = change(run, hub, kind, number).epoch
                if not run._ledger.get_prepare(epoch, 1).ranges["source"]:
                    epoch += 1  # the first one with rows
                seconds.append(commits.wait(epoch) - began)
        run.await_termination()
        commits.close()
        stopped = run.status().epoch
        run.stop()
        rows = steady_rows(own)
    return {
        "gaps": commits.gaps(warm_up),
        "told": told,
        "epochs": stopped,
        "steady": f"{len(rows)} {hash_of(rows)}",
    }


def change(run: Any, hub: Any, kind: str, number: int) -> Any:
    match kind:
        case "filter":
            return run.update("moving/counts", where=f"f < {10 + number % 50} AND v >= 0")
        case "function":
            return run.update("own/mine", function=(Counting, Adding)[number % 2])
        case "remove":
            return run.remove(f"live{number}")
    job = hub.job(f"live{number}")
    job.sql(f"SELECT f, sum(v) AS total FROM rows WHERE k % {2 + number} = 0 GROUP BY f", name="totals")
    return run.add(job)


def hash_of(rows: Any) -> str:
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def messages(spark: SparkSession, folder: Path) -> dict[str, Any]:
    with scratch() as own:
        run = drawn(spark, folder, own).start(containers=CONTAINERS)
        run.process_all_available()
        seconds = []
        for _ in range(200):
            began = time.perf_counter()
            answers = run._fleet.call_all(Ping(), timeout=5.0)
            seconds.append(time.perf_counter() - began)
        run.stop()
    return {"seconds": seconds, "answers": len(answers)}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--epochs", type=int, default=120)
    made.add_argument("--rows", type=int, default=50_000, help="of an epoch")
    made.add_argument("--changes", type=int, default=10, help="of each kind")
    made.add_argument("--warm-up", type=int, default=15, help="epochs that do not count")
    choose(made, ["changed", "as it was", "messages"])
    options = made.parse_args()
    if options.quick:
        options.epochs, options.changes, options.warm_up = 40, 3, 6
    folder = folder_of(options.epochs, options.rows)
    if options.contestant:
        with session(options.memory) as spark:
            name = options.contestant
            if name == "messages":
                few = folder_of(2, 1000)
                print(json.dumps(messages(spark, few)))
            else:
                print(json.dumps(ran(spark, folder, options.warm_up, options.changes if name == "changed" else 0)))
        return
    show(options, {name: measure_apart(name) for name in options.contestants})


def show(options: argparse.Namespace, found: dict[str, dict[str, Any]]) -> None:
    shown = table(f"{options.rows:,} rows an epoch", "what", "median ms", "longest ms")
    result: dict[str, Any] = {}
    if "messages" in found:
        seconds = sorted(found["messages"]["seconds"])
        result["message_ms"] = 1000 * seconds[int(0.95 * len(seconds))]
        shown.add_row(
            f"a call to {CONTAINERS} containers", f"{1000 * median(seconds):.1f}", f"{1000 * seconds[-1]:.1f}"
        )
    if "changed" in found and "as it was" in found:
        plain, changed = found["as it was"]["gaps"], found["changed"]["gaps"]
        epoch = median(plain)
        shown.add_row("epoch, no changes", f"{1000 * epoch:.0f}", f"{1000 * max(plain):.0f}")
        shown.add_row("epoch, under changes", f"{1000 * median(changed):.0f}", f"{1000 * max(changed):.0f}")
        for kind, seconds in found["changed"]["told"].items():
            shown.add_row(f"{kind}, to its first rows", f"{1000 * median(seconds):.0f}", f"{1000 * max(seconds):.0f}")
            result[f"{kind}_ms"] = 1000 * (median(seconds) - epoch)
        result["gap_epochs"] = max(changed) / epoch
        result["gap_epochs_without"] = max(plain) / epoch
        result["others_equal"] = found["changed"]["steady"] == found["as it was"]["steady"]
    report(shown, result)


if __name__ == "__main__":
    main()
