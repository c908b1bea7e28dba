"""Largest event times of rows that never leave the JVM, because a filter drops them: Spark's ``observe``.

A look is part of the streaming plan, so it costs no second pass; it costs the rows' way through one more operator, and
only where an input has both an event time and a filter. Spark adds up what its tasks have seen as it does for any
metric: of each partition what a successful attempt saw. Attempts that are repeated, or run twice at a time, change
nothing, since a maximum does not mind to be taken twice. What counts in the end is what ``prepare`` says.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType

_PREFIX = "holdfast "
_NUMBERS = itertools.count()  # a metric's name must be the only one of its query


@dataclass(frozen=True)
class Look:
    """A look at event times, the only column of ``times``: how the largest is called, and how far ahead of the clock
    (µs) one may be that counts."""

    times: DataFrame
    names: tuple[str, ...]
    ahead: int | None

    @property
    def type(self) -> DataType:
        return self.times.schema.fields[0].dataType


def largest(time: Column, kind: DataType, ahead: int | None, among: Column | None = None) -> Column:
    """The largest event time, µs, of the rows for which ``among`` is true."""
    if kind.simpleString() == "timestamp_ntz":
        micros = F.timestamp_diff("MICROSECOND", F.lit("1970-01-01").cast("timestamp_ntz"), time)
    else:
        micros = F.unix_micros(time)
    if ahead is not None:
        micros = F.when(micros <= F.unix_micros(F.current_timestamp()) + ahead, micros)
    return F.max(micros if among is None else F.when(among, micros))


def observe(frame: DataFrame, which: Sequence[tuple[Sequence[str], Column]]) -> DataFrame:
    """The same rows; each of the aggregates over them will be known by its names."""
    name = _PREFIX + json.dumps([next(_NUMBERS), *[list(names) for names, _ in which]])
    return frame.observe(name, *[value.alias(f"m{at}") for at, (_, value) in enumerate(which)])


def observed(query: StreamingQuery) -> dict[str, int]:
    """What was seen of the batch that the query is at, once a job has read all of it."""
    return seen_by(query._jsq.streamingQuery().lastExecution())


def seen_by(execution: Any) -> dict[str, int]:
    """What an execution of Spark's has seen."""
    found: dict[str, int] = {}
    metrics = execution.observedMetrics().iterator()
    while metrics.hasNext():
        metric = metrics.next()
        if not metric._1().startswith(_PREFIX):
            continue  # a user's own
        _, *named = json.loads(metric._1().removeprefix(_PREFIX))
        for at, names in enumerate(named):
            if not metric._2().isNullAt(at):
                most = int(metric._2().getLong(at))
                found |= {name: max(most, found.get(name, most)) for name in names}
    return found
