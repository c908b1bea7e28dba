"""Nexmark: events a second and core of each query, beside Spark streaming here and Flink's published figures.

One Parquet folder holds all events as Flink's own generator mixes them; every query reads it as a stream. Before it is
timed each query runs once on a smaller folder; there Holdfast's rows are compared with a batch oracle (DuckDB), and a
difference ends the benchmark. The time is from starting the query to its end, for Holdfast with starting containers.
The stateless queries (q0, q1, q2, q22) are Spark's own in both columns: Holdfast hands them to Spark.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from common import CORES, DATA, choose, console, measure_apart, median, parser, report, scratch, session, table
from nexmark_kit import checking, generator, spark_queries
from pyspark.sql import SparkSession

# Thousand events a second and core, as the Nexmark project for Flink publishes them.
FLINK = {
    "q0": 155, "q1": 158, "q2": 175, "q3": 152, "q4": 34, "q5": 22, "q7": 12.3, "q8": 146, "q9": 14.2, "q11": 40,
    "q12": 76, "q15": 72, "q16": 18.7, "q17": 117, "q18": 54, "q19": 44, "q20": 19, "q22": 130,
}  # fmt: skip
STATELESS = ("q0", "q1", "q2", "q22")
RATE = 10_000


def data(events: int, files: int) -> Path:
    DATA.mkdir(exist_ok=True)
    folder = DATA / f"nexmark-{events}-{files}-{RATE}"
    return generator.write(folder, events, files, layout="together", rate=RATE, disorder=1000)


def holdfast(spark: SparkSession, query: str, folder: Path, files: int, *, checked: bool) -> float:
    from nexmark_kit.queries import QUERIES

    import holdfast as hf

    with scratch() as base:
        job = hf.Job(query, spark, store=str(base / "store"))
        stream = QUERIES[query](job, spark_queries.streams(spark, folder, files_per_trigger=files))
        epochs: list[tuple[int, pa.Table]] = []
        if checked:
            stream.for_each_batch(lambda frame, epoch: epochs.append((epoch, frame.toArrow())))
        else:
            stream.write("noop")
        start = time.perf_counter()
        with job.start(containers=CORES, trigger={"availableNow": True}) as run:
            run.await_termination()
            seconds = time.perf_counter() - start
        if checked and query != "q12":
            checking.check(query, folder, epochs)
        return seconds


def spark_streaming(spark: SparkSession, query: str, folder: Path, files: int) -> float:
    with scratch() as base:
        start = time.perf_counter()
        given = spark_queries.streams(spark, folder, files_per_trigger=files)
        spark_queries.start(spark, query, given, base / "checkpoint").awaitTermination()
        return time.perf_counter() - start


def compete(name: str, options: argparse.Namespace) -> None:
    contestant, query = name.split(":")
    small, large = data(options.check_events, 2), data(options.events, options.files)
    per_epoch = max(1, options.files // options.epochs)
    settings = spark_queries.SETTINGS if contestant == "spark" else {}
    with session(options.memory, **settings) as spark:
        seconds = []
        for round_ in range(1 + options.repeat):
            folder, files = (large, per_epoch) if round_ else (small, 1)
            if contestant == "spark" or query in STATELESS:
                seconds.append(spark_streaming(spark, query, folder, files))
            else:
                seconds.append(holdfast(spark, query, folder, files, checked=not round_))
    print(json.dumps({"seconds": seconds[1:]}))


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--events", type=int, default=2_000_000)
    made.add_argument("--files", type=int, default=16)
    made.add_argument("--epochs", type=int, default=4)
    made.add_argument("--check-events", type=int, default=200_000)
    made.add_argument("--repeat", type=int, default=1)
    made.add_argument("--queries", nargs="+", choices=list(FLINK), default=list(FLINK), metavar="QUERY")
    choose(made, ["holdfast", "spark"])
    options = made.parse_args()
    if options.quick:
        options.events, options.files, options.check_events = 200_000, 4, 50_000
        options.queries = [query for query in options.queries if query in ("q5", "q11", "q17", "q18")]
    if options.contestant:
        compete(options.contestant, options)
        return
    data(options.check_events, 2)
    data(options.events, options.files)
    queries: dict[str, dict[str, Any]] = {}
    shown = table(
        f"{options.events:,} events, {options.epochs} epochs; thousand events a second and core",
        *("query", "holdfast", "spark", "flink (published)", "vs spark", "vs flink"),
    )
    for query in options.queries:
        rates: dict[str, float | None] = {"holdfast": None, "spark": None}
        for contestant in options.contestants:
            if contestant == "spark" and query in spark_queries.CANNOT:
                continue
            if query in STATELESS and rates["holdfast"]:
                rates["spark"] = rates["holdfast"]  # the same query of Spark's
                continue
            seconds = median(measure_apart(f"{contestant}:{query}")["seconds"])
            rates[contestant] = options.events / seconds / CORES
        ours, theirs, published = rates["holdfast"], rates["spark"], FLINK[query] * 1000
        said = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items() if rate)
        console.print(f"{query}: {said} events a second and core; flink {published:,.0f}")
        queries[query] = {"events_s_core": ours, "spark": theirs, "flink": published}
        shown.add_row(
            query,
            *(f"{rate / 1000:,.1f}" if rate else "–" for rate in (ours, theirs, published)),
            f"{ours / theirs:.2f}×" if ours and theirs else "–",
            f"{ours / published:.2f}×" if ours else "–",
        )
    stateful = {query: one for query, one in queries.items() if query not in STATELESS and one["events_s_core"]}
    report(
        shown,
        {
            "queries": {
                query: {name: None if rate is None else round(rate) for name, rate in one.items()}
                for query, one in queries.items()
            },
            "ahead_of_flink": sum((one["events_s_core"] or 0) > one["flink"] for one in queries.values()),
            "ahead_of_spark": sum(
                bool(one["spark"] and one["events_s_core"] > one["spark"]) for one in stateful.values()
            ),
            "stateful_with_spark": sum(bool(one["spark"]) for one in stateful.values()),
        },
    )


if __name__ == "__main__":
    main()
