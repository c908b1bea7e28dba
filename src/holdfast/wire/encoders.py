"""How a value is written, by its annotation; and by what it is, where that says less."""

from __future__ import annotations

import base64
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from holdfast.wire.kinds import (
    IS,
    MessageError,
    Tagged,
    cache,
    has_own_form,
    hints_of,
    is_abstract_mapping,
    is_base,
    is_named_tuple,
)

Blobs = list[bytes] | None
"""Where bytes go; None: into the text."""
Encoder = Callable[[Any, Blobs], Any]


@cache
def encoder(hint: Any) -> Encoder:
    """How a value of this annotation is written."""
    if _is_json(hint):
        return _as_it_is
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return encoder(inner[0])
    if hint is bytes:
        return _encode_bytes
    if origin in (typing.Union, types.UnionType):
        return _encoder_of_union([one for one in inner if one is not type(None)])
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        one = encoder(inner[0])
        return lambda value, blobs: [one(item, blobs) for item in value]
    if origin is tuple:
        several = [encoder(item) for item in inner]
        return lambda value, blobs: [one(item, blobs) for one, item in zip(several, value, strict=True)]
    if origin is frozenset:
        element = encoder(inner[0])
        return lambda value, blobs: [element(item, blobs) for item in sorted(value)]
    if origin in (dict, Mapping) or is_abstract_mapping(origin):
        of_value = encoder(inner[1])
        return lambda value, blobs: {key: of_value(item, blobs) for key, item in value.items()}
    if is_named_tuple(hint):
        parts = [encoder(item) for item in hints_of(hint).values()]
        return lambda value, blobs: [one(item, blobs) for one, item in zip(parts, value, strict=True)]
    if is_dataclass(hint) and isinstance(hint, type) and not is_base(hint):
        return _encoder_of_class(hint)
    return encode_anything


def _encoder_of_union(some: list[Any]) -> Encoder:
    if len(some) == 1:
        one = encoder(some[0])
        return lambda value, blobs: None if value is None else one(value, blobs)

    def encode(value: Any, blobs: Blobs) -> Any:
        said = encode_anything(value, blobs)
        return {IS: type(value).__name__, **said} if type(value) in some and isinstance(said, dict) else said

    return encode


@cache
def _encoder_of_class(kind: type[Any]) -> Encoder:
    if has_own_form(kind):
        return lambda value, blobs: value.to_dict()
    plain: list[str] = []
    others: list[tuple[str, Encoder]] | None = None
    name = kind.__name__ if issubclass(kind, Tagged) else None

    def encode(value: Any, blobs: Blobs) -> Any:
        nonlocal plain, others
        if type(value) is not kind:  # a subclass, which knows more
            return encode_anything(value, blobs)
        if others is None:  # not before: a class may have fields of its own kind
            found = [(name, encoder(hint)) for name, hint in hints_of(kind).items()]
            plain = [name for name, one in found if one is _as_it_is]
            others = [(name, one) for name, one in found if one is not _as_it_is]
        said: dict[str, Any] = {} if name is None else {IS: name}
        for field in plain:
            said[field] = getattr(value, field)
        for field, one in others:
            said[field] = one(getattr(value, field), blobs)
        return said

    return encode


def encode_anything(value: Any, blobs: Blobs) -> Any:
    """By what it is, where the annotation says less: Any, a base class, a union."""
    kind = type(value)
    if kind in (int, float, str, bool, type(None)):
        return value
    if kind is bytes:
        return _encode_bytes(value, blobs)
    if isinstance(value, dict):
        if IS in value:
            raise MessageError(f"A payload may not have a field '{IS}'.", safe="Nothing was sent.")
        return {key: encode_anything(item, blobs) for key, item in value.items()}
    if isinstance(value, frozenset):
        return [encode_anything(item, blobs) for item in sorted(value)]
    if isinstance(value, tuple | list):
        return [encode_anything(item, blobs) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _encoder_of_class(kind)(value, blobs)
    raise MessageError(f"{kind.__name__} {value!r:.100} cannot be sent.", safe="Nothing was sent.")


def _as_it_is(value: Any, blobs: Blobs) -> Any:
    return value


def _encode_bytes(value: bytes, blobs: Blobs) -> Any:
    if blobs is None:
        return base64.b85encode(value).decode()
    blobs.append(value)
    return len(blobs) - 1


def _is_json(hint: Any) -> bool:
    """JSON says it by itself, and the decoder gets it back."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in (int, float, str, bool, type(None)) or origin is Literal:
        return True
    if origin is Annotated:
        return _is_json(inner[0])
    if origin is tuple:
        return all(_is_json(one) for one in inner if one is not Ellipsis)
    if origin in (typing.Union, types.UnionType):
        return all(_is_json(one) for one in inner)
    if is_abstract_mapping(origin):
        return inner[0] in (str, int) and _is_json(inner[1])
    return is_named_tuple(hint) and all(_is_json(one) for one in hints_of(hint).values())
