"""Pieces of a slice: which hashes they have, who shall hold them, which version of them can come back."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import PlanError
from holdfast.safety.intervals import Interval
from holdfast.safety.policies import Shards, Terms
from holdfast.safety.shards import Cut, Held, PieceName, Version, bounds, choose, holders, key_of, least_copies

PIECES = Cut(4, 2).pieces(7)


def test_a_key_is_of_job_and_slice_and_nothing_else() -> None:
    assert key_of("clicks", 3) == key_of("clicks", 3) < 1 << 128
    assert len({key_of(job, slice_) for job in ("clicks", "click") for slice_ in range(100)}) == 200


@given(st.integers(1, 20), st.integers(1, 5), st.integers(-(2**63), 2**63 - 1))
def test_every_hash_is_in_exactly_one_piece(m: int, parts: int, hash_: int) -> None:
    firsts = bounds(m, parts)
    assert len(firsts) == len(Cut(m, 1, parts).pieces(0)) == m * parts
    assert firsts[0] == -(2**63)
    ends = [*firsts[1:], 2**63]
    assert [hash_ in range(first, end) for first, end in zip(firsts, ends, strict=True)].count(True) == 1
    widths = {end - first for first, end in zip(firsts, ends, strict=True)}
    assert max(widths) - min(widths) <= 1
    place = int(np.searchsorted(np.array(firsts), hash_, side="right")) - 1
    assert firsts[place] <= hash_ < ends[place]


def test_the_parts_of_a_shard_lie_side_by_side() -> None:
    cut = Cut(m=3, n=2, parts=4)
    assert cut.bounds()[:: cut.parts] == bounds(3)
    assert cut.pieces(5)[4] == PieceName(5, 1, 0)


# ------------------------------------------------------------------------------------------------------- placement


@given(
    count=st.integers(2, 12),
    hosts=st.integers(1, 12),
    m=st.integers(1, 9),
    n=st.integers(1, 4),
    load=st.dictionaries(st.integers(0, 11).map("c{}".format), st.integers(0, 30)),
)
def test_copies_are_apart_from_the_owner_and_from_each_other(
    count: int, hosts: int, m: int, n: int, load: dict[str, int]
) -> None:
    leaves = {f"c{number}": f"h{number % hosts}" for number in range(count)}
    placed = holders(Cut(m, n).pieces(0), leaves, "c0", n, load)
    assert set(placed) == set(Cut(m, n).pieces(0))
    others = {host for one, host in leaves.items() if one != "c0"}
    for chosen in placed.values():
        assert "c0" not in chosen
        assert len(set(chosen)) == len(chosen) == min(n, count - 1)
        assert len({leaves[one] for one in chosen}) >= min(len(chosen), len(others - {"h0"}) or 1)
        if others - {"h0"}:
            assert leaves[chosen[0]] != "h0", "the owner's host may go with the owner"


def test_pieces_are_spread_evenly() -> None:
    leaves = {f"c{number}": f"h{number}" for number in range(9)}
    placed = holders(Cut(16, 2).pieces(0), leaves, "c0", 2)
    counts = Counter(one for chosen in placed.values() for one in chosen)
    assert set(counts.values()) == {4}
    busy = holders(Cut(16, 2).pieces(0), leaves, "c0", 2, load={"c1": 100})
    assert not any("c1" in chosen for chosen in busy.values())


def test_a_piece_stays_where_it_is_as_long_as_that_is_a_leaf() -> None:
    leaves = {f"c{number}": f"h{number}" for number in range(6)}
    before = holders(PIECES, leaves, "c0", 2)
    del leaves["c1"]
    leaves["c9"] = "h9"
    after = holders(PIECES, leaves, "c0", 2, load={one: 50 for one in leaves if one != "c9"}, kept=before)
    for piece in PIECES:
        assert set(before[piece]) - {"c1"} <= set(after[piece]), "nothing moves without need"
        assert ("c9" in after[piece]) == ("c1" in before[piece])


def test_a_piece_leaves_a_host_that_has_another_copy() -> None:
    leaves = {"owner": "h0", "a": "h1", "b": "h1", "c": "h2"}
    placed = holders(PIECES[:1], leaves, "owner", 2, kept={PIECES[0]: ("a", "b")})
    assert placed[PIECES[0]] == ("a", "c")


# -------------------------------------------------------------------------------------------------------- versions


def held(*pieces: PieceName, version: int, sequence: int = 0) -> tuple[Held, ...]:
    return tuple(Held(piece, Version(version, sequence), 10) for piece in pieces)


def test_the_newest_whole_version_is_chosen() -> None:
    old, half = held(*PIECES, version=3), held(*PIECES[1:], version=5)
    assert choose(PIECES, {"a": old, "b": half}) == Version(3)
    assert choose(PIECES, {"a": old, "b": half, "c": held(PIECES[0], version=5)}) == Version(5)
    assert choose(PIECES, {"b": half, "c": held(PIECES[0], version=3)}) is None, "never a mix"
    assert choose(PIECES, {}) is None


def test_two_savings_of_one_epoch_are_two_versions() -> None:
    first, second = held(*PIECES[:2], version=3), held(*PIECES[2:], version=3, sequence=1)
    assert choose(PIECES, {"a": first, "b": second}) is None
    assert choose(PIECES, {"a": first + second, "b": held(*PIECES[:2], version=3, sequence=1)}) == Version(3, 1)


def test_pieces_of_other_slices_do_not_count() -> None:
    assert choose(PIECES, {"a": held(*Cut(4, 2).pieces(8), version=9)}) is None


def test_a_version_is_usable_with_one_copy_of_each_piece_and_whole_with_n() -> None:
    taken = {piece: ["a", "b"] for piece in PIECES}
    assert least_copies(PIECES, taken) == 2
    assert least_copies(PIECES, {**taken, PIECES[2]: ["b"]}) == 1
    assert least_copies(PIECES, {piece: ["a"] for piece in PIECES[1:]}) == 0


# ---------------------------------------------------------------------------------------------------------- policy


def test_the_policy_in_the_masters_words() -> None:
    terms = Shards(m=4, n=3, every=5, store_every="10 s").terms()
    assert terms == Terms(0, Interval(epochs=5), Interval(seconds=10.0), shards=Cut(4, 3))


@pytest.mark.parametrize(("policy", "words"), [(Shards(m=0), "m must be"), (Shards(n=0), "n must be")])
def test_no_shards_and_no_copies_are_refused(policy: Shards, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        policy.terms()
