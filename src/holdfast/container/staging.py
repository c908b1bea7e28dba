"""Rows that Spark's tasks pushed ahead of their ``prepare``: a cache of the log, bounded, never trusted.

An entry is used only when a ``prepare`` names its segment, and only for the slices that its task knew to be here. A
full staging area turns pushes away ("read the log"), so neither a large epoch nor a slow one can grow memory.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from holdfast.log.segment import Chunk, parse_segment_name

Key = tuple[str, int]
"""A segment's name and the number of an input in it."""


@dataclass
class Staged:
    """What one task pushed here of one input: complete once ``sealed``."""

    number: int
    """Of the epoch; of rows of sources, of the block."""
    of_block: bool
    slices: frozenset[int]
    chunks: list[Chunk] = field(default_factory=list)
    nbytes: int = 0
    sealed: bool = False

    def covers(self, wanted: np.ndarray) -> bool:
        return self.sealed and self.slices.issuperset(np.flatnonzero(wanted).tolist())


class Staging:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._lock = threading.Lock()
        self._entries: dict[Key, Staged] = {}
        self._applied = {False: 0, True: 0}  # epochs, and blocks

    def begin(self, number: int, key: Key, slices: frozenset[int]) -> Staged:
        named = parse_segment_name(key[0])
        entry = Staged(number, named is not None and not named.level, slices)
        with self._lock:
            self._forget(key)
            if number > self._applied[entry.of_block]:  # a push of what is over comes from a zombie
                self._entries[key] = entry
        return entry

    def add(self, key: Key, entry: Staged, chunk: Chunk) -> bool:
        """False if there is no room: the entry is dropped and its rows will be read from the log."""
        size = chunk.rows.nbytes
        with self._lock:
            if self._entries.get(key) is not entry:
                return False
            if self.used + size > self.limit:
                self._forget(key)
                return False
            entry.chunks.append(chunk)
            entry.nbytes += size
            self.used += size
            return True

    def seal(self, key: Key, entry: Staged, chunks: int, rows: int) -> None:
        """The push is over. Keep it if it is as long as it said it would be: a broken one ends just as quietly."""
        with self._lock:
            entry.sealed = len(entry.chunks) == chunks and sum(chunk.rows.num_rows for chunk in entry.chunks) == rows
            if not entry.sealed and self._entries.get(key) is entry:
                self._forget(key)

    def take(self, key: Key, wanted: np.ndarray) -> list[Chunk] | None:
        """The chunks of an input, if they are all here for the wanted slices."""
        with self._lock:
            entry = self._entries.get(key)
            return entry.chunks if entry is not None and entry.covers(wanted) else None

    def drop_through(self, epoch: int, block: int) -> None:
        """An epoch was applied, which has read the source up to that block."""
        with self._lock:
            for of_block, number in ((False, epoch), (True, block)):
                self._applied[of_block] = max(self._applied[of_block], number)
            gone = [key for key, entry in self._entries.items() if entry.number <= self._applied[entry.of_block]]
            for key in gone:
                self._forget(key)

    def _forget(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.used -= entry.nbytes
