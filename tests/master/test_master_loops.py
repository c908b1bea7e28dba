"""Rows that go round: what the pump does about them, and that none is lost or taken twice, whoever dies.

The random histories are one a seed, as those of ``test_feed_properties``.
"""

from __future__ import annotations

import random
from typing import Any

import planted_feeds
import pytest
from master_kit import taking
from master_world import World

from holdfast.errors import PlanError
from holdfast.log.records import FEED, Fence, Range
from holdfast.master.events import BlockThere, EpochWanted, GoOn, Prepared, Started
from holdfast.master.feed import FeedStarted
from holdfast.master.instructions import EpochCommitted, EpochDone
from holdfast.master.pump import DecideFailed, HasRead, Pump, PumpHeld, PumpLet
from holdfast.safety.policies import Terms

SEEDS = 200
NOTHING = {FEED: Range(3, 2)}


def started(last: int, **facts: Any) -> tuple[Pump, list[Any]]:
    pump = Pump()
    list(pump.hear(FeedStarted(1, last)))
    list(pump.hear(Started(1, 1, (), 1, 1, Terms(), committed=2, ranges=taking(1), **facts)))
    return pump, list(pump.hear(PumpLet()))


def committed(pump: Pump, epoch: int, took: Any, **waiting: int) -> list[Any]:
    return [*pump.tell(EpochCommitted(took, epoch, waiting)), *pump.tell(EpochDone(epoch))]


def test_where_no_block_is_there_an_epoch_comes_for_what_goes_round() -> None:
    pump, said = started(2)
    assert said == []
    assert list(pump.hear(BlockThere(3))) == [EpochWanted(taking(2))]
    nothing = {FEED: Range(4, 3)}
    assert committed(pump, 3, taking(2), labels=7) == [HasRead(3, 3), EpochWanted(nothing)]
    assert not pump.dry
    assert (pump.rounds, pump.waiting) == ({"labels": 0}, {"labels": 7})
    assert committed(pump, 4, nothing, labels=1) == [HasRead(3, 4), EpochWanted(nothing)]
    assert committed(pump, 5, nothing) == [HasRead(3, 5)]
    assert pump.dry
    assert (pump.rounds, pump.waiting) == ({"labels": 2}, {})


def test_a_block_takes_what_goes_round_along_and_rounds_are_counted_anew() -> None:
    pump, said = started(2, waiting={"labels": 5})
    assert said == [EpochWanted(NOTHING)], "what a start finds goes on by itself"
    list(pump.hear(BlockThere(3)))
    assert committed(pump, 3, NOTHING, labels=2) == [HasRead(2, 3), EpochWanted(taking(2))]
    committed(pump, 4, taking(2), labels=2)
    assert pump.rounds == {"labels": 0}


def test_a_job_that_settles_takes_no_block_before_its_loops_are_dry() -> None:
    pump, _ = started(3, waiting={"labels": 5}, settle=True)
    assert pump.unread == 1
    assert committed(pump, 3, NOTHING, labels=2) == [HasRead(2, 3), EpochWanted(NOTHING)]
    assert committed(pump, 4, NOTHING) == [HasRead(2, 4), EpochWanted(taking(2))]


def test_what_is_prepared_comes_first_though_rows_wait() -> None:
    prepared = (Prepared(1, Fence(1, 3, 1), taking(2)),)
    _, said = started(3, waiting={"labels": 5}, settle=True, prepared=prepared)
    assert said == [EpochWanted(taking(2))]


def test_while_it_is_held_nothing_goes_round() -> None:
    pump, _ = started(2, waiting={"labels": 5})
    list(pump.hear(PumpHeld()))
    assert committed(pump, 3, NOTHING, labels=2) == [HasRead(2, 3)]
    assert pump.at_rest
    assert list(pump.hear(PumpLet())) == [EpochWanted(NOTHING)]


def test_a_loop_that_goes_round_too_often_is_told_by_name_and_what_waits_stays() -> None:
    pump, _ = started(2, waiting={"labels": 5, "other": 1}, max_rounds={"labels": 2})
    assert committed(pump, 3, NOTHING, labels=4, other=1) == [HasRead(2, 3), EpochWanted(NOTHING)]
    _, said = committed(pump, 4, NOTHING, labels=3, other=1)
    assert isinstance(said, DecideFailed)
    assert isinstance(said.error, PlanError)
    assert str(said.error).startswith("Loop 'labels' has not run dry in 2 epochs")
    assert "3 rows wait in it" in str(said.error)
    assert pump.stuck
    assert not pump.dry
    assert list(pump.hear(BlockThere(3))) == []
    assert list(pump.hear(GoOn())) == [EpochWanted(taking(2))], "rows of a source come: it begins anew"


def history(seed: int, **planted: Any) -> None:
    """Storms of events, jobs and faults; drivers that come back."""
    chance = random.Random(seed)
    shape = {"levels": chance.randint(1, 2), "sinks": chance.randint(1, 2), "source_sinks": chance.randint(0, 1)}
    settle = chance.random() < 0.5
    made = {**shape, "settle": settle, **planted}
    world = World(prefetch=chance.randint(0, 1), checkpoint_every=3, loops=True, **made)
    for _ in range(3):
        world.start_driver(chance.randrange(3))
        world.storm(chance, 150, chance.choice([0.0, 0.05]))
        world.check()
        for driver in list(world.drivers):
            world.crash(driver)
    world.settle(epochs=0)
    world.settle()
    world.check()


@pytest.mark.parametrize("first", [0, 15])
def test_what_goes_round_is_in_one_epoch_and_no_other(first: int) -> None:
    for seed in range(first, first + 15):
        history(seed)


def test_a_long_loop_keeps_no_block_waiting() -> None:
    world = World(loops=True)
    world.store.around = lambda epoch, outputs: (("around", epoch, outputs),)  # type: ignore[method-assign]
    world.start_driver()
    for _ in range(200):
        world.step_all(world.newest)
    world.check()
    assert world.store.position > 5
    assert world.store.committed > world.store.position


@pytest.mark.parametrize(
    ("planted", "noticed"),
    [
        ({"pump": planted_feeds.ForgetsLoopRows, "settle": False}, "no progress"),
        ({"pump": planted_feeds.TakesABlockBeforeItIsDry, "settle": True}, "a block before the loop is dry"),
        ({"store": planted_feeds.LosesLoopRows}, "rows of a loop are lost"),
    ],
    ids=lambda value: next(iter(value.values())).__name__ if isinstance(value, dict) else "",
)
def test_a_planted_bug_is_found(planted: dict[str, Any], noticed: str) -> None:
    with pytest.raises(AssertionError, match=noticed):
        histories(**planted)


def histories(**planted: Any) -> None:
    for seed in range(SEEDS):
        history(seed, **planted)
