"""What a container must know of a stage to run it: plain data, sent once when the job is hosted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.operators.kinds import KINDS
from holdfast.operators.spec import Operator, Spec
from holdfast.wire.codec import from_plain, to_plain


@dataclass(frozen=True)
class InputPlan:
    """Where a stage finds the rows of one of its inputs: their number within the segments of that level's intake. It is
    the input's for the life of the job.

    Rows of sources are taken in by the first level's intake, for stages of all levels.
    """

    level: int
    number: int


@dataclass(frozen=True)
class TimePlan:
    """A stage's watermark: the least of the event times it observes and of the watermarks it follows, minus lateness.

    ``observed`` names largest event times as the intake finds them, ``follows`` the stages below. Of each of those
    ``holds`` says how far behind its watermark the rows still to come may be in the column that is time here; for those
    in ``opened`` it is the oldest open session too.
    """

    observed: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    lateness: int = 0  # µs
    holds: tuple[int, ...] = ()  # µs, in the order of follows; none: nothing is held back
    opened: tuple[str, ...] = ()

    @property
    def held(self) -> dict[str, int]:
        return dict(zip(self.follows, self.holds or (0,) * len(self.follows), strict=True))


@dataclass(frozen=True)
class StagePlan:
    """One stage of a job: its place in the graph and the operator it runs."""

    name: str
    level: int
    inputs: tuple[InputPlan, ...]
    operator: Spec
    time: TimePlan = TimePlan()

    @property
    def peers(self) -> tuple[str, ...]:
        """Stages whose slice it looks into while it applies."""
        return self.operator.peers

    def build(self) -> Operator:
        return self.operator.build()

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "level": self.level,
            "inputs": to_plain(self.inputs),
            "kind": self.operator.kind,
            "operator": to_plain(self.operator),
            "time": to_plain(self.time),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> StagePlan:
        return StagePlan(
            name=data["name"],
            level=data["level"],
            inputs=tuple(from_plain(InputPlan, one) for one in data["inputs"]),
            operator=from_plain(KINDS[data["kind"]], data["operator"]),
            time=from_plain(TimePlan, data["time"]),
        )
