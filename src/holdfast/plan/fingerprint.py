"""What a store must agree on with a job that opens it, as ``job.json`` has it under ``graph``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fingerprint:
    """``sources`` in the order in which the streaming plan has them; of each stage what a person wants to know of it,
    which no program reads (the stages themselves are beside it); the pairs of sources that Spark reads as one."""

    sources: tuple[str, ...]
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shared: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"sources": list(self.sources), "stages": dict(self.stages)}
        return found | ({"shared": [list(pair) for pair in self.shared]} if self.shared else {})

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Fingerprint:
        shared = tuple((one, other) for one, other in data.get("shared", ()))
        return Fingerprint(tuple(data.get("sources", ())), data.get("stages", {}), shared)
