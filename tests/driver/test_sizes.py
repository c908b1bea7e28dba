"""What containers say of an epoch when they apply it."""

from __future__ import annotations

import pytest

from holdfast.driver import sizes as sizing
from holdfast.driver.counts import CAME, Counts, counted
from holdfast.driver.sizes import Sizes
from holdfast.invariants import Impossible
from holdfast.log.records import SegmentRef
from holdfast.wire.messages import StageFigures, Tag


def test_outputs_are_as_large_as_all_containers_together_say() -> None:
    sizes = Sizes(4)
    sizes.applied("a", 1, {"s": StageFigures(changed=3, rows=10, due=70)})
    sizes.applied("b", 1, {"s": StageFigures(changed=2, rows=5), "t": StageFigures(changed=9, rows=9, due=50)})
    sizes.applied("b", 1, {"s": StageFigures(changed=4, rows=5)})  # of slices that it has got meanwhile
    assert (sizes.of("s", "changed"), sizes.of("s", "changelog"), sizes.of("s", "all")) == (9, 9, 15)
    assert sizes.of("nothing", "all") == 0
    assert sizes.over() == 50
    assert sizes.of("s", "all") == 0
    assert sizes.over() is None


def test_small_ones_go_through_the_driver() -> None:
    sizes = Sizes(1)
    sizes.applied("a", 1, {"s": StageFigures(changed=10, rows=1000)})
    assert sizes.small("s", "changed", sizing.SMALL_BYTES // 10)
    assert not sizes.small("s", "changed", sizing.SMALL_BYTES // 10 + 1)
    assert not sizes.small("s", "all", sizing.SMALL_BYTES // 100)


def test_large_outputs_are_fetched_by_several_tasks() -> None:
    sizes = Sizes(1)
    sizes.applied("a", 1, {"s": StageFigures(changed=0, rows=10)})
    assert sizes.tasks("s", "changed", 100, 8) == 1
    assert sizes.tasks("s", "all", sizing.TASK_BYTES // 10, 8) == 1
    assert sizes.tasks("s", "all", sizing.TASK_BYTES // 10 + 1, 8) == 2
    assert sizes.tasks("s", "all", sizing.TASK_BYTES, 8) == 8


def test_the_oldest_open_session_is_of_this_epoch_and_of_all_slices() -> None:
    sizes = Sizes(2)
    sizes.applied("a", 1, {"s": StageFigures(0, 0, oldest={0: 30})})
    with pytest.raises(Impossible, match="1 of 2 slices"):
        sizes.opened("s", 1)
    sizes.applied("b", 1, {"s": StageFigures(0, 0, oldest={1: 20})})
    assert sizes.opened("s", 1) == 20
    sizes.applied("a", 2, {"s": StageFigures(0, 0, oldest={0: 40})})
    sizes.applied("b", 2, {"s": StageFigures(0, 0, oldest={1: None})})
    sizes.applied("c", 1, {"s": StageFigures(0, 0, oldest={1: 20})})  # the destination of a move, late
    assert sizes.opened("s", 2) == 40


def test_late_rows_count_once_a_slice_and_epoch() -> None:
    counts = Counts()
    segment = SegmentRef("", 1, 1, 1, 0, 0)
    tags = [Tag(segment, dropped={"s": {"future": 2}}, came={"s": 10}), Tag(segment, came={"s": 5})]
    counts.taken(1, 1, counted(tags))
    counts.applied(1, "s", {0: {"late": 3}, 1: {"late": 1}})
    counts.applied(1, "s", {0: {"late": 3}})  # two owners, in dual mode
    counts.applied(2, "s", {0: {"late": 7}})
    assert counts.committed(1) == {"s": {"late": 4, "future": 2, CAME: 15}}
    assert counts.total == {"s": {"late": 4, "future": 2}}
    assert counts.committed(2) == {"s": {"late": 7}}
