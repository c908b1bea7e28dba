"""Chained backup: apart, even, and repaired with as little as possible sent again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.master.placement import activate, peers, place, repair, ring

Holders = Sequence[Sequence[str]]


def even(containers: int, slices: int) -> list[str]:
    return [f"c{number % containers}" for number in range(slices)]


def on_hosts(containers: int, hosts: int) -> dict[str, str]:
    return {f"c{number}": f"h{number % hosts}" for number in range(containers)}


def held(found: Holders) -> Counter[str]:
    return Counter(holder for holders in found for holder in holders)


def resent(before: Sequence[object], after: Holders) -> int:
    return sum(len(set(new) - set(old)) for old, new in zip(before, after, strict=True))  # type: ignore[call-overload]


@dataclass
class World:
    """Some containers on some hosts, slices with owners, and copies anywhere: also where none may be."""

    hosts: dict[str, str]
    owners: list[str | None]
    copies: list[set[str]]
    backups: int
    avoid: set[tuple[str, str]] = field(default_factory=set)

    def repaired(self) -> tuple[tuple[str, ...], ...]:
        return repair(self.owners, self.hosts, self.copies, self.backups, self.avoid)

    def owned(self, owner: str) -> list[int]:
        return [slice_ for slice_, one in enumerate(self.owners) if one == owner]


@st.composite
def worlds(draw: st.DrawFn, apart: bool = False) -> World:
    names = draw(st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=8, unique=True))
    hosts = {name: name if apart else draw(st.sampled_from("wxyz")) for name in names}
    slices = draw(st.integers(1, 40))
    anyone = st.sampled_from([*names, "dead"])
    owners = draw(st.lists(st.none() | st.sampled_from(names), min_size=slices, max_size=slices))
    copies = draw(st.lists(st.sets(anyone, max_size=4), min_size=slices, max_size=slices))
    avoid = draw(st.sets(st.tuples(anyone, anyone), max_size=4))
    return World(hosts, owners, copies, draw(st.integers(0, 4)), avoid)


# --- the ring and the chain ---------------------------------------------------------------------------------------


def test_the_ring_is_the_same_for_everyone_and_unlike_the_order_of_names() -> None:
    names = [f"c{number}" for number in range(16)]
    assert ring(names) == ring(reversed(names))
    assert ring(names) != sorted(names)


def test_a_chain_begins_after_its_owner_and_prefers_other_hosts() -> None:
    hosts = on_hosts(6, 6)
    order = ring(hosts)
    assert peers(order[2], hosts, 3) == order[3:] + order[:2]
    two = on_hosts(6, 2)
    assert {two[peer] for peer in peers("c0", two, 3)} == {"h1"}
    assert [two[peer] for peer in peers("c0", two, 4)] == ["h1"] * 3 + ["h0"] * 2


def test_the_formula_of_the_paper() -> None:
    hosts = on_hosts(5, 5)
    chain = peers("c0", hosts, 2)
    assert place("c0", [40, 7, 11], hosts, 2) == {
        7: (chain[2], chain[3]),
        11: (chain[3], chain[0]),
        40: (chain[0], chain[1]),
    }


@pytest.mark.parametrize("hosts", [1, 2, 4, 16])
def test_sixteen_containers_of_eight_slices_hold_twenty_four_copies_each(hosts: int) -> None:
    world = World(on_hosts(16, hosts), list(even(16, 128)), [set()] * 128, 3)
    assert set(held(world.repaired()).values()) == {24}


def test_too_few_peers_hold_one_copy_each() -> None:
    assert place("c0", [1, 2], on_hosts(3, 3), 5).keys() == {1, 2}
    assert all(set(found) == {"c1", "c2"} for found in place("c0", [1, 2], on_hosts(3, 3), 5).values())
    assert place("c0", [1], on_hosts(1, 1), 2) == {1: ()}


@given(worlds())
def test_nothing_there_yet_repair_is_place(world: World) -> None:
    hosts = {name: name for name in world.hosts}
    found = repair(world.owners, hosts, [()] * len(world.owners), world.backups)
    for owner in hosts:
        assert place(owner, world.owned(owner), hosts, world.backups) == {s: found[s] for s in world.owned(owner)}


# --- what must hold of every repair -------------------------------------------------------------------------------


@given(worlds())
def test_copies_are_apart_and_as_many_as_can_be(world: World) -> None:
    for owner, holders in zip(world.owners, world.repaired(), strict=True):
        if owner is None:
            assert holders == ()
            continue
        chain = peers(owner, world.hosts, world.backups)
        assert len(set(holders)) == len(holders) == min(world.backups, len(chain))
        assert set(holders) <= set(chain)
        avoided = {peer for peer in chain if (owner, peer) in world.avoid}
        if set(holders) & avoided:
            assert set(chain) - avoided <= set(holders), "there was another way"
        elif not avoided and len({world.hosts[peer] for peer in chain}) > 1:
            per_host = Counter(world.hosts[holder] for holder in holders) + Counter([world.hosts[owner]])
            spare = {world.hosts[peer] for peer in chain if peer not in holders}
            assert all(per_host[host] >= max(per_host.values()) - 1 for host in spare), "hosts share evenly"


@given(worlds(apart=True))
def test_an_owner_leans_on_no_peer_more_than_on_another(world: World) -> None:
    world.avoid = set()
    found = world.repaired()
    for owner in world.hosts:
        copies = held([found[slice_] for slice_ in world.owned(owner)])
        counts = [copies[peer] for peer in peers(owner, world.hosts, world.backups)]
        assert not counts or max(counts) - min(counts) <= max(1, world.backups)


@given(worlds())
def test_what_is_repaired_needs_no_repair(world: World) -> None:
    found = world.repaired()
    assert repair(world.owners, world.hosts, found, world.backups, world.avoid) == found


@given(worlds(apart=True), st.data())
def test_a_lost_container_costs_its_own_copies_and_little_more(world: World, data: st.DataObject) -> None:
    """Of those that lived before and live on, copies move only to level, and at most as many as were lost."""
    world.avoid = set()
    before = world.repaired()
    gone = data.draw(st.sampled_from(sorted(world.hosts)))
    hosts = {name: host for name, host in world.hosts.items() if name != gone}
    owners = [None if owner == gone else owner for owner in world.owners]
    after = repair(owners, hosts, before, world.backups)
    for owner, old, new in zip(owners, before, after, strict=True):
        if owner is not None:
            assert len(new) == min(world.backups, len(hosts) - 1)
            assert resent([old], [new]) <= max(1, len(set(old) - {*new}))
    lost = sum(gone in holders for owner, holders in zip(owners, before, strict=True) if owner is not None)
    assert resent(before, after) <= 2 * lost + world.backups * len(hosts)


def test_slices_of_a_dead_owner_keep_the_copies_that_live() -> None:
    assert repair(["dead", "a"], {"a": "a", "b": "b"}, [{"b", "gone"}, set()], 1) == (("b",), ("b",))


def test_a_ninth_container_gets_its_share_and_few_copies_are_sent_again() -> None:
    hosts, owners = on_hosts(8, 8), even(8, 128)
    before = repair(owners, hosts, [()] * 128, 3)
    hosts["c8"] = "h8"
    joined = list(owners)
    joined[::9] = ["c8"] * 15
    # Whoever gave a slice away has a copy of it.
    copies = [{*holders, owner} if owner != new else {*holders}
              for holders, owner, new in zip(before, owners, joined, strict=True)]  # fmt: skip
    after = repair(joined, hosts, copies, 3)
    assert resent(copies, after) <= 45 < 200  # a ninth of 384 is 43
    assert 20 <= held(after)["c8"] <= 48
    anew = [found for owner in hosts for found in
            place(owner, [s for s, one in enumerate(joined) if one == owner], hosts, 3).items()]  # fmt: skip
    assert resent(copies, [found for _, found in sorted(anew)]) > 150


def test_of_too_many_copies_the_farthest_go() -> None:
    hosts = on_hosts(6, 6)
    chain = peers("c0", hosts, 2)
    assert repair(["c0"], hosts, [set(chain)], 2) == ((chain[2], chain[3]),)
    assert repair(["c0"], hosts, [{chain[1], chain[4], chain[3]}], 2) == ((chain[3], chain[4]),)


def test_a_copy_leaves_a_host_that_has_another_one_when_a_third_host_joins() -> None:
    hosts = {"a": "1", "b": "2", "c": "2"}
    before = repair(["a"], hosts, [()], 2)
    assert set(before[0]) == {"b", "c"}
    (after,) = repair(["a"], {**hosts, "d": "3"}, before, 2)
    assert "d" in after
    assert resent(before, [after]) == 1


def test_a_pair_that_failed_is_avoided_while_there_is_another() -> None:
    hosts = on_hosts(3, 3)
    assert repair(["c0"] * 4, hosts, [{"c1"}] * 4, 1, {("c0", "c1")}) == (("c2",),) * 4
    assert repair(["c0"], hosts, [()], 1, {("c0", "c1"), ("c0", "c2")}) != ((),)


# --- taking over --------------------------------------------------------------------------------------------------


@given(
    st.lists(st.dictionaries(st.sampled_from("abcde"), st.integers(0, 3), max_size=3), max_size=30),
    st.sets(st.sampled_from("abcde")),
)
def test_the_newest_living_copy_takes_over(copies: list[dict[str, int]], living: set[str]) -> None:
    found = activate(range(len(copies)), copies, living)
    for slice_, versions in enumerate(copies):
        alive = {holder: version for holder, version in versions.items() if holder in living}
        assert (slice_ in found) == bool(alive)
        assert not alive or alive[found[slice_]] == max(alive.values())


@pytest.mark.parametrize("backups", [1, 2, 3])
def test_all_peers_of_a_lost_container_share_its_slices(backups: int) -> None:
    hosts, owners = on_hosts(5, 5), even(5, 160)
    found = repair(owners, hosts, [()] * 160, backups)
    lost = [slice_ for slice_, owner in enumerate(owners) if owner == "c0"]
    taken = activate(lost, [dict.fromkeys(holders, 9) for holders in found], hosts.keys() - {"c0"})
    shares = Counter(taken.values())
    assert len(shares) == 4
    assert max(shares.values()) - min(shares.values()) <= 2


def test_a_thousand_slices_are_repaired_in_no_time() -> None:
    hosts, owners = on_hosts(16, 16), even(16, 1024)
    start = time.process_time()
    before = repair(owners, hosts, [()] * 1024, 3)
    repair(owners, hosts, before, 3)
    assert time.process_time() - start < 0.5  # some 20 ms each when the machine is idle
