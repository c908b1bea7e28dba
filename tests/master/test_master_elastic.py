"""Growing, shrinking, moving and healing, one scenario a test; and that the world would notice a bug in any of it."""

from __future__ import annotations

from collections import Counter

import pytest
from master_kit import Play, success
from planted_masters import (
    CopiesAnEpochInFlight,
    DoesNotWaitUntilAllIsForgotten,
    EndsOwners,
    HasTwoOwners,
    KeepsHalfAppliedDestinations,
    SwitchesInsideAnEpoch,
    TakesActivatedForNewer,
)
from test_master_properties import find

from holdfast.errors import ContainerError, FunctionError, StoreError
from holdfast.log.records import Fence
from holdfast.master.drops import AGAIN_SECONDS
from holdfast.master.events import (
    Applied,
    Clock,
    ContainerJoined,
    ContainerLost,
    CopiesSent,
    DigestsTaken,
    Failed,
    LoadsSeen,
    MoveWanted,
    ScaleWanted,
)
from holdfast.master.instructions import (
    Activate,
    Apply,
    Demote,
    DropCopies,
    EndContainer,
    EndRun,
    EpochDone,
    EpochFailed,
    Forget,
    Instruction,
    NeedContainers,
    Restore,
    RunIntake,
    RunSink,
    SendCopies,
    StoreCommit,
    StoreManifest,
    StorePrepare,
    TakeDigests,
    TellPeople,
    Undo,
    VerifyPacks,
    WriteCheckpoint,
)
from holdfast.master.machine import Master
from holdfast.master.membership import FAILED_STARTS
from holdfast.master.migration import PROOF_SECONDS
from holdfast.master.moves import Phase
from holdfast.safety.intervals import Interval
from holdfast.safety.policies import Terms

BOOM = ContainerError("a fault of this test")
RAISED = FunctionError("division by zero in `ratio`")
NEVER, EACH = Interval(epochs=1000), Interval(epochs=1)


def ready(
    names: str = "ab",
    *,
    slices: int = 4,
    backups: int = 0,
    every: Interval = EACH,
    epochs: int = 1,
    **started: object,
) -> Play:
    """Containers with all slices, some epochs committed, copies where they shall be."""
    play = Play(containers=len(names), slices=slices, safety=Terms(backups, every, NEVER), **started)
    play.join(*names).run().commit(*range(epochs))
    return play.forget()


def lose(play: Play, *containers: str) -> list[Instruction]:
    """What the master asks for because of it; what they were asked for gets no answer any more."""
    new = play.tell(*(ContainerLost(container) for container in containers))
    play.open = [one for one in play.open if getattr(one, "container", None) not in containers]
    return new


def owned(play: Play, container: str) -> frozenset[int]:
    return frozenset(number for number, owner in enumerate(play.master.routing.table) if owner == container)


def tick(play: Play, at: float) -> list[Instruction]:
    return play.tell(Clock(at))


# ------------------------------------------------------------------------------------------ chained recovery


def test_each_lost_slice_goes_to_a_holder_of_its_copy_in_even_shares() -> None:
    play = ready("abcd", slices=24, backups=1)
    lost, holders = owned(play, "a"), [dict(play.master.holders(number)) for number in range(24)]
    assert all(len(held) == 1 for held in holders)
    lose(play, "a")
    new_owners = {number: play.master.owner(number) for number in lost}
    assert all(owner in holders[number] for number, owner in new_owners.items())
    assert set(Counter(new_owners.values()).values()) == {2}, "each of three peers takes its third"
    assert not play.asked_for(Restore)
    assert {one.container: one.slices for one in play.asked_for(Activate)} == {
        peer: frozenset(number for number, owner in new_owners.items() if owner == peer) for peer in "bcd"
    }
    assert {one.epoch for one in play.asked_for(Activate)} == {1}
    play.run()
    assert play.master.whole


def test_the_newest_copy_is_taken() -> None:
    play = ready("abc", slices=3, backups=2)
    (number,) = owned(play, "a")
    assert dict(play.master.holders(number)) == {"b": 1, "c": 1}
    play.offer(1).run(until=SendCopies)
    sending = play.take(SendCopies, container="a")
    play.tell(CopiesSent(sending.id, (("c", number, 2),)))
    play.run()
    assert dict(play.master.holders(number)) == {"b": 1, "c": 2}
    lose(play, "a")
    assert play.master.owner(number) == "c"


def test_two_backups_heal_two_losses_at_once() -> None:
    play = ready("abcd", slices=16, backups=2)
    lose(play, "a", "b")
    assert not play.asked_for(Restore)
    assert set(play.master.routing.table) == {"c", "d"}
    play.run()
    assert play.master.whole


