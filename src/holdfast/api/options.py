"""What ``job.start`` takes, checked before anything happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.errors import PlanError
from holdfast.master.autoscaling import Autoscale
from holdfast.plan.compile import MAX_SLICES
from holdfast.recovery.policies import Chained, Recovery
from holdfast.safety.policies import Delta, Safety, terms_of
from holdfast.spark.fleet import Silence

Where = Literal["auto", "driver", "executors"]


@dataclass(frozen=True)
class Options:
    """What ``job.start`` takes; see there."""

    containers: int = 2
    threads: int = 1
    slices: int | Literal["auto"] = 128
    trigger: Mapping[str, Any] = field(default_factory=dict)
    safety: Safety | None = field(default_factory=Delta)
    recovery: Recovery = field(default_factory=Chained)
    autoscale: Autoscale | None = None
    where: Where = "auto"
    copy_bandwidth: float | None = 20e6
    silence: Silence = field(default_factory=Silence)
    preaggregate: bool | Literal["auto"] = "auto"
    push: bool | Literal["auto"] = "auto"
    listen: str = "auto"

    def __post_init__(self) -> None:
        if self.slices != "auto" and not 1 <= self.slices <= MAX_SLICES:
            raise PlanError(f"slices must be between 1 and {MAX_SLICES}, or 'auto', not {self.slices}.")
        if self.containers < 1 or self.threads < 1:
            raise PlanError("containers and threads must be at least 1.")
        if self.where not in ("auto", "driver", "executors"):
            raise PlanError(f"where must be 'auto', 'driver' or 'executors', not {self.where!r}.")
        for kind in ("realTime", "continuous"):
            if kind in self.trigger:
                raise PlanError(
                    f"The trigger '{kind}' cannot carry a Holdfast job: it has no micro-batches to make epochs of.",
                    safe="Nothing was started.",
                    todo="Use processingTime, availableNow or once.",
                )
        terms_of(self.safety)


DEFAULT = Options()
