"""Random numbers and texts that depend on nothing but a seed, a purpose and the number of an event.

A generator with a running state would tie a row to all rows before it. Here every draw is a hash (splitmix64) of the
event's number, so any range of events can be made alone, in any order, and comes out the same. Random text is cut from
one text of random letters: a row only names where its piece starts and how long it is, which Arrow's string views
express without touching a letter, and one cast copies all pieces. Pieces overlap between rows; nothing asks for
distinct texts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Longs = npt.NDArray[np.int64]
Draw = npt.NDArray[np.uint64]

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1

_TEXT_LETTERS = 1 << 20
_LONGEST = 1 << 10  # of a piece; a bound for all, so that a piece does not depend on which others are cut with it
_INLINE = 12  # a string view holds that many bytes itself


def _mixed(z: int) -> int:
    z = ((z ^ (z >> 30)) * _FIRST) & _WORD
    z = ((z ^ (z >> 27)) * _SECOND) & _WORD
    return z ^ (z >> 31)


def draw(numbers: Longs, seed: int, purpose: int) -> Draw:
    """64 random bits for each number; other purposes give independent bits."""
    key = _mixed(_mixed(seed & _WORD) + purpose * _GOLDEN)
    z = numbers.astype(np.uint64)
    z *= np.uint64(_GOLDEN)
    z += np.uint64(key)
    z ^= z >> np.uint64(30)
    z *= np.uint64(_FIRST)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_SECOND)
    z ^= z >> np.uint64(31)
    return z


def unit(bits: Draw) -> npt.NDArray[np.float64]:
    """Uniform in [0, 1)."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def high(bits: Draw, below: Longs | int) -> Longs:
    """Uniform integers in [0, below) out of the upper half of the bits; ``below`` fits 31 bits."""
    return _scaled(bits >> np.uint64(32), below)


def low(bits: Draw, below: Longs | int) -> Longs:
    """Uniform integers in [0, below) out of the lower half of the bits, independent of the upper one."""
    return _scaled(bits & np.uint64(0xFFFFFFFF), below)


def _scaled(half: Draw, below: Longs | int) -> Longs:
    return ((half * np.asarray(below).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


@lru_cache(maxsize=8)
def _text(seed: int, spaces: bool) -> npt.NDArray[np.uint8]:
    bits = draw(np.arange(_TEXT_LETTERS), seed, -1 - spaces)
    letters = low(bits, 26) + ord("a")
    if spaces:
        letters[high(bits, 13) == 0] = ord(" ")
    return letters.astype(np.uint8)


def pieces(bits: Draw, lengths: Longs, seed: int, *, spaces: bool = False) -> pa.StringArray:
    """Random lower-case texts of the given lengths; with ``spaces``, one letter in 13 is a space."""
    text = _text(seed, spaces)
    assert lengths.max(initial=0) <= _LONGEST
    starts = high(bits, _TEXT_LETTERS - _LONGEST)
    views = np.zeros((len(starts), 4), np.int32)
    views[:, 0] = lengths
    views[:, 1] = np.lib.stride_tricks.sliding_window_view(text, 4)[starts].view(np.int32)[:, 0]
    views[:, 3] = starts
    short = np.flatnonzero(lengths <= _INLINE)
    if len(short):
        inline = np.lib.stride_tricks.sliding_window_view(text, _INLINE)[starts[short]]
        inline[np.arange(_INLINE) >= lengths[short, None]] = 0
        views[short, 1:] = inline.view(np.int32)
    buffers = [None, pa.py_buffer(views), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string_view(), len(starts), buffers).cast(pa.string())


def words(bits: Draw, below: int, seed: int) -> pa.StringArray:
    """Random texts of 3 to ``below - 1`` letters and spaces, without spaces at the ends."""
    return pc.utf8_trim_whitespace(pieces(bits, 3 + low(bits, below - 3), seed, spaces=True))


def padding(bits: Draw, sizes: Longs, average: int, seed: int) -> pa.StringArray:
    """Letters that bring rows of the given sizes to the average size, give or take a fifth of what is missing."""
    missing = np.maximum(average - sizes, 0)
    spread = np.rint(missing * 0.2).astype(np.int64)
    return pieces(bits, missing - spread + low(bits, 2 * spread), seed)


def lengths(strings: pa.StringArray) -> Longs:
    return np.asarray(pc.binary_length(strings), dtype=np.int64)


def picked(values: pa.StringArray, indices: Longs) -> pa.StringArray:
    return values.take(pa.array(indices))


def joined(*parts: Any, between: str = "") -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, between)
