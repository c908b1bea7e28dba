"""Feed, pump and master in a world where anything may fail; and that this world would notice.

The random histories are this file's own, one a seed, so that what is found does not depend on anything else. The same
world under Hypothesis: ``test_master_properties``.
"""

from __future__ import annotations

import random
from typing import Any

import planted_feeds
import pytest
from master_world import World

from holdfast.log.records import Fence
from holdfast.master.feed import BeginBatch, StoreBlock
from simulator.job_model import Store, spark_batch

SEEDS = 200


def history(seed: int, **planted: Any) -> None:
    """Storms of events, jobs and faults; drivers that come back, also with a job that takes in other rows."""
    chance = random.Random(seed)
    shape = {"levels": chance.randint(1, 2), "sinks": chance.randint(0, 1), "source_sinks": chance.randint(0, 2)}
    world = World(prefetch=chance.randint(0, 1), checkpoint_every=3, **{**shape, **planted})
    for _ in range(3):
        world.start_driver(chance.randrange(3))
        world.storm(chance, 150, chance.choice([0.0, 0.05]))
        world.check()
        for driver in list(world.drivers):
            world.crash(driver)
        if chance.random() < 0.5:
            world.layout = f"of {seed} {chance.random()}"
    world.settle()
    world.check()


@pytest.mark.parametrize("first", [0, 15])
def test_every_batch_is_in_one_block_and_every_block_in_one_epoch(first: int, drill_seed: int) -> None:
    first += 30 * (drill_seed - 1)
    for seed in range(first, first + 15):
        history(seed)


@pytest.mark.parametrize(
    ("planted", "noticed"),
    [
        ({"feed": planted_feeds.CommitsBeforeTheBlock}, "finished without a block"),
        ({"feed": planted_feeds.FeedSkipsABlock}, "a block with a gap"),
        ({"feed": planted_feeds.SinkAfterBlock}, "a block before its sinks"),
        ({"feed": planted_feeds.KnowsOnlyTheLastBlock}, "refused: Spark offers batch"),
        ({"pump": planted_feeds.PumpTakesAnUnwrittenBlock}, "an epoch of a block that is not there"),
        ({"pump": planted_feeds.PumpSkipsABlock}, "a block twice, or never"),
        ({"unreadable": planted_feeds.reads_another_layout}, "another layout"),
    ],
    ids=lambda value: next(iter(value.values())).__name__ if isinstance(value, dict) else "",
)
def test_a_planted_bug_is_found(planted: dict[str, Any], noticed: str) -> None:
    with pytest.raises(AssertionError, match=noticed):
        histories(**planted)


def histories(**planted: Any) -> None:
    for seed in range(SEEDS):
        history(seed, **planted)


def too_late(kind: type[BeginBatch | StoreBlock], **shape: Any) -> None:
    """A driver that has lost the job puts what its successor has stored, read and committed by then: it had looked
    before."""
    world = World(**shape)
    world.start_driver()
    old = world.newest
    for _ in range(5):
        world.pass_time(old)
        world.join(old)
        world.offer(old)
        for event in list(old.events):
            world.deliver(old, event)
        for job in list(old.jobs):
            if not isinstance(job.instruction, kind) or not job.looked:
                world.work(old, job)
    (late,) = [job for job in old.jobs if isinstance(job.instruction, kind)]
    world.start_driver()
    world.settle()
    assert world.store.committed
    world.work(old, late)
    world.check()


def test_of_two_writers_of_a_block_the_first_counts() -> None:
    too_late(StoreBlock)
    with pytest.raises(AssertionError, match="an epoch has other rows than its blocks"):
        too_late(StoreBlock, store=planted_feeds.TwoWritersOfABlock)


def test_a_replaced_driver_may_begin_a_batch_of_which_there_is_a_block() -> None:
    """Found by the search: the world took it for a fault. What its successor has begun stands, and it hears so."""
    too_late(BeginBatch, source_sinks=1)


def test_what_a_try_that_was_given_up_begins_late_is_no_fault_and_what_a_later_one_begins_is() -> None:
    """Found by the search: a write that took longer than the next try of its batch."""
    store, batch = Store(1, 1, ()), spark_batch(0)
    store.begin(BeginBatch(Fence(1, 1, 2), batch))
    store.put_block(StoreBlock(Fence(1, 1, 2), batch, ()))
    begun = store.begin(BeginBatch(Fence(1, 1, 1), batch))
    assert begun.fence == Fence(1, 1, 2), "what was begun first stands"
    for fence in (Fence(1, 1, 2), Fence(2, 1, 1)):
        with pytest.raises(AssertionError, match="begun with a block that is there"):
            store.begin(BeginBatch(fence, batch))
