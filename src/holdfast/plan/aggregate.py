"""One aggregate as it was asked for: a function, over a column or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.plan.frames import Given, Where


@dataclass(frozen=True, eq=False)
class Aggregate:
    """A function over the rows of a key; what ``agg`` takes."""

    function: str
    column: Given | None = None
    options: tuple[tuple[str, Any], ...] = ()
    where: Where | None = None
    """What rows count, where that is told apart from the values."""
