"""Does anything grow? Small epochs for half an hour, with a container killed and slices moved all the time.

A ``rate`` source, a count and a sum of 10,000 keys, ``noop``; checkpoints often, so that the log is cut often. Every
few seconds: the files and bytes of the store, the resident memory of all Python processes (driver, containers, Spark's
workers) and the JVM's heap right after a garbage collection. What counts is the mean of the last third over that of
the second: the first is for everything that has a bound to reach it. At the end the state must be what ``rate`` gave.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from common import console, parser, report, scratch, session, table
from kit.plots import plot
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from holdfast import Run

KEYS = 10_000
ROWS = 1000  # a second
CONTAINERS = 3
TRIGGER = "200 milliseconds"
SAMPLE_SECONDS = 5.0
SETTLE_SECONDS = 60.0
MOST = 1.05


@dataclass(frozen=True)
class Sample:
    at: float
    epoch: int
    files: int
    bytes: int
    python: int
    heap: int

    @property
    def memory(self) -> int:
        return self.python + self.heap

    def __str__(self) -> str:
        return (
            f"{self.at:6.0f} s: epoch {self.epoch:,}, {self.files:,} files, {self.bytes / 1e6:.2f} MB in the store; "
            f"Python {self.python / 1e6:,.0f} MB, heap {self.heap / 1e6:.1f} MB"
        )


def store_size(folder: Path) -> tuple[int, int]:
    """Files and bytes; what goes while we look does not count."""
    files = nbytes = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                nbytes += os.stat(os.path.join(where, name)).st_size
            except FileNotFoundError:
                continue
            files += 1
    return files, nbytes


def python_memory() -> int:
    """Resident bytes of this process and of all Python below it: containers, their nursery, Spark's workers."""
    total = 0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            if "python" in process.name():
                total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def heap(spark: SparkSession) -> int:
    """Bytes of the JVM's heap that are in use, right after it was collected."""
    jvm: Any = spark._jvm
    jvm.System.gc()
    return int(jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed())


class Trouble:
    """A kill, then a move, then a kill …, one every ``every`` seconds; none before the last one is over."""

    def __init__(self, run: Run, every: float, seed: int) -> None:
        self.kills = self.moves = 0
        self._run, self._every = run, every
        self._random = random.Random(seed)
        self._due = time.monotonic() + every

    def make(self) -> None:
        if time.monotonic() < self._due or not self._run.await_settled(SETTLE_SECONDS):
            return
        living = [one for one in self._run.status().containers if one.alive and one.slices]
        one, other = self._random.sample(living, 2)
        if self.kills <= self.moves:
            self._run.kill(one.name)
            self.kills += 1
        else:
            self._run.move(self._random.sample(one.owned, min(8, len(one.owned))), to=other.name)
            self.moves += 1
        self._due = time.monotonic() + self._every


def soak(spark: SparkSession, folder: Path, minutes: float, every: float, seed: int) -> tuple[list[Sample], Trouble]:
    import holdfast as hf

    store = folder / "store"
    ticks = spark.readStream.format("rate").option("rowsPerSecond", ROWS).load()
    job = hf.Job("soak", spark, store=str(store))
    rows = job.read(ticks.selectExpr(f"value % {KEYS} AS k", "value AS v"))
    counted = rows.key_by("k").agg(n=hf.count(), total=hf.sum("v"), last=hf.max("v"))
    counted.write("noop", mode="update")
    safety = hf.Delta(backups=1, every="2 s", store_every="5 s")
    samples: list[Sample] = []
    with job.start(containers=CONTAINERS, safety=safety, trigger={"processingTime": TRIGGER}) as run:
        trouble = Trouble(run, every, seed)
        began = time.monotonic()
        while (now := time.monotonic() - began) < 60 * minutes:
            samples.append(Sample(now, run.status().epoch, *store_size(store), python_memory(), heap(spark)))
            console.print(f"{samples[-1]}, {trouble.kills} kills, {trouble.moves} moves", highlight=False)
            trouble.make()
            time.sleep(max(0.0, now + SAMPLE_SECONDS - (time.monotonic() - began)))
        check(run.state(counted).to_arrow())
    return samples, trouble


def check(state: pa.Table) -> None:
    """Values are 0, 1, 2 …: each once, in the state of its key."""
    seen = pc.max(state["last"]).as_py() + 1
    rows, total = pc.sum(state["n"]).as_py(), pc.sum(state["total"]).as_py()
    if (rows, total) != (seen, seen * (seen - 1) // 2):
        raise SystemExit(f"The state is wrong: {rows} rows with a sum of {total}, of the first {seen} numbers.")


def growth(values: Sequence[float]) -> float:
    """The mean of the last third over that of the second."""
    third = len(values) // 3
    second, last = values[third : 2 * third], values[len(values) - third :]
    return (sum(last) / len(last)) / (sum(second) / len(second))


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--minutes", type=float, default=30)
    made.add_argument("--every", type=float, default=20, help="seconds between a kill and a move")
    made.add_argument("--seed", type=int, default=2024, help="of who is killed and what is moved")
    options = made.parse_args()
    if options.quick:
        options.minutes, options.every = 1, 5
    # Spark remembers as many progress reports as it is told to; what is measured here shall not be that.
    with session(options.memory, **{"spark.sql.streaming.numRecentProgressUpdates": 100}) as spark, scratch() as folder:
        samples, trouble = soak(spark, folder, options.minutes, options.every, options.seed)

    figures = {"files": "store files", "bytes": "store bytes", "memory": "memory, bytes"}
    shown = table(f"{options.minutes:g} minutes, {samples[-1].epoch:,} epochs", "of", "second third", "last", "growth")
    result: dict[str, Any] = {"kills": trouble.kills, "moves": trouble.moves, "epochs": samples[-1].epoch}
    for name, label in figures.items():
        values = [getattr(sample, name) for sample in samples]
        result[f"{name}_growth"] = growth(values)
        third = len(values) // 3
        means = [sum(part) / len(part) for part in (values[third : 2 * third], values[len(values) - third :])]
        shown.add_row(label, *(f"{mean:,.0f}" for mean in means), f"{growth(values):.3f}")
    with plot(
        "soak",
        "Does anything grow in half an hour of kills and moves?",
        "a promise of ours",
        f"{trouble.kills} kills, {trouble.moves} moves.",
        panels=3,
        quick=options.quick,
    ) as axes:
        minutes = [sample.at / 60 for sample in samples]
        axes[0].plot(minutes, [sample.files for sample in samples], label="files in the store")
        axes[1].plot(minutes, [sample.bytes / 1e6 for sample in samples], label="MB in the store")
        axes[2].plot(minutes, [sample.memory / 1e6 for sample in samples], label="MB in all")
        axes[2].plot(minutes, [sample.python / 1e6 for sample in samples], label="Python, resident")
        axes[2].plot(minutes, [sample.heap / 1e6 for sample in samples], label="JVM heap after collection")
        for axis in axes:
            axis.set_xlabel("minutes")
            axis.set_ylim(bottom=0)
    report(shown, result)
    grown = [name for name in figures if result[f"{name}_growth"] > MOST]
    if grown and not options.quick:
        raise SystemExit(f"Grown by more than {MOST - 1:.0%}: {', '.join(grown)}.")


if __name__ == "__main__":
    main()
