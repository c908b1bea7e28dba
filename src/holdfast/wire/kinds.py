"""What a message may be made of: classes that are told apart by name, and what their annotations say."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar, cast

from holdfast.errors import HoldfastError

IS = "is"
"""The field with the name of a tagged class."""
F = TypeVar("F", bound=Callable[..., Any])


def cache(function: F) -> F:
    """Annotations are hashable, whatever their types say."""
    return cast(F, lru_cache(maxsize=None)(function))


class MessageError(HoldfastError):
    """What came is no message of ours, or not one of this version."""


class Tagged:
    """Root of all that is told apart by name: its subclasses are frozen dataclasses, each with a name of its own."""

    __slots__ = ()
    kinds: ClassVar[dict[str, type[Tagged]]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        known = Tagged.kinds.get(cls.__name__)
        # A dataclass with slots is made twice. Two modules with one name would be taken for each other.
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"{cls.__module__}.{cls.__name__} has the name of {known.__module__}.{known.__name__}")
        Tagged.kinds[cls.__name__] = cls


@dataclass(frozen=True)
class Within:
    """Beside ``int`` in an ``Annotated``: at least ``least``, and less than ``end``."""

    least: int
    end: int


@cache
def hints_of(kind: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        return {field.name: hints[field.name] for field in fields(kind)}
    return hints


def has_own_form(kind: type[Any]) -> bool:
    """As it rests in a file: then it crosses like that too."""
    return hasattr(kind, "to_dict") and hasattr(kind, "from_dict")


def is_named_tuple(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def is_abstract_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def is_base(kind: type[Any]) -> bool:
    """Others may stand where it is named."""
    return issubclass(kind, Tagged) and bool(kind.__subclasses__())
