"""The master's behaviour, one scenario a test. Read top to bottom it is the protocol's specification."""

from dataclasses import replace

import pytest
from master_kit import Play, success, taking

from holdfast.errors import CorruptionError, FunctionError, StoreError
from holdfast.invariants import Impossible
from holdfast.log.records import FEED, Fence, Range
from holdfast.master.events import (
    Applied,
    CheckpointWanted,
    CommitStored,
    ContainerJoined,
    ContainerLost,
    DoneWanted,
    EpochUnwanted,
    EpochWanted,
    Failed,
    IntakeDone,
    OwnerSeen,
    Prepared,
    PrepareStored,
    Routing,
    Started,
)
from holdfast.master.instructions import (
    Apply,
    CutLog,
    EndContainer,
    EpochDone,
    EpochFailed,
    NeedContainers,
    Restore,
    RunIntake,
    RunSink,
    Stop,
    StoreCommit,
    StoreManifest,
    StorePrepare,
    StoreRouting,
    TellPeople,
    Undo,
    VerifyPacks,
    WriteCheckpoint,
)
from holdfast.wire.messages import StageFigures

BOOM = FunctionError("division by zero in `ratio`")
FIRST, SECOND = frozenset({0, 1}), frozenset({2, 3})
ALL = FIRST | SECOND


def ready(**started: object) -> Play:
    """Two containers, all four slices ready."""
    return Play(**started).join("a", "b").run().forget()


# ------------------------------------------------------------------------------------------------- beginning


def test_the_first_assignment_waits_for_as_many_containers_as_wanted() -> None:
    play = Play()
    assert play.asked == [NeedContainers(2)]
    assert play.tell(ContainerJoined("a")) == []
    nothing_yet = Fence(1, 1, 0)
    assert play.tell(ContainerJoined("b")) == [
        StoreRouting(nothing_yet, Routing(1, ("a", "a", "b", "b"))),
        Restore("a", nothing_yet, FIRST, 0, 0),
        Restore("b", nothing_yet, SECOND, 0, 0),
    ]


def test_a_container_lost_before_the_first_assignment_is_replaced() -> None:
    play = Play().join("a")
    assert play.tell(ContainerLost("a")) == [NeedContainers(1)]
    assert play.tell(ContainerLost("never joined")) == [NeedContainers(1)]
    assert play.tell(ContainerLost("never joined")) == []
    assert play.tell(ContainerJoined("b")) == []
    assert play.join("c").master.routing.table == ("b", "b", "c", "c")


def test_every_epoch_goes_intake_prepare_apply_sinks_commit_finish() -> None:
    play = ready(sinks=("files", "console"))
    fence = Fence(1, 1, 1)
    play.offer(0).run()
    tags = (f"tag of {fence} level 1",)
    assert play.asked == [
        RunIntake(fence, 1, taking(0)),
        StorePrepare(fence, 1, taking(0), tags),
        Apply("a", fence, FIRST, 1),
        Apply("b", fence, SECOND, 1),
        RunSink(fence, "files", last=False),
        RunSink(fence, "console"),
        StoreCommit(fence, taking(0)),
        EpochDone(1),
    ]
    assert play.master.committed == 1
    play.forget().commit(1)
    assert play.asked[0] == RunIntake(Fence(1, 2, 1), 1, taking(1))
    assert play.asked[-1] == EpochDone(2)


def test_sinks_run_side_by_side_as_many_as_may_and_the_commit_waits_for_all() -> None:
    play = ready(sinks=("a", "b", "c", "d"), sinks_at_once=2, sinks_after={"b": "d"}).offer(0).run(until=RunSink)
    fence = Fence(1, 1, 1)
    first, second = play.take(RunSink, sink="a"), play.take(RunSink, sink="c")
    assert [one.sink for one in play.asked_for(RunSink)] == ["a", "c"], "b waits for d, and d for room"
    assert play.master.phase == "sinks"
    assert play.tell(success(second)) == [RunSink(fence, "d", last=False)]
    assert play.tell(success(play.take(RunSink, sink="d"))) == [RunSink(fence, "b", last=False)]
    assert play.tell(success(play.take(RunSink, sink="b"))) == []
    assert play.tell(success(first)) == [StoreCommit(fence, taking(0))]


