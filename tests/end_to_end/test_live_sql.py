"""Questions to live state: Spark and DuckDB say the same, one epoch for all stages, keys from their owner."""

# ruff: noqa: E501 - a query is read in one line

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.api.sql import live

pytestmark = pytest.mark.spark
SCHEMA = "k bigint, name string, v bigint, x double"
BOTH = "SELECT a.s AS one, b.s AS other FROM (SELECT sum(n) AS s FROM totals) a JOIN (SELECT sum(rows) AS s FROM names) b ON true"
BY_DUCKDB = [
    "SELECT * FROM totals",
    "SELECT k, total FROM totals WHERE k = 7",
    "SELECT k, total FROM totals WHERE 7 = k AND n > 1",
    "SELECT k, total FROM totals WHERE k = -7",
    "SELECT k FROM totals WHERE most IS NULL OR k IN (1, 2, 3) ORDER BY k DESC LIMIT 2",
    "SELECT count(*) FROM totals WHERE NOT (k BETWEEN 3 AND 12)",
    "SELECT n, count(*) AS keys, sum(total) AS t, min(most) AS low, avg(total) AS mean FROM totals GROUP BY n HAVING count(*) > 1 ORDER BY n",
    "SELECT name, rows FROM names WHERE name = 'n3'",
    "SELECT name FROM names WHERE name > 'n2' AND name <> 'n4' ORDER BY name",
    "SELECT DISTINCT n FROM totals ORDER BY n LIMIT 3",
    "SELECT t.k, s.rows FROM totals t JOIN names s ON t.last = s.name ORDER BY t.k",
    "SELECT t.k, s.rows FROM totals t LEFT JOIN names s ON t.last = s.name WHERE t.k < 4 ORDER BY k",
    "SELECT most FROM totals ORDER BY most ASC, k ASC LIMIT 4",
    "SELECT count(DISTINCT last) AS d FROM totals",
    BOTH,
    "SELECT sum(n) AS s FROM totals UNION ALL SELECT sum(rows) AS t FROM names",
]
BY_SPARK = [
    "SELECT k, total / n AS mean FROM totals ORDER BY k",
    "SELECT K, sum(total) FROM totals GROUP BY K ORDER BY K",
    "SELECT upper(name) AS u, rows FROM names WHERE name = 'n3'",
    "SELECT count(*) FROM totals WHERE length(last) = 2",
    "WITH big AS (SELECT * FROM totals WHERE total > 10) SELECT count(*) AS n FROM big",
    "SELECT * FROM totals t JOIN extra e ON t.k = e.id WHERE e.id < 3",
    "SELECT k FROM totals WHERE k = 7 AND total % 2 = 0",
    "SELECT k, rank() OVER (ORDER BY total DESC, k) AS r FROM totals ORDER BY r",
    "SELECT k FROM totals WHERE total > (SELECT avg(total) FROM totals) ORDER BY k",
    "SELECT mean FROM totals GROUP BY mean ORDER BY mean",
    "SELECT k FROM totals WHERE k = 7 AND total > (SELECT min(total) FROM totals)",
    'SELECT count(*) AS n FROM totals WHERE last = "last"',
    "SELECT count(*) AS n FROM totals WHERE last <> 'a\\tb'",
    "SELECT count(*) AS c, sum(a.n) AS s FROM totals a NATURAL JOIN names b",
    "SELECT count(*) AS c FROM totals a JOIN totals b USING (k)",
    "SELECT one, two FROM totals PIVOT (sum(total) FOR n IN (2 AS one, 3 AS two)) ORDER BY one, two",
    "SELECT t.total FROM totals t LATERAL VIEW explode(array(1, 2)) x AS k WHERE x.k = 1 ORDER BY t.total",
    "SELECT n AS k, count(*) AS c FROM totals GROUP BY n ORDER BY k, c",
    "SELECT q.c FROM totals AS q(a, b, c, d, e, f) WHERE q.a = 3",
]


