"""``key_by(...).process(...)`` on a slice: a user's Python function over typed state, with timers and several outputs.

What is done once for all keys of an epoch is everything but the function itself: rows become Python values a column at
a time, one stable sort brings each key's rows together, states are read and written by column (``state.typed``), and
what was put out becomes Arrow at the end. The function is called once a key, keys in the order of their slots.

The function must be a pure function of what it is given: an epoch may be applied again elsewhere, and has to come out
the same. It gets no wall clock (``context.clock`` is the epoch's), should take none, and keeps nothing on ``self``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import PlanError
from holdfast.invariants import invariant, some
from holdfast.operators import timers
from holdfast.operators.bounds import Bound, Columns, Reading
from holdfast.operators.calls import Calls, Function, loaded
from holdfast.operators.draft import Draft, Given, all_columns, refuse_updating
from holdfast.operators.keyed import KeyedOperator, refuse_doubles, typed
from holdfast.operators.late import past
from holdfast.operators.spec import Column, Difference, Spec, unlike
from holdfast.state.columns import FLAG, INT, NO_INTS, Arena, Array, Ints
from holdfast.state.keys import KeyCodec, KeyRows
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
# Classes that are pickled by value carry a random UUID, another one in every process.
_PICKLED_UUID = re.compile(rb"(?<=\x8c )[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")


@dataclass(frozen=True)
class ProcessSpec(Spec):
    """A stage with a function of the user's own."""

    kind = "process"
    free = frozenset({"values", "time", "function", "states", "outputs", "rows", "errors", "drop_late", "parameters"})
    calls_users = True

    keys: tuple[Column, ...]
    values: tuple[Column, ...]
    time: int | None
    """The number of the value column that is the event time."""
    function: bytes
    """A class, an object or a function, pickled by value if it must be: whoever unpickles it needs no more than
    ``pickle``, and the modules that the bytes name."""
    states: tuple[StateSpec, ...]
    outputs: tuple[tuple[str, tuple[Column, ...]], ...]
    rows: str = "dicts"
    errors: str = "fail"
    drop_late: bool = False
    parameters: str = "{}"
    """What the function finds as ``context.parameters``, as JSON."""

    @classmethod
    def drafted(
        cls,
        draft: Draft,
        function: bytes,
        states: tuple[StateSpec, ...],
        produced: Mapping[str, tuple[Column, ...]],
        *,
        time: Given | None,
        rows: str,
        errors: str,
        drop_late: bool,
        parameters: str = "{}",
    ) -> ProcessSpec:
        refuse_updating(draft, "process")
        item = draft.inputs[0]
        number = draft.take_time(time)
        all_columns(item)
        draft.ports.extend(port for port in produced if port)
        draft.ports.extend([ERRORS] if errors == "dead_letter" else [])
        return cls(
            keys=item.keys,
            values=tuple(item.values.plain),
            time=number,
            function=function,
            states=states,
            outputs=tuple(produced.items()),
            rows=rows,
            errors=errors,
            drop_late=drop_late,
            parameters=parameters,
        )

    def build(self) -> ProcessOperator:
        return ProcessOperator(self)

    def calling(self, function: bytes | None, parameters: str | None) -> ProcessSpec:
        return replace(
            self,
            function=self.function if function is None else function,
            parameters=self.parameters if parameters is None else parameters,
        )

    def tables(self) -> tuple[Layout, ...]:
        """Without the function, which may not even load any more when a graph changes."""
        codec = KeyCodec([kind for _, kind in typed(self.keys, "key")])
        columns = (FLAG.named("(alive)"), INT.named("(timers)"), *TypedStates(self.states, _STATES).columns)
        return Layout(codec.words, codec.tail, columns, _ALIVE, "keys"), timers.layout(codec)

    @property
    def undivided(self) -> str | None:
        if self.build().function.timer is not None:
            return "timers of one key that are due at the same time fire in the order of their rows: use hf.Delta"
        return None

    def bounds(self, name: str, inputs: Sequence[Reading], ports: Mapping[str, Sequence[str]]) -> Mapping[str, Columns]:
        """What the function makes of time only its author knows."""
        return {port: dict.fromkeys(columns, (Bound(name),)) for port, columns in ports.items()}

    # -- between two runs

    def essence(self) -> ProcessSpec:
        return replace(self, function=_PICKLED_UUID.sub(b"", self.function))

    def mendable(self, *, above: bool, null: bool) -> ProcessSpec:
        """Function and states; not outputs, because the sinks of an epoch are fixed with its first level."""
        return replace(self, function=b"", states=(), parameters="{}") if above else self.essence()

    def difference(self, asked: ProcessSpec) -> Difference:
        found = super().difference(asked)
        told: list[str] = []
        refused = list(found.refused)
        before, now = ({state.name: state for state in spec.states} for spec in (self, asked))
        for name, state in now.items():
            if name not in before:
                told.append(f"state '{name}' is new: it starts empty for the keys there are")
                continue
            refused += unlike(f"state '{name}'", _shown_state(before[name]), _shown_state(state))
            if before[name].ttl and state.ttl:
                refused += unlike(f"the ttl of state '{name}' counts by", before[name].by, state.by)
            if before[name].ttl != state.ttl:
                told.append(f"state '{name}' has another ttl")
        told += [f"state '{name}' is gone: it is dropped" for name in before if name not in now]
        if not same_function(self.function, asked.function):
            told.append("its function is another: it is called from the next epoch on")
        if self.parameters != asked.parameters:
            told.append(f"its parameters are {asked.parameters}")
        return Difference(tuple(told), tuple(refused))

    def reshaped(self, table: int, copy: pa.RecordBatch) -> pa.RecordBatch:
        """Keys of a function that have lost their last state are dead, unless they have timers."""
        if table != 0:
            return copy
        alive = np.asarray(copy.column(f"a{_TIMERS}")) != 0
        for state in TypedStates(self.states, _STATES).states:
            if state.spec.kind == "value":
                alive |= np.asarray(copy.column(f"a{state.first + 1}")) != 0
            else:
                alive |= np.asarray(pc.binary_length(copy.column(f"a{state.first}"))) != 0
        place = copy.schema.get_field_index(f"a{_ALIVE}")
        return copy.set_column(place, copy.schema.field(place), pa.array(alive.astype(np.uint8)))


