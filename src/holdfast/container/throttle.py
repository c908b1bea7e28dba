"""How many bytes a second may pass: for one sending, for all that a container sends, for all that it gets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Bucket:
    """A token bucket: whoever takes more than there is waits until it is paid back."""

    def __init__(self, rate: float | None, burst_seconds: float = 0.1) -> None:
        self._lock = threading.Lock()
        self._burst_seconds = burst_seconds
        self.limit(rate)

    def limit(self, rate: float | None) -> None:
        """Another rate from now on; None: as fast as it goes."""
        with self._lock:
            self.rate = rate
            self._burst = 0.0 if rate is None else rate * self._burst_seconds
            self._tokens = self._burst
            self._at = time.monotonic()

    def take(self, nbytes: int, waiting: Callable[[], None]) -> None:
        """``waiting`` is called now and then while it waits."""
        with self._lock:
            if self.rate is None:
                return
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self.rate) - nbytes
            self._at = now
            until = now - self._tokens / self.rate
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.5))
            waiting()
