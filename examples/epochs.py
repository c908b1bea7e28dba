"""What the examples share: a local Spark session, and made-up rows as a stream in which every table is an epoch."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

START = 1_717_236_000_000_000  # 2024-06-01 10:00 UTC, in microseconds
SECOND = 1_000_000


def session() -> SparkSession:
    """In a program of your own: whatever session it has."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def stream(spark: SparkSession, folder: str | Path, tables: Iterable[pa.Table]) -> DataFrame:
    """Tables as files that Spark takes one by one, in this order; in earnest this is Kafka or a landing folder."""
    Path(folder).mkdir(parents=True)
    for number, table in enumerate(tables):
        path = Path(folder, f"{number:04d}.parquet")
        pq.write_table(table, path)
        os.utime(path, (START / SECOND + number, START / SECOND + number))  # Spark goes by the time of a file
    schema = spark.read.parquet(str(folder)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def times(micros: Iterable[int]) -> pa.Array:
    return pa.array(micros, pa.timestamp("us", "UTC"))
