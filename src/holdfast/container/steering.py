"""How much of an epoch goes into checks, and into whose.

For ``CI`` of every ``CP`` a container's threads write units again whose footprints are old. That is done as an epoch is
applied, which gets the share of the time since the one before; not of more than some periods, so that nothing bursts
after a silence. The slices share it by how many units of theirs were due when they were looked at last. What a slice
cannot finish in its time, because a unit is large, is a debt that its next shares pay first.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from holdfast.container.slices import HostedStage
from holdfast.operators.marked import Marked
from holdfast.operators.spec import Operator
from holdfast.operators.unit_table import Pace
from holdfast.safety.policies import Checks
from holdfast.wire.messages import StageFigures

PERIODS = 20
"""Of so many an epoch gets its share at most."""
FOR_ALL = 0.2
"""So much of the time is for all slices alike."""


class Steering:
    def __init__(self, checks: Checks, slices: int) -> None:
        self._checks, self._slices = checks, slices
        self._paces: dict[tuple[str, int], Pace] = {}
        self._begun: dict[int, float] = {}
        self._last: float | None = None
        self._taken: Counter[str] = Counter()
        self._seen: dict[str, deque[tuple[int, int, int]]] = {}
        """Of each stage, the epochs of late: number, the clock after it, and the rows that had been taken by then."""

    def begin(self, epoch: int, clock: int, stages: Mapping[str, HostedStage], threads: int) -> None:
        """An epoch begins: every slice gets its part of the time that there is for checks."""
        if epoch in self._begun:
            return  # at another level, or again
        now = time.monotonic()
        passed = 0.0 if self._last is None else min(now - self._last, PERIODS * self._checks.every)
        self._begun, self._last = {epoch: now}, now
        seconds = threads * passed * self._checks.spend / self._checks.every
        held = {(name, number) for name, stage in stages.items() for number in list(stage.slices)}
        self._paces = {key: self._paces.get(key) or Pace(self._checks.extent, 0.0, 0.0) for key in held}
        due = sum(pace.left for pace in self._paces.values())
        for name in stages:
            mine = {key: pace for key, pace in self._paces.items() if key[0] == name}
            # The others of the stage are on other containers: theirs are about as many.
            units = sum(pace.living for pace in mine.values()) * self._slices / max(len(mine), 1)
            aged = self._aged(name, epoch, clock, self._checks.behind * len(mine) / self._slices)
            for pace in mine.values():
                # A part is for all alike: a slice that is quiet may have units that are due, too.
                share = seconds * (FOR_ALL / len(self._paces) + (1 - FOR_ALL) * pace.left / max(due, 1))
                pace.seconds = min(pace.seconds, 0.0) + share
                pace.behind, pace.aged = self._checks.behind / max(units, 1.0), aged

    def operator(self, stage: HostedStage, number: int, shadow: bool) -> Operator:
        """The operator for a slice in this epoch. One in dual mode notes what its owner writes, and checks nothing."""
        operator = stage.operator
        if not isinstance(operator, Marked):
            return operator
        if shadow:
            return operator.noting("elsewhere")
        return operator.noting("writes", self._paces.get((stage.plan.name, number)))

    def told(self, stage: str, figures: StageFigures) -> StageFigures:
        """With how many units of a stage live here, and how much log and how much input a recovery would read."""
        mine = [pace for (name, _), pace in self._paces.items() if name == stage]
        living, extent, behind, left = (
            sum(getattr(one, what) for one in mine) for what in ("living", "q", "u", "left")
        )
        self._taken[stage] += figures.took
        return replace(figures, units=living, extent=extent, behind=behind, left=left)

    def due(self, stage: str, slices: Iterable[int]) -> frozenset[int]:
        """The slices that have units to be written again though no row may have come to them: without that their log
        could never be cut."""
        paces = ((number, self._paces.get((stage, number))) for number in slices)
        return frozenset(number for number, pace in paces if pace is not None and pace.oldest <= pace.aged)

    def _aged(self, stage: str, epoch: int, clock: int, rows: float) -> int:
        """The last epoch that is too long ago, of those that were seen here: by the clock, or because the stage has
        taken so many rows since."""
        seen, taken = self._seen.setdefault(stage, deque()), self._taken[stage]
        aged = 0
        seen.append((epoch - 1, clock, taken))
        while seen and (seen[0][1] <= clock - 1000 * self._checks.age or seen[0][2] < taken - rows):
            aged, _, _ = seen.popleft()
        if aged:
            seen.appendleft((aged, 0, 0))  # what is older stays too old
        return aged