def test_more_losses_than_backups_come_from_the_store() -> None:
    play = ready("abc", slices=12, backups=1)
    only_there = frozenset(number for number in owned(play, "a") if "b" in play.master.holders(number))
    only_there |= frozenset(number for number in owned(play, "b") if "a" in play.master.holders(number))
    assert only_there
    lose(play, "a", "b")
    restored = frozenset().union(*(one.slices for one in play.open if isinstance(one, Restore)))
    activated = frozenset().union(*(one.slices for one in play.open if isinstance(one, Activate)))
    assert restored == only_there
    assert not restored & activated
    play.run().commit(1)
    assert play.asked_for(EpochDone) == [EpochDone(2)]


def test_a_copy_that_cannot_be_activated_is_restored_instead() -> None:
    play = ready("abc", slices=6, backups=1)
    lose(play, "a")
    failed = play.take(Activate, container="b")
    assert Restore("b", Fence(1, 2, 0), failed.slices, 1, 0) in play.tell(Failed(failed.id, BOOM))
    assert not any("b" in play.master.holders(number) for number in failed.slices)
    assert not play.run().commit(1).asked_for(EpochFailed)
    assert play.master.whole


def test_with_recovery_from_the_store_copies_are_not_used() -> None:
    play = ready("abc", slices=6, backups=1, from_copies=False)
    lost = owned(play, "a")
    lose(play, "a")
    assert not play.asked_for(Activate)
    assert frozenset().union(*(one.slices for one in play.asked_for(Restore))) == lost


@pytest.mark.parametrize(
    "at",
    [RunIntake, StorePrepare, Apply, RunSink, StoreCommit],
    ids=lambda kind: kind.__name__,
)
@pytest.mark.parametrize("levels", [1, 2])
def test_the_epoch_in_flight_goes_on_over_a_recovery_from_copies(at: type, levels: int) -> None:
    play = ready("abc", slices=6, backups=1, levels=levels).offer(1).run(until=at)
    lose(play, "a")
    play.run()
    assert [one.level for one in play.asked_for(RunIntake)] == [*range(1, levels + 1)]
    assert not play.asked_for(EpochFailed)
    assert not play.asked_for(Restore)
    assert play.asked_for(EpochDone) == [EpochDone(2)]


def test_a_lost_container_is_replaced_when_the_epoch_is_over() -> None:
    play = ready("abc", slices=6, backups=1).offer(1).run(until=Apply)
    lose(play, "a")
    play.run(until=StoreCommit)
    assert not play.asked_for(NeedContainers)
    play.run()
    assert play.asked_for(NeedContainers) == [NeedContainers(1)]
    play.join("d").run().commit(2)
    tick(play, PROOF_SECONDS * 2)
    play.run()
    assert Counter(play.master.routing.table) == {"b": 2, "c": 2, "d": 2}
    assert play.master.settled


def test_redundancy_is_restored_by_itself() -> None:
    play = ready("abc", slices=6, backups=1)
    lose(play, "a")
    play.run()
    assert play.master.copies_short() == (6, 6)
    for number in range(6):
        owner = play.master.owner(number)
        assert set(play.master.holders(number)) == {"b", "c"} - {owner}


def test_containers_that_cannot_start_are_not_asked_for_for_ever() -> None:
    play = ready("abc", slices=6)
    lose(play, "a")
    play.run()
    for number in range(FAILED_STARTS):
        assert len(play.asked_for(NeedContainers)) == number + 1
        play.tell(ContainerLost(f"could not start {number}"))
    play.commit(1, 2)
    assert len(play.asked_for(NeedContainers)) == FAILED_STARTS
    assert play.master.settled, "two containers are what it has"
    play.tell(ScaleWanted(3))
    assert len(play.asked_for(NeedContainers)) == FAILED_STARTS + 1, "somebody scaled: it tries again"


def test_a_run_without_containers_ends_when_none_can_start() -> None:
    """At once if there was never one; if there were some, after a few times."""
    play = Play()
    (ended,) = play.tell(Failed(play.take(NeedContainers).id, BOOM))
    assert isinstance(ended, EndRun)
    assert ended.error is BOOM
    assert play.tell(ContainerJoined("a")) == [], "it is over"
    play = ready("ab").forget()
    play.tell(ContainerLost("a"), ContainerLost("b"))
    for _ in range(FAILED_STARTS - 1):
        assert play.tell(Failed(play.take(NeedContainers).id, BOOM)) == [NeedContainers(2)], "it tries again"
    (ended,) = play.tell(Failed(play.take(NeedContainers).id, BOOM))
    assert isinstance(ended, EndRun)


def test_a_run_with_containers_goes_on_when_no_other_can_start() -> None:
    play = ready("ab", slices=4).forget()
    play.tell(ScaleWanted(3))
    for _ in range(FAILED_STARTS):
        play.tell(Failed(play.take(NeedContainers).id, BOOM))
    assert not play.asked_for(EndRun)
    assert len(play.asked_for(NeedContainers)) == FAILED_STARTS
    play.commit(1, 2)
    assert play.master.settled


