"""Measured speeds: what is believed, and when."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from holdfast.ring import meters
from holdfast.ring.meters import ENOUGH, FADING, Flow, Rate, known, working


def test_a_little_says_nothing_and_much_of_it_does() -> None:
    rate = Rate()
    rate.note(ENOUGH // 2, 1.0)
    assert rate.value == 0.0
    rate.note(ENOUGH // 2, 3.0)
    assert rate.value == ENOUGH / 4


def test_the_best_of_late_counts_and_fades() -> None:
    rate = Rate()
    rate.note(ENOUGH, 1.0)
    rate.note(ENOUGH, 8.0)
    assert rate.value == FADING * ENOUGH
    rate.note(ENOUGH, 0.5)
    assert rate.value == 2 * ENOUGH
    for _ in range(100):
        rate.note(ENOUGH, 8.0)
    assert rate.value == ENOUGH / 8, "what has become slow is believed"


def test_what_goes_on_side_by_side_counts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(meters, "time", SimpleNamespace(monotonic=lambda: now[0]))
    flow = Flow()
    with flow.under_way(ENOUGH):
        now[0] += 1
        with flow.under_way():
            now[0] += 1
            flow.moved(ENOUGH)
    now[0] += 1000  # nothing is under way
    assert flow.value == ENOUGH
    with contextlib.suppress(ValueError), flow.under_way(8 * ENOUGH):
        now[0] += 1
        raise ValueError("broken")
    assert flow.value == 8 * ENOUGH, "what went wrong has ended too"


def test_waiting_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter([1.0, 3.0])
    monkeypatch.setattr(meters, "time", SimpleNamespace(thread_time=lambda: next(spent)))
    rate = Rate()
    with working(rate, ENOUGH):
        pass
    assert rate.value == ENOUGH / 2


def test_a_limit_is_a_fact_unless_it_is_slower_than_that() -> None:
    assert [known(None, 0.0), known(5.0, 0.0), known(5.0, 7.0), known(None, 7.0), known(5.0, 3.0)] == [0, 5, 5, 7, 3]
