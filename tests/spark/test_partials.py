"""When Spark is asked to aggregate ahead, and when no longer."""

from __future__ import annotations

from holdfast.spark.partials import Preaggregation


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
