"""A driver over real services: counts messages of a topic into a topic, a table by JDBC, and a table by ``hf.once``.

Started as a process of its own, so that it can be killed between a sink and the commit.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import holdfast as hf

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def session(config: dict[str, Any]) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(config["jars"]))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", QUICK_JAVA)
        .getOrCreate()
    )


def save(config: dict[str, Any], df: DataFrame, epoch: hf.Epoch) -> None:
    sys.path.append(config["packages"])
    import pg8000.dbapi as pg

    opened = contextlib.closing(pg.connect("holdfast", database="postgres", host="127.0.0.1", port=config["postgres"]))
    with opened as connection, hf.once(connection, epoch) as new:
        if new:
            rows = [(int(epoch), row.k, row.n) for row in df.collect()]
            connection.cursor().executemany("INSERT INTO own (epoch, k, n) VALUES (%s, %s, %s)", rows)


def draw(config: dict[str, Any], spark: SparkSession, broker: dict[str, str]) -> tuple[hf.Job, hf.StageStream]:
    job = hf.Job("services", spark, store=config["store"])
    stream = spark.readStream.format("kafka").options(**broker, subscribe="in", startingOffsets="earliest")
    messages = job.read(stream.option("maxOffsetsPerTrigger", config["per_epoch"]).load())
    counts = messages.select("key").with_column("k", "CAST(CAST(key AS string) AS int)").key_by("k").agg(n=hf.count())
    writers = {
        "topic": lambda: (
            counts.with_column("key", "CAST(k AS string)")
            .with_column("value", "CAST(n AS string)")
            .select("key", "value")
            .write("kafka", name="topic", topic="out", **broker)
        ),
        "table": lambda: counts.write(
            "jdbc",
            name="table",
            url=f"jdbc:postgresql://127.0.0.1:{config['postgres']}/postgres",
            dbtable=config["dbtable"],
            user="holdfast",
            driver="org.postgresql.Driver",
        ),
        "own": lambda: counts.for_each_batch(lambda df, epoch: save(config, df, epoch), name="own"),
    }
    order = [config["first"], *(name for name in writers if name != config["first"])]
    for name in order:
        writers[name]()
    return job, counts


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    spark = session(config)
    broker = {"kafka.bootstrap.servers": config["kafka"]}
    if produce := config.get("produce"):  # one task and one partition: the order of the messages is the numbers'
        values = spark.range(0, produce, 1, 1).selectExpr("string(id % 37) AS key", "string(id) AS value")
        values.write.format("kafka").options(**broker, topic="in").save()
    if bare := config.get("bare"):
        job, _ = draw({**config, "dbtable": bare, "first": "table"}, spark, broker)
        try:
            job.start(sinks_at_once=1, slices=8, trigger={"availableNow": True})
        except hf.PlanError as refused:
            Path("refused").write_text(str(refused))
    job, counts = draw(config, spark, broker)
    with job.start(sinks_at_once=1, containers=1, slices=8, trigger={"availableNow": True}) as run:
        run.await_termination()
        rows = run.state(counts).to_arrow().to_pylist()
    out = spark.read.format("kafka").options(**broker, subscribe="out", includeHeaders="true").load()
    found = [
        {
            "key": row.key.decode(),
            "value": row.value.decode(),
            **{header.key: bytes(header.value).decode() for header in row.headers or ()},
        }
        for row in out.select("key", "value", "headers").collect()
    ]
    Path(config["result"]).write_text(json.dumps({"state": rows, "out": found}))
    spark.stop()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        main()
    except hf.HoldfastError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(3)
