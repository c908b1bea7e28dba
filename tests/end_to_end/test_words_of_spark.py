"""Spark's own words on real Spark: ``writeStream``, tables of the catalog, columns that say how they are sorted."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import holdfast as hf

pytestmark = pytest.mark.spark


def test_sinks_and_orders_in_sparks_words(tmp_path: Path, spark: SparkSession) -> None:
    spark.range(100).selectExpr("id % 4 AS g", "id AS v", "IF(id < 90, NULL, id) AS w").coalesce(1).write.parquet(
        str(tmp_path / "in")
    )
    rows = spark.readStream.schema("g bigint, v bigint, w bigint").parquet(str(tmp_path / "in"))
    job = hf.Job("words", spark, store=tmp_path / "store")
    read = job.read(rows, name="rows")
    counts = read.key_by("g").agg(n=hf.count(), most=hf.max(F.col("v") + 1))
    counts.writeStream.format("parquet").option("path", str(tmp_path / "out")).partitionBy("g").start()
    counts.writeStream.outputMode("complete").toTable("words_counts", path=str(tmp_path / "counts"))
    counts.writeStream.option("path", str(tmp_path / "changes")).toTable("words_changes")
    got: list[int] = []
    counts.writeStream.foreachBatch(lambda df, _: got.append(df.count())).queryName("mine").start()
    ordered = {
        "desc": read.key_by("g", name="desc").top_k(2, by=F.col("v").desc()),
        "asc": read.key_by("g", name="asc").top_k(2, by=[F.asc("v")]),
        "nulls": read.key_by("g", name="nulls").top_k(2, by=[F.col("w").asc_nulls_first(), (F.col("v") % 50).desc()]),
        "text": read.key_by("g", name="text").top_k(2, by=[("v", "asc")]),
    }
    with pytest.raises(hf.PlanError, match="nulls first in ascending order"):
        read.key_by("g", name="other").top_k(2, by=F.col("w").asc_nulls_last())
    try:
        with job.start(containers=1, slices=2, trigger="availableNow") as run:
            run.await_termination()
            status = run.status()
            found = {name: run.state(stage).to_arrow().to_pylist() for name, stage in ordered.items()}
        best = {name: [row["v"] for row in rows if row["g"] == 1] for name, rows in found.items()}
        assert best == {"desc": [97, 93], "asc": [1, 5], "nulls": [49, 45], "text": [1, 5]}
        assert got == [4]
        assert status.sources["rows"].rows == 100
        assert status.stages["rows_by_g_agg"].safety == "Delta(backups=1, every='3 s', store_every='60 s')"
        assert [(one.name, one.epoch) for one in (*status.jobs, *status.sections)] == [("words", 1), ("main", 1)]
        assert status.streams == status.snapshots == status.loops == ()
        expected = [(g, 25, 97 + g) for g in range(4)]
        for there in (
            spark.read.parquet(str(tmp_path / "out")),
            spark.table("words_counts"),
            spark.table("words_changes"),
        ):
            assert sorted((row.g, row.n, row.most) for row in there.collect()) == expected
        (stamp,) = spark.table("words_changes").select("_sink", "_epoch").distinct().collect()
        assert (stamp._sink, stamp._epoch) == ("table:words_changes", 1)
    finally:
        for table in ("words_counts", "words_changes"):
            spark.sql(f"DROP TABLE IF EXISTS {table}")
