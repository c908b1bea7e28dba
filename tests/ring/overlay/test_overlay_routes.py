"""Routing over views that are complete, and over views that are any nonsense."""

from __future__ import annotations

import operator
import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.ids import distance, shared
from holdfast.ring.overlay.core import Core
from holdfast.ring.overlay.settings import Settings
from holdfast.ring.overlay.view import View

settings = st.builds(Settings, bits=st.sampled_from([1, 2, 4]), leaves=st.sampled_from([2, 4, 8, 24]))


def views(ids: list[int], chosen: Settings, chance: random.Random, share: float) -> dict[int, View]:
    """Everyone knows about that share of the others, as leaves and in the table."""
    made = {}
    for own in ids:
        view = made[own] = View(Core(own, chosen, 0, operator.add))
        for other in chance.sample(ids, len(ids)):
            if other != own and chance.random() <= share:
                view.meet(other)
    return made


def closeness(own: int, key: int, near: bool, bits: int) -> tuple[bool, int, int, int]:
    """The order in which every hop must be a step up: it cannot come back to where it was."""
    return near, 0 if near else shared(own, key, bits), -distance(own, key), -own


def route(everyone: dict[int, View], start: int, key: int) -> list[int]:
    path, near = [start], False
    bits = everyone[start].table.bits
    while True:
        before = closeness(path[-1], key, near, bits)
        hop, near = everyone[path[-1]].next_hop(key, near)
        if hop is None:
            return path
        assert closeness(hop, key, near, bits) > before, f"not closer: {path}, {hop}"
        path.append(hop)


@given(st.integers(0, 2**32), st.integers(2, 60), settings)
def test_with_complete_views_every_route_ends_at_the_nearest(seed: int, count: int, chosen: Settings) -> None:
    chance = random.Random(seed)
    ids = [chance.getrandbits(128) for _ in range(count)]
    everyone = views(ids, chosen, chance, share=1.0)
    for _ in range(5):
        key = chance.getrandbits(128)
        path = route(everyone, chance.choice(ids), key)
        assert len(set(path)) == len(path)
        assert path[-1] == min(ids, key=lambda one: (distance(one, key), one))


@given(st.integers(0, 2**32), st.integers(2, 40), settings, st.floats(0.0, 1.0))
def test_whatever_is_in_the_tables_every_hop_is_closer(seed: int, count: int, chosen: Settings, share: float) -> None:
    chance = random.Random(seed)
    ids = [chance.getrandbits(128) for _ in range(count)]
    everyone = views(ids, chosen, chance, share)
    for view in everyone.values():
        for suspect in chance.sample(sorted(view.leaves.members), len(view.leaves) // 3):
            view.silence(suspect)
    for _ in range(5):
        route(everyone, chance.choice(ids), chance.getrandbits(128))


def test_a_search_for_a_node_never_ends_at_that_node() -> None:
    chance = random.Random(5)
    ids = [chance.getrandbits(128) for _ in range(30)]
    everyone = views(ids, Settings(leaves=4), chance, share=1.0)
    for own in ids:
        at, near = ids[0] if ids[0] != own else ids[1], False
        while True:
            hop, near = everyone[at].next_hop(own, near, without=own)
            if hop is None:
                break
            assert hop != own
            at = hop
        assert at == min((one for one in ids if one != own), key=lambda one: (distance(one, own), one))


def test_a_leaf_set_that_is_short_of_a_lost_leaf_does_not_take_itself_for_the_whole_ring() -> None:
    """It would deliver far keys at the nearest leaf."""
    chance = random.Random(6)
    ids = sorted(chance.getrandbits(128) for _ in range(60))
    everyone = views(ids, Settings(leaves=4, patience=1), chance, share=1.0)
    view = everyone[ids[0]]
    view.silence(ids[1])
    assert not view.leaves.full
    hop, near = view.next_hop(ids[30])
    assert hop not in (None, ids[2], ids[-1], ids[-2])
    assert not near
