"""How many rows a second a running count and sum per key takes, against Spark's own state stores.

The same Parquet files go through Holdfast, Spark streaming with RocksDB and changelog, Spark streaming with
the heap provider and a Spark batch query, each into a ``noop`` sink that gets every changed key. Each has
done one full round on the same data before it is timed; the time is from starting the query to its end, for
Holdfast with starting the containers. After the last round everybody's final state is read back and must be
the same.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common import Clicks, choose, measure_apart, median, parser, report, scratch, session, spread, table
from kit.contestants import all_cpu_seconds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

STORE = "spark.sql.streaming.stateStore."
PROVIDER = "org.apache.spark.sql.execution.streaming.state."
SETTINGS: dict[str, dict[str, object]] = {
    "holdfast": {},
    "spark_rocksdb": {
        STORE + "providerClass": PROVIDER + "RocksDBStateStoreProvider",
        STORE + "rocksdb.changelogCheckpointing.enabled": "true",
        # Counting the rows costs RocksDB a read for every write. Nobody here needs the count.
        STORE + "rocksdb.trackTotalNumberOfRows": "false",
    },
    "spark_heap": {STORE + "providerClass": PROVIDER + "HDFSBackedStateStoreProvider"},
    "spark_batch": {},
}


@dataclass(frozen=True)
class Round:
    """What a contestant gives back for running the query once, with a fresh folder for its files."""

    seconds: float
    state: Callable[[], DataFrame]  # its final state as (k, n, total)
    starting: float = 0.0  # how much of the time went by before the query ran


def spark_streaming(spark: SparkSession, clicks: Clicks, folder: Path) -> Round:
    counted = clicks.stream(spark).groupBy("k").agg(fn.count("*").alias("n"), fn.sum("v").alias("total"))
    checkpoint = str(folder / "checkpoint")
    writer = counted.writeStream.format("noop").outputMode("update").option("checkpointLocation", checkpoint)
    start = time.perf_counter()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = time.perf_counter() - start

    def state() -> DataFrame:
        stored = spark.read.format("statestore").load(checkpoint)
        return stored.select("key.k", fn.col("value.count").alias("n"), fn.col("value.sum").alias("total"))

    return Round(seconds, state)


def spark_batch(spark: SparkSession, clicks: Clicks, folder: Path) -> Round:
    counted = clicks.batch(spark).groupBy("k").agg(fn.count("*").alias("n"), fn.sum("v").alias("total"))
    start = time.perf_counter()
    counted.write.format("noop").mode("overwrite").save()
    return Round(time.perf_counter() - start, lambda: counted)


def holdfast(spark: SparkSession, clicks: Clicks, folder: Path) -> Round:
    import holdfast as hf

    job = hf.Job("bench", spark, store=str(folder / "store"))
    counted = job.read(clicks.stream(spark)).key_by("k").agg(n=hf.count(), total=hf.sum("v"))
    counted.write("noop", mode="update")
    start = time.perf_counter()
    run = job.start(containers=2, trigger={"availableNow": True})
    starting = time.perf_counter() - start
    run.await_termination()
    seconds = time.perf_counter() - start
    state = run.state(counted).to_arrow()
    run.stop()
    return Round(seconds, lambda: spark.createDataFrame(state).select("k", "n", "total"), starting)


CONTESTANTS = {
    "holdfast": holdfast,
    "spark_rocksdb": spark_streaming,
    "spark_heap": spark_streaming,
    "spark_batch": spark_batch,
}


def fingerprint(state: DataFrame) -> str:
    row = state.agg(
        fn.count("*"), fn.sum("n"), fn.sum("total"), fn.bit_xor(fn.xxhash64("k", "n", "total")).alias("hash")
    ).first()
    return " ".join(str(value) for value in row or ())


def compete(name: str, clicks: Clicks, options: argparse.Namespace) -> None:
    """Runs in the contestant's own process: one round to warm up, then the timed ones."""
    rounds, cpu = [], []
    settings = {"spark.sql.shuffle.partitions": options.shuffle_partitions, **SETTINGS[name]}
    with session(options.memory, **settings) as spark:
        for left in reversed(range(1 + options.repeat)):
            with scratch() as folder:
                before = all_cpu_seconds()
                rounds.append(CONTESTANTS[name](spark, clicks, folder))
                cpu.append(all_cpu_seconds() - before)
                if left == 0:
                    found = fingerprint(rounds[-1].state())
    seconds, starting = [one.seconds for one in rounds], [one.starting for one in rounds[1:]]
    found_all = {"first": seconds[0], "seconds": seconds[1:], "cpu": cpu[1:], "starting": starting}
    print(json.dumps({**found_all, "fingerprint": found}))


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=20_000_000)
    made.add_argument("--keys", type=int, default=2_000_000)
    made.add_argument("--epoch-rows", type=int, default=2_000_000)
    made.add_argument("--repeat", type=int, default=1, help="timed rounds; the median counts")
    made.add_argument("--shuffle-partitions", type=int, default=2, help="Spark's state partitions")
    choose(made, list(CONTESTANTS))
    options = made.parse_args()
    if options.quick:
        options.rows, options.keys, options.epoch_rows = 800_000, 80_000, 400_000
    clicks = Clicks(options.rows, options.keys, options.epoch_rows)
    if options.contestant:
        compete(options.contestant, clicks, options)
        return

    clicks.make()
    measured = {name: measure_apart(name) for name in options.contestants}
    states = {name: one["fingerprint"] for name, one in measured.items()}
    if len(set(states.values())) > 1:
        raise SystemExit(f"The final states differ (keys, rows, sum, hash): {states}")

    rates = {name: clicks.rows / median(one["seconds"]) for name, one in measured.items()}
    shown = table(
        f"{clicks.rows:,} rows, {clicks.keys:,} keys, {clicks.epoch_rows:,} rows an epoch; all states equal",
        *("contestant", "rows/s", "spread", "first round", "holdfast is"),
    )
    result = {f"{name}_rows_s": rates.get(name) for name in CONTESTANTS}
    result |= {f"vs_{name.removeprefix('spark_')}": None for name in CONTESTANTS if name != "holdfast"}
    if "holdfast" in rates:
        starting = median(measured["holdfast"]["starting"])
        result["holdfast_starting_s"] = starting
        shown.caption = f"Of Holdfast's time, {starting:.1f} s went into starting its containers."
    for name, rate in rates.items():
        ratio = rates["holdfast"] / rate if "holdfast" in rates else None
        if name != "holdfast":
            result[f"vs_{name.removeprefix('spark_')}"] = ratio
        first = clicks.rows / measured[name]["first"]
        times = f"{ratio:.2f}×" if ratio else "–"
        shown.add_row(name, f"{rate:,.0f}", spread(measured[name]["seconds"]), f"{first:,.0f}", times)
    report(shown, result)


if __name__ == "__main__":
    main()
