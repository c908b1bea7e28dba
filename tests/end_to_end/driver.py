"""A driver that can be killed: runs one job over Parquet files, then writes its state for the oracle.

Started as a process of its own by ``kit.Drill``, so that what dies is a real driver with its JVM and its containers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType

import holdfast as hf

SCHEMA = "k bigint, g string, v bigint, x double"


def session(config: dict[str, Any]) -> SparkSession:
    builder = (
        SparkSession.builder.master(config["master"])
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.files.maxPartitionBytes", "60000")
        .config("spark.sql.files.openCostInBytes", "0")
    )
    for key, value in config.get("spark", {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def source(spark: SparkSession, folder: str) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)


def striking(frame: DataFrame, faults: str) -> DataFrame:
    """Rows with a strike: whoever a file ``strike@<k>`` names by pid is killed when that key passes, in a task."""

    def strike(key):  # type: ignore[no-untyped-def]  # Spark warns of hints it cannot use
        planned = Path(faults) / f"strike@{key}"
        if planned.exists():
            pid = int(planned.read_text())
            planned.unlink(missing_ok=True)
            os.kill(pid, signal.SIGKILL)
        return key

    return frame.withColumn("k", F.udf(strike, LongType())("k"))


def dawdling(frame: DataFrame, folder: str) -> DataFrame:
    """Rows of which one holds its task up for long, but only the first task that meets it."""

    def dawdle(key):  # type: ignore[no-untyped-def]
        if key == 77:
            try:
                (Path(folder) / "dawdle").unlink()
            except FileNotFoundError:
                return key
            time.sleep(20)
        return key

    return frame.withColumn("k", F.udf(dawdle, LongType())("k"))


def build(config: dict[str, Any], spark: SparkSession) -> tuple[hf.Job, dict[str, hf.AggregatedStream]]:
    job = hf.Job(config.get("name", "drill"), spark, store=config["store"])
    frame = source(spark, config["input"])
    if config.get("strikes"):
        frame = striking(frame, config["strikes"])
    if config.get("slow"):
        frame = dawdling(frame, config["slow"])
    if config.get("random"):
        frame = frame.withColumn("v", (F.rand() * 1000).cast("bigint"))
    shape = config.get("shape", "one")
    if shape == "sources":
        left = job.read(frame, name="left")
        right = job.read(source(spark, config["input2"]), name="right")
        one = left.key_by("k").agg(n=hf.count(), total=hf.sum("v"))
        both = left.select("g", "v").union(right.select("g", "v")).key_by("g").agg(n=hf.count(), total=hf.sum("v"))
        streams = {"one": one, "both": both}
    else:
        one = (
            job.read(frame)
            .key_by("k")
            .agg(n=hf.count(), total=hf.sum("v"), low=hf.min("g"), high=hf.max("x"), middle=hf.mean("v"))
        )
        streams = {"one": one}
        if shape == "two":
            streams["two"] = one.key_by("n").agg(keys=hf.count(), sum=hf.sum("total"))
    one.write("parquet", f"{config['out']}/parquet")
    one.select("k", "n", "total").where("n > 1").write("json", f"{config['out']}/json")
    return job, streams


def drive(config: dict[str, Any], spark: SparkSession, during: Callable[[hf.Run], None] | None = None) -> None:
    """Run the job to the end of its input; ``during`` is called once it runs."""
    job, streams = build(config, spark)
    run = job.start(
        containers=config.get("containers", 2),
        safety=hf.Delta(
            config.get("backups", 1), every=config.get("copy_every", 1), store_every=config.get("store_every", 3)
        ),
        slices=config.get("slices", 16),
        trigger={"availableNow": True},
        preaggregate=config.get("preaggregate", "auto"),
        push=config.get("push", "auto"),
    )
    try:
        if during is not None:
            during(run)
        run.await_termination()
        for name, stream in streams.items():
            pq.write_table(run.state(stream).to_arrow(), f"{config['result']}/{name}.parquet")
        status = run.status()
        report = {
            "epoch": status.epoch,
            "rows": status.rows,
            "events": [[event.kind, event.text] for event in status.events],
            "epochs": {name: run.state(stream).epoch for name, stream in streams.items()},
        }
        Path(config["result"], "report.json").write_text(json.dumps(report))
    finally:
        run.stop()


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    if config.get("strike_driver_at") is not None:
        Path(config["strikes"], f"strike@{config['strike_driver_at']}").write_text(str(os.getpid()))
    spark = session(config)
    try:
        drive(config, spark)
    finally:
        spark.stop()


if __name__ == "__main__":
    try:
        main()
    except hf.HoldfastError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(3)
