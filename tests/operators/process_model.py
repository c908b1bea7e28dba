"""A process stage to test, and its oracle: the same function over dicts, one key and one timer at a time."""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from holdfast.api import states as hs
from holdfast.operators.process import Column, ProcessOperator, ProcessSpec
from holdfast.state.rows import Rows
from holdfast.state.slice import NEVER, EpochTime
from holdfast.state.types import required

SECOND = 1_000_000
Row = tuple[Any, ...]


def at(seconds: float) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


def stage(
    function: Any,
    outputs: dict[str, dict[str, str]],
    *,
    keys: dict[str, str] | None = None,
    values: dict[str, str] | None = None,
    time: str | None = None,
    state: dict[str, Any] | None = None,
    **options: Any,
) -> ProcessOperator:
    keys, values = keys or {"key": "string"}, values or {"amount": "bigint"}
    columns = tuple(Column(*one) for one in values.items())
    number = None if time is None else list(values).index(time)
    ports = tuple((port, tuple(Column(*one) for one in kinds.items())) for port, kinds in outputs.items())
    return ProcessOperator(
        ProcessSpec(
            *(tuple(Column(*one) for one in keys.items()), columns, number, cloudpickle.dumps(function)),
            *(hs.specs(function, state), ports),
            **options,
        )
    )


def given(operator: ProcessOperator, rows: Sequence[Row], *, one_hash: bool = False) -> Rows:
    """Rows of (key, value …), the key a tuple where it has several columns."""
    keys = [row[0] if isinstance(row[0], tuple) else (row[0],) for row in rows]
    columns = {"_h": pa.array([7 if one_hash else zlib.crc32(repr(key).encode()) for key in keys], pa.int64())}
    for number, column in enumerate(operator.spec.keys):
        columns[f"k{number}"] = pa.array([key[number] for key in keys], required(column.type, "").arrow)
    for number, column in enumerate(operator.spec.values):
        columns[f"v{number}"] = pa.array([row[1 + number] for row in rows], required(column.type, "").arrow)
    return operator.decode(pa.record_batch(columns))


class Everything:
    """Does to its states what its rows say, and tells what it has after every call."""

    count = hs.value("bigint", default=0)
    name = hs.value("string")
    pages = hs.map("string", "bigint")
    recent = hs.list("double")
    todo = hs.queue("string")
    last3 = hs.window(rows=3, of="bigint")
    short = hs.window(time="10 s", of="bigint")
    any = hs.pickled()
    brief = hs.value("bigint", ttl="5 s")
    cached = hs.map("bigint", "string", ttl="5 s", by="clock")

    def rows(self, key, rows, context):  # type: ignore[no-untyped-def]
        for row in rows:
            do(context.state, row["op"], row["n"], row["at"], context)
        yield {"key": key, "what": f"rows {len(rows)}", "has": seen(context.state)}

    def timer(self, key, time, context):  # type: ignore[no-untyped-def]
        fired = context.fired
        assert fired.time == time
        do(context.state, "add", 1, time, context)
        if fired.name == "again":
            context.set_timer(time + dt.timedelta(seconds=3.5), "once", fired.kind)
        context.emit(
            {"key": key, "what": f"{fired.kind} {fired.name} {time.timestamp()}", "has": seen(context.state)},
            to="fired",
        )


OPS = ["add", "sub", "name", "map", "unmap", "list", "push", "pop", "last", "short", "any", "brief", "cached"]
OPS += ["timer", "again", "clock", "off", "clear"]


def do(state: Any, op: str, n: int, time: dt.datetime, context: Any) -> None:
    later = time + dt.timedelta(seconds=n)
    if op in ("add", "sub"):
        state.count += n if op == "add" else -n
    elif op == "name":
        state.name = f"é{n}" if n % 3 else None
    elif op == "map":
        state.pages[f"p{n % 4}"] = n
    elif op == "unmap":
        state.pages.pop(f"p{n % 4}", None)
    elif op == "list":
        state.recent.append(n / 3)
    elif op == "push":
        state.todo.append(f"t{n}")
    elif op == "pop":
        if state.todo:
            state.todo.popleft()
    elif op == "last":
        state.last3.append(n)
    elif op == "short":
        state.short.append(n, time)
    elif op == "any":
        state.any = {"n": (n,)} if n % 2 else None
    elif op == "brief":
        state.brief = n
    elif op == "cached":
        state.cached[n % 3] = str(n)
    elif op == "timer":
        context.set_timer(later, op)
    elif op == "again":  # no two timers of a key for one time: their order is the table's, which the oracle has not
        context.set_timer(later + dt.timedelta(seconds=0.25), op)
    elif op == "clock":
        context.set_timer(context.clock + dt.timedelta(seconds=n), "c", kind="clock")
    elif op == "off":
        context.clear_timer(later, "timer")
    elif op == "clear":
        state.count, state.name, state.any, state.brief = 0, None, None, None
        for container in (state.pages, state.recent, state.todo, state.last3, state.short, state.cached):
            container.clear()


