"""Partial aggregation: merged again, it equals Spark's own aggregation, and it never shuffles."""

from __future__ import annotations

import math
import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from holdfast.operators.aggregates.functions import Terms, accumulator_of
from holdfast.operators.ahead import PartialColumn
from holdfast.operators.spec import AggregateSpec
from holdfast.spark.preaggregate import partial_aggregate

pytestmark = [pytest.mark.spark, pytest.mark.long]

SCHEMA = (
    "k string, f double, i int, l bigint, x double, y float, small decimal(6,2), wide decimal(28,4), "
    "widest decimal(30,4), "
    "day date, at timestamp, s string, ok boolean"
)
TYPES = dict(re.findall(r"(\w+) (\w+(?:\(\d+,\d+\))?)", SCHEMA)) | {"v": "bigint", "a.b": "bigint", "q`q": "bigint"}
NUMBERS = ("i", "l", "x", "y", "small", "wide")
ORDERED = (*NUMBERS, "day", "at", "s", "ok")


def Spec(function: str, column: str | None = None, where: str | None = None) -> PartialColumn:  # noqa: N802
    """As an aggregate says it of itself."""
    kind = None if column is None else TYPES[column]
    one = accumulator_of(AggregateSpec("a", function, column, kind, where=where), Terms())
    assert one.partials is not None
    return PartialColumn(function, column, tuple(part.name for part in one.partials), where)


def rows() -> list[tuple[Any, ...]]:
    made: list[tuple[Any, ...]] = []
    for n in range(300):
        key = None if n % 11 == 0 else f"k{n % 7}"
        floating = (0.0, -0.0, math.nan, None, 1.5)[n % 5]
        values: tuple[Any, ...] = (
            n - 150,
            n * 10**9,
            n / 3 - 20,
            float(n) / 4,
            Decimal(n * 7 - 900).scaleb(-2),
            Decimal(n * 12345678901234567).scaleb(-4),
            Decimal(n),
            date(2024, 1 + n % 12, 1 + n % 28),
            datetime(2024, 1, 1 + n % 28, n % 24, 30, 15, n),
            f"ünï{n % 13}",
            n % 3 == 0,
        )
        empty = n % 4 == 0 or key == "k3"  # one key has nothing but nulls
        made.append(
            (
                key,
                floating,
                *(None if (empty and (n + at) % 2) or key == "k3" else v for at, v in enumerate(values)),
            )
        )
    return made


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(rows(), SCHEMA).repartition(3).localCheckpoint()


def specs(functions: tuple[str, ...], columns: tuple[str, ...]) -> list[PartialColumn]:
    return [Spec(function, column) for column in columns for function in functions]


def merged(partial: DataFrame, keys: list[str], aggregates: list[PartialColumn]) -> DataFrame:
    """What a stage does with partial rows, as a plain query."""
    columns = []
    for at, spec in enumerate(aggregates):
        p0, p1, p2 = f"p{at}_0", f"p{at}_1", f"p{at}_2"
        match spec.function:
            case "sum" if p1 in partial.columns:
                text = f"sum({p0}) + sum({p1}) * 4294967296L"
            case "count" | "sum":
                text = f"sum({p0})"
            case "min" | "max":
                text = f"{spec.function}({p0})"
            case "mean":
                text = f"sum({p0}) / nullif(sum({p1}), 0)"
            case _:
                mean = f"(sum({p0} * {p1}) / nullif(sum({p0}), 0))"
                m2 = f"(sum({p2}) + sum({p0} * {p1} * {p1}) - sum({p0}) * {mean} * {mean})"
                text = f"if(sum({p0}) < 2, null, {m2} / nullif(sum({p0}) - 1, 0))"
                text = f"sqrt({text})" if spec.function == "stddev" else text
        columns.append(sf.expr(text).alias(f"a{at}"))
    return partial.groupBy(*keys).agg(*columns, sf.sum("_n").alias("_n"))


def oracle(frame: DataFrame, keys: list[str], aggregates: list[PartialColumn]) -> DataFrame:
    names = {
        "mean": sf.mean,
        "var": sf.var_samp,
        "stddev": sf.stddev_samp,
        "sum": sf.sum,
        "min": sf.min,
        "max": sf.max,
    }
    columns = [
        sf.count("*" if s.column is None else s.column) if s.function == "count" else names[s.function](str(s.column))
        for s in aggregates
    ]
    named = [column.alias(f"a{at}") for at, column in enumerate(columns)]
    return frame.groupBy(*keys).agg(*named, sf.count("*").alias("_n"))


def by_key(frame: DataFrame, keys: list[str]) -> dict[tuple[str, ...], tuple[Any, ...]]:
    found = {tuple(repr(row[key]) for key in keys): tuple(row)[len(keys) :] for row in frame.collect()}
    assert len(found) == frame.count()
    return found


