"""When Spark is asked to aggregate ahead, and when no longer."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from holdfast.operators.session import SessionSpec
from holdfast.operators.spec import Column
from holdfast.spark.partials import Preaggregation, stretched


def test_it_begins_when_keys_repeat_and_ends_when_they_do_not() -> None:
    decides = Preaggregation()
    decides.saw(100_000, 100_000, tasks=4, changed=20_000)
    assert not decides.on, "four tasks may each put out every key"
    decides.saw(100_000, 100_000, tasks=4, changed=5_000)
    assert decides.on
    decides.saw(100_000, 59_000, tasks=4, changed=5_000)
    assert decides.on
    decides.saw(100_000, 61_000, tasks=4, changed=5_000)
    assert not decides.on


def test_a_guess_that_keeps_failing_is_made_ever_more_rarely() -> None:
    """A window puts nothing out until it closes: then every guess is that aggregating would pay."""
    decides, tries = Preaggregation(), []
    for epoch in range(40):
        tries += [epoch] if decides.on else []
        decides.saw(100_000, 100_000, tasks=2, changed=0)
    assert tries == [1, 4, 8, 14, 24]


def test_few_rows_and_people_who_decided_themselves_decide_nothing() -> None:
    few = Preaggregation()
    few.saw(9_000, 9_000, tasks=1, changed=1)
    assert not few.on
    for wish in (True, False):
        asked = Preaggregation(wish)
        asked.saw(100_000, 100_000 if wish else 10, tasks=1, changed=1)
        assert asked.on is wish


@pytest.mark.spark
def test_what_may_be_late_shares_no_group_with_what_is_in_time(spark: SparkSession) -> None:
    """Gap 10 µs, watermark 105: a row at 90 may be late, one at 97 is not, though their cell begins at 90."""
    gap, late = 10, 105
    partials = SessionSpec((), (), (Column("at", "timestamp"),), gap, "event", "v0").partials()
    assert partials is not None
    assert partials.stretch is not None
    times = spark.range(60, 130).select("id", sf.timestamp_micros("id").alias("at"))
    found = times.select(
        "id", sf.unix_micros(stretched(partials.stretch, sf.col("at"), late, None)).alias("group")
    ).collect()
    groups: dict[int, list[int]] = {}
    for time, group in found:
        groups.setdefault(group, []).append(time)
    assert all(len(rows) == 1 for rows in groups.values() if min(rows) < late - gap)
    assert [rows for rows in groups.values() if min(rows) >= late - gap] == [
        [95, 96, 97, 98, 99],
        list(range(100, 110)),
        list(range(110, 120)),
        list(range(120, 130)),
    ]
