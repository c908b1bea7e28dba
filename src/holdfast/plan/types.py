"""Spark's types as Holdfast sees them: which may be keys, and why the others may not.

Types travel through plans, prepares and containers as Spark's simple strings (``decimal(10,2)``), because a
container has no JVM that could parse anything richer. Only atomic types are state columns; what is refused
is refused when the job is built, with the column, its type and the function in the error, never in an
epoch.
"""

from __future__ import annotations

import re

from pyspark.sql import types as spark_types
from pyspark.sql.types import DataType

from holdfast.state.types import atomic

_BOUNDED_STRING = re.compile(r"(var)?char\(\d+\)")


def simple_type(datatype: DataType | str) -> str:
    """The simple string of a type, with ``char(n)`` and ``varchar(n)`` as the strings they are at run time."""
    if isinstance(datatype, DataType):
        datatype = datatype.simpleString()
    return "string" if _BOUNDED_STRING.fullmatch(datatype) else datatype


def key_type_error(datatype: DataType | str) -> str | None:
    """Why a column of this type cannot be a key; None if it can."""
    name = simple_type(datatype)
    return None if atomic(name) is not None else _why_refused(name)


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
