"""When Spark aggregates ahead of a stage, and the rows it then hands over instead: as the stage's kind says it may
(``operators.ahead``). Rows too far ahead of the clock are grouped apart from all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from holdfast.invariants import some
from holdfast.operators.ahead import FROM, TO, PartialColumn, Stretch
from holdfast.plan.compile import StageInput
from holdfast.spark.preaggregate import partial_aggregate

_STRETCH = "_stretch"


@dataclass
class Preaggregation:
    """Whether Spark should aggregate before the rows cross to Python: it pays when keys repeat within a task.

    Off, the containers tell how many rows an epoch's rows came to, which bounds what the tasks would have put out, or
    is a guess at it where a stage puts rows out later. On, the tags tell directly. Between the two thresholds nothing
    changes; a guess that was wrong is made again only after a pause, longer every time.
    """

    wish: bool | Literal["auto"] = "auto"
    on: bool = False
    least_rows: int = 10_000
    begin_below: float = 0.3
    end_above: float = 0.6
    pause: int = 1
    paused: int = 0  # epochs that are still to pass

    def __post_init__(self) -> None:
        self.on = self.wish is True

    def saw(self, input_rows: int, logged_rows: int, tasks: int, changed: int) -> None:
        if self.wish != "auto" or input_rows < self.least_rows:
            return
        if self.on and logged_rows > self.end_above * input_rows:
            self.on, self.paused, self.pause = False, self.pause, 2 * self.pause
        elif not self.on and self.paused:
            self.paused -= 1
        elif not self.on:
            self.on = changed * max(1, tasks) < self.begin_below * input_rows


def aggregable(item: StageInput) -> bool:
    """Whether rows of this input may be aggregated ahead, and nothing is said of the event times of single ones."""
    return item.partials is not None and (item.partials.stretch is None or len(item.observed) <= 1)


def aggregated(item: StageInput, rows: DataFrame, late: int | None = None, latest: int | None = None) -> DataFrame:
    """One row per task and group, for an input that is ``aggregable``.

    ``late`` is the stage's watermark before the epoch, ``latest`` the largest event time that can be right (µs).
    """
    partials = some(item.partials, "asked before: aggregable")
    keys = [f"k{at}" for at in range(len(item.plan.operator.keys))]
    columns, stretch = partials.columns, partials.stretch
    if stretch is None:
        grouped = partial_aggregate(rows, keys, columns)
    else:
        rows = rows.withColumn(_STRETCH, stretched(stretch, F.col(stretch.time), late, latest))
        edges = [PartialColumn(edge, stretch.time, ("timestamp",)) for edge in ("min", "max")]
        grouped = partial_aggregate(rows, [*keys, _STRETCH], [*columns, *edges])
        first, last = (f"p{at}_0" for at in range(len(columns), len(columns) + 2))
        begins = first if stretch.from_first else _STRETCH
        own = [name for name in grouped.columns if name not in (_STRETCH, first, last)]
        grouped = grouped.select(*own, F.col(begins).alias(FROM), F.col(last).alias(TO))
    return grouped if item.hashed_at_intake else grouped.select(F.xxhash64(*keys).alias("_h"), "*")


def stretched(stretch: Stretch, time: Column, late: int | None, latest: int | None) -> Column:
    """What a row is grouped by beside its key: the start of its stretch of time."""
    micros = F.unix_micros(time)
    start = micros - F.pmod(micros - F.lit(stretch.offset), F.lit(stretch.length))
    if stretch.alone is not None and late is not None:
        # What may be late goes by its own time, and nothing that is in time may have the same number.
        in_time = F.lit(late - stretch.alone)
        start = F.when(micros < in_time, micros).otherwise(F.greatest(start, in_time))
    if latest is not None:
        start = F.when(micros > latest, latest + 1).otherwise(start)
    return F.timestamp_micros(start)
