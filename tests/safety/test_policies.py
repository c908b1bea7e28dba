"""What a person writes as safety, in the master's words; and what is refused before anything starts."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.errors import PlanError
from holdfast.safety.intervals import Interval, seconds_of
from holdfast.safety.policies import Terms, terms_of


@pytest.mark.parametrize(
    ("span", "seconds"),
    [
        ("3 s", 3.0),
        ("3s", 3.0),
        ("500 ms", 0.5),
        ("1.5 seconds", 1.5),
        ("2 minutes", 120.0),
        ("1 Min", 60.0),
        ("1 hour", 3600.0),
        ("2 days", 172_800.0),
        (" 10 sec ", 10.0),
    ],
)
def test_spans_of_time(span: str, seconds: float) -> None:
    assert seconds_of(span) == pytest.approx(seconds)
    assert Interval.of(span, "every") == Interval(seconds=seconds)


@pytest.mark.parametrize("span", ["", "3", "s", "-3 s", "3 parsecs", "three s", "0 s", "3 s 2 ms", "s 3"])
def test_what_is_no_span_of_time(span: str) -> None:
    assert seconds_of(span) == 0.0
    with pytest.raises(PlanError, match="store_every cannot be") as refused:
        Interval.of(span, "store_every")
    assert "'3 s'" in refused.value.todo


@pytest.mark.parametrize("every", [0, -1, True, 2.5, None])
def test_what_is_no_number_of_epochs(every: object) -> None:
    with pytest.raises(PlanError, match="every cannot be"):
        Interval.of(every, "every")  # type: ignore[arg-type]


def test_an_interval_passes_by_epochs_or_by_time_and_never_by_the_other() -> None:
    by_epochs, by_time = Interval(epochs=3), Interval(seconds=3.0)
    assert not by_epochs.passed(2, 1e9)
    assert by_epochs.passed(3, 0.0)
    assert not by_time.passed(1000, 2.9)
    assert by_time.passed(0, 3.0)


def test_each_policy_in_the_masters_words() -> None:
    assert hf.Delta(2, every=5, store_every="10 s").terms() == Terms(2, Interval(epochs=5), Interval(seconds=10.0))
    assert hf.Delta().terms() == Terms(1, Interval(seconds=3.0), Interval(seconds=60.0))
    assert hf.Sync(every=4).terms() == Terms(0, Interval(epochs=1), Interval(epochs=4), blocking=True)
    assert terms_of(None) == Terms()
    assert terms_of(None).store_every is None, "the log is never cut"
    assert terms_of(hf.Sync()).blocking


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (hf.Delta(-1), "backups must be at least 0, not -1"),
        (hf.Delta(every=0), "every cannot be 0"),
        (hf.Delta(store_every="soon"), "store_every cannot be 'soon'"),
        (hf.Sync(every="0 s"), "every cannot be '0 s'"),
    ],
    ids=["backups", "every", "store_every", "sync"],
)
def test_what_cannot_be_is_refused(policy: hf.Delta | hf.Sync, words: str) -> None:
    with pytest.raises(PlanError, match=words) as refused:
        policy.terms()
    assert refused.value.safe == "Nothing was started."
