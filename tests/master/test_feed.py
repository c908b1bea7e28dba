"""Between Spark and the master: which batch is which, and what Spark hears of it. Refusals: `test_master_scenarios`."""

from __future__ import annotations

from typing import Any

from master_kit import batch, taking

from holdfast.log.records import Fence
from holdfast.master.events import Clock, DoneWanted, EpochWanted, Prepared, Started
from holdfast.master.feed import BatchOffered, FailBatch, Feed, FinishBatch, Refusal, RefuseBatch
from holdfast.master.instructions import EpochCommitted, EpochDone, EpochFailed, EpochPrepared
from holdfast.safety.policies import Terms

BOOM = ValueError("boom")


def started(feed: Feed, **facts: Any) -> Feed:
    event = Started(1, 1, (), 1, 1, Terms(), **facts)
    assert list(feed.hear(event)) == [event], "the master hears it too"
    return feed


def offered(feed: Feed, number: int, **more: Any) -> list[Any]:
    return list(feed.hear(BatchOffered(batch(number, **more))))


def test_what_is_no_batch_is_for_the_master() -> None:
    assert list(Feed().hear(Clock(1.0))) == [Clock(1.0)]


def test_a_batch_is_wanted_once_and_finished_when_its_epoch_is_done() -> None:
    feed = started(Feed())
    assert offered(feed, 0) == [EpochWanted(taking(0))]
    assert offered(feed, 0) == [], "doubled"
    assert list(feed.tell(EpochPrepared(taking(0)))) == []
    assert list(feed.tell(EpochCommitted(taking(0), 1))) == [], "a checkpoint may hold it back"
    assert list(feed.tell(EpochDone(1))) == [FinishBatch(batch(0), 1)]
    assert list(feed.tell(EpochDone(1))) == []
    assert offered(feed, 1) == [EpochWanted(taking(1))]


def test_a_batch_that_is_committed_already_waits_for_no_epoch() -> None:
    feed = started(Feed(), committed=7, ranges=taking(3))
    assert offered(feed, 3) == [DoneWanted()]
    assert list(feed.tell(EpochDone(7))) == [FinishBatch(batch(3), 7)]


def test_an_offer_of_long_ago_takes_nothing_from_the_one_that_is_waited_for() -> None:
    feed = started(Feed(), committed=7, ranges=taking(3))
    assert offered(feed, 4) == [EpochWanted(taking(4))]
    assert offered(feed, 3) == [FinishBatch(batch(3), 7)], "doubled, and late"
    list(feed.tell(EpochPrepared(taking(4))))
    assert list(feed.tell(EpochDone(7))) == [], "of the epoch before"
    list(feed.tell(EpochCommitted(taking(4), 8)))
    assert list(feed.tell(EpochDone(8))) == [FinishBatch(batch(4), 8)]


def test_a_failed_batch_may_be_another_next_time_unless_it_is_prepared() -> None:
    feed = started(Feed())
    offered(feed, 0)
    assert list(feed.tell(EpochFailed(BOOM))) == [FailBatch(batch(0), BOOM)]
    assert list(feed.tell(EpochFailed(BOOM))) == []
    assert offered(feed, 0, offsets="more") == [EpochWanted(taking(0, "more"))]
    assert list(feed.tell(EpochPrepared(taking(0, "more")))) == []
    list(feed.tell(EpochFailed(BOOM)))
    (refused,) = offered(feed, 0)
    assert refused == RefuseBatch(batch(0), Refusal.OTHER_OFFSETS, 0, batch(0, "more"), True)
    assert offered(feed, 0, offsets="more") == [EpochWanted(taking(0, "more"))]


def test_a_prepare_that_comes_late_counts_though_nobody_waits() -> None:
    """What is stored cannot be taken back: it may arrive after its batch was given up."""
    feed = started(Feed())
    offered(feed, 0)
    list(feed.tell(EpochFailed(BOOM)))
    assert list(feed.tell(EpochPrepared(taking(0)))) == []
    assert offered(feed, 0, offsets="more")[0].reason is Refusal.OTHER_OFFSETS


def test_another_driver_was_first_with_other_rows() -> None:
    feed = started(Feed())
    offered(feed, 0, offsets="ours")
    (refused,) = feed.tell(EpochPrepared(taking(0, "theirs")))
    assert refused == RefuseBatch(batch(0, "ours"), Refusal.OTHER_OFFSETS, 0, batch(0, "theirs"), True)
    assert offered(feed, 0, offsets="theirs") == [EpochWanted(taking(0, "theirs"))]


def test_ticks_follow_the_last_batch_and_one_that_is_prepared_goes_first() -> None:
    feed = started(Feed())
    assert feed.next_tick is None, "there is no batch yet to follow"
    feed = started(Feed(), committed=4, ranges=taking(2))
    first = feed.next_tick
    assert first is not None
    assert (first.batch_id, first.tick) == (2, 1)
    assert list(feed.hear(BatchOffered(first))) == [EpochWanted({"source": first})]
    assert feed.next_tick is None, "one at a time"
    list(feed.tell(EpochPrepared({"source": first})))
    list(feed.tell(EpochFailed(BOOM)))
    assert feed.unfinished_tick == first
    assert offered(feed, 3)[0].reason is Refusal.GAP
    list(feed.hear(BatchOffered(first)))
    list(feed.tell(EpochCommitted({"source": first}, 5)))
    assert list(feed.tell(EpochDone(5))) == [FinishBatch(first, 5)]
    assert feed.unfinished_tick is None
    assert offered(feed, 3) == [EpochWanted(taking(3))]
    again = started(Feed(), committed=5, ranges={"source": first}).next_tick
    assert again is not None
    assert again.tick == 2


def test_a_start_that_finds_an_epoch_prepared_takes_no_other() -> None:
    feed = started(Feed(), committed=4, ranges=taking(3), prepared=(Prepared(1, Fence(1, 5, 1), taking(4)),))
    assert offered(feed, 5)[0].reason is Refusal.GAP
    assert offered(feed, 4) == [EpochWanted(taking(4))]
