"""Autoscaling: grows soon, shrinks late, never flaps, and always says why."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import PlanError
from holdfast.master.autoscale import Advice, Autoscale, Autoscaler, Follower, PerExecutor

INTERVAL = 1.0


class Job:
    """A job whose containers follow the advice, some epochs later."""

    def __init__(self, policy: Autoscale, containers: int, lag: int = 0) -> None:
        self.autoscaler, self.containers, self.lag = Autoscaler(policy), containers, lag
        self.at = 0.0
        self.history = [containers]
        self._due: tuple[int, int] | None = None

    def epoch(self, seconds: float, rows: int = 1000, backlog: int | None = None) -> Advice:
        self.at += INTERVAL
        advice = self.autoscaler.saw(self.at, self.containers, seconds, INTERVAL, rows, backlog)
        assert advice.reason
        if self._due is None and advice.containers != self.containers:
            self._due = self.lag, advice.containers
        if self._due is not None:
            left, wanted = self._due
            self._due = (left - 1, wanted) if left else None
            if not left:
                self.containers = wanted
                self.history.append(wanted)
        return advice

    def epochs(self, count: int, seconds: Callable[[int], float], rows: int = 1000, backlog: int | None = None) -> None:
        for _ in range(count):
            self.epoch(seconds(self.containers), rows, backlog)

    @property
    def turns(self) -> int:
        ups = [new > old for old, new in pairwise(self.history)]
        return sum(one != other for one, other in pairwise(ups))


policies = st.builds(
    lambda least, more, target, hysteresis, up, down, cool, backlog: Autoscale(
        least, least + more, target, hysteresis, up, down, cool, backlog
    ),
    st.integers(1, 8),
    st.integers(0, 24),
    st.floats(0.2, 1.0),
    st.floats(0.05, 0.5),
    st.integers(1, 4),
    st.integers(1, 8),
    st.floats(0, 20),
    st.floats(0.5, 5),
)


@settings(deadline=None)
@given(
    policies,
    st.integers(1, 32),
    st.integers(0, 3),
    st.lists(st.floats(0.0, 2.0), min_size=33, max_size=33),
    st.none() | st.integers(0, 5000),
    st.integers(0, 1 << 32),
)
def test_a_constant_load_turns_the_direction_at_most_once(
    policy: Autoscale, containers: int, lag: int, by_count: list[float], backlog: int | None, seed: int
) -> None:
    """Whatever more containers bring, even nonsense; with noise that is smaller than the hysteresis."""
    job = Job(policy, containers, lag)
    noise, random = policy.hysteresis / 3, Random(seed)
    job.epochs(250, lambda count: by_count[count] * (1 + random.uniform(-noise, noise)), backlog=backlog)
    assert job.turns <= 1
    assert all(policy.least <= count <= policy.most for count in job.history[1:])


@given(
    policies,
    st.lists(st.tuples(st.integers(1, 40), st.floats(0, 10), st.integers(0, 9), st.integers(0, 99)), max_size=80),
)
def test_advice_is_within_the_limits_and_honours_the_cool_down(
    policy: Autoscale, epochs: list[tuple[int, float, int, int]]
) -> None:
    autoscaler = Autoscaler(policy)
    before, changed = None, -1e9
    for at, (containers, seconds, rows, backlog) in enumerate(epochs):
        advice = autoscaler.saw(float(at), containers, seconds, INTERVAL, rows, backlog)
        if before not in (None, containers):
            changed = at
        before = containers
        assert policy.least <= advice.containers <= policy.most
        if at < changed + policy.cool_down and policy.least <= containers <= policy.most:
            assert advice.containers == containers
            assert "cooling down" in advice.reason


QUICK = Autoscale(least=1, most=16, cool_down=5)


def test_it_grows_after_three_overloaded_epochs_to_what_the_target_asks_for() -> None:
    job = Job(QUICK, 4)
    assert job.epoch(1.05).containers == 4
    assert "2 of 3" in job.epoch(1.05).reason
    advice = job.epoch(1.05)
    assert advice.containers == 6
    assert "105%" in advice.reason
    assert "from 4 to 6" in advice.reason


def test_one_good_epoch_starts_the_count_again() -> None:
    job = Job(QUICK, 4)
    for seconds in (1.0, 1.0, 0.7, 1.0, 1.0):
        assert job.epoch(seconds).containers == 4


def test_it_never_more_than_doubles() -> None:
    job = Job(QUICK, 2)
    job.epochs(3, lambda count: 50.0)
    assert job.containers == 4


def test_it_shrinks_after_ten_easy_epochs() -> None:
    job = Job(QUICK, 8)
    job.epochs(9, lambda count: 0.4)
    assert job.containers == 8
    assert "from 8 to 5" in job.epoch(0.4).reason
    assert job.containers == 5


def test_it_does_not_shrink_to_where_it_would_be_overloaded() -> None:
    job = Job(QUICK, 2)
    job.epochs(50, lambda count: 0.5)
    assert job.containers == 2
    assert "with fewer containers" in job.epoch(0.5).reason


def test_waiting_rows_are_overload_even_if_epochs_are_short() -> None:
    job = Job(QUICK, 4)
    for _ in range(3):
        advice = job.epoch(0.7, rows=100, backlog=500)
    assert advice.containers == 5
    assert "5.0 epochs' worth of rows wait" in advice.reason


def test_without_an_interval_only_the_backlog_counts() -> None:
    autoscaler = Autoscaler(QUICK)
    for at in range(30):
        assert autoscaler.saw(at, 4, 9.0, 0.0, 100, 0).containers == 4
    for at in range(30, 33):
        advice = autoscaler.saw(at, 4, 0.01, 0.0, 100, 1000)
    assert advice.containers == 5


def test_after_growing_it_shrinks_only_when_the_load_falls() -> None:
    job = Job(QUICK, 2)
    job.epochs(60, lambda count: 1.0 if count == 2 else 0.1)  # far more than growing promised
    assert job.containers == 3
    assert "has not fallen" in job.epoch(0.1).reason
    job.epochs(10, lambda count: 0.1, rows=300)
    assert job.containers == 2


def test_the_epochs_that_catch_up_are_not_taken_for_the_load() -> None:
    """After growing, epochs are long until the backlog is gone: that they get shorter then is no reason to shrink."""
    job = Job(QUICK, 4)
    job.epochs(3, lambda count: 1.3, backlog=9000)
    grown = job.containers
    job.epochs(8, lambda count: 1.0 if job.at < 12 else 0.9, backlog=9000)
    grown = max(grown, job.containers)
    job.epochs(200, lambda count: 2.0 / count)
    assert job.containers >= grown
    assert job.turns == 0


def test_what_it_cannot_do_it_says() -> None:
    job = Job(Autoscale(least=2, most=3, cool_down=0), 3)
    job.epochs(3, lambda count: 2.0)
    assert "the most allowed" in job.epoch(2.0).reason
    job = Job(Autoscale(least=2, most=3, cool_down=0), 2)
    assert "the fewest allowed" in job.epoch(0.1).reason
    assert "as it should be" in job.epoch(0.7).reason
    assert Autoscaler(Autoscale(least=2, most=3)).saw(0, 9, 1.0, 1.0, 1, 0) == Advice(
        3, "9 is not within 2 to 3 containers"
    )


def test_a_change_by_somebody_else_starts_it_afresh() -> None:
    job = Job(QUICK, 2)
    job.epochs(3, lambda count: 1.0)
    assert job.containers == 3
    job.containers = 8
    job.epochs(16, lambda count: 0.2)
    assert job.containers == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"least": 0},
        {"least": 3, "most": 2},
        {"target": 0},
        {"target": 1.5},
        {"hysteresis": 0},
        {"hysteresis": 1},
        {"up_after": 0},
        {"down_after": 0},
        {"cool_down": -1},
        {"backlog": 0},
    ],
)
def test_policies_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PlanError, match=next(iter(wrong))):
        Autoscale(**wrong)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ as many as executors


def test_a_number_of_executors_that_stands_is_followed() -> None:
    follower = Follower(PerExecutor(settle=5.0))
    assert follower.saw(0.0, 2, 2).containers == 2
    assert follower.saw(1.0, 2, 3).containers == 2
    assert "4 s more" in follower.saw(2.0, 2, 3).reason
    assert follower.saw(6.0, 2, 3).containers == 3
    assert follower.saw(7.0, 3, 1).containers == 3
    assert follower.saw(12.0, 3, 1).containers == 1


def test_an_executor_that_comes_again_changes_nothing() -> None:
    follower = Follower(PerExecutor(settle=5.0))
    for at in range(60):
        executors = 1 if at % 4 == 3 else 2
        assert follower.saw(float(at), 2, executors).containers == 2


def test_without_executors_containers_stay() -> None:
    follower = Follower(PerExecutor(settle=0.0))
    assert [follower.saw(float(at), 2, 0).containers for at in range(3)] == [2, 2, 2]


def test_a_settling_time_below_zero_is_refused() -> None:
    with pytest.raises(PlanError, match="settle"):
        PerExecutor(settle=-1.0)
