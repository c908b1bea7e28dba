"""The oracle of windows: every row goes into the list of every window it is in; results are computed from scratch."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
from aggregate_model import UTC, Model, bits, crc, normal, plain, same
from hypothesis import strategies as st

from holdfast.operators.keyed import KeyedOperator
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.window import WindowSpec
from holdfast.state.slice import NEVER, NO_TIME, EpochTime
from holdfast.state.types import required

Result = tuple[Any, ...]
BEGIN = dt.datetime(1970, 1, 1, tzinfo=UTC)
# What sums and spreads of them give does not depend on the order of adding by more than rounding.
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": st.integers(-3, 3),
    "bigint": st.integers(-(2**40), 2**40),
    "double": st.sampled_from([0.0, 0.25, -7.5, 0.1, math.nan, math.inf, -math.inf]),
    "decimal(10,2)": st.integers(-(10**10) + 1, 10**10 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    "decimal(38,3)": st.integers(-(10**30), 10**30).map(lambda n: Decimal(n).scaleb(-3)),
    "string": st.sampled_from(["", "a", "ab", "b", "é", "zz" * 9]),
}


@dataclass(frozen=True)
class Event:
    """A row: sign, key, event time in microseconds, other values."""

    sign: int
    key: tuple[Any, ...]
    time: int | None
    values: tuple[Any, ...]


@dataclass
class Epoch:
    rows: list[Event]
    time: EpochTime = NO_TIME


@dataclass
class Put:
    """What an epoch puts out: rows that are final or new, rows taken back, late rows, counts."""

    new: list[Result] = field(default_factory=list)
    old: list[Result] = field(default_factory=list)
    late: list[Result] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def at(micros: int | None) -> dt.datetime | None:
    return None if micros is None else BEGIN + dt.timedelta(microseconds=micros)


def aggregates(chosen: Sequence[tuple[Any, ...]]) -> tuple[AggregateSpec, ...]:
    return tuple(
        AggregateSpec(
            f"out{number}", one[0], one[1] if len(one) > 1 else None, one[2] if len(one) > 2 else None, tuple(one[3:])
        )
        for number, one in enumerate(chosen)
    )


def batch(operator: KeyedOperator, rows: Sequence[Event], hashing: Callable[[Any], int] = crc) -> pa.RecordBatch:
    """The last value column is the time."""
    spec: Any = operator.spec  # type: ignore[attr-defined]
    columns: dict[str, pa.Array] = {"_h": pa.array([hashing(row.key) for row in rows], pa.int64())}
    if getattr(spec, "updating_input", False):
        columns["_d"] = pa.array([row.sign for row in rows], pa.int8())
    for number, column in enumerate(spec.keys):
        columns[f"k{number}"] = pa.array([row.key[number] for row in rows], required(column.type, "").arrow)
    for number, column in enumerate(spec.values):
        last = number == len(spec.values) - 1
        found = [at(row.time) if last else row.values[number] for row in rows]
        columns[f"v{number}"] = pa.array(found, required(column.type, "").arrow)
    return pa.record_batch(columns)


def late_row(spec: Any, row: Event) -> Result:
    return (*row.key, *((*row.values, at(row.time))[number] for number in spec.late), row.sign)


class WindowModel:
    """Windows as lists of (order, row); ``order`` is what ``first`` and ``last`` go by."""

    def __init__(self, spec: WindowSpec) -> None:
        self.spec = spec
        self.windows: dict[tuple[Any, int], list[tuple[Any, Event]]] = {}
        self.seen: dict[Any, int] = {}
        self.shown: dict[tuple[Any, int], Result] = {}
        self.changed: set[tuple[Any, int]] = set()  # since windows were last shown
        self.show_clock: int | None = None
        self.pane = math.gcd(spec.size, spec.every)
        self.reach = spec.size  # from what a window is known by to its end
        self.whole = spec.every == spec.size or spec.mode == "update" or spec.early > 0
        self.number = 0

    def result(self, key: tuple[Any, int]) -> Result | None:
        rows = [row for _, row in sorted(self.windows.get(key, ()), key=lambda one: one[0])]
        if sum(row.sign for row in rows) <= 0:
            return None
        triples = [(row.sign, row.key, row.values) for row in rows]
        found = [Model.result(one, triples) for one in self.spec.aggregates]
        start, end = self.edges(key[1])
        if not self.spec.numbered:
            return (*key[0], *found)
        if self.spec.unit == "rows":
            return (*key[0], max(start, 0), end, *found)
        return (*key[0], at(start), at(end), *found)

    def edges(self, number: int) -> tuple[int, int]:
        return number, number + self.spec.size

    def order(self, time: int, late: int, position: int) -> tuple[int, ...]:
        """What ``first`` and ``last`` go by."""
        if self.spec.every == self.spec.size:
            return (self.number, position)
        pane = (time if self.spec.unit == "rows" else time - self.spec.offset) // self.pane
        return (self.number, pane, position) if self.whole else (pane, self.number, position)

    def starts(self, time: int) -> list[int]:
        offset = -self.spec.size if self.spec.unit == "rows" else self.spec.offset
        last = (time - offset) // self.spec.every * self.spec.every + offset
        return [
            start for start in range(last, last - self.spec.size, -self.spec.every) if time < start + self.spec.size
        ]

    def apply(self, epoch: Epoch) -> Put:
        put, spec, size = Put(), self.spec, self.reach
        self.number += 1
        before = {key: self.result(key) for key in self.windows}
        touched: set[tuple[Any, int]] = set()
        ended: list[tuple[Any, int]] = []
        for position, row in enumerate(epoch.rows):
            key = tuple(map(normal, row.key))
            time = row.time
            if spec.unit == "clock":
                time = epoch.time.clock
            elif spec.unit == "rows":
                time = self.seen.get(key, 0)
                self.seen[key] = time + 1
            elif time is None:
                put.counts["null time"] = put.counts.get("null time", 0) + 1
                continue
            late = epoch.time.late if spec.unit == "event" else NEVER
            assert time is not None
            starts = [start for start in self.starts(time) if start + size > late]
            if not starts:
                put.counts["late"] = put.counts.get("late", 0) + 1
                if spec.late:
                    put.late.append(late_row(spec, row))
                continue
            order = self.order(time, late, position)
            for start in starts:
                self.windows.setdefault((key, start), []).append((order, row))
                touched.add((key, start))
            if spec.unit == "rows" and (time + 1) % spec.every == 0:
                ended.append((key, time + 1 - size))
        upto = epoch.time.clock if spec.unit == "clock" else epoch.time.watermark
        if spec.unit != "rows":
            ended = sorted((key for key in self.windows if key[1] + size <= upto), key=lambda key: key[1])
        self.changed |= touched
        if spec.mode == "update":
            put.old = [row for key in touched if (row := before.get(key)) is not None]
            put.new = [row for key in touched if (row := self.result(key)) is not None]
        else:
            if self.show_clock is None and self.windows:
                self.show_clock = epoch.time.clock
            for key in ended:
                self._replace(put, key)
            for key in touched:  # nothing is left of a window: what was shown of it goes at once
                if self.result(key) is None and key in self.shown:
                    put.old.append(self.shown.pop(key))
            news = [key for key in sorted(self.changed - set(ended), key=repr) if self.result(key) is not None]
            if spec.early and news and epoch.time.clock - (self.show_clock or 0) >= spec.early:
                for key in news:
                    self._replace(put, key, again=True)
                self.changed, self.show_clock = set(), epoch.time.clock
        for key in ended:
            self.windows.pop(key)
            self.shown.pop(key, None)
            self.changed.discard(key)
        self.windows = {key: rows for key, rows in self.windows.items() if sum(row.sign for _, row in rows) > 0}
        return put

    def _replace(self, put: Put, key: tuple[Any, int], *, again: bool = False) -> None:
        row, old = self.result(key), self.shown.get(key)
        if row is None or old is None or key in self.changed:
            if old is not None:
                put.old.append(self.shown.pop(key))
            if row is not None:
                put.new.append(row)
                if again:
                    self.shown[key] = row


def matches(found: Sequence[Result], expected: Sequence[Result], keys: int, *, ordered: bool = False) -> None:
    """The same rows; in the same order, or by any within a window's end."""

    def place(row: Result) -> Any:
        return (row[keys + 1], row[keys], repr(tuple(map(normal, row[:keys]))))

    if not ordered:
        found, expected = sorted(found, key=place), sorted(expected, key=place)
    assert len(found) == len(expected), (found, expected)
    for row, wanted in zip(found, expected, strict=True):
        assert all(map(same, row, wanted)), (row, wanted)