def seen(state: Any) -> str:
    lists = [list(one) for one in (state.recent, state.todo, state.last3, state.short)]
    return repr([state.count, state.name, state.pages, *lists, state.any, state.brief])  # reading cached is using it


class _Short(list):  # type: ignore[type-arg]
    """A time window, the plain way: (time, value) of everything, sifted at every change."""

    def __init__(self, late: float) -> None:
        super().__init__()
        self.now = late

    def append(self, value: Any, time: dt.datetime) -> None:  # type: ignore[override]
        super().append((time.timestamp(), value))
        self.sift(self.now)

    def sift(self, late: float) -> None:
        self.now = max([late, self.now, *(time for time, _ in list.__iter__(self))])
        self[:] = sorted((one for one in list.__iter__(self) if one[0] > self.now - 10), key=lambda one: one[0])

    def __iter__(self) -> Any:
        return iter([value for _, value in list.__iter__(self)])


class _Key:
    def __init__(self) -> None:
        self.__dict__["stamps"] = {}
        self.count, self.name, self.pages, self.recent, self.todo = 0, None, {}, [], _Queue()
        self.last3, self.short, self.any, self.brief, self.held = _Last(), _Short(-1e18), None, None, {}
        self.used: set[str] = set()
        self.timers: set[tuple[str, float, str]] = set()

    @property
    def cached(self) -> dict[int, str]:
        self.used.add("cached")
        return self.held

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value
        if name == "brief" and "used" in self.__dict__:
            self.used.add("brief")

    @property
    def empty(self) -> bool:
        kept = (self.pages, self.recent, self.todo, self.last3, list(self.short), self.held, self.timers)
        return self.count == 0 and self.name is None and self.any is None and self.brief is None and not any(kept)


class _Queue(list):  # type: ignore[type-arg]
    def popleft(self) -> Any:
        return self.pop(0)


class _Last(list):  # type: ignore[type-arg]
    def append(self, value: Any) -> None:
        super().append(value)
        del self[:-3]


class Model:
    """What ``Everything`` leaves and puts out; times in seconds."""

    def __init__(self) -> None:
        self.keys: dict[str | None, _Key] = {}
        self.watermark = -1e18

    def apply(self, rows: Sequence[Row], watermark: float, clock: float) -> dict[Any, list[tuple[str, str]]]:
        late, self.watermark, self.clock = self.watermark, watermark, dt.datetime.fromtimestamp(clock, dt.UTC)
        out: dict[Any, list[tuple[str, str]]] = {}
        for state in self.keys.values():
            if state.held and state.stamps["cached"] + 5 <= clock:
                state.held = {}
        grouped: dict[Any, list[Row]] = {}
        for row in rows:
            if row[3] is not None and row[3].timestamp() >= late:
                grouped.setdefault(row[0], []).append(row)
        for state in self.keys.values():
            state.used = set()
        moments: dict[Any, float] = {}
        for key, mine in grouped.items():
            self.now = state = self.keys.setdefault(key, _Key())
            state.short.sift(late)
            for _, op, n, time in mine:
                do(state, op, n, time, self)
            moments[key] = max(late, *(row[3].timestamp() for row in mine))
            out.setdefault(key, []).append((f"rows {len(mine)}", seen(state)))
        for key, state in self.keys.items():
            self.now = state
            while due := [one for one in state.timers if one[1] <= (watermark if one[0] == "event" else clock)]:
                kind, time, name = min(due, key=lambda one: (one[0] != "event", one[1]))
                state.timers.remove((kind, time, name))
                state.short.sift(late)
                state.count += 1
                moments.setdefault(key, late)
                if name == "again":
                    self.set_timer(dt.datetime.fromtimestamp(time + 3.5, dt.UTC), "once", kind)
                out.setdefault(key, []).append((f"{kind} {name} {time}", seen(state)))
        for key in moments:
            state = self.keys[key]
            if "brief" in state.used:
                state.stamps["brief"] = moments[key]
            if "cached" in state.used:
                state.stamps["cached"] = clock
        for state in self.keys.values() if watermark > late else ():
            if state.brief is not None and state.stamps["brief"] + 5 <= watermark:
                state.brief = None
            if state.short and max(time for time, _ in list.__iter__(state.short)) + 10 <= watermark:
                state.short.clear()
        self.keys = {key: state for key, state in self.keys.items() if not state.empty}
        return out

    # What the function calls a context.

    def set_timer(self, time: dt.datetime, name: str, kind: str = "event") -> None:
        self.now.timers.add((kind, time.timestamp(), name))

    def clear_timer(self, time: dt.datetime, name: str, kind: str = "event") -> None:
        self.now.timers.discard((kind, time.timestamp(), name))


def epoch_time(late: float, watermark: float, clock: float) -> EpochTime:
    def whole(seconds: float) -> int:
        return NEVER if seconds < -1e17 else round(seconds * SECOND)

    return EpochTime(whole(late), whole(watermark), whole(clock))
