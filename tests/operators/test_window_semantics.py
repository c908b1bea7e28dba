"""What windows promise, case by case: when results come out, what is late, what is refused, what is left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aggregate_model import bits, plain
from window_model import Event, aggregates, at, batch, columns

from holdfast.errors import FunctionError, PlanError
from holdfast.operators.keyed import KeyedOperator
from holdfast.operators.session import SessionOperator, SessionSpec
from holdfast.operators.window import WindowOperator, WindowSpec
from holdfast.state.slice import NEVER, EpochTime, SliceState
from holdfast.wire.codec import from_plain, to_plain

TOTALS = (("count",), ("sum", "v0", "bigint"))


def spec(
    size: int, every: int, unit: str = "event", chosen: Any = TOTALS, kind: str = "bigint", **how: Any
) -> WindowSpec:
    time = "v1" if unit == "event" else None
    return WindowSpec(
        columns(["int"], "key"),
        aggregates(chosen),
        columns([kind, "timestamp"], "value"),
        size,
        every,
        unit,
        time,
        **how,
    )


def sessions(gap: int, unit: str = "event", **how: Any) -> SessionSpec:
    time = "v1" if unit == "event" else None
    values = columns(["bigint", "timestamp"], "value")
    return SessionSpec(columns(["int"], "key"), aggregates(TOTALS), values, gap, unit, time, **how)


def step(
    operator: KeyedOperator, state: SliceState, rows: list[tuple[int, int | None, Any]], **time: int
) -> list[tuple[Any, ...]]:
    """One epoch of (key, time, value); what it puts out, times in microseconds."""
    events = [Event(1, (key,), when, (value,)) for key, when, value in rows]
    decoded = operator.decode(batch(operator, events)) if events else None
    state.apply(state.epoch + 1, decoded, time=EpochTime(**time))
    found = state.outputs(state.epoch, "changed")
    fields = [
        column.cast(pa.int64()).to_pylist() if name.startswith("window_") else column.to_pylist()
        for name, column in zip(found.schema.names, found.columns, strict=True)
    ]
    return list(zip(*fields, strict=True))


def test_a_window_comes_out_in_the_epoch_that_lets_it_close_with_the_rows_of_that_epoch() -> None:
    operator = WindowOperator(spec(10, 10))
    state = operator.new_slice()
    assert step(operator, state, [(1, 3, 5)], watermark=9) == []
    assert step(operator, state, [(1, 4, 6), (2, 12, 1)], late=9, watermark=10) == [(1, 0, 10, 2, 11)]
    assert step(operator, state, [], late=10, watermark=20) == [(2, 10, 20, 1, 1)]
    assert state.rows == 0


def test_a_row_that_missed_some_windows_counts_in_those_still_open() -> None:
    operator = WindowOperator(spec(4, 1))
    state = operator.new_slice()
    step(operator, state, [(1, 10, 1)], watermark=12)
    # Windows that end by 12 are out; of those with the row at 10, [9, 13) and [10, 14) are not.
    assert step(operator, state, [(1, 10, 5), (1, 8, 7)], late=12, watermark=14) == [
        (1, 9, 13, 2, 6),
        (1, 10, 14, 2, 6),
    ]
    assert dict(state.counts) == {"late": 1}
    assert state.rows == 0


def test_late_rows_go_to_their_output_and_rows_without_time_are_counted() -> None:
    operator = WindowOperator(spec(10, 10, late=(1, 0)))
    state = operator.new_slice()
    step(operator, state, [(1, 3, 5), (1, None, 9), (2, 20, 8)], late=10, watermark=10)
    assert plain(state.outputs(1, "changed", "late")) == [(1, at(3), 5)]
    assert dict(state.counts) == {"late": 1, "null time": 1}
    assert operator.output_types("late") == (("key0", "int"), ("value1", "timestamp"), ("value0", "bigint"))


@pytest.mark.parametrize("kind", ["bigint", "double"])
def test_a_leap_over_many_empty_windows_costs_nothing(kind: str) -> None:
    operator = WindowOperator(spec(3, 1, chosen=(("sum", "v0", kind),), kind=kind))
    state = operator.new_slice()
    far = 10**15
    found = step(operator, state, [(1, 0, 1), (1, far, 2)], watermark=2 * far)
    assert [row[1] for row in found] == [-2, -1, 0, far - 2, far - 1, far]


def test_infinities_leave_a_sliding_window_with_their_pane() -> None:
    operator = WindowOperator(spec(2, 1, chosen=(("sum", "v0", "double"), ("mean", "v0", "double")), kind="double"))
    state = operator.new_slice()
    found = step(operator, state, [(1, 0, float("inf")), (1, 1, 0.5), (1, 2, 0.25)], watermark=3)
    assert [row[3] for row in found] == [float("inf"), float("inf"), 0.75]


def test_sums_of_a_sliding_window_overflow_as_sums_do() -> None:
    operator = WindowOperator(spec(2, 1))
    state = operator.new_slice()
    step(operator, state, [(1, 0, 2**63 - 1)], watermark=NEVER)
    with pytest.raises(FunctionError, match="sum 'out1' overflowed bigint"):
        step(operator, state, [(1, 1, 1)], watermark=2)
    assert state.epoch == 1
    wrapping = WindowOperator(spec(2, 1, ansi=False))
    found = step(wrapping, wrapping.new_slice(), [(1, 0, 2**63 - 1), (1, 1, 1)], watermark=3)
    assert [row[4] for row in found] == [2**63 - 1, -(2**63), 1]


def test_decimal_sums_that_became_null_are_not_null_for_good_in_a_sliding_window() -> None:
    most = 10**38 - 1
    operator = WindowOperator(spec(2, 1, chosen=(("sum", "v0", "decimal(38,0)"),), kind="decimal(38,0)", ansi=False))
    found = step(operator, operator.new_slice(), [(1, 0, most), (1, 1, most), (1, 2, 0)], watermark=4)
    assert [row[3] for row in found] == [most, None, most, 0]


def test_windows_by_rows_come_out_in_the_order_of_the_rows_that_complete_them() -> None:
    for size, every, expected in [
        (2, 2, [(2, 0, 2, 2, 6), (1, 0, 2, 2, 3), (1, 2, 4, 2, 12)]),
        (3, 2, [(2, 0, 2, 2, 6), (1, 0, 2, 2, 3), (1, 1, 4, 3, 14)]),
    ]:
        operator = WindowOperator(spec(size, every, "rows"))
        rows = [(1, 0, 1), (2, 0, 2), (2, 0, 4), (1, 0, 2), (1, 0, 5), (1, 0, 7)]
        assert step(operator, operator.new_slice(), [(k, t, v) for k, t, v in rows]) == expected


def test_windows_by_the_clock_need_no_further_row_and_say_when_they_are_due() -> None:
    for every in (10, 5):
        operator = WindowOperator(spec(10, every, "clock"))
        assert operator.clocked
        state = operator.new_slice()
        assert state.due is None
        step(operator, state, [(1, None, 5)], clock=13)
        found: list[Any] = []
        while (due := state.due) is not None:
            assert step(operator, state, [], clock=due - 1) == []
            found += step(operator, state, [], clock=due)
        assert [row[1:3] for row in found] == ([(10, 20)] if every == 10 else [(5, 15), (10, 20)])
        assert state.rows == 0


def test_early_results_are_taken_back_when_newer_ones_come() -> None:
    operator = WindowOperator(spec(10, 10, early=100))
    state = operator.new_slice()
    assert step(operator, state, [(1, 3, 5)], watermark=3, clock=0) == []
    assert state.due == 100
    assert step(operator, state, [], late=3, watermark=3, clock=100) == [(1, 0, 10, 1, 5)]
    assert state.due is None
    step(operator, state, [(1, 4, 1)], late=3, watermark=4, clock=150)
    assert state.due == 200
    step(operator, state, [], late=4, watermark=10, clock=160)
    found = plain(state.outputs(state.epoch, "changelog"))
    assert [(row[3], row[4], row[5]) for row in found] == [(1, 5, -1), (2, 6, 1)]
    assert state.due is None


def test_updates_are_the_windows_that_changed_and_nothing_is_taken_back_at_the_close() -> None:
    operator = WindowOperator(spec(2, 1, mode="update"))
    state = operator.new_slice()
    assert step(operator, state, [(1, 3, 5)], watermark=0) == [(1, 2, 4, 1, 5), (1, 3, 5, 1, 5)]
    step(operator, state, [(1, 4, 1)], late=0, watermark=5)
    found = [row[3:] for row in plain(state.outputs(2, "changelog"))]
    assert found == [(1, 5, -1), (2, 6, 1), (1, 1, 1)]
    assert state.rows == 1  # [4, 6)
    step(operator, state, [], late=5, watermark=9)
    assert plain(state.outputs(3, "changelog")) == []
    assert state.rows == 0


def test_a_session_is_bridged_and_closes_by_its_last_row() -> None:
    operator = SessionOperator(sessions(5))
    state = operator.new_slice()
    step(operator, state, [(1, 0, 1), (1, 10, 2), (1, 30, 4)], watermark=0)
    assert state.rows == 3
    assert step(operator, state, [(1, 5, 8)], late=0, watermark=9) == []  # a whole gap from both: it bridges them
    assert state.rows == 2
    assert step(operator, state, [(1, 13, 16)], late=9, watermark=18) == []  # a row at 18 would still belong to it
    assert step(operator, state, [], late=18, watermark=19) == [(1, 0, 18, 4, 27)]
    assert step(operator, state, [(1, 12, 1), (1, 26, 2)], late=19, watermark=36) == [(1, 26, 35, 2, 6)]
    assert dict(state.counts) == {"late": 1}
    assert state.rows == 0


def test_sessions_by_the_clock_say_when_they_are_due() -> None:
    operator = SessionOperator(sessions(5, "clock"))
    state = operator.new_slice()
    step(operator, state, [(1, None, 1)], clock=10)
    step(operator, state, [(1, None, 2), (2, None, 4)], clock=13)
    assert state.due == 19
    assert step(operator, state, [(1, None, 8)], clock=19) == [(1, 10, 18, 2, 3), (2, 13, 18, 1, 4)]
    assert state.due == 25


def test_state_of_a_key_is_found() -> None:
    for operator in (WindowOperator(spec(10, 10)), WindowOperator(spec(10, 5)), SessionOperator(sessions(5))):
        state = operator.new_slice()
        step(operator, state, [(1, 3, 5), (2, 3, 6), (1, 30, 7)], watermark=0)
        asked = operator.decode_keys(batch(operator, [Event(1, (1,), 0, (0,)), Event(1, (9,), 0, (0,))]))
        assert sorted(row[-1] for row in plain(state.read(1, asked))) == [5, 7]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"size": 5, "every": 6}, "leaves rows out"),
        ({"size": 0, "every": 0}, "longer than nothing"),
        ({"size": 5, "every": 5, "unit": "clock", "updating_input": True}, "updating input"),
        ({"size": 5, "every": 5, "unit": "rows", "offset": 1}, "no offset"),
        ({"size": 5, "every": 5, "chosen": (("max", "v0", "bigint"),), "updating_input": True}, "updating input"),
    ],
)
def test_what_cannot_be_is_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        WindowOperator(spec(**how))


def test_two_columns_of_one_name_are_refused() -> None:
    from dataclasses import replace

    twice = replace(spec(5, 5).aggregates[0], name="window_end")
    with pytest.raises(PlanError, match="same name"):
        WindowOperator(replace(spec(5, 5), aggregates=(twice,)))


def test_specs_travel_as_plain_data() -> None:
    for one in (spec(10, 5, late=(0,)), sessions(5, late=(1,))):
        assert from_plain(type(one), to_plain(one)) == one


def test_purged_panes_and_sessions_go_on() -> None:
    """Thousands of dead rows are left behind in between, which gives all others new slots."""
    rng = np.random.default_rng(7)
    for operator in (WindowOperator(spec(20, 5)), SessionOperator(sessions(5))):
        state, found, number = operator.new_slice(), 0, 0
        for epoch in range(12):
            rows = [(int(key), epoch * 10 + int(rng.integers(10)), 1) for key in rng.integers(0, 600, 800)]
            number += len(rows)
            out = step(operator, state, rows, late=epoch * 10 if epoch else NEVER, watermark=epoch * 10 + 10)
            found += sum(row[3] for row in out)
            state.release(state.epoch)
        found += sum(row[3] for row in step(operator, state, [], late=120, watermark=10**6))
        assert found == number * (4 if isinstance(operator, WindowOperator) else 1)
        assert state.rows == 0


def test_the_time_between_early_results_counts_from_when_something_was_shown() -> None:
    operator = WindowOperator(spec(10, 10, early=100))
    state = operator.new_slice()
    step(operator, state, [(1, 3, 5)], watermark=3, clock=0)
    assert len(step(operator, state, [], late=3, watermark=3, clock=100)) == 1
    before = state.delta(0, 2, table=2)
    assert step(operator, state, [], late=3, watermark=3, clock=250) == []  # nothing new: an idle slice stays as it is
    assert state.delta(2, 3, table=2).num_rows == 0
    assert before.num_rows == 1
    assert step(operator, state, [(1, 4, 1)], late=3, watermark=4, clock=260) == [(1, 0, 10, 2, 6)]


def test_panes_that_leave_in_an_epoch_where_none_enters_come_back_when_it_is_undone() -> None:
    operator = WindowOperator(spec(3, 1))
    state = operator.new_slice()
    step(operator, state, [(1, 0, 5), (1, 1, 7)], watermark=2)
    before = [bits(state.delta(0, 1, table=table)) for table in (0, 1)]
    expected = step(operator, state, [], late=2, watermark=3)
    state.undo()
    assert [bits(state.delta(0, 1, table=table)) for table in (0, 1)] == before
    assert step(operator, state, [], late=2, watermark=3) == expected == [(1, 0, 3, 2, 12)]


def test_windows_refuse_exact_distinct_counts() -> None:
    """What they would need to know, the values behind each pane, is not theirs."""
    for made, asked in ((WindowOperator, spec(10, 10)), (SessionOperator, sessions(5))):
        wanted = replace(asked, aggregates=aggregates((("count_distinct", "v0", "bigint"),)))
        with pytest.raises(PlanError, match="counts distinct values exactly"):
            made(wanted)
