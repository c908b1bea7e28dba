"""Frozen dataclasses as JSON and back: how calls, answers and the ring's messages cross, and how specs rest in a file.

One walk over the annotations of a class does for all of them what every one would otherwise write for itself. What is
read is checked against them, field by field: whoever is handed a message may trust its types. Nothing is unpickled, and
only classes that are ours can be named.

Two forms. **Packed**, for the wire: a JSON header, then every ``bytes`` of the message as it is. **Plain**, for files
that people read too: JSON alone, ``bytes`` as text. A class below ``Tagged`` is written with its name wherever it
stands, and so are the members of a union of dataclasses; what stands under a field of a concrete class needs none.

The trade-off: JSON, where a binary form would be smaller. A header has a few hundred bytes and is read in microseconds
(``json`` is C), anybody can read one in a debugger, and what is large (rows, prepares) is not in it.
"""

from __future__ import annotations

import base64
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, cast, get_args, get_origin

from holdfast.errors import HoldfastError

VERSION = 1
"""Of the packed form. Processes of one run speak the same one; it says so if they do not."""
IS = "is"
"""The field with the name of a tagged class."""
T = TypeVar("T")

Blobs = list[bytes] | None
"""Where bytes go; None: into the text."""
Encoder = Callable[[Any, Blobs], Any]
Decoder = Callable[[Any, Sequence[memoryview] | None], Any]
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


class Sender(NamedTuple):
    """On whose behalf a message is sent: the job, and which of its masters."""

    job: str
    incarnation: int


NOBODY = Sender("", 0)


# ------------------------------------------------------------------------------------------------------------ packed


def pack(message: object, sender: Sender = NOBODY) -> bytes:
    """A message (any frozen dataclass) with the bytes in it, as it crosses."""
    blobs: list[bytes] = []
    said = _encoder(type(message))(message, blobs)
    head = {"version": VERSION, "sender": sender, "message": said, "blobs": [len(blob) for blob in blobs]}
    text = json.dumps(head, separators=(",", ":")).encode()
    return b"".join([len(text).to_bytes(4, "little"), text, *blobs])


def unpack(body: bytes | memoryview, kind: type[T]) -> T:
    """The message that was packed, which must be a ``kind``."""
    return unpack_from(body, kind)[0]


def unpack_from(body: bytes | memoryview, kind: type[T]) -> tuple[T, Sender]:
    """The same, and who sent it."""
    view = memoryview(body)
    end = 4 + int.from_bytes(view[:4], "little")
    try:
        head = json.loads(bytes(view[4:end]))
        version, sender, said, sizes = (head[name] for name in ("version", "sender", "message", "blobs"))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _strange("it has no header of ours", body) from None
    if version != VERSION:
        raise _strange(f"it is of version {version!r}, and this is version {VERSION}", body)
    blobs = []
    for size in sizes if isinstance(sizes, list) else ():
        blobs.append(view[end : end + size])
        end += size
    if end != len(view):
        raise _strange(f"it has {len(view)} bytes and says {end}", body)
    try:
        return _decoder(kind)(said, blobs), _decoder(Sender)(sender, None)
    except _Misfit as misfit:
        raise _strange(str(misfit), body) from None
    except RecursionError:
        raise _strange("it is nested too deeply", body) from None


def _strange(why: str, body: bytes | memoryview) -> MessageError:
    return MessageError(
        f"What came is no message that can be read: {why}. It begins with {bytes(body[:80])!r}.",
        safe="Nothing was read or changed.",
        todo="Have all processes of the job run the same version of Holdfast.",
    )


# ------------------------------------------------------------------------------------------------------------- plain


def to_plain(value: Any) -> Any:
    """What JSON would say, bytes as text."""
    return json.loads(json.dumps(_encode_anything(value, None)))


def from_plain(kind: type[T], said: Any) -> T:
    """The ``kind`` that ``to_plain`` was given; a field that is missing takes its default."""
    try:
        made: T = _decoder(kind)(said, None)
    except _Misfit as misfit:
        raise MessageError(
            f"What was kept as a {kind.__name__} is none: {misfit}.",
            safe="Nothing was changed.",
            todo="Use the version of Holdfast that wrote it, or a newer one.",
        ) from None
    return made


# ----------------------------------------------------------------------------------------------------------- writing


@cache
def _encoder(hint: Any) -> Encoder:
    """How a value of this annotation is written."""
    if _is_json(hint):
        return _as_it_is
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _encoder(inner[0])
    if hint is bytes:
        return _encode_bytes
    if origin in (typing.Union, types.UnionType):
        return _encoder_of_union([one for one in inner if one is not type(None)])
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        one = _encoder(inner[0])
        return lambda value, blobs: [one(item, blobs) for item in value]
    if origin is tuple:
        several = [_encoder(item) for item in inner]
        return lambda value, blobs: [one(item, blobs) for one, item in zip(several, value, strict=True)]
    if origin is frozenset:
        element = _encoder(inner[0])
        return lambda value, blobs: [element(item, blobs) for item in sorted(value)]
    if origin in (dict, Mapping) or _is_abstract_mapping(origin):
        of_value = _encoder(inner[1])
        return lambda value, blobs: {key: of_value(item, blobs) for key, item in value.items()}
    if _is_named_tuple(hint):
        parts = [_encoder(item) for item in _hints(hint).values()]
        return lambda value, blobs: [one(item, blobs) for one, item in zip(parts, value, strict=True)]
    if is_dataclass(hint) and isinstance(hint, type) and not _is_base(hint):
        return _encoder_of_class(hint)
    return _encode_anything


