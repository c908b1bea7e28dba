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

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.plan.types import quoted

_PREFIX = "holdfast "
_NUMBERS = itertools.count()  # a metric's name must be the only one of its query


def observe(frame: DataFrame, column: str, which: Sequence[tuple[str, Column | None]], ahead: int | None) -> DataFrame:
    """The same rows; the largest time in ``column`` will be known by each name of ``which``, among the rows of its
    condition. Times further ahead of the clock than ``ahead`` (µs) do not count."""
    named = quoted(column)
    if frame.schema[column].dataType.simpleString() == "timestamp_ntz":
        micros = F.expr(f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ '1970-01-01 00:00:00', {named})")
    else:
        micros = F.unix_micros(F.col(named))
    if ahead is not None:
        micros = F.when(micros <= F.unix_micros(F.current_timestamp()) + ahead, micros)
    largest = [F.max(micros if mine is None else F.when(mine, micros)) for _, mine in which]
    name = _PREFIX + json.dumps([next(_NUMBERS), *[name for name, _ in which]])
    return frame.observe(name, *[value.alias(f"m{at}") for at, value in enumerate(largest)])


def observed(query: StreamingQuery) -> dict[str, int]:
    """What was seen of the batch that the query is at, once a job has read all of it."""
    found: dict[str, int] = {}
    metrics = query._jsq.streamingQuery().lastExecution().observedMetrics().iterator()
    while metrics.hasNext():
        metric = metrics.next()
        if not metric._1().startswith(_PREFIX):
            continue  # a user's own
        _, *names = json.loads(metric._1().removeprefix(_PREFIX))
        for at, name in enumerate(names):
            if not metric._2().isNullAt(at):
                found[name] = max(int(metric._2().getLong(at)), found.get(name, -(1 << 63)))
    return found
