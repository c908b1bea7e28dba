"""Many jobs on one read: a hub of 100 jobs against one, 500 idle ones against one, 20 against 20 queries of Spark's.

Large epochs (2 M rows, columns ``f`` of 100 values, ten key columns of 10,000 values for each ``f``): one job over all
rows; 100 jobs with disjoint filters of 1 % each, by ten unlike keys; 100 equal jobs. One ``noop`` sink over a union of
all. Small epochs (100,000 rows): one job, and the same beside 500 whose filters match nothing, each with a sink of its
own. Times are Spark's own ``triggerExecution`` of each epoch; the first ones do not count. Pre-aggregation is off.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from common import choose, files_of, measure_apart, median, parser, report, scratch, session, spread, table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

JOBS, KEY_COLUMNS, KEYS = 100, 10, 10_000
IDLE = 500
QUERIES = 20
FILES_PER_EPOCH = 2
SCHEMA = ", ".join(["f int", *(f"k{at} long" for at in range(KEY_COLUMNS)), "v long"])
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def folder_of(epochs: int, rows: int) -> Path:
    count = rows // FILES_PER_EPOCH

    def columns(random: np.random.Generator) -> dict[str, Any]:
        which = random.integers(0, JOBS, count)
        keys = {f"k{at}": which * KEYS + random.integers(0, KEYS, count) for at in range(KEY_COLUMNS)}
        return {"f": pa.array(which, pa.int32()), **keys, "v": random.integers(0, 1000, count)}

    return files_of(f"hub-{epochs}-{rows}", epochs * FILES_PER_EPOCH, columns)


def source(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_EPOCH).parquet(str(folder))


def hub_of(spark: SparkSession, folder: Path, own: Path) -> Any:
    import holdfast as hf

    hub = hf.Hub("hub", spark, store=own / "store")
    hub.read(source(spark, folder), name="rows")
    return hub


def counted(stream: Any, key: str, name: str) -> Any:
    import holdfast as hf

    return stream.key_by(key, name=name).agg(n=hf.count(), total=hf.sum("v"))


def run_hub(hub: Any, own: Path) -> dict[str, Any]:
    drawn = time.perf_counter()
    plan = hub.plan()
    began = time.perf_counter()
    run = hub.start(containers=2, trigger={"availableNow": True}, preaggregate=False)
    run.await_termination()
    wall = time.perf_counter() - began
    status = run.status()
    progress = [one for one in run.query.recentProgress if one.numInputRows]
    files = sum(len(names) for _, _, names in os.walk(own / "store"))
    rows = run.status().rows
    run.stop()
    return {
        "wall": wall,
        "milliseconds": [one.durationMs["triggerExecution"] for one in progress],
        "state": sum(stage.bytes for stage in status.stages),
        "stages": len(plan.stages),
        "crossed": rows,
        "files": files,
        "epochs": status.epoch,
        "planned": began - drawn,
    }


def one(spark: SparkSession, folder: Path) -> dict[str, Any]:
    with scratch() as own:
        hub = hub_of(spark, folder, own)
        counted(hub.job("all").stream("rows"), "k0", "counts").write("noop")
        return run_hub(hub, own)


def disjoint(spark: SparkSession, folder: Path, jobs: int = JOBS) -> dict[str, Any]:
    with scratch() as own:
        hub = hub_of(spark, folder, own)
        for at in range(jobs):
            stream = hub.job(f"job{at}").stream("rows").where(f"f = {at}")
            counted(stream, f"k{at % KEY_COLUMNS}", "counts")
        union_of(hub, [f"job{at}/counts" for at in range(jobs)])
        return run_hub(hub, own)


def equal(spark: SparkSession, folder: Path) -> dict[str, Any]:
    with scratch() as own:
        hub = hub_of(spark, folder, own)
        for at in range(JOBS):
            counted(hub.job(f"job{at}").stream("rows"), "k0", "counts")
        hub.job("out").stream("job0/counts").write("noop")
        return run_hub(hub, own)


def union_of(hub: Any, names: list[str]) -> None:
    """One sink for all: what is measured is the jobs, not their sinks."""
    out = hub.job("out")
    columns = ["n", "total"]
    first, *others = (out.stream(name).select(*columns) for name in names)
    for other in others:
        first = first.union(other)
    first.write("noop")


def idle(spark: SparkSession, folder: Path, jobs: int) -> dict[str, Any]:
    with scratch() as own:
        hub = hub_of(spark, folder, own)
        counted(hub.job("busy").stream("rows"), "k0", "counts").write("noop")
        for at in range(jobs):
            stream = hub.job(f"idle{at}").stream("rows").where(f"f = {1000 + at}")
            counted(stream, f"k{at % KEY_COLUMNS}", "counts").write("noop")
        return run_hub(hub, own)


def queries(spark: SparkSession, folder: Path) -> dict[str, Any]:
    with scratch() as own:
        began = time.perf_counter()
        started = []
        for at in range(QUERIES):
            rows = source(spark, folder).where(F.col("f") == at).groupBy(f"k{at % KEY_COLUMNS}")
            found = rows.agg(F.count("*").alias("n"), F.sum("v").alias("total"))
            writer = found.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
            started.append(writer.option("checkpointLocation", str(own / f"q{at}")).start())
        for query in started:
            query.awaitTermination()
        return {"wall": time.perf_counter() - began}


LARGE = {
    "one": one,
    "100 disjoint": disjoint,
    "100 equal": equal,
    f"{QUERIES} jobs": lambda spark, folder: disjoint(spark, folder, QUERIES),
    f"{QUERIES} queries": queries,
}
SMALL = {
    "alone": lambda spark, folder: idle(spark, folder, 0),
    f"{IDLE} idle": lambda spark, folder: idle(spark, folder, IDLE),
}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--epochs", type=int, default=12, help="large ones")
    made.add_argument("--rows", type=int, default=2_000_000, help="of a large epoch")
    made.add_argument("--small-epochs", type=int, default=30)
    made.add_argument("--small-rows", type=int, default=100_000)
    made.add_argument("--turns", type=int, default=3, help="how often each contestant has its turn")
    made.add_argument("--warm-up", type=int, default=4, help="epochs of a turn that do not count")
    choose(made, [*LARGE, *SMALL])
    options = made.parse_args()
    if options.quick:
        options.epochs, options.rows, options.small_epochs, options.turns, options.warm_up = 5, 500_000, 10, 1, 2
    large, small = folder_of(options.epochs, options.rows), folder_of(options.small_epochs, options.small_rows)
    if options.contestant:
        settings = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB}
        name = options.contestant
        with session(options.memory, **settings) as spark:
            print(json.dumps(LARGE[name](spark, large) if name in LARGE else SMALL[name](spark, small)))
        return
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.contestants}
    for _ in range(options.turns):
        for name in options.contestants:
            found[name].append(measure_apart(name))
    show(options, found)


def show(options: argparse.Namespace, found: dict[str, list[dict[str, Any]]]) -> None:
    title = f"{options.rows:,} and {options.small_rows:,} rows an epoch"
    shown = table(title, "contestant", "stages", "epoch p50 ms", "wall s", "spread", "state MB", "files an epoch")
    epochs, walls, states = dict[str, float](), dict[str, float](), dict[str, float]()
    files, crossed = dict[str, float](), dict[str, float]()
    for name, turns in found.items():
        walls[name] = median([one["wall"] for one in turns])
        if "milliseconds" not in turns[0]:
            shown.add_row(name, "", "", f"{walls[name]:.1f}", spread([one["wall"] for one in turns]), "", "")
            continue
        epochs[name] = median([median(one["milliseconds"][options.warm_up :]) for one in turns])
        states[name] = median([one["state"] for one in turns])
        files[name] = median([one["files"] / one["epochs"] for one in turns])
        crossed[name] = median([one["crossed"] for one in turns])
        shown.add_row(
            name,
            str(turns[0]["stages"]),
            f"{epochs[name]:.0f}",
            f"{walls[name]:.1f}",
            spread([median(one["milliseconds"][options.warm_up :]) for one in turns]),
            f"{states[name] / 1e6:.1f}",
            f"{files[name]:.1f}",
        )

    def ratio(of: dict[str, float], one: str, other: str) -> float | None:
        return of[one] / of[other] if one in of and other in of else None

    result: dict[str, Any] = {
        "disjoint_100": ratio(epochs, "100 disjoint", "one"),
        "crossed_100": ratio(crossed, "100 disjoint", "one"),
        "equal_100": ratio(epochs, "100 equal", "one"),
        "equal_100_state": ratio(states, "100 equal", "one"),
        "idle_500": ratio(epochs, f"{IDLE} idle", "alone"),
        "idle_500_files": ratio(files, f"{IDLE} idle", "alone"),
        "vs_spark_queries": ratio(walls, f"{QUERIES} queries", f"{QUERIES} jobs"),
    }
    report(shown, result)


if __name__ == "__main__":
    main()
