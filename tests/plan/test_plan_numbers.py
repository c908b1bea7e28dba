"""Numbers of inputs over the life of a job: whatever comes and goes, no number ever means two inputs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from holdfast.operators.aggregate import StageSpec
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.plan.numbers import numbered, positions

SPEC = StageSpec((Column("k", "bigint"),), (AggregateSpec("n", "count", None, None),))


def drawn(*stages: tuple[str, int, int]) -> list[StagePlan]:
    """(name, level, how many inputs), numbered as a job draws them."""
    found, number = [], 0
    for name, level, inputs in stages:
        found.append(StagePlan(name, level, tuple(InputPlan(level, number + at) for at in range(inputs)), SPEC))
        number += inputs
    return found


def placed(asked: list[StagePlan], *history: list[StagePlan]) -> list[StagePlan]:
    places = numbered(asked, history)
    return [replace(plan, inputs=places[plan.name]) for plan in asked]


def numbers(plans: list[StagePlan]) -> dict[str, list[int]]:
    return {plan.name: [place.number for place in plan.inputs] for plan in plans}


def test_a_new_job_is_numbered_as_it_was_drawn() -> None:
    assert numbers(placed(drawn(("a", 1, 1), ("b", 2, 2)))) == {"a": [0], "b": [1, 2]}


def test_an_inserted_stage_takes_no_number_from_another() -> None:
    first = drawn(("a", 1, 1), ("b", 1, 2))
    assert numbers(placed(drawn(("new", 1, 1), ("a", 1, 1), ("b", 1, 2)), first)) == {"new": [3], "a": [0], "b": [1, 2]}


def test_a_number_is_not_given_again_not_even_to_a_stage_that_comes_back() -> None:
    first = drawn(("a", 1, 1), ("b", 1, 1))
    second = placed(drawn(("a", 1, 1)), first)
    assert numbers(placed(drawn(("b", 1, 1), ("a", 1, 1)), first, second)) == {"b": [2], "a": [0]}


def test_a_stage_keeps_its_number_when_its_level_changes() -> None:
    first = drawn(("a", 1, 1), ("b", 2, 1))
    assert placed(drawn(("a", 1, 1), ("between", 2, 1), ("b", 3, 1)), first)[2].inputs == (InputPlan(3, 1),)


def test_stores_of_old_keep_their_positions_unless_another_stage_had_them() -> None:
    old = positions(drawn(("a", 1, 1), ("b", 2, 1), ("c", 2, 1)))
    assert [plan.inputs for plan in old] == [(InputPlan(1, 0),), (InputPlan(2, 0),), (InputPlan(2, 1),)]
    assert placed(drawn(("a", 1, 1), ("b", 2, 1), ("c", 2, 1)), old) == old
    moved = placed(drawn(("a", 1, 1), ("b", 2, 1), ("c", 1, 1)), old)
    assert moved[2].inputs == (InputPlan(1, 1),), "nobody had that"
    moved = placed(drawn(("a", 2, 1), ("b", 2, 1), ("c", 2, 1)), old)
    assert moved[0].inputs == (InputPlan(2, 2),), "b has 0 there"


def test_a_stage_that_a_store_calls_by_its_order_keeps_its_number_when_it_gets_a_name() -> None:
    old = positions(drawn(("stage1", 1, 1), ("stage2", 2, 1), ("mine", 2, 1)))
    named = placed(drawn(("clicks", 1, 1), ("pages", 2, 1), ("mine", 2, 1)), old)
    assert [plan.inputs for plan in named] == [plan.inputs for plan in old]


STAGES = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(1, 3), st.integers(1, 2)), min_size=1, unique_by=lambda one: one[0]
)


@given(graphs=st.lists(STAGES, min_size=1, max_size=8), old=st.booleans())
def test_whatever_comes_and_goes(graphs: list[list[tuple[str, int, int]]], old: bool) -> None:
    history = [positions(drawn(*graphs[0])) if old else drawn(*graphs[0])]
    for graph in graphs[1:]:
        history.append(placed(drawn(*graph), *history))
    meant: dict[InputPlan, tuple[str, int, int]] = {}
    lives: dict[str, int] = {}
    for version, graph in enumerate(history):
        before = {plan.name: plan for plan in history[version - 1]} if version else {}
        for plan in graph:
            if plan.name not in before:
                lives[plan.name] = version
            for at, place in enumerate(plan.inputs):
                life = (plan.name, at, lives[plan.name] if at < len(before.get(plan.name, plan).inputs) else version)
                assert meant.setdefault(place, life)[:2] == (plan.name, at)
                if plan.name not in before:
                    assert meant[place] == life, "a stage that comes back is another"
        places = [place for plan in graph for place in plan.inputs]
        assert len(places) == len(set(places))
        assert placed(graph, *history[: version + 1]) == graph, "the same job again"
