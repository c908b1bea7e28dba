"""Who replaces a lost container for which slice: everyone comes to the same answer, and nobody gets too much."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.ids import distance, id_of
from holdfast.recovery.heirs import at_home, deal
from holdfast.safety.shards import key_of

names = st.sets(st.sampled_from([f"c{number}" for number in range(12)]), min_size=1)


@given(slices=st.sets(st.integers(0, 200)), live=names, seed=st.randoms())
def test_every_slice_once_and_evenly(slices: set[int], live: set[str], seed: object) -> None:
    dealt = deal("job", slices, live)
    assert dealt.keys() == slices
    assert set(dealt.values()) <= live
    share = -(-len(slices) // len(live))
    assert all(list(dealt.values()).count(name) <= share for name in live)
    shuffled = sorted(live, key=lambda name: hash((name, str(seed))))
    assert deal("job", sorted(slices, reverse=True), shuffled) == dealt, (
        "the order in which one hears of them is nothing"
    )


def test_another_loss_moves_little() -> None:
    live = [f"c{number}" for number in range(8)]
    before = deal("job", range(128), live)
    after = deal("job", range(128), live[:-1])
    moved = [slice_ for slice_ in before if before[slice_] in live[:-1] and before[slice_] != after[slice_]]
    assert len(moved) < 64, "most stay where they were dealt to first"


def test_nobody_left() -> None:
    assert deal("job", range(4), []) == {}
    assert at_home("job", range(4), []) == {}


@given(slices=st.sets(st.integers(0, 200)), live=names)
def test_whoever_sees_the_nearest_one_names_it(slices: set[int], live: set[str]) -> None:
    for slice_, name in at_home("job", slices, live).items():
        key = key_of("job", slice_)
        assert all(distance(key, id_of(name)) <= distance(key, id_of(other)) for other in live)
        assert at_home("job", [slice_], [name]) == {slice_: name}, "however few others are seen"
