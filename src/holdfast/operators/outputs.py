"""Rows that a user's function puts out, as Arrow: dicts or batches, checked against the declared columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from holdfast.operators.keyed import Fields, schema_of
from holdfast.state.values import WrongValueError, shown, to_array


class WrongOutputError(ValueError):
    """A row that is not what was declared; ``at`` is its place among the rows of its output."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at = at


def batches(fields: Fields, rows: Sequence[Any]) -> list[pa.RecordBatch]:
    """What a function yielded, in order."""
    if set(map(type, rows)) == {dict}:
        return [_of_dicts(fields, rows, 0)]
    found: list[pa.RecordBatch] = []
    at = 0
    for of_arrow, run in groupby(rows, lambda row: isinstance(row, pa.RecordBatch | pa.Table)):
        part = list(run)
        found += (
            [one for row in part for one in _of_arrow(fields, row, at)] if of_arrow else [_of_dicts(fields, part, at)]
        )
        at += len(part)
    return found


def _of_dicts(fields: Fields, rows: Sequence[Any], first: int) -> pa.RecordBatch:
    if set(map(type, rows)) != {dict} or set(map(len, rows)) != {len(fields)}:
        _refuse(fields, rows, first)
    arrays = []
    for name, kind in fields:
        try:
            arrays.append(to_array(kind, [row[name] for row in rows]))
        except KeyError:
            _refuse(fields, rows, first)
        except WrongValueError as error:
            raise WrongOutputError(first + error.at, f"column '{name}': {error}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(fields))


def _refuse(fields: Fields, rows: Sequence[Any], first: int) -> None:
    names = [name for name, _ in fields]
    for at, row in enumerate(rows):
        if not isinstance(row, dict):
            raise WrongOutputError(first + at, f"{shown(row)} is a {type(row).__name__}, not a dict or an Arrow batch")
        missing = [name for name in names if name not in row]
        unknown = [str(name) for name in row if name not in names]
        if missing or unknown or type(row) is not dict:
            said = [f"no column {', '.join(missing)}"] if missing else []
            said += [f"an unknown column {', '.join(unknown)}"] if unknown else []
            raise WrongOutputError(first + at, f"{shown(row)} has {' and '.join(said) or 'a class of its own'}")


def _of_arrow(fields: Fields, rows: pa.RecordBatch | pa.Table, at: int) -> list[pa.RecordBatch]:
    names, schema = [name for name, _ in fields], schema_of(fields)
    if sorted(rows.schema.names) != sorted(names):
        raise WrongOutputError(
            at, f"an Arrow batch has the columns {', '.join(rows.schema.names)}, not {', '.join(names)}"
        )
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    try:
        return table.select(names).cast(schema).to_batches()  # type: ignore[no-any-return]
    except (pa.ArrowException, ValueError) as error:
        raise WrongOutputError(at, f"an Arrow batch does not fit the declared columns: {error}") from None
