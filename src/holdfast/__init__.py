"""Holdfast gives PySpark streams state that scales, moves and heals while the query runs.

Names are loaded when they are first used: Spark's Python workers import this package for the intake alone, and should
not pay for Numba and the API.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast import ring
    from holdfast.api import states
    from holdfast.api.aggregates import (
        Aggregate,
        approx_distinct,
        count,
        count_distinct,
        first,
        last,
        max,
        mean,
        min,
        stddev,
        sum,
        var,
    )
    from holdfast.api.columns import expr
    from holdfast.api.hub import Hub
    from holdfast.api.hub_job import HubJob
    from holdfast.api.hub_run import HubRun
    from holdfast.api.job import Job
    from holdfast.api.keyed import KeyedStream, StageStream
    from holdfast.api.loops import LoopStream
    from holdfast.api.marks import once
    from holdfast.api.rows import Rows
    from holdfast.api.run import Change, Run
    from holdfast.api.state import State
    from holdfast.api.status import (
        ContainerStatus,
        JobStatus,
        LoopStatus,
        SectionStatus,
        SnapshotStatus,
        SourceStatus,
        StageStatus,
        Status,
        StreamStatus,
    )
    from holdfast.api.stream import Stream
    from holdfast.api.vertices import Vertices
    from holdfast.api.windows import Window, cumulative, session, sliding, tumbling
    from holdfast.driver.history import Ongoing, RunEvent
    from holdfast.driver.live_changes import Update
    from holdfast.driver.security import Plain
    from holdfast.driver.snapshots import Snapshot
    from holdfast.errors import (
        BugError,
        ContainerError,
        CorruptionError,
        EpochGone,
        FencedError,
        FormatError,
        FullDiskError,
        FunctionError,
        HoldfastError,
        JavaError,
        PlanError,
        SinkError,
        SparkError,
        StoreError,
        TokenError,
        VertexError,
    )
    from holdfast.launch.fleet import Silence
    from holdfast.master.autoscale import Autoscale, PerExecutor
    from holdfast.plan.epochs import Epoch, epoch
    from holdfast.recovery.policies import Auto, Chained, FromStore, Line, Star, Tree
    from holdfast.ring.vertex_messages import VertexStatus
    from holdfast.safety.policies import Delta, Eventual, Shards, Sync

__version__ = "0.1.0"

_PLACES = {
    "Aggregate": "holdfast.api.aggregates",
    "Auto": "holdfast.recovery.policies",
    "Autoscale": "holdfast.master.autoscale",
    "BugError": "holdfast.errors",
    "Chained": "holdfast.recovery.policies",
    "Change": "holdfast.api.run",
    "ContainerError": "holdfast.errors",
    "ContainerStatus": "holdfast.api.status",
    "CorruptionError": "holdfast.errors",
    "Delta": "holdfast.safety.policies",
    "Epoch": "holdfast.plan.epochs",
    "EpochGone": "holdfast.errors",
    "Eventual": "holdfast.safety.policies",
    "FencedError": "holdfast.errors",
    "FormatError": "holdfast.errors",
    "FromStore": "holdfast.recovery.policies",
    "FullDiskError": "holdfast.errors",
    "FunctionError": "holdfast.errors",
    "HoldfastError": "holdfast.errors",
    "Hub": "holdfast.api.hub",
    "HubJob": "holdfast.api.hub_job",
    "HubRun": "holdfast.api.hub_run",
    "JavaError": "holdfast.errors",
    "Job": "holdfast.api.job",
    "JobStatus": "holdfast.api.status",
    "KeyedStream": "holdfast.api.keyed",
    "Line": "holdfast.recovery.policies",
    "LoopStatus": "holdfast.api.status",
    "LoopStream": "holdfast.api.loops",
    "Ongoing": "holdfast.driver.history",
    "PerExecutor": "holdfast.master.autoscale",
    "Plain": "holdfast.driver.security",
    "PlanError": "holdfast.errors",
    "Rows": "holdfast.api.rows",
    "Run": "holdfast.api.run",
    "RunEvent": "holdfast.driver.history",
    "SectionStatus": "holdfast.api.status",
    "Shards": "holdfast.safety.policies",
    "Silence": "holdfast.launch.fleet",
    "SinkError": "holdfast.errors",
    "Snapshot": "holdfast.driver.snapshots",
    "SnapshotStatus": "holdfast.api.status",
    "SourceStatus": "holdfast.api.status",
    "SparkError": "holdfast.errors",
    "StageStatus": "holdfast.api.status",
    "StageStream": "holdfast.api.keyed",
    "Star": "holdfast.recovery.policies",
    "State": "holdfast.api.state",
    "Status": "holdfast.api.status",
    "StoreError": "holdfast.errors",
    "Stream": "holdfast.api.stream",
    "StreamStatus": "holdfast.api.status",
    "Sync": "holdfast.safety.policies",
    "TokenError": "holdfast.errors",
    "Tree": "holdfast.recovery.policies",
    "Update": "holdfast.driver.live_changes",
    "VertexError": "holdfast.errors",
    "VertexStatus": "holdfast.ring.vertex_messages",
    "Vertices": "holdfast.api.vertices",
    "Window": "holdfast.api.windows",
    "approx_distinct": "holdfast.api.aggregates",
    "count": "holdfast.api.aggregates",
    "count_distinct": "holdfast.api.aggregates",
    "cumulative": "holdfast.api.windows",
    "epoch": "holdfast.plan.epochs",
    "expr": "holdfast.api.columns",
    "first": "holdfast.api.aggregates",
    "last": "holdfast.api.aggregates",
    "max": "holdfast.api.aggregates",
    "mean": "holdfast.api.aggregates",
    "min": "holdfast.api.aggregates",
    "once": "holdfast.api.marks",
    "ring": "holdfast.ring",
    "session": "holdfast.api.windows",
    "sliding": "holdfast.api.windows",
    "states": "holdfast.api.states",
    "stddev": "holdfast.api.aggregates",
    "sum": "holdfast.api.aggregates",
    "tumbling": "holdfast.api.windows",
    "var": "holdfast.api.aggregates",
}

__all__ = [
    "Aggregate",
    "Auto",
    "Autoscale",
    "BugError",
    "Chained",
    "Change",
    "ContainerError",
    "ContainerStatus",
    "CorruptionError",
    "Delta",
    "Epoch",
    "EpochGone",
    "Eventual",
    "FencedError",
    "FormatError",
    "FromStore",
    "FullDiskError",
    "FunctionError",
    "HoldfastError",
    "Hub",
    "HubJob",
    "HubRun",
    "JavaError",
    "Job",
    "JobStatus",
    "KeyedStream",
    "Line",
    "LoopStatus",
    "LoopStream",
    "Ongoing",
    "PerExecutor",
    "Plain",
    "PlanError",
    "Rows",
    "Run",
    "RunEvent",
    "SectionStatus",
    "Shards",
    "Silence",
    "SinkError",
    "Snapshot",
    "SnapshotStatus",
    "SourceStatus",
    "SparkError",
    "StageStatus",
    "StageStream",
    "Star",
    "State",
    "Status",
    "StoreError",
    "Stream",
    "StreamStatus",
    "Sync",
    "TokenError",
    "Tree",
    "Update",
    "VertexError",
    "VertexStatus",
    "Vertices",
    "Window",
    "approx_distinct",
    "count",
    "count_distinct",
    "cumulative",
    "epoch",
    "expr",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "once",
    "ring",
    "session",
    "sliding",
    "states",
    "stddev",
    "sum",
    "tumbling",
    "var",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'holdfast' has no attribute '{name}'")
    module = import_module(_PLACES[name])
    return module if _PLACES[name].endswith(f".{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