def test_when_one_of_several_sinks_fails_those_beside_it_end_and_need_not_be_run_again() -> None:
    play = ready(sinks=("a", "b", "c", "d"), sinks_at_once=3).offer(0).run(until=RunSink)
    a, b, c = (play.take(RunSink, sink=name) for name in "abc")
    assert play.tell(Failed(b.id, BOOM)) == [], "nor does the next one begin"
    assert play.tell(success(a)) == []
    assert play.tell(success(c)) == [EpochFailed(BOOM)]
    play.forget().offer(0).run()
    assert [one.sink for one in play.asked_for(RunSink)] == ["b", "d"]
    assert play.names()[-2:] == ["StoreCommit", "EpochDone"]


def test_a_stop_gives_up_all_sinks_that_run() -> None:
    play = ready(sinks=("a", "b"), sinks_at_once=2).offer(0).run(until=RunSink)
    a, b = (play.take(RunSink, sink=name) for name in "ab")
    play.tell(Failed(a.id, ValueError("of the sink")))
    assert play.tell(EpochUnwanted(BOOM)) == [EpochFailed(BOOM)]
    assert not play.master.awaits(b), "the shell cancels it"
    assert play.forget().offer(0).run().asked[-1] == EpochDone(1)


def test_a_sink_without_rows_is_not_called_and_keeps_its_number() -> None:
    read = {"few": ("rare",), "both": ("rare", "often"), "many": ("often",)}
    play = ready(sinks=("few", "both", "many", "always"), sinks_read=read).offer(0).run(until=Apply)
    for number, stages in (("a", {"often": StageFigures(3, 3)}), ("b", {"rare": StageFigures(0, 9)})):
        play.tell(Applied(play.take(Apply, container=number).id, stages=stages))
    play.run()
    assert [one.sink for one in play.asked_for(RunSink)] == ["both", "many", "always"]
    assert [one.skipped for one in play.asked_for(StoreCommit)] == [("few",)]


def test_an_epoch_that_another_driver_has_prepared_goes_to_all_its_sinks() -> None:
    """That one may have called them, with or without rows, and each call has a number."""
    theirs = (Prepared(1, Fence(1, 8, 1), taking(7), sinks=("few", "always")),)
    play = Play(
        incarnation=2,
        sinks=("few", "always"),
        committed=7,
        ranges=taking(6),
        prepared=theirs,
        sinks_read={"few": ("rare",)},
    )
    play.join("a", "b").offer(7).run()
    assert [one.sink for one in play.asked_for(RunSink)] == ["few", "always"]
    assert [one.skipped for one in play.asked_for(StoreCommit)] == [()]


def test_a_level_begins_when_every_slice_has_applied_the_one_before() -> None:
    play = ready(levels=2).offer(0).run(until=Apply)
    first, second = play.take(Apply, container="a"), play.take(Apply, container="b")
    assert play.tell(success(first)) == []
    assert play.master.ready(0, 1, 1)
    assert not play.master.ready(2, 1, 1)
    assert play.tell(success(second)) == [RunIntake(Fence(1, 1, 1), 2, taking(0))]
    play.run()
    assert play.names() == [
        *["RunIntake", "StorePrepare", "Apply", "Apply"] * 2,
        "RunSink",
        "StoreCommit",
        "EpochDone",
    ]


def test_a_job_without_sinks_commits_after_apply() -> None:
    play = ready(sinks=()).commit(0)
    assert play.names()[-3:] == ["Apply", "StoreCommit", "EpochDone"]


def test_intake_does_not_wait_for_containers_but_apply_does() -> None:
    play = Play().offer(0)
    assert play.asked[-1] == RunIntake(Fence(1, 1, 1), 1, taking(0))
    play.run()
    assert play.names()[-1] == "StorePrepare"
    assert play.master.phase == "apply"
    play.join("a", "b").run()
    assert play.asked[-1] == EpochDone(1)


# ----------------------------------------------------------------------------------------- begin, again


def test_a_committed_batch_returns_at_once() -> None:
    play = ready().commit(0).forget()
    assert play.tell(DoneWanted()) == [EpochDone(1)]


def test_after_a_restart_a_committed_batch_returns_at_once() -> None:
    play = Play(incarnation=2, committed=7, ranges=taking(3))
    assert play.tell(DoneWanted()) == [EpochDone(7)]


def test_after_a_restart_every_slice_is_restored_to_the_committed_epoch() -> None:
    old = Routing(5, ("x", "x", "y", "y"))
    play = Play(incarnation=2, committed=7, ranges=taking(6), routing=old, checkpoint=4).join("a", "b")
    assert play.asked_for(StoreRouting) == [StoreRouting(Fence(2, 8, 0), Routing(6, ("a", "a", "b", "b")))]
    assert play.asked_for(Restore) == [
        Restore("a", Fence(2, 8, 0), FIRST, 7, 4),
        Restore("b", Fence(2, 8, 0), SECOND, 7, 4),
    ]


