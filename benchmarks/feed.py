"""What it gives to take the next batch in while the one before is applied: ``prefetch=1`` against ``prefetch=0``.

Three figures, each a ratio of the two, which take turns; the medians count. ``pipelining``: rows a second of a backlog
of files, from the first epoch's sink to the last one's, so that starting does not count. ``cpu``: seconds of CPU a
row, of the driver and everything below it. ``latency``: milliseconds from a row of Spark's ``rate`` source, 1,000 a
second and a trigger every second, to the sink that has it, the median of the epochs. On two cores the first cannot be
more than about 1.17, since intake, applying and sinks each use both.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from common import Clicks, median, parser, report, scratch, session, spread, table
from kit.contestants import all_cpu_seconds
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf

PREFETCH = (0, 1)
SETTLE = 3
"""Epochs of a turn for latency that do not count."""


def backlog(spark: SparkSession, clicks: Clicks, prefetch: int) -> tuple[float, float]:
    """Rows a second, and seconds of CPU a row."""
    marks: list[tuple[float, float]] = []

    def took(rows: DataFrame, _: hf.Epoch) -> None:
        rows.write.format("noop").mode("overwrite").save()
        if len(marks) < 2:
            marks.append((time.perf_counter(), all_cpu_seconds()))
        else:
            marks[1] = time.perf_counter(), all_cpu_seconds()

    with scratch() as folder:
        job = hf.Job("feed", spark, store=str(folder / "store"))
        counted = job.read(clicks.stream(spark)).key_by("k").agg(n=hf.count(), total=hf.sum("v"))
        counted.for_each_batch(took, name="took")
        with job.start(containers=2, trigger={"availableNow": True}, prefetch=prefetch) as run:
            run.await_termination()
            epochs = run.status().epoch
    (first, cpu_before), (last, cpu_after) = marks
    rows = clicks.rows * (epochs - 1) / epochs
    return rows / (last - first), (cpu_after - cpu_before) / rows


def small_epochs(spark: SparkSession, seconds: float, prefetch: int) -> float:
    """Milliseconds from the newest row of an epoch to the sink."""
    found: list[float] = []

    def took(rows: DataFrame, _: hf.Epoch) -> None:
        newest = rows.agg({"at": "max"}).collect()[0][0]
        if newest is not None:
            found.append(1000 * (time.time() - newest.timestamp()))

    with scratch() as folder:
        ticks = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
        job = hf.Job("feed", spark, store=str(folder / "store"))
        rows = job.read(ticks.selectExpr("value % 1000 AS k", "timestamp"))
        rows.key_by("k").agg(n=hf.count(), at=hf.max("timestamp")).for_each_batch(took, name="took")
        with job.start(containers=2, trigger={"processingTime": "1 second"}, prefetch=prefetch) as run:
            run.await_termination(seconds)
    if len(found) <= SETTLE:
        raise SystemExit(f"Only {len(found)} epochs in {seconds:.0f} s.")
    return float(np.median(found[SETTLE:]))


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=20_000_000)
    made.add_argument("--keys", type=int, default=500_000)
    made.add_argument("--epoch-rows", type=int, default=1_000_000)
    made.add_argument("--turns", type=int, default=5)
    made.add_argument("--seconds", type=float, default=25.0, help="of a turn for latency")
    options = made.parse_args()
    if options.quick:
        options.rows, options.epoch_rows, options.turns, options.seconds = 2_000_000, 250_000, 1, 15.0
    report(*compete(options))


def compete(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    clicks = Clicks(options.rows, options.keys, options.epoch_rows)
    clicks.make()
    speed, cpu, late = ({prefetch: list[float]() for prefetch in PREFETCH} for _ in range(3))
    with session(options.memory) as spark:
        backlog(spark, clicks, 0)  # the JVM compiles
        for turn in range(options.turns):
            for prefetch in PREFETCH if turn % 2 == 0 else reversed(PREFETCH):
                rows, used = backlog(spark, clicks, prefetch)
                speed[prefetch].append(rows)
                cpu[prefetch].append(used)
                late[prefetch].append(small_epochs(spark, options.seconds, prefetch))
    shown = table("one block ahead, or none", "prefetch", "rows/s", "µs of CPU a row", "ms source → sink, p50")
    for prefetch in PREFETCH:
        shown.add_row(
            str(prefetch),
            f"{median(speed[prefetch]):,.0f} ({spread(speed[prefetch])})",
            f"{1e6 * median(cpu[prefetch]):.2f}",
            f"{median(late[prefetch]):.0f}",
        )
    result = {
        "pipelining": median(speed[1]) / median(speed[0]),
        "cpu": median(cpu[1]) / median(cpu[0]),
        "latency": median(late[1]) / median(late[0]),
        "turns": options.turns,
    }
    return shown, result


if __name__ == "__main__":
    main()
