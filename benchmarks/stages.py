"""What one more stage over the same source costs: 1, 4 and 10 of them, each with a sink of its own.

Small epochs (100,000 rows), each stage by another key of 10,000 values, a ``noop`` sink each. The time is Spark's own
``triggerExecution`` of each epoch; the first ones do not count. "Through Spark" is with every sink asking the
containers from Spark's tasks, as outputs of more than a megabyte do. Beside it the same as ten streaming queries of
Spark's with RocksDB, all at once, in one process: wall time from the start of the first to the end of the last, over
the same files, and Holdfast's over the same.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import choose, files_of, measure_apart, median, parser, report, scratch, session, spread, table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

STAGES = 10
KEYS = 10_000
FILES_PER_EPOCH = 2
SCHEMA = ", ".join([*(f"k{at} long" for at in range(STAGES)), "v long"])
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def folder_of(epochs: int, rows: int) -> Path:
    count = rows // FILES_PER_EPOCH

    def columns(random: np.random.Generator) -> dict[str, Any]:
        keys = {f"k{at}": random.integers(0, KEYS, count) for at in range(STAGES)}
        return {**keys, "v": random.integers(0, 1000, count)}

    return files_of(f"stages-{epochs}-{rows}", epochs * FILES_PER_EPOCH, columns)


def source(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_EPOCH).parquet(str(folder))


def holdfast(spark: SparkSession, folder: Path, stages: int, *, scans: bool) -> dict[str, Any]:
    import holdfast as hf
    from holdfast.driver import sizes

    if scans:
        sizes.SMALL_BYTES = 0
    with scratch() as own:
        job = hf.Job("stages", spark, store=own / "store")
        rows = job.read(source(spark, folder), name="rows")
        for at in range(stages):
            counted = rows.key_by(f"k{at}", name=f"by_k{at}").agg(n=hf.count(), total=hf.sum("v"))
            counted.write("noop", name=f"out{at}")
        began = time.perf_counter()
        run = job.start(containers=2, trigger={"availableNow": True}, preaggregate=False)
        run.await_termination()
        wall = time.perf_counter() - began
        progress = [one for one in run.query.recentProgress if one.numInputRows]
        run.stop()
    return {"wall": wall, "milliseconds": [one.durationMs["triggerExecution"] for one in progress]}


def queries(spark: SparkSession, folder: Path, stages: int) -> dict[str, Any]:
    with scratch() as own:
        began = time.perf_counter()
        started = []
        for at in range(stages):
            counted = source(spark, folder).groupBy(f"k{at}").agg(F.count("*").alias("n"), F.sum("v").alias("total"))
            writer = counted.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
            started.append(writer.option("checkpointLocation", str(own / f"q{at}")).start())
        for query in started:
            query.awaitTermination()
        wall = time.perf_counter() - began
        progress = [one for query in started for one in query.recentProgress if one.numInputRows]
    return {"wall": wall, "milliseconds": [one.durationMs["triggerExecution"] for one in progress]}


CONTESTANTS = {
    "one": lambda spark, folder: holdfast(spark, folder, 1, scans=True),
    "four": lambda spark, folder: holdfast(spark, folder, 4, scans=True),
    "ten": lambda spark, folder: holdfast(spark, folder, 10, scans=True),
    "one, by the driver": lambda spark, folder: holdfast(spark, folder, 1, scans=False),
    "ten, by the driver": lambda spark, folder: holdfast(spark, folder, 10, scans=False),
    "ten queries": lambda spark, folder: queries(spark, folder, 10),
}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--epochs", type=int, default=40)
    made.add_argument("--rows", type=int, default=100_000, help="of an epoch")
    made.add_argument("--turns", type=int, default=3, help="how often each contestant has its turn")
    made.add_argument("--warm-up", type=int, default=10, help="epochs of a turn that do not count")
    choose(made, list(CONTESTANTS))
    options = made.parse_args()
    if options.quick:
        options.epochs, options.turns, options.warm_up = 15, 1, 5
    folder = folder_of(options.epochs, options.rows)
    if options.contestant:
        settings = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB}
        with session(options.memory, **settings) as spark:
            print(json.dumps(CONTESTANTS[options.contestant](spark, folder)))
        return
    show(options, measured(options))


def measured(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.contestants}
    for _ in range(options.turns):
        for name in options.contestants:
            found[name].append(measure_apart(name))
    return found


def show(options: argparse.Namespace, found: dict[str, list[dict[str, Any]]]) -> None:
    shown = table(f"{options.rows:,} rows an epoch, {KEYS:,} keys", "contestant", "epoch p50 ms", "wall s", "spread")
    epochs, walls = dict[str, float](), dict[str, float]()
    for name, turns in found.items():
        epochs[name] = median([median(one["milliseconds"][options.warm_up :]) for one in turns])
        walls[name] = median([one["wall"] for one in turns])
        shown.add_row(name, f"{epochs[name]:.0f}", f"{walls[name]:.1f}", spread([one["wall"] for one in turns]))

    def ratio(of: dict[str, float], one: str, other: str) -> float | None:
        return of[one] / of[other] if one in of and other in of else None

    result: dict[str, Any] = {
        "four_vs_one": ratio(epochs, "four", "one"),
        "ten_vs_one": ratio(epochs, "ten", "one"),
        "ten_vs_one_by_the_driver": ratio(epochs, "ten, by the driver", "one, by the driver"),
        "vs_spark_queries": ratio(walls, "ten queries", "ten"),
    }
    report(shown, result)


if __name__ == "__main__":
    main()
