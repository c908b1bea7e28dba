"""How a value is read, by its annotation, and checked: whoever is handed it may trust its types."""

from __future__ import annotations

import base64
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from holdfast.errors import HoldfastError
from holdfast.wire.kinds import IS, Tagged, Within, cache, has_own_form, hints_of, is_abstract_mapping, is_named_tuple

Decoder = Callable[[Any, Sequence[memoryview] | None], Any]


class Misfit(Exception):
    """``at`` grows from the inside out."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.at: list[str] = []

    def __str__(self) -> str:
        return f"{'.'.join(reversed(self.at))}: {self.why}" if self.at else self.why


def _misfit(value: Any, wanted: str) -> Misfit:
    return Misfit(f"{value!r:.80} is no {wanted}")


@cache
def decoder(hint: Any) -> Decoder:
    """How a value of this annotation is read, and checked."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return _decode_anything
    if origin is Annotated:
        return _decoder_within(inner)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if origin is Literal:
        return _decoder_literal(inner)
    if origin in (typing.Union, types.UnionType):
        return _decoder_union(hint, inner)
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        return _decoder_sequence(inner[0], tuple)
    if origin is frozenset:
        return _decoder_sequence(inner[0], frozenset)
    if origin is tuple:
        return _decoder_row([decoder(one) for one in inner], tuple, str(hint))
    if is_abstract_mapping(origin):
        return _decoder_mapping(*inner)
    if is_named_tuple(hint):
        return _decoder_row([decoder(one) for one in hints_of(hint).values()], lambda row: hint(*row), hint.__name__)
    if isinstance(hint, type) and issubclass(hint, Tagged):
        return _decoder_tagged(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _decoder_of_class(hint)
    raise TypeError(f"a message cannot have a field of type {hint!r}")


def _decode_int(value: Any, _: Any) -> int:
    if type(value) is not int:
        raise _misfit(value, "whole number")
    return value


def _decode_float(value: Any, _: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise _misfit(value, "number")
    return value


def _decode_str(value: Any, _: Any) -> str:
    if type(value) is not str:
        raise _misfit(value, "text")
    return value


def _decode_bool(value: Any, _: Any) -> bool:
    if type(value) is not bool:
        raise _misfit(value, "truth value")
    return value


def _decode_none(value: Any, _: Any) -> None:
    if value is not None:
        raise _misfit(value, "None")


def _decode_bytes(value: Any, blobs: Sequence[memoryview] | None) -> bytes:
    if blobs is None:
        if type(value) is str:
            try:
                return base64.b85decode(value)
            except ValueError:
                pass
        raise _misfit(value, "bytes as text")
    if type(value) is not int or not 0 <= value < len(blobs):
        raise _misfit(value, f"one of {len(blobs)} attachments")
    return bytes(blobs[value])


_SCALARS: dict[Any, Decoder] = {
    int: _decode_int,
    float: _decode_float,
    str: _decode_str,
    bool: _decode_bool,
    bytes: _decode_bytes,
    type(None): _decode_none,
}
_AT_ONCE: dict[Any, set[type]] = {int: {int}, str: {str}, float: {float, int}, bool: {bool}}
"""Elements that are checked together, in C: slices by the hundred are in nearly every call."""


def _decode_anything(value: Any, blobs: Sequence[memoryview] | None) -> Any:
    if isinstance(value, list):
        return tuple(_decode_anything(one, blobs) for one in value)
    if isinstance(value, dict):
        if IS in value:
            return decoder(Tagged)(value, blobs)
        return {key: _decode_anything(one, blobs) for key, one in value.items()}
    return value


def _decoder_within(inner: tuple[Any, ...]) -> Decoder:
    read = decoder(inner[0])
    bounds = [one for one in inner[1:] if isinstance(one, Within)]

    def decode(value: Any, blobs: Sequence[memoryview] | None) -> Any:
        made = read(value, blobs)
        for bound in bounds:
            if not bound.least <= made < bound.end:
                raise _misfit(value, f"number from {bound.least} on and below {bound.end}")
        return made

    return decode


def _decoder_literal(inner: tuple[Any, ...]) -> Decoder:
    def decode(value: Any, _: Any) -> Any:
        if not any(type(value) is type(one) and value == one for one in inner):
            raise _misfit(value, f"one of {', '.join(map(repr, inner))}")
        return value

    return decode


def _decoder_union(hint: Any, inner: tuple[Any, ...]) -> Decoder:
    """Nothing or something; or one of several classes, by name; or one of several scalars."""
    some = [one for one in inner if one is not type(None)]
    if len(some) == 1:
        read = decoder(some[0])
        return lambda value, blobs: None if value is None else read(value, blobs)
    if all(isinstance(one, type) and is_dataclass(one) for one in some):
        named = {one.__name__: _decoder_of_class(one) for one in some}

        def decode_named(value: Any, blobs: Sequence[memoryview] | None) -> Any:
            if value is None and type(None) in inner:
                return None
            found = named.get(value.get(IS)) if isinstance(value, dict) else None
            if found is None:
                raise _misfit(value, f"one of {', '.join(named)}")
            return found({key: one for key, one in value.items() if key != IS}, blobs)

        return decode_named
    if all(one in _SCALARS and one is not bytes for one in some):
        kinds = set(inner) | ({int} if float in inner else set())

        def decode_scalar(value: Any, _: Any) -> Any:
            if type(value) not in kinds:
                raise _misfit(value, str(hint))
            return value

        return decode_scalar
    raise TypeError(f"a message cannot have a field of type {hint!r}")


def _decoder_sequence(inner: Any, make: Callable[[Iterable[Any]], Any]) -> Decoder:
    if inner in _AT_ONCE:
        allowed = _AT_ONCE[inner]

        def decode_at_once(value: Any, _: Any) -> Any:
            if type(value) is not list or not set(map(type, value)) <= allowed:
                raise _misfit(value, f"list of {inner.__name__}")
            return make(value)

        return decode_at_once
    read = decoder(inner)

    def decode(value: Any, blobs: Sequence[memoryview] | None) -> Any:
        if type(value) is not list:
            raise _misfit(value, "list")
        return make([read(one, blobs) for one in value])

    return decode


def _decoder_row(parts: list[Decoder], make: Callable[[list[Any]], Any], name: str) -> Decoder:
    def decode(value: Any, blobs: Sequence[memoryview] | None) -> Any:
        if type(value) is not list or len(value) != len(parts):
            raise _misfit(value, name)
        return make([read(one, blobs) for read, one in zip(parts, value, strict=True)])

    return decode


def _decoder_mapping(of_key: Any, of_value: Any) -> Decoder:
    read = decoder(of_value)

    def decode(value: Any, blobs: Sequence[memoryview] | None) -> Any:
        if type(value) is not dict:
            raise _misfit(value, "mapping")
        try:
            return {of_key(key): read(one, blobs) for key, one in value.items()}
        except ValueError:
            raise _misfit(value, f"mapping from {of_key.__name__}") from None

    if of_key not in (str, int):
        raise TypeError(f"a mapping in a message is from str or int, not from {of_key!r}")
    return decode


def _decoder_tagged(base: type[Any]) -> Decoder:
    def decode(value: Any, blobs: Sequence[memoryview] | None) -> Any:
        name = value.get(IS) if isinstance(value, dict) else None
        found = Tagged.kinds.get(name) if isinstance(name, str) else None
        if found is None:
            raise _misfit(name if isinstance(value, dict) else value, "message that is known here")
        if not issubclass(found, base):
            raise Misfit(f"{name} is no {base.__name__}")
        return _decoder_of_class(found)({key: one for key, one in value.items() if key != IS}, blobs)

    return decode


@cache
def _decoder_of_class(kind: type[Any]) -> Decoder:
    if has_own_form(kind):
        return lambda value, blobs: _own_form(kind, value)
    hints = hints_of(kind)
    readers: dict[str, Decoder] | None = None
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}

    def decode(value: Any, blobs: Sequence[memoryview] | None) -> Any:
        nonlocal readers
        if readers is None:  # not before: a class may have fields of its own kind
            readers = {one.name: decoder(hints[one.name]) for one in fields(kind)}
        if type(value) is not dict:
            raise _misfit(value, kind.__name__)
        made = {}
        for name, one in value.items():
            read = readers.get(name)
            if read is None:
                raise Misfit(f"a {kind.__name__} has no '{name}'")
            try:
                made[name] = read(one, blobs)
            except Misfit as misfit:
                misfit.at.append(f"{kind.__name__}.{name}" if not misfit.at else name)
                raise
        if not needed <= made.keys():
            raise Misfit(f"a {kind.__name__} needs {', '.join(sorted(needed - made.keys()))}")
        try:
            return kind(**made)
        except (HoldfastError, ValueError) as error:  # a check of its own
            raise Misfit(f"{kind.__name__}: {error}") from None

    return decode


def _own_form(kind: type[Any], value: Any) -> Any:
    try:
        return kind.from_dict(value)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _misfit(value, f"{kind.__name__} ({type(error).__name__}: {error})") from None
