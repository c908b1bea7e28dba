"""Many readers of one source on real Spark: one pass over it, every reader's rows, against a batch query of each."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from driver import source
from kit import equal, write_files
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import holdfast as hf

pytestmark = pytest.mark.spark

FILES, ROWS = 6, 1500
TRUTH = {
    "sums": "SELECT k, count(*) AS n, sum(v)::BIGINT AS total FROM rows GROUP BY k",
    "few": "SELECT g, count(*) AS n, sum(floor(100 / (k - 7)))::BIGINT AS parts FROM rows "
    "WHERE k <> 7 AND v > 0 GROUP BY g",
    "none": "SELECT k, count(*) AS n FROM rows WHERE v > 5000 GROUP BY k",
    "again": "SELECT k, max(x) AS most FROM rows WHERE v > 0 AND k <> 7 GROUP BY k",
    "split": "SELECT part, count(*) AS n FROM (SELECT unnest([k % 5, k % 7]) AS part FROM rows) GROUP BY part",
}
WINDOWS = """
    SELECT g, count(*) AS n FROM rows WHERE v BETWEEN 990 AND 1000 AND g <> 'g3'
    GROUP BY g, time_bucket(INTERVAL 4 seconds, t)"""


def draw(base: Path, spark: SparkSession) -> tuple[hf.Job, dict[str, Any]]:
    job = hf.Job("readers", spark, store=base / "store")
    rows = job.read(source(spark, str(base / "input")), name="rows")
    positive = rows.where("v > 0")
    stages: dict[str, Any] = {
        "sums": rows.key_by("k", name="sums").agg(n=hf.count(), total=hf.sum("v")),
        # With ANSI rules 100 div 0 fails the query: the filter must guard it.
        "few": rows.where("k <> 7")
        .with_column("part", "CAST(floor(100 / (k - 7)) AS bigint)")
        .where("v > 0")
        .key_by("g", name="few")
        .agg(n=hf.count(), parts=hf.sum("part")),
        "none": rows.where(F.col("v") > 5000).key_by("k", name="none").agg(n=hf.count()),
        "again": positive.where("k <> 7").select("k", "x").key_by("k", name="again").agg(most=hf.max("x")),
        "split": rows.transform(lambda df: df.select(F.explode(F.array(F.col("k") % 5, F.col("k") % 7)).alias("part")))
        .key_by("part", name="split")
        .agg(n=hf.count()),
    }
    late = rows.where("v BETWEEN 990 AND 1000").where("g <> 'g3'")
    windows = late.key_by("g", name="windows").window(hf.tumbling("4 s"), time="t", lateness="1 day").agg(n=hf.count())
    windows.write("parquet", str(base / "windows"), name="windows")
    stages["none"].write("parquet", str(base / "none"), name="none")
    positive.select("k", "v").write("parquet", str(base / "plain"), name="plain")
    for name in ("sums", "few"):
        stages[name].write("noop", name=name)
    return job, stages


def check(run: hf.Run, stages: dict[str, Any], base: Path) -> None:
    files = sorted((base / "input").glob("*.parquet"))
    rows = pa.concat_tables([pq.read_table(path) for path in files])
    for name, truth in TRUTH.items():
        found = run.state(stages[name]).to_arrow()
        columns = [column for column in found.column_names if not column.startswith("_")]
        equal(f"SELECT {', '.join(columns)} FROM held", truth, held=found, rows=rows)
    plain = pq.read_table(base / "plain", columns=["k", "v"])
    equal("SELECT k, v FROM plain", "SELECT k, v FROM rows WHERE v > 0", plain=plain, rows=rows)
    called = [path.name for path in (base / "none" / "_spark_metadata").iterdir() if path.name.isdigit()]
    assert not called, "a sink without rows was called"


def test_every_reader_gets_its_rows_and_the_source_is_read_once(tmp_path: Path, spark: SparkSession) -> None:
    write_files(tmp_path / "input", FILES, ROWS, keys=40, seed=3)
    job, stages = draw(tmp_path, spark)
    plan = job.plan()
    assert [place.name for place in plan.places] == ["rows"] * 3, "a pass; one that explodes, one that computes first"
    assert plan.passes
    with job.start(containers=2, slices=4, trigger="availableNow") as run:
        run.kill(run.status().containers[0].name)
        run.await_termination()
        check(run, stages, tmp_path)
        status = run.status()
        assert status.sources["rows"].rows == ROWS
        watermark = status.stages["windows"].watermark
    # What no reader wants has moved the time on all the same.
    rows = pa.concat_tables([pq.read_table(path) for path in sorted((tmp_path / "input").glob("*.parquet"))])
    latest = pc.max(rows["t"]).as_py()
    assert watermark is not None
    assert (latest - watermark).total_seconds() == 86_400
    # The windows are open still; a row from two days later closes all of them.
    times = pa.array([latest + timedelta(days=2)], rows.schema.field("t").type)
    last = rows.slice(0, 1).set_column(4, "t", times)
    pq.write_table(last, tmp_path / "input" / "9999.parquet")
    job, stages = draw(tmp_path, spark)
    with job.start(containers=2, slices=4, trigger="availableNow") as run:
        run.await_termination()
        check(run, stages, tmp_path)
    equal(
        "SELECT g, n FROM windows", WINDOWS, windows=pq.read_table(tmp_path / "windows", columns=["g", "n"]), rows=rows
    )
