"""What a join promises, case by case: order, bounds, nulls, plans that are refused, rows that were never there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from join_model import Row, decode, plain

from holdfast.errors import FunctionError, PlanError
from holdfast.operators.join import JoinOperator, JoinSpec
from holdfast.operators.spec import Column
from holdfast.state.slice import NEVER, EpochTime, SliceState
from holdfast.wire.codec import from_plain, to_plain

SPEC = JoinSpec(
    keys=(Column("k", "string"),),
    left=(Column("lt", "timestamp"), Column("l", "bigint")),
    right=(Column("rt", "timestamp"), Column("r", "bigint")),
    left_out=(1,),
    right_out=(1,),
    how="inner",
    left_time=0,
    right_time=0,
    before=10,
    after=5,
)
FREE = replace(SPEC, left_time=None, right_time=None, before=None, after=None)


def run(
    state: SliceState, operator: JoinOperator, left: Any, right: Any, time: tuple[int, int] = (NEVER, NEVER)
) -> Any:
    state.apply(
        state.epoch + 1, decode(operator, 0, left), decode(operator, 1, right), time=EpochTime(time[0], time[1], 0)
    )
    return plain(state.outputs(state.epoch, "changelog"))


def row(time: int | None, number: int, key: str | None = "a", sign: int = 1) -> Row:
    return (sign, (key,), (time, number))


def test_pairs_come_by_the_row_that_came_then_by_the_order_of_those_it_met() -> None:
    operator = JoinOperator(FREE)
    state = operator.new_slice()
    run(state, operator, None, [row(0, 1), row(0, 2), row(0, 3, "b")])
    found = run(state, operator, [row(0, 7, "b"), row(0, 8), row(0, 9)], [row(0, 4)])
    assert found == [
        ("b", 7, 3, 1),
        ("a", 8, 1, 1),
        ("a", 8, 2, 1),
        ("a", 9, 1, 1),
        ("a", 9, 2, 1),
        ("a", 8, 4, 1),
        ("a", 9, 4, 1),
    ]


@pytest.mark.parametrize(("right", "matches"), [(89, False), (90, True), (100, True), (105, True), (106, False)])
@pytest.mark.parametrize("left_first", [True, False])
def test_both_ends_of_the_bound_belong_to_it(right: int, matches: bool, left_first: bool) -> None:
    operator = JoinOperator(SPEC)
    state = operator.new_slice()
    pieces = [([row(100, 1)], None), (None, [row(right, 2)])]
    found = [run(state, operator, *piece) for piece in (pieces if left_first else pieces[::-1])]
    assert found == [[], [("a", 1, 2, 1)] if matches else []]


def test_a_row_goes_when_nothing_can_match_it_any_more_and_then_says_so() -> None:
    operator = JoinOperator(replace(SPEC, how="full"))
    state = operator.new_slice()
    assert run(state, operator, [row(100, 1), row(101, 3)], [row(100, 2, "b")]) == []
    assert run(state, operator, None, [row(96, 4)], (NEVER, 105)) == [("a", 1, 4, 1), ("a", 3, 4, 1)]
    assert state.rows == 2
    # The pair of 4 is known: 1 and 3 go in silence, and 4 when its own time is over.
    assert run(state, operator, None, None, (105, 107)) == []
    assert state.rows == 0
    assert run(state, operator, None, None, (107, 110)) == []
    assert run(state, operator, None, None, (110, 111)) == [("b", None, 2, 1)]


def test_null_keys_match_nothing_and_come_out_of_an_outer_join_at_once() -> None:
    rows = [row(100, 1, None)], [row(100, 2, None)]
    for how, expected in {
        "inner": [],
        "left": [(None, 1, None, 1)],
        "right": [(None, None, 2, 1)],
        "full": [(None, 1, None, 1), (None, None, 2, 1)],
    }.items():
        operator = JoinOperator(replace(SPEC, how=how))
        state = operator.new_slice()
        assert run(state, operator, *rows) == expected
        assert state.rows == 0


def test_late_rows_and_rows_without_a_time_are_counted() -> None:
    operator = JoinOperator(replace(SPEC, how="left"))
    state = operator.new_slice()
    assert run(state, operator, [row(9, 1), row(None, 2), row(10, 3, None)], [row(None, 1)], (10, 10)) == [
        (None, 3, None, 1)
    ]
    assert dict(state.counts) == {"late": 1, "null time": 2}


def test_a_row_taken_back_takes_its_pairs_with_it() -> None:
    operator = JoinOperator(replace(FREE, updating=(True, True)))
    state = operator.new_slice()
    run(state, operator, [row(0, 1), row(0, 1), row(0, 2)], [row(0, 5)])
    assert run(state, operator, [row(0, 1, sign=-1)], None) == [("a", 1, 5, -1)]
    assert run(state, operator, [row(0, 3)], [row(0, 5, sign=-1), row(0, 6)]) == [
        ("a", 2, 5, -1),
        ("a", 1, 5, -1),
        ("a", 2, 6, 1),
        ("a", 1, 6, 1),
        ("a", 3, 6, 1),
    ]
    assert run(state, operator, [row(0, 9), row(0, 9, sign=-1)], None) == []
    with pytest.raises(FunctionError, match="never got"):
        run(state, operator, [row(0, 9, sign=-1)], None)
    assert state.epoch == 4


def test_reads_by_key_find_all_rows_of_it() -> None:
    operator = JoinOperator(FREE)
    state = operator.new_slice()
    run(state, operator, [row(0, 1), row(0, 2, "b"), row(0, 3)], None)
    keys = decode(operator, 0, [row(0, 0), row(0, 0, "c")])
    assert keys is not None
    assert plain(state.read(1, keys.keys)) == [("a", 1), ("a", 3)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"how": "semi"}, "no kind of join"),
        ({"left_time": None}, "event times of both"),
        ({"left_time": 1}, "has type bigint"),
        ({"before": -6}, "lets nothing match"),
        ({"how": "left", "after": None}, "never know"),
        ({"how": "right", "before": None}, "never know"),
        ({"how": "full", "updating": (True, False)}, "updating input"),
        ({"right": (Column("rt", "timestamp"), Column("l", "bigint"))}, "same name"),
    ],
)
def test_what_cannot_be_done_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        JoinOperator(replace(SPEC, **change))


def test_the_spec_is_plain_data() -> None:
    assert from_plain(JoinSpec, to_plain(SPEC)) == SPEC
