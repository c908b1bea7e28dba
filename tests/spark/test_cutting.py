"""What a task leaves out of a top_k's rows is never among the first, and what stays says how many it stands for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.operators.ahead import Cut
from holdfast.spark import cutting
from holdfast.spark.cutting import cut

Row = tuple[int, int, int, int]  # hash, key, by, time


def batch(rows: list[Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    arrays = [pa.array(column, pa.int64()) for column in columns]
    arrays[3] = arrays[3].cast(pa.timestamp("us", tz="UTC"))
    return pa.record_batch([*arrays, pa.array(range(len(rows)))], names=["_h", "k0", "v0", "v1", "number"])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(-2, 3), st.integers(-9, 20)), max_size=40),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([None, ("v1", 5, 2)]),
)
def test_the_first_stay(rows: list[Row], k: int, descending: bool, window: tuple[str, int, int] | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "PAYS_BELOW", 1.0)
        found = cut(batch(rows), 1, Cut(k, (("v0", descending),), window))
    stays = found.column("number").to_pylist()
    assert stays == sorted(stays)

    groups: dict[Any, list[int]] = {}
    for number, (_, key, _, time) in enumerate(rows):
        groups.setdefault((key, (time - 2) // 5 if window else 0), []).append(number)
    counted = dict(zip(stays, found.column("_n").to_pylist(), strict=True)) if window else {}
    for members in groups.values():
        values = sorted((rows[number][2] for number in members), reverse=descending)
        last = values[min(k, len(values)) - 1]
        first = [n for n in members if (rows[n][2] >= last if descending else rows[n][2] <= last)]
        assert set(first) <= set(stays)
        if window:
            assert sum(counted[number] for number in members if number in counted) == len(members)


def test_a_group_of_many_is_cut_to_its_first() -> None:
    rows = batch([(7, 1, price, 0) for price in range(100)] + [(8, 2, 5, 0)])
    found = cut(rows, 1, Cut(2, (("v0", True),)))
    assert found.column("v0").to_pylist() == [98, 99, 5]
    assert found.schema == rows.schema


def test_two_keys_of_one_hash_lose_nothing() -> None:
    rows = batch([(7, number % 2, number, 0) for number in range(50)])
    found = cut(rows, 1, Cut(1, (("v0", True),)))
    assert {48, 49} <= set(found.column("v0").to_pylist())


@pytest.mark.parametrize(
    "by", [pa.array([1.0] * 9 + [float("nan")]), pa.array(["a"] * 10), pa.array([None, *range(9)])], ids=str
)
def test_orders_that_only_the_stage_knows_are_left_to_it(by: pa.Array) -> None:
    rows = pa.record_batch({"_h": [1] * 10, "k0": [1] * 10, "v0": by})
    assert cut(rows, 1, Cut(1, (("v0", True),))) is rows
    windowed = cut(rows.append_column("v1", pa.array([0] * 10)), 1, Cut(1, (("v0", True),), ("v1", 5, 0)))
    assert windowed.column("_n").to_pylist() == [1] * 10
