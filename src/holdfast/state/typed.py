"""A user's typed state over a table: declared states as columns, read and written for all keys of an epoch at once.

A value has its own column, a byte that says whether it is set, and a stamp; a container is a span of bytes (see
``codec``) and a stamp. The keys an epoch concerns get an object each, with a plain slot per value: loading and storing
is one pass of C code per state, and the function's ``state.count += 1`` is an attribute of Python's own. Containers are
decoded when a function first uses them and encoded once when the epoch is over. No decoded object outlives the epoch:
the table is the only truth, so that undo, copies and purges need to know nothing of this module, and memory holds
bytes instead of objects of ten times their size.

A state that is empty, None or equal to its default is not there. Stamps are kept for every state, so that a TTL can be
switched on, changed and off over the same columns; 0 is no stamp.

It is long because both kinds of state, their columns and the object that a function sees are written for one another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.invariants import Impossible, some
from holdfast.state.codec import ContainerCodec, ValuesCodec, json_text, only
from holdfast.state.columns import INT, NO_BYTES, SPANS, Arena, Array, ColumnSpec, Ints, spans_of
from holdfast.state.payload import Payload, append
from holdfast.state.rows import Values
from holdfast.state.slice import NEVER, Work
from holdfast.state.table import Table
from holdfast.state.types import AtomicType, required
from holdfast.state.values import WrongValueError, checked, to_column, to_python
from holdfast.state.windows import TimeWindow

STRING = required("string", "a container")
_UNOPENED: Any = type("Unopened", (), {})()


@dataclass(frozen=True)
class StateSpec:
    """One declared state, as plain data. ``kind``: value, map, list, queue, rows or time (windows), pickled.

    ``default`` is a packed value; ``limit`` a window's rows or microseconds; ``ttl`` microseconds, 0 for ever.
    """

    name: str
    kind: str
    type: str = ""
    key_type: str = ""
    default: bytes | None = None
    limit: int = 0
    ttl: int = 0
    by: str = "event"


class WrongStateError(ValueError):
    """What a function left in a state is not what was declared; ``at`` is the key's place in the epoch."""

    def __init__(self, at: int, name: str, error: WrongValueError) -> None:
        super().__init__(f"state '{name}': {error}")
        self.at = at


class KeyState:
    """The states of one key during an epoch; ``context.state`` in a user's function."""

    __slots__ = ("_at", "_source")
    _at: int
    _source: Gathered


class _State:
    """One declared state over its columns, the first of which has number ``first``."""

    width: int
    columns: tuple[ColumnSpec, ...]

    def __init__(self, number: int, first: int, spec: StateSpec) -> None:
        self.number, self.first, self.spec = number, first, spec
        self.stamp = first + self.width - 1
        # A time window is over as a whole when its newest value is.
        self.ttl, self.by = (spec.limit, "event") if spec.kind == "time" else (spec.ttl, spec.by)
        self.get: Callable[[KeyState], Any]
        self.set: Callable[[KeyState, Any], None]

    def present(self, columns: Sequence[Array], slots: Any) -> Array:
        raise NotImplementedError