# -------------------------------------------------------------------------------------------------- growing


def test_scaling_up_from_the_first_wish_to_the_last_copy() -> None:
    play = ready("ab", slices=4)
    fence = Fence(1, 2, 0)
    assert play.tell(ScaleWanted(4)) == [NeedContainers(2)]
    assert play.tell(ContainerJoined("c")) == [], "the other one is still coming"
    assert play.tell(ContainerJoined("d")) == [
        SendCopies("a", fence, frozenset({0}), 1, (("c", frozenset({0})),), moving=True),
        SendCopies("b", fence, frozenset({2}), 1, (("d", frozenset({2})),), moving=True),
    ]
    assert play.tell(success(play.take(SendCopies, container="a"))) == [Activate("c", fence, frozenset({0}), 1)]
    play.run()
    assert play.master.routing.table == ("a", "a", "b", "b"), "nothing has been compared yet"

    play.forget().offer(1).run(until=Apply)
    fence = Fence(1, 2, 1)
    assert play.asked_for(Apply) == [
        Apply("a", fence, frozenset({0, 1}), 1, frozenset({0})),
        Apply("b", fence, frozenset({2, 3}), 1, frozenset({2})),
        Apply("c", fence, frozenset({0}), 1, frozenset({0})),
        Apply("d", fence, frozenset({2}), 1, frozenset({2})),
    ]
    play.run()
    assert play.master.routing.table == ("c", "a", "d", "b")
    assert play.asked_for(Demote) == [
        Demote("a", Fence(1, 3, 0), frozenset({0}), 2),
        Demote("b", Fence(1, 3, 0), frozenset({2}), 2),
    ]
    assert play.master.settled
    assert [one.kind for one in play.master.operations] == ["rescale"]
    assert play.master.operations[0].done


@pytest.mark.parametrize("levels", [1, 3])
def test_owners_change_only_between_two_epochs(levels: int) -> None:
    play = ready("ab", slices=4, backups=1, levels=levels)
    play.tell(ScaleWanted(4))
    play.join("c", "d").run().offer(1)
    switched = []
    while play.open:
        before, step = play.master.routing.table, play.open.pop(0)
        play.tell(success(step))
        if play.master.routing.table != before:
            switched.append(type(step))
    assert switched == [StoreCommit]
    assert sorted(play.master.routing.table) == ["a", "b", "c", "d"]


def test_an_epoch_does_not_wait_for_a_destination() -> None:
    play = ready("ab", slices=2)
    play.tell(MoveWanted(frozenset({0}), "b"))
    play.run().offer(1).run(until=Apply)
    shadow = play.take(Apply, container="b", slices=frozenset({0}))
    play.run()
    assert play.asked_for(EpochDone) == [EpochDone(2)]
    assert play.master.routing.table == ("a", "b"), "it is not there yet"
    play.tell(success(shadow))
    play.run().commit(2)
    assert play.master.routing.table == ("b", "b")


def test_a_destination_that_fell_behind_catches_up_by_the_log() -> None:
    play = ready("ab", slices=2)
    play.tell(MoveWanted(frozenset({0}), "b"))
    sending = play.take(SendCopies)
    play.commit(1)
    assert play.tell(success(sending)) == [Activate("b", Fence(1, 3, 0), frozenset({0}), 2)]
    activate = play.take(Activate)
    play.commit(2)
    assert play.tell(success(activate)) == [Activate("b", Fence(1, 4, 0), frozenset({0}), 3)], "and once more"


def test_before_the_first_epoch_slices_move_without_copies() -> None:
    play = ready("ab", slices=4, epochs=0)
    play.tell(ScaleWanted(4))
    play.join("c", "d").run()
    assert not play.asked_for(SendCopies)
    assert [one.epoch for one in play.asked_for(Activate)] == [0, 0]
    play.commit(0)
    assert sorted(play.master.routing.table) == ["a", "b", "c", "d"]


def test_a_quiet_stream_switches_after_a_while() -> None:
    play = ready("ab", slices=4)
    tick(play, 100.0)
    play.tell(ScaleWanted(4))
    play.join("c", "d").run()
    tick(play, 100.0 + PROOF_SECONDS - 0.1)
    assert play.master.routing.table == ("a", "a", "b", "b")
    assert not play.asked_for(TakeDigests)
    tick(play, 100.0 + PROOF_SECONDS)
    asked = [(one.container, one.slices, one.epoch) for one in play.asked_for(TakeDigests)]
    assert asked == [(side, frozenset({at}), 1) for at, sides in ((0, "ac"), (2, "bd")) for side in sides]
    assert play.master.routing.table == ("a", "a", "b", "b"), "nothing has been compared yet"
    play.run()
    assert play.master.routing.table == ("c", "a", "d", "b")
    assert [one.epoch for one in play.asked_for(Demote)] == [1, 1]
    play.run().commit(1)
    assert play.master.settled


