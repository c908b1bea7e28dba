"""Figure 7 as a table; and the cost model, which must see what limits each structure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.choice import (
    PLENTIFUL,
    SMALL,
    TINY,
    Speeds,
    candidates,
    figure_7,
    predicted,
    predicted_store,
    settle,
)
from holdfast.recovery.policies import Auto, FromStore, Line, Star, Structure, Tree
from holdfast.recovery.structures import Sources
from holdfast.safety.shards import Cut, holders

MB = 1 << 20
FAST, SLOW = 125e6, 12.5e6


@pytest.mark.parametrize(
    ("nbytes", "bandwidth", "wants", "expected"),
    [
        (512 * MB, FAST, {"stateful": False}, None),
        (512 * MB, FAST, {"tolerates_store": True}, FromStore()),
        (TINY, FAST, {}, FromStore()),
        (TINY + 1, FAST, {}, Star()),
        (SMALL - 1, SLOW, {}, Star()),
        (SMALL, FAST, {}, Line()),
        (512 * MB, PLENTIFUL, {"latency_sensitive": False}, Line()),
        (512 * MB, SLOW, {"latency_sensitive": False}, Line()),
        (512 * MB, SLOW, {}, Tree()),
        (SMALL, PLENTIFUL - 1, {}, Tree()),
    ],
)
def test_figure_7(
    nbytes: int, bandwidth: float, wants: dict[str, bool], expected: Structure | FromStore | None
) -> None:
    assert figure_7(nbytes, bandwidth, **wants) == expected


def spread(nbytes: int, m: int = 24, nodes: int = 25, parts: int = 1) -> Sources:
    leaves = {f"c{number}": f"h{number}" for number in range(nodes)}
    pieces = Cut(m, 2, parts).pieces(0)
    return Sources(holders(pieces, leaves, "c0", 2), dict.fromkeys(pieces, nbytes // len(pieces)), here="stranger")


def test_with_one_replacing_node_nothing_beats_the_bytes_over_its_download() -> None:
    speeds = Speeds(upload=FAST, download=FAST, merge=1e9, build=1e9, loose=1e9)
    sources = spread(512 * MB)
    least = 512 * MB / FAST
    costs = [predicted(one, sources, speeds) for one in (Star(24), Line(4), Tree(2, 2))]
    assert all(cost >= 0.99 * least for cost in costs)
    assert costs[0] == min(costs)
    assert costs[0] < 1.05 * least
    assert isinstance(settle(Auto(), sources, speeds), Star)


def test_few_uploads_at_a_time_are_slow_when_uploads_are() -> None:
    speeds = Speeds(upload=SLOW, download=FAST, merge=1e9, build=1e9, loose=1e9)
    sources = spread(512 * MB)
    assert predicted(Star(2), sources, speeds) > 3 * predicted(Star(24), sources, speeds)
    assert predicted(Line(4), sources, speeds) > 3 * predicted(Star(24), sources, speeds), "one upload carries it all"


def test_where_merging_is_slow_it_is_spread() -> None:
    speeds = Speeds(upload=FAST, download=FAST, merge=100e6, build=500e6, loose=20e6)
    chosen = settle(Auto(), spread(512 * MB), speeds)
    assert isinstance(chosen, Line | Tree)
    assert predicted(chosen, spread(512 * MB), speeds) < 0.5 * predicted(Star(24), spread(512 * MB), speeds)


def test_whoever_replaces_has_no_time_to_merge_for_others() -> None:
    speeds = Speeds(upload=FAST, download=FAST, merge=100e6, build=500e6, loose=60e6)
    alone = spread(512 * MB)
    everyone = replace(alone, replacing=sorted({one for held in alone.holders.values() for one in held}))
    assert isinstance(settle(Auto(), alone, speeds), Line | Tree)
    assert isinstance(settle(Auto(), everyone, speeds, replacing=25), Star)


def test_how_fast_the_others_merge_is_what_they_say() -> None:
    speeds, sources = Speeds(upload=1e9, download=1e9, build=1e9), spread(64 * MB)
    slow = replace(sources, merges=dict.fromkeys((f"c{number}" for number in range(25)), 1e6))
    assert predicted(Line(4), slow, speeds) > 10 * predicted(Line(4), sources, speeds)


@given(
    megabytes=st.integers(1, 512),
    here=st.sampled_from(["stranger", "c1"]),
    replacing=st.integers(1, 25),
    rates=st.lists(st.sampled_from([1e6, 12.5e6, 125e6, 1e9]), min_size=5, max_size=5),
)
def test_the_choice_is_within_a_tenth_of_the_best(
    megabytes: int, here: str, replacing: int, rates: list[float]
) -> None:
    sources, speeds = replace(spread(megabytes * MB), here=here), Speeds(*rates)
    chosen = settle(Auto(), sources, speeds, replacing)
    assert not isinstance(chosen, Auto | FromStore)
    best = min(predicted(one, sources, speeds, replacing) for one in candidates())
    assert predicted(chosen, sources, speeds, replacing) <= 1.1 * best + 1e-9


def test_longer_lines_and_deeper_trees_take_longer_to_fill() -> None:
    sources, speeds = spread(8 * MB), Speeds(merge=1e9, build=1e9, loose=1e9)
    lines = [predicted(Line(length), sources, speeds) for length in (2, 4, 8, 16)]
    trees = [predicted(Tree(1, depth), sources, speeds) for depth in (1, 2, 3, 4)]
    assert lines == sorted(lines)
    assert trees == sorted(trees)


def test_the_store_is_taken_where_it_is_quicker_and_only_if_its_speed_is_known() -> None:
    sources, slow = spread(64 * MB), Speeds(upload=1e6)
    assert predicted_store(64 * MB, slow) == float("inf")
    assert not isinstance(settle(Auto(), sources, slow), FromStore)
    assert isinstance(settle(Auto(), sources, replace(slow, store=125e6)), FromStore)
    assert predicted_store(64 * MB, Speeds(store=125e6), replacing=4) > 3 * predicted_store(
        64 * MB, Speeds(store=125e6)
    ), "all who replace share its link"


def test_a_policy_that_is_no_auto_is_its_own_choice() -> None:
    assert settle(Line(3), spread(8 * MB)) == Line(3)
    assert settle(Auto("figure 7"), spread(8 * MB)) == Star()
    assert settle(Auto("figure 7"), spread(64 * MB), Speeds(upload=SLOW)) == Tree()
    assert settle(Auto("figure 7", latency_sensitive=False), spread(64 * MB), Speeds(upload=SLOW)) == Line()
    assert settle(Auto("figure 7", tolerates_store=True), spread(64 * MB)) == FromStore()


def test_what_is_here_already_costs_no_network() -> None:
    sources = spread(64 * MB)
    here = replace(sources, here="c1", holders={piece: ["c1"] for piece in sources.holders})
    assert predicted(Star(), here, Speeds(download=1.0, upload=1.0, loose=1e9)) < 1
