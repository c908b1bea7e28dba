"""What ``run.status()`` tells: plain values, of one moment."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.spark.shell import RunEvent


@dataclass(frozen=True)
class ContainerStatus:
    name: str
    alive: bool
    slices: int
    backups: int
    threads: int
    pid: int
    bytes: int


@dataclass(frozen=True)
class StageStatus:
    name: str
    keys: int
    bytes: int


@dataclass(frozen=True)
class Status:
    """A job at one moment. ``epoch`` is the last committed one."""

    job: str
    epoch: int
    phase: str
    rows: int
    epoch_rows: int
    epoch_seconds: float
    epoch_parts: dict[str, float]
    containers: tuple[ContainerStatus, ...]
    stages: tuple[StageStatus, ...]
    events: tuple[RunEvent, ...]
    preaggregating: bool
