"""``key_by(...).process(...)`` on a slice: a user's Python function over typed state, with timers and several outputs.

What is done once for all keys of an epoch is everything but the function itself: rows become Python values a column at
a time, one stable sort brings each key's rows together, states are read and written by column (``state.typed``), and
what was put out becomes Arrow at the end. The function is called once a key, keys in the order of their slots.

The function must be a pure function of what it is given: an epoch may be applied again elsewhere, and has to come out
the same. It gets no wall clock (``context.clock`` is the epoch's), should take none, and keeps nothing on ``self``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from holdfast.errors import PlanError
from holdfast.invariants import invariant, some
from holdfast.operators import timers
from holdfast.operators.calls import Calls, Function
from holdfast.operators.keyed import KeyedOperator, refuse_doubles, typed
from holdfast.operators.spec import Column
from holdfast.state.columns import FLAG, INT, NO_INTS, Arena, Array, Ints
from holdfast.state.keys import KeyRows
from holdfast.state.payload import decoded
from holdfast.state.rows import Rows
from holdfast.state.slice import MAIN, Work
from holdfast.state.table import Layout, Table
from holdfast.state.typed import STRING, StateSpec, TypedStates
from holdfast.state.types import AtomicType
from holdfast.state.values import taken, to_python

ERRORS = "errors"
"""The output that calls which raised put their rows out on, where the stage has dead letters."""
_ALIVE, _TIMERS, _STATES = 0, 1, 2
_REFUSED = "nothing was started or written."


@dataclass(frozen=True)
class ProcessSpec:
    """A stage with a function of the user's own."""

    keys: tuple[Column, ...]
    values: tuple[Column, ...]
    time: int | None
    """The number of the value column that is the event time."""
    function: bytes
    """``pyspark.cloudpickle`` of a class, an object or a function."""
    states: tuple[StateSpec, ...]
    outputs: tuple[tuple[str, tuple[Column, ...]], ...]
    rows: str = "dicts"
    errors: str = "fail"
    drop_late: bool = False


