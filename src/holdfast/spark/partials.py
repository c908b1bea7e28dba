"""Which stages Spark may aggregate ahead of, and the rows it then hands over instead.

A running aggregate goes by its keys alone. A window also needs to know its rows' pane, a session its rows' times: rows
of one key and pane share every decision that a window takes (late, closed, which windows), and rows of one key and one
stretch of event time no longer than the gap are in one session whatever else comes. So those are grouped as well, and
one row stands for all of a group: where it begins (``_from``), the largest time (``_to``), how many there were
(``_n``). Rows that may be late for a session are grouped by their very time, those too far ahead of the clock apart
from all others. What depends on a row by itself is refused: late rows that are wanted back, ``first`` and ``last``,
rows that can be taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from holdfast.invariants import Impossible, some
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.grid import Grid
from holdfast.operators.session import SessionSpec
from holdfast.operators.timed import FROM, TO
from holdfast.operators.top_k import TopKSpec
from holdfast.operators.window import WindowSpec
from holdfast.operators.window_top_k import WindowTopKSpec
from holdfast.plan.compile import StageInput
from holdfast.plan.types import simple_type
from holdfast.spark.cutting import Cut
from holdfast.spark.preaggregate import PartialColumnSpec, can_preaggregate, partial_aggregate

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


def aggregable(item: StageInput, rows: DataFrame) -> bool:
    spec = item.plan.operator
    if isinstance(spec, WindowSpec):
        if spec.unit == "rows" or spec.updating_input or spec.late or not _plain_time(item, spec.time, rows):
            return False
    elif isinstance(spec, SessionSpec):
        if spec.late or not _plain_time(item, spec.time, rows):
            return False
    elif not isinstance(spec, StageSpec):
        return False
    return can_preaggregate(rows.schema, _keys(item), _partials(item))


def aggregated(item: StageInput, rows: DataFrame, late: int | None = None, latest: int | None = None) -> DataFrame:
    """One row per task and group, for an input that is ``aggregable``.

    ``late`` is the stage's watermark before the epoch, ``latest`` the largest event time that can be right (µs).
    """
    spec, keys, partials = item.plan.operator, _keys(item), _partials(item)
    time = None if isinstance(spec, StageSpec) else item.time
    groups = list(keys)
    if time is not None:
        groups.append(_STRETCH)
        rows = rows.withColumn(_STRETCH, _stretch(item, F.col(time), late, latest))
        partials += [PartialColumnSpec("min", time), PartialColumnSpec("max", time)]
    grouped = partial_aggregate(rows, groups, partials)
    grouped = some(grouped, "asked before: aggregable")
    if time is not None:
        first, last = (f"p{at}_0" for at in range(len(partials) - 2, len(partials)))
        begins = _STRETCH if isinstance(spec, WindowSpec) else first
        own = [name for name in grouped.columns if name not in (_STRETCH, first, last)]
        grouped = grouped.select(*own, F.col(begins).alias(FROM), F.col(last).alias(TO))
    return grouped if item.hashed_at_intake else grouped.select(F.xxhash64(*keys).alias("_h"), "*")


def cut_of(item: StageInput) -> Cut | None:
    """What a task may leave out of the rows of a ``top_k``; None if it is no such, or rows may be taken back."""
    spec = item.plan.operator
    if not item.hashed_at_intake:
        return None
    if isinstance(spec, WindowTopKSpec):
        return Cut(spec.k, _ordered(spec.order), (f"v{spec.time}", spec.size, spec.offset))
    if isinstance(spec, TopKSpec) and not spec.updating_input:
        return Cut(spec.k, _ordered(spec.order))
    return None


def _ordered(order: tuple[tuple[int, bool], ...]) -> tuple[tuple[str, bool], ...]:
    return tuple((f"v{number}", descending) for number, descending in order)


def _stretch(item: StageInput, time: Column, late: int | None, latest: int | None) -> Column:
    """The start of a row's pane; of a stretch of time that no session ends and begins again in."""
    spec = item.plan.operator
    if isinstance(spec, WindowSpec):
        length, offset = Grid(spec.size, spec.every, spec.offset).pane, spec.offset
    else:
        if not isinstance(spec, SessionSpec):
            raise Impossible("only windows and sessions go by time")
        length, offset = spec.gap, 0
    micros = F.unix_micros(time)
    start = micros - F.pmod(micros - F.lit(offset), F.lit(length))
    if isinstance(spec, SessionSpec) and late is not None:
        # What may be late goes by its own time, and nothing that is in time may have the same number.
        in_time = F.lit(late - spec.gap)
        start = F.when(micros < in_time, micros).otherwise(F.greatest(start, in_time))
    if latest is not None:
        start = F.when(micros > latest, latest + 1).otherwise(start)
    return F.timestamp_micros(start)


def _plain_time(item: StageInput, time: str | None, rows: DataFrame) -> bool:
    """Whether nothing about the event time is said of single rows, and it is in a type that micros can be taken of."""
    if time is None:
        return True
    return len(item.observed) <= 1 and simple_type(rows.schema[time].dataType) == "timestamp"


def _keys(item: StageInput) -> list[str]:
    return [f"k{at}" for at in range(len(item.plan.operator.keys))]


def _partials(item: StageInput) -> list[PartialColumnSpec]:
    spec = item.plan.operator
    if not isinstance(spec, StageSpec | WindowSpec | SessionSpec):
        raise Impossible("asked before: aggregable")
    return [PartialColumnSpec(one.function, one.input, one.where) for one in spec.aggregates]
