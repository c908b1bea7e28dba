"""Whether two specs do the same to the same rows, so that what the one has begun the other may go on with."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any

# Classes that are pickled by value carry a random UUID, another one in every process.
_PICKLED_UUID = re.compile(rb"(?<=\x8c )[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")


def without_chance(pickled: bytes) -> bytes:
    """A pickled function without what another pickling of it would have otherwise."""
    return _PICKLED_UUID.sub(b"", pickled)


def same_work(one: Any, other: Any) -> bool:
    """Of two specs, or of what is in them."""
    if isinstance(one, bytes) and isinstance(other, bytes):
        return without_chance(one) == without_chance(other)
    if not is_dataclass(one) or type(one) is not type(other):
        return bool(one == other)
    return all(same_work(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
