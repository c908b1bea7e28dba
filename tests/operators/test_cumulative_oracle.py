"""Cumulative windows against the oracle of windows: disorder, late rows, early results, rows taken back, undo."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from aggregate_model import crc, one_hash
from hypothesis import given
from hypothesis import strategies as st
from test_window_oracle import SMALL, epochs_of, specs
from window_model import Epoch, Event, WindowModel, aggregates, batch, check, columns

from holdfast.errors import PlanError
from holdfast.operators.cumulative import CumulativeSpec
from holdfast.operators.window import WindowSpec
from holdfast.state.slice import NEVER, EpochTime
from holdfast.state.warm import warm


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


class CumulativeModel(WindowModel):
    """A window is known by the start of its last step."""

    def __init__(self, spec: CumulativeSpec) -> None:
        super().__init__(spec)
        self.reach = spec.every

    def day(self, time: int) -> int:
        return time - (time - self.spec.offset) % self.spec.size

    def edges(self, number: int) -> tuple[int, int]:
        return self.day(number), number + self.spec.every

    def starts(self, time: int) -> list[int]:
        pane = time - (time - self.spec.offset) % self.spec.every
        return list(range(pane, self.day(time) + self.spec.size, self.spec.every))

    def order(self, time: int, late: int, position: int) -> tuple[int, ...]:
        """By steps; what comes after the end of its step comes after all that were over by then."""
        if self.whole:
            return super().order(time, late, position)
        end, over = time - (time - self.spec.offset) % self.spec.every + self.spec.every, late
        over -= (over - self.spec.offset) % self.spec.every
        return (over, 1, self.number, position) if end <= over else (end, 0, self.number, position)


@st.composite
def cumulative(draw: st.DrawFn, unit: str, updating: bool = False) -> CumulativeSpec:
    made = draw(specs(unit, updating))
    given: dict[str, Any] = {field.name: getattr(made, field.name) for field in fields(WindowSpec)}
    every = draw(st.integers(1, 6))
    return CumulativeSpec(**given | {"every": every, "size": every * draw(st.integers(1, 5))})


@SMALL
@pytest.mark.parametrize("unit", ["event", "clock"])
@given(data=st.data())
def test_cumulative_windows_equal_the_oracle(unit: str, data: st.DataObject) -> None:
    spec = data.draw(cumulative(unit))
    epochs = epochs_of(data.draw, spec)
    check(spec.build(), CumulativeModel(spec), epochs, data.draw, data.draw(st.sampled_from([crc, one_hash])))


@SMALL
@given(data=st.data())
def test_over_an_updating_input_they_equal_the_oracle(data: st.DataObject) -> None:
    spec = data.draw(cumulative("event", updating=True))
    check(spec.build(), CumulativeModel(spec), epochs_of(data.draw, spec), data.draw)


DAYS = CumulativeSpec(
    columns(["int"], "key"),
    aggregates([("count",), ("sum", "v0", "bigint")]),
    columns(["bigint", "timestamp"], "value"),
    *(24, 1, "event", "v1"),
)


def test_a_row_is_kept_once_however_many_windows_it_is_in() -> None:
    operator = DAYS.build()
    state = operator.new_slice()
    rows = [Event(1, (1,), time, (1,)) for time in (0, 0, 1, 5)]
    state.apply(1, operator.decode(batch(operator, rows)), time=EpochTime(NEVER, 0, 0))
    assert [len(state.delta(0, 1, table=table)) for table in (0, 1)] == [0, 3]
    state.apply(2, None, time=EpochTime(0, 10, 0))
    assert len(state.outputs(2, "changed")) == 10  # one for every end from 1 to 10
    assert state.read(2).to_pylist()[0]["out0"] == 4
    assert state.outputs(2, "changed").column("out1").to_pylist() == [2, 3, 3, 3, 3, 4, 4, 4, 4, 4]
    state.apply(3, None, time=EpochTime(10, 10_000_000, 0))  # days without a row cost nothing
    assert len(state.outputs(3, "changed")) == 14
    assert state.read(3).num_rows == 0


def test_state_reads_what_has_closed_of_the_day() -> None:
    operator, model = DAYS.build(), CumulativeModel(DAYS)
    check(operator, model, [Epoch([Event(1, (1,), 30, (7,))], EpochTime(NEVER, 40, 0))], lambda strategy: 0)


@pytest.mark.parametrize(("size", "every"), [(10, 3), (10, 20), (10, 0)])
def test_steps_divide_the_size(size: int, every: int) -> None:
    with pytest.raises(PlanError, match="does not grow to its size by steps"):
        replace(DAYS, size=size, every=every).build()
