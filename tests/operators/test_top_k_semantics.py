"""What ``top_k`` promises, case by case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from join_model import batch, plain

from holdfast.errors import FunctionError, PlanError
from holdfast.operators.spec import Column
from holdfast.operators.top_k import TopKOperator, TopKSpec
from holdfast.state.slice import SliceState
from holdfast.wire.codec import from_plain, to_plain

SPEC = TopKSpec((Column("g", "string"),), (Column("n", "bigint"), Column("word", "string")), ((0, True),), 2)


def run(state: SliceState, operator: TopKOperator, *rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Rows are (group, number, word) and perhaps a sign."""
    given = [((*row, 1)[3], row[:1], row[1:3]) for row in rows]
    found = batch(operator.spec.keys, operator.spec.values, given, signed=operator.spec.updating_input)
    state.apply(state.epoch + 1, operator.decode(found))
    return plain(state.outputs(state.epoch, "changelog"))


def test_a_group_that_changes_comes_out_whole_and_one_that_does_not_not_at_all() -> None:
    operator = TopKOperator(SPEC)
    state = operator.new_slice()
    assert run(state, operator, ("a", 1, "x"), ("b", 5, "y"), ("a", 2, "z")) == [
        ("a", 1, 2, "z", 1),
        ("a", 2, 1, "x", 1),
        ("b", 1, 5, "y", 1),
    ]
    assert run(state, operator, ("a", 0, "x"), ("b", 6, "y")) == [
        ("b", 1, 5, "y", -1),
        ("b", 1, 6, "y", 1),
        ("b", 2, 5, "y", 1),
    ]
    assert run(state, operator, ("a", 1, "x")) == []
    assert state.delta(2, 3).num_rows == 0  # nothing to back up either


def test_only_rows_that_moved_are_changed() -> None:
    operator = TopKOperator(replace(SPEC, k=4))
    state = operator.new_slice()
    run(state, operator, *(("a", number, "x") for number in (9, 8, 7, 6)))
    run(state, operator, ("a", 7, "a"))
    assert state.delta(1, 2).num_rows == 2
    assert [row[2] for row in plain(state.read(2))] == [9, 8, 7, 7]


def test_ties_are_cut_by_the_other_columns_or_all_kept_under_one_rank() -> None:
    rows = [("a", 3, "c"), ("a", 3, "a"), ("a", 4, "z"), ("a", 3, "b")]
    for order in (rows, rows[::-1]):
        cut, every = TopKOperator(SPEC), TopKOperator(replace(SPEC, ties="all"))
        assert run(cut.new_slice(), cut, *order) == [("a", 1, 4, "z", 1), ("a", 2, 3, "a", 1)]
        state = every.new_slice()
        found = run(state, every, *order)
        assert [row[1:4] for row in found] == [(1, 4, "z"), (2, 3, "a"), (2, 3, "b"), (2, 3, "c")]
        assert len(run(state, every, ("a", 5, "q"))) == 4 + 2
        assert state.rows == 2


def test_both_zeros_tie_and_every_nan_is_above_infinity() -> None:
    spec = replace(SPEC, values=(Column("n", "double"), Column("word", "string")), k=5)
    operator = TopKOperator(spec)
    numbers = [(0.0, "b"), (-0.0, "a"), (float("inf"), "c"), (float("nan"), "d"), (None, "e")]
    found = run(operator.new_slice(), operator, *(("g", *row) for row in numbers))
    assert "".join(row[3] for row in found) == "dcabe"
    operator = TopKOperator(replace(spec, order=((0, False),)))
    found = run(operator.new_slice(), operator, *(("g", *row) for row in numbers))
    assert "".join(row[3] for row in found) == "eabcd"


def test_the_next_best_moves_up_when_rows_are_taken_back() -> None:
    operator = TopKOperator(replace(SPEC, updating_input=True, hidden_keys=True))
    state = operator.new_slice()
    run(state, operator, *(("a", number, "x") for number in range(10)), ("b", 1, "x"))
    assert run(state, operator, ("a", 9, "x", -1), ("a", 3, "x", -1)) == [
        (1, 9, "x", -1),
        (2, 8, "x", -1),
        (1, 8, "x", 1),
        (2, 7, "x", 1),
    ]
    assert run(state, operator, ("b", 1, "x", -1)) == [(1, 1, "x", -1)]
    with pytest.raises(FunctionError, match="taken back"):
        run(state, operator, ("a", 9, "x", -1))
    assert state.epoch == 3


def test_a_row_that_stays_in_its_place_may_get_another_rank() -> None:
    operator = TopKOperator(replace(SPEC, ties="all", updating_input=True))
    state = operator.new_slice()
    run(state, operator, ("a", 9, "a"), ("a", 8, "c"))
    run(state, operator, ("a", 9, "a", -1), ("a", 8, "b"))
    assert plain(state.read(2)) == [("a", 1, 8, "b"), ("a", 1, 8, "c")]


def test_reads_by_group() -> None:
    operator = TopKOperator(SPEC)
    state = operator.new_slice()
    run(state, operator, ("a", 1, "x"), ("b", 5, "y"), ("a", 2, "z"))
    keys = operator.decode_keys(batch(SPEC.keys, (), [(1, ("a",), ())], signed=False))
    assert sorted(plain(state.read(1, keys))) == [("a", 1, 2, "z"), ("a", 2, 1, "x")]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"k": 0}, "shows nothing"),
        ({"ties": "some"}, "knows no ties"),
        ({"order": ()}, "without an order"),
        ({"rank": "word"}, "same name"),
        ({"updating_input": True, "final_input": True}, "not final"),
    ],
)
def test_what_cannot_be_done_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        TopKOperator(replace(SPEC, **change))


def test_the_spec_is_plain_data() -> None:
    assert from_plain(TopKSpec, to_plain(SPEC)) == SPEC