def _encoder_of_union(some: list[Any]) -> Encoder:
    if len(some) == 1:
        one = _encoder(some[0])
        return lambda value, blobs: None if value is None else one(value, blobs)

    def encode(value: Any, blobs: Blobs) -> Any:
        said = _encode_anything(value, blobs)
        return {IS: type(value).__name__, **said} if type(value) in some and isinstance(said, dict) else said

    return encode


@cache
def _encoder_of_class(kind: type[Any]) -> Encoder:
    if _has_own_form(kind):
        return lambda value, blobs: value.to_dict()
    plain: list[str] = []
    others: list[tuple[str, Encoder]] | None = None
    name = kind.__name__ if issubclass(kind, Tagged) else None

    def encode(value: Any, blobs: Blobs) -> Any:
        nonlocal plain, others
        if type(value) is not kind:  # a subclass, which knows more
            return _encode_anything(value, blobs)
        if others is None:  # not before: a class may have fields of its own kind
            found = [(name, _encoder(hint)) for name, hint in _hints(kind).items()]
            plain = [name for name, one in found if one is _as_it_is]
            others = [(name, one) for name, one in found if one is not _as_it_is]
        said: dict[str, Any] = {} if name is None else {IS: name}
        for field in plain:
            said[field] = getattr(value, field)
        for field, one in others:
            said[field] = one(getattr(value, field), blobs)
        return said

    return encode


def _encode_anything(value: Any, blobs: Blobs) -> Any:
    """By what it is, where the annotation says less: Any, a base class, a union."""
    kind = type(value)
    if kind in (int, float, str, bool, type(None)):
        return value
    if kind is bytes:
        return _encode_bytes(value, blobs)
    if isinstance(value, dict):
        if IS in value:
            raise MessageError(f"A payload may not have a field '{IS}'.", safe="Nothing was sent.")
        return {key: _encode_anything(item, blobs) for key, item in value.items()}
    if isinstance(value, frozenset):
        return [_encode_anything(item, blobs) for item in sorted(value)]
    if isinstance(value, tuple | list):
        return [_encode_anything(item, blobs) for item in value]
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
    if _is_abstract_mapping(origin):
        return inner[0] in (str, int) and _is_json(inner[1])
    return _is_named_tuple(hint) and all(_is_json(one) for one in _hints(hint).values())


# ----------------------------------------------------------------------------------------------------------- reading


class _Misfit(Exception):
    """``at`` grows from the inside out."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.at: list[str] = []

    def __str__(self) -> str:
        return f"{'.'.join(reversed(self.at))}: {self.why}" if self.at else self.why


def _misfit(value: Any, wanted: str) -> _Misfit:
    return _Misfit(f"{value!r:.80} is no {wanted}")


@cache
def _decoder(hint: Any) -> Decoder:
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
        return _decoder_row([_decoder(one) for one in inner], tuple, str(hint))
    if _is_abstract_mapping(origin):
        return _decoder_mapping(*inner)
    if _is_named_tuple(hint):
        return _decoder_row([_decoder(one) for one in _hints(hint).values()], lambda row: hint(*row), hint.__name__)
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
            return _decoder(Tagged)(value, blobs)
        return {key: _decode_anything(one, blobs) for key, one in value.items()}
    return value


def _decoder_within(inner: tuple[Any, ...]) -> Decoder:
    read = _decoder(inner[0])
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
        read = _decoder(some[0])
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
    read = _decoder(inner)

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
    read = _decoder(of_value)

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
            raise _Misfit(f"{name} is no {base.__name__}")
        return _decoder_of_class(found)({key: one for key, one in value.items() if key != IS}, blobs)

    return decode


@cache
def _decoder_of_class(kind: type[Any]) -> Decoder:
    if _has_own_form(kind):
        return lambda value, blobs: _own_form(kind, value)
    hints = _hints(kind)
    readers: dict[str, Decoder] | None = None
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}

    def decode(value: Any, blobs: Sequence[memoryview] | None) -> Any:
        nonlocal readers
        if readers is None:  # not before: a class may have fields of its own kind
            readers = {one.name: _decoder(hints[one.name]) for one in fields(kind)}
        if type(value) is not dict:
            raise _misfit(value, kind.__name__)
        made = {}
        for name, one in value.items():
            read = readers.get(name)
            if read is None:
                raise _Misfit(f"a {kind.__name__} has no '{name}'")
            try:
                made[name] = read(one, blobs)
            except _Misfit as misfit:
                misfit.at.append(f"{kind.__name__}.{name}" if not misfit.at else name)
                raise
        if not needed <= made.keys():
            raise _Misfit(f"a {kind.__name__} needs {', '.join(sorted(needed - made.keys()))}")
        try:
            return kind(**made)
        except (HoldfastError, ValueError) as error:  # a check of its own
            raise _Misfit(f"{kind.__name__}: {error}") from None

    return decode


def _own_form(kind: type[Any], value: Any) -> Any:
    try:
        return kind.from_dict(value)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _misfit(value, f"{kind.__name__} ({type(error).__name__}: {error})") from None


# ------------------------------------------------------------------------------------------------------------- hints


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        return {field.name: hints[field.name] for field in fields(kind)}
    return hints


def _has_own_form(kind: type[Any]) -> bool:
    """As it rests in a file: then it crosses like that too."""
    return hasattr(kind, "to_dict") and hasattr(kind, "from_dict")


def _is_named_tuple(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _is_abstract_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _is_base(kind: type[Any]) -> bool:
    """Others may stand where it is named."""
    return issubclass(kind, Tagged) and bool(kind.__subclasses__())
