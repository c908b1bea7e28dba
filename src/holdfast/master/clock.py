"""The epoch clock: processing time, as it is written into ``prepare`` and kept there for ever.

A driver's own clock may jump: somebody sets it, a wrong server corrects it, a machine wakes with another year. What an
epoch has recorded is never taken back, so a jump must not get in. Within a run the epoch clock follows the driver's,
but by how much time has really passed, which a steady clock measures: at most twice as fast, so that a clock that was
put right is followed soon and one that is wrong for a minute costs a minute; and a tenth slower at least, where an
earlier epoch was ahead of the driver's clock, so that windows go on closing and timers go on firing meanwhile. Only a
start takes the clock as it is: the job may have stood still for a week, and nobody has measured that.
"""

from __future__ import annotations

from dataclasses import dataclass

FASTEST = 2
SLOWEST = 0.9
WORTH_A_WORD = 60_000  # ms
PAUSE = 86_400_000  # ms


@dataclass(frozen=True)
class Reading:
    """What the clock of an epoch is (ms), and what people should be told."""

    clock: int
    warning: str | None = None


class EpochClock:
    """All times in milliseconds; ``steady`` never jumps, and means nothing by itself."""

    def __init__(self) -> None:
        self.last = 0
        """Of the newest epoch."""
        self._steady: int | None = None  # when that was read in this run
        self._told: str | None = None

    def at(self, wall: int, steady: int) -> int:
        """What the clock of an epoch would be now."""
        if self._steady is None:
            return max(self.last, wall)
        passed = max(0, steady - self._steady)
        return min(max(wall, self.last + int(passed * SLOWEST)), self.last + FASTEST * passed)

    def read(self, wall: int, steady: int) -> Reading:
        """The clock of the epoch that is being prepared."""
        first, before = self._steady is None, self.last
        clock = self.at(wall, steady)
        found, said = self._judged(first, before, clock, wall)
        news, self._told = (said if found != self._told else None), found
        return Reading(clock, news)

    def take(self, clock: int, steady: int | None) -> None:
        """An epoch has this clock; ``steady`` is None for one of an earlier run."""
        self.last = max(self.last, clock)
        if steady is not None:
            self._steady = steady

    @staticmethod
    def _judged(first: bool, before: int, clock: int, wall: int) -> tuple[str | None, str | None]:
        if first and before and clock - before > PAUSE:
            return "pause", (
                f"the driver's clock is {_shown(clock - before)} after the last epoch's. If the job has not stood "
                "still for so long, the clock is wrong: stop the job, set the clock right and start it again; "
                "processing time then goes on from here, a tenth slower until the clock has caught up"
            )
        if wall - clock > WORTH_A_WORD:
            return "ahead", (
                f"the driver's clock has jumped ahead by {_shown(wall - clock)}: processing time follows at most twice "
                "as fast as time passes. If the clock is wrong, set it right. If it is right and should count at once, "
                "stop the job and start it again: a start takes the clock as it is"
            )
        if clock - wall > WORTH_A_WORD:
            return "behind", (
                f"an earlier epoch's clock is {_shown(clock - wall)} ahead of the driver's: one of the two is or was "
                "wrong. Processing time goes on, a tenth slower than time passes, until the driver's clock has caught "
                "up. Windows and timers by the clock work, under times that are ahead. If this driver's clock is "
                "the wrong one, set it right"
            )
        return None, None


def _shown(ms: int) -> str:
    seconds = ms // 1000
    for size, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds} seconds"
