"""SQL on real Spark: a job of many queries, a container killed in it; Spark in batch says the same to the same text."""

from __future__ import annotations

import datetime as dt
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.plan.ddl import schema_of
from holdfast.testing.values import to_table

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
from sql_kit import CLICKS, KINDS, LATENESS, ORDERS, Asked, asked, last, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("days_are_utc_days")]
SCHEMAS = {"clicks": CLICKS, "orders": ORDERS}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``--heavy`` runs 25 jobs of 20 queries, one in ten with a kill; else one of each kind, with one."""
    if "sql_seed" in metafunc.fixturenames:
        heavy = metafunc.config.getoption("--heavy")
        metafunc.parametrize("sql_seed", range(25) if heavy else [100])


def write(folder: Path, epochs: list[dict[str, list[Any]]]) -> None:
    for name, ddl in SCHEMAS.items():
        (folder / name).mkdir(parents=True)
        for number, epoch in enumerate(epochs):
            pq.write_table(to_table(epoch[name], schema_of(ddl), name), folder / name / f"{number}.parquet")


def stream(spark: SparkSession, folder: Path, name: str) -> DataFrame:
    reader = spark.readStream.schema(SCHEMAS[name]).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder / name)).withWatermark("ts", f"{LATENESS} seconds")


def plain(rows: list[Any]) -> list[tuple[Any, ...]]:
    def one(value: Any) -> Any:
        if isinstance(value, dt.datetime):
            return value.isoformat()
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value

    return sorted((tuple(map(one, row)) for row in rows), key=str)


def settled(rows: list[Any], query: Asked, until: dt.datetime) -> list[Any]:
    naive = until.astimezone().replace(tzinfo=None)
    return [
        row
        for row in rows
        if all(row[name] is None or row[name] <= naive for name in query.closing)
        or (query.kind == "outer" and row["t"] is not None and row["u"] is not None)
    ]


def test_a_job_of_queries(tmp_path: Path, spark: SparkSession, sql_seed: int) -> None:
    draw = random.Random(sql_seed)
    kinds = [kind for kind in KINDS if kind not in ("lookup",)]
    if sql_seed < 100:
        kinds = [kinds[(sql_seed * 20 + at) % len(kinds)] for at in range(20)]
    queries = {f"q{at}": asked(draw, kind) for at, kind in enumerate(kinds)}
    epochs = rows_of(draw, 4, 40)
    write(tmp_path / "in", epochs)
    job = hf.Job("asked", spark, store=tmp_path / "store")
    for name in SCHEMAS:
        job.read(stream(spark, tmp_path / "in", name), name=name)
    tables = {}
    for name, query in queries.items():
        rows = job.sql(query.text if query.kind != "with" else query.text.replace("per", f"per_{name}"),
                       name, dialect=query.dialect)  # fmt: skip
        tables[name] = f"{name}_{sql_seed}"
        mode = "complete" if rows._complete else "update"
        rows.writeStream.format("memory").queryName(tables[name]).outputMode(mode).start()
    with job.start(containers=2, slices=4, trigger="availableNow") as run:
        if sql_seed % 10 == 0:
            assert run._shell.wait_for(lambda: run._shell.machine.committed >= 1, 120)
            run.kill(run.status().containers[0].name)
        run.await_termination()
        assert run.status().epoch == 4
    for name, ddl in SCHEMAS.items():
        spark.read.schema(ddl).parquet(str(tmp_path / "in" / name)).createOrReplaceTempView(name)
    shown = 0
    for name, query in queries.items():
        used = [one for one in SCHEMAS if one in query.text] or ["clicks"]
        until = last(epochs, *used)
        truth = spark.sql(query.in_spark.replace("{closed}", until.isoformat())).collect()
        if query.kind == "outer":
            until -= dt.timedelta(seconds=121)
        found = spark.table(tables[name]).collect()
        right = plain(settled(truth, query, until))
        assert plain(settled(found, query, until)) == right, query.text
        shown += bool(right)
    assert shown > len(queries) / 2
