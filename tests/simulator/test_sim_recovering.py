"""Recovery from pieces under what the simulator does to it; bugs planted in it, which must be found; and its times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from holdfast.recovery.gathering import Gathering
from holdfast.recovery.policies import Auto, Line, Star, Structure, Tree
from holdfast.safety.shards import Cut, PieceName, Version, choose
from simulator.links import Speed
from simulator.recovering import Recovering
from simulator.recovering_world import GIGABIT, RecoveringWorld
from simulator.scenario import Broken
from simulator.streams import Costs

MB = 1 << 20
SEEDS = 2500
"""Twenty times as many as the rarest bug takes; a hundred take a second."""


@pytest.mark.parametrize("first", range(1, 201, 50))
def test_recovery_keeps_its_promises(first: int) -> None:
    for seed in range(first, first + 50):
        Recovering(seed).run()


def test_a_seed_gives_the_same_run_to_the_last_line() -> None:
    runs = [Recovering(12, trace=True) for _ in range(2)]
    assert runs[0].run() == runs[1].run()
    assert runs[0].world.notes == runs[1].world.notes
    assert len(runs[0].world.notes) > 20


# ------------------------------------------------------------------------------------------------ planted bugs


class Mixing(Gathering):
    """What came of a version that cannot be completed is taken for the next one."""

    def _choose_versions(self) -> None:
        before = {number: set(one.got) for number, one in self.slices.items()}
        super()._choose_versions()
        for number, one in self.slices.items():
            if not one.over:
                one.got |= before[number]


class Impatient(Gathering):
    """Begins as soon as anything is whole, whatever others might still answer."""

    def _plan_if_known(self) -> None:
        inventory = {peer: answer.held for peer, answer in self._answers.items()}
        if not self._waiting or all(choose(one.pieces, inventory) for one in self.slices.values()):
            self._plan()


class Forgetful(Gathering):
    """After a failure everything is asked for again."""

    def _lose(self, peers: Any) -> None:
        super()._lose(peers)
        for one in self.slices.values():
            one.got.clear()


class Trusting(Gathering):
    """Whoever breaks off is not replaced: its share is never planned again."""

    def _plan(self) -> None:
        if not self._made:
            super()._plan()
        else:
            self._pull()


class Hasty(Gathering):
    """Gives up at the first loss."""

    def _lose(self, peers: Any) -> None:
        super()._lose(peers)
        for one in self.slices.values():
            if not one.over and one.version is not None:
                self._beyond(one, "somebody was lost")


def run_many(make: type[Gathering]) -> None:
    for seed in range(1, SEEDS + 1):
        Recovering(seed, make=make).run()


@pytest.mark.parametrize("bug", [Mixing, Impatient, Forgetful, Trusting, Hasty])
def test_a_planted_bug_is_found(bug: type[Gathering]) -> None:
    with pytest.raises(Broken, match=r"seed \d+"):
        run_many(bug)


# ------------------------------------------------------------------------------------------------------- times


def recovered(
    policy: Structure | Auto | None, nbytes: int, speed: Speed = GIGABIT, replacing: int = 1, **costs: Any
) -> float:
    """Seconds until the last of ``replacing`` nodes has its share, of one slice each; from a store without a policy."""
    quick = Costs(merge=1e9, build=1e9, loose=1e9)
    ring = RecoveringWorld(1, 30, speed=speed, costs=replace(quick, **costs))
    cut = Cut(24, 2)
    heirs = [f"c{number}" for number in range(1, replacing + 1)]
    share = nbytes // replacing
    ring.stock(range(replacing), cut, Version(1), share, speed)
    for number in range(replacing):
        ring.put(ring.placed("job", number, "c0", cut), Version(1), share)
    ring.kill("c0")
    gatherers = [
        ring.recover(here, [number], cut, policy, replacing=heirs) if policy else ring.restore(here, [number], cut)
        for number, here in enumerate(heirs)
    ]
    ring.world.run_for(1000)
    assert all(one.fates == {number: Version(1)} for number, one in enumerate(gatherers))
    return max(one.seconds for one in gatherers)


def test_a_transfer_takes_what_its_busiest_link_needs() -> None:
    wire = 256 * MB / GIGABIT.down
    assert recovered(None, 256 * MB) == pytest.approx(wire, rel=0.1)
    assert recovered(Star(24), 256 * MB) == pytest.approx(wire, rel=0.1)
    slow = Speed(up=12.5e6, down=125e6)
    assert recovered(None, 256 * MB, slow) == pytest.approx(10 * wire, rel=0.1)
    assert recovered(Star(1), 256 * MB, slow) == pytest.approx(10 * wire, rel=0.1), "one upload at a time"
    assert recovered(Star(24), 256 * MB, slow) < 2 * wire
    assert recovered(Line(24), 256 * MB, slow) > 9 * wire, "its last node sends everything"
    assert recovered(Tree(3, 1), 256 * MB, slow) < 2 * wire


def test_lines_stream() -> None:
    """Stored and forwarded, 24 nodes would take (24 + 1) / 2 times the bytes."""
    assert recovered(Line(24), 256 * MB) < 2 * recovered(Line(1), 256 * MB)


def test_merging_is_work_that_a_tree_shares() -> None:
    slow = {"merge": 20e6, "loose": 20e6}
    assert recovered(Star(24), 64 * MB, **slow) > 2 * recovered(Tree(3, 2), 64 * MB, **slow)


def test_several_replacing_nodes_share_the_link_of_a_store_but_not_of_a_ring() -> None:
    assert recovered(None, 256 * MB, replacing=3) == pytest.approx(recovered(None, 256 * MB), rel=0.1)
    assert recovered(Star(24), 256 * MB, replacing=3) < 0.5 * recovered(None, 256 * MB, replacing=3)


@pytest.mark.parametrize("policy", [Star(24), Line(4), Tree(2, 2), Auto()])
@pytest.mark.parametrize("copies", [2, 3])
def test_the_loss_of_all_but_one_holder_of_every_piece_costs_time_and_nothing_else(
    policy: Structure | Auto, copies: int
) -> None:
    ring = RecoveringWorld(3, 30)
    cut = Cut(6, copies)
    where = ring.placed("job", 0, "c0", cut)
    ring.put(where, Version(5), 64 * MB)
    ring.kill("c0")
    spared = spare(where)
    here = next(name for name in ring.held if name not in {one for names in where.values() for one in names})
    gatherer = ring.recover(here, [0], cut, policy)
    for name in sorted({one for names in where.values() for one in names} - spared):
        ring.world.run_for(0.03)
        ring.kill(name)
    ring.world.run_for(100)
    assert not gatherer.wrong
    assert gatherer.fates == {0: Version(5)}


def spare(where: Mapping[PieceName, tuple[str, ...]]) -> set[str]:
    """One holder of each piece, and as few in all as come out that way."""
    found: set[str] = set()
    for names in where.values():
        if found.isdisjoint(names):
            found.add(names[-1])
    return found