def test_slices_go_where_a_copy_is() -> None:
    play = ready("abc", slices=9, backups=1)
    play.tell(ScaleWanted(2))
    assert not [one for one in play.asked_for(SendCopies) if one.container == "a"], "nothing of it has to be sent"
    assert frozenset().union(*(one.slices for one in play.asked_for(Activate))) == owned(play, "a")


# ------------------------------------------------------------------------------------------------ shrinking


def test_a_container_goes_when_it_owns_nothing_and_its_copies_are_elsewhere() -> None:
    play = ready("abcd", slices=8, backups=1)
    play.tell(ScaleWanted(2))
    number, ended = 1, []
    while not play.master.settled:
        assert number < 6, play.master.phase
        play.offer(number)
        while play.open:
            for one in play.tell(success(play.open.pop(0))):
                if isinstance(one, EndContainer):
                    ended.append(one.container)
                    assert one.container not in play.master.routing.table
                    others = {"a", "b", "c", "d"} - {"a", "b"}
                    assert all(others & set(play.master.holders(slice_)) for slice_ in range(8)), "a copy goes with it"
        number += 1
    assert ended == ["a", "b"]
    assert sorted(play.master.routing.table) == ["c"] * 4 + ["d"] * 4
    assert {one.container for one in play.asked_for(Forget)} == {"a", "b"}, "they are not put away where they go"
    assert not play.asked_for(Demote)
    assert play.master.copies_short() == (8, 8)


def test_a_container_that_was_to_leave_is_kept_when_one_is_wanted_again() -> None:
    play = ready("abc", slices=6)
    play.tell(ScaleWanted(2))
    play.tell(ScaleWanted(3))
    play.run().commit(1, 2)
    assert not play.asked_for(NeedContainers)
    assert not play.asked_for(EndContainer)
    assert Counter(play.master.routing.table) == {"a": 2, "b": 2, "c": 2}


def test_the_loss_of_a_container_that_stays_while_others_leave() -> None:
    play = ready("abc", slices=6, backups=1)
    play.tell(ScaleWanted(2))
    play.run()
    lose(play, "c")
    play.run().commit(1, 2, 3)
    assert play.master.whole
    assert play.master.settled
    assert set(play.master.routing.table) == {"a", "b"}, "the one that was leaving is needed again"


# --------------------------------------------------------------------------------------------------- moving


def test_moving_to_nobody_tells_people() -> None:
    play = ready("abc", slices=3)
    (told,) = play.tell(MoveWanted(frozenset({0}), "z"))
    assert told == TellPeople("move", "there is no container 'z' to move slices to")
    play.tell(ScaleWanted(2))
    assert TellPeople("move", "there is no container 'a' to move slices to") in play.tell(
        MoveWanted(frozenset({1}), "a")
    )


def test_a_moved_slice_stays_although_counts_are_uneven() -> None:
    play = ready("ab", slices=4)
    play.tell(MoveWanted(frozenset({0, 1}), "b"))
    play.run().commit(1, 2)
    assert play.master.routing.table == ("b",) * 4
    play.tell(LoadsSeen(tuple((number, 1.0) for number in range(4))))
    play.run().commit(3)
    assert play.master.routing.table == ("b",) * 4


def test_hot_slices_are_spread() -> None:
    play = ready("ab", slices=4)
    play.tell(LoadsSeen(((0, 9.0), (1, 8.0), (2, 0.1), (3, 0.1))))
    play.run().commit(1)
    assert len({play.master.owner(0), play.master.owner(1)}) == 2
    assert [one.kind for one in play.master.operations] == ["balance"]


def test_unlike_outputs_give_the_move_up_and_tell_people() -> None:
    play = ready("ab", slices=2)
    play.tell(MoveWanted(frozenset({0}), "b"))
    play.run().offer(1).run(until=Apply)
    source = play.take(Apply, container="a")
    shadow = play.take(Apply, container="b", slices=frozenset({0}))
    play.tell(Applied(source.id, ((0, 0xAA),)))
    told = play.tell(Applied(shadow.id, ((0, 0xBB),)))
    assert Forget("b", Fence(1, 2, 1), frozenset({0})) in told
    (news,) = [one for one in told if isinstance(one, TellPeople)]
    assert "put out 000000aa on a and 000000bb on b in epoch 2: it stays on a" in news.text
    play.run().commit(2)
    assert play.master.routing.table == ("a", "b")
    assert play.asked_for(EpochDone) == [EpochDone(2), EpochDone(3)]


