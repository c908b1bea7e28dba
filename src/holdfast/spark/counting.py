"""Rows that were late, dropped and the like, stage by stage, since the run began.

Whoever applies a slice of an epoch, however often, counts the same; so a slice counts once an epoch, when that is
committed. The destination of a move may answer after that, which must not count in the epoch that follows.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

Rows = Mapping[str, int]
"""By reason."""


class Counts:
    def __init__(self) -> None:
        self.total: dict[str, Counter[str]] = {}
        self._applied: dict[tuple[int, str, str], Rows] = {}
        self._lock = threading.Lock()

    def dropped(self, stage: str, rows: Rows) -> None:
        """At intake."""
        with self._lock:
            self.total.setdefault(stage, Counter()).update(rows)

    def applied(self, epoch: int, stage: str, slices: Mapping[str, Rows]) -> None:
        with self._lock:
            for slice_, rows in slices.items():
                self._applied[epoch, stage, slice_] = rows

    def committed(self, epoch: int) -> None:
        with self._lock:
            for (of, stage, _), rows in self._applied.items():
                if of == epoch:
                    self.total.setdefault(stage, Counter()).update(rows)
            self._applied = {key: rows for key, rows in self._applied.items() if key[0] > epoch}
