"""From blocks to epochs: when the next one begins and what it takes."""

from __future__ import annotations

from typing import Any

from master_kit import taking

from holdfast.log.records import FEED, Fence, Range
from holdfast.master.events import BlockThere, DoneWanted, EpochWanted, GoOn, Prepared, Started
from holdfast.master.feed import FeedStarted
from holdfast.master.instructions import EpochCommitted, EpochDone, EpochFailed, EpochPrepared
from holdfast.master.pump import DecideFailed, HasRead, Pump, PumpHeld, PumpLet, TickWanted
from holdfast.safety.policies import Terms

BOOM = ValueError("boom")
NOTHING = {FEED: Range(3, 2)}


def started(last: int, let: bool = True, **facts: Any) -> tuple[Pump, list[Any]]:
    pump = Pump()
    said = [*pump.hear(FeedStarted(1, last)), *pump.hear(Started(1, 1, (), 1, 1, Terms(), **facts))]
    assert said == [], "somebody has to let it"
    return pump, list(pump.hear(PumpLet())) if let else []


def test_blocks_are_taken_one_by_one_in_order_however_many_there_are() -> None:
    pump, said = started(4, committed=2, ranges=taking(1))
    assert said == [EpochWanted(taking(2))]
    assert list(pump.hear(BlockThere(5))) == []
    assert pump.unread == 3
    assert list(pump.tell(EpochPrepared(taking(2)))) == []
    assert list(pump.tell(EpochCommitted(taking(2), 3))) == [], "a checkpoint may hold the next one back"
    assert list(pump.tell(EpochDone(3))) == [HasRead(3, 3), EpochWanted(taking(3))]


def test_what_a_start_finds_prepared_is_finished_first_and_waits_for_nobody() -> None:
    prepared = (Prepared(1, Fence(1, 3, 1), NOTHING),)
    _, said = started(4, committed=2, ranges=taking(1), prepared=prepared)
    assert said == [EpochWanted(NOTHING)]


def test_what_was_prepared_before_there_were_blocks_waits_for_its_block() -> None:
    prepared = (Prepared(1, Fence(1, 3, 1), taking(2)),)
    pump, said = started(2, committed=2, ranges=taking(1), prepared=prepared)
    assert said == []
    assert list(pump.hear(BlockThere(3))) == [EpochWanted(taking(2))]


def test_a_tick_takes_no_block_and_comes_only_if_nothing_else_does() -> None:
    pump, _ = started(0)
    assert list(pump.hear(TickWanted())) == [], "there is nothing yet for time to pass over"
    pump, said = started(2, committed=2, ranges=taking(1))
    assert said == []
    assert list(pump.hear(TickWanted())) == [EpochWanted(NOTHING)]
    assert list(pump.hear(TickWanted())) == [], "one is under way"
    assert list(pump.hear(BlockThere(3))) == []
    list(pump.tell(EpochCommitted(NOTHING, 3)))
    assert list(pump.tell(EpochDone(3))) == [HasRead(2, 3), EpochWanted(taking(2))]


def test_while_it_is_held_nothing_begins_and_what_is_under_way_goes_on() -> None:
    pump, _ = started(3, committed=2, ranges=taking(1))
    list(pump.hear(PumpHeld()))
    assert not pump.at_rest
    list(pump.hear(BlockThere(4)))
    list(pump.tell(EpochCommitted(taking(2), 3)))
    assert list(pump.tell(EpochDone(3))) == [HasRead(3, 3)]
    assert pump.at_rest
    assert list(pump.hear(PumpLet())) == [EpochWanted(taking(3))]


def test_an_epoch_that_failed_is_tried_again_when_somebody_says_so() -> None:
    pump, _ = started(3, committed=2, ranges=taking(1))
    list(pump.tell(EpochPrepared(taking(2))))
    assert list(pump.tell(EpochFailed(BOOM))) == [DecideFailed(BOOM)]
    assert list(pump.hear(BlockThere(4))) == []
    assert list(pump.hear(GoOn())) == [EpochWanted(taking(2))]


def test_a_commit_that_comes_when_its_epoch_was_given_up_counts_all_the_same() -> None:
    pump, _ = started(3, committed=2, ranges=taking(1))
    list(pump.tell(EpochFailed(BOOM)))
    assert list(pump.tell(EpochCommitted(taking(2), 3))) == []
    assert list(pump.hear(GoOn())) == [DoneWanted()]
    assert list(pump.tell(EpochDone(3))) == [HasRead(3, 3)]


def test_what_another_driver_was_first_with_is_wanted_in_place_of_ours() -> None:
    pump, said = started(3, committed=2, ranges=taking(1))
    assert said == [EpochWanted(taking(2))]
    assert list(pump.tell(EpochPrepared(NOTHING))) == [EpochWanted(NOTHING)]
    list(pump.tell(EpochCommitted(NOTHING, 3)))
    assert list(pump.tell(EpochDone(3))) == [HasRead(2, 3), EpochWanted(taking(2))]
