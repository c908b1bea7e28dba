"""Rows that Spark's tasks pushed ahead of their ``prepare``: a cache of the log, bounded, never trusted.

An entry is used only when a ``prepare`` names its segment, and only for the slices that its task knew to be here. A
full staging area turns pushes away ("read the log"), so neither a large epoch nor a slow one can grow memory.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from holdfast.log.segment import Chunk


@dataclass
class StagedSegment:
    """One task's push to this container: the chunks of each input, complete once ``sealed``."""

    slices: frozenset[int]
    chunks: dict[int, list[Chunk]] = field(default_factory=dict)
    nbytes: int = 0
    sealed: bool = False

    def covers(self, wanted: np.ndarray) -> bool:
        return self.sealed and self.slices.issuperset(np.flatnonzero(wanted).tolist())


class Staging:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._segments: dict[str, StagedSegment] = {}
        self._epochs: dict[str, int] = {}
        self._used = 0

    @property
    def used(self) -> int:
        return self._used

    def begin(self, epoch: int, segment: str, slices: frozenset[int]) -> StagedSegment:
        entry = StagedSegment(slices)
        with self._lock:
            self._forget(segment)
            self._segments[segment] = entry
            self._epochs[segment] = epoch
        return entry

    def add(self, segment: str, entry: StagedSegment, chunk: Chunk) -> bool:
        """False if there is no room: the entry is dropped and its rows will be read from the log."""
        size = chunk.rows.nbytes
        with self._lock:
            if self._segments.get(segment) is not entry:
                return False
            if self._used + size > self.limit:
                self._forget(segment)
                return False
            entry.chunks.setdefault(chunk.input, []).append(chunk)
            entry.nbytes += size
            self._used += size
            return True

    def take(self, segment: str) -> StagedSegment | None:
        with self._lock:
            entry = self._segments.get(segment)
            return entry if entry is not None and entry.sealed else None

    def drop_through(self, epoch: int) -> None:
        with self._lock:
            for segment in [name for name, staged in self._epochs.items() if staged <= epoch]:
                self._forget(segment)

    def _forget(self, segment: str) -> None:
        entry = self._segments.pop(segment, None)
        self._epochs.pop(segment, None)
        if entry is not None:
            self._used -= entry.nbytes
