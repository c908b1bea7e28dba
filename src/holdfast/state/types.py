"""Spark's atomic types as the state sees them: what Arrow calls them, and which of four kinds of column
holds them.

Few kinds mean few kernels. Booleans, integers, dates and timestamps are all ``int`` (int64), floats are
``float`` (float64), decimals are ``decimal`` (two int64: low word, high word), strings and binaries are
``bytes`` (a span of an arena).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from holdfast.errors import PlanError

Kind = Literal["int", "float", "decimal", "bytes"]

_PLAIN: dict[str, tuple[pa.DataType, Kind]] = {
    "boolean": (pa.bool_(), "int"),
    "tinyint": (pa.int8(), "int"),
    "smallint": (pa.int16(), "int"),
    "int": (pa.int32(), "int"),
    "bigint": (pa.int64(), "int"),
    "date": (pa.date32(), "int"),
    "timestamp": (pa.timestamp("us", tz="UTC"), "int"),
    "timestamp_ntz": (pa.timestamp("us"), "int"),
    "float": (pa.float32(), "float"),
    "double": (pa.float64(), "float"),
    "string": (pa.string(), "bytes"),
    "binary": (pa.binary(), "bytes"),
}
_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_LIMITED_STRING = re.compile(r"(var)?char\(\d+\)")
MAX_PRECISION = 38


@dataclass(frozen=True)
class AtomicType:
    """One of Spark's atomic types; ``name`` is its simpleString."""

    name: str
    arrow: pa.DataType
    kind: Kind
    precision: int = 0
    scale: int = 0

    @property
    def is_integer(self) -> bool:
        return self.name in _INTEGERS

    @property
    def is_numeric(self) -> bool:
        return self.is_integer or self.kind in ("float", "decimal")


def atomic(name: str) -> AtomicType | None:
    """The type of that simpleString, or None where it is not one the state can hold."""
    name = name.strip().lower()
    if name in _PLAIN:
        arrow, kind = _PLAIN[name]
        return AtomicType(name, arrow, kind)
    if _LIMITED_STRING.fullmatch(name):
        return AtomicType("string", pa.string(), "bytes")
    if found := _DECIMAL.fullmatch(name):
        precision, scale = int(found[1]), int(found[2])
        if 0 <= scale <= precision <= MAX_PRECISION and precision > 0:
            return decimal(precision, scale)
    return None


def decimal(precision: int, scale: int) -> AtomicType:
    """A decimal, bounded as Spark bounds the results of its aggregates."""
    precision, scale = min(precision, MAX_PRECISION), min(scale, MAX_PRECISION)
    return AtomicType(f"decimal({precision},{scale})", pa.decimal128(precision, scale), "decimal", precision, scale)


def required(name: str, what: str) -> AtomicType:
    """The type of that simpleString; ``what`` names the column for the person who reads the refusal."""
    found = atomic(name)
    if found is None:
        raise PlanError(
            f"{what} has type {name}, which Holdfast's state cannot hold.",
            safe="nothing was started or written.",
            todo="use a column of an atomic type (numbers, strings without a collation, binary, booleans, "
            "dates, timestamps, decimals), or take such a field out of it with select.",
        )
    return found


BIGINT, DOUBLE = required("bigint", "a count"), required("double", "a mean")
