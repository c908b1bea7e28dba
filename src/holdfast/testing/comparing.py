"""Rows against the rows that were expected, with a difference that a person can read."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from holdfast.testing.values import Row, to_rows

MOST_LINES = 20
Rows: TypeAlias = Sequence[Mapping[str, Any]] | pa.Table


def equal(found: Rows, expected: Rows, *, ordered: bool = False, tolerance: float = 1e-9) -> None:
    """Raise an ``AssertionError`` that shows the difference, unless the rows are the same.

    Their order counts only if ``ordered``. Floats may differ by ``tolerance``, relative to the larger one or absolute;
    NaN is NaN. A time may be expected as text, and one without a zone is UTC's.
    """
    told = difference(found, expected, ordered=ordered, tolerance=tolerance)
    if told is not None:
        raise AssertionError(told)


def difference(found: Rows, expected: Rows, *, ordered: bool = False, tolerance: float = 1e-9) -> str | None:
    """What is unlike, as text; None if nothing is."""
    ours, theirs = _rows(found), _rows(expected)
    if ordered:
        lines = [
            f"  row {at}: {_unlike(mine, right, tolerance)}"
            for at, (mine, right) in enumerate(zip(ours, theirs, strict=False))
            if not _same_row(mine, right, tolerance)
        ]
        lines += [f"  row {at} is too many: {_shown(row)}" for at, row in enumerate(ours) if at >= len(theirs)]
        lines += [f"  row {at} is missing: {_shown(row)}" for at, row in enumerate(theirs) if at >= len(ours)]
    else:
        lines = _unmatched(ours, theirs, tolerance)
    if not lines:
        return None
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"  … and {len(lines) - MOST_LINES} more"]
    return "\n".join([f"The rows differ: {len(ours)} found, {len(theirs)} expected.", *lines])


def _unmatched(found: list[Row], expected: list[Row], tolerance: float) -> list[str]:
    # Rows can only be the same if they agree in what has but one way to be written; the rest is compared pair by pair.
    loose = {name for row in (*found, *expected) for name, value in row.items() if isinstance(value, float | dt.date)}
    left: dict[Any, list[Row]] = {}
    for row in sorted(found, key=_text_of):
        left.setdefault(_identity(row, loose), []).append(row)
    missing = []
    for right in sorted(expected, key=_text_of):
        alike = left.get(_identity(right, loose), [])
        at = next((at for at, row in enumerate(alike) if _same_row(row, right, tolerance)), None)
        if at is None:
            missing.append(right)
        else:
            alike.pop(at)
    unused = {id(row) for rows in left.values() for row in rows}
    extra = [row for row in found if id(row) in unused]
    lines = []
    for right in missing:
        # The row that was probably meant: the one that has most in common.
        near = max(extra, key=lambda row: _common(row, right, tolerance), default=None)
        if near is not None and _common(near, right, tolerance):
            extra = [row for row in extra if row is not near]
            lines.append(f"  {_unlike(near, right, tolerance)}")
        else:
            lines.append(f"  missing:  {_shown(right)}")
    return lines + [f"  too many: {_shown(row)}" for row in extra]


def _rows(given: Rows) -> list[Row]:
    return to_rows(given) if isinstance(given, pa.Table) else [dict(row) for row in given]


def _identity(row: Row, loose: set[str]) -> tuple[Any, ...]:
    return tuple((name, None if name in loose else row[name]) for name in sorted(row))


def _text_of(row: Row) -> str:
    return _shown(dict(sorted(row.items())))


def _same_row(found: Row, expected: Row, tolerance: float) -> bool:
    return found.keys() == expected.keys() and all(_same(found[name], expected[name], tolerance) for name in expected)


def _same(found: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(found, dt.date) and isinstance(expected, str):
        try:
            expected = type(found).fromisoformat(expected)
        except ValueError:
            return False
    if (
        isinstance(found, dt.datetime)
        and isinstance(expected, dt.datetime)
        and (found.tzinfo is None) != (expected.tzinfo is None)
    ):
        found, expected = (time.replace(tzinfo=time.tzinfo or dt.UTC) for time in (found, expected))
    if isinstance(found, float) and isinstance(expected, float | int):
        if math.isnan(found) or math.isnan(expected):
            return math.isnan(found) and math.isnan(expected)
        return math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(found, bool) != isinstance(expected, bool):
        return False
    return bool(found == expected)


def _common(found: Row, expected: Row, tolerance: float) -> int:
    return sum(name in found and _same(found[name], value, tolerance) for name, value in expected.items())


def _unlike(found: Row, expected: Row, tolerance: float) -> str:
    """Two rows in one line: what they share, then column by column what they do not."""
    shared = {name: value for name, value in found.items() if name in expected}
    same = {name: value for name, value in shared.items() if _same(value, expected[name], tolerance)}
    told = [f"{name} is {_text(shared[name])}, expected {_text(expected[name])}" for name in shared if name not in same]
    told += [f"{name} is not there, expected {_text(expected[name])}" for name in expected if name not in found]
    told += [f"{name} is {_text(found[name])}, not expected" for name in found if name not in expected]
    return f"{_shown(same) or 'a row'}: {'; '.join(told)}"


def _shown(row: Row) -> str:
    return ", ".join(f"{name}={_text(value)}" for name, value in row.items())


def _text(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return str(value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value)
    return str(value) if isinstance(value, dt.date | Decimal) else repr(value)
