"""The recovery policies that a job can be started with.

Whatever the way back, the log above the recovered version is replayed afterwards, for the lost slices only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chained:
    """Every peer that holds a backup of a lost slice activates its share, all of them side by side.

    Slices that no living peer has a copy of come from the store.
    """


@dataclass(frozen=True)
class Store:
    """Lost slices come from the newest checkpoint in the store, copies or not."""


Recovery = Chained | Store