def silent(play: Play, *kinds: type[Instruction]) -> None:
    """Everything goes well, and no epoch puts out a row; instructions of these kinds are left."""
    while left := [one for one in play.open if not isinstance(one, kinds)]:
        play.open.remove(left[0])
        quiet = isinstance(left[0], Apply)
        play.tell(Applied(left[0].id, tuple((at, 0) for at in left[0].digests)) if quiet else success(left[0]))


def in_dual_mode(levels: int = 1) -> Play:
    play = ready("ab", slices=2, levels=levels)
    tick(play, 100.0)
    play.tell(MoveWanted(frozenset({0}), "b"))
    play.run()
    return play.forget()


def test_epochs_without_rows_prove_nothing() -> None:
    play = in_dual_mode(levels=2)
    for number in range(1, 4):
        play.offer(number)
        silent(play)
    assert play.master.routing.table == ("a", "b")
    play.commit(4)
    assert play.master.routing.table == ("b", "b"), "there were rows"
    assert not play.asked_for(TakeDigests)


def test_rows_at_one_level_prove_a_whole_epoch_when_all_levels_were_compared() -> None:
    play = in_dual_mode(levels=2)
    play.offer(1)
    while play.open:
        step = play.open.pop(0)
        if isinstance(step, Apply):
            assert play.master.routing.table == ("a", "b")
            play.tell(Applied(step.id, tuple((at, 9 if step.level == 1 else 0) for at in step.digests)))
        else:
            play.tell(success(step))
    assert play.master.routing.table == ("b", "b")


def told_states(play: Play, ours: tuple[object, ...], theirs: tuple[object, ...]) -> list[Instruction]:
    tick(play, 100.0 + PROOF_SECONDS)
    told = []
    for side, state in (("a", ours), ("b", theirs)):
        asked = play.take(TakeDigests, container=side)
        told += play.tell(DigestsTaken(asked.id, *state))  # type: ignore[arg-type]
    return told


def test_unlike_states_give_the_move_up_and_tell_people() -> None:
    play = in_dual_mode()
    told = told_states(play, (((0, 0xAA),), 3), (((0, 0xBB),), 3))
    assert Forget("b", Fence(1, 2, 0), frozenset({0})) in told
    (news,) = [one for one in told if isinstance(one, TellPeople)]
    assert "slice 0 was 00000000000000aa on a and 00000000000000bb on b as of epoch 1: it stays on a" in news.text
    play.run().commit(1)
    assert play.master.routing.table == ("a", "b")


@pytest.mark.parametrize(
    "theirs",
    [((), 3), (((0, 0xAA),), 4), (((0, 0xBB),), 4)],
    ids=["the epoch is gone there", "another graph", "another graph and other rows"],
)
def test_states_that_cannot_be_compared_are_asked_for_again(theirs: tuple[object, ...]) -> None:
    play = in_dual_mode()
    assert not told_states(play, (((0, 0xAA),), 3), theirs)
    tick(play, 100.0 + 1.5 * PROOF_SECONDS)
    assert not play.open, "not at once"
    assert play.master.routing.table == ("a", "b")
    tick(play, 100.0 + 2 * PROOF_SECONDS)
    play.run()
    assert play.master.routing.table == ("b", "b")


def test_states_that_could_not_be_told_are_asked_for_again() -> None:
    play = in_dual_mode()
    tick(play, 100.0 + PROOF_SECONDS)
    play.tell(Failed(play.take(TakeDigests, container="a").id, StoreError("away")))
    play.run()
    assert play.master.routing.table == ("a", "b")
    assert not play.asked_for(EpochFailed)
    tick(play, 100.0 + 2 * PROOF_SECONDS)
    play.run()
    assert play.master.routing.table == ("b", "b")


def test_states_are_of_one_epoch_though_others_follow_meanwhile() -> None:
    play = in_dual_mode()
    tick(play, 100.0 + PROOF_SECONDS)
    questions = [play.take(TakeDigests, container=side) for side in "ab"]
    assert {one.epoch for one in questions} == {1}  # type: ignore[attr-defined]
    play.offer(1)
    silent(play)
    assert play.master.routing.table == ("a", "b")
    for one in questions:
        play.tell(success(one))
    assert play.master.routing.table == ("b", "b")


def test_a_destination_that_began_again_is_not_proven_by_what_it_was() -> None:
    play = in_dual_mode()
    tick(play, 100.0 + PROOF_SECONDS)
    late = [play.take(TakeDigests, container=side) for side in "ab"]
    play.offer(1).run(until=Apply)
    play.tell(Failed(play.take(Apply, container="b", slices=frozenset({0})).id, StoreError("away")))
    for one in late:
        play.tell(success(one))
    silent(play)
    assert play.master.routing.table == ("a", "b")