@pytest.mark.parametrize("prepared", [1, 2])
def test_after_a_restart_prepared_levels_are_applied_without_intake(prepared: int) -> None:
    theirs = tuple(Prepared(level, Fence(1, 8, 3), taking(7)) for level in range(1, prepared + 1))
    play = Play(incarnation=2, levels=2, committed=7, ranges=taking(6), prepared=theirs).join("a", "b")
    play.run()
    assert not play.asked_for(Apply), "nothing happens before Spark offers the batch"
    play.offer(7).run()
    assert [one.level for one in play.asked_for(RunIntake)] == list(range(prepared + 1, 3))
    assert [one.level for one in play.asked_for(Apply)] == [1, 1, 2, 2]
    assert play.asked[-1] == EpochDone(8)


def test_after_a_restart_a_sink_that_is_known_to_have_the_epoch_does_not_get_it_again() -> None:
    theirs = (Prepared(1, Fence(1, 8, 1), taking(7), sinks=("one", "two", "three")),)
    drawn = ("one", "two", "three")
    done = frozenset({"two"})
    play = Play(incarnation=2, sinks=drawn, committed=7, ranges=taking(6), prepared=theirs, sinks_done=done).join(
        "a", "b"
    )
    play.offer(7).run()
    assert [(one.sink, one.last) for one in play.asked_for(RunSink)] == [("one", False), ("three", True)]
    play.forget().commit(8)
    assert [one.sink for one in play.asked_for(RunSink)] == [*drawn]


def test_an_epoch_goes_to_the_sinks_that_its_prepare_names_whatever_the_job_draws_by_now() -> None:
    theirs = (Prepared(1, Fence(1, 8, 1), taking(7), sinks=("removed", "stays")),)
    play = Play(incarnation=2, sinks=("new", "stays"), committed=7, ranges=taking(6), prepared=theirs).join("a", "b")
    play.offer(7).run()
    assert [one.sink for one in play.asked_for(RunSink)] == ["stays", "removed"], "whether it can is the shell's to say"
    assert play.asked[-1] == EpochDone(8)
    play.forget().commit(8)
    assert [one.sink for one in play.asked_for(RunSink)] == ["new", "stays"]


def test_whoever_loses_the_prepare_gives_the_epoch_to_the_winners_sinks() -> None:
    play = ready(sinks=("one", "two")).offer(0).run(until=StorePrepare)
    won = Prepared(1, Fence(1, 1, 1), taking(0), sinks=("two",))
    play.tell(PrepareStored(play.take(StorePrepare).id, won))
    play.run()
    assert [one.sink for one in play.asked_for(RunSink)] == ["two"]


def test_an_offer_doubled_while_the_epoch_runs_gets_one_answer() -> None:
    play = ready().offer(0)
    assert play.tell(EpochWanted(taking(0))) == []
    assert play.run().asked_for(EpochDone) == [EpochDone(1)]


# -------------------------------------------------------------------------- failures, and offered again


def test_a_failed_intake_fails_the_batch_and_the_next_try_has_a_higher_fence() -> None:
    play = ready().offer(0)
    assert play.tell(Failed(play.take(RunIntake).id, BOOM)) == [EpochFailed(BOOM)]
    assert play.tell(EpochWanted(taking(0))) == [RunIntake(Fence(1, 1, 2), 1, taking(0))]
    assert play.run().asked[-1] == EpochDone(1)


def test_an_answer_of_the_failed_try_means_nothing_to_the_next() -> None:
    play = ready(sinks=("one", "two")).offer(0).run(until=RunSink)
    first = play.take(RunSink)
    play.tell(Failed(first.id, BOOM))
    play.offer(0)
    assert play.tell(success(first)) == []
    assert play.tell(IntakeDone(first.id, ())) == []
    assert play.take(RunSink) == RunSink(Fence(1, 1, 2), "one", last=False)


def test_a_failed_sink_is_tried_again_without_applying_again() -> None:
    play = ready(sinks=("one", "two")).offer(0).run(until=RunSink)
    play.tell(success(play.take(RunSink)))
    assert play.tell(Failed(play.take(RunSink, sink="two").id, BOOM)) == [EpochFailed(BOOM)]
    play.forget().offer(0).run()
    assert play.names() == ["RunSink", "StoreCommit", "EpochDone"]
    assert play.asked[0] == RunSink(Fence(1, 1, 2), "two")


