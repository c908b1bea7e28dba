"""Ids on the ring: 128 bits, in a circle, read as digits of b bits (SR3 §3.2, ELF §2.3).

Ids and keys are plain integers. That is all a machine ever needs to know of a peer; where a peer can be reached is
the business of the shell, which sends the addresses of all ids a message mentions along with it
(``messages.mentions``). The trade-off: the shell keeps a book of addresses, and the tables here stay numbers.
"""

from __future__ import annotations

import hashlib

BITS = 128
RING = 1 << BITS
HALF = RING >> 1
MASK = RING - 1


def id_of(*words: str) -> int:
    """The id or key of a name: the first 128 bits of its SHA-1, so that ids spread evenly.

    >>> show(id_of("micro-promotion", "ann"))
    '4793aa3c'
    """
    digest = hashlib.sha1("\x00".join(words).encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[: BITS // 8], "big")


def show(one: int) -> str:
    """The first eight hexadecimal digits: enough to tell nodes apart in a trace."""
    return f"{one:032x}"[:8]


def distance(one: int, other: int) -> int:
    """The shorter way round the ring."""
    clockwise = (one - other) & MASK
    return clockwise if clockwise <= HALF else RING - clockwise


def nearer(key: int, one: int, other: int) -> int:
    """Whichever of two ids is nearer to the key; of two that are equally near, the smaller."""
    left, right = distance(key, one), distance(key, other)
    if left == right:
        return min(one, other)
    return one if left < right else other


def shared(one: int, other: int, bits: int) -> int:
    """How many leading digits of ``bits`` bits two ids have in common."""
    return (BITS - (one ^ other).bit_length()) // bits


def digit(one: int, place: int, bits: int) -> int:
    """The digit at a place, counted from the left."""
    return (one >> (BITS - bits * (place + 1))) & ((1 << bits) - 1)
