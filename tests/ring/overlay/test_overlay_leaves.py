from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.ids import RING, distance
from holdfast.ring.overlay.leaves import LeafSet

# Few and clustered ids meet each other, the ends of the ring and its middle more often than random ones.
ids = st.one_of(st.integers(0, 40), st.integers(RING - 40, RING - 1), st.integers(0, RING - 1))
several = st.lists(ids, min_size=1, max_size=40, unique=True)
sizes = st.sampled_from([2, 4, 8, 24])


def true_leaves(owner: int, others: set[int], size: int) -> set[int]:
    around = sorted(others, key=lambda one: (one - owner) % RING)
    half = size // 2
    return set(around) if len(around) <= size else {*around[:half], *around[-half:]}


def filled(everyone: list[int], size: int) -> LeafSet:
    leaves = LeafSet(everyone[0], size)
    for one in everyone:
        leaves.add(one)
    return leaves


@given(several, sizes)
def test_leaves_are_the_next_on_either_side_in_whatever_order_they_come(everyone: list[int], size: int) -> None:
    owner, others = everyone[0], set(everyone[1:])
    leaves = filled(everyone, size)
    assert leaves.members == set(leaves.all()) == true_leaves(owner, others, size)
    assert list(leaves.all()) == sorted(leaves.all(), key=lambda one: (one - owner) % RING)
    if others:
        around = sorted(others, key=lambda one: (one - owner) % RING)
        assert set(leaves.beside()) == {around[0], around[-1]}
    assert not any(leaves.wants(one) for one in everyone)


@given(several, sizes, st.data())
def test_adding_and_removing_agrees_with_a_model(everyone: list[int], size: int, data: st.DataObject) -> None:
    owner = everyone[0]
    leaves, model = LeafSet(owner, size), set[int]()
    for _ in range(20):
        one = data.draw(st.sampled_from(everyone))
        version = leaves.version
        if data.draw(st.booleans()):
            after = true_leaves(owner, model | ({one} - {owner}), size)
            assert leaves.wants(one) == (one in after and one not in model)
            leaves.add(one)
        else:
            after = model - {one}
            leaves.remove(one)
        assert leaves.members == set(leaves.all()) == after
        assert (leaves.version != version) == (after != model)
        model = after


@given(several, sizes, ids)
def test_the_nearest_of_all_nodes_is_found_where_the_set_covers_the_key(
    everyone: list[int], size: int, key: int
) -> None:
    leaves = filled(everyone, size)
    nearest = min(everyone, key=lambda one: (distance(one, key), one))
    if len(everyone) - 1 <= size or leaves.covers(key):
        assert leaves.nearest(key) == nearest


@given(several, sizes)
def test_without_one_the_nearest_to_it_is_its_neighbour(everyone: list[int], size: int) -> None:
    leaves = filled(everyone, size)
    known = [leaves.owner, *leaves.all()]
    for left_out in leaves.all():
        rest = [one for one in known if one != left_out]
        expected = min(rest, key=lambda one: (distance(one, left_out), one))
        if len(everyone) - 1 <= size or left_out in leaves.beside():
            assert leaves.nearest(left_out, without=left_out) == expected
        assert leaves.nearest(left_out) == left_out


def test_a_short_set_covers_only_what_lies_between_its_ends() -> None:
    leaves = filled([100, 110, 120, 90, 80], 8)
    assert leaves.covers(115)
    assert leaves.covers(85)
    assert not leaves.covers(121)
    assert not leaves.covers(79)
    assert not LeafSet(100, 8).covers(100)
