"""Every aggregate on every type that it takes, against Spark's own batch answer."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import holdfast as hf

pytestmark = [pytest.mark.spark, pytest.mark.long]

SCHEMA = (
    "b boolean, t tinyint, s smallint, i int, l bigint, f float, d double, m decimal(10,2), w decimal(38,4), "
    "c string, y binary, e date, z timestamp, n timestamp_ntz"
)
NUMBERS = ["t", "s", "i", "l", "f", "d", "m"]
ORDERED = [*NUMBERS, "w", "b", "c", "y", "e", "z", "n"]
KEYS = ["b", "t", "s", "i", "l", "f", "d", "m", "w", "c", "y", "e", "z", "n"]


def some_rows(count: int, seed: int) -> list[tuple[Any, ...]]:
    draw = random.Random(seed)
    zone = dt.UTC

    def maybe(value: Any) -> Any:
        return None if draw.random() < 0.15 else value

    def row() -> tuple[Any, ...]:
        number = draw.randint(-3, 3)
        moment = dt.datetime(2024, 1, 1 + draw.randint(0, 3), 5, 6, 7, draw.randint(0, 2))
        return (
            maybe(draw.random() < 0.5),
            maybe(number),
            maybe(number * 100),
            maybe(number * 100_000),
            maybe(number * 10_000_000_000),
            maybe(draw.choice([0.0, -0.0, 1.5, -2.25, math.nan, math.inf])),
            maybe(draw.choice([0.0, -0.0, 1e-3, -7.125, math.nan])),
            maybe(decimal.Decimal(number) / 4),
            maybe(decimal.Decimal(number) * decimal.Decimal("12345678901234567890.1234")),
            maybe(draw.choice(["", "a", "ä", "żółw", "abc", "ab"])),
            maybe(draw.choice([b"", b"\x00", b"\xff\x00", b"ab"])),
            maybe(dt.date(2024, 2, 27) + dt.timedelta(days=number)),
            maybe(moment.replace(tzinfo=zone)),
            maybe(moment),
        )

    return [row() for _ in range(count)]


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[DataFrame, DataFrame]:
    """The same rows as a stream of three files and as a table."""
    folder = tmp_path_factory.mktemp("rows")
    for number in range(3):
        frame = spark.createDataFrame(some_rows(150, number), SCHEMA).withColumn("at", F.lit(number))
        frame.coalesce(1).write.mode("append").parquet(str(folder))
    table = spark.read.parquet(str(folder))
    stream = spark.readStream.schema(table.schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    return stream, table


def plain(row: Row | tuple[Any, ...]) -> tuple[Any, ...]:
    """A row that can be sorted and compared: NaN equals NaN, null sorts first."""
    values = []
    for value in row:
        if isinstance(value, float):
            value = "nan" if math.isnan(value) else float(f"{value:.9g}") + 0.0
        if isinstance(value, bytearray):
            value = bytes(value)
        values.append((value is not None, str(type(value)), value) if value is not None else (False, "", ""))
    return tuple(values)


def check(
    spark: SparkSession, path: Path, stream: DataFrame, keys: list[str], truth: DataFrame, **aggregates: Any
) -> None:
    job = hf.Job("types", spark, store=str(path / "store"))
    kept = job.read(stream).key_by(*keys).agg(**aggregates)
    with job.start(containers=2, slices=5, trigger={"availableNow": True}, safety=hf.Delta(store_every=1)) as run:
        run.await_termination()
        run.kill(run.status().containers[0].name)  # so that what is compared has been through a checkpoint
        found = run.state(kept).to_df().drop("_epoch")
        assert found.dtypes == truth.dtypes
        assert sorted(map(plain, found.collect())) == sorted(map(plain, truth.collect()))


@pytest.mark.parametrize("preaggregate", [True, pytest.param(False, marks=pytest.mark.heavy)])
def test_numbers(tmp_path: Path, spark: SparkSession, data: tuple[DataFrame, DataFrame], preaggregate: bool) -> None:
    stream, table = data
    ours = {"all": hf.count()}
    theirs = [F.count("*").alias("all")]
    spark_of = {"sum": F.sum, "mean": F.avg, "var": F.variance, "stddev": F.stddev, "count": F.count}
    for column in ["t", "s", "i", "l", "m", "d"]:
        for name, function in spark_of.items():
            ours[f"{name}_{column}"] = getattr(hf, name)(column)
            theirs.append(function(column).alias(f"{name}_{column}"))
    for column in ["y", "d", "i"]:  # bytes, a float with two zeros, a number that is aggregated as well
        ours[f"different_{column}"] = hf.count_distinct(column)
        theirs.append(F.count_distinct(column).alias(f"different_{column}"))
        for name, where in {"few": "l > 0", "none": "l > 0 AND l < 0"}.items():
            ours[f"{name}_{column}"] = hf.count_distinct(column, where=where)
            theirs.append(F.count_distinct(F.when(F.expr(where), F.col(column))).alias(f"{name}_{column}"))
    truth = table.where("d IS NULL OR NOT isnan(d)").groupBy("c").agg(*theirs)
    stream = stream.where("d IS NULL OR NOT isnan(d)")
    right = sorted(map(plain, truth.collect()))
    job = hf.Job("numbers", spark, store=str(tmp_path / "store"))
    kept = job.read(stream).key_by("c").agg(**ours)
    with job.start(slices=5, trigger={"availableNow": True}, preaggregate=preaggregate) as run:
        run.await_termination()
        found = run.state(kept).to_df().drop("_epoch")
        assert found.dtypes == truth.dtypes
        assert sorted(map(plain, found.collect())) == right


def test_least_and_largest(tmp_path: Path, spark: SparkSession, data: tuple[DataFrame, DataFrame]) -> None:
    stream, table = data
    ours = {f"low_{column}": hf.min(column) for column in ORDERED}
    ours |= {f"high_{column}": hf.max(column) for column in ORDERED}
    theirs = [F.min(column).alias(f"low_{column}") for column in ORDERED]
    theirs += [F.max(column).alias(f"high_{column}") for column in ORDERED]
    check(spark, tmp_path, stream, ["at"], table.groupBy("at").agg(*theirs), **ours)


def test_keys_of_every_type(tmp_path: Path, spark: SparkSession, data: tuple[DataFrame, DataFrame]) -> None:
    """One job with a stage for each: every one of them gets its own input in the same segments.

    Spark's answers to all of them are one query as well.
    """
    stream, table = data
    job = hf.Job("keys", spark, store=str(tmp_path / "store"))
    rows = job.read(stream)
    stages = {column: rows.key_by(column).agg(rows=hf.count(), most=hf.max("l")) for column in KEYS}
    theirs = F.count("*").alias("rows"), F.max(F.col("l") + 0).alias("most")  # of a column that is not a key
    of_key = (F.grouping(column).alias(f"not_{column}") for column in KEYS)
    answers = table.groupingSets([[column] for column in KEYS], *KEYS).agg(*theirs, *of_key).collect()
    with job.start(containers=2, slices=5, trigger={"availableNow": True}, safety=hf.Delta(store_every=1)) as run:
        run.await_termination()
        run.kill(run.status().containers[0].name)
        for column, stage in stages.items():
            truth = [(row[column], row["rows"], row["most"]) for row in answers if not row[f"not_{column}"]]
            found = run.state(stage).to_df().drop("_epoch")
            assert found.dtypes == table.groupBy(column).agg(*theirs).dtypes
            assert sorted(map(plain, found.collect())) == sorted(map(plain, truth)), column


def test_keys_of_many_columns(tmp_path: Path, spark: SparkSession, data: tuple[DataFrame, DataFrame]) -> None:
    """So many that nobody may try what can be known of all subsets of them."""
    stream, table = (frame.withColumns({f"s{n}": F.concat(F.lit(f"{n}"), "c") for n in range(12)}) for frame in data)
    keys = [*KEYS, *(f"s{number}" for number in range(12))]
    check(spark, tmp_path, stream, keys, table.groupBy(*keys).agg(F.sum("l").alias("sum")), sum=hf.sum("l"))


def test_first_last_and_distinct(tmp_path: Path, spark: SparkSession, data: tuple[DataFrame, DataFrame]) -> None:
    """One file, one partition: Spark's batch sees the rows in the log's order."""
    stream, table = data
    job = hf.Job("order", spark, store=str(tmp_path / "store"))
    kept = (
        job.read(stream)
        .key_by("at")
        .agg(a=hf.first("c"), b=hf.last("c"), c=hf.first("z", ignore_nulls=True), n=hf.approx_distinct("l"))
    )
    with job.start(slices=3, trigger={"availableNow": True}) as run:
        run.await_termination()
        found = {row["at"]: row for row in run.state(kept).to_arrow().to_pylist()}
    for number in range(3):
        rows = table.where(F.col("at") == number).coalesce(1).collect()
        assert found[number]["a"] == rows[0]["c"]
        assert found[number]["b"] == rows[-1]["c"]
        assert found[number]["c"].replace(tzinfo=None) == next(
            row["z"].astimezone(dt.UTC).replace(tzinfo=None) for row in rows if row["z"] is not None
        )
        distinct = len({row["l"] for row in rows if row["l"] is not None})
        assert abs(found[number]["n"] - distinct) <= max(1, 0.2 * distinct)
