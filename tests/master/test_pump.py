"""From blocks to epochs: when the next one begins and what it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from master_kit import batch, taking

from holdfast.log.records import FEED, Fence, Range
from holdfast.master.events import BlockThere, DoneWanted, EpochWanted, Event, GoOn, Prepared, Started
from holdfast.master.fed import Fed
from holdfast.master.feed import BatchOffered, FailBatch, FeedStarted, TakeIn
from holdfast.master.instructions import EpochCommitted, EpochDone, EpochFailed, EpochPrepared
from holdfast.master.pump import DecideFailed, EpochsOver, HasRead, Pump, PumpHeld, PumpLet, TickWanted
from holdfast.safety.policies import Terms

if TYPE_CHECKING:
    from holdfast.master.machine import Master

BOOM = ValueError("boom")
NOTHING = {FEED: Range(3, 2)}


def started(last: int, let: bool = True, **facts: Any) -> tuple[Pump, list[Any]]:
    pump = Pump()
    said = [*pump.hear(FeedStarted(1, last)), *pump.hear(Started(1, 1, (), 1, 1, Terms(), **facts))]
    assert said == [], "somebody has to let it"
    return pump, list(pump.hear(PumpLet())) if let else []


class Silent:
    """In the place of a master: what it was told."""

    def __init__(self) -> None:
        self.told: list[Event] = []

    def handle(self, event: Event) -> list[Any]:
        self.told.append(event)
        return []

    def take(self) -> list[Event]:
        found, self.told = [one for one in self.told if not isinstance(one, Started)], []
        return found


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


@pytest.mark.parametrize("decided", [GoOn(), EpochsOver(BOOM)])
def test_a_batch_that_comes_while_a_failed_epoch_is_decided_about_waits_for_that(decided: Event) -> None:
    """Tried again at once, it might be over when it is decided, and the next one left without a stage."""
    master = Silent()
    fed = Fed(cast("Master", master))
    for event in (FeedStarted(1, 2, batch(1), read=2), Started(1, 1, (), 1, 1, Terms(), committed=2, ranges=taking(1))):
        fed.handle(event)
    fed.handle(PumpLet())
    fed.handle(TickWanted())
    assert master.take() == [EpochWanted(NOTHING)]
    assert [*fed._follow(EpochPrepared(NOTHING)), *fed._follow(EpochFailed(BOOM))] == [DecideFailed(BOOM)]
    (intake,) = fed.handle(BatchOffered(batch(2)))
    assert isinstance(intake, TakeIn)
    assert master.take() == []
    told = fed.handle(decided)
    if isinstance(decided, GoOn):
        assert (told, master.take()) == ([], [EpochWanted(NOTHING)])
        return
    assert (told, master.take()) == ([FailBatch(batch(2), BOOM)], [])
    fed.handle(BatchOffered(batch(2)))
    assert master.take() == [EpochWanted(NOTHING)], "now it is tried again for it"


def test_what_was_taken_in_by_then_is_read_though_more_comes_all_the_time() -> None:
    pump, _ = started(4, committed=2, ranges=taking(1))
    assert not pump.through(4)
    for number in (2, 3):
        list(pump.hear(BlockThere(3 + number)))
        list(pump.tell(EpochCommitted(taking(number), number + 1)))
        list(pump.tell(EpochDone(number + 1)))
    assert pump.through(4)
    assert not pump.dry
    list(pump.tell(EpochFailed(BOOM)))
    assert not pump.through(4), "whoever waits hears of it"


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
