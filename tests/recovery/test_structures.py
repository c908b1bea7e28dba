"""Stars, lines and trees: whatever is lost, each piece comes once, from a live holder, within the limits asked for."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import PlanError
from holdfast.recovery.policies import Auto, Line, Star, Tree
from holdfast.recovery.structures import Branch, Plan, Sources, line, star, tree
from holdfast.safety.shards import Cut, PieceName, holders


@st.composite
def sources(draw: st.DrawFn) -> Sources:
    nodes = [f"c{number}" for number in range(draw(st.integers(1, 12)))]
    cut = Cut(draw(st.integers(1, 6)), 1, draw(st.integers(1, 3)))
    pieces = [piece for slice_ in range(draw(st.integers(1, 3))) for piece in cut.pieces(slice_)]
    chance = random.Random(draw(st.integers(0, 10_000)))
    return Sources(
        {piece: sorted(chance.sample(nodes, chance.randrange(1, 1 + min(4, len(nodes))))) for piece in pieces},
        {piece: chance.randrange(100) for piece in pieces},
        draw(st.dictionaries(st.sampled_from(nodes), st.floats(1, 100))),
        draw(st.dictionaries(st.sampled_from(nodes), st.floats(0, 100))),
        draw(st.sampled_from([None, "c0", "stranger"])),
        draw(st.sets(st.sampled_from(nodes))),
    )


def check(plan: Plan, given_: Sources) -> None:
    """What holds of every plan."""
    come = Counter(piece for branch in plan for piece in branch.all_pieces())
    assert come == Counter(given_.holders.keys()), "each piece once"
    for outermost in plan:
        for branch in outermost.walk():
            assert branch.pieces or branch.branches
            assert all(branch.at in given_.holders[piece] for piece in branch.pieces)
            if branch.at == given_.here:
                assert branch is outermost
                assert not branch.branches, "what the replacing node has is not sent"
    own = {piece for piece, held in given_.holders.items() if given_.here in held}
    assert own == {piece for branch in plan if branch.at == given_.here for piece in branch.pieces}


@given(sources())
def test_a_star_is_one_layer_with_each_provider_once(given_: Sources) -> None:
    plan = star(given_)
    check(plan, given_)
    assert all(not branch.branches for branch in plan)
    assert len({branch.at for branch in plan}) == len(plan)


@given(sources(), st.integers(1, 6))
def test_lines_are_no_longer_than_asked_for(given_: Sources, length: int) -> None:
    plan = line(given_, length)
    check(plan, given_)
    for branch in plan:
        assert branch.depth <= length
        assert len(branch.nodes()) == branch.depth, "nobody is in a line twice"
        assert all(len(one.branches) <= 1 for one in branch.walk())
        speeds = [given_.upload(one.at) for one in branch.walk()]
        assert speeds == sorted(speeds, reverse=True), "whoever sends more is faster"


@given(sources(), st.integers(1, 3), st.integers(1, 4))
def test_trees_keep_width_and_depth(given_: Sources, bits: int, depth: int) -> None:
    plan = tree(given_, bits, depth)
    check(plan, given_)
    remote = [branch for branch in plan if branch.at != given_.here]
    assert len(remote) <= 2**bits or max(branch.depth for branch in remote) >= depth
    assert all(branch.depth <= depth + 1 for branch in plan), "one more layer: the sub-shards"
    assert all(branch.at not in {one.at for one in branch.branches} for top in plan for branch in top.walk())


SMALL = Cut(3, 2, 3)
FIGURE_5 = Sources(
    {piece: [f"N{(3 * piece.shard + piece.part + copy) % 7}" for copy in (0, 3)] for piece in SMALL.pieces(0)}
)


def test_a_tree_rebuilds_each_shard_at_one_of_its_holders() -> None:
    """Figure 5: three shards of three sub-shards, two copies each."""
    plan = tree(FIGURE_5, fanout_bits=2, depth=1)
    assert len(plan) == 3
    for branch in plan:
        assert len({piece.shard for piece in branch.all_pieces()}) == 1
        assert len(branch.all_pieces()) == 3
        assert len(branch.branches) == 2


def test_heads_merge_for_their_group() -> None:
    each = Sources({PieceName(0, shard): [f"c{shard}"] for shard in range(8)})
    flat = tree(each, fanout_bits=1, depth=1)
    assert len(flat) == 8
    deep = tree(each, fanout_bits=1, depth=3)
    assert len(deep) == 2
    assert max(branch.depth for branch in deep) == 3
    assert all(len(one.branches) <= 2 for branch in deep for one in branch.walk())


def test_the_fastest_is_head_unless_it_replaces() -> None:
    held = {PieceName(0, shard): [f"c{shard}"] for shard in range(4)}
    uploads = {"c0": 1.0, "c1": 4.0, "c2": 2.0, "c3": 3.0}
    assert [one.at for one in tree(Sources(held, {}, uploads), 1, 2)] == ["c2", "c1"]
    assert [one.at for one in tree(Sources(held, {}, uploads, replacing={"c2"}), 1, 2)] == ["c0", "c1"]
    (last,) = line(Sources(held, {}, uploads), 4)
    assert [one.at for one in last.walk()] == ["c1", "c3", "c2", "c0"]


def test_scarce_pieces_are_dealt_out_first_and_slow_providers_get_less() -> None:
    scarce, free = PieceName(0, 1), PieceName(0, 0)
    plan = star(Sources({free: ["a", "b"], scarce: ["a"]}))
    assert {branch.at: branch.pieces for branch in plan} == {"a": (scarce,), "b": (free,)}
    pieces = Cut(12, 1).pieces(0)
    fast = star(Sources({piece: ["fast", "slow"] for piece in pieces}, {}, {"fast": 30.0, "slow": 10.0}))
    assert {branch.at: len(branch.pieces) for branch in fast} == {"fast": 9, "slow": 3}


def test_a_loaded_provider_is_spared() -> None:
    pieces = Cut(4, 1).pieces(0)
    plan = star(Sources({piece: ["a", "b"] for piece in pieces}, dict.fromkeys(pieces, 10), load={"a": 1000.0}))
    assert [branch.at for branch in plan] == ["b"]


def test_a_line_shares_the_work_among_all_it_may_use() -> None:
    leaves = {f"c{number}": f"h{number}" for number in range(9)}
    placed = holders(Cut(16, 2).pieces(0), leaves, "c0", 2)
    (branch,) = line(Sources(placed), 8)
    assert branch.depth == 8
    assert [len(one.pieces) for one in branch.walk()] == [2] * 8
    short = line(Sources(placed), 3)
    assert len(short) == 2, "the pieces are in four pairs of nodes: three of them, then the fourth"


@pytest.mark.parametrize("structure", [Line(3), Tree(2, depth=2)], ids=str)
def test_those_who_plan_apart_do_not_have_one_node_send_everything(structure: Line | Tree) -> None:
    leaves = {f"c{number}": f"h{number}" for number in range(9)}
    placed = holders(Cut(16, 2).pieces(0), leaves, "c0", 2)
    last = Counter(structure.plan(Sources(placed, here=f"heir {number}"))[0].at for number in range(40))
    assert len(last) >= 4
    assert max(last.values()) < 20


def test_branches_say_what_they_are() -> None:
    a, b = PieceName(0, 0), PieceName(0, 1)
    branch = Branch("x", (a,), (Branch("y", (b,)),))
    assert branch.all_pieces() == (a, b)
    assert branch.nodes() == {"x", "y"}
    assert branch.depth == 2


@pytest.mark.parametrize("wrong", ["Star(0)", "Line(0)", "Tree(0)", "Tree(depth=0)", "Tree(parts=0)", "Auto('fig')"])
def test_what_makes_no_sense_is_refused(wrong: str) -> None:
    with pytest.raises(PlanError) as refused:
        eval(wrong, {"Star": Star, "Line": Line, "Tree": Tree, "Auto": Auto})
    assert refused.value.safe == "Nothing was started."
