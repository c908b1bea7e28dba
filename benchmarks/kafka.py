"""Messages of a real Kafka topic, JSON: one aggregate, then an aggregate and a window over the same topic.

The broker is started by the benchmark, on loopback, and the topic is filled once. Spark's own are streaming queries
with RocksDB: one, and then two at once in one process, wall time from the start of the first to the end of the last.
Everybody takes the same messages in the same portions, and writes to ``noop``. ``parsed_per_message`` is how often a
message was fetched times how often the plan that ran parses it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from common import choose, console, measure_apart, median, parser, report, scratch, session, spread, table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "services")]
import fetching  # noqa: E402 - the tests are no package
import running  # noqa: E402

TOPIC = "clicks"
SCHEMA = "user bigint, page string, cents bigint, at timestamp"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def fill(spark: SparkSession, broker: str, messages: int, keys: int) -> None:
    # A thousand messages a second of event time, over two partitions.
    rows = spark.range(0, messages, 1, 2).selectExpr(
        f"abs(hash(id)) % {keys} AS user",
        "concat('page-', abs(hash(id, 1)) % 1000) AS page",
        "abs(hash(id, 2)) % 10000 AS cents",
        "timestamp_millis(1767225600000 + id) AS at",
    )
    values = rows.select(F.to_json(F.struct("*")).alias("value"), (F.col("user") % 2).cast("int").alias("partition"))
    values.write.format("kafka").option("kafka.bootstrap.servers", broker).option("topic", TOPIC).save()


def source(spark: SparkSession, options: Any) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", options.broker)
    reader = reader.option("subscribe", TOPIC).option("startingOffsets", "earliest")
    rows = reader.option("maxOffsetsPerTrigger", options.portion).load()
    return rows.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("m")).select("m.*")


def holdfast(spark: SparkSession, options: Any, *, window: bool) -> dict[str, Any]:
    import holdfast as hf

    with scratch() as own:
        job = hf.Job("clicks", spark, store=own / "store")
        clicks = job.read(source(spark, options), name="clicks")
        clicks.key_by("user", name="users").agg(n=hf.count(), cents=hf.sum("cents")).write("noop", name="users")
        if window:
            pages = clicks.key_by("page", name="pages").window(hf.tumbling("10 s"), time="at", lateness="1 s")
            pages.agg(n=hf.count()).write("noop", name="pages")
        began = time.perf_counter()
        run = job.start(containers=2, trigger={"availableNow": True})
        run.await_termination()
        wall = time.perf_counter() - began
        fetched = sum(one.numInputRows for one in run.query.recentProgress)
        plan = run.query._jsq.streamingQuery().lastExecution().executedPlan().toString()
        run.stop()
    return {"wall": wall, "fetched": fetched, "parses": plan.count("from_json(")}


def queries(spark: SparkSession, options: Any, *, window: bool) -> dict[str, Any]:
    with scratch() as own:
        clicks = source(spark, options)
        wanted = [clicks.groupBy("user").agg(F.count("*").alias("n"), F.sum("cents").alias("cents"))]
        if window:
            late = clicks.withWatermark("at", "1 second")
            wanted.append(late.groupBy("page", F.window("at", "10 seconds")).agg(F.count("*").alias("n")))
        began = time.perf_counter()
        started = []
        for at, counted in enumerate(wanted):
            writer = counted.writeStream.format("noop").outputMode("append" if at else "update")
            writer = writer.trigger(availableNow=True).option("checkpointLocation", str(own / f"q{at}"))
            started.append(writer.start())
        for query in started:
            query.awaitTermination()
        wall = time.perf_counter() - began
        fetched = sum(one.numInputRows for query in started for one in query.recentProgress)
    return {"wall": wall, "fetched": fetched, "parses": 1}


CONTESTANTS = {
    "holdfast, one": lambda spark, options: holdfast(spark, options, window=False),
    "spark, one": lambda spark, options: queries(spark, options, window=False),
    "holdfast, two": lambda spark, options: holdfast(spark, options, window=True),
    "spark, two": lambda spark, options: queries(spark, options, window=True),
}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--messages", type=int, default=2_000_000)
    made.add_argument("--keys", type=int, default=50_000)
    made.add_argument("--portion", type=int, default=200_000, help="messages of an epoch")
    made.add_argument("--turns", type=int, default=3, help="how often each contestant has its turn")
    made.add_argument("--broker", help="one that runs already, with the topic filled")
    choose(made, list(CONTESTANTS))
    options = made.parse_args()
    if options.quick:
        options.messages, options.turns = 300_000, 1
    jars = ",".join(map(str, fetching.jars("spark")))
    settings = {"spark.jars": jars, "spark.sql.streaming.stateStore.providerClass": ROCKSDB}
    if options.contestant:
        with session(options.memory, **settings) as spark:
            print(json.dumps(CONTESTANTS[options.contestant](spark, options)))
        return
    with running.kafka(partitions=2) as broker:
        console.print(f"Filling a topic with {options.messages:,} messages ...")
        with session(options.memory, **settings) as spark:
            fill(spark, broker, options.messages, options.keys)
        sys.argv += ["--broker", broker]
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.contestants}
        for _ in range(options.turns):
            for name in options.contestants:
                found[name].append(measure_apart(name))
    show(options, found)


def show(options: Any, found: dict[str, list[dict[str, Any]]]) -> None:
    title = f"{options.messages:,} messages, {options.keys:,} keys, {options.portion:,} an epoch"
    shown = table(title, "contestant", "wall s", "messages/s", "spread", "fetched", "parsed")
    walls, parsed = dict[str, float](), dict[str, float]()
    for name, turns in found.items():
        walls[name] = median([one["wall"] for one in turns])
        fetched = median([one["fetched"] for one in turns]) / options.messages
        parsed[name] = fetched * max(one["parses"] for one in turns)
        rate = f"{options.messages / walls[name]:,.0f}"
        how = spread([one["wall"] for one in turns])
        shown.add_row(name, f"{walls[name]:.1f}", rate, how, f"{fetched:.2f}", f"{parsed[name]:.2f}")

    def ratio(which: str) -> float | None:
        ours, theirs = walls.get(f"holdfast, {which}"), walls.get(f"spark, {which}")
        return theirs / ours if ours and theirs else None

    result = {
        "one_stage_vs_spark": ratio("one"),
        "two_stages_vs_spark": ratio("two"),
        "parsed_per_message": parsed.get("holdfast, two"),
    }
    report(shown, result)


if __name__ == "__main__":
    main()
