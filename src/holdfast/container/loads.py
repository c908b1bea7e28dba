"""How much work each slice is: rows and seconds an epoch, exponentially weighted, all stages together."""

from __future__ import annotations

import threading
from collections.abc import Iterable

_WEIGHT = 0.2  # of the newest epoch: a slice that turned hot shows within a few epochs, one odd epoch does not


class Loads:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: dict[int, tuple[int, float]] = {}
        self._usual: dict[int, tuple[float, float]] = {}

    def note(self, number: int, rows: int, seconds: float) -> None:
        """A stage has applied its rows of the epoch that is going on."""
        with self._lock:
            before = self._now.get(number, (0, 0.0))
            self._now[number] = (before[0] + rows, before[1] + seconds)

    def end_epoch(self, slices: Iterable[int]) -> None:
        """All stages are done with it; a slice without rows had no work."""
        with self._lock:
            for number in slices:
                rows, seconds = self._now.pop(number, (0, 0.0))
                usual = self._usual.get(number, (rows, seconds))
                self._usual[number] = (
                    usual[0] + _WEIGHT * (rows - usual[0]),
                    usual[1] + _WEIGHT * (seconds - usual[1]),
                )

    def forget(self, slices: Iterable[int]) -> None:
        with self._lock:
            for number in slices:
                self._now.pop(number, None)
                self._usual.pop(number, None)

    def snapshot(self) -> dict[int, tuple[float, float]]:
        with self._lock:
            return dict(self._usual)
