"""Rows as people write them, and as Arrow carries them.

Values are checked as strictly as what a user's function puts out (an integer is no float, text is no number), so that a
test fails where its rows are wrong and not three stages later. Times may be written as text.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

from holdfast.errors import PlanError
from holdfast.invariants import some
from holdfast.state.types import AtomicType, atomic
from holdfast.state.values import WrongValueError, shown, to_array

Row = dict[str, Any]
Given = Sequence[Mapping[str, Any]]


def at(text: str) -> dt.datetime:
    """The time that is written there, as rows have it: with a zone, UTC where none is written.

    >>> at("2026-01-01 00:00:10")
    datetime.datetime(2026, 1, 1, 0, 0, 10, tzinfo=datetime.timezone.utc)
    """
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise PlanError(f"{text!r} is no time.", todo="Write it as '2026-01-01 00:00:10'.") from None
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found.astimezone(dt.UTC)


def atomic_of(datatype: DataType) -> AtomicType | None:
    return atomic(datatype.simpleString())


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema as Arrow has it; every type must be one that a stage can hold."""
    fields = []
    for field in schema.fields:
        kind = atomic_of(field.dataType)
        if kind is None:
            raise PlanError(
                f"Column '{field.name}' has type {field.dataType.simpleString()}.",
                safe="Nothing was started.",
                todo="Test with rows of atomic columns: numbers, text, binary, booleans, dates, times, decimals.",
            )
        fields.append(pa.field(field.name, kind.arrow))
    return pa.schema(fields)


def to_table(given: Given, schema: StructType, source: str) -> pa.Table:
    """Rows of a source, checked; a column that is not given is null."""
    if isinstance(given, Mapping | str) or not isinstance(given, Sequence):
        raise PlanError(f"The rows of '{source}' are {shown(given)}.", todo="Give a list of dicts, one a row.")
    names = [field.name for field in schema.fields]
    for at_row, row in enumerate(given):
        if not isinstance(row, Mapping):
            raise _wrong(source, at_row, f"{shown(row)} is a {type(row).__name__}, not a dict")
        unknown = [str(name) for name in row if name not in names]
        if unknown:
            raise _wrong(source, at_row, f"there is no column {', '.join(map(repr, unknown))}, only {', '.join(names)}")
    arrays = [_column(given, field, source) for field in schema.fields]
    return pa.Table.from_arrays(arrays, schema=arrow_schema(schema))


def _column(given: Given, field: StructField, source: str) -> pa.Array:
    kind = atomic_of(field.dataType)
    kind = some(kind, "asked when the source was read")
    values: list[Any] = []
    for at_row, row in enumerate(given):
        value = row.get(field.name)
        if value is None and not field.nullable:
            raise _wrong(source, at_row, f"column '{field.name}' must not be null")
        try:
            values.append(_read(kind, value))
        except (ValueError, InvalidOperation):
            raise _wrong(source, at_row, f"column '{field.name}': {shown(value)} is no {kind.name}") from None
    try:
        return to_array(kind, values)
    except WrongValueError as error:
        raise _wrong(source, error.at, f"column '{field.name}': {error}") from None


def _read(kind: AtomicType, value: Any) -> Any:
    """Text as what it says, where only text is handy; everything else as it is."""
    if isinstance(value, str):
        match kind.name:
            case "timestamp" | "timestamp_ntz":
                value = dt.datetime.fromisoformat(value)
            case "date":
                return dt.date.fromisoformat(value)
            case _ if kind.kind == "decimal":
                return Decimal(value)
    if isinstance(value, dt.datetime):
        if kind.name == "timestamp" and value.tzinfo is None:
            return value.replace(tzinfo=dt.UTC)
        if kind.name == "timestamp_ntz" and value.tzinfo is not None:
            raise ValueError("a time without a zone")
    return value


def to_rows(table: pa.Table | pa.RecordBatch) -> list[Row]:
    """Arrow as dicts; times have Python's own UTC, so that they read well in a difference."""
    names, columns = table.schema.names, []
    for array in table.columns:
        zoned = pa.types.is_timestamp(array.type) and array.type.tz is not None
        found = (array.cast(pa.timestamp("us")) if zoned else array).to_pylist()
        columns.append([time and time.replace(tzinfo=dt.UTC) for time in found] if zoned else found)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def in_order(rows: list[Row]) -> list[Row]:
    """Rows of a table that has no order of its own: by their columns from the left, nulls first."""
    return sorted(rows, key=lambda row: _rank(row.values()))


def by_columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """In the order of these columns, nulls first, and else as it was; untouched where one of them is not there."""
    if not all(name in table.column_names for name in names):
        return table
    keys = list(zip(*(table.column(name).to_pylist() for name in names), strict=True))
    return table.take(pa.array(sorted(range(len(keys)), key=lambda at: _rank(keys[at])), pa.int64()))


def _rank(values: Iterable[Any]) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in values]


def _wrong(source: str, row: int, why: str) -> PlanError:
    return PlanError(
        f"Row {row} of '{source}': {why}.", safe="The epoch was not begun.", todo="Give rows that fit the schema."
    )
