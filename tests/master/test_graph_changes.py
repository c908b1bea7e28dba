"""Another graph between two epochs, as the master has it: other levels, other sinks, whoever is lost meanwhile."""

from __future__ import annotations

import random

import pytest
from master_kit import Play, success

from holdfast.invariants import Impossible
from holdfast.master.events import ContainerLost, GraphChanged
from holdfast.master.instructions import (
    Apply,
    EpochDone,
    Instruction,
    RunIntake,
    RunSink,
    StoreCommit,
    StorePrepare,
)


def ready(**started: object) -> Play:
    return Play(**started).join("a", "b").run()


def levels_of(play: Play) -> list[tuple[int, int]]:
    return [(one.fence.epoch, one.level) for one in play.asked_for(RunIntake)]  # type: ignore[attr-defined]


def test_an_epoch_has_the_levels_and_sinks_of_its_graph() -> None:
    play = ready().commit(0).forget()
    play.tell(GraphChanged(3, ("files", "more"), {"more": "files"}))
    play.commit(1)
    assert levels_of(play) == [(2, 1), (2, 2), (2, 3)]
    assert [one.sink for one in play.asked_for(RunSink)] == ["files", "more"]  # type: ignore[attr-defined]
    play.forget().tell(GraphChanged(1, ("more",)))
    play.commit(2)
    assert levels_of(play) == [(3, 1)]
    assert [one.sink for one in play.asked_for(RunSink)] == ["more"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("at", [StorePrepare, Apply, RunSink, StoreCommit], ids=lambda kind: kind.__name__)
def test_an_epoch_in_flight_keeps_its_graph(at: type[Instruction]) -> None:
    play = ready().offer(0).run(until=at)
    with pytest.raises(Impossible, match="the graph changes in the middle of an epoch"):
        play.tell(GraphChanged(2, ("files",)))


@pytest.mark.parametrize("levels", [(1, 2), (2, 1), (1, 3), (3, 2)])
def test_slices_that_are_on_their_way_back_come_to_the_epoch_before(levels: tuple[int, int]) -> None:
    """A container is lost, and the graph changes before its slices are whole: the next epoch waits for them, and goes
    through its own levels."""
    before, after = levels
    play = ready(levels=before).commit(0)
    play.tell(ContainerLost("b"))
    held = [one for one in play.open if getattr(one, "container", None) == "a"]
    play.forget().tell(GraphChanged(after, ("files",)))
    play.offer(1)
    assert all(one in play.open for one in held)
    play.run()
    assert play.asked[-1] == EpochDone(2)
    assert levels_of(play) == [(2, level) for level in range(1, after + 1)]
    applied = [one for one in play.asked_for(Apply) if one.fence.epoch == 2]  # type: ignore[attr-defined]
    assert {one.level for one in applied} == {*range(1, after + 1)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(60))
def test_random_changes_with_losses_and_moves(seed: int, drill_seed: int) -> None:
    draw = random.Random(seed + 60 * (drill_seed - 1))
    play = Play(containers=3, slices=6, levels=draw.randrange(1, 4)).join("a", "b", "c").run()
    levels, living, names = play.master._progress.levels, ["a", "b", "c"], iter("defghijklmnop")
    for number in range(8):
        if draw.random() < 0.6:
            levels = draw.randrange(1, 4)
            play.tell(GraphChanged(levels, ("files",) if draw.random() < 0.5 else ("files", "more")))
        play.forget().offer(number)
        lost = False
        while play.open:
            if draw.random() < 0.05 and len(living) > 1 and not lost:
                gone, lost = draw.choice(living), True
                living.remove(gone)
                play.tell(ContainerLost(gone))
                play.open = [one for one in play.open if getattr(one, "container", None) != gone]
                living.append(next(names))
                play.join(living[-1])
                continue
            play.tell(success(play.open.pop(draw.randrange(len(play.open)))))
        assert EpochDone(number + 1) in play.asked
        assert levels_of(play) == [(number + 1, level) for level in range(1, levels + 1)]
