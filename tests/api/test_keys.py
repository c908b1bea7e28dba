"""A key that is asked for is taken as it is, or refused: never another key's row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

import holdfast as hf
from holdfast import testing
from holdfast.api.keys import key_rows
from holdfast.operators.spec import Column

UTC = dt.UTC
GOOD: list[tuple[str, Any, Any]] = [
    ("boolean", True, True),
    ("boolean", np.bool_(False), False),
    ("tinyint", -128, -128),
    ("int", np.int64(7), 7),
    ("bigint", 2**63 - 1, 2**63 - 1),
    ("float", 0.5, 0.5),
    ("double", 3, 3.0),
    ("double", np.float32(0.25), 0.25),
    ("decimal(10,2)", Decimal("1.5"), Decimal("1.50")),
    ("decimal(10,2)", 3, Decimal("3.00")),
    ("string", "x", "x"),
    ("binary", b"x", b"x"),
    ("binary", bytearray(b"x"), b"x"),
    ("date", dt.date(2026, 1, 2), dt.date(2026, 1, 2)),
    ("date", np.datetime64("2026-01-02"), dt.date(2026, 1, 2)),
    ("timestamp", dt.datetime(2026, 1, 2, tzinfo=UTC), dt.datetime(2026, 1, 2, tzinfo=UTC)),
    ("timestamp", dt.datetime(2026, 1, 2), dt.datetime(2026, 1, 1, 23, tzinfo=UTC)),  # in the session's zone
    ("timestamp_ntz", dt.datetime(2026, 1, 2), dt.datetime(2026, 1, 2)),
    ("timestamp_ntz", np.datetime64("2026-01-02T00:00:00.000000000"), dt.datetime(2026, 1, 2)),
    ("bigint", None, None),
]
BAD: list[tuple[str, Any]] = [
    ("bigint", 3.7),
    ("bigint", 3.0),
    ("bigint", "x"),
    ("bigint", "3"),
    ("bigint", True),
    ("bigint", 2**63),
    ("tinyint", 128),
    ("int", np.float64(3)),
    ("boolean", 1),
    ("double", "1.0"),
    ("double", 2**53 + 1),
    ("decimal(10,2)", 1.5),
    ("decimal(10,2)", Decimal("1.234")),
    ("decimal(4,2)", Decimal("123.45")),
    ("string", b"x"),
    ("string", 3),
    ("binary", "x"),
    ("date", dt.datetime(2026, 1, 2)),
    ("date", "2026-01-02"),
    ("timestamp", dt.date(2026, 1, 2)),
    ("timestamp", 1767312000),
    ("timestamp_ntz", dt.datetime(2026, 1, 2, tzinfo=UTC)),
    ("timestamp", np.datetime64("2026-01-02T00:00:00.000000001")),
    ("bigint", object()),
]


@pytest.mark.parametrize(("kind", "value", "wanted"), GOOD)
def test_values_of_the_columns_type_are_taken_as_they_are(kind: str, value: Any, wanted: Any) -> None:
    found = key_rows("totals", [Column("user", kind)], [value], "Europe/Berlin").column("k0")[0].as_py()
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize(("kind", "value"), BAD)
def test_others_are_refused_by_name_type_and_value(kind: str, value: Any) -> None:
    with pytest.raises(hf.PlanError) as refused:
        key_rows("totals", [Column("user", kind)], [value], "UTC")
    said = str(refused.value)
    assert "'user'" in said
    assert "'totals'" in said
    assert kind in said
    assert repr(value.item() if isinstance(value, np.number) else value)[:30] in said


@pytest.mark.parametrize("key", [(), (1,), (1, "a", 2)])
def test_as_many_values_as_the_key_has_columns(key: tuple[Any, ...]) -> None:
    with pytest.raises(hf.PlanError, match=r"2 columns \(user, shop\)"):
        key_rows("totals", [Column("user", "bigint"), Column("shop", "string")], key, "UTC")


def test_a_test_reads_keys_alike() -> None:
    job = testing.Job()
    totals = job.read("user bigint, shop string, n bigint").key_by("user", "shop", name="totals").agg(n=hf.sum("n"))
    with job.start() as run:
        run.epoch([{"user": 3, "shop": "a", "n": 1}, {"user": None, "shop": "a", "n": 5}, {"user": 3, "n": 7}])
        assert run.get(totals, 3, "a") == {"user": 3, "shop": "a", "n": 1}
        assert run.get(totals, np.int32(3), None) == {"user": 3, "shop": None, "n": 7}
        assert run.get(totals, None, "a") == {"user": None, "shop": "a", "n": 5}
        assert run.get(totals, 4, "a") is None
        with pytest.raises(hf.PlanError, match=r"bigint: 3\.7 is a float"):
            run.get(totals, 3.7, "a")


@pytest.mark.parametrize(
    ("zone", "hours"), [("Z", 0), ("+02:00", 2), ("GMT+8", 8), ("UTC-01:00", -1), ("UT+1", 1), ("Asia/Tokyo", 9)]
)
def test_every_way_in_which_spark_names_zones(zone: str, hours: int) -> None:
    rows = key_rows("s", [Column("at", "timestamp")], [dt.datetime(2026, 1, 2)], zone)
    assert rows["k0"][0].as_py() == dt.datetime(2026, 1, 2, tzinfo=UTC) - dt.timedelta(hours=hours)


@pytest.mark.parametrize(
    ("kind", "value", "zone", "why"),
    [
        ("timestamp", dt.datetime(2026, 1, 2), "PST", "does not know the session's, 'PST'"),
        ("timestamp", dt.datetime(9999, 12, 31, 23, 59), "America/New_York", "years 1 to 9999"),
        ("timestamp", pd.Timestamp("2026-01-02T00:00:00.000000001"), "UTC", "between two values"),
        ("float", 1e300, "UTC", "too large for a float"),
    ],
)
def test_what_python_cannot_say_exactly_is_refused(kind: str, value: Any, zone: str, why: str) -> None:
    with pytest.raises(hf.PlanError, match=why):
        key_rows("s", [Column("at", kind)], [value], zone)
