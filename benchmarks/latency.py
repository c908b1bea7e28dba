"""How long a small epoch takes, against the least that Spark does for any Python in a stream.

1,000 rows a second, a trigger every second. Holdfast keeps a count and a sum of 10,000 keys, with segments,
``prepare`` and ``commit`` synced; the baseline is a ``foreachBatch`` that only sends the rows through Python
and back (``mapInArrow``). Both write to ``noop``. The time is Spark's own ``triggerExecution`` of each epoch
with rows. The two take turns, each turn in a process of its own, the first epochs of which do not count.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from common import choose, measure_apart, parser, report, scratch, session, table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

TRIGGER = "1 second"
KEYS = 10_000


def source(spark: SparkSession) -> DataFrame:
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
    return ticks.selectExpr(f"value % {KEYS} AS k", "value AS v")


def watch(query: StreamingQuery, options: argparse.Namespace, turn_seconds: float) -> list[int]:
    """The epochs' milliseconds, once the warm-up is over."""
    deadline = time.monotonic() + options.warm_up + turn_seconds
    while time.monotonic() < deadline and query.isActive:
        time.sleep(0.2)
    if not query.isActive:
        raise SystemExit(f"The query ended early: {query.exception()}")
    epochs = [one for one in query.recentProgress if one.numInputRows > 0]
    if len(epochs) <= options.warm_up:
        raise SystemExit(f"Only {len(epochs)} epochs in {options.warm_up + turn_seconds:.0f} s.")
    return [one.durationMs["triggerExecution"] for one in epochs[options.warm_up :]]


def baseline(spark: SparkSession, options: argparse.Namespace, turn_seconds: float) -> list[int]:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    def cross(rows: DataFrame, _: int) -> None:
        rows.mapInArrow(same, rows.schema).write.format("noop").mode("overwrite").save()

    with scratch() as folder:
        writer = source(spark).writeStream.foreachBatch(cross).option("checkpointLocation", str(folder))
        query = writer.trigger(processingTime=TRIGGER).start()
        found = watch(query, options, turn_seconds)
        query.stop()
    return found


def holdfast(spark: SparkSession, options: argparse.Namespace, turn_seconds: float) -> list[int]:
    import holdfast as hf

    with scratch() as folder:
        job = hf.Job("latency", spark, store=str(folder / "store"))
        counted = job.read(source(spark)).key_by("k").agg(n=hf.count(), total=hf.sum("v"))
        counted.write("noop", mode="update")
        run = job.start(containers=2, trigger={"processingTime": TRIGGER})
        assert run.query is not None
        found = watch(run.query, options, turn_seconds)
        run.stop()
    return found


CONTESTANTS = {"baseline": baseline, "holdfast": holdfast}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--seconds", type=int, default=60, help="measured for each contestant, over all its turns")
    made.add_argument("--turns", type=int, default=2, help="how often each contestant has its turn")
    made.add_argument("--warm-up", type=int, default=10, help="epochs of a turn that do not count")
    choose(made, list(CONTESTANTS))
    options = made.parse_args()
    if options.quick:
        options.seconds, options.turns, options.warm_up = 15, 1, 5
    if options.contestant:
        with session(options.memory) as spark:
            found = CONTESTANTS[options.contestant](spark, options, options.seconds / options.turns)
        print(json.dumps({"milliseconds": found}))
        return

    measured: dict[str, list[int]] = {name: [] for name in options.contestants}
    for _ in range(options.turns):
        for name in options.contestants:
            measured[name] += measure_apart(name)["milliseconds"]

    shown = table("1,000 rows a second, a trigger every second", "contestant", "epochs", "p50 ms", "p99 ms")
    result: dict[str, float | None] = {}
    for name in ("holdfast", "baseline"):
        p50, p99 = np.percentile(measured[name], [50, 99]) if name in measured else (None, None)
        result |= {f"{name}_p50_ms": p50, f"{name}_p99_ms": p99}
        if p50 is not None:
            shown.add_row(name, str(len(measured[name])), f"{p50:.0f}", f"{p99:.0f}")
    for quantile in ("p50", "p99"):
        ours, theirs = result[f"holdfast_{quantile}_ms"], result[f"baseline_{quantile}_ms"]
        result[f"{quantile}_ratio"] = ours / theirs if ours and theirs else None
    report(shown, result)


if __name__ == "__main__":
    main()
