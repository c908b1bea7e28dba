"""The oracle of joins: two lists of rows, every pair looked at, in plain Python."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.operators.join import JoinOperator, JoinSpec
from holdfast.operators.spec import Column
from holdfast.state.rows import Rows
from holdfast.state.slice import EpochTime
from holdfast.state.types import required

Row = tuple[int, tuple[Any, ...], tuple[Any, ...]]  # sign, key, values


def batch(keys: Sequence[Column], values: Sequence[Column], rows: Sequence[Row], *, signed: bool) -> pa.RecordBatch:
    """A chunk as a container gets it; times are microseconds."""
    hashes = [zlib.crc32(repr(key).encode()) * 2654435761 - 2**62 for _, key, _ in rows]
    columns: dict[str, pa.Array] = {"_h": pa.array(hashes, pa.int64())}
    if signed:
        columns["_d"] = pa.array([sign for sign, _, _ in rows], pa.int8())
    for letter, part, all_columns in (("k", 1, keys), ("v", 2, values)):
        for number, column in enumerate(all_columns):
            found = [row[part][number] for row in rows]  # type: ignore[index]
            kind = required(column.type, "column").arrow
            columns[f"{letter}{number}"] = pa.array(found, pa.int64() if column.type == "timestamp" else kind).cast(
                kind
            )
    return pa.record_batch(columns)


def decode(operator: JoinOperator, port: int, rows: Sequence[Row] | None) -> Rows | None:
    if rows is None:
        return None
    spec = operator.spec
    values = (spec.left, spec.right)[port]
    return operator.decode(batch(spec.keys, values, rows, signed=spec.updating[port]), port=port)


class Model:
    """What is held of both inputs, in no particular order; each with whether it ever matched."""

    def __init__(self, spec: JoinSpec) -> None:
        self.spec = spec
        self.held: tuple[list[Any], list[Any]] = ([], [])
        self.counts: Counter[str] = Counter()

    def apply(self, inputs: Sequence[Sequence[Row] | None], time: EpochTime) -> list[tuple[Any, ...]]:
        """The rows that the epoch puts out, each with its sign at the end."""
        self.counts, out = Counter(), []
        net = [self.net(side, rows or ()) for side, rows in enumerate(inputs)]
        for sign in (-1, 1):  # what goes, goes on both sides before anything comes
            for side, rows in enumerate(net):
                out += self.take(side, [row for row in rows if row[0] == sign], time)
        for side, life in enumerate((self.spec.after, self.spec.before)):
            if life is None:
                continue
            for row in list(self.held[side]):
                if time.watermark > self.time(side, row[1]) + life:
                    self.held[side].remove(row)
                    if self.outer(side) and not row[2]:
                        out.append(self.output(side, row, None, 1))
        return out

    def net(self, side: int, rows: Sequence[Row]) -> list[Row]:
        """Rows with a time, less those that cancel out."""
        at = self.times[side]
        fit = [row for row in rows if at is None or row[2][at] is not None]
        self.counts["null time"] += len(rows) - len(fit)
        if not self.spec.updating[side]:
            return [(1, key, values) for _, key, values in fit]
        total: Counter[Any] = Counter()
        for sign, key, values in fit:
            total[key, values] += sign
        down = [(-1, *row) for row, count in total.items() for _ in range(-count)]
        return down + [(1, *row) for row, count in total.items() for _ in range(count)]

    def take(self, side: int, rows: Sequence[Row], time: EpochTime) -> list[tuple[Any, ...]]:
        out = []
        for sign, key, values in rows:
            if None in key and sign < 0:
                continue
            if sign > 0 and self.times[side] is not None and self.time(side, values) < time.late:
                self.counts["late"] += 1 if not (None in key and self.spec.updating[side]) else 0
                continue
            if None in key:
                if self.outer(side):
                    out.append(self.output(side, [key, values, False], None, 1))
                continue
            own = [key, values, False]
            if sign < 0:
                equal = [row for row in self.held[side] if row[0] == key and row[1] == values]
                if not equal:
                    self.counts["late"] += 1
                    continue
                self.held[side].remove(equal[0])
            for other in self.held[1 - side]:
                if other[0] == key and self.near(side, values, other[1]):
                    own[2] = other[2] = True
                    out.append(self.output(side, own, other, sign))
            if sign > 0:
                self.held[side].append(own)
        return out

    @property
    def times(self) -> tuple[int | None, int | None]:
        return self.spec.left_time, self.spec.right_time

    def time(self, side: int, values: tuple[Any, ...]) -> int:
        at = self.times[side]
        assert at is not None
        found: int = values[at]
        return found

    def outer(self, side: int) -> bool:
        return self.spec.how in ("full", ("left", "right")[side])

    def near(self, side: int, values: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
        if self.spec.before is None and self.spec.after is None:
            return True
        left, right = (others, values) if side else (values, others)
        apart = self.time(1, right) - self.time(0, left)
        before, after = self.spec.before, self.spec.after
        return (before is None or apart >= -before) and (after is None or apart <= after)

    def output(self, side: int, own: Any, other: Any, sign: int) -> tuple[Any, ...]:
        left, right = (other, own) if side else (own, other)
        spec = self.spec
        found = [None] * len(spec.left_out) if left is None else [left[1][number] for number in spec.left_out]
        found += [None] * len(spec.right_out) if right is None else [right[1][number] for number in spec.right_out]
        return (*own[0], *found, sign)

    def state(self) -> list[tuple[Any, ...]]:
        return [(*key, *(values[number] for number in self.spec.left_out)) for key, values, _ in self.held[0]]


def plain(found: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Rows, with times as microseconds."""
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in found.columns]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def ordered(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)
