"""Watermarks: how far event time has come, stage by stage.

A stage's watermark is the least, over its sources, of the largest event time they have shown, minus the lateness it was
given; a stage over stages follows theirs. It never goes back. What it was before and after an epoch is written into
that epoch's ``prepare``, so that whoever applies the epoch, whenever, closes the same windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.log.records import Prepare
from holdfast.plan.stage import StagePlan


class Timekeeper:
    def __init__(self, stages: Sequence[StagePlan]) -> None:
        self._stages = stages
        self.times: dict[str, int] = {}
        self.watermarks: dict[str, int] = {}
        self.clock = 0  # ms

    def take(self, prepare: Prepare) -> None:
        """What a stored ``prepare`` says counts."""
        self.times.update(prepare.times)
        self.watermarks.update(prepare.watermark_after)
        self.clock = max(self.clock, prepare.clock)

    def advance(
        self, level: int, seen: Iterable[Mapping[str, int]]
    ) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """Largest event times, and watermarks of that level's stages before and after, once these have been seen."""
        times = dict(self.times)
        for found in seen:
            for name, latest in found.items():
                times[name] = max(latest, times.get(name, latest))
        mine = [stage for stage in self._stages if stage.level == level]
        before = {stage.name: self.watermarks[stage.name] for stage in mine if stage.name in self.watermarks}
        after = dict(before)
        for stage in mine:
            parts = [times.get(name) for name in stage.time.observed]
            parts += [self.watermarks.get(name) for name in stage.time.follows]
            known = [part for part in parts if part is not None]
            if known and len(known) == len(parts):
                reached = min(known) - stage.time.lateness
                after[stage.name] = max(reached, before.get(stage.name, reached))
        return times, before, after

    def holding_back(self, stage: StagePlan) -> str | None:
        """The source or stage whose event time is the least of those that this stage waits for."""
        parts = {name: self.times.get(name) for name in stage.time.observed}
        parts |= {name: self.watermarks.get(name) for name in stage.time.follows}
        if not parts:
            return None
        least = min(parts, key=lambda name: -(1 << 63) if parts[name] is None else parts[name])  # type: ignore[arg-type,return-value]
        return least.rsplit("/", 1)[-1]