def assert_equal(got: dict[Any, tuple[Any, ...]], expected: dict[Any, tuple[Any, ...]]) -> None:
    assert got.keys() == expected.keys()
    for key, values in expected.items():
        for mine, theirs in zip(got[key], values, strict=True):
            if isinstance(theirs, float):
                assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-9, nan_ok=True), key
            elif isinstance(theirs, Decimal):
                assert abs(mine - theirs) <= Decimal("1e-6"), key
            else:
                assert mine == theirs, key


@pytest.mark.parametrize("keys", [["k"], ["f"], ["k", "f", "ok"]], ids=lambda keys: "+".join(keys))
def test_merged_partials_equal_the_aggregation(frame: DataFrame, keys: list[str]) -> None:
    aggregates = [
        Spec("count"),
        *specs(("count", "sum", "mean", "var", "stddev"), NUMBERS),
        *specs(("min", "max"), tuple(name for name in ORDERED if name != "s")),
        Spec("count", "s"),
        Spec("sum", "i"),
    ]
    partial = partial_aggregate(frame, keys, aggregates)
    assert_equal(by_key(merged(partial, keys, aggregates), keys), by_key(oracle(frame, keys, aggregates), keys))


def test_sums_of_integers_and_decimals_are_exact(frame: DataFrame) -> None:
    aggregates = specs(("sum",), ("i", "l", "small", "wide"))
    partial = partial_aggregate(frame, ["k"], aggregates)
    assert by_key(merged(partial, ["k"], aggregates), ["k"]) == by_key(oracle(frame, ["k"], aggregates), ["k"])


def test_strings_are_ordered_too(frame: DataFrame) -> None:
    aggregates = [*specs(("min", "max"), ("s",)), Spec("sum", "l")]
    partial = partial_aggregate(frame, ["k"], aggregates)
    assert_equal(by_key(merged(partial, ["k"], aggregates), ["k"]), by_key(oracle(frame, ["k"], aggregates), ["k"]))


def test_columns_are_named_and_typed_as_promised(frame: DataFrame) -> None:
    aggregates = [*specs(("sum", "mean"), NUMBERS), Spec("count"), Spec("stddev", "i"), Spec("max", "day")]
    partial = partial_aggregate(frame, ["k", "f"], aggregates)
    fields = [(field.name, field.dataType.simpleString()) for field in partial.schema]
    expected = [(f"p{at}_{part}", kind) for at, spec in enumerate(aggregates) for part, kind in enumerate(spec.types)]
    assert fields == [("k", "string"), ("f", "double"), *expected, ("_n", "bigint")]
    assert ("p10_0", "decimal(38,4)") in fields
    assert ("p2_1", "bigint") in fields
    assert fields[-1] == ("_n", "bigint")


def test_a_group_of_nulls_has_a_null_sum_and_no_values(frame: DataFrame) -> None:
    aggregates = [
        Spec("sum", "wide"),
        Spec("sum", "small"),
        Spec("sum", "l"),
        Spec("mean", "wide"),
        Spec("var", "x"),
    ]
    partial = partial_aggregate(frame, ["k"], aggregates)
    found = partial.where("k = 'k3'").collect()
    assert found
    for row in found:
        assert (row.p0_0, row.p1_0, row.p2_0, row.p3_1, row.p4_0) == (None, None, None, 0, 0.0)
        assert row._n > 0


def test_floats_group_as_in_spark(spark: SparkSession) -> None:
    values = "values (0.0D), (-0.0D), (double('NaN')), (double('NaN')), (null), (null), (1.0D)"
    one = spark.sql(f"select * from {values} as t(f)").coalesce(1)
    partial = partial_aggregate(one, ["f"], [])
    found = {repr(row.f): row._n for row in partial.collect()}
    assert found == {"0.0": 2, "nan": 2, "None": 2, "1.0": 1}


def test_no_shuffle_and_as_many_partitions(frame: DataFrame, spark: SparkSession) -> None:
    for aggregates in ([Spec("sum", "l")], [Spec("min", "s")]):
        partial = partial_aggregate(frame, ["k"], aggregates)
        assert partial.rdd.getNumPartitions() == frame.rdd.getNumPartitions() == 3
        lineage = partial._jdf.queryExecution().toRdd().toDebugString()
        # the checkpointed input has none either, so any shuffle would be ours
        assert "Shuffle" not in lineage
        spark.sparkContext.setJobGroup("partial", "partial aggregation")
        partial.write.format("noop").mode("overwrite").save()
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
        tracker = spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("partial")]
        assert all(job is not None and len(job.stageIds) == 1 for job in jobs)
        assert jobs


