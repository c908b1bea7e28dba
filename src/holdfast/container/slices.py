"""What a container holds of a job: stages, their operators, and the active slices of each."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.errors import EpochGone
from holdfast.operators.aggregate import AggregateOperator
from holdfast.plan.stage import StagePlan
from holdfast.state.slice import SliceState


@dataclass
class HeldSlice:
    """A slice's state with the lock of whoever works on it."""

    state: SliceState
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class HostedStage:
    plan: StagePlan
    operator: AggregateOperator
    slices: dict[int, HeldSlice] = field(default_factory=dict)

    def held(self, number: int) -> HeldSlice:
        found = self.slices.get(number)
        if found is None:
            raise EpochGone(f"Slice {number} of '{self.plan.name}' is not here.", todo="Ask the master again.")
        return found


Stages = Mapping[str, HostedStage]
