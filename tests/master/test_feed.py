"""From Spark's batches to blocks: which batch is which, what is done in which order, what Spark hears of it."""

from __future__ import annotations

import pytest
from feed_play import Fed, answer
from master_kit import batch

from holdfast.errors import StoreError
from holdfast.log.records import Batch, Fence
from holdfast.master.events import BlockThere, Failed
from holdfast.master.feed import (
    BatchBegun,
    BatchOffered,
    BeginBatch,
    BlockFound,
    BlockStored,
    FailBatch,
    FindBlock,
    FinishBatch,
    OfferUnwanted,
    Refusal,
    RefuseBatch,
    RunSourceSink,
    StoreBlock,
    TakeIn,
)

BOOM = ValueError("boom")
STANDING = {"last": 7, "batch": batch(3), "read": 7}


def test_a_batch_is_taken_in_and_stored_and_without_prefetch_spark_waits_until_it_is_read() -> None:
    fed = Fed()
    fence = Fence(1, 1, 1)
    (intake,) = fed.offer(0)
    assert intake == TakeIn(fence, batch(0))
    assert fed.offer(0) == [], "doubled"
    (store,) = fed.answer(intake)
    assert store == StoreBlock(fence, batch(0), (f"0 by {fence}",))
    assert fed.answer(store) == [BlockThere(1)]
    assert fed.read(1) == [FinishBatch(batch(0), 1)]
    assert fed.offer(1) == [TakeIn(Fence(1, 2, 2), batch(1))]


def test_with_prefetch_a_block_is_enough_and_the_next_batch_waits_for_room() -> None:
    fed = Fed(prefetch=1)
    assert fed.take(0)[-2:] == ["BlockThere", "FinishBatch"]
    assert fed.take(1)[-2:] == ["BlockThere", "FinishBatch"]
    assert fed.offer(2) == [], "two are unread"
    assert [type(one) for one in fed.read(1)] == [TakeIn]


def test_sinks_over_the_source_have_their_rows_between_intake_and_block_once_the_batch_is_noted() -> None:
    fed = Fed(sinks=("a", "b", "c"), sinks_at_once=2, sinks_after={"c": "a"})
    (intake,) = fed.offer(0)
    (begin,) = fed.answer(intake)
    assert begin == BeginBatch(Fence(1, 1, 1), batch(0))
    a, b = fed.answer(begin)
    assert [(one.sink, one.last) for one in (a, b)] == [("a", False), ("b", False)]
    (c,) = fed.answer(a)
    assert c == RunSourceSink(Fence(1, 1, 1), "c", batch(0), last=False)
    assert fed.answer(b) == []
    (store,) = fed.answer(c)
    assert isinstance(store, StoreBlock)


def test_when_one_of_several_sinks_fails_those_beside_it_end_and_are_not_run_again() -> None:
    fed = Fed(sinks=("a", "b"), sinks_at_once=2)
    (intake,) = fed.offer(0)
    (begin,) = fed.answer(intake)
    a, b = fed.answer(begin)
    assert fed.tell(Failed(a.id, BOOM)) == []
    assert fed.answer(b) == [FailBatch(batch(0), BOOM)]
    (again,) = fed.offer(0)
    assert [one.sink for one in fed.answer(again)] == ["a"], "the batch is noted, and b has it"


def test_a_start_goes_on_with_what_was_begun_and_only_with_that() -> None:
    facts = {**STANDING, "begun": batch(4), "sinks": ("a", "b"), "sinks_done": frozenset({"a"})}
    refused = Fed(**facts).offer(4, offsets="more")
    assert refused == [RefuseBatch(batch(4, "more"), Refusal.OTHER_OFFSETS, 7, batch(4), True)]
    fed = Fed(**facts)
    (intake,) = fed.offer(4)
    (run,) = fed.answer(intake)
    assert run == RunSourceSink(Fence(1, 8, 1), "b", batch(4))


def test_a_batch_whose_rows_a_former_prepare_has_is_not_taken_in_again() -> None:
    fed = Fed(**STANDING, begun=batch(4), taken_in=True, sinks=("a",))
    assert fed.take(4) == ["RunSourceSink", "StoreBlock", "BlockThere"]
    assert fed.read(8) == [FinishBatch(batch(4), 8)]
    fed = Fed(**STANDING, begun=batch(4), taken_in=True)
    assert fed.take(4) == ["StoreBlock", "BlockThere"]


def test_a_batch_that_has_a_block_is_done_whichever_it_is() -> None:
    assert Fed(**STANDING).offer(3) == [FinishBatch(batch(3), 7)]
    fed = Fed(**STANDING)
    (find,) = fed.offer(1)
    assert find == FindBlock(batch(1))
    assert fed.tell(BlockFound(find.id, 5, batch(1))) == [FinishBatch(batch(1), 5)]
    (find,) = fed.offer(1, offsets="others")
    (refused,) = fed.tell(BlockFound(find.id, 5, batch(1)))
    assert refused == RefuseBatch(batch(1, "others"), Refusal.OTHER_OFFSETS, 5, batch(1), False)
    (find,) = fed.offer(0)
    (refused,) = fed.tell(BlockFound(find.id, None))
    assert refused.reason is Refusal.GAP, "nobody knows of it any more"


