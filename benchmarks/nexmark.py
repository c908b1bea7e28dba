"""Nexmark: events a second and core of each query, beside Spark streaming here and Flink's published figures.

One Parquet folder holds all events as Flink's own generator mixes them; every query reads it as a stream, the same
files in the same epochs for everybody: 800,000 events each by default, about a second's work, and twelve of them, so
that state has grown when it counts. Before it is measured each query runs once on a smaller folder, which warms the
JVM; there Holdfast's rows are compared with a batch oracle (DuckDB), and a difference ends the benchmark.

What counts is the steady state, as in Flink's figures: the median of the seconds that Spark reports for an epoch
(triggerExecution: reading, state, sink, and all commits), over the second half of the epochs; in the first half the JVM
still compiles. So starting a query counts for nobody, and Holdfast's backups and checkpoints count as far as they slow
epochs down. Spark runs each query with both of its state stores, and the faster one counts. The stateless queries (q0,
q1, q2, q22) are Spark's own in both columns: Holdfast hands them to Spark.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from common import CORES, DATA, choose, console, measure_apart, median, parser, report, scratch, session, table
from nexmark_kit import checking, generator, spark_queries
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

# Thousand events a second and core, as the Nexmark project for Flink publishes them; there is no figure for q6.
FLINK = {
    "q0": 155, "q1": 158, "q2": 175, "q3": 152, "q4": 34, "q5": 22, "q6": None, "q7": 12.3, "q8": 146, "q9": 14.2,
    "q11": 40, "q12": 76, "q15": 72, "q16": 18.7, "q17": 117, "q18": 54, "q19": 44, "q20": 19, "q22": 130,
}  # fmt: skip
STATELESS = ("q0", "q1", "q2", "q22")
RATE = 10_000


def data(events: int, files: int) -> Path:
    DATA.mkdir(exist_ok=True)
    folder = DATA / f"nexmark-{events}-{files}-{RATE}"
    return generator.write(folder, events, files, layout="together", rate=RATE, disorder=1000)


def holdfast(spark: SparkSession, query: str, folder: Path, files: int, *, checked: bool) -> list[float]:
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
        with job.start(containers=CORES, trigger={"availableNow": True}) as run:
            run.await_termination()
            assert run.query is not None
            seconds = epoch_seconds(run.query)
        if checked and query != "q12":
            checking.check(query, folder, epochs)
        return seconds


def spark_streaming(spark: SparkSession, query: str, folder: Path, files: int) -> list[float]:
    with scratch() as base:
        given = spark_queries.streams(spark, folder, files_per_trigger=files)
        started = spark_queries.start(spark, query, given, base / "checkpoint")
        started.awaitTermination()
        return epoch_seconds(started)


def epoch_seconds(query: StreamingQuery) -> list[float]:
    """Of every epoch that had rows: Spark ends with one that has none, to close windows."""
    return [one["durationMs"]["triggerExecution"] / 1000 for one in query.recentProgress if one["numInputRows"]]


def compete(name: str, options: argparse.Namespace) -> None:
    contestant, query = name.split(":")
    small, large = data(options.check_events, 4), data(options.events, options.files)
    per_epoch = max(1, options.files // options.epochs)
    with session(options.memory, **spark_queries.SETTINGS.get(contestant, {})) as spark:
        seconds: list[float] = []
        for round_ in range(1 + options.repeat):
            folder, files = (large, per_epoch) if round_ else (small, 1)
            if contestant != "holdfast" or query in STATELESS:
                found = spark_streaming(spark, query, folder, files)
            else:
                found = holdfast(spark, query, folder, files, checked=not round_)
            seconds += found[len(found) // 2 :] if round_ else []
    print(json.dumps({"seconds": seconds}))


def rate(contestant: str, query: str, options: argparse.Namespace) -> float | None:
    """Events a second and core; of Spark with the better of its state stores, None if it cannot run the query."""
    if contestant == "spark" and query in spark_queries.CANNOT:
        return None
    runs = ["holdfast"] if contestant == "holdfast" else options.stores
    seconds = min(median(measure_apart(f"{run}:{query}")["seconds"]) for run in runs)
    return float(options.events / options.epochs / seconds / CORES)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--events", type=int, default=9_600_000)
    made.add_argument("--files", type=int, default=24)
    made.add_argument("--epochs", type=int, default=12)
    made.add_argument("--check-events", type=int, default=400_000)
    made.add_argument("--repeat", type=int, default=1)
    made.add_argument("--stores", nargs="+", choices=list(spark_queries.SETTINGS), default=list(spark_queries.SETTINGS))
    made.add_argument("--queries", nargs="+", choices=list(FLINK), default=list(FLINK), metavar="QUERY")
    choose(made, ["holdfast", "spark"])
    options = made.parse_args()
    if options.quick:
        options.events, options.files, options.epochs, options.check_events = 400_000, 4, 4, 200_000
        options.queries = [query for query in options.queries if query in ("q5", "q11", "q17", "q18")]
    if options.contestant:
        compete(options.contestant, options)
        return
    data(options.check_events, 4)
    data(options.events, options.files)
    queries: dict[str, dict[str, Any]] = {}
    shown = table(
        f"{options.events // options.epochs:,} events an epoch, {options.epochs} epochs; thousand a second and core",
        *("query", "holdfast", "spark", "flink (published)", "vs spark", "vs flink"),
    )
    for query in options.queries:
        rates: dict[str, float | None] = {"holdfast": None, "spark": None}
        for contestant in options.contestants:
            if query in STATELESS and rates["holdfast"]:
                rates["spark"] = rates["holdfast"]  # the same query of Spark's
            else:
                rates[contestant] = rate(contestant, query, options)
        thousands = FLINK[query]
        ours, theirs, published = rates["holdfast"], rates["spark"], thousands and thousands * 1000
        said = ", ".join(f"{name} {found:,.0f}" for name, found in {**rates, "flink": published}.items() if found)
        console.print(f"{query}: {said} events a second and core")
        queries[query] = {"events_s_core": ours, "spark": theirs, "flink": published}
        shown.add_row(
            query,
            *(f"{one / 1000:,.1f}" if one else "–" for one in (ours, theirs, published)),
            f"{ours / theirs:.2f}×" if ours and theirs else "–",
            f"{ours / published:.2f}×" if ours and published else "–",
        )
    stateful = {query: one for query, one in queries.items() if query not in STATELESS and one["events_s_core"]}
    report(
        shown,
        {
            "queries": {
                query: {name: None if found is None else round(found) for name, found in one.items()}
                for query, one in queries.items()
            },
            "ahead_of_flink": sum(
                bool(one["flink"] and (one["events_s_core"] or 0) > one["flink"]) for one in queries.values()
            ),
            "ahead_of_spark": sum(
                bool(one["spark"] and one["events_s_core"] > one["spark"]) for one in stateful.values()
            ),
            "stateful_with_spark": sum(bool(one["spark"]) for one in stateful.values()),
        },
    )


if __name__ == "__main__":
    main()
