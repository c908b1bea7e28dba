"""The ring under everything that the simulator can do to it; and bugs planted in it, which must be found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.ring.overlay.core import Seen
from holdfast.ring.overlay.groups import Groups
from holdfast.ring.overlay.membership import Membership
from holdfast.ring.overlay.messages import Leaves, MessageId
from holdfast.ring.overlay.node import Node
from holdfast.ring.overlay.settings import Settings
from holdfast.ring.overlay.view import View
from simulator import scenario as scenarios
from simulator.__main__ import main
from simulator.ring import Ring
from simulator.ring_world import RingWorld
from simulator.scenario import Broken
from simulator.world import World


@pytest.mark.parametrize("first", range(1, 61, 10))
def test_the_ring_keeps_its_promises(first: int) -> None:
    for seed in range(first, first + 10):
        Ring(seed).run()


@pytest.mark.parametrize("seed", [3, 4])
def test_a_seed_gives_the_same_run_to_the_last_line(seed: int) -> None:
    runs = [Ring(seed, trace=True) for _ in range(2)]
    told = [run.run() for run in runs]
    assert told[0] == told[1]
    assert runs[0].world.notes == runs[1].world.notes
    assert len(runs[0].world.notes) > 200
    assert Ring(seed + 10, trace=True).run() != told[0]


# ------------------------------------------------------------------------------------------------ planted bugs


class OneSided(Membership):
    """Repair forgets one side."""

    __slots__ = ()

    def _exchange(self) -> None:
        for peer in self._view.leaves.beside()[:1]:
            self._core.send(peer, Leaves(self._view.leaves.all()))


class Forgetful(View):
    """Whoever is lost is never looked for again."""

    __slots__ = ()

    def probes(self) -> list[int]:
        return []


class Naive(Seen):
    """Doubled messages pass."""

    __slots__ = ()

    def first(self, one: MessageId) -> bool:
        return True


class Loyal(Groups):
    """A child stays with its parent, dead or alive."""

    __slots__ = ()

    def gone(self, peer: int) -> None:
        pass

    def unreached_parent(self, parent: int, group: int) -> None:
        pass

    def _find_parent(self, group: int, tree: Any) -> None:
        if tree.parent is None:
            super()._find_parent(group, tree)


def planted(kind: type) -> Callable[..., Node]:
    """Nodes with one part of that kind. Where the state is kept does not change, so the part only changes class."""

    def make(*arguments: Any) -> Node:
        node = Node(*arguments)
        for part in (node.membership, node.view, node.groups, node.groups._seen):
            if issubclass(kind, type(part)):
                part.__class__ = kind
        return node

    return make


SEEDS = 600
"""Thirty times as many as the rarest of these bugs takes (the median of where it shows is 18)."""


def run_many(make: Callable[..., Node]) -> None:
    for seed in range(1, SEEDS + 1):
        Ring(seed, make=make).run()


@pytest.mark.parametrize("bug", [OneSided, Forgetful, Naive, Loyal])
def test_a_planted_bug_is_found(bug: type) -> None:
    with pytest.raises(Broken, match=r"seed \d+"):
        run_many(planted(bug))


# ------------------------------------------------------------------------------------------------- larger rings


def built(count: int, **settings: int) -> RingWorld:
    ring = RingWorld(7, Settings(**settings))
    chance = ring.world.random
    ring.start()
    ring.world.run_for(0.1)
    for _ in range(count - 1):
        ring.start(chance.choice(ring.members()))
        ring.world.run_for(0.02)
    ring.world.run_for(40)
    return ring


def test_every_message_is_delivered_while_a_tenth_of_the_nodes_fail() -> None:
    ring = built(150)
    chance = ring.world.random
    doomed = chance.sample(ring.ids, 15)
    sources = [one for one in ring.ids if one not in doomed]
    for number in range(300):
        if number % 20 == 10:
            ring.kill(doomed.pop())
        ring.lookup(chance.choice(sources), chance.getrandbits(128), receipt=True)
        ring.world.run_for(0.01)
    ring.world.run_for(20)
    assert not doomed
    assert len(ring.arrived) == 300
    assert set(ring.arrived) == set(ring.delivered)


def test_routes_are_short_in_a_ring_much_larger_than_a_leaf_set() -> None:
    ring = built(150, leaves=8)
    chance = ring.world.random
    assert all(set(ring.host(own).node.leaves) == ring.true_leaves(own) for own in ring.ids)
    for _ in range(300):
        ring.lookup(chance.choice(ring.ids), chance.getrandbits(128))
    ring.world.run_for(1)
    routes = [route for [route] in ring.delivered.values()]
    assert len(routes) == 300
    assert all(at == ring.nearest(key) for at, key, _ in routes)
    assert all(hops <= ring.due_hops(key) for _, key, hops in routes)
    assert sum(hops for _, _, hops in routes) / 300 <= ring.most_hops()


# -------------------------------------------------------------------------------------------------- the command


class Unlucky:
    """A scenario that fails on seed 13."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        self.world = World(seed, trace)

    def run(self) -> str:
        self.world.note("all", "something happens")
        if self.world.seed == 13:
            scenarios.broken("unlucky", self.world, "It is Friday.")
        return "all well"


@pytest.fixture
def unlucky(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "SCENARIOS", {"unlucky": f"{__name__}:Unlucky"})
    monkeypatch.setattr("simulator.__main__.SCENARIOS", {"unlucky": ""})
    monkeypatch.setattr("simulator.__main__.IN_TURN", ("unlucky",))


@pytest.mark.usefixtures("unlucky")
def test_the_command_names_the_seed_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "5", "--first", "10"]) == 1
    told = capsys.readouterr()
    assert "seed 13: FAILED" in told.err
    assert "It is Friday." in told.err
    assert "--seed 13 --trace" in told.err
    assert main(["--seeds", "3", "--first", "10"]) == 0
    assert "3 scenarios" in capsys.readouterr().out


@pytest.mark.usefixtures("unlucky")
def test_the_command_shows_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "12", "--trace"]) == 0
    told = capsys.readouterr().out
    assert "something happens" in told
    assert "seed 12: all well" in told
