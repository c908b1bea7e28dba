"""What containers said of the epoch in flight when they applied it: how much there is to put out, and what is open."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import replace

from holdfast.invariants import invariant
from holdfast.wire.messages import Mode, StageFigures

SMALL_BYTES = 1 << 20
"""No larger an output goes through the driver: a job whose tasks ask the containers takes longer to start."""

TASK_BYTES = 4 << 20
"""About as much as one task fetches."""

_OF_UNITS = ("units", "extent", "behind", "left")


class Sizes:
    def __init__(self, slices: int) -> None:
        self._slices = slices
        self._lock = threading.Lock()
        self._told: dict[str, dict[str, tuple[int, StageFigures]]] = {}  # stage → container → epoch, figures
        self._work: dict[str, tuple[int, float]] = {}
        self.work: dict[str, tuple[int, float]] = {}
        """Of the last committed epoch: rows that each stage took, and the seconds of containers' threads for them."""
        self._units: dict[str, dict[str, StageFigures]] = {}  # stage → container, of those that have units in the log
        self._oldest: dict[str, dict[int, tuple[int, int | None]]] = {}  # stage → slice → epoch, oldest open session

    def applied(self, container: str, epoch: int, stages: Mapping[str, StageFigures]) -> None:
        with self._lock:
            for stage, figures in stages.items():
                told = self._told.setdefault(stage, {})
                of, before = told.get(container, (0, figures))
                changed = figures.changed + (before.changed if of == epoch else 0)
                told[container] = epoch, replace(figures, changed=changed)
                self._units.setdefault(stage, {})[container] = figures
                took, seconds = self._work.get(stage, (0, 0.0))
                self._work[stage] = took + figures.took, seconds + figures.seconds
                known = self._oldest.setdefault(stage, {})
                for number, oldest in figures.oldest.items():
                    # The destination of a move may answer when the next epoch has begun.
                    now = (epoch, oldest)
                    known[number] = max(known.get(number, now), now, key=lambda one: one[0])

    def units(self, stage: str, containers: Collection[str]) -> tuple[int, int, int, int]:
        """Units of a stage that live on these containers, how many rows of their log and of the input a recovery would
        read, and how many of them are due."""
        with self._lock:
            mine = [figures for name, figures in self._units.get(stage, {}).items() if name in containers]
        units, extent, behind, left = (sum(getattr(one, what) for one in mine) for what in _OF_UNITS)
        return units, extent, behind, left

    def of(self, stage: str, mode: Mode) -> int:
        """About how many rows an output of the epoch in flight has; it only decides which way they travel."""
        with self._lock:
            mine = [figures for _, figures in self._told.get(stage, {}).values()]
        return sum(figures.rows if mode == "all" else figures.changed for figures in mine)

    def small(self, stage: str, mode: Mode, width: int) -> bool:
        """Whether an output, of so many bytes a row, goes through the driver."""
        return self.of(stage, mode) * width <= SMALL_BYTES

    def tasks(self, stage: str, mode: Mode, width: int, most: int) -> int:
        """How many tasks fetch an output: each of them costs more to start than a little more to read."""
        return max(1, min(most, -(-self.of(stage, mode) * width // TASK_BYTES)))

    def opened(self, stage: str, epoch: int) -> int | None:
        """Since when the oldest session of a stage below is open. All slices have applied their level of the epoch by
        now, and each has said so with its answer, whoever owned it: what it says depends on its rows alone."""
        with self._lock:
            found = [began for of, began in self._oldest[stage].values() if of == epoch]
        invariant(len(found) == self._slices, f"{len(found)} of {self._slices} slices of '{stage}' told their oldest")
        return min((began for began in found if began is not None), default=None)

    def over(self) -> int | None:
        """The epoch is committed: when something happens next though no row comes, µs. The next one tells anew."""
        with self._lock:
            told = [figures for stage in self._told.values() for _, figures in stage.values()]
            self._told.clear()
            self.work, self._work = self._work, {}
        return min((figures.due for figures in told if figures.due is not None), default=None)