class ProcessOperator(KeyedOperator):
    """Calls a user's function, key by key."""

    def __init__(self, spec: ProcessSpec) -> None:
        super().__init__(spec.keys, [spec.values])
        _refuse_unknown(spec)
        self.spec = spec
        self.states = TypedStates(spec.states, _STATES)
        self.layouts = spec.tables()
        self.state = (*self.keys, *self.states.fields)
        refuse_doubles([name for name, _ in self.state])
        self.outputs = {port: typed(columns, "output column") for port, columns in spec.outputs}
        for fields in self.outputs.values():
            refuse_doubles([name for name, _ in fields])
        if spec.errors == "dead_letter":
            self.outputs[ERRORS] = (*self.keys, ("error", STRING), ("row", STRING))
        self.function = Function(loaded(spec.function))
        self.clocked = self.function.timer is not None
        self._kinds = {state.by for state in self.states.states if state.ttl}
        self.sweeps = "clock" in self._kinds
        if spec.time is None and "event" in self._kinds:
            raise PlanError(
                f"{self.function.name} has a state that is forgotten by event time, and its rows have none.",
                safe=_REFUSED,
                todo="give the stream an event time, or count the state's ttl by='clock'.",
            )
        self.parameters: Mapping[str, Any] = MappingProxyType(json.loads(spec.parameters))
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
            late = known & past(work, times.values)
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


def same_function(one: bytes, other: bytes) -> bool:
    """Whether two pickled functions are the same, as far as their bytes tell."""
    return _PICKLED_UUID.sub(b"", one) == _PICKLED_UUID.sub(b"", other)


def _shown_state(state: StateSpec) -> str:
    said = [state.type] if not state.key_type else [state.key_type, state.type]
    said += [f"limit {state.limit}"] if state.limit else []
    said += [f"default {state.default!r}"] if state.default is not None else []
    return f"{state.kind}({', '.join(one for one in said if one)})"


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
