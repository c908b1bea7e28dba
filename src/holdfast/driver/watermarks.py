"""Watermarks: how far event time has come, stage by stage.

A stage's watermark is the least, over its sources, of the largest event time they have shown, minus the lateness it was
given; a stage over stages follows theirs, held back by as much as the column that it takes as time asks for
(``plan.bounds``). It never goes back. What it was before and after an epoch is written into that epoch's ``prepare``,
so that whoever applies the epoch, whenever, closes the same windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from holdfast.log.records import Prepare
from holdfast.operators.stage import StagePlan

DAY = 86_400_000  # ms
STANDING = 20
"""Epochs with rows after which a watermark that has not moved is worth a word."""


class Timekeeper:
    def __init__(self, stages: Sequence[StagePlan]) -> None:
        self._stages = stages
        self.times: dict[str, int] = {}
        self.watermarks: dict[str, int] = {}
        self.clock = 0  # ms
        self._stood: dict[str, tuple[int | None, int]] = {}  # stage → watermark, and for how many epochs it has stood
        self._told: set[str] = set()

    def follow(self, stages: Sequence[StagePlan], splits: Mapping[str, str] = MappingProxyType({})) -> None:
        """The job has these stages now. What is known of those that are gone is forgotten: no name comes back. Those in
        ``splits`` go on from where others are."""
        before, self._stages = {stage.name: stage for stage in self._stages}, stages
        for stage in stages:
            source = splits.get(stage.name, stage.name)
            if source in self.watermarks:
                self.watermarks.setdefault(stage.name, self.watermarks[source])
            if source in before:  # what it, or what it reads, is called may be another by now
                for old, new in zip(before[source].time.observed, stage.time.observed, strict=False):
                    if old in self.times:
                        self.times.setdefault(new, self.times[old])
        names, times = {stage.name for stage in stages}, {name for stage in stages for name in stage.time.observed}
        self.watermarks = {name: mark for name, mark in self.watermarks.items() if name in names}
        self.times = {name: latest for name, latest in self.times.items() if name in times}

    def take(self, prepare: Prepare) -> None:
        """What a stored ``prepare`` says counts."""
        self.times.update(prepare.times)
        self.watermarks.update(prepare.watermark_after)
        self.clock = max(self.clock, prepare.clock)

    def advance(
        self, level: int, seen: Iterable[Mapping[str, int]], oldest: Callable[[str], int | None] = lambda _: None
    ) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """Largest event times, and watermarks of that level's stages before and after, once these have been seen.

        ``oldest`` tells when the oldest session began that a stage below has open after this epoch; None: it has none.
        """
        times = dict(self.times)
        for found in seen:
            for name, latest in found.items():
                times[name] = max(latest, times.get(name, latest))
        mine = [stage for stage in self._stages if stage.level == level]
        before = {stage.name: self.watermarks[stage.name] for stage in mine if stage.name in self.watermarks}
        after = dict(before)
        for stage in mine:
            parts = [times.get(name) for name in stage.time.observed]
            for name, mark in self._followed(stage).items():
                began = oldest(name) if name in stage.time.opened else None
                parts.append(mark if mark is None or began is None else min(mark, began))
            known = [part for part in parts if part is not None]
            if known and len(known) == len(parts):
                reached = min(known) - stage.time.lateness
                after[stage.name] = max(reached, before.get(stage.name, reached))
        return times, before, after

    def warnings(self) -> Iterator[str]:
        """What somebody should know of after an epoch that had rows: each is said once."""
        for stage in self._stages:
            now = self.watermarks.get(stage.name)
            before, epochs = self._stood.get(stage.name, (now, 0))
            self._stood[stage.name] = (now, epochs + 1 if now == before else 0)
            ahead = now is not None and now // 1000 - self.clock > DAY
            if ahead and f"{stage.name} ahead" not in self._told:
                self._told.add(f"{stage.name} ahead")
                yield (
                    f"the watermark of '{stage.name}' is more than a day ahead of the clock: rows that are right now "
                    "count as late. See to the clock of its source, or give the stage a bound (ahead='1 hour')"
                )
            waits = bool(stage.time.observed or stage.time.follows) and epochs + 1 >= STANDING
            if waits and f"{stage.name} stands" not in self._told:
                self._told.add(f"{stage.name} stands")
                yield (
                    f"the watermark of '{stage.name}' has stood still for {STANDING} epochs with rows: "
                    f"it waits for '{self.holding_back(stage)}', and nothing closes until that goes on"
                )

    def _followed(self, stage: StagePlan) -> dict[str, int | None]:
        """How far the stages below are in the column that this one takes as time; open sessions left aside."""
        marks = {name: self.watermarks.get(name) for name in stage.time.follows}
        return {name: None if mark is None else mark - stage.time.held[name] for name, mark in marks.items()}

    def holding_back(self, stage: StagePlan) -> str | None:
        """The source or stage whose event time is the least of those that this stage waits for."""
        parts = {name: self.times.get(name) for name in stage.time.observed}
        parts |= self._followed(stage)
        if not parts:
            return None
        least = min(parts, key=lambda name: -(1 << 63) if parts[name] is None else parts[name])  # type: ignore[arg-type,return-value]
        return least.rsplit("/", 1)[-1]
