"""A buffer of keys and values that are brought together late: ELF's compressed buffer tree (2.2, Figure 5).

What is inserted is appended, nothing more. A full buffer is reduced by key, cut by the ranges of hashes that the leaves
have, and each part goes compressed to its leaf, which keeps some such parts as they are before it makes one of them;
a leaf that gets too large becomes two. So most insertions cost an append, and what is old takes little room.

The trade-off: ``flush`` reads everything. It is for results that are asked for now and then, as at the end of an
interval; whoever asks after every insertion is better off with a dict. Two levels, not the paper's many: with 4,096
pairs a buffer the list of leaves stays short enough to be searched.
"""

from __future__ import annotations

import operator
import pickle
import zlib
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from holdfast.state.codec import pickled_bytes

Combine = Callable[[Any, Any], Any]
HASHES = 1 << 32
MOST_PARTS = 8
"""Of a leaf, before they are made one."""


class Leaf:
    """Keys of a range of hashes, in compressed parts, the oldest first."""

    __slots__ = ("first", "parts")

    def __init__(self, first: int, parts: list[bytes]) -> None:
        self.first = first
        self.parts = parts


class BufferTree:
    """``combine`` makes one of two values of a key, the older given first; it has to be associative.

    >>> clicks = BufferTree()
    >>> for product in "abb":
    ...     clicks.insert(product, 1)
    >>> clicks.flush()
    {'a': 1, 'b': 2}
    """

    def __init__(self, combine: Combine = operator.add, *, size: int = 4096) -> None:
        if size < 2:
            raise ValueError(f"a buffer holds at least two pairs, not {size}")
        self._combine = combine
        self._size = size
        self._buffer: list[tuple[Hashable, Any]] = []
        self._leaves = [Leaf(0, [])]

    def insert(self, key: Hashable, value: Any) -> None:
        self._buffer.append((key, value))
        if len(self._buffer) >= self._size:
            self._spill()

    def merge(self, pairs: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Insert all of these: what another buffer's ``flush`` returned."""
        for key, value in pairs.items() if isinstance(pairs, Mapping) else pairs:
            self.insert(key, value)

    def flush(self) -> dict[Any, Any]:
        """Every key with all its values combined. Nothing is forgotten by that."""
        found: dict[Any, Any] = {}
        for leaf in self._leaves:
            found.update(self._read(leaf))
        self._reduce(found, self._buffer)
        return found

    def empty(self) -> None:
        """Forget everything: a new batch begins."""
        self._buffer.clear()
        self._leaves = [Leaf(0, [])]

    @property
    def nbytes(self) -> int:
        """Of what is compressed."""
        return sum(len(part) for leaf in self._leaves for part in leaf.parts)

    @property
    def leaves(self) -> int:
        return len(self._leaves)

    def _reduce(self, into: dict[Any, Any], pairs: Iterable[tuple[Any, Any]]) -> None:
        for key, value in pairs:
            into[key] = self._combine(into[key], value) if key in into else value

    def _spill(self) -> None:
        reduced: dict[Any, Any] = {}
        self._reduce(reduced, self._buffer)
        firsts = [leaf.first for leaf in self._leaves]
        parts: dict[int, dict[Any, Any]] = {}
        for key, value in reduced.items():
            parts.setdefault(bisect_right(firsts, _hash(key)) - 1, {})[key] = value
        packed = {at: _packed(part) for at, part in parts.items()}  # all of it or nothing: one that cannot be raises
        self._buffer.clear()
        for at, part in packed.items():
            self._leaves[at].parts.append(part)
        for at in sorted(packed, reverse=True):  # from the last on: one that becomes two moves only those behind it
            if len(self._leaves[at].parts) > MOST_PARTS:
                self._leaves[at : at + 1] = self._made_one(self._leaves[at])

    def _made_one(self, leaf: Leaf) -> list[Leaf]:
        content = self._read(leaf)
        middle = sorted(map(_hash, content))[len(content) // 2]
        if len(content) <= self._size or middle == leaf.first:
            return [Leaf(leaf.first, [_packed(content)])]
        low = {key: value for key, value in content.items() if _hash(key) < middle}
        high = {key: value for key, value in content.items() if _hash(key) >= middle}
        return [Leaf(leaf.first, [_packed(low)] if low else []), Leaf(middle, [_packed(high)])]

    def _read(self, leaf: Leaf) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for part in leaf.parts:
            self._reduce(found, pickle.loads(zlib.decompress(part)).items())
        return found


def _hash(key: Hashable) -> int:
    return hash(key) % HASHES


def _packed(content: dict[Any, Any]) -> bytes:
    return zlib.compress(pickled_bytes(content), 1)