@pytest.mark.parametrize("first", ["a", "b"])
def test_outputs_of_unlike_levels_are_not_compared(first: str) -> None:
    play = ready("ab", slices=2, levels=2)
    play.tell(MoveWanted(frozenset({0}), "b"))
    play.run().offer(1)
    level = 0
    while play.open:
        step = next((one for one in play.open if getattr(one, "container", first) == first), play.open[0])
        play.open.remove(step)
        if isinstance(step, Apply):
            level = step.level
            play.tell(Applied(step.id, tuple((number, 100 + level) for number in step.digests)))
        else:
            play.tell(success(step))
    assert level == 2
    assert not play.asked_for(TellPeople)
    assert play.master.routing.table == ("b", "b")


def moving(phase: Phase, backups: int = 0) -> Play:
    """Slice 0 is on its way from a to b, in this phase; c looks on."""
    play = ready("abc", slices=3, backups=backups)
    play.tell(MoveWanted(frozenset({0}), "b"))
    if phase is not Phase.COPY:
        play.run(until=Activate)
    if phase is Phase.DUAL:
        play.run()
    assert play.master._elastic.moves.of[0].phase is phase
    return play.forget()


@pytest.mark.parametrize("phase", list(Phase))
def test_a_source_lost_in_a_move(phase: Phase) -> None:
    play = moving(phase)
    lose(play, "a")
    owner = play.master.owner(0)
    assert owner in {"b", "c"}
    restores = [one for one in play.asked_for(Restore) if 0 in one.slices]
    if phase is Phase.COPY:
        assert [one.container for one in restores] == [owner]
    else:
        assert owner == "b", "it was on its way to it anyway"
        assert not restores
        assert not play.asked_for(Activate), "it is at work on it, or done"
    play.run().commit(1, 2)
    assert play.master.whole
    assert not play.asked_for(EpochFailed)


@pytest.mark.parametrize("phase", list(Phase))
def test_a_destination_lost_in_a_move(phase: Phase) -> None:
    play = moving(phase)
    lose(play, "b")
    assert play.master.owner(0) == "a"
    assert not [one for one in play.asked_for(Restore) if 0 in one.slices], "its owner never stopped"
    play.run().commit(1, 2)
    assert play.master.whole
    assert 0 not in play.master._elastic.moves.of
    assert play.asked_for(EpochDone)[-1] == EpochDone(3)


@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_loss_while_both_apply(lost: str) -> None:
    play = moving(Phase.DUAL).offer(1).run(until=Apply)
    lose(play, lost)
    play.run()
    assert play.master.owner(0) == ("b" if lost == "a" else "a")
    assert not [one for one in play.asked_for(Restore) if 0 in one.slices]
    assert [one.level for one in play.asked_for(RunIntake)] == [1]
    assert play.asked_for(EpochDone) == [EpochDone(2)]


@pytest.mark.parametrize("phase", [Phase.REBUILD, Phase.DUAL])
def test_source_and_destination_lost_at_once(phase: Phase) -> None:
    play = moving(phase)
    lose(play, "a", "b")
    assert play.master.routing.table == ("c",) * 3
    play.run().commit(1)
    assert play.asked_for(EpochDone) == [EpochDone(2)]


def test_a_failed_epoch_makes_destinations_start_over() -> None:
    play = moving(Phase.DUAL).offer(1).run(until=Apply)
    play.tell(success(play.take(Apply, container="b", slices=frozenset({0}))))
    play.tell(Failed(play.take(Apply, container="c").id, RAISED))
    play.run()
    assert play.asked_for(Undo), "the owners take it back"
    assert Forget("b", Fence(1, 2, 1), frozenset({0})) in play.asked
    assert play.asked_for(EpochFailed) == [EpochFailed(RAISED)]
    assert play.master._elastic.moves.of[0].phase is Phase.COPY
    play.forget()
    assert not any(isinstance(one, SendCopies) for one in tick(play, AGAIN_SECONDS - 0.1))
    again = SendCopies("a", Fence(1, 2, 1), frozenset({0}), 1, (("b", frozenset({0})),), moving=True)
    assert again in tick(play, AGAIN_SECONDS)
    play.run().commit(1)
    assert play.master.owner(0) == "b"


def test_a_destination_on_which_applying_raises_does_not_concern_the_owner() -> None:
    play = moving(Phase.DUAL).offer(1).run(until=Apply)
    shadow = play.take(Apply, container="b", slices=frozenset({0}))
    assert play.tell(Failed(shadow.id, RAISED)) == [Forget("b", Fence(1, 2, 1), frozenset({0}))]
    play.run()
    assert not play.asked_for(EpochFailed)
    assert play.asked_for(EpochDone) == [EpochDone(2)]
    assert play.master.owner(0) == "a"


