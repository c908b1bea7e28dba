"""Messages of the ring as plain values and back: what crosses a network is read by this, never unpickled.

Only the kinds named here can be read, each with exactly its own fields and their types: the machine trusts what it is
given. Payloads are what JSON can carry, and what the ring itself routes; sequences come back as tuples.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from holdfast.errors import HoldfastError
from holdfast.ids import RING
from holdfast.invariants import invariant
from holdfast.ring.overlay.messages import (
    Ask,
    AskRow,
    Attach,
    Cast,
    Collection,
    Detach,
    Hello,
    Here,
    Leaves,
    Leaving,
    Message,
    Part,
    Publication,
    Receipt,
    Refused,
    Result,
    Route,
    Rows,
    Seek,
    Welcome,
)

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(Ask, AskRow, Attach, Cast, Detach, Hello, Here, Leaves, Leaving, Part, Receipt, Refused, Result, Route, Rows),
        *(Seek, Welcome, Publication, Collection),
    )
}
_HINTS = {kind: get_type_hints(kind) for kind in _KINDS.values()}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_KIND = "_kind"


def to_plain(value: Any) -> Any:
    """
    >>> to_plain(Seek(7, rows=True))
    {'_kind': 'Seek', 'origin': 7, 'rows': True, 'hops': 0, 'near': False}
    """
    name = _NAMES.get(type(value))
    if name is not None:
        return {_KIND: name, **{field.name: to_plain(getattr(value, field.name)) for field in fields(value)}}
    if isinstance(value, tuple | list):
        return [to_plain(one) for one in value]
    if isinstance(value, dict):
        invariant(_KIND not in value, f"a payload may not have a field '{_KIND}'")
        return {key: to_plain(one) for key, one in value.items()}
    return value


def message_of(plain: Any) -> Message:
    """The message that ``to_plain`` made this of; raises on anything else."""
    try:
        found = _of(plain)
    except (KeyError, TypeError, RecursionError) as error:
        raise _strange(plain) from error
    if not isinstance(found, Message):
        raise _strange(plain)
    return found


def _of(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(_of(one) for one in plain)
    if isinstance(plain, dict):
        values = {key: _of(one) for key, one in plain.items() if key != _KIND}
        return _made(_KINDS[plain[_KIND]], values) if _KIND in plain else values
    return plain


def _made(kind: type[Any], values: dict[str, Any]) -> Any:
    hints = _HINTS[kind]
    for name, value in values.items():
        if not _fits(value, hints[name]):
            raise TypeError(f"{kind.__name__}.{name}: {value!r}")
    return kind(**values)


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if hint is int:  # ids and counts: none is negative, and True is no number here
        return type(value) is int and 0 <= value < RING
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        if not isinstance(value, tuple) or (inner[-1] is not ... and len(inner) != len(value)):
            return False
        return all(_fits(one, inner[0]) for one in value)
    return isinstance(value, hint)


def _strange(plain: Any) -> HoldfastError:
    return HoldfastError(
        f"What came as a message of the ring is none: {str(plain)[:100]}",
        safe="It was not taken.",
        todo="Start all containers with the same version of Holdfast.",
    )
