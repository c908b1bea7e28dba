"""Levelling: only what must move moves, to where a copy is, the same for everyone."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import PlanError
from holdfast.master.balance import WITHIN, level, slices_auto

NAMES = "abcdef"
owner_lists = st.lists(st.none() | st.sampled_from(NAMES), min_size=1, max_size=48)
stays = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["h1", "h2"]), min_size=1, max_size=6)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[str | None], dict[str, str], list[dict[str, int]]]:
    owners = draw(owner_lists)
    copy = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 9), max_size=2)
    copies = draw(st.lists(copy, min_size=len(owners), max_size=len(owners)))
    for owner, holders in zip(owners, copies, strict=True):
        holders.pop(owner or "", None)
    return owners, draw(stays), copies


def after(owners: list[str | None], moves: dict[int, str]) -> list[str | None]:
    return [moves.get(slice_, owner) for slice_, owner in enumerate(owners)]


@given(situations())
def test_counts_are_level_after_the_fewest_moves(
    situation: tuple[list[str | None], dict[str, str], list[dict[str, int]]],
) -> None:
    owners, stay, copies = situation
    moves = level(owners, stay, None, copies)
    table = after(owners, moves)
    assert set(table) <= set(stay)
    assert all(owners[slice_] != container for slice_, container in moves.items())
    counts = Counter(table)
    assert max(counts.values()) - min(counts[container] for container in stay) <= 1
    least, more = divmod(len(owners), len(stay))
    held = sorted((owners.count(container) for container in stay), reverse=True)
    assert len(moves) == len(owners) - sum(min(count, least + (at < more)) for at, count in enumerate(held))
    assert level(table, stay, None, copies) == {}


@given(situations(), st.data())
def test_loads_are_level_or_no_single_move_helps(
    situation: tuple[list[str | None], dict[str, str], list[dict[str, int]]], data: st.DataObject
) -> None:
    owners, stay, copies = situation
    loads = data.draw(st.dictionaries(st.integers(0, len(owners) - 1), st.floats(0.001, 100.0), min_size=1))
    moves = level(owners, stay, loads, copies)
    table = after(owners, moves)
    assert set(table) <= set(stay)
    assert {slice_ for slice_, owner in enumerate(owners) if owner not in stay} <= moves.keys()
    sums = dict.fromkeys(stay, 0.0)
    for slice_, container in enumerate(table):
        sums[str(container)] += loads.get(slice_, 0.0)
    little = 0.01 * sum(sums.values()) / len(owners) * len(owners)  # what idle slices count for, at most
    most = max(sums, key=lambda container: sums[container])
    if sums[most] > WITHIN * (sum(sums.values()) / len(sums)) + little + 1e-6:
        gap = sums[most] - min(sums.values())
        stuck = [slice_ for slice_, owner in enumerate(table) if owner == most and slice_ not in moves]
        assert all(loads.get(slice_, 0.0) >= gap - 2 * little - 1e-6 or slice_ not in loads for slice_ in stuck)


@given(situations())
def test_the_order_of_names_does_not_matter(
    situation: tuple[list[str | None], dict[str, str], list[dict[str, int]]],
) -> None:
    owners, stay, copies = situation
    turned = [dict(reversed(holders.items())) for holders in copies]
    again = dict(reversed(stay.items()))
    loads = {slice_: float(slice_ % 5) for slice_ in range(len(owners))}
    assert level(owners, stay, None, copies) == level(owners, again, None, turned)
    assert level(owners, stay, loads, copies) == level(owners, again, loads, turned)


HOSTS = {"a": "h1", "b": "h2", "c": "h3"}


def test_a_slice_goes_where_its_newest_copy_is() -> None:
    copies = [{"b": 4, "c": 5}, {"b": 4}, {}, {}]
    moves = level(["x", "x", "x", None], {"b": "h2", "c": "h3"}, None, copies)
    assert moves[0] == "c"
    assert moves[1] == "b"


def test_who_gives_slices_away_gives_those_that_have_a_copy_at_the_new_place() -> None:
    copies: list[dict[str, int]] = [{} for _ in range(6)]
    copies[2] = copies[5] = {"c": 1}
    assert level(["a", "a", "a", "b", "b", "b"], HOSTS, None, copies) == {2: "c", 5: "c"}


def test_a_copy_does_not_outweigh_an_even_count() -> None:
    everything_at_b = [{"b": 1}] * 6
    assert Counter(level([None] * 6, HOSTS, None, everything_at_b).values()) == {"a": 2, "b": 2, "c": 2}


def test_of_equal_containers_the_host_with_fewer_slices_is_taken() -> None:
    hosts = {"a": "h1", "b": "h1", "c": "h2"}
    assert level([None], hosts, None, [{}]) == {0: "a"}
    assert level(["a", None], hosts, None, [{}, {}]) == {1: "c"}


def test_one_hot_slice_moves_rather_than_many_cold_ones() -> None:
    loads = {0: 10.0, 1: 10.0} | dict.fromkeys(range(2, 12), 0.5)
    owners = ["a"] * 7 + ["b"] * 5
    moves = level(owners, {"a": "h1", "b": "h2"}, loads, [{}] * 12)
    assert moves in ({0: "b"}, {1: "b"})


def test_a_load_within_the_limit_moves_nothing() -> None:
    loads = dict.fromkeys(range(11), 1.0)
    assert level(["a"] * 6 + ["b"] * 5, {"a": "h1", "b": "h2"}, loads, [{}] * 11) == {}


def test_one_slice_that_is_too_hot_alone_stays() -> None:
    assert level(["a", "b"], {"a": "h1", "b": "h2"}, {0: 100.0, 1: 1.0}, [{}] * 2) == {}


def test_among_destinations_within_the_limit_one_with_a_copy_is_taken() -> None:
    loads = dict.fromkeys(range(12), 1.0)
    owners = ["a"] * 6 + ["b"] * 3 + ["c"] * 3
    copies: list[dict[str, int]] = [{} for _ in range(12)]
    copies[4] = {"c": 3}
    assert level(owners, HOSTS, loads, copies)[4] == "c"


def test_of_slices_about_as_hot_one_with_a_copy_moves() -> None:
    loads = {0: 5.0, 1: 4.5, 2: 4.5, 4: 2.0}
    copies: list[dict[str, int]] = [{}, {}, {"b": 8}, {}, {"b": 9}]
    assert level(["a", "a", "a", "a", "b"], {"a": "h1", "b": "h2"}, loads, copies) == {2: "b"}


def test_loads_that_are_all_zero_are_no_loads() -> None:
    assert Counter(level([None] * 4, {"a": "h1", "b": "h2"}, {0: 0.0}, [{}] * 4).values()) == {"a": 2, "b": 2}


def test_without_anyone_who_stays_nothing_moves() -> None:
    assert level(["a", None], {}, None, [{}, {}]) == {}


def test_many_slices_take_no_noticeable_time() -> None:
    owners: list[str | None] = ["a"] * 32_768
    stay = {f"c{number}": "h" for number in range(16)} | {"a": "h"}
    assert len(level(owners, stay, None, [{}] * 32_768)) == 32_768 - 1928
    loads = {slice_: 1.0 + slice_ % 7 for slice_ in range(32_768)}
    start = time.perf_counter()
    assert 20_000 < len(level(owners, stay, loads, [{}] * 32_768)) < 32_768
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize(
    ("cores", "slices"),
    [([], 1), ([0, 0], 1), ([1], 8), ([2], 16), ([3], 32), ([4, 4, 8], 128), ([64] * 100, 32_768)],
)
def test_slices_for_the_cores_one_may_ever_have(cores: list[int], slices: int) -> None:
    assert slices_auto(cores) == slices


@given(st.lists(st.integers(0, 128), max_size=64))
def test_slices_are_a_power_of_two_and_enough(cores: list[int]) -> None:
    slices = slices_auto(cores)
    assert slices.bit_count() == 1
    assert min(8 * sum(cores), 32_768) <= slices <= max(1, 16 * sum(cores))


def test_negative_cores_are_refused() -> None:
    with pytest.raises(PlanError, match="negative"):
        slices_auto([4, -1])