def columns(kinds: Sequence[str], name: str) -> tuple[Column, ...]:
    return tuple(Column(f"{name}{number}", kind) for number, kind in enumerate(kinds))


def check(
    operator: KeyedOperator,
    model: Any,
    epochs: Sequence[Epoch],
    draw: Callable[[st.SearchStrategy[Any]], Any],
    hashing: Callable[[Any], int] = crc,
) -> None:
    """Through all epochs as the model says; undone ones, and a copy loaded in the middle, change nothing."""
    state, keys = operator.new_slice(), len(operator.keys)
    copied = draw(st.integers(0, len(epochs)))
    other = operator.new_slice()
    tables = range(len(operator.layouts))  # type: ignore[attr-defined]
    for number, epoch in enumerate(epochs, start=1):
        if number - 1 == copied:
            other.load([state.delta(0, copied, table=table) for table in tables], copied)
        rows = operator.decode(batch(operator, epoch.rows, hashing)) if epoch.rows else None
        before = [bits(state.delta(0, number - 1, table=table)) for table in tables]
        if draw(st.booleans()):
            state.apply(number, rows, time=epoch.time)
            state.undo()
            assert [bits(state.delta(0, number - 1, table=table)) for table in tables] == before
        state.apply(number, rows, time=epoch.time)
        expected = model.apply(epoch)
        found = plain(state.outputs(number, "changelog"))
        spec: Any = operator.spec  # type: ignore[attr-defined]
        ordered = spec.unit == "rows" and spec.mode == "append" and not spec.early  # only windows have either
        matches([row[:-1] for row in found if row[-1] > 0], expected.new, keys, ordered=ordered)
        matches([row[:-1] for row in found if row[-1] < 0], expected.old, keys)
        if "late" in operator.outputs:
            late = plain(state.outputs(number, "changelog", "late"))
            assert len(late) == len(expected.late)
            assert all(all(map(same, row, want)) for row, want in zip(late, expected.late, strict=True))
        assert dict(state.counts) == expected.counts
        if number > copied:
            other.apply(number, rows, time=epoch.time)
            for port in operator.outputs:
                assert bits(other.outputs(number, "changelog", port)) == bits(state.outputs(number, "changelog", port))
            for table in tables:
                assert bits(other.delta(0, number, table=table)) == bits(state.delta(0, number, table=table))
        if draw(st.booleans()):
            state.release(number)
