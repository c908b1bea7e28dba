"""A job whose slices are in pieces on the ring: when they are saved, and who gets them when their owner is lost."""

from __future__ import annotations

from typing import Any

from master_kit import Play, taking

from holdfast.errors import ContainerError
from holdfast.log.records import Fence
from holdfast.master.events import Clock, ContainerLost, EpochWanted, Failed, ReadySeen, ShardsSaved
from holdfast.master.instructions import (
    Activate,
    Gather,
    Instruction,
    Restore,
    RunIntake,
    SaveShards,
    TellPeople,
)
from holdfast.master.readies import PATIENCE_SECONDS
from holdfast.master.saves import AGAIN_SECONDS
from holdfast.safety.intervals import Interval
from holdfast.safety.policies import Terms
from holdfast.safety.shards import Cut

EACH, NEVER = Interval(epochs=1), Interval(epochs=1000)


def started(**more: Any) -> Play:
    terms = Terms(every=EACH, store_every=NEVER, shards=Cut(2, 2))
    return Play(containers=3, safety=terms, by_ring=True, **more).join("a", "b", "c")


def of(kind: type[Instruction], told: list[Instruction]) -> list[Any]:
    return [one for one in told if isinstance(one, kind)]


def running(**more: Any) -> Play:
    play = started(**more)
    play.tell(EpochWanted(taking(0)))
    play.run()
    return play


def owned(play: Play, container: str) -> frozenset[int]:
    return frozenset(slice_ for slice_, owner in enumerate(play.master.routing.table) if owner == container)


def lose(play: Play, container: str) -> tuple[frozenset[int], list[Any]]:
    slices = owned(play, container)
    return slices, of(Gather, play.tell(ContainerLost(container)))


def test_every_owner_saves_what_it_owns() -> None:
    play = running()
    saved = of(SaveShards, play.asked)
    assert {one.container: one.slices for one in saved} == {name: owned(play, name) for name in "abc"}
    assert {one.epoch for one in saved} == {1}
    assert play.master.copies_short() == (8, 8)


def test_a_saving_that_came_to_little_is_tried_again() -> None:
    play = started()
    play.tell(EpochWanted(taking(0)))
    play.run(until=SaveShards)
    one, *others = [one for one in play.open if isinstance(one, SaveShards)]
    told = play.tell(ShardsSaved(one.id, tuple((slice_, 1) for slice_ in one.slices)))
    assert not of(SaveShards, told), "not at once"
    assert play.master.copies_short()[0] < 8
    told = play.tell(Clock(AGAIN_SECONDS + 1))
    assert [again.container for again in of(SaveShards, told)] == [one.container]
    told = play.tell(Failed(others[0].id, ContainerError("gone")), Clock(3 * AGAIN_SECONDS))
    assert others[0].container in [again.container for again in of(SaveShards, told)]


def test_lost_slices_go_to_whoever_has_them_ready() -> None:
    play = running()
    lost, asked = lose(play, "a")
    assert [(one.container, one.slices, one.lost) for one in asked] == [
        ("b", lost, frozenset("a")),
        ("c", lost, frozenset("a")),
    ]
    assert {play.master.owner(slice_) for slice_ in lost} == {None}, "nobody's, until somebody has it"
    assert not of(Restore, play.asked[-10:])
    first, *rest = sorted(lost)
    told = play.tell(ReadySeen(asked[1].id, ((first, 1),)))
    assert [(one.container, one.slices) for one in of(Activate, told)] == [("c", frozenset([first]))]
    told = play.tell(ReadySeen(asked[0].id, tuple((slice_, 1) for slice_ in rest)))
    assert {(one.container, one.slices) for one in of(Activate, told)} <= {("b", frozenset(rest))}
    assert not of(Restore, told)


def test_what_nobody_has_comes_from_the_store_and_people_hear_of_it() -> None:
    play = running()
    lost, asked = lose(play, "a")
    told = play.tell(ReadySeen(asked[0].id, (), tuple((slice_, "No version is whole.") for slice_ in lost)))
    assert told == [], "the other one may have it"
    told = play.tell(Failed(asked[1].id, ContainerError("it could not say")))
    assert frozenset().union(*(one.slices for one in of(Restore, told))) == lost
    (tell,) = of(TellPeople, told)
    assert tell.kind == "beyond the ring"
    assert "No version is whole." in tell.text


def test_patience_ends() -> None:
    play = running()
    play.tell(Clock(10.0))
    lost, asked = lose(play, "a")
    assert not of(Restore, play.tell(Clock(10.0 + PATIENCE_SECONDS - 1)))
    told = play.tell(Clock(10.0 + PATIENCE_SECONDS))
    assert frozenset().union(*(one.slices for one in of(Restore, told))) == lost
    late = play.tell(ReadySeen(asked[0].id, tuple((slice_, 1) for slice_ in lost)))
    assert not of(Activate, late), "each slice has one owner, whoever comes late"


def test_a_second_loss_asks_the_rest_again() -> None:
    play = running()
    first, _ = lose(play, "a")
    second, asked = lose(play, "b")
    assert [(one.container, one.slices, one.lost) for one in asked] == [("c", first | second, frozenset("ab"))]
    told = play.tell(ReadySeen(asked[0].id, tuple((slice_, 1) for slice_ in sorted(first | second))))
    assert [(one.container, one.slices) for one in of(Activate, told)] == [("c", first | second)]


def test_before_the_first_epoch_there_is_nothing_to_wait_for() -> None:
    play = started()
    _, asked = lose(play, "a")
    assert asked == []
    assert None not in play.master.routing.table


def test_the_epoch_in_flight_waits_and_goes_on() -> None:
    play = running()
    play.tell(EpochWanted(taking(1)))
    play.run(until=RunIntake)
    lost, asked = lose(play, "a")
    for one in asked:
        play.tell(ReadySeen(one.id, tuple((slice_, 1) for slice_ in lost) if one.container == "b" else ()))
    play.open = [one for one in play.open if not isinstance(one, Gather)]
    play.run()
    assert play.master.committed == 2
    assert not of(Restore, [one for one in play.asked if getattr(one, "fence", Fence(0, 0, 0)).epoch > 1])
