"""Every kind of state and timer against the oracle, through random epochs, undone ones, copies and replays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from process_model import OPS, Everything, Model, at, epoch_time, stage
from process_model import given as rows_given

from holdfast.operators.process import ProcessOperator
from holdfast.state.slice import SliceState
from holdfast.state.warm import warm

TABLES = (0, 1)
SMALL = settings(max_examples=80, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


def everything(**options: Any) -> ProcessOperator:
    columns = {"key": "string", "what": "string", "has": "string"}
    return stage(
        *(Everything, {"": columns, "fired": columns}),
        values={"op": "string", "n": "bigint", "at": "timestamp"},
        time="at",
        drop_late=True,
        **options,
    )


def copied(state: SliceState, base: int, epoch: int) -> list[Any]:
    return [state.delta(base, epoch, table=table) for table in TABLES]


def bits(state: SliceState) -> list[Any]:
    epoch = state.epoch
    held = [*copied(state, 0, epoch), state.read(epoch)]
    return [(batch.schema.metadata, batch.to_pydict()) for batch in held]


def put_out(state: SliceState) -> list[Any]:
    return [state.outputs(state.epoch, "changed", port).to_pylist() for port in ("", "fired")]


rows = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "", None]),
        st.sampled_from(OPS),
        st.integers(0, 6),
        st.none() | st.integers(0, 30).map(at),
    ),
    max_size=12,
)


@SMALL
@given(st.lists(st.tuples(rows, st.integers(0, 9), st.integers(0, 7)), min_size=1, max_size=7), st.data())
def test_epochs_undone_copied_and_replayed_equal_the_oracle(epochs: list[Any], data: st.DataObject) -> None:
    operator, model = everything(), Model()
    state, log = operator.new_slice(), []
    late, clock = -1e18, 100.0
    full, kept = copied(state, 0, 0), 0
    one_hash = data.draw(st.booleans())
    for rows, step, tick in epochs:
        watermark, clock = (step if late < 0 else late + step), clock + tick
        epoch = state.epoch + 1
        chunk, time = rows_given(operator, rows, one_hash=one_hash), epoch_time(late, watermark, clock)
        log.append((chunk, time))
        if data.draw(st.booleans()):
            before = bits(state)
            state.apply(epoch, chunk, time=time)
            state.undo()
            assert bits(state) == before
        state.apply(epoch, chunk if rows else None, time=time)
        wanted = model.apply(rows, watermark, clock)
        found: dict[Any, list[Any]] = {}
        for row in [one for port in put_out(state) for one in port]:
            found.setdefault(row["key"], []).append((row["what"], row["has"]))
        assert found == wanted
        assert sorted(map(repr, state.read(epoch).column("key").to_pylist())) == sorted(map(repr, model.keys))
        for row in state.read(epoch).to_pylist():
            assert (row["count"], row["name"]) == (model.keys[row["key"]].count, model.keys[row["key"]].name)
        if data.draw(st.booleans()):
            full, kept = copied(state, 0, epoch), epoch
            state.release(epoch)
        late = watermark

    middle = data.draw(st.integers(kept, state.epoch))
    rebuilt = operator.new_slice()
    rebuilt.load([*full, *copied(state, kept, middle)], middle)
    for epoch in range(middle + 1, state.epoch + 1):
        rebuilt.apply(epoch, log[epoch - 1][0], time=log[epoch - 1][1])
    assert bits(rebuilt) == bits(state)
    if middle < state.epoch:
        assert put_out(rebuilt) == put_out(state)


@settings(SMALL, max_examples=30)
@given(st.lists(rows, min_size=1, max_size=4))
def test_dead_letters_change_nothing_where_nothing_raises(epochs: list[Any]) -> None:
    plain, guarded = everything().new_slice(), everything(errors="dead_letter").new_slice()
    operator = everything()
    for number, rows in enumerate(epochs, 1):
        for state in (plain, guarded):
            time = epoch_time(5.0 * (number - 1), 5.0 * number, 7.0 * number)
            state.apply(number, rows_given(operator, rows), time=time)
        assert bits(plain) == bits(guarded)
        assert put_out(plain) == put_out(guarded)
    assert guarded.outputs(guarded.epoch, "changed", "errors").num_rows == 0
