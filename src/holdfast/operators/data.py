"""Plain data and back: how specs travel to containers and rest in ``job.json``.

Specs are frozen dataclasses of numbers, texts, bytes, tuples and other specs. One walk over their type hints does for
all of them what every one would otherwise write for itself.
"""

from __future__ import annotations

import base64
import types
import typing
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """What JSON can say."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, bytes):
        return base64.b85encode(value).decode()
    if isinstance(value, tuple | list):
        return [to_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: to_plain(one) for key, one in value.items()}
    return value


def from_plain(kind: type[T], data: Any) -> T:
    """The dataclass that ``to_plain`` was given; a field that is missing takes its default."""
    hints = _hints(kind)  # type: ignore[arg-type]  # classes are hashable, whatever mypy says of type[T]
    return kind(**{name: _value(hints[name], value) for name, value in data.items()})


@lru_cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (hint,) = [one for one in arguments if one is not type(None)]
        return _value(hint, value)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_value(arguments[0], one) for one in value)
        return tuple(_value(one_hint, one) for one_hint, one in zip(arguments, value, strict=True))
    if is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value)
    if hint is bytes:
        return base64.b85decode(value)
    return value
