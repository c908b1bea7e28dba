"""How far a stage's watermark holds for a column of its rows, as its kind says it.

A stage's watermark speaks of its own event time. Its reader may take another column: the start of a window is long past
when the window closes. So every column that can be time has a bound: the least, over some stages, of their watermark
minus a ``hold``. No row still to come is earlier than that in this column. What has no bound is no time.

Sessions have no length that a hold could be. What is to come of them begins no earlier than the oldest one open now, or
a gap before the watermark; the first of these the containers report with every epoch (``open``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

START, END = "window_start", "window_end"


@dataclass(frozen=True)
class Bound:
    """No earlier than a stage's watermark minus ``hold`` (µs) nor, if ``open``, than its oldest open session."""

    stage: str
    hold: int = 0
    open: bool = False


Bounds = tuple[Bound, ...]
"""No earlier than the least of these."""
Columns = Mapping[str, Bounds]
"""By the names of those columns that can be time."""


@dataclass(frozen=True)
class Reading:
    """An input as its stage gets it: the bounds of its columns, those that are its event time, those that are its key
    unchanged (in the key's order; None where it is computed)."""

    columns: Columns
    times: frozenset[str]
    keys: tuple[str | None, ...]

    @property
    def bounded_keys(self) -> Columns:
        """The key's columns that can be time: what comes of keys may be as old as it likes in all others."""
        return {key: self.columns[key] for key in self.keys if key is not None and key in self.columns}


def together(*bounds: Bounds) -> Bounds:
    """The least of all, each stage once."""
    found: dict[str, Bound] = {}
    for one in (one for some in bounds for one in some):
        known = found.get(one.stage, one)
        found[one.stage] = Bound(one.stage, max(known.hold, one.hold), known.open or one.open)
    return tuple(found.values())