def test_a_copy_that_cannot_be_activated_in_a_move_is_sent_again() -> None:
    play = moving(Phase.REBUILD)
    assert play.tell(Failed(play.take(Activate).id, BOOM)) == [Forget("b", Fence(1, 2, 0), frozenset({0}))]
    assert play.master.owner(0) == "a"
    tick(play, AGAIN_SECONDS)
    assert not play.asked_for(SendCopies), "what is there has to go first"
    play.run()
    tick(play, AGAIN_SECONDS + 1)
    assert play.asked_for(SendCopies)
    play.run().commit(1)
    assert play.master.owner(0) == "b"


def test_a_source_that_cannot_put_its_slice_away_forgets_it() -> None:
    play = moving(Phase.DUAL).offer(1).run(until=Demote)
    demote = play.take(Demote)
    assert Forget("a", demote.fence, frozenset({0})) in play.tell(Failed(demote.id, BOOM))
    assert "a" not in play.master.holders(0)
    assert play.run().master.owner(0) == "b"


# ------------------------------------------------------------------------------------------ copies and time


def test_copies_are_only_of_committed_epochs() -> None:
    play = ready("ab", slices=2, backups=1)
    for number in range(1, 4):
        play.offer(number)
        while play.open:
            for one in play.tell(success(play.open.pop(0))):
                if isinstance(one, SendCopies):
                    assert one.epoch == play.master.committed


def test_a_backup_that_lags_is_waited_for_by_nobody() -> None:
    play = ready("ab", slices=2, backups=1).offer(1).run(until=SendCopies)
    late = play.take(SendCopies, container="a")
    play.run().commit(2, 3, 4)
    assert [one.container for one in play.asked_for(SendCopies)].count("a") == 1, "one at a time"
    assert play.asked_for(EpochDone)[-1] == EpochDone(5)
    play.tell(success(late))
    assert play.asked_for(SendCopies)[-1] == SendCopies(
        "a", Fence(1, 6, 0), frozenset({0}), 5, (("b", frozenset({0})),)
    )


def test_copies_are_brought_up_to_date_every_so_many_epochs() -> None:
    play = ready("ab", slices=2, backups=1, every=Interval(epochs=3))
    play.commit(1, 2, 3, 4, 5, 6, 7)
    epochs = sorted({one.epoch for one in play.asked_for(SendCopies)})
    assert epochs == [3, 6]


def test_copies_are_brought_up_to_date_by_the_clock() -> None:
    play = ready("ab", slices=2, backups=1, every=Interval(seconds=3.0), epochs=1)
    assert set(play.master.holders(0)) == {"b"}, "what is missing does not wait for an interval"
    play.commit(1, 2, 3)
    assert not play.asked_for(SendCopies)
    tick(play, 2.9)
    assert not play.asked_for(SendCopies)
    tick(play, 3.0)
    assert [one.epoch for one in play.asked_for(SendCopies)] == [4, 4]
    play.run().commit(4).forget()
    tick(play, 5.9)
    assert not play.asked_for(SendCopies)
    tick(play, 6.0)
    assert [one.epoch for one in play.asked_for(SendCopies)] == [5, 5]


def test_a_peer_that_could_not_take_copies_is_avoided() -> None:
    play = Play(containers=3, slices=3, safety=Terms(1, EACH, NEVER)).join("a", "b", "c").run()
    play.offer(0).run(until=SendCopies)
    sending = play.take(SendCopies, container="a")
    ((peer, slices),) = sending.to
    other = "c" if peer == "b" else "b"
    (again,) = play.tell(CopiesSent(sending.id, (), {peer: "it is full"}))
    assert (again.container, again.to) == ("a", ((other, slices),))
    play.run()
    assert set(play.master.holders(0)) == {other}


def test_copies_that_nobody_wants_any_more_are_dropped() -> None:
    play = ready("abc", slices=3, backups=1)
    play.tell(ScaleWanted(4))
    play.join("d").run().commit(1)
    tick(play, 10.0)
    play.run().commit(2)
    held = [set(play.master.holders(number)) for number in range(3)]
    assert all(len(one) == 1 for one in held), held
    for one in play.asked_for(DropCopies):
        assert not any(one.container == play.master.owner(number) for number in one.slices)


def test_sync_returns_to_spark_when_everything_is_in_the_store() -> None:
    play = Play(safety=Terms(store_every=Interval(epochs=2), blocking=True)).join("a", "b").run().commit(0)
    assert play.asked_for(EpochDone) == [EpochDone(1)]
    play.forget().offer(1).run(until=WriteCheckpoint)
    assert play.master.committed == 2
    play.run(until=StoreManifest)
    assert not play.asked_for(EpochDone)
    manifest = play.take(StoreManifest)
    assert EpochDone(2) in play.tell(success(manifest))


