"""Streams with names: a stage's rows for other jobs (``stream.named``), and another job's rows for this one
(``job.stream``).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from holdfast.errors import PlanError
from holdfast.log.store import Store
from holdfast.plan.choices import span_of
from holdfast.plan.declared import declared_times
from holdfast.plan.graph import Named, Sink, epochal, leaves, outputs
from holdfast.spark.named_source import Wanted, first_of, layout_of
from holdfast.spark.source import HoldfastDataSource

if TYPE_CHECKING:
    from holdfast.api.job import Job
    from holdfast.api.stream import Stream

_NAME = re.compile(r"[\w.-]+")


def named_sink(stream: Stream, name: str, keep: str | None) -> Sink:
    """The sink that makes the stream's rows one with that name."""
    if not _NAME.fullmatch(name):
        raise PlanError(f"'{name}' cannot be a stream's name.", todo="Use letters, digits, _, - and dots.")
    node = stream._node
    if len(outputs(node)) != len(list(leaves(node))):
        raise PlanError(
            f"Stream '{name}' would have a source's rows, which no stage has touched: Spark, and any other job, can "
            "read those from the source itself.",
            safe="Nothing was started.",
            todo="Name what a stage puts out: key_by(…).agg(…).named(…).",
        )
    if any(sink.named is not None and sink.named.stream == name for sink in stream._job._sinks):
        raise PlanError(
            f"Two streams are named '{name}'.",
            safe="Nothing was started.",
            todo="Give each its own name, or name the union of the two.",
        )
    if epochal(node):
        raise PlanError(
            f"Stream '{name}' asks for the number of the epoch, which means nothing to another job.",
            safe="Nothing was started.",
            todo="Leave hf.epoch() out.",
        )
    kept = None if keep is None else math.inf if keep == "all" else span_of("keep", keep)
    named = Named(name, kept, stream._windowed, stream._complete)
    return Sink(f"stream:{name}", node, "stream", "update", stream.schema, named=named)


def read_named(
    job: Job, name: str, store: str, reader: str, event_time: tuple[str | None, str | None], blocks: int | None
) -> Stream:
    """A source of the job over another job's stream."""
    ours, theirs = Store(job.store).uri, Store(store).uri
    if ours == theirs:
        raise PlanError(
            f"Job '{job.name}' would read stream '{name}' out of its own store.",
            safe="Nothing was started.",
            todo="Inside a job a stage's rows are read from the stage: use what agg(…) or another verb returned. A "
            "second job needs a store of its own.",
        )
    options = {"store": theirs, "stream": name, "reader": reader, "holder": f"job '{job.name}' in {ours}"}
    options |= {} if blocks is None else {"blocks": str(blocks)}
    wanted = Wanted.of(options, theirs, name)
    layout = layout_of(wanted)
    job._from_others.append(f"stream '{name}' of {theirs} is read from block {first_of(wanted)} on")
    frame = job.spark.readStream.format(HoldfastDataSource.name()).options(**options).load()
    times = declared_times(frame.schema, *event_time)
    return job._add_source(frame, name, times, updating=layout.updating, windowed=layout.windowed)