def test_what_the_optimiser_would_rewrite_keeps_its_columns(spark: SparkSession) -> None:
    # a constant key, columns that are never null, a filter it could push, names that need quoting
    strange = (
        spark.range(0, 100, 1, 2)
        .selectExpr("1 as one", "id as `a.b`", "id % 3 as `q``q`", "id as unused")
        .where("unused >= 10")
    )
    aggregates = [Spec("count", "a.b"), Spec("count"), Spec("sum", "a.b"), Spec("max", "q`q")]
    partial = partial_aggregate(strange, ["one", "q`q"], aggregates)
    assert partial.columns[:2] == ["one", "q`q"]
    total = partial.selectExpr("sum(p0_0)", "sum(p1_0)", "sum(p2_0)", "max(p3_0)", "sum(_n)").first()
    assert total is not None
    assert tuple(total) == (90, 90, sum(range(10, 100)), 2, 90)


def test_the_next_epoch_may_have_nulls_and_another_session(spark: SparkSession) -> None:
    aggregates = [Spec("count", "v"), Spec("sum", "v")]
    for session, frame, expected in (
        (spark, "select id % 2 as k, id as v from range(0, 10, 1, 1)", {(0, 5, 20, 0, 5), (1, 5, 25, 0, 5)}),
        (
            spark,
            "select * from values (null, 1L), (null, null), (7L, null) as t(k, v)",
            {(None, 1, 1, 0, 2), (7, 0, None, None, 1)},
        ),
        (spark.newSession(), "select 3L as k, 4L as v", {(3, 1, 4, 0, 1)}),
    ):
        partial = partial_aggregate(session.sql(frame).coalesce(1), ["k"], aggregates)
        assert {tuple(row) for row in partial.collect()} == expected
        assert partial.sparkSession is session


def test_session_settings_stay(frame: DataFrame, spark: SparkSession) -> None:
    settings = dict(spark.conf.getAll)
    partial_aggregate(frame, ["k"], [Spec("sum", "l")])
    assert dict(spark.conf.getAll) == settings


def test_no_sum_overflows_in_spark(spark: SparkSession) -> None:
    least, most = -(2**63), 2**63 - 1
    longs = spark.sql(f"select 1 as k, v from values ({most}L), ({most}L), ({most}L), (-1L) as t(v)").coalesce(1)
    partial = partial_aggregate(longs.union(longs.selectExpr("2 as k", "-1L - v")), ["k"], [Spec("sum", "v")])
    found: dict[int, int] = {}
    for row in partial.collect():
        found[row.k] = found.get(row.k, 0) + row.p0_0 + (row.p0_1 << 32)
    assert found == {1: 3 * most - 1, 2: 3 * least}


def test_inside_for_each_batch(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(0, 5000, 1, 4).selectExpr("id % 10 as k", "id as v").write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("k bigint, v bigint").option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in"))
    seen: list[tuple[int, int, int]] = []

    def batch(df: DataFrame, number: int) -> None:
        partial = partial_aggregate(df, ["k"], [Spec("sum", "v")])
        assert partial.rdd.getNumPartitions() == df.rdd.getNumPartitions()
        total = partial.selectExpr("count(1)", "sum(p0_0)", "sum(_n)").first()
        assert total is not None
        seen.append(tuple(total))

    query = (
        stream.writeStream.foreachBatch(batch)
        .option("checkpointLocation", str(tmp_path / "spark"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(seen) == 2
    assert sum(total for _, total, _ in seen) == sum(range(5000))
    assert [count for _, _, count in seen] == [2500, 2500]


def test_distinct_values_are_rows_beside_those_of_the_keys(frame: DataFrame) -> None:
    aggregates = [Spec("sum", "i"), Spec("count_distinct", "s", "ok"), Spec("count_distinct", "i"), Spec("count")]
    partial = partial_aggregate(frame.withColumn("ok", sf.expr("CASE WHEN ok THEN true END")), ["k"], aggregates)
    assert partial.columns == ["k", "d0", "d1", "_g", "p0_0", "p1_0", "p3_0", "_n"]
    found = partial.collect()
    of_keys = [row for row in found if row["_g"] == 0]
    assert len(of_keys) == len({(row["k"], at) for at, part in enumerate(partial.rdd.glom().collect()) for row in part})
    assert all(row["d0"] is None and row["d1"] is None for row in of_keys)
    assert sum(row["_n"] for row in found) == frame.count()
    truth = frame.where("s IS NOT NULL").groupBy("k", "s").agg(sf.count_if("ok").alias("n")).collect()
    seen: dict[tuple[Any, Any], int] = {}
    for row in found:
        if row["_g"] == 1:
            seen[row["k"], row["d0"]] = seen.get((row["k"], row["d0"]), 0) + row["p1_0"]
    assert seen == {(row["k"], row["s"]): row["n"] for row in truth}
    assert {(row["k"], row["d1"]) for row in found if row["_g"] == 2} == {
        (row["k"], row["i"]) for row in frame.collect() if row["i"] is not None
    }
