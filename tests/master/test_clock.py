"""The epoch clock: a driver's clock that jumps is followed, but not at once; a start takes it as it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.master.clock import FASTEST, SLOWEST, EpochClock

NOW = 1_790_000_000_000
SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000


class Driver:
    """A run over one store: epochs a second apart, by a clock that may be wrong by ``error``."""

    def __init__(self, last: int = 0, error: int = 0) -> None:
        self.clock, self.steady, self.error = EpochClock(), 5_000, error
        self.clock.take(last, None)
        self.told: list[str] = []

    def epoch(self, passed: int = SECOND) -> int:
        self.steady += passed
        reading = self.clock.read(NOW + self.steady + self.error, self.steady)
        self.clock.take(reading.clock, self.steady)
        self.told += [reading.warning] if reading.warning else []
        return reading.clock - NOW - self.steady  # by how much it is wrong


def test_it_follows_a_clock_that_is_right() -> None:
    driver = Driver(last=NOW)
    assert [driver.epoch(passed) for passed in (SECOND, 0, 10, HOUR)] == [0, 0, 0, 0]
    assert driver.told == []


def test_a_jump_ahead_gets_in_no_faster_than_time_passes() -> None:
    driver = Driver(last=NOW)
    driver.epoch()
    driver.error = 365 * DAY
    assert [driver.epoch() for _ in range(3)] == [SECOND, 2 * SECOND, 3 * SECOND]
    assert len(driver.told) == 1
    assert "jumped ahead by 365.0 days" in driver.told[0]
    assert "stop the job and start it again" in driver.told[0]
    driver.error = 0
    behind = [driver.epoch() for _ in range(40)]
    assert behind[0] == 2_900
    assert behind[-1] == 0, "it runs on, a tenth slower, until it is right again"
    assert len(driver.told) == 1


def test_a_clock_that_was_put_right_is_followed_soon() -> None:
    driver = Driver(last=NOW - DAY, error=-HOUR)
    assert driver.epoch() == -HOUR
    driver.error = 0
    assert driver.epoch(HOUR) == 0


def test_a_start_takes_the_clock_as_it_is_and_says_so_after_a_long_pause() -> None:
    driver = Driver(last=NOW - 7 * DAY)
    assert driver.epoch() == 0
    assert "7.0 days after the last epoch's" in driver.told[0]
    assert Driver(last=NOW - HOUR).epoch() == 0


def test_a_clock_that_was_persisted_too_far_ahead_runs_on() -> None:
    driver = Driver(last=NOW + 365 * DAY)
    first = driver.epoch()
    assert driver.epoch(10 * SECOND) == first - SECOND
    assert len(driver.told) == 1
    assert "ahead of the driver's" in driver.told[0]


@given(st.lists(st.tuples(st.integers(0, HOUR), st.integers(-10 * DAY, 10 * DAY)), max_size=30), st.integers(0, DAY))
def test_it_never_goes_back_and_never_jumps(steps: list[tuple[int, int]], ahead: int) -> None:
    driver = Driver(last=NOW + ahead)
    driver.epoch()
    for passed, error in steps:
        driver.error, before = error, driver.clock.last
        assert driver.clock.at(NOW + driver.steady + error, driver.steady) == before, "no time has passed"
        driver.epoch(passed)
        assert int(SLOWEST * passed) <= driver.clock.last - before <= FASTEST * passed
