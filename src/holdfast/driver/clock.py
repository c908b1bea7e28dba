"""What time it is for epochs: the pure ``EpochClock``, read from this machine's clocks."""

from __future__ import annotations

import time

from holdfast.master.clock import EpochClock, Reading


class Clock:
    def __init__(self, clock: int = 0) -> None:
        self._clock = EpochClock()
        self._clock.take(clock, None)
        self._steady: int | None = None

    def now(self) -> int:
        """What the clock of an epoch would be, µs."""
        return 1000 * self._clock.at(time.time_ns() // 1_000_000, _steady())

    def read(self) -> Reading:
        """For the next epoch."""
        self._steady = _steady()
        return self._clock.read(time.time_ns() // 1_000_000, self._steady)

    def take(self, clock: int) -> None:
        """What a stored ``prepare`` says counts; it was written just after ``read``."""
        self._clock.take(clock, self._steady)


def _steady() -> int:
    """Milliseconds that have really passed since some moment, those included in which the machine slept."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)) // 1_000_000