def kept(tmp_path: Path, spark: SparkSession, rows: int = 60) -> hf.Job:
    made = spark.range(rows).selectExpr(
        "id % 20 AS k",
        "concat('n', id % 5) AS name",
        "CASE WHEN id % 7 = 0 THEN NULL ELSE id END AS v",
        "id / 3.0D AS x",
    )
    made.repartition(2).write.mode("append").parquet(str(tmp_path / "in"))
    job = hf.Job("asked", spark, store=tmp_path / "store")
    job.read(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in")), name="rows")
    job.sql(
        "SELECT k, count(*) AS n, sum(v) AS total, max(v) AS most, max(name) AS last, avg(x) AS mean FROM rows GROUP BY k",
        "totals",
    )
    job.sql("SELECT name, count(*) AS rows FROM rows GROUP BY name", "names")
    return job


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.heavy)], ids=["some", "all"])
def test_it_means_what_spark_means(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Who answers is looked at for all questions, what the answer is for every sixth, or all."""
    job = kept(tmp_path, spark)
    spark.range(5).createOrReplaceTempView("extra")
    with job.start(containers=2, slices=4, trigger="availableNow") as run:
        run.await_termination()
        for name in ("totals", "names"):
            state = run.state(job._named_streams[name][0])
            state.to_df().drop("_epoch").createOrReplaceTempView(f"{name}_now")
        for text in BY_DUCKDB + BY_SPARK:
            engine = run.sql(f"EXPLAIN {text}").to_pylist()[0]["plan"]
            assert engine.startswith("answered by DuckDB" if text in BY_DUCKDB else "answered by Spark"), text
            if (BY_DUCKDB + BY_SPARK).index(text) % every:
                continue
            truth = spark.sql(text.replace("totals", "totals_now").replace("names", "names_now"))
            found = run.sql(text)
            assert found.epoch == run.status().epoch
            assert found.columns == truth.columns, text
            assert found.to_arrow().schema.types == truth.toArrow().schema.types, text
            ours, theirs = ([tuple(row.values()) for row in table.to_pylist()] for table in (found, truth.toArrow()))
            assert (ours if "ORDER BY" in text else sorted(ours, key=str)) == (
                theirs if "ORDER BY" in text else sorted(theirs, key=str)
            ), text
        with monkeypatch.context() as patch:  # what is too large is Spark's
            patch.setattr(live, "MOST_BYTES", 10)
            assert run.sql("SELECT count(*) AS n FROM totals").to_pylist() == [{"n": 20}]
        rows = run.sql("SELECT k, total FROM totals WHERE k = 3")
        assert (len(rows), list(rows), rows.to_pandas()["k"].tolist()) == (1, rows.to_pylist(), [3])
        assert "1 rows of epoch" in repr(rows)
        for text, said in [
            ("SELECT * FROM total", "totals, names"),
            ("SELECT 1", "totals, names"),
            ("WITH totals AS (SELECT k FROM totals) SELECT k FROM totals", "another name"),
            ("DROP TABLE totals", "EXPLAIN SELECT"),
            ("SELECT k FROM totals; SELECT k FROM totals", "EXPLAIN SELECT"),
        ]:
            with pytest.raises(hf.PlanError) as caught:
                run.sql(text)
            assert said in caught.value.todo
        with pytest.raises(hf.PlanError, match="colour"):
            run.sql("SELECT colour FROM totals")


def test_one_epoch_for_all_and_never_a_copy(tmp_path: Path, spark: SparkSession) -> None:
    """Every row counts once in both stages, so at each epoch both have as many; kills and moves change nothing."""
    job = kept(tmp_path, spark)
    with job.start(containers=2, slices=8) as run:
        assert run._shell.wait_for(lambda: run._shell.machine.committed >= 1, 120)
        over, asked, broken = threading.Event(), [0], []

        def ask() -> None:
            while not over.is_set():
                found = run.sql(BOTH)
                row: dict[str, Any] = found.to_pylist()[0]
                asked[0] += 1
                if row["one"] != row["other"]:
                    broken.append((found.epoch, row))

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            for number in range(3):
                before = run._shell.machine.committed
                kept_rows = spark.range(40).selectExpr(
                    "id % 20 AS k", "concat('n', id % 5) AS name", "id AS v", "0.5D AS x"
                )
                kept_rows.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
                if number == 1:
                    run.kill(run.status().containers[0].name)
                if number == 2:
                    run.scale(containers=3)
                assert run._shell.wait_for(lambda before=before: run._shell.machine.committed > before, 120)
                assert run.sql("SELECT n FROM totals WHERE k = 3").epoch > before
        finally:
            over.set()
            thread.join()
        assert not broken
        assert asked[0] > 3
