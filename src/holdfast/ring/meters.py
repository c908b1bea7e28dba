"""How fast a container sends, receives, merges and builds: seen while it saves, provides and gathers.

``Auto`` decides by it. An estimate is the best of late, as BBR estimates a path: other work and slow peers only ever
lower what is seen. It fades with every sample that is less, so that what has become slower is believed after a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

ENOUGH = 4 << 20
"""Bytes of one sample: less would tell how fast buffers fill."""
FADING = 0.9


class Rate:
    """Bytes a second; 0 as long as too little was seen."""

    def __init__(self) -> None:
        self.value = 0.0
        self._lock = threading.Lock()
        self._nbytes = 0
        self._seconds = 0.0

    def note(self, nbytes: int, seconds: float) -> None:
        with self._lock:
            self._nbytes += nbytes
            self._seconds += seconds
            if self._nbytes >= ENOUGH and self._seconds > 0:
                self.value = max(self._nbytes / self._seconds, FADING * self.value)
                self._nbytes, self._seconds = 0, 0.0


class Flow(Rate):
    """What goes on side by side counts together: its bytes, over the time in which any of it was under way."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.Lock()
        self._active = self._moved = 0
        self._since = 0.0

    @contextmanager
    def under_way(self, nbytes: int = 0) -> Iterator[None]:
        with self._turn:
            if not self._active:
                self._since = time.monotonic()
            self._active += 1
        try:
            yield
        finally:
            with self._turn:
                self._active -= 1
                self._moved += nbytes
                if not self._active:
                    self.note(self._moved, time.monotonic() - self._since)
                    self._moved = 0

    def moved(self, nbytes: int) -> None:
        """So much of what is under way turned out to have come."""
        with self._turn:
            self._moved += nbytes


@dataclass
class Meters:
    upload: Flow = field(default_factory=Flow)
    download: Flow = field(default_factory=Flow)
    merge: Rate = field(default_factory=Rate)
    """Of one core, as are the next two: processor time, since waiting is not work."""
    build: Rate = field(default_factory=Rate)
    loose: Rate = field(default_factory=Rate)


@contextmanager
def working(rate: Rate, nbytes: int) -> Iterator[None]:
    """This thread works on so many bytes."""
    began = time.thread_time()
    yield
    rate.note(nbytes, time.thread_time() - began)


def known(limit: float | None, measured: float) -> float:
    """The lesser of a limit and what was measured; 0: neither is there."""
    return min((one for one in (limit, measured) if one), default=0.0)
