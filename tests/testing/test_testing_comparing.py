"""``testing.equal``: what counts as the same, and how a difference reads."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing import at, equal


def test_what_is_the_same() -> None:
    nan = float("nan")
    equal([{"a": 1, "x": 0.1 + 0.2}, {"a": 2, "x": nan}], [{"x": nan, "a": 2}, {"x": 0.3, "a": 1}])
    equal(
        [{"t": at("2026-01-01 00:00:01"), "d": dt.date(2026, 1, 1)}], [{"t": "2026-01-01T00:00:01Z", "d": "2026-01-01"}]
    )
    equal([{"t": at("2026-01-01 00:00:01")}], [{"t": dt.datetime(2026, 1, 1, 0, 0, 1)}])
    equal([{"p": Decimal("1.50"), "x": 2.0}], [{"p": Decimal("1.5"), "x": 2}])
    equal(pa.table({"a": [1, None]}), [{"a": None}, {"a": 1}])
    equal([], [])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([{"a": 1}], []),
        ([{"a": 1}, {"a": 1}], [{"a": 1}]),
        ([{"a": True}], [{"a": 1}]),
        ([{"a": None}], [{"a": 0}]),
        ([{"a": "1"}], [{"a": 1}]),
        ([{"x": 1.0}], [{"x": 1.0 + 1e-6}]),
        ([{"x": 1.0}], [{"x": float("nan")}]),
        ([{"a": 1, "b": 2}], [{"a": 1}]),
        ([{"t": at("2026-01-01 00:00:01")}], [{"t": "2026-01-01 00:00:02"}]),
        ([{"t": at("2026-01-01 00:00:01")}], [{"t": "soon"}]),
    ],
)
def test_what_is_not(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for ordered in (False, True):
        with pytest.raises(AssertionError, match="The rows differ"):
            equal(found, expected, ordered=ordered)


def test_order_and_tolerance_on_request() -> None:
    equal([{"x": 1.0}], [{"x": 1.001}], tolerance=0.01)
    with pytest.raises(AssertionError, match="row 0: a row: a is 1, expected 2"):
        equal([{"a": 1}, {"a": 2}], [{"a": 2}, {"a": 1}], ordered=True)


def test_a_difference_names_rows_and_columns() -> None:
    found = [{"k": "a", "n": 1, "t": at("2026-01-01 00:00:01")}, {"k": "b", "n": 2, "t": None}]
    expected = [{"k": "a", "n": 3, "t": "2026-01-01 00:00:01"}, {"k": "c", "n": 9, "t": dt.date(2026, 1, 1)}]
    with pytest.raises(AssertionError) as caught:
        equal(found, expected)
    assert str(caught.value).splitlines() == [
        "The rows differ: 2 found, 2 expected.",
        "  k='a', t=2026-01-01 00:00:01: n is 1, expected 3",
        "  missing:  k='c', n=9, t=2026-01-01",
        "  too many: k='b', n=2, t=None",
    ]
    with pytest.raises(AssertionError, match="… and 80 more"):
        equal([{"a": number} for number in range(100)], [])


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-10, 10)), max_size=12), st.randoms(use_true_random=False))
def test_any_rows_are_equal_to_themselves_in_any_order(rows: list[tuple[int, float]], draw: Any) -> None:
    found = [{"k": key, "x": value} for key, value in rows]
    other = [dict(row) for row in found]
    draw.shuffle(other)
    equal(found, other)
    if found:
        with pytest.raises(AssertionError):
            equal(found, other[1:])
