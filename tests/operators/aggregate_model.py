"""The oracle: keeps every row of every key in a list and computes each aggregate from scratch, in plain Python."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import statistics
import zlib
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from holdfast.operators.aggregate import AggregateOperator, AggregateSpec, Column, Rows, StageSpec
from holdfast.state.types import required

UTC = dt.UTC
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-3, 3),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**40), 2**40),
    "float": st.sampled_from([0.0, -0.0, 1.5, -2.25, math.nan, math.inf]),
    "double": st.sampled_from([0.0, -0.0, 1e300, -0.1, 0.3, 7.0, math.nan, -math.inf]),
    "decimal(10,2)": st.integers(-(10**10) + 1, 10**10 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    "decimal(38,3)": st.integers(-(10**30), 10**30).map(lambda n: Decimal(n).scaleb(-3)),
    "date": st.dates(dt.date(1960, 1, 1), dt.date(2040, 1, 1)),
    "timestamp": st.datetimes(dt.datetime(1960, 1, 1), dt.datetime(2040, 1, 1)).map(lambda t: t.replace(tzinfo=UTC)),
    "timestamp_ntz": st.datetimes(dt.datetime(1960, 1, 1), dt.datetime(2040, 1, 1)),
    "string": st.sampled_from(["", "a", "ab", "b", "é", "zz" * 9]),
    "binary": st.sampled_from([b"", b"\x00", b"\x00\xff", b"ab"]),
}
NUMERIC = [name for name in TYPES if name.endswith("int") or name in ("float", "double") or "decimal" in name]
Row = tuple[int, tuple[Any, ...], tuple[Any, ...]]  # sign, key, values


def normal(value: Any) -> Any:
    """A value under groupBy's equality: one NaN, no -0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def crc(key: tuple[Any, ...]) -> int:
    return zlib.crc32(repr(tuple(map(normal, key))).encode()) * 2654435761 - 2**62


def one_hash(key: tuple[Any, ...]) -> int:
    return 7


def batch(
    spec: StageSpec,
    value_types: Sequence[str],
    rows: Sequence[Row],
    hashing: Callable[[tuple[Any, ...]], int] = crc,
) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {"_h": pa.array([hashing(key) for _, key, _ in rows], pa.int64())}
    if spec.updating_input:
        columns["_d"] = pa.array([sign for sign, _, _ in rows], pa.int8())
    for number, column in enumerate(spec.keys):
        kind = required(column.type, "key").arrow
        columns[f"k{number}"] = pa.array([key[number] for _, key, _ in rows], kind)
    for number, name in enumerate(value_types):
        kind = required(name, "value").arrow
        columns[f"v{number}"] = pa.array([values[number] for _, _, values in rows], kind)
    return pa.record_batch(columns)


class Model:
    """Rows of every key, in order; keys in order of first appearance."""

    def __init__(self, spec: StageSpec) -> None:
        self.spec = spec
        self.rows: dict[tuple[Any, ...], list[Row]] = {}
        self.touched: set[tuple[Any, ...]] = set()

    def copy(self) -> Model:
        other = Model(self.spec)
        other.rows = {key: list(rows) for key, rows in self.rows.items()}
        return other

    def apply(self, rows: Sequence[Row]) -> None:
        self.touched = set()
        for row in rows:
            key = tuple(map(normal, row[1]))
            self.rows.setdefault(key, []).append(row)
            self.touched.add(key)

    def outputs(self, only: set[tuple[Any, ...]] | None = None) -> list[tuple[Any, ...]]:
        found = []
        for key, rows in self.rows.items():
            if (only is None or key in only) and sum(sign for sign, _, _ in rows) > 0:
                found.append((*key, *(self.result(aggregate, rows) for aggregate in self.spec.aggregates)))
        return found

    @staticmethod
    def result(aggregate: AggregateSpec, rows: Sequence[Row]) -> Any:
        function = aggregate.function
        if aggregate.input is None:
            return sum(sign for sign, _, _ in rows)
        number = int(aggregate.input[1:])
        signed = [(sign, values[number]) for sign, _, values in rows]
        values = [value for _, value in signed if value is not None]
        total_seen = sum(sign for sign, value in signed if value is not None)
        if function == "count":
            return total_seen
        if function in ("first", "last"):
            pool = values if aggregate.option("ignore_nulls", False) else [value for _, value in signed]
            return pool[0 if function == "first" else -1] if pool else None
        if total_seen <= 0:
            return None
        if function in ("min", "max"):
            return (min if function == "min" else max)(values, key=ordering)
        kind = required(str(aggregate.input_type), "value")
        if function in ("sum", "mean"):
            with decimal.localcontext(prec=60):
                total: Any = Decimal(0) if kind.kind == "decimal" else 0
                if kind.kind == "float" or (function == "mean" and kind.kind == "int"):
                    total = 0.0
                for sign, value in signed:
                    if value is not None:
                        total = total + value if sign > 0 else total - value
                if function == "sum":
                    return total
                if kind.kind != "decimal":
                    return total / total_seen
                step = Decimal(1).scaleb(-(kind.scale + 4))
                return (total / total_seen).quantize(step, rounding=decimal.ROUND_HALF_UP)
        if total_seen < 2:
            return None
        left: list[float] = []
        for sign, value in signed:
            if value is not None:
                left.append(float(value)) if sign > 0 else left.remove(float(value))
        if not all(map(math.isfinite, left)):
            return math.nan
        try:
            spread = statistics.variance(left)
        except OverflowError:  # it computes exactly; doubles have infinity for that
            return math.inf
        return math.sqrt(spread) if function == "stddev" else spread


def ordering(value: Any) -> Any:
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


def plain(found: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def bits(found: pa.RecordBatch) -> bytes:
    """The batch byte for byte: unlike Arrow's equality this knows NaN, and the sign of 0."""
    return bytes(found.serialize())


def assert_same(found: pa.RecordBatch, expected: Sequence[tuple[Any, ...]]) -> None:
    rows = plain(found)
    assert len(rows) == len(expected), (rows, expected)
    for row, wanted in zip(rows, expected, strict=True):
        for value, want in zip(row, wanted, strict=True):
            assert same(value, want), (row, wanted)


def same(value: Any, want: Any) -> bool:
    if isinstance(value, float) and isinstance(want, float):
        return math.isclose(value, want, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(value) and math.isnan(want))
    if isinstance(value, float) and want == "NaN":
        return math.isnan(value)
    return bool(value == want) and (value is None) == (want is None)


def decode(operator: AggregateOperator, value_types: Sequence[str], rows: Sequence[Row], **how: Any) -> Rows:
    return operator.decode(batch(operator.spec, value_types, rows, **how))


def stage(keys: Sequence[str], aggregates: Sequence[tuple[str, ...]], **how: Any) -> StageSpec:
    """``("sum", "v0", "bigint")`` and the like, with names made up."""
    return StageSpec(
        tuple(Column(f"key{number}", kind) for number, kind in enumerate(keys)),
        tuple(
            AggregateSpec(
                f"out{number}",
                one[0],
                one[1] if len(one) > 1 else None,
                one[2] if len(one) > 2 else None,
                tuple(one[3:]),  # type: ignore[arg-type]
            )
            for number, one in enumerate(aggregates)
        ),
        **how,
    )
