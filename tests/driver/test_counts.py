"""Late rows and the like are counted once, however often their slice is applied, and by whom."""

from __future__ import annotations

from holdfast.driver.counts import Counts


def test_an_answer_that_comes_after_the_commit_does_not_count_again() -> None:
    counts = Counts()
    counts.taken(1, 1, {"s": {"came": 9, "null time": 4}})
    counts.taken(1, 1, {"s": {"came": 9, "null time": 1}})  # the intake was run again
    counts.applied(1, "s", {"0": {"late": 2}, "1": {"late": 3}})
    counts.applied(1, "s", {"0": {"late": 2}})  # a new owner, after a loss
    assert counts.committed(1) == {"s": {"came": 9, "null time": 1, "late": 5}}
    assert counts.total == {"s": {"null time": 1, "late": 5}}
    counts.applied(1, "s", {"1": {"late": 3}})  # the destination of a move
    counts.applied(2, "s", {"0": {"late": 1}})
    counts.committed(2)
    assert counts.total == {"s": {"null time": 1, "late": 6}}