class ProcessOperator(KeyedOperator):
    """Calls a user's function, key by key."""

    def __init__(self, spec: ProcessSpec) -> None:
        super().__init__(spec.keys, [spec.values])
        _refuse_unknown(spec)
        self.spec = spec
        self.states = TypedStates(spec.states, _STATES)
        own = Layout(self.codec.words, self.codec.tail, (FLAG, INT, *self.states.columns), alive=_ALIVE)
        self.layouts: tuple[Layout, ...] = (own, timers.layout(self.codec))
        self.state = (*self.keys, *self.states.fields)
        refuse_doubles([name for name, _ in self.state])
        self.outputs = {port: typed(columns, "output column") for port, columns in spec.outputs}
        for fields in self.outputs.values():
            refuse_doubles([name for name, _ in fields])
        if spec.errors == "dead_letter":
            self.outputs[ERRORS] = (*self.keys, ("error", STRING), ("row", STRING))
        self.function = Function(cloudpickle.loads(spec.function))
        self.clocked = self.function.timer is not None
        self._kinds = {state.by for state in self.states.states if state.ttl}
        if spec.time is None and "event" in self._kinds:
            raise PlanError(
                f"{self.function.name} has a state that is forgotten by event time, and its rows have none.",
                safe=_REFUSED,
                todo="give the stream an event time, or count the state's ttl by='clock'.",
            )
        self._row_dicts = _row_maker([column.name for column in spec.values])

    # -- the operator of a slice

    def due(self, tables: Sequence[Table]) -> int | None:
        return timers.next_clock(tables[timers.TABLE])

    def apply(self, work: Work, *inputs: Rows | None) -> None:
        (rows,) = inputs
        invariant(rows is None or not (rows.sign < 0).any(), "a function cannot take rows back")
        if "clock" in self._kinds:
            self._bury_empty(work, self.states.sweep(work, "clock", work.time.clock))
        chosen = NO_INTS if rows is None or not len(rows) else self._chosen(work, rows)
        due = timers.due(work)
        if len(chosen) or len(due.slots):
            self._call(work, rows, chosen, due)
        if "event" in self._kinds and work.time.watermark > work.time.late:
            self._bury_empty(work, self.states.sweep(work, "event", work.time.watermark))

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.RecordBatch:
        arrays = [*self.codec.encode(keys), *self.states.arrays(columns, arenas)]
        return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in self.state])

    def _chosen(self, work: Work, rows: Rows) -> Ints:
        """Which rows the function is to see."""
        if self.spec.time is None:
            return np.arange(len(rows))
        times = rows.values[self.spec.time]
        known = times.valid != 0 if len(times.valid) else np.ones(len(rows), bool)
        work.count("null time", int(np.count_nonzero(~known)))
        if self.spec.drop_late:
            late = known & (times.values < work.time.late)
            work.count("late", int(np.count_nonzero(late)))
            known &= ~late
        return np.flatnonzero(known)

    def _call(self, work: Work, rows: Rows | None, chosen: Ints, due: timers.Due) -> None:
        table = work.tables[0]
        placed = NO_INTS
        if len(chosen):
            rows = some(rows, "a call by a row")
            placed = work.place(rows.keys if len(chosen) == len(rows) else rows.keys.take(chosen))
        order = np.argsort(placed, kind="stable")
        placed = placed[order]
        first = np.ones(len(placed), bool)
        np.not_equal(placed[1:], placed[:-1], out=first[1:])
        starts = np.flatnonzero(first)
        owners = placed[starts]
        slots = owners
        if len(due.keys):
            work.touch(np.unique(due.keys))
            slots = np.union1d(owners, due.keys)
        ats = np.arange(len(owners)) if len(slots) == len(owners) else np.searchsorted(slots, owners)
        gathered = self.states.gather(table, slots, work.time.late)
        agenda = timers.Agenda(work.time, due, np.searchsorted(slots, due.keys))
        calls = Calls(self, work, gathered, self._keys_of(table, slots), agenda)
        if len(owners):
            rows = some(rows, "a call by a row")
            order = chosen[order]
            given, stops = self._given(rows, order), np.append(starts[1:], len(order))
            calls.rows(given, ats.tolist(), starts.tolist(), stops.tolist())
        calls.timers()
        calls.put_out()
        calls.store(self._moments(work, rows, order, starts, ats, len(slots)))
        agenda.write(work, slots, _TIMERS)
        alive = self.states.filled(table.columns, slots) | (table.columns[_TIMERS][slots] != 0)
        table.columns[_ALIVE][slots] = alive
        if not alive.all():
            work.bury(slots[~alive])

    def _keys_of(self, table: Table, slots: Ints) -> list[Any]:
        arrays = self.codec.encode(table.keys(slots))
        columns = [_plain(kind, array) for (_, kind), array in zip(self.keys, arrays, strict=True)]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def _given(self, rows: Rows, order: Ints) -> Any:
        """The rows in that order, as the function wants them: sliced, they are a key's."""
        if self.spec.rows == "arrow":
            arrays = self.payloads[0].arrays(rows.values, order)
            return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in self.values[0]])
        columns = [
            to_python(kind, taken(column, order)) for (_, kind), column in zip(self.values[0], rows.values, strict=True)
        ]
        return self._row_dicts(columns, len(order))

    def _moments(self, work: Work, rows: Rows | None, order: Ints, starts: Ints, ats: Ints, keys: int) -> Ints:
        """The event time of each key's calls: that of its latest row, and no earlier than the watermark before."""
        moments = np.full(keys, work.time.late, np.int64)
        if self.spec.time is not None and rows is not None and len(starts) and "event" in self._kinds:
            latest = np.maximum.reduceat(rows.values[self.spec.time].values[order], starts)
            moments[ats] = np.maximum(moments[ats], latest)
        return moments

    def _bury_empty(self, work: Work, slots: Ints) -> None:
        columns = work.tables[0].columns
        work.bury(slots[~self.states.filled(columns, slots) & (columns[_TIMERS][slots] == 0)])


def _plain(kind: AtomicType, array: pa.Array) -> list[Any]:
    if kind.name == "timestamp":  # Arrow's own are of another class of zone
        return to_python(kind, decoded(array, kind, kind.kind))
    found: list[Any] = array.to_pylist()
    return found


def _row_maker(names: Sequence[str]) -> Callable[[list[list[Any]], int], list[dict[str, Any]]]:
    """Columns to dicts. A literal with the names in it makes them four times as fast as ``dict(zip(...))``."""
    if not names:
        return lambda columns, count: [{} for _ in range(count)]
    places = [f"x{number}" for number in range(len(names))]
    entries = ", ".join(f"{name!r}: {place}" for name, place in zip(names, places, strict=True))
    source = f"lambda columns, count: [{{{entries}}} for {', '.join(places)}, in zip(*columns)]"
    made: Callable[[list[list[Any]], int], list[dict[str, Any]]] = eval(source, {"zip": zip})
    return made


def _refuse_unknown(spec: ProcessSpec) -> None:
    ports = [port for port, _ in spec.outputs]
    for wrong, said, todo in (
        (spec.rows not in ("dicts", "arrow"), f"rows={spec.rows!r}", "give rows='dicts' or rows='arrow'."),
        (spec.errors not in ("fail", "dead_letter"), f"errors={spec.errors!r}", "give 'fail' or 'dead_letter'."),
        (MAIN not in ports, f"outputs {ports} without a main one", "declare the columns the function puts out."),
        (len(set(ports)) != len(ports), f"outputs {ports}", "give every output a name of its own."),
        (
            spec.errors == "dead_letter" and ERRORS in ports,
            "an output 'errors' of its own",
            "give that output another name: dead letters go to 'errors'.",
        ),
    ):
        if wrong:
            raise PlanError(f"a process stage cannot have {said}.", safe=_REFUSED, todo=todo)