@pytest.mark.parametrize("trouble", ["failed", "lost"])
def test_sync_does_not_wait_for_a_checkpoint_that_was_given_up(trouble: str) -> None:
    play = Play(safety=Terms(store_every=Interval(epochs=1), blocking=True)).join("a", "b").run()
    play.offer(0).run(until=WriteCheckpoint)
    writing = play.take(WriteCheckpoint, container="b")
    new = play.tell(Failed(writing.id, BOOM)) if trouble == "failed" else lose(play, "b")
    assert EpochDone(1) in new
    play.run().commit(1)
    assert play.asked_for(EpochDone)[-1] == EpochDone(2)


def test_checkpoints_by_the_clock() -> None:
    play = Play(safety=Terms(store_every=Interval(seconds=60.0))).join("a", "b").run().commit(0, 1)
    tick(play, 59.0)
    assert not play.asked_for(WriteCheckpoint)
    tick(play, 60.0)
    assert [one.epoch for one in play.asked_for(WriteCheckpoint)] == [2, 2]
    play.run()
    tick(play, 300.0)
    assert len(play.asked_for(WriteCheckpoint)) == 2, "nothing has changed since"
    play.commit(2)
    assert [one.epoch for one in play.asked_for(WriteCheckpoint)][2:] == [3, 3]


def test_without_safety_nothing_is_ever_written_or_copied() -> None:
    play = Play(safety=Terms()).join("a", "b").run().commit(0, 1, 2)
    tick(play, 1e6)
    assert not play.asked_for(WriteCheckpoint) + play.asked_for(SendCopies)
    lose(play, "b")
    assert [one.checkpoint for one in play.asked_for(Restore)][-1] == 0


# ------------------------------------------------------------------------------ what the simulator found


def test_a_container_that_verifies_packs_does_not_leave() -> None:
    """Nobody ever answered, and there was no checkpoint any more; with Sync, no epoch either."""
    play = Play(containers=3, slices=2, safety=Terms(store_every=EACH, blocking=True)).join(*"abc").run()
    play.offer(0).run(until=VerifyPacks)
    verifying = play.take(VerifyPacks, by="c")
    play.tell(ScaleWanted(2))
    assert "c" in play.master._elastic.members.leaving
    play.run()
    assert not play.asked_for(EndContainer)
    play.tell(success(verifying))
    play.run()
    assert play.asked_for(EndContainer) == [EndContainer("c")]
    assert play.asked_for(EpochDone) == [EpochDone(1)]


def test_moves_and_updates_of_copies_take_turns() -> None:
    """Each update took so long that the next one was due, and no slice ever moved."""
    play = ready("abc", slices=3, backups=1, every=EACH)
    play.offer(1).run(until=SendCopies)
    play.tell(MoveWanted(frozenset({0}), "c"))
    update = play.take(SendCopies, container="a")
    play.commit(2)
    play.tell(success(update))
    move = play.take(SendCopies, container="a")
    assert (update.moving, move.moving) == (False, True), "although an update is due again"
    play.commit(3)
    play.tell(success(move))
    assert not play.take(SendCopies, container="a").moving


def test_checkpoints_without_a_break_do_not_hold_up_moves() -> None:
    """A slice does not change hands while it is written, and it was written all the time."""
    play = Play(containers=2, slices=2, safety=Terms(store_every=EACH)).join(*"ab").run().commit(0)
    play.offer(1).run(until=WriteCheckpoint)
    writing = [play.take(WriteCheckpoint), play.take(WriteCheckpoint)]
    play.tell(MoveWanted(frozenset({0}), "b"))
    play.run().commit(2)
    assert play.master.routing.table == ("a", "b"), "it is just being written"
    play.offer(3).run(until=Apply)
    applying = [one for one in play.open if isinstance(one, Apply)]
    play.open = []
    play.tell(*map(success, writing))
    play.run()
    assert play.asked_for(StoreManifest)[-1].epoch == 2
    play.tell(*map(success, applying))
    play.run()
    assert play.master.routing.table == ("b", "b")
    assert play.asked_for(StoreManifest)[-1].epoch == 4, "and then the next checkpoint is written"


# ------------------------------------------------------------------------------ the world would notice


@pytest.mark.parametrize(
    ("planted", "noticed"),
    [
        (SwitchesInsideAnEpoch, "slice . at|put away while|found no output|KeyError"),
        (KeepsHalfAppliedDestinations, "slice . at|no progress"),
        (CopiesAnEpochInFlight, "is wrong at|KeyError|no progress"),
        (DoesNotWaitUntilAllIsForgotten, "KeyError|found no output|slice .|a copy of|put out|put away|no progress"),
        (TakesActivatedForNewer, "slice . at|found no output|the epoch is gone|put out|put away"),
        (EndsOwners, "an owner was ended"),
        (HasTwoOwners, "found no output|KeyError"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_bug_is_found(planted: type[Master], noticed: str) -> None:
    find(planted, noticed)
