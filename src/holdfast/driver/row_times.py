"""What an epoch's rows say of their event time: when nearly none can be used, a person should hear of it.

A column that is always null, times in the wrong unit or of the wrong zone, a bound that is too tight: the job runs, and
puts nothing out. Counts alone (``run.status().stages``) are for those who look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from holdfast.driver.counts import CAME

ENOUGH = 100
"""Rows after which most of them is worth a word; or so many epochs:"""
EPOCHS = 20
_TROUBLE: Mapping[str, str] = {
    "late": "are late: its watermark is ahead of them. Give the stage more lateness, see which source is ahead of the "
    "others, and whether the times are of another unit or zone",
    "future": "are further ahead of the clock than 'ahead' allows. See to the clock of their source and to the unit "
    "and zone of the times; ahead=None takes them all",
    "null time": "have none: they are dropped. See how the column is made",
}


class RowTimes:
    """``columns`` names the event time of every stage that has one."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = columns
        self._sums: dict[str, Counter[str]] = {}
        self._epochs: Counter[str] = Counter()
        self._told: set[tuple[str, str]] = set()

    def epoch(self, stages: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
        """What to say after an epoch in which so many rows came to each stage, and so many were late and the like."""
        for stage, counts in stages.items():
            came = counts.get(CAME, 0)
            if not came or stage not in self._columns:
                continue
            sums = self._sums.setdefault(stage, Counter())
            sums.update(counts)
            self._epochs[stage] += 1
            if counts.get("null time", 0) >= came:
                yield from self._tell(stage, "null time", f"all {came:,}")
            if sums[CAME] >= ENOUGH or self._epochs[stage] >= EPOCHS:
                for why in _TROUBLE:
                    if 2 * sums[why] > sums[CAME]:
                        yield from self._tell(stage, why, f"{sums[why]:,} of the last {sums[CAME]:,}")
                sums.clear()
                self._epochs[stage] = 0

    def _tell(self, stage: str, why: str, many: str) -> Iterator[str]:
        if (stage, why) not in self._told:
            self._told.add((stage, why))
            yield f"of the event times of '{stage}', in column '{self._columns[stage]}', {many} {_TROUBLE[why]}"
