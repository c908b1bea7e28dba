"""The sinks of a job as the driver opens them, at a start or when they come while it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from pyspark.sql import SparkSession

from holdfast.driver.history import History
from holdfast.driver.live_job import SECTION
from holdfast.driver.sink_counters import SinkCounters
from holdfast.errors import PlanError, StoreError
from holdfast.log.records import JobFile
from holdfast.log.store import Store
from holdfast.plan.compile import Plan
from holdfast.plan.graph import Sink as SinkPlan
from holdfast.plan.graph import opaque, outputs
from holdfast.spark import claims
from holdfast.spark.claims import Claim
from holdfast.spark.feedback import FeedbackSink, LoopSink
from holdfast.spark.named_sink import NamedSink
from holdfast.spark.sinks import FileSink, Sink, for_each_batch, open_sink


def open_sinks(spark: SparkSession, store: Store, file: JobFile, sinks: Iterable[SinkPlan]) -> dict[str, Sink]:
    return {sink.name: _open(spark, store, file, sink) for sink in sinks}


def _open(spark: SparkSession, store: Store, file: JobFile, sink: SinkPlan) -> Sink:
    job = file.job_id
    if sink.named is not None:
        return NamedSink(store, sink, job, file.name)
    mode = "update" if sink.mode == "append" else sink.mode
    if sink.closes:
        return LoopSink(sink.name)
    if sink.feeds:
        return FeedbackSink(sink.name, sink.feeds, "all" if mode == "complete" else "changed")
    if sink.function is not None:
        return for_each_batch(sink.name, sink.function, mode, job)
    return open_sink(
        spark,
        sink.name,
        sink.format,
        sink.options,
        mode,
        sink.partition_by,
        sink.schema,
        identity=f"{job}/{SECTION}/{sink.name}",
        job=job,
        stamp=sink.stamp,
        table=sink.table,
    )


def sinks_of(plan: Plan) -> dict[str, Any]:
    """What the master is told of those over stages."""
    after, over = _after(plan), over_stages(plan)
    return {
        "sinks": over,
        "sinks_after": {sink: first for sink, first in after.items() if {sink, first} <= set(over)},
        "sinks_read": {sink.name: _read_by(sink) for sink in plan.sinks if _may_be_silent(sink)},
    }


def source_sinks_of(plan: Plan) -> dict[str, Any]:
    """What the feed is told of those straight over the source."""
    after, over = _after(plan), over_source(plan)
    return {
        "sinks": over,
        "sinks_after": {sink: first for sink, first in after.items() if {sink, first} <= set(over)},
    }


def refuse_waiting(plan: Plan) -> None:
    """A sink straight over the source has its rows with the batch, before any stage has them."""
    for sink in plan.stateless_sinks:
        if sink.after and sink.after not in over_source(plan):
            raise PlanError(
                f"Sink '{sink.name}' stands straight over a source and is written after '{sink.after}', which is not: "
                "its rows are written before any stage has them.",
                safe="Nothing was started.",
                todo=f"Leave the after= of '{sink.name}' out, or turn it round: after='{sink.name}' for the other.",
            )


def over_source(plan: Plan) -> tuple[str, ...]:
    return tuple(sink.name for sink in plan.stateless_sinks)


def over_stages(plan: Plan) -> tuple[str, ...]:
    without = over_source(plan)
    return tuple(sink.name for sink in plan.sinks if sink.name not in without)


def _after(plan: Plan) -> dict[str, str]:
    """Of sinks that wait for another one, which. What is fed back comes first, one after the other: it is few rows, and
    if they are too many no sink has had any of the epoch."""
    found: dict[str, str] = {}
    before = ""
    for sink in sorted(plan.sinks, key=lambda sink: not sink.feeds):
        if after := sink.after or before:
            found[sink.name] = after
        before = sink.name if sink.feeds else before
    return found


def without(plan: Plan, stages: Collection[str]) -> frozenset[str]:
    """The sinks of which all that they read are these stages: they are not called where those are left out."""
    reads = {sink.name: _read_by(sink) for sink in plan.sinks}
    return frozenset(name for name, read in reads.items() if read and set(read) <= set(stages))


def _may_be_silent(sink: SinkPlan) -> bool:
    """Whether nothing is lost if it is not called for an epoch in which the stages that it reads put out nothing."""
    function = sink.function is not None or opaque(sink.node)
    return bool(outputs(sink.node)) and not function and sink.mode != "complete"


def _read_by(sink: SinkPlan) -> tuple[str, ...]:
    return tuple(dict.fromkeys(leaf.stage.name for leaf in outputs(sink.node)))


class Folders:
    """Spark's file sink skips numbers that it has seen, and leaves none out: a folder must be as far as this store says
    it is, and ours. Only of a sink that was dropped with an epoch, the folder says whether it had that."""

    def __init__(self, spark: SparkSession, file: JobFile, store: str, history: History) -> None:
        self._spark, self._file, self._store, self._history = spark, file, store, history

    def take(self, sinks: Iterable[Sink], counters: SinkCounters, given: Collection[str] = (), epoch: int = 0) -> None:
        """``given`` are those that ``epoch``, which is prepared, goes to."""
        for sink in sinks:
            *_, expected = may_be = counters.may_be_at(sink.name)
            if isinstance(sink, NamedSink):
                sink.declare(first=epoch == 1, running=epoch == 0)
            if not isinstance(sink, FileSink):
                counters.is_at(sink.name, expected)  # any other may leave a number out
                continue
            ours = Claim(self._file.job_id, sink.name, self._file.name, self._store)
            claimed = claims.look(self._spark, sink.path, ours)
            if sink.name in given and sink.mend(expected + 1):
                what = f"sink '{sink.name}': what it had of epoch {epoch} is written again"
                self._history.note("mended", what)
            there = sink.newest()
            if there in may_be:
                counters.is_at(sink.name, there)
            elif not (sink.name in given and there == expected + 1):
                raise StoreError(
                    f"Sink '{sink.name}' writes to {sink.path}, where {there + 1} epochs of it are, "
                    f"but this store knows of {expected + 1}.",
                    safe="Nothing was written.",
                    todo="Give the sink a folder of its own, or the folder and the name that it had with this store.",
                )
            if not claimed:
                claims.take(self._spark, sink.path, ours)
