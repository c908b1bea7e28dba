"""Rows that were late, dropped and the like, stage by stage, since the run began.

Whoever applies a slice of an epoch, however often, counts the same; so a slice counts once an epoch, when that is
committed. The destination of a move may answer after that, which must not count in the epoch that follows. An intake
that is run again counts anew.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping

from holdfast.wire.messages import Tag

CAME = "came"
"""Rows that have an event time, or should: not among what befell them."""
Rows = Mapping[str, int]
"""By reason."""


class Counts:
    def __init__(self) -> None:
        self.total: dict[str, Counter[str]] = {}
        self._applied: dict[tuple[int, str, int], Rows] = {}
        self._taken: dict[tuple[int, int], Mapping[str, Rows]] = {}
        self._lock = threading.Lock()

    def taken(self, epoch: int, level: int, stages: Mapping[str, Rows]) -> None:
        """At intake: how many rows came with an event time, or should have, and how many of them were dropped."""
        with self._lock:
            self._taken[epoch, level] = stages

    def applied(self, epoch: int, stage: str, slices: Mapping[int, Rows]) -> None:
        with self._lock:
            for slice_, rows in slices.items():
                self._applied[epoch, stage, slice_] = rows

    def committed(self, epoch: int) -> dict[str, Counter[str]]:
        """What was counted in the epoch, stage by stage."""
        found: dict[str, Counter[str]] = {}
        with self._lock:
            for (of, stage, _), rows in self._applied.items():
                if of == epoch:
                    found.setdefault(stage, Counter()).update(rows)
            for (of, _), stages in self._taken.items():
                for stage, rows in stages.items() if of == epoch else ():
                    found.setdefault(stage, Counter()).update(rows)
            for stage, counted in found.items():
                shown = {why: rows for why, rows in counted.items() if why != CAME}
                if shown:
                    self.total.setdefault(stage, Counter()).update(shown)
            self._applied = {key: rows for key, rows in self._applied.items() if key[0] > epoch}
            self._taken = {key: stages for key, stages in self._taken.items() if key[0] > epoch}
        return found


def counted(tags: Iterable[Tag]) -> dict[str, Counter[str]]:
    """What an intake counted, stage by stage: rows that came with an event time or should have, and those dropped."""
    found: dict[str, Counter[str]] = {}
    for tag in tags:
        for stage, dropped in tag.dropped.items():
            found.setdefault(stage, Counter()).update(dropped)
        for stage, came in tag.came.items():
            found.setdefault(stage, Counter()).update({CAME: came})
    return found
