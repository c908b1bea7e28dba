"""Types: what Spark itself says of every aggregate of every type, and clear refusals of the rest."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type as spark_to_arrow_type

from holdfast.errors import PlanError
from holdfast.plan.types import (
    aggregate_result_type,
    key_type_error,
    partial_types,
    simple_type,
    to_arrow_type,
)

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


@pytest.mark.spark
def test_result_types_are_those_of_spark(spark: SparkSession) -> None:
    schema = t.StructType([t.StructField(name, datatype) for name, datatype in ATOMIC.items()])
    empty = spark.createDataFrame([], schema)
    pairs = [
        (function, name)
        for function in SPARK
        for name in (NUMERIC if function in ("sum", "mean", "var", "stddev") else ATOMIC)
    ]
    ours = [aggregate_result_type(function, ATOMIC[name], name) for function, name in pairs]
    theirs = empty.agg(*(SPARK[function](sf.col(f"`{name}`")) for function, name in pairs)).schema
    assert ours == [field.dataType.simpleString() for field in theirs]


@pytest.mark.parametrize("name", ATOMIC)
def test_atomic_types_are_keys_and_arrow_columns(name: str) -> None:
    datatype = ATOMIC[name]
    assert simple_type(datatype) == name
    assert key_type_error(datatype) is None
    assert key_type_error(name) is None
    assert to_arrow_type(name) == to_arrow_type(datatype) == spark_to_arrow_type(datatype, timezone="UTC")


@pytest.mark.parametrize("datatype", [t.CharType(3), t.VarcharType(20)])
def test_char_and_varchar_are_strings(datatype: t.DataType) -> None:
    assert key_type_error(datatype) is None
    assert to_arrow_type(datatype) == pa.string()
    assert aggregate_result_type("max", datatype, "c") == "string"


@pytest.mark.parametrize(
    ("datatype", "reason"),
    [
        (t.StringType("UTF8_LCASE"), "UTF8_LCASE"),
        (t.StringType("UNICODE_CI"), "UTF8_BINARY"),
        (t.ArrayType(t.IntegerType()), "array"),
        (t.MapType(t.StringType(), t.IntegerType()), "map"),
        (t.StructType([t.StructField("a", t.IntegerType())]), "struct"),
        (t.VariantType(), "only"),
        (t.DayTimeIntervalType(), "interval"),
        (t.YearMonthIntervalType(), "interval"),
        (t.CalendarIntervalType(), "interval"),
        (t.NullType(), "null"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_key_says_why(datatype: t.DataType, reason: str) -> None:
    error = key_type_error(datatype)
    assert error is not None
    assert reason in error
    with pytest.raises(PlanError, match=reason):
        to_arrow_type(datatype)
    for function in ("min", "first", "approx_distinct"):
        with pytest.raises(PlanError, match="'c'"):
            aggregate_result_type(function, datatype, "c")
    assert aggregate_result_type("count", datatype, "c") == "bigint"


@pytest.mark.parametrize("function", ["sum", "mean", "var", "stddev"])
@pytest.mark.parametrize("name", ["string", "boolean", "date", "timestamp", "binary"])
def test_only_numbers_are_summed(function: str, name: str) -> None:
    with pytest.raises(PlanError) as refused:
        aggregate_result_type(function, name, "city")
    for word in (function, name, "'city'"):
        assert word in refused.value.what
    assert "cast(city as double)" in refused.value.todo


def test_a_function_needs_a_name_and_a_column() -> None:
    with pytest.raises(PlanError, match="median"):
        aggregate_result_type("median", "int", "x")
    with pytest.raises(PlanError, match="needs a column"):
        aggregate_result_type("sum", None)
    assert aggregate_result_type("count", None) == "bigint"


def test_partial_types() -> None:
    assert partial_types("count", None) == ["bigint"]
    assert partial_types("sum", "float") == ["double"]
    assert partial_types("sum", "decimal(30,4)") == ["decimal(38,4)"]
    assert partial_types("mean", "int") == ["double", "bigint"]
    assert partial_types("mean", "decimal(10,2)") == ["decimal(20,2)", "bigint"]
    assert partial_types("stddev", "int") == ["double"] * 3
    assert partial_types("max", "date") == ["date"]
