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

import json
from typing import Any, NamedTuple, TypeVar

from holdfast.wire.decoders import Misfit, decoder
from holdfast.wire.encoders import encode_anything, encoder
from holdfast.wire.kinds import MessageError, Tagged, Within

__all__ = [
    "NOBODY",
    "VERSION",
    "MessageError",
    "Sender",
    "Tagged",
    "Within",
    "from_plain",
    "pack",
    "part_of",
    "to_plain",
    "unpack",
    "unpack_from",
]

VERSION = 1
"""Of the packed form. Processes of one run speak the same one; it says so if they do not."""
T = TypeVar("T")


class Sender(NamedTuple):
    """On whose behalf a message is sent: the job, and which of its masters."""

    job: str
    incarnation: int


NOBODY = Sender("", 0)


# ------------------------------------------------------------------------------------------------------------ packed


def pack(message: object, sender: Sender = NOBODY) -> bytes:
    """A message (any frozen dataclass) with the bytes in it, as it crosses."""
    blobs: list[bytes] = []
    said = encoder(type(message))(message, blobs)
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
    if type(sizes) is not list or any(type(size) is not int or size < 0 for size in sizes):
        raise _strange(f"its attachments have {sizes!r:.80} bytes", body)
    blobs = []
    for size in sizes:
        blobs.append(view[end : end + size])
        end += size
    if end != len(view):
        raise _strange(f"it has {len(view)} bytes and says {end}", body)
    try:
        return decoder(kind)(said, blobs), decoder(Sender)(sender, None)
    except Misfit as misfit:
        raise _strange(str(misfit), body) from None
    except RecursionError:
        raise _strange("it is nested too deeply", body) from None


def part_of(metadata: Any, kind: type[T]) -> T:
    """What came with a batch of a stream, as Flight has it: None if nothing did."""
    return unpack(metadata.to_pybytes() if metadata is not None else b"", kind)


def _strange(why: str, body: bytes | memoryview) -> MessageError:
    return MessageError(
        f"What came is no message that can be read: {why}. It begins with {bytes(body[:80])!r}.",
        safe="Nothing was read or changed.",
        todo="Have all processes of the job run the same version of Holdfast.",
    )


# ------------------------------------------------------------------------------------------------------------- plain


def to_plain(value: Any) -> Any:
    """What JSON would say, bytes as text."""
    return json.loads(json.dumps(encode_anything(value, None)))


def from_plain(kind: type[T], said: Any) -> T:
    """The ``kind`` that ``to_plain`` was given; a field that is missing takes its default."""
    try:
        made: T = decoder(kind)(said, None)
    except Misfit as misfit:
        raise MessageError(
            f"What was kept as a {kind.__name__} is none: {misfit}.",
            safe="Nothing was changed.",
            todo="Use the version of Holdfast that wrote it, or a newer one.",
        ) from None
    return made
