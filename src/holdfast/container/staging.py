"""Rows that Spark's tasks pushed ahead of their ``prepare``: a cache of the log, bounded, never trusted.

An entry is used only when a ``prepare`` names its segment, and only for the slices that its task knew to be here. A
full staging area turns pushes away ("read the log"), so neither a large epoch nor a slow one can grow memory.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from holdfast.log.segment import Chunk

Key = tuple[str, int]
"""A segment's name and the number of an input in it."""


@dataclass
class Staged:
    """What one task pushed here of one input: complete once ``sealed``."""

    epoch: int
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
        self._applied = 0

    def begin(self, epoch: int, key: Key, slices: frozenset[int]) -> Staged:
        entry = Staged(epoch, slices)
        with self._lock:
            self._forget(key)
            if epoch > self._applied:  # a push of an epoch that is over comes from a zombie
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

    def drop_through(self, epoch: int) -> None:
        with self._lock:
            self._applied = max(self._applied, epoch)
            for key in [key for key, entry in self._entries.items() if entry.epoch <= epoch]:
                self._forget(key)

    def _forget(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.used -= entry.nbytes