@pytest.mark.parametrize("at", [RunIntake, RunSink])
def test_a_batch_that_nobody_wants_any_more_fails_and_so_does_its_job(at: type) -> None:
    play = ready().offer(0).run(until=at)
    job = play.take(at)
    assert play.master.awaits(job)
    assert play.master.in_flight(1)
    assert play.tell(EpochUnwanted(BOOM)) == [EpochFailed(BOOM)]
    assert not play.master.awaits(job), "the shell cancels it"
    assert not play.master.in_flight(1), "nobody will read what it puts out"
    assert play.tell(EpochUnwanted(BOOM)) == [], "once is enough"
    assert play.tell(success(job)) == []
    assert play.forget().offer(0).run().asked[-1] == EpochDone(1)


def test_what_is_being_stored_of_an_unwanted_batch_counts() -> None:
    play = ready().offer(0).run(until=StoreCommit)
    commit = play.take(StoreCommit)
    play.tell(EpochUnwanted(BOOM))
    play.tell(success(commit))
    assert play.master.committed == 1
    assert play.tell(DoneWanted()) == [EpochDone(1)]
    assert play.tell(EpochUnwanted(BOOM)) == [], "there is none"


def test_a_prepare_that_failed_but_was_stored_keeps_its_content() -> None:
    play = ready().offer(0).run(until=StorePrepare)
    play.tell(Failed(play.take(StorePrepare).id, BOOM))
    play.offer(0).run(until=StorePrepare)
    again = play.take(StorePrepare)
    play.tell(PrepareStored(again.id, Prepared(1, Fence(1, 1, 1), taking(0))))
    assert play.run().asked[-1] == EpochDone(1)


def test_a_commit_that_failed_is_stored_again() -> None:
    play = ready().offer(0).run(until=StoreCommit)
    assert play.tell(Failed(play.take(StoreCommit).id, BOOM)) == [EpochFailed(BOOM)]
    assert play.tell(EpochWanted(taking(0))) == [StoreCommit(Fence(1, 1, 2), taking(0))]


def test_applying_that_raises_is_undone_everywhere_before_the_batch_fails() -> None:
    play = ready(levels=2).offer(0).run(until=Apply).run(until=RunIntake)
    intake = play.take(RunIntake, level=2)
    play.tell(success(intake))
    play.run(until=Apply)
    on_a, on_b = play.take(Apply, container="a"), play.take(Apply, container="b")
    play.forget()
    assert play.tell(Failed(on_a.id, BOOM)) == [], "b still applies: first see how far it comes"
    assert play.master.phase == "undo"
    assert not play.master.ready(1, 1, 1)
    fence = Fence(1, 1, 1)
    assert play.tell(success(on_b)) == [Undo("a", fence, FIRST), Undo("b", fence, SECOND)]
    assert play.tell(success(play.take(Undo, container="a"))) == []
    assert play.tell(success(play.take(Undo, container="b"))) == [EpochFailed(BOOM)]
    play.forget().offer(0).run()
    assert [one.level for one in play.asked_for(Apply)] == [1, 1, 2, 2]
    assert not play.asked_for(RunIntake), "what is prepared stays prepared"
    assert play.asked[-1] == EpochDone(1)


def test_a_container_lost_while_undoing_needs_no_undo() -> None:
    play = ready().offer(0).run(until=Apply)
    play.tell(Failed(play.take(Apply, container="a").id, BOOM))
    play.run(until=Undo)
    play.take(Undo, container="a")
    play.tell(ContainerLost("a"))
    play.run()
    assert play.asked_for(EpochFailed) == [EpochFailed(BOOM)]
    assert play.forget().offer(0).run().asked[-1] == EpochDone(1)


def test_an_undo_that_fails_is_a_restore() -> None:
    play = ready().offer(0).run(until=Apply)
    play.tell(Failed(play.take(Apply, container="a").id, BOOM))
    play.run(until=Undo)
    undo = play.take(Undo, container="a")
    assert Restore("a", Fence(1, 1, 1), FIRST, 0, 0) in play.tell(Failed(undo.id, BOOM))


def test_a_restore_that_fails_fails_the_batch_and_is_tried_again_with_the_next() -> None:
    play = Play().join("a", "b")
    play.tell(Failed(play.take(Restore, container="a").id, BOOM))
    assert not play.run().asked_for(EpochFailed), "nobody waits yet"
    play.forget().offer(0)
    assert play.tell(Failed(play.take(Restore, container="a").id, BOOM)) == [EpochFailed(BOOM)]
    assert play.run().offer(0).run().asked[-1] == EpochDone(1)


