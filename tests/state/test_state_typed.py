"""Containers as bytes, windows by time, and the declarations of states."""

from __future__ import annotations

import datetime as dt
import math
from collections import deque
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api import states as hs
from holdfast.errors import PlanError
from holdfast.state.codec import VERSION, ContainerCodec, ValuesCodec, one, only
from holdfast.state.rows import Values
from holdfast.state.slice import NEVER
from holdfast.state.types import required
from holdfast.state.values import WrongValueError, micros, moment, to_python
from holdfast.state.windows import TimeWindow

TYPES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-128, 127),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "decimal(10,2)": st.integers(-(10**10) + 1, 10**10 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
    "timestamp_ntz": st.datetimes(),
    "string": st.text(),
    "binary": st.binary(),
}


def round_trip(codec: ContainerCodec, held: Any) -> Any:
    return codec.load(memoryview(codec.dump(held)), NEVER)


@given(st.data())
def test_every_container_of_every_type_comes_back(data: st.DataObject) -> None:
    keys, of = data.draw(st.sampled_from(sorted(TYPES))), data.draw(st.sampled_from(sorted(TYPES)))
    values = data.draw(st.lists(st.none() | TYPES[of], max_size=8))
    kind = required(of, "")
    assert round_trip(ContainerCodec("list", kind, None), values) == values
    assert round_trip(ContainerCodec("queue", kind, None), deque(values)) == deque(values)
    assert round_trip(ContainerCodec("rows", kind, None, 3), deque(values, 3)) == deque(values, 3)
    held = data.draw(st.dictionaries(TYPES[keys], st.none() | TYPES[of], max_size=5))
    found = round_trip(ContainerCodec("map", kind, required(keys, "")), held)
    assert list(found.items()) == list(held.items())
    for value in values:
        assert only(ValuesCodec(kind), one(ValuesCodec(kind), value)) == value


def test_bytes_depend_on_content_alone() -> None:
    codec = ContainerCodec("map", required("bigint", ""), required("string", ""))
    interned, made = {"page": 1, "other": 2**40}, {"".join(["pa", "ge"]): int("1"), "".join(["oth", "er"]): 2**40}
    assert codec.dump(interned) == codec.dump(made)
    assert codec.dump(interned)[0] == VERSION
    assert codec.dump({}) == b""
    same = "x" * 50
    assert ContainerCodec("list", required("string", ""), None).dump([same, same]) == ContainerCodec(
        "list", required("string", ""), None
    ).dump(["x" * 25 + "x" * 25, "xx" * 25])


@pytest.mark.parametrize(
    ("kind", "values", "at"),
    [
        ("bigint", [1, 2.0], 1),
        ("bigint", [True], 0),
        ("bigint", [None, 1, 2**63], 2),
        ("tinyint", [-128, 128], 1),
        ("double", [1.0, "x"], 1),
        ("string", ["a", b"a"], 1),
        ("boolean", [True, 1], 1),
        ("date", [dt.date(2020, 1, 1), dt.datetime(2020, 1, 1)], 1),
        ("timestamp", [dt.date(2020, 1, 1)], 0),
        ("decimal(4,2)", [Decimal("99.99"), Decimal("100")], 1),
        ("decimal(4,2)", [Decimal("0.001")], 0),
        ("decimal(4,2)", [1.0], 0),
        ("decimal(4,2)", [Decimal("NaN")], 0),
    ],
)
def test_a_wrong_value_is_found(kind: str, values: list[Any], at: int) -> None:
    with pytest.raises(WrongValueError) as caught:
        ContainerCodec("list", required(kind, ""), None).dump(values)
    assert caught.value.at == at


def test_floats_are_rounded_to_what_was_declared() -> None:
    assert round_trip(ContainerCodec("list", required("float", ""), None), [0.1, None, 2]) == [
        pytest.approx(0.1, rel=1e-7),
        None,
        2.0,
    ]
    found = round_trip(ContainerCodec("list", required("double", ""), None), [1, math.inf, -0.0])
    assert repr(found) == "[1.0, inf, -0.0]"


def test_pickled_holds_anything_even_classes_of_a_script() -> None:
    class Local:
        def __init__(self, n: int) -> None:
            self.n = n

    codec = ContainerCodec("pickled", None, None)
    assert round_trip(codec, {"a": {1, 2}}) == {"a": {1, 2}}
    assert round_trip(codec, Local(3)).n == 3
    assert round_trip(codec, 0) == 0
    assert codec.dump(None) == b""
    assert codec.load(memoryview(b""), NEVER) is None


@given(st.lists(st.tuples(st.integers(0, 100), st.integers())), st.integers(0, 60))
def test_a_time_window_keeps_what_is_younger_than_its_span(given_values: list[tuple[int, int]], late: int) -> None:
    window, present = TimeWindow(10, late, [], []), late
    taken: list[tuple[int, int]] = []
    for time, value in given_values:
        assert window.append(value, time) is (time > present - 10)
        present = max(present, time)
        taken = [one for one in [*taken, (time, value)] if one[0] > present - 10]
        assert window.items() == [(moment(t), v) for t, v in sorted(taken, key=lambda one: one[0])]
    codec = ContainerCodec("time", required("bigint", ""), None, 10)
    later = codec.load(memoryview(codec.dump(window)), late + 5) if not given_values else None
    again = round_trip(codec, window) if all(abs(value) < 2**63 for _, value in given_values) else window
    assert list(again) == list(window)
    assert not later


def test_times_are_datetimes_or_microseconds() -> None:
    assert micros(dt.datetime(1970, 1, 1, 0, 0, 1)) == micros(dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)) == 10**6
    assert micros(5) == 5
    assert moment(-1) == dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC)
    for wrong in (1.5, True, "now", None):
        with pytest.raises(TypeError):
            micros(wrong)  # type: ignore[arg-type]


def test_a_time_beyond_the_calendar_stays_a_number_and_spoils_no_other() -> None:
    far = 10**18  # year 33658
    column = Values(np.array([-1, far, 5], np.int64), np.array([1, 1, 0], np.uint8))
    assert to_python(required("timestamp", ""), column) == [moment(-1), far, None]


def test_declarations_say_what_a_stage_keeps() -> None:
    class Base:
        count = hs.value("bigint", default=3)

    class Visits(Base):
        pages = hs.map("string", "bigint", ttl="1 hour", by="clock")
        hour = hs.window(time="1 hour", of="double")

    count, pages, hour = hs.specs(Visits, {"more": hs.list("date")})[:3]
    assert (count.name, count.kind, count.ttl) == ("count", "value", 0)
    assert (pages.type, pages.key_type, pages.ttl, pages.by) == ("bigint", "string", 3_600_000_000, "clock")
    assert (hour.kind, hour.limit) == ("time", 3_600_000_000)
    assert [spec.name for spec in hs.specs(Visits())] == ["count", "pages", "hour"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: hs.value("array<int>"),
        lambda: hs.value("bigint", default="x"),
        lambda: hs.value("bigint", ttl="soon"),
        lambda: hs.value("bigint", ttl="1 s", by="moon"),
        lambda: hs.map("string", "struct<a:int>"),
        lambda: hs.window(of="double"),
        lambda: hs.window(rows=3, time="1 s", of="double"),
        lambda: hs.window(rows=0, of="double"),
        lambda: hs.window(time="1 s", of="double", ttl="1 s"),
        lambda: hs.specs(print, {"_hidden": hs.list("int")}),
        lambda: hs.specs(print, {"class": hs.list("int")}),
        lambda: hs.specs(print, {"x": "bigint"}),  # type: ignore[dict-item]
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(PlanError):
        wrong()
