"""A key that somebody asks for, as rows have it: checked against the columns it is made of, and hashed.

Nothing is cast. Casting would answer for another key than the one that was asked for: 3.7 becomes 3, a number too large
for its column wraps around. What a value may be is what a user's function may put into such a column.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa

from holdfast.errors import PlanError
from holdfast.operators.spec import Column
from holdfast.state.types import AtomicType, required
from holdfast.state.value_hashing import xxhash64
from holdfast.state.values import WrongValueError, to_array


def key_request(stage: str, columns: Sequence[Column], key: Sequence[Any], zone: str, slices: int) -> tuple[int, bytes]:
    """The slice of a key, and the key as containers are asked for it."""
    wanted = key_rows(stage, columns, key, zone)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, wanted.schema) as out:
        out.write_batch(wanted)
    return wanted.column("_h")[0].as_py() % slices, sink.getvalue().to_pybytes()


def key_rows(stage: str, columns: Sequence[Column], key: Sequence[Any], zone: str) -> pa.RecordBatch:
    """One row of ``_h``, ``k0``, …; times without a zone are of the session's, ``zone``. None is the null key."""
    if len(key) != len(columns):
        raise PlanError(
            f"The key of stage '{stage}' has {len(columns)} columns ({', '.join(one.name for one in columns)}), "
            f"not {len(key)}.",
            safe="Reading changes nothing.",
            todo=f"get({', '.join(one.name for one in columns)}): one value for each.",
        )
    kinds = [required(column.type, f"key '{column.name}'") for column in columns]
    arrays = [_array(stage, *one, zone) for one in zip(columns, kinds, key, strict=True)]
    hashes = pa.array(xxhash64(arrays, [kind.name for kind in kinds]))
    return pa.record_batch([hashes, *arrays], names=["_h", *(f"k{at}" for at in range(len(arrays)))])


def _array(stage: str, column: Column, kind: AtomicType, value: Any, zone: str) -> pa.Array:
    try:
        return to_array(kind, [_exact(kind, value, zone)])
    except WrongValueError as error:
        raise PlanError(
            f"Key column '{column.name}' of stage '{stage}' is of type {kind.name}: {error}.",
            safe="Reading changes nothing.",
            todo=f"Give {_WANTED.get(kind.name) or _WANTED[kind.kind]}, or None for the null key.",
        ) from None


def _exact(kind: AtomicType, value: Any, zone: str) -> Any:
    if (
        kind.name == "float"
        and isinstance(value, float | np.floating)
        and _LARGEST_FLOAT < abs(float(value)) < math.inf
    ):
        raise WrongValueError(0, value, "too large for a float")
    if getattr(value, "nanosecond", 0):  # pandas' own
        raise WrongValueError(0, value, f"between two values of a {kind.name}")
    if isinstance(value, np.datetime64) and kind.name in ("timestamp", "timestamp_ntz", "date"):
        exact = value.astype("datetime64[D]" if kind.name == "date" else "datetime64[us]")
        if exact != value:
            raise WrongValueError(0, value, f"between two values of a {kind.name}")
        value = exact.item()
    if isinstance(value, dt.datetime) and kind.name == "timestamp" and value.tzinfo is None:
        return _in_utc(value.replace(tzinfo=_zone(zone, value)))
    if isinstance(value, dt.datetime) and kind.name == "timestamp_ntz" and value.tzinfo is not None:
        raise WrongValueError(0, value, "a time with a zone, and the column has none")
    if kind.name == "binary" and isinstance(value, bytearray | memoryview):
        return bytes(value)
    return value


def _zone(name: str, value: dt.datetime) -> dt.tzinfo:
    """The session's zone. Spark also takes names that are no region: offsets, and Java's short names."""
    if name == "Z":
        return dt.UTC
    if found := _OFFSET.fullmatch(name):
        sign, hours, minutes = found.groups()
        offset = dt.timedelta(hours=int(hours), minutes=int(minutes or 0))
        return dt.timezone(-offset if sign == "-" else offset)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise WrongValueError(0, value, f"without a zone, and Python does not know the session's, '{name}'") from None


def _in_utc(value: dt.datetime) -> dt.datetime:
    try:
        return value.astimezone(dt.UTC)
    except OverflowError:
        raise WrongValueError(0, value, "outside of the years 1 to 9999 in UTC") from None


_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")
_LARGEST_FLOAT = float(np.finfo(np.float32).max)

_WANTED = {
    "boolean": "True or False",
    "int": "an int within the type's range",
    "float": "a float",
    "decimal": "a decimal.Decimal or int that fits its digits exactly",
    "string": "a str",
    "binary": "bytes",
    "date": "a datetime.date",
    "timestamp": "a datetime.datetime (without a zone it is taken in the session's)",
    "timestamp_ntz": "a datetime.datetime without a zone",
}
