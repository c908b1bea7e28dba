"""Python's values and columns, a whole column at a time: what a user's function reads and what it leaves behind.

One type check for all values of a column (the set of their classes) costs about 20 ns a value; only a column that fails
it is looked at value by value, to name the one that is wrong. Integers take no booleans and no floats, strings no
bytes: what a function writes must be what was declared. NumPy's scalars count as the Python values they hold.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.invariants import Impossible
from holdfast.state import arrow
from holdfast.state.columns import NO_BYTES, Array
from holdfast.state.payload import decoded
from holdfast.state.rows import Values
from holdfast.state.types import AtomicType

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NAIVE_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_NONE = type(None)
_CLASSES: dict[str, frozenset[type]] = {
    "boolean": frozenset({bool}),
    "date": frozenset({dt.date}),
    "timestamp": frozenset({dt.datetime}),
    "timestamp_ntz": frozenset({dt.datetime}),
    "float": frozenset({float, int}),
    "double": frozenset({float, int}),
    "string": frozenset({str}),
    "binary": frozenset({bytes}),
}
_INTEGER, _DECIMAL = frozenset({int}), frozenset({Decimal, int})


class WrongValueError(ValueError):
    """A value is not of the declared type: which of the column's it is, and why it cannot be taken."""

    def __init__(self, at: int, value: Any, why: str) -> None:
        super().__init__(f"{shown(value)} is {why}")
        self.at = at
        self.value = value


def shown(value: Any, limit: int = 200) -> str:
    """``repr`` that is never long and never raises."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return bounded(text, limit)


def bounded(text: str, limit: int = 400) -> str:
    """The text, without its middle where it is long."""
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 2 :]}"


def micros(time: dt.datetime | int) -> int:
    """Microseconds since 1970 of a time; one without a zone is UTC's."""
    if isinstance(time, dt.datetime):
        return (time - (EPOCH if time.tzinfo is not None else _NAIVE_EPOCH)) // _MICROSECOND
    if isinstance(time, int) and not isinstance(time, bool):
        return time
    raise TypeError(f"a time is a datetime or microseconds since 1970, not {shown(time)}")


def moment(time: int) -> dt.datetime:
    """The time of that many microseconds since 1970, in UTC."""
    return EPOCH + dt.timedelta(microseconds=time)


def checked(kind: AtomicType, values: list[Any]) -> list[Any]:
    """The same values as plain Python values of that type or None; the first that is not is an error."""
    allowed = classes(kind)
    found = set(map(type, values))
    found.discard(_NONE)
    if found <= allowed:
        return values
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    for at, value in enumerate(plain):
        if value is not None and type(value) not in allowed:
            # Subclasses (an IntEnum, a pandas Timestamp) hold what their base holds; a bool is not meant as a number.
            base = next((one for one in allowed if isinstance(value, one) and not isinstance(value, bool)), None)
            if base is None or (base is dt.date and isinstance(value, dt.datetime)):
                raise WrongValueError(at, value, f"a {type(value).__name__}, not a {kind.name}")
            plain[at] = _as_base(base, value)
    return plain


def classes(kind: AtomicType) -> frozenset[type]:
    """The Python classes of values of that type."""
    return _CLASSES.get(kind.name, _DECIMAL if kind.kind == "decimal" else _INTEGER)


def to_array(kind: AtomicType, values: list[Any]) -> pa.Array:
    """Values as an Arrow array of that type."""
    values = checked(kind, values)
    try:
        return pa.array(values, kind.arrow)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        for at, value in enumerate(values):
            try:
                pa.array([value], kind.arrow)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                raise WrongValueError(at, value, f"no {kind.name}: {error}") from None
        raise


def to_column(kind: AtomicType, values: list[Any]) -> Values:
    """Values as a column; None is null."""
    return decoded(to_array(kind, values), kind, kind.kind)


def to_python(kind: AtomicType, column: Values) -> list[Any]:
    """A column as Python values; null is None. Timestamps are in UTC."""
    raw, valid = column.values, column.valid
    if kind.kind == "bytes":
        if column.data is None:
            raise Impossible("bytes without an arena")
        found: list[Any] = arrow.of_spans(kind.arrow, raw, column.data, valid).to_pylist()
        return found
    if kind.kind == "decimal":
        return arrow.of_fixed(kind, raw, valid).to_pylist()  # type: ignore[no-any-return]
    if kind.name == "boolean":
        found = raw.astype(bool).tolist()
    elif kind.name == "date":
        found = raw.astype("datetime64[D]").tolist()
    elif kind.name == "timestamp":
        found = _moments(raw)
    elif kind.name == "timestamp_ntz":
        found = raw.astype("datetime64[us]").tolist()
    else:
        found = raw.tolist()
    if len(valid):
        for at in np.flatnonzero(valid == 0).tolist():
            found[at] = None
    return found


def _moments(raw: Array) -> list[Any]:
    """Times in UTC. Adding to 1970 is six times as fast as naming the zone; a time that no datetime can hold is left
    as the number it is.
    """
    try:
        return [EPOCH + since for since in raw.astype("timedelta64[us]").tolist()]
    except (OverflowError, TypeError):
        found = raw.astype("datetime64[us]").tolist()
        return [time.replace(tzinfo=dt.UTC) if isinstance(time, dt.datetime) else time for time in found]


def taken(column: Values, at: Any) -> Values:
    """Those rows of a column."""
    return Values(column.values[at], column.valid[at] if len(column.valid) else NO_BYTES, column.data)


def _as_base(base: type, value: Any) -> Any:
    if base is dt.datetime:
        return dt.datetime.combine(value.date(), value.timetz())
    if base is dt.date:
        return dt.date(value.year, value.month, value.day)
    return base(value)
