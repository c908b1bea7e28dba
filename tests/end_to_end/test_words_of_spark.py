"""Spark's own words on real Spark: ``writeStream``, tables of the catalog, columns that say how they are sorted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
        assert status.snapshots == status.loops == ()
        assert (status.streams["source"].blocks, status.streams["source"].backlog) == (status.epoch, 0)
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


Form = Callable[[str], Any]
FORMS: dict[str, Form] = {"name": lambda name: name, "column": F.col, "expression": lambda name: F.expr(f"{name}")}


def drawn(read: hf.Stream, other: hf.Stream, form: Form, how: str) -> dict[str, hf.StageStream]:
    """Every place that takes a column, with a column of that form."""
    g, v, ts = form("g"), form("v"), form("ts")

    def newest(key: Any, rows: Any, context: Any) -> Any:
        yield {"g": key, "rows": len(list(rows)), "at": context.watermark}

    def keyed(verb: str) -> hf.KeyedStream:
        return read.select([form("g"), v], ts).key_by([g], name=f"{verb}_{how}")

    window, same = hf.tumbling("20 s"), other.select("g", "w", F.col("us").alias("ts"))
    where = F.col("v") > 10 if how == "column" else "v > 10"
    sums = {"n": hf.count(v), "some": hf.count(where=where), "total": hf.sum(v, where=where), "last": hf.max(ts)}
    windows = keyed("window").window(window, time=ts).agg(kinds=hf.count(), most=hf.max(v))
    return {
        "agg": keyed("agg").agg(**sums, kinds=hf.count_distinct(v, where=where), rough=hf.approx_distinct(v)),
        "window": windows,
        "session": keyed("session").window(hf.session("3 s"), time=ts).agg(n=hf.count(), least=hf.min(v)),
        "best of windows": windows.top_k(
            1, by=form("most"), per=[form("window_start"), form("window_end")], name=f"best_{how}"
        ),
        "rows of windows": keyed("rows").window(window, time=ts).top_k(2, by=[v]),
        "join": keyed("join").join(other.key_by(form("g")), time=(ts, form("us")), within="1 s", how="left"),
        "both": read.key_by(g, ts, name=f"both_{how}").join(same.key_by(g, ts), time=ts, within="1 s"),
        "distinct": keyed("distinct").distinct(time=ts, within="10 s"),
        "top_k": keyed("top_k").top_k(3, by=v),
        "per": read.top_k(1, by=v, per=g, name=f"per_{how}"),
        "process": keyed("process").process(newest, "g bigint, rows bigint, at timestamp", time=ts),
        "lookup": keyed("lookup").lookup(read.key_by(g, name=f"peer_{how}").agg(seen=hf.count())),
    }


def test_a_column_is_a_name_a_column_or_an_expression(tmp_path: Path, spark: SparkSession) -> None:
    made = spark.range(200).selectExpr("id % 4 AS g", "id AS v", "timestamp_seconds(1767225600 + id) AS ts")
    made.coalesce(1).write.parquet(str(tmp_path / "in"))
    files = spark.readStream.schema("g bigint, v bigint, ts timestamp").parquet(str(tmp_path / "in"))
    job = hf.Job("columns", spark, store=tmp_path / "store")
    read = job.read(files, name="rows")
    other = job.read(files.selectExpr("g", "v AS w", "ts AS us"), name="others")
    stages = {how: drawn(read, other, form, how) for how, form in FORMS.items()}
    for how, of in stages.items():
        for verb, stage in of.items():
            stage.write("memory", name=f"{verb.replace(' ', '_')}_{how}_rows")
    with job.start(containers=1, slices=2, trigger="availableNow") as run:
        run.await_termination()
        for verb in stages["name"]:
            by_name, *others = (
                sorted(map(str, spark.table(f"{verb.replace(' ', '_')}_{how}_rows").collect())) for how in FORMS
            )
            assert by_name, verb
            assert [rows == by_name for rows in others] == [True, True], verb
