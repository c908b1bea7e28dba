"""Rows that have a time: the value columns an operator wants of them, and their times. Which come too late: ``late``.

A row of a partial input stands for several of one key that are certain to share a pane or a session. It has the start
of that pane, or the time of the first of them, in ``_from``, the time of the last in ``_to``, and how many they are in
``_n``; its sign is that number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.errors import PlanError
from holdfast.operators import late as lateness
from holdfast.operators.aggregates.accumulator import Inputs
from holdfast.operators.ahead import FROM, MANY, TO, Stretch
from holdfast.operators.keyed import Fields, KeyedOperator, schema_of, typed
from holdfast.operators.spec import Column
from holdfast.state import arrow
from holdfast.state.columns import NO_INTS, Array, Ints
from holdfast.state.keys import KeyCodec
from holdfast.state.payload import Payload, of_batch
from holdfast.state.rows import Rows
from holdfast.state.slice import Work


class TimedInput:
    """What is decoded of an input with event times, and what becomes of rows without one or with one long past."""

    def __init__(self, inputs: Inputs, values: Sequence[Column], time: str | None, late: Sequence[int]) -> None:
        fields = typed(values, "column")
        self._time = -1
        if time is not None:
            name, kind = fields[int(time[1:])]
            if kind.name not in ("timestamp", "timestamp_ntz"):
                raise PlanError(
                    f"the time column '{name}' has type {kind.name}.",
                    safe="nothing was started or written.",
                    todo="cast it to timestamp, or window on another column.",
                )
            self._time = inputs.number((time, kind, "int"))
            self._from, self._to = (inputs.number((edge, kind, "int"), partial=True) for edge in (FROM, TO))
        self._late = [inputs.number((f"v{number}", fields[number][1], fields[number][1].kind)) for number in late]
        self.late_fields: Fields = tuple(fields[number] for number in late)
        self._payload = Payload([kind for _, kind in self.late_fields])
        self._inputs = inputs

    def decode(self, batch: pa.RecordBatch, codec: KeyCodec, *, signed: bool, partial: bool) -> Rows:
        wanted = self._inputs.partial if partial else self._inputs.wanted
        sign = arrow.ints(batch.column(MANY if partial else "_d")) if signed or partial else NO_INTS
        values = [of_batch(batch, name, kind, how) for name, kind, how in wanted]
        return Rows(codec.decode(batch), values, sign, partial)

    def timed(self, work: Work, rows: Rows) -> tuple[Rows, Ints]:
        """The rows that have a time, and their times."""
        if rows.partial:
            return rows, rows.values[self._from].values
        column = rows.values[self._time]
        if len(column.valid) and not column.valid.all():
            work.count("null time", len(rows) - int(np.count_nonzero(column.valid)))
            rows = rows.take(np.flatnonzero(column.valid))
        return rows, rows.values[self._time].values

    def times(self, rows: Rows) -> Ints:
        """Their times, of those that have one."""
        return rows.values[self._from if rows.partial else self._time].values

    def lasts(self, rows: Rows, times: Ints) -> Ints:
        """The times up to which rows reach: those of the last they stand for."""
        return rows.values[self._to].values if rows.partial and self._time >= 0 else times

    def without_late(
        self, work: Work, operator: KeyedOperator, rows: Rows, times: Ints, late: Array
    ) -> tuple[Rows | None, Ints]:
        """The rows that are not late, with their times; the others are counted, and put out if somebody wants them."""
        gone = np.flatnonzero(late)
        if not len(gone):
            return rows, times
        lateness.count(work, rows, gone)
        if self._late:
            keys = operator.codec.encode(rows.keys.take(gone))
            values = self._payload.arrays([rows.values[at] for at in self._late], gone)
            found = pa.RecordBatch.from_arrays([*keys, *values], schema=schema_of(operator.outputs[lateness.LATE]))
            work.emit(found, rows.sign[gone] if len(rows.sign) else None, lateness.LATE)
        stay = np.flatnonzero(~late)
        return (rows.take(stay) if len(stay) else None), times[stay]


def stretch_of(time: str | None, values: Sequence[Column], length: int, offset: int = 0) -> Stretch | None:
    """Stretches of event time to group rows by ahead of a stage; None where that time is of a type without micros."""
    if time is None or values[int(time[1:])].type != "timestamp":
        return None
    return Stretch(time, length, offset)