class _Value(_State):
    width = 3

    def __init__(self, number: int, first: int, spec: StateSpec) -> None:
        super().__init__(number, first, spec)
        self.kind: AtomicType = required(spec.type, f"state '{spec.name}'")
        self.columns = (*Payload([self.kind]).columns, INT)
        self.default = None if spec.default is None else only(ValuesCodec(self.kind), spec.default)
        self._zero = None if spec.default is None else to_column(self.kind, [self.default]).values[0]

    def present(self, columns: Sequence[Array], slots: Any) -> Array:
        return np.asarray(columns[self.first + 1][slots] != 0)

    def load(self, table: Table, slots: Ints) -> list[Any]:
        flag, arena = table.columns[self.first + 1][slots], table.arenas[self.first]
        valid = NO_BYTES if flag.all() else flag
        data = None if arena is None else arena.data
        values = to_python(self.kind, Values(table.columns[self.first][slots], valid, data))
        if self.default is not None and len(valid):
            for at in np.flatnonzero(flag == 0).tolist():
                values[at] = self.default
        return values

    def store(self, table: Table, slots: Ints, before: list[Any], values: list[Any]) -> None:
        if self.kind.kind == "bytes":
            # Bytes that did not change stay where they are; the others would leave garbage behind.
            changed = [at for at, value in enumerate(values) if value is not before[at]]
            slots, values = slots[changed], [values[at] for at in changed]
            try:
                column = to_column(self.kind, values)
            except WrongValueError as error:
                error.at = changed[error.at]
                raise
        else:
            column = to_column(self.kind, values)
        there = np.ones(len(values), np.uint8) if not len(column.valid) else column.valid.copy()
        if self._zero is not None:
            there[self._is_default(column, values)] = 0
        arena = table.arenas[self.first]
        raw = column.values
        if arena is not None:
            if column.data is None:
                raise Impossible("bytes without an arena")
            raw = append(arena, raw, column.data)
        table.columns[self.first][slots] = raw
        if not there.all():
            table.columns[self.first][slots[there == 0]] = 0
            table.columns[self.stamp][slots[there == 0]] = 0
        table.columns[self.first + 1][slots] = there

    def _is_default(self, column: Values, values: list[Any]) -> Array:
        if self.kind.kind == "bytes":
            return np.array([value == self.default for value in values], bool)
        if self.kind.kind == "float":  # by their bits: NaN is one value, -0.0 another than 0.0
            return np.asarray(column.values.view(np.int64) == np.float64(self._zero).view(np.int64))
        same = column.values == self._zero
        return np.asarray(same.all(axis=1) if same.ndim == 2 else same)


class _Container(_State):
    width = 2
    columns = (SPANS, INT)

    def __init__(self, number: int, first: int, spec: StateSpec) -> None:
        super().__init__(number, first, spec)
        what = f"state '{spec.name}'"
        of = None if spec.kind == "pickled" else required(spec.type, what)
        keys = required(spec.key_type, f"the keys of {what}") if spec.kind == "map" else None
        self.codec = ContainerCodec(spec.kind, of, keys, spec.limit)

    def present(self, columns: Sequence[Array], slots: Any) -> Array:
        return np.asarray(columns[self.first][slots][:, 1] != 0)

    def texts(self, spans: Ints, arena: Arena) -> list[str | None]:
        """As JSON; None where there is nothing."""
        data = arena.data.data
        blobs = (data[at : at + size] for at, size in spans.tolist())
        return [json_text(self.codec.load(blob, NEVER)) if len(blob) else None for blob in blobs]


