"""Spark's types as Holdfast sees them: which may be keys, what an aggregate makes of them, how Arrow
carries them.

Types travel through plans, prepares and containers as Spark's simple strings (``decimal(10,2)``), because a
container has no JVM that could parse anything richer. Only atomic types are state columns; what is refused
is refused when the job is built, with the column, its type and the function in the error, never in an
epoch. Result types follow Spark's own rules exactly; implicit casts do not (Spark sums a string as a
double, which hides mistakes).
"""

from __future__ import annotations

import re

import pyarrow as pa
from pyspark.sql import types as spark_types
from pyspark.sql.types import DataType

from holdfast.errors import PlanError

AGGREGATES = (
    *("count", "sum", "min", "max", "mean", "var", "stddev"),
    *("first", "last", "approx_distinct", "count_distinct"),
)

INTEGERS = ("tinyint", "smallint", "int", "bigint")
FRACTIONS = ("float", "double")

_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_BOUNDED_STRING = re.compile(r"(var)?char\(\d+\)")
_MAX_PRECISION = 38


def simple_type(datatype: DataType | str) -> str:
    """The simple string of a type, with ``char(n)`` and ``varchar(n)`` as the strings they are at run time."""
    if isinstance(datatype, DataType):
        datatype = datatype.simpleString()
    return "string" if _BOUNDED_STRING.fullmatch(datatype) else datatype


def decimal_parameters(datatype: str) -> tuple[int, int] | None:
    """Precision and scale of ``decimal(p,s)``; None for any other type."""
    match = _DECIMAL.fullmatch(datatype)
    return (int(match[1]), int(match[2])) if match else None


def is_numeric(datatype: str) -> bool:
    return datatype in INTEGERS or datatype in FRACTIONS or decimal_parameters(datatype) is not None


def to_arrow_type(datatype: DataType | str) -> pa.DataType:
    """The Arrow type that carries a column of this Spark type; timestamps are microseconds of UTC."""
    name = simple_type(datatype)
    if decimal := decimal_parameters(name):
        return pa.decimal128(*decimal)
    if name not in _ARROW:
        raise PlanError(
            f"Type {name} cannot be a column of Holdfast's state: {_why_refused(name)}.",
            todo="Select atomic columns before key_by, or turn the value into a string or binary.",
        )
    return _ARROW[name]


def key_type_error(datatype: DataType | str) -> str | None:
    """Why a column of this type cannot be a key; None if it can."""
    name = simple_type(datatype)
    if name in _ARROW or decimal_parameters(name) is not None:
        return None
    return _why_refused(name)


def aggregate_result_type(function: str, input_type: DataType | str | None, column: str | None = None) -> str:
    """The type of ``function(column)`` by Spark's rules; ``PlanError`` where there is none.

    >>> aggregate_result_type("sum", "decimal(10,2)", "price")
    'decimal(20,2)'
    >>> aggregate_result_type("count", None)
    'bigint'
    """
    if function not in AGGREGATES:
        raise PlanError(f"There is no aggregate named {function!r}.", todo=f"Use one of {', '.join(AGGREGATES)}.")
    if function == "count":
        return "bigint"
    if input_type is None:
        raise PlanError(f"{function} needs a column.", todo=f'Name the column to aggregate: hf.{function}("price").')
    name = simple_type(input_type)
    if function in ("sum", "mean", "var", "stddev") and not is_numeric(name):
        raise _refused(function, column, name, "it is not a number", f"Cast it first: cast({column or 'x'} as double).")
    if reason := key_type_error(name):
        raise _refused(function, column, name, reason, "Select an atomic column before key_by.")
    if function in ("approx_distinct", "count_distinct"):
        return "bigint"
    if function in ("min", "max", "first", "last"):
        return name
    decimal = decimal_parameters(name)
    if function == "sum":
        if decimal:
            return _bounded_decimal(decimal[0] + 10, decimal[1])
        return "bigint" if name in INTEGERS else "double"
    if function == "mean" and decimal:
        return _bounded_decimal(decimal[0] + 4, decimal[1] + 4)
    return "double"


def partial_types(function: str, input_type: DataType | str | None) -> list[str]:
    """The types of the partial columns ``p{i}_0, p{i}_1, ...`` of one aggregate."""
    result = aggregate_result_type(function, input_type)
    if function == "mean":
        decimal = decimal_parameters(simple_type(input_type or ""))
        return [_bounded_decimal(decimal[0] + 10, decimal[1]) if decimal else "double", "bigint"]
    if function in ("var", "stddev"):
        return ["double", "double", "double"]
    if function == "sum" and simple_type(input_type or "") == "bigint":
        return ["bigint", "bigint"]  # of the lower and of the upper halves: their sums cannot overflow
    return [result]


def _bounded_decimal(precision: int, scale: int) -> str:
    return f"decimal({min(_MAX_PRECISION, precision)},{min(_MAX_PRECISION, scale)})"


def _refused(function: str, column: str | None, name: str, reason: str, todo: str) -> PlanError:
    what = f"{function} of column {column!r}" if column else function
    return PlanError(f"{what} cannot take type {name}: {reason}.", safe="Nothing was started.", todo=todo)


def _why_refused(name: str) -> str:
    if name.startswith("string collate"):
        return (
            f"collation {name.removeprefix('string collate ')} calls strings equal that differ in their bytes, while "
            "slices are chosen by a hash of the bytes; only UTF8_BINARY works"
        )
    if name.startswith(("array", "map", "struct")):
        return f"{name.split('<', 1)[0]}s are not atomic"
    if name.startswith("interval"):
        return "intervals have no column in the state"
    if name == "void":
        return "a column of nulls only has no type"
    return "only boolean, integer, float, decimal, string, binary, date and timestamp types are state columns"


def field_types(schema: spark_types.StructType) -> dict[str, str]:
    """Column name to simple type, in order."""
    return {field.name: simple_type(field.dataType) for field in schema.fields}


def quoted(name: str) -> str:
    """A column's name as SQL text says it."""
    return f"`{name.replace('`', '``')}`"
