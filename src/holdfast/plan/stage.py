"""What a container must know of a stage to run it: plain data, sent once when the job is hosted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.operators.aggregate import AggregateOperator, AggregateSpec, Column, StageSpec


@dataclass(frozen=True)
class StagePlan:
    """One stage of a job: its place in the graph and the operator it runs."""

    name: str
    level: int
    input: int  # the number of its rows within a segment of its level
    operator: StageSpec

    def build(self) -> AggregateOperator:
        return AggregateOperator(self.operator)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> StagePlan:
        operator = data["operator"]
        return StagePlan(
            name=data["name"],
            level=data["level"],
            input=data["input"],
            operator=StageSpec(
                keys=tuple(Column(**key) for key in operator["keys"]),
                aggregates=tuple(
                    AggregateSpec(**{**spec, "options": tuple((name, value) for name, value in spec["options"])})
                    for spec in operator["aggregates"]
                ),
                updating_input=operator["updating_input"],
                ansi=operator["ansi"],
            ),
        )
