"""What is fed back comes as it was, in one order, and nobody can change it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from holdfast.errors import SinkError
from holdfast.state.feedback import LIMIT, Feedback, packed, unpacked

AT = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def test_rows_come_back_in_the_order_of_their_columns_whatever_order_they_had() -> None:
    rows = pa.table(
        {
            "k": ["b", None, "a", "a"],
            "n": [1, 2, None, 3],
            "price": pa.array([Decimal("1.50"), None, Decimal("2.00"), None], pa.decimal128(10, 2)),
            "at": pa.array([AT, None, AT, AT], pa.timestamp("us", "Pacific/Auckland")),
            "tags": [["x"], [], None, ["y", "z"]],
        }
    )
    there = [
        {"k": "a", "n": 3, "price": None, "at": AT, "tags": ("y", "z")},
        {"k": "a", "n": None, "price": Decimal("2.00"), "at": AT, "tags": None},
        {"k": "b", "n": 1, "price": Decimal("1.50"), "at": AT, "tags": ("x",)},
        {"k": None, "n": 2, "price": None, "at": None, "tags": ()},
    ]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]):
        chunks = pa.concat_tables([rows.take([number]) for number in order])
        found = unpacked(packed("top", 1, chunks))
        assert [dict(row) for row in found] == there
        assert found[0]["at"].tzinfo is dt.UTC
    with pytest.raises(TypeError):
        found[0]["n"] = 4  # type: ignore[index]


def test_rows_that_differ_in_a_list_alone_have_an_order_too() -> None:
    rows = pa.table({"tags": [["b"], ["a"], ["a", "c"]]})
    assert packed("top", 1, rows) == packed("top", 1, rows.take([2, 0, 1]))


def test_none_are_none() -> None:
    assert packed("top", 1, pa.table({"k": pa.array([], pa.string())})) == b""
    given = Feedback({"top": b"", "job/other": packed("job/other", 1, pa.table({"n": [1]}))})
    assert given["top"] == ()
    assert [dict(row) for row in given["job/other"]] == [{"n": 1}]
    assert list(given) == ["top", "job/other"]
    with pytest.raises(KeyError, match="nothing is fed back as 'tpo'; what is: top, job/other"):
        given["tpo"]
    assert given.get("tpo") is None


def test_more_than_64_kib_are_refused_by_name_and_say_the_way_out() -> None:
    fits = pa.table({"text": ["x" * (LIMIT - 1000)]})
    assert len(packed("job/top", 7, fits)) <= LIMIT
    with pytest.raises(SinkError, match=r"Feedback 'job/top' of epoch 7 is [\d,]+ bytes in 1 rows; at most") as caught:
        packed("job/top", 7, pa.table({"text": ["x" * LIMIT]}))
    assert ".feedback('top')" in caught.value.todo
