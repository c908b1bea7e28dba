"""Spark's own Nexmark queries give the oracle's rows, and what is said to be beyond Spark really is refused."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from nexmark_kit import generator, oracle, spark_queries

pytestmark = [pytest.mark.spark, pytest.mark.heavy, pytest.mark.usefixtures("days_are_utc_days")]

KEYS = {"q9": ("id",), "q15": ("day",), "q19": ("auction", "rank_number")}  # of those in update mode


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nexmark") / "events"
    return generator.write(folder, 6000, 3, layout="by_kind", rate=200, disorder=100)


def rows_of(built: DataFrame, mode: str, checkpoint: Path, key: tuple[str, ...]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    writer = built.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
    query = writer.foreachBatch(lambda batch, _: rows.extend(row.asDict() for row in batch.collect()))
    query.trigger(availableNow=True).start().awaitTermination()
    return list({tuple(row[name] for name in key): row for row in rows}.values()) if key else rows


@pytest.mark.parametrize("query", ["q5", "q9", "q11", "q15", "q19"])
def test_spark_gives_the_oracles_rows(spark: SparkSession, folder: Path, tmp_path: Path, query: str) -> None:
    built, mode = spark_queries.QUERIES[query](spark, spark_queries.streams(spark, folder, files_per_trigger=1))
    found = rows_of(built, mode, tmp_path / "checkpoint", KEYS.get(query, ()))
    watermark = oracle.largest_time(folder, ["bids"]) - timedelta(seconds=4)
    expected = oracle.result(query, folder, watermark=watermark)
    assert built.columns == expected.column_names

    def comparable(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        times = [{name: at.timestamp() if hasattr(at, "timestamp") else at for name, at in row.items()} for row in rows]
        return sorted(tuple(row[name] for name in expected.column_names) for row in times)

    assert comparable(found) == comparable(expected.to_pylist())


def test_every_query_is_either_written_or_explained() -> None:
    assert spark_queries.QUERIES.keys().isdisjoint(spark_queries.CANNOT)
    assert spark_queries.QUERIES.keys() | spark_queries.CANNOT.keys() == oracle.QUERIES.keys() | {"q12"}


@pytest.mark.parametrize(("mode", "why"), [("update", "correctness"), ("append", "watermark")])
def test_q4_and_q6_are_refused(spark: SparkSession, folder: Path, tmp_path: Path, mode: str, why: str) -> None:
    """Both need a running aggregate over the winning bids, which are an aggregate themselves."""
    given = spark_queries.streams(spark, folder, files_per_trigger=1)
    auctions, bids = (given[kind].withWatermark("dateTime", "4 seconds") for kind in ("auctions", "bids"))
    within = "b.dateTime between a.dateTime and a.expires and b.dateTime <= a.dateTime + interval 1 minute"
    valid = auctions.alias("a").join(bids.alias("b"), fn.expr(f"a.id = b.auction and {within}"))
    winning = valid.groupBy("a.id", "a.dateTime", "a.category", "a.seller").agg(fn.max("b.price").alias("final"))
    for key in ("category", "seller"):
        averages = winning.groupBy(key).agg(fn.avg("final"))
        writer = averages.writeStream.format("noop").outputMode(mode)
        with pytest.raises(AnalysisException, match=why):
            writer.option("checkpointLocation", str(tmp_path / key)).start()
