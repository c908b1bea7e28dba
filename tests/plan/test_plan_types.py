"""Types: which may be keys, as Arrow carries them, and why the others may not."""

from __future__ import annotations

from inspect import signature

import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type as spark_to_arrow_type

from holdfast.plan.types import key_type_error, simple_type
from holdfast.state.types import required

UTC = {"timezone": "UTC"} if "timezone" in signature(spark_to_arrow_type).parameters else {}
"""Spark 4.1 knows no other zone."""
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


@pytest.mark.parametrize("name", ATOMIC)
def test_atomic_types_are_keys_and_arrow_columns(name: str) -> None:
    datatype = ATOMIC[name]
    assert simple_type(datatype) == name
    assert key_type_error(datatype) is None
    assert key_type_error(name) is None
    assert required(name, "a column").arrow == spark_to_arrow_type(datatype, **UTC)


@pytest.mark.parametrize("datatype", [t.CharType(3), t.VarcharType(20)])
def test_char_and_varchar_are_strings(datatype: t.DataType) -> None:
    assert key_type_error(datatype) is None
    assert simple_type(datatype) == "string"


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
