"""How many bytes a second may pass: for one sending, for all that a container sends, for all that it gets."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping

from holdfast.errors import ContainerError


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


def refuse_no_rates(named: Mapping[str, float | None]) -> None:
    for name, rate in named.items():
        if rate is not None and (type(rate) not in (int, float) or not 0 < rate < math.inf):
            raise ContainerError(
                f"A limit is a positive number of bytes a second, or none; '{name}' is {rate!r}.",
                safe="The limits are as they were.",
            )