class TypedStates:
    """All states of a stage; ``first`` is the number of their first column."""

    def __init__(self, specs: Sequence[StateSpec], first: int) -> None:
        self.states: list[_State] = []
        for number, spec in enumerate(specs):
            made = _Value(number, first, spec) if spec.kind == "value" else _Container(number, first, spec)
            self.states.append(made)
            first += made.width
        self.values = [state for state in self.states if isinstance(state, _Value)]
        self.containers = [state for state in self.states if isinstance(state, _Container)]
        self.columns = tuple(
            column.named(f"{state.spec.name}.{number}")
            for state in self.states
            for number, column in enumerate(state.columns)
        )
        self.fields = tuple((s.spec.name, s.kind if isinstance(s, _Value) else STRING) for s in self.states)
        self.watched = bool(self.containers) or any(state.ttl for state in self.values)
        self.key_class = _key_class(self.states)

    def gather(self, table: Table, slots: Ints, late: int) -> Gathered:
        return Gathered(self, table, slots, late)

    def filled(self, columns: Sequence[Array], slots: Any) -> Array:
        """Which of those rows have any state."""
        found = np.zeros(len(columns[0][slots]), bool)
        for state in self.states:
            found |= state.present(columns, slots)
        return found

    def sweep(self, work: Work, by: str, now: int) -> Ints:
        """Forget states whose TTL is over, and stamp those that have none; the slots that lost a state."""
        table, lost = work.tables[0], []
        for state in self.states:
            if not state.ttl or state.by != by or now == NEVER:
                continue
            stamps = table.columns[state.stamp][: table.rows]
            likely = np.flatnonzero((stamps <= now - state.ttl) | (stamps == 0))
            likely = likely[state.present(table.columns, likely)]
            if not len(likely):
                continue
            work.touch(likely)
            over = table.columns[state.stamp][likely] != 0
            table.columns[state.stamp][likely[~over]] = _stamp(now)
            for number in range(state.first, state.first + state.width):
                table.columns[number][likely[over]] = 0
            lost.append(likely[over])
        return np.unique(np.concatenate(lost)) if lost else np.empty(0, np.int64)

    def arrays(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> list[pa.Array]:
        """Rows as people see them: values typed, containers as JSON."""
        found = []
        for state in self.states:
            held, arena = columns[state.first], arenas[state.first]
            if isinstance(state, _Value):
                flag = columns[state.first + 1]
                if state.default is None or flag.all():
                    found += Payload([state.kind]).read([held, flag], [arena])
                else:
                    data = None if arena is None else arena.data
                    values = to_python(state.kind, Values(held, flag, data))
                    found.append(pa.array([state.default if one is None else one for one in values], state.kind.arrow))
            else:
                if not isinstance(state, _Container):
                    raise Impossible(f"{state!r} is no _Container")
                arena = some(arena, "containers are bytes")
                found.append(pa.array(state.texts(held, arena), pa.string()))
        return found


class Gathered:
    """The states of the keys that an epoch concerns, as objects."""

    def __init__(self, states: TypedStates, table: Table, slots: Ints, late: int) -> None:
        self._states, self._table, self._slots, self._late = states, table, slots, late
        count = len(slots)
        key_class = states.key_class
        self.objects: list[KeyState] = list(map(key_class.__new__, repeat(key_class, count)))
        self._before = [state.load(table, slots) for state in states.values]
        for state, values in zip(states.values, self._before, strict=True):
            _run(state.set, self.objects, values)
        # By state: who used it in this epoch (a value only where it has a TTL), and what containers became.
        self._used: list[dict[int, None]] = [{} for _ in states.states]
        self._blobs: list[dict[int, bytes]] = [{} for _ in states.states]
        self._newest: list[dict[int, int]] = [{} for _ in states.states]
        if states.watched:
            members = vars(KeyState)
            _run(members["_source"].__set__, self.objects, repeat(self, count))
            _run(members["_at"].__set__, self.objects, range(count))
            for container in states.containers:
                _run(container.set, self.objects, repeat(_UNOPENED, count))
        self._spans = [table.columns[container.first][slots].tolist() for container in states.containers]
        self._data = [_arena(table, container.first).data.data for container in states.containers]
        self._place = {container.number: at for at, container in enumerate(states.containers)}

    def note(self, number: int, at: int) -> None:
        self._used[number][at] = None

    def open(self, number: int, at: int) -> Any:
        """The container of that key, as a function of this epoch left it or as the table has it."""
        self._used[number][at] = None
        state = self._states.states[number]
        if not isinstance(state, _Container):
            raise Impossible(f"{state!r} is no _Container")
        blob = self._blobs[number].get(at)
        if blob is not None:
            return state.codec.load(memoryview(blob), self._late)
        place = self._place[number]
        start, size = self._spans[place][at]
        return state.codec.load(self._data[place][start : start + size], self._late)

    # -- one call that may have no effect

    def image(self, at: int) -> tuple[list[Any], list[bool]]:
        """What ``restore`` needs to take a call back; containers are as they were settled last."""
        held = self.objects[at]
        return [state.get(held) for state in self._states.values], [at in used for used in self._used]

    def restore(self, at: int, image: tuple[list[Any], list[bool]]) -> None:
        held = self.objects[at]
        for state, value in zip(self._states.values, image[0], strict=True):
            state.set(held, value)
        for container in self._states.containers:
            container.set(held, _UNOPENED)
        for used, was in zip(self._used, image[1], strict=True):
            if not was:
                used.pop(at, None)

    def settle(self, at: int) -> None:
        """Check and encode what a call left behind, so that a later one can be taken back to it."""
        held = self.objects[at]
        for state in self._states.values:
            try:
                to_column(state.kind, checked(state.kind, [state.get(held)]))
            except WrongValueError as error:
                raise WrongStateError(at, state.spec.name, error) from None
        found = [(container, self._encoded(container, at)) for container in self._states.containers]
        for container, blob in found:
            if blob is not None:
                self._blobs[container.number][at] = blob
                container.set(held, _UNOPENED)

    # -- back to the table

    def scatter(self, moments: Sequence[int] | Ints, clock: int) -> None:
        """Write all states; ``moments`` is the event time of each key's last call, NEVER if it has none."""
        for state, before in zip(self._states.values, self._before, strict=True):
            values = list(map(state.get, self.objects))
            try:
                state.store(self._table, self._slots, before, values)
            except WrongValueError as error:
                raise WrongStateError(error.at, state.spec.name, error) from None
        for container in self._states.containers:
            blobs = self._blobs[container.number]
            for at in self._used[container.number]:
                blob = self._encoded(container, at)
                if blob is not None:
                    blobs[at] = blob
            self._write(container, blobs)
        for used, one in zip(self._used, self._states.states, strict=True):
            if used:
                self._stamp(one, moments, clock)

    def _encoded(self, container: _Container, at: int) -> bytes | None:
        held = container.get(self.objects[at])
        if held is _UNOPENED:
            return None
        try:
            blob = container.codec.dump(held)
        except WrongValueError as error:
            raise WrongStateError(at, container.spec.name, error) from None
        if isinstance(held, TimeWindow) and held.times:
            self._newest[container.number][at] = held.times[-1]
        return blob

    def _write(self, container: _Container, blobs: dict[int, bytes]) -> None:
        place = self._place[container.number]
        spans, data = self._spans[place], self._data[place]
        # What was only read leaves no garbage in the arena.
        changed = [at for at, blob in blobs.items() if data[spans[at][0] : spans[at][0] + spans[at][1]] != blob]
        if not changed:
            return
        offsets = np.zeros(len(changed) + 1, np.int64)
        np.cumsum([len(blobs[at]) for at in changed], out=offsets[1:])
        joined = np.frombuffer(b"".join([blobs[at] for at in changed]), np.uint8)
        arena = _arena(self._table, container.first)
        arena.reserve(len(joined))
        arena.data[arena.used : arena.used + len(joined)] = joined
        moved = spans_of(offsets + arena.used)
        arena.used += len(joined)
        moved[moved[:, 1] == 0] = 0  # what is empty has no place: the same bits as a row that never had any
        self._table.columns[container.first][self._slots[changed]] = moved

    def _stamp(self, state: _State, moments: Sequence[int] | Ints, clock: int) -> None:
        ats = np.fromiter(self._used[state.number], np.int64)
        slots = self._slots[ats]
        if not state.ttl:
            stamps = np.zeros(len(ats), np.int64)
        elif state.spec.kind == "time":
            newest = self._newest[state.number]
            stamps = np.array([_stamp(newest.get(at, 0)) if at in newest else 0 for at in ats.tolist()], np.int64)
        elif state.by == "clock":
            stamps = np.full(len(ats), _stamp(clock), np.int64)
        else:
            known = np.asarray(moments, np.int64)[ats]
            stamps = np.where(known == NEVER, 0, np.where(known == 0, 1, known))
        stamps[~state.present(self._table.columns, slots)] = 0
        self._table.columns[state.stamp][slots] = stamps


def _key_class(states: Sequence[_State]) -> type[KeyState]:
    """A class with a slot per state. Values without a TTL are the slots themselves; the rest are properties."""
    hidden = {s.number: f"_{s.spec.name}" for s in states if isinstance(s, _Container) or s.ttl}
    slots = [hidden.get(state.number, state.spec.name) for state in states]
    made: Any = type("KeyState", (KeyState,), {"__slots__": tuple(slots)})
    for state, slot in zip(states, slots, strict=True):
        member = getattr(made, slot)
        state.get, state.set = member.__get__, member.__set__
        if state.number in hidden:
            setattr(made, state.spec.name, _property(state))
    found: type[KeyState] = made
    return found


def _property(state: _State) -> property:
    number, get, put = state.number, state.get, state.set

    def read(held: KeyState) -> Any:
        found = get(held)
        if found is _UNOPENED:
            found = held._source.open(number, held._at)
            put(held, found)
        return found

    def write(held: KeyState, value: Any) -> None:
        held._source.note(number, held._at)
        put(held, value)

    return property(read, write)


def _run(function: Callable[..., Any], *columns: Any) -> None:
    deque(map(function, *columns), maxlen=0)


def _arena(table: Table, number: int) -> Arena:
    return some(table.arenas[number], "containers are bytes")


def _stamp(time: int) -> int:
    return time or 1
