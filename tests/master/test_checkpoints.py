"""Which checkpoint stands in for one that cannot be read."""

from __future__ import annotations

import pytest

from holdfast.master.checkpoints import Checkpointing


@pytest.mark.parametrize(
    ("newest", "before", "tried", "instead"),
    [
        (5, 4, {5}, 4),  # the one before it
        (5, 4, {4}, 5),  # it was the newest when it was asked for; what is below it has been cut since
        (5, 4, {2}, 5),  # long ago
        (4, 0, {4}, 0),  # there was never another, so the log is there from its beginning
        (6, 3, {3, 0}, 6),  # two were completed while they were tried
        (5, 4, {5, 4}, None),  # the log below both is cut
        (0, 0, {0}, None),
    ],
)
def test_another_one_that_is_complete(newest: int, before: int, tried: set[int], instead: int | None) -> None:
    assert Checkpointing(None, newest, 1, before).other_than(tried) == instead
