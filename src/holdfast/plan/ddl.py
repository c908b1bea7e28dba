"""Schemas from text ("user string, price decimal(10,2)") without asking Spark, whose own parser lives in the JVM.

Only what a stage can hold is understood: atomic types, by all the names that Spark has for them.
"""

from __future__ import annotations

import re

from pyspark.sql import types as t
from pyspark.sql.types import DataType, StructField, StructType

from holdfast.errors import PlanError
from holdfast.invariants import some

_TYPES: dict[str, DataType] = {
    "boolean": t.BooleanType(),
    "tinyint": t.ByteType(),
    "smallint": t.ShortType(),
    "int": t.IntegerType(),
    "bigint": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "string": t.StringType(),
    "binary": t.BinaryType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
    "decimal": t.DecimalType(10, 0),
}
_ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
_ALIASES |= {"timestamp_ltz": "timestamp", "dec": "decimal", "numeric": "decimal"}
_SIZED = re.compile(r"(decimal|dec|numeric|char|character|varchar)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_COLUMN = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<name>\w+))\s*:?\s+(?P<type>\w+(?:\s*\([\d\s,]*\))?)(?P<must>\s+not\s+null)?\s*",
    re.IGNORECASE,
)


def data_type(text: str) -> DataType | None:
    """The atomic type of that name; None if there is none."""
    text = text.strip().lower()
    if found := _SIZED.fullmatch(text):
        size, scale = int(found[2]), int(found[3] or 0)
        if found[1] in ("char", "character", "varchar"):
            return None if found[3] else t.VarcharType(size) if found[1] == "varchar" else t.CharType(size)
        return t.DecimalType(size, scale) if 0 < size <= 38 and scale <= size else None
    return _TYPES.get(_ALIASES.get(text, text))


def schema_of(ddl: str) -> StructType:
    """The columns of ``"user string, n bigint"``.

    >>> [field.simpleString() for field in schema_of("user string, `the price` decimal(10, 2)")]
    ['user:string', 'the price:decimal(10,2)']
    """
    found = _parsed(ddl)
    if found is not None:
        return found
    raise PlanError(
        f"'{ddl}' is no list of columns of atomic types.",
        safe="Nothing was started.",
        todo="Write names with types: 'user string, n bigint, price decimal(10,2), ts timestamp'.",
    )


def struct_of(columns: tuple[tuple[str, str], ...]) -> StructType:
    """The schema of what an operator says of its rows: names and simple types."""
    fields = []
    for name, kind in columns:
        found = data_type(kind)
        found = some(found, f"'{name}' has type {kind}, which no stage holds")
        fields.append(StructField(name, found))
    return StructType(fields)


def _parsed(ddl: str) -> StructType | None:
    fields: list[StructField] = []
    at = 0
    while found := _COLUMN.match(ddl, at):
        kind = data_type(found["type"])
        if kind is None:
            return None
        name = found["name"] or found["quoted"].replace("``", "`")
        fields.append(StructField(name, kind, found["must"] is None))
        at = found.end()
        if at == len(ddl):
            return StructType(fields)
        if ddl[at] != ",":
            return None
        at += 1
    return None