@pytest.mark.parametrize(
    ("offered", "reason", "words"),
    [
        (batch(4, query="other"), Refusal.OTHER_QUERY, "belongs to query q"),
        (batch(5), Refusal.GAP, "the next one for this store is batch 4 (block 8)"),
        (batch(3, "changed"), Refusal.OTHER_OFFSETS, "block 7 of this store was made of that batch with offsets"),
    ],
)
def test_only_the_successor_is_taken(offered: Batch, reason: Refusal, words: str) -> None:
    fed = Fed(**STANDING)
    (refused,) = fed.offer(offered)
    assert refused == RefuseBatch(offered, reason, 7, batch(3), False)
    error = refused.error()
    assert isinstance(error, StoreError)
    assert words in error.what
    assert "up to block 7; nothing was written" in error.safe
    assert error.todo
    assert fed.take(4)[-1] == "BlockThere", "the right one is still welcome"


def test_an_empty_store_takes_any_query_but_only_from_its_beginning() -> None:
    fed = Fed()
    (refused,) = fed.offer(5)
    assert refused == RefuseBatch(batch(5), Refusal.GAP, 0, None, False)
    assert "this store is empty" in refused.error().what
    assert fed.offer(0, query="any") == [TakeIn(Fence(1, 1, 1), batch(0, query="any"))]


def test_a_failed_intake_fails_the_batch_and_the_next_try_has_a_higher_fence() -> None:
    fed = Fed()
    (intake,) = fed.offer(0)
    assert fed.tell(Failed(intake.id, BOOM)) == [FailBatch(batch(0), BOOM)]
    assert fed.offer(0) == [TakeIn(Fence(1, 1, 2), batch(0))]
    assert not fed.feed.awaits(intake.id)
    assert fed.answer(intake) == [], "an answer of the failed try"


def test_another_driver_was_first_with_this_batch_or_with_another() -> None:
    fed = Fed()
    (intake,) = fed.offer(0)
    (store,) = fed.answer(intake)
    assert fed.tell(BlockStored(store.id, batch(0), Fence(2, 1, 4))) == [BlockThere(1)]
    fed = Fed()
    (store,) = fed.answer(*fed.offer(0, offsets="ours"))
    there, refused = fed.tell(BlockStored(store.id, batch(0, "theirs"), Fence(2, 1, 4)))
    assert there == BlockThere(1)
    assert refused == RefuseBatch(batch(0, "ours"), Refusal.OTHER_OFFSETS, 1, batch(0, "theirs"), False)
    fed = Fed(sinks=("a",))
    (begin,) = fed.answer(*fed.offer(0, offsets="ours"))
    (refused,) = fed.tell(BatchBegun(begin.id, batch(0, "theirs"), Fence(2, 1, 4)))
    assert refused == RefuseBatch(batch(0, "ours"), Refusal.OTHER_OFFSETS, 0, batch(0, "theirs"), True)


def test_whoever_waits_hears_that_no_epoch_comes_and_may_offer_it_again() -> None:
    fed = Fed()
    fed.take(0)
    assert list(fed.feed.give_up(BOOM)) == [FailBatch(batch(0), BOOM)]
    assert list(fed.feed.give_up(BOOM)) == [], "nobody waits"
    assert fed.offer(0) == [], "its block is there, and still to be read"
    assert fed.read(1) == [FinishBatch(batch(0), 1)]


def test_a_batch_that_nobody_wants_any_more_fails_and_so_does_its_job() -> None:
    fed = Fed()
    (intake,) = fed.offer(0)
    assert fed.feed.awaits(intake.id)
    assert fed.tell(OfferUnwanted(BOOM)) == [FailBatch(batch(0), BOOM)]
    assert not fed.feed.awaits(intake.id)
    assert fed.tell(OfferUnwanted(BOOM)) == []


def test_an_offer_of_long_ago_takes_nothing_from_the_one_that_is_waited_for() -> None:
    fed = Fed(**STANDING)
    (intake,) = fed.offer(4)
    assert fed.offer(3) == []
    assert fed.offer(1) == []
    assert [type(one) for one in fed.tell(answer(intake))] == [StoreBlock]


def test_one_that_is_looked_up_gives_way_to_what_spark_waits_for_now() -> None:
    fed = Fed(**STANDING)
    (find,) = fed.offer(1)
    assert [type(one) for one in fed.tell(BatchOffered(batch(4)))] == [TakeIn]
    assert fed.tell(BlockFound(find.id, 5, batch(1))) == []