def test_a_routing_table_that_could_not_be_stored_is_stored_with_the_next_offer() -> None:
    play = Play().join("a", "b")
    play.tell(Failed(play.take(StoreRouting).id, BOOM))
    play.run().forget().offer(0)
    assert play.take(StoreRouting) == StoreRouting(Fence(1, 1, 1), Routing(1, ("a", "a", "b", "b")))


# ------------------------------------------------------------------------------------------ lost containers


def test_survivors_take_over_what_a_lost_container_had() -> None:
    play = Play(containers=3, slices=6).join("a", "b", "c").run().forget()
    fence = Fence(1, 1, 0)
    assert play.tell(ContainerLost("b", "reset")) == [
        StoreRouting(fence, Routing(2, ("a", "a", "a", "c", "c", "c"))),
        Restore("a", fence, frozenset({2}), 0, 0),
        Restore("c", fence, frozenset({3}), 0, 0),
    ]


PHASES = [RunIntake, StorePrepare, Apply, RunSink, StoreCommit]


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("at", PHASES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_loss_in_any_phase_neither_fails_the_batch_nor_repeats_intake(at: type, lost: str, levels: int) -> None:
    play = ready(levels=levels).offer(0).run(until=at)
    other = "b" if lost == "a" else "a"
    survivors_open = [one for one in play.open if getattr(one, "container", None) != lost]
    play.tell(ContainerLost(lost))
    play.open = [one for one in play.open if getattr(one, "container", None) != lost]
    assert [one for one in play.open if one in survivors_open] == survivors_open
    assert play.master.routing.table == (other,) * 4
    play.run()
    assert [one.level for one in play.asked_for(RunIntake)] == [*range(1, levels + 1)]
    assert not play.asked_for(EpochFailed)
    assert play.asked_for(EpochDone) == [EpochDone(1)]
    play.commit(1)
    assert play.asked[-1] == EpochDone(2)


def test_new_owners_catch_up_on_every_prepared_level_before_the_next_step() -> None:
    play = ready(levels=2).offer(0).run(until=RunSink).forget()
    sink = play.take(RunSink)
    play.tell(ContainerLost("b"))
    assert not play.master.ready(2, 1, 2), "a scan of slice 2 waits"
    assert play.master.ready(0, 1, 2)
    assert play.master.owner(2) == "a"
    play.run()
    fence = Fence(1, 1, 1)
    assert play.asked == [
        StoreRouting(fence, Routing(2, ("a",) * 4)),
        Restore("a", fence, SECOND, 0, 0),
        Apply("a", fence, SECOND, 1),
        Apply("a", fence, SECOND, 2),
    ]
    assert play.master.ready(1, 1, 2)
    play.tell(success(sink))
    assert play.run().asked[-1] == EpochDone(1)


def test_a_commit_under_way_does_not_wait_for_a_slice_that_is_restored() -> None:
    play = ready().offer(0).run(until=StoreCommit)
    commit = play.take(StoreCommit)
    play.tell(ContainerLost("b"))
    assert not play.master.whole
    late = play.take(Restore)
    assert late == Restore("a", Fence(1, 1, 1), SECOND, 0, 0)
    assert play.tell(success(commit)) == [EpochDone(1)]
    assert play.tell(success(late)) == [Restore("a", Fence(1, 2, 0), SECOND, 1, 0)], "it was restored to epoch 0"
    play.run().commit(1)
    assert play.asked[-1] == EpochDone(2)


def test_a_container_lost_while_restoring_is_replaced_again() -> None:
    play = Play(containers=3).join("a", "b", "c").run()
    play.tell(ContainerLost("a"))
    lost = play.take(Restore, container="b")
    play.tell(ContainerLost("b"))
    assert set(play.master.routing.table) == {"c"}
    assert play.tell(success(lost)) == [], "the dead do not speak"
    play.open = [one for one in play.open if getattr(one, "container", None) != "b"]
    assert play.run().commit(0).asked[-1] == EpochDone(1)


def test_when_none_is_left_new_ones_are_asked_for_and_the_epoch_goes_on() -> None:
    play = ready().commit(0).offer(1).run(until=Apply)
    play.open = []
    play.tell(ContainerLost("a"))
    play.open = []
    play.forget()
    assert play.tell(ContainerLost("b")) == [NeedContainers(2)]
    assert play.master.routing.table == (None,) * 4
    play.join("c")
    assert play.master.routing.table == (None,) * 4, "one alone would get everything and keep it"
    play.join("d")
    assert play.master.routing.table == ("c", "c", "d", "d")
    play.run()
    assert play.asked_for(Restore) == [
        Restore("c", Fence(1, 2, 1), FIRST, 1, 0),
        Restore("d", Fence(1, 2, 1), SECOND, 1, 0),
    ]
    assert not play.asked_for(RunIntake)
    assert play.asked[-1] == EpochDone(2)


def test_a_lost_id_is_never_accepted_again() -> None:
    play = ready()
    play.tell(ContainerLost("b"))
    play.run()
    assert play.tell(ContainerJoined("b")) == []
    assert play.tell(ContainerLost("b")) == []
    play.tell(ContainerLost("early"))
    play.join("early")
    assert play.tell(ContainerLost("a")) == [NeedContainers(1)], "neither b nor early lives; one is on its way"


def test_a_container_that_nobody_wants_is_ended() -> None:
    play = ready()
    assert play.tell(ContainerJoined("c")) == [EndContainer("c")]
    play.tell(ContainerLost("b"))
    assert play.master.routing.table == ("a",) * 4


# --------------------------------------------------------------------------------------------- two drivers


@pytest.mark.parametrize("at", [StorePrepare, RunSink, StoreCommit], ids=lambda kind: kind.__name__)
def test_a_look_that_finds_a_successor_stops_the_master(at: type) -> None:
    play = ready().offer(0).run(until=at)
    assert at.looks
    play.take(at)
    assert play.tell(OwnerSeen(1)) == []
    assert play.tell(OwnerSeen(2)) == [Stop("incarnation 2 has taken over from 1", 2)]
    assert play.master.phase == "stopped"
    for event in (EpochWanted(taking(0)), ContainerJoined("z"), ContainerLost("a"), OwnerSeen(3)):
        assert play.tell(event) == []


def test_whoever_loses_the_prepare_goes_on_with_the_winners_content() -> None:
    play = ready(incarnation=2).offer(0).run(until=StorePrepare)
    play.tell(PrepareStored(play.take(StorePrepare).id, Prepared(1, Fence(1, 1, 4), taking(0))))
    play.run(until=StoreCommit)
    play.tell(CommitStored(play.take(StoreCommit).id, Fence(1, 1, 4), taking(0)))
    assert play.asked[-1] == EpochDone(1)


def test_whoever_loses_the_prepare_to_a_successor_stops() -> None:
    play = ready().offer(0).run(until=StorePrepare)
    theirs = PrepareStored(play.take(StorePrepare).id, Prepared(1, Fence(2, 1, 1), taking(0)))
    assert play.tell(theirs) == [Stop("incarnation 2 has taken over from 1", 2)]


def test_whoever_loses_the_commit_to_a_successor_stops() -> None:
    play = ready().offer(0).run(until=StoreCommit)
    theirs = CommitStored(play.take(StoreCommit).id, Fence(2, 1, 1), taking(0))
    assert play.tell(theirs) == [Stop("incarnation 2 has taken over from 1", 2)]


def test_a_prepare_lost_to_another_epoch_is_nobodys_and_ours_is_not_waited_for() -> None:
    play = ready(incarnation=2, committed=1, ranges=taking(0)).offer(1).run(until=StorePrepare)
    tick = {FEED: Range(2, 1)}
    theirs = PrepareStored(play.take(StorePrepare).id, Prepared(1, Fence(1, 2, 1), tick))
    assert play.tell(theirs) == [], "the pump is told, and wants that one"
    play.tell(EpochWanted(tick))
    assert play.run().asked[-1] == EpochDone(2)


def test_a_start_that_finds_a_successors_prepare_stops_at_once() -> None:
    play = Play(prepared=(Prepared(1, Fence(2, 1, 1), taking(0)),))
    assert [type(one) for one in play.asked] == [Stop]


# ---------------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_is_written_verified_by_others_and_made_to_count() -> None:
    play = ready(checkpoint_every=2).commit(0).forget().offer(1).run(until=WriteCheckpoint)
    fence = Fence(1, 3, 0)
    assert play.asked[-3:] == [
        WriteCheckpoint("a", fence, FIRST, 2),
        WriteCheckpoint("b", fence, SECOND, 2),
        EpochDone(2),
    ]
    play.run(until=VerifyPacks)
    by_b, by_a = play.take(VerifyPacks, by="b"), play.take(VerifyPacks, by="a")
    assert [pack.container for pack in by_b.packs] == ["a"]
    assert play.tell(success(by_a)) == []
    assert [type(one) for one in play.tell(success(by_b))] == [StoreManifest]
    play.run()
    assert not play.asked_for(CutLog), "there is no second newest yet"
    play.commit(2, 3)
    assert play.asked_for(CutLog) == [CutLog(Fence(1, 5, 0), 2)]
    play.commit(4, 5)
    assert play.asked_for(CutLog)[-1] == CutLog(Fence(1, 7, 0), 4)


def test_later_restores_start_from_the_newest_complete_checkpoint() -> None:
    play = ready(checkpoint_every=1).commit(0).forget()
    play.tell(ContainerLost("b"))
    assert play.take(Restore) == Restore("a", Fence(1, 2, 0), SECOND, 1, 1)


def test_the_checkpoint_found_at_start_is_the_second_newest_after_the_next() -> None:
    play = ready(incarnation=2, committed=4, ranges=taking(3), checkpoint=3, checkpoint_every=2).commit(4)
    assert play.asked_for(CutLog) == [CutLog(Fence(2, 6, 0), 3)]


def test_a_lone_containers_packs_are_verified_in_the_driver() -> None:
    play = Play(containers=1, checkpoint_every=1).join("a").run().offer(0).run(until=VerifyPacks)
    assert play.take(VerifyPacks).by is None


def test_epochs_do_not_wait_for_a_checkpoint_and_only_one_runs() -> None:
    play = ready(checkpoint_every=1).offer(0).run(until=WriteCheckpoint)
    held = [play.take(WriteCheckpoint), play.take(WriteCheckpoint)]
    play.commit(1, 2)
    assert len(play.asked_for(WriteCheckpoint)) == 2
    play.tell(*map(success, held))
    assert play.run().commit(3).asked_for(WriteCheckpoint)[-1].epoch == 4


@pytest.mark.parametrize("at", [WriteCheckpoint, VerifyPacks, StoreManifest], ids=lambda kind: kind.__name__)
def test_a_checkpoint_in_trouble_is_given_up_and_the_next_one_does(at: type) -> None:
    play = ready(checkpoint_every=2).commit(0).offer(1).run(until=at)
    assert play.tell(Failed(play.take(at).id, BOOM)) == []
    stale = list(play.open)
    play.open = []
    assert play.tell(*map(success, stale)) == []
    play.forget().commit(2, 3)
    assert play.asked_for(StoreManifest)[-1].epoch == 4
    assert not play.asked_for(CutLog)


@pytest.mark.parametrize("at", [WriteCheckpoint, VerifyPacks], ids=lambda kind: kind.__name__)
def test_a_checkpoint_that_loses_a_container_is_given_up(at: type) -> None:
    play = ready(checkpoint_every=1).offer(0).run(until=at)
    play.tell(ContainerLost("b"))
    play.open = [one for one in play.open if "b" not in (getattr(one, "container", ""), getattr(one, "by", ""))]
    play.run()
    assert not play.asked_for(StoreManifest)
    assert play.commit(1).asked_for(StoreManifest)[-1].epoch == 2


def test_a_checkpoint_that_is_begun_again_has_packs_of_its_own() -> None:
    """The simulator found: a pack of one given up was still being written, and took the place of a verified one."""
    play = ready(checkpoint_every=1).offer(0).run(until=WriteCheckpoint)
    given_up = play.take(WriteCheckpoint, container="a")
    play.tell(CheckpointWanted("a bad segment"), ContainerLost("b"))
    play.open = [one for one in play.open if getattr(one, "container", "") != "b"]
    play.run(until=WriteCheckpoint)
    again = play.take(WriteCheckpoint, container="a")
    assert (again.epoch, again.fence) == (given_up.epoch, given_up.fence)
    assert again.label != given_up.label


@pytest.mark.parametrize("every", [1000, None])
def test_one_that_is_wanted_while_an_older_one_is_written_comes_after_it(every: int | None) -> None:
    """Who takes a snapshot waits for one of the epoch at which it asked: the older one will not do."""
    play = ready(checkpoint_every=every).commit(0)
    play.tell(CheckpointWanted("a snapshot"))
    play.run(until=WriteCheckpoint)
    held = [play.take(WriteCheckpoint), play.take(WriteCheckpoint)]
    play.commit(1)
    play.tell(CheckpointWanted("another snapshot"))
    play.tell(*map(success, held))
    play.run()
    assert [one.epoch for one in play.asked_for(StoreManifest)] == [1, 2]
    assert play.commit(2).asked_for(StoreManifest)[-1].epoch == 2, "nobody wants a third"


def test_a_written_pack_outlives_its_writer() -> None:
    play = ready(checkpoint_every=1).offer(0).run(until=WriteCheckpoint)
    play.tell(success(play.take(WriteCheckpoint, container="b")))
    play.tell(ContainerLost("b"))
    play.run()
    manifest = play.asked_for(StoreManifest)[0]
    assert [pack.container for pack in manifest.packs] == ["a", "b"]


def test_a_checkpoint_waits_until_every_slice_is_there() -> None:
    play = ready(checkpoint_every=1).offer(0).run(until=StoreCommit)
    commit = play.take(StoreCommit)
    play.tell(ContainerLost("b"))
    play.tell(success(commit))
    assert not play.asked_for(WriteCheckpoint)
    assert play.run().asked_for(WriteCheckpoint) == [WriteCheckpoint("a", Fence(1, 2, 0), ALL, 1)]


# ------------------------------------------------------------------------------------------ impossible things


def test_an_answer_of_the_wrong_kind_tells_the_story() -> None:
    play = ready().offer(0)
    with pytest.raises(Impossible, match=r"Applied does not answer RunIntake") as caught:
        play.tell(Applied(play.take(RunIntake).id))
    assert "→ EpochWanted(ranges={'source': Range(first=1, last=1)})" in caught.value.story
    assert "← RunIntake(" in caught.value.story
    assert not play.master.handle(EpochWanted(taking(0)))  # nothing is asked for any more


def test_a_commit_of_another_batch_than_prepared_is_impossible() -> None:
    play = ready().offer(0).run(until=StoreCommit)
    commit = play.take(StoreCommit)
    with pytest.raises(Impossible, match="was prepared of"):
        play.tell(CommitStored(commit.id, Fence(1, 1, 1), taking(5)))


def test_started_comes_first_and_once() -> None:
    play = ready()
    with pytest.raises(Impossible, match="Started twice"):
        play.tell(Started(1, 1, (), 4, 1, 10))
    with pytest.raises(Impossible, match="before Started"):
        type(play.master)().handle(ContainerJoined("a"))


def test_answers_may_be_doubled() -> None:
    play = ready(checkpoint_every=1, levels=2).offer(0)
    while play.open:
        answer = success(play.open.pop(0))
        play.tell(answer, answer)
    assert play.asked_for(EpochDone) == [EpochDone(1)]
    assert len(play.asked_for(StoreManifest)) == 1


def test_an_epoch_that_kills_every_container_is_given_up() -> None:
    play = ready().offer(0).run(until=Apply)
    for number in range(40):
        if play.asked_for(EpochFailed):
            break
        for victim in sorted(play.master.routing.table[slice_] or "" for slice_ in (0, 3)):
            play.tell(ContainerLost(victim))
        play.open = []
        play.join(f"x{number}", f"y{number}")
    (failed,) = play.asked_for(EpochFailed)
    assert "has cost 9 containers" in str(failed.error)
    assert not play.asked_for(StoreCommit)


def test_a_checkpoint_that_cannot_be_read_gives_way_to_the_one_before_it() -> None:
    play = Play(committed=7, ranges=taking(6), checkpoint=4, checkpoint_before=2, incarnation=2).join("a", "b")
    first, second = play.asked_for(Restore)
    torn = CorruptionError("A pack of checkpoint 4 is torn.\nMore of it.")
    told = play.tell(Failed(first.id, torn))
    assert told == [TellPeople("corrupt", "A pack of checkpoint 4 is torn."), replace(first, checkpoint=2)]
    assert play.master.unrestored is None
    play.tell(success(told[1]))
    play.tell(success(second))
    assert play.master.whole


def test_if_both_checkpoints_fail_the_first_error_is_the_one_that_counts() -> None:
    play = Play(committed=7, ranges=taking(6), checkpoint=4, checkpoint_before=2, incarnation=2).join("a", "b")
    first, _ = play.asked_for(Restore)
    torn, gone = CorruptionError("torn"), StoreError("gone")
    (again,) = [one for one in play.tell(Failed(first.id, torn)) if isinstance(one, Restore)]
    assert not [one for one in play.tell(Failed(again.id, gone)) if isinstance(one, Restore)]
    assert play.master.unrestored is torn


def test_without_a_checkpoint_before_it_the_log_from_its_beginning_may_do() -> None:
    play = Play(committed=7, ranges=taking(6), checkpoint=4, incarnation=2).join("a", "b")
    first, _ = play.asked_for(Restore)
    (again,) = [one for one in play.tell(Failed(first.id, StoreError("torn"))) if isinstance(one, Restore)]
    assert again.checkpoint == 0


def test_what_is_not_the_stores_fault_is_not_tried_again() -> None:
    play = Play(committed=7, ranges=taking(6), checkpoint=4, checkpoint_before=2, incarnation=2).join("a", "b")
    first, _ = play.asked_for(Restore)
    assert not [one for one in play.tell(Failed(first.id, BOOM)) if isinstance(one, Restore)]
    assert play.master.unrestored is BOOM
