"""Aggregates of every type: the results Spark itself has, what is handed over ahead, clear refusals of the rest."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as t

from holdfast.errors import PlanError
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.aggregates.accumulator import Accumulator
from holdfast.operators.aggregates.functions import FUNCTIONS, Terms, accumulator_of
from holdfast.operators.spec import AggregateSpec, Column

ATOMIC = {
    "boolean": t.BooleanType(),
    "tinyint": t.ByteType(),
    "smallint": t.ShortType(),
    "int": t.IntegerType(),
    "bigint": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "decimal(4,2)": t.DecimalType(4, 2),
    "decimal(10,0)": t.DecimalType(10, 0),
    "decimal(30,6)": t.DecimalType(30, 6),
    "decimal(38,36)": t.DecimalType(38, 36),
    "decimal(38,38)": t.DecimalType(38, 38),
    "string": t.StringType(),
    "binary": t.BinaryType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
}
NUMERIC = [name for name in ATOMIC if name.startswith(("decimal", "float", "double")) or name.endswith("int")]
SPARK = {
    "count": sf.count,
    "sum": sf.sum,
    "min": sf.min,
    "max": sf.max,
    "mean": sf.mean,
    "var": sf.var_samp,
    "stddev": sf.stddev_samp,
    "first": sf.first,
    "last": sf.last,
    "approx_distinct": sf.approx_count_distinct,
}


def made(function: str, input_type: str | None) -> Accumulator:
    return accumulator_of(AggregateSpec("city", function, None if input_type is None else "v0", input_type), Terms())


@pytest.mark.spark
def test_result_types_are_those_of_spark(spark: SparkSession) -> None:
    schema = t.StructType([t.StructField(name, datatype) for name, datatype in ATOMIC.items()])
    empty = spark.createDataFrame([], schema)
    pairs = [
        (function, name)
        for function in SPARK
        for name in (NUMERIC if function in ("sum", "mean", "var", "stddev") else ATOMIC)
    ]
    ours = [made(function, name).output.name for function, name in pairs]
    theirs = empty.agg(*(SPARK[function](sf.col(f"`{name}`")) for function, name in pairs)).schema
    assert ours == [field.dataType.simpleString() for field in theirs]


def test_every_function_is_compared_with_spark() -> None:
    assert {*SPARK, "count_distinct"} == {*FUNCTIONS}


@pytest.mark.parametrize("name", ["char(3)", "varchar(20)"])
def test_char_and_varchar_are_strings(name: str) -> None:
    assert made("max", name).output.name == "string"


@pytest.mark.parametrize("name", ["array<int>", "map<string,int>", "struct<a:int>", "string collate UNICODE", "void"])
def test_what_no_column_holds_is_only_counted(name: str) -> None:
    for function in ("min", "first", "approx_distinct", "count_distinct", "sum"):
        with pytest.raises(PlanError, match="'city'") as refused:
            made(function, name)
        assert name in refused.value.what
    assert made("count", name).output.name == "bigint"


@pytest.mark.parametrize("function", ["sum", "mean", "var", "stddev"])
@pytest.mark.parametrize("name", ["string", "boolean", "date", "timestamp", "binary"])
def test_only_numbers_are_summed(function: str, name: str) -> None:
    with pytest.raises(PlanError) as refused:
        made(function, name)
    for word in (function, name, "'city'"):
        assert word in refused.value.what
    assert "as double" in refused.value.todo


def test_a_function_needs_a_name_and_a_column() -> None:
    with pytest.raises(PlanError, match="median"):
        made("median", "int")
    with pytest.raises(PlanError, match="needs a column"):
        made("sum", None)
    assert made("count", None).output.name == "bigint"


@pytest.mark.parametrize(
    ("function", "input_type", "types"),
    [
        ("count", None, ["bigint"]),
        ("sum", "float", ["double"]),
        ("sum", "bigint", ["bigint", "bigint"]),
        ("sum", "decimal(28,4)", ["decimal(38,4)"]),
        ("mean", "int", ["double", "bigint"]),
        ("mean", "decimal(10,2)", ["decimal(20,2)", "bigint"]),
        ("stddev", "int", ["double"] * 3),
        ("max", "date", ["date"]),
        ("count_distinct", "string", []),
        # What depends on the order of rows, or on all of them together, is for the stage alone.
        ("first", "int", None),
        ("approx_distinct", "int", None),
        ("sum", "decimal(30,4)", None),
        ("mean", "decimal(30,4)", None),
        ("max", "decimal(30,4)", ["decimal(30,4)"]),
    ],
)
def test_what_spark_may_compute_ahead(function: str, input_type: str | None, types: list[str] | None) -> None:
    aggregate = AggregateSpec("a", function, None if input_type is None else "v0", input_type)
    stage = StageSpec((Column("k", "int"),), (AggregateSpec("n", "count", None, None), aggregate))
    found = stage.partials()
    if types is None:
        assert found is None
    else:
        assert found is not None
        assert list(found.columns[1].types) == types


def test_too_many_columns_with_distinct_values_are_sent_whole() -> None:
    aggregates = tuple(AggregateSpec(f"d{at}", "count_distinct", f"v{at}", "int") for at in range(5))
    assert StageSpec((Column("k", "int"),), aggregates[:4]).partials() is not None
    assert StageSpec((Column("k", "int"),), aggregates).partials() is None
    assert StageSpec((Column("k", "int"),), aggregates[:1], updating_input=True).partials() is None
