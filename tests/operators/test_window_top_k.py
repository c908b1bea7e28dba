"""The first rows of every key in each window, when it closes: against sorting all of a window's rows at its end."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from aggregate_model import UTC, bits, crc, plain
from hypothesis import given
from hypothesis import strategies as st
from test_window_oracle import SMALL

from holdfast.operators.ahead import Cut
from holdfast.operators.spec import Column
from holdfast.operators.window_top_k import WindowTopKOperator, WindowTopKSpec
from holdfast.spark.cutting import cut
from holdfast.state.slice import NEVER, EpochTime
from holdfast.state.warm import warm

Row = tuple[str, int, int, int | None]  # key, price, who, time
BEGIN = dt.datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


def spec_of(k: int, ties: str, size: int = 10, offset: int = 0) -> WindowTopKSpec:
    values = (Column("price", "bigint"), Column("who", "int"), Column("at", "timestamp"))
    return WindowTopKSpec((Column("key", "string"),), values, ((0, True),), k, 2, size, offset, ties)


def batch(rows: list[Row]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "_h": pa.array([crc(row[0]) for row in rows], pa.int64()),
            "k0": pa.array([row[0] for row in rows], pa.string()),
            "v0": pa.array([row[1] for row in rows], pa.int64()),
            "v1": pa.array([row[2] for row in rows], pa.int32()),
            "v2": pa.array([row[3] for row in rows], pa.timestamp("us", tz="UTC")),
        }
    )


def moment(micros: int) -> dt.datetime:
    return BEGIN + dt.timedelta(microseconds=micros)


def first_of(spec: WindowTopKSpec, rows: list[Row]) -> list[tuple[Any, ...]]:
    ordered = sorted(rows, key=lambda row: (-row[1], row[2], row[3]))
    found = []
    for place, (key, price, who, time) in enumerate(ordered, start=1):
        rank = 1 + sum(row[1] > price for row in ordered) if spec.ties == "all" else place
        assert time is not None
        start = (time - spec.offset) // spec.size * spec.size + spec.offset
        if rank <= spec.k:
            found.append((key, moment(start), moment(start + spec.size), rank, price, who, moment(time)))
    return found


@SMALL
@given(data=st.data())
def test_windows_close_with_their_first_rows(data: st.DataObject) -> None:
    spec = spec_of(
        data.draw(st.integers(1, 3)),
        data.draw(st.sampled_from(["cut", "all"])),
        data.draw(st.integers(1, 12)),
        data.draw(st.integers(0, 5)),
    )
    operator = WindowTopKOperator(spec)
    state, other = operator.new_slice(), operator.new_slice()
    open_windows: dict[tuple[str, int], list[Row]] = {}
    watermark = NEVER
    copied = data.draw(st.integers(0, 6))
    for epoch in range(1, 7):
        if epoch - 1 == copied:
            other.load([state.delta(0, copied)], copied)
        late = watermark
        if data.draw(st.booleans()):
            watermark = max(watermark, 0) + data.draw(st.sampled_from([0, 1, 5, 30]))
        now = max(watermark, 0)
        times = st.none() | st.integers(now - 20, now + 20)
        row = st.tuples(st.sampled_from(["", "a"]), st.integers(0, 3), st.integers(0, 2), times)
        rows = data.draw(st.lists(row, max_size=12))
        came, partial = batch(rows), data.draw(st.booleans())
        if partial:  # as the intake makes them, without rows that have no time
            came = cut(
                came.filter(came.column("v2").is_valid()),
                0,
                Cut(spec.k, (("v0", True),), ("v2", spec.size, spec.offset)),
            )
        decoded = operator.decode(came, partial=partial) if came.num_rows else None
        counts = {"late": 0, "null time": 0}
        for one in rows:
            if one[3] is None:
                counts["null time"] += not partial
                continue
            start = (one[3] - spec.offset) // spec.size * spec.size + spec.offset
            if start + spec.size <= late:
                counts["late"] += 1
            else:
                open_windows.setdefault((one[0], start), []).append(one)
        before = bits(state.delta(0, epoch - 1))
        state.apply(epoch, decoded, time=EpochTime(late, watermark, 0))
        if data.draw(st.booleans()):
            state.undo()
            assert bits(state.delta(0, epoch - 1)) == before
            state.apply(epoch, decoded, time=EpochTime(late, watermark, 0))
        over = [window for window in open_windows if window[1] + spec.size <= watermark]
        wanted = [row for window in over for row in first_of(spec, open_windows.pop(window))]
        found = plain(state.outputs(epoch, "changed"))
        assert sorted(found) == sorted(wanted)
        assert [row[2] for row in found] == sorted(row[2] for row in found)
        assert dict(state.counts) == {name: count for name, count in counts.items() if count}
        held = [row for rows in open_windows.values() for row in first_of(spec, rows)]
        assert sorted(plain(state.read(epoch))) == sorted(held)
        if epoch > copied:
            other.apply(epoch, decoded, time=EpochTime(late, watermark, 0))
            assert bits(other.outputs(epoch, "changed")) == bits(state.outputs(epoch, "changed"))
