"""Where windows lie: a row's pane, a pane's windows, and the windows that have ended by some time.

Windows of one size begin every so often. A pane is the longest stretch that no window's beginning or end divides, so
that what folds into a pane once can go to windows as a whole (Li et al., "No pane, no gain", SIGMOD Record 2005). The
unit is microseconds, or rows of a key; nothing here needs to know which.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd

import numpy as np

from holdfast.state.columns import Ints


@dataclass(frozen=True)
class Grid:
    """Windows [w, w + size) with w - offset a multiple of ``every``."""

    size: int
    every: int
    offset: int = 0

    @cached_property
    def pane(self) -> int:
        return gcd(self.size, self.every)

    @property
    def reach(self) -> int:
        """From what a window is known by, which is where it starts, to its end."""
        return self.size

    def edges(self, windows: Ints) -> tuple[Ints, Ints]:
        """Where they start and end."""
        return windows, windows + self.size

    def panes(self, times: Ints) -> Ints:
        """The start of the pane of each time."""
        starts: Ints = times - self.offset
        starts //= self.pane
        starts *= self.pane
        starts += self.offset
        return starts

    def last_end(self, time: int) -> int:
        """The latest end of a window that is not after ``time``."""
        first = self.offset + self.size
        return (time - first) // self.every * self.every + first

    def final_ends(self, times: Ints) -> Ints:
        """The end of the last window that each time is in."""
        return (times - self.offset) // self.every * self.every + (self.offset + self.size)

    def spread(self, panes: Ints) -> tuple[Ints, Ints]:
        """Every window of every pane: the pane's number and the window's start, in the order of the panes."""
        last = self.final_ends(panes) - self.size
        # A pane is in every window that starts in (pane - size, pane].
        count = (last - (panes - self.size) + self.every - 1) // self.every
        number = np.repeat(np.arange(len(panes)), count)
        nth = np.arange(len(number)) - np.repeat(np.cumsum(count) - count, count)
        return number, last[number] - (count[number] - 1 - nth) * self.every
