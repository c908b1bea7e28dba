"""Jobs of many queries over two streams of files, and what Spark in batch says to the same texts."""

from __future__ import annotations

import datetime as dt
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.plan.ddl import schema_of
from holdfast.testing.values import to_table

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
from sql_kit import CLICKS, KINDS, LATENESS, ORDERS, Asked, asked, last, rows_of

SCHEMAS = {"clicks": CLICKS, "orders": ORDERS}
EPOCHS = 4
FIRST_SECOND = 1_767_225_600
ASKED = [kind for kind in KINDS if kind != "lookup"]
"""What a lookup finds depends on the epoch that its row came in, which no batch knows."""


def play(
    spark: SparkSession, folder: Path, seed: int, kinds: Sequence[str], *, kill: bool
) -> list[tuple[Asked, Any, Any]]:
    """Run a job of one query a kind to its end; each query with what it gave and what is right."""
    draw = random.Random(seed)
    queries = {f"q{at}": asked(draw, kind) for at, kind in enumerate(kinds)}
    epochs = rows_of(draw, EPOCHS, 40)
    _write(folder / "in", epochs)
    job = hf.Job("asked", spark, store=folder / "store")
    for name in SCHEMAS:
        if name == "orders" and not any(name in query.text for query in queries.values()):
            continue
        job.read(_stream(spark, folder / "in", name), name=name)
    tables = {name: f"{name}_{seed}" for name in queries}
    for name, query in queries.items():
        text = query.text.replace("per", f"per_{name}") if query.kind == "with" else query.text
        rows = job.sql(text, name, dialect=query.dialect)
        mode = "complete" if rows._complete else "update"
        rows.writeStream.format("memory").queryName(tables[name]).outputMode(mode).start()
    with job.start(containers=2, slices=4, trigger="availableNow") as run:
        if kill:
            assert run._shell.wait_for(lambda: run._shell.machine.committed >= 1, 300)
            run.kill(run.status().containers[0].name)
        run.await_termination()
        assert run.status().epoch == EPOCHS
    for name, ddl in SCHEMAS.items():
        spark.read.schema(ddl).parquet(str(folder / "in" / name)).createOrReplaceTempView(name)
    played = []
    for name, query in queries.items():
        used = [one for one in SCHEMAS if one in query.text] or ["clicks"]
        until = last(epochs, *used)
        truth = spark.sql(query.in_spark.replace("{closed}", until.isoformat())).collect()
        if query.kind == "outer":
            until -= dt.timedelta(seconds=121)
        found = spark.table(tables[name]).collect()
        played.append((query, _plain(_settled(found, query, until)), _plain(_settled(truth, query, until))))
        spark.catalog.dropTempView(tables[name])
    return played


def _write(folder: Path, epochs: list[dict[str, list[Any]]]) -> None:
    for name, ddl in SCHEMAS.items():
        (folder / name).mkdir(parents=True)
        for number, epoch in enumerate(epochs):
            file = folder / name / f"{number}.parquet"
            pq.write_table(to_table(epoch[name], schema_of(ddl), name), file)
            os.utime(file, (FIRST_SECOND + number, FIRST_SECOND + number))  # Spark goes by their times


def _stream(spark: SparkSession, folder: Path, name: str) -> DataFrame:
    reader = spark.readStream.schema(SCHEMAS[name]).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder / name)).withWatermark("ts", f"{LATENESS} seconds")


def _plain(rows: list[Any]) -> list[tuple[Any, ...]]:
    def one(value: Any) -> Any:
        if isinstance(value, dt.datetime):
            return value.isoformat()
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value

    return sorted((tuple(map(one, row)) for row in rows), key=str)


def _settled(rows: list[Any], query: Asked, until: dt.datetime) -> list[Any]:
    """Rows that cannot change any more."""
    naive = until.astimezone().replace(tzinfo=None)
    return [
        row
        for row in rows
        if all(row[name] is None or row[name] <= naive for name in query.closing)
        or (query.kind == "outer" and row["t"] is not None and row["u"] is not None)
    ]
