"""Joins of every kind against the oracle: random streams with disorder, late rows, nulls, undone epochs, copies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_model import Model, Row, decode, ordered, plain

from holdfast.operators.join import JoinOperator, JoinSpec
from holdfast.operators.spec import Column
from holdfast.state.slice import NEVER, EpochTime, SliceState
from holdfast.state.warm import warm

SMALL = settings(max_examples=60, deadline=None)
LEFT = (Column("lt", "timestamp"), Column("price", "bigint"), Column("name", "string"))
RIGHT = (Column("city", "string"), Column("rt", "timestamp"))
KEYS = {"bigint": st.integers(0, 2), "string": st.sampled_from(["", "a", "bb"])}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


@st.composite
def joins(draw: st.DrawFn) -> JoinSpec:
    keys = tuple(
        Column(f"key{number}", kind)
        for number, kind in enumerate(draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2)))
    )
    how = draw(st.sampled_from(["inner", "inner", "left", "right", "full"]))
    bound = st.integers(0, 8)
    before = draw(bound if how in ("right", "full") else bound | st.none())
    after = draw(bound if how in ("left", "full") else bound | st.none())
    if before is not None and after is not None and draw(st.booleans()):
        before, after = -draw(st.integers(0, after)), after  # right rows at least so much after the left ones
    timed = before is not None or after is not None or draw(st.booleans())
    updating = (draw(st.booleans()), draw(st.booleans())) if how == "inner" else (False, False)
    left_out = tuple(draw(st.permutations(range(3)))[: draw(st.integers(0, 3))])
    right_out = tuple(draw(st.permutations(range(2)))[: draw(st.integers(0, 2))])
    times = (0, 1) if timed else (None, None)
    return JoinSpec(keys, LEFT, RIGHT, left_out, right_out, how, *times, before, after, updating)


def rows_of(draw: st.DrawFn, spec: JoinSpec, side: int, now: int, sent: list[Row]) -> list[Row] | None:
    """Some new rows, and where that is allowed some of ``sent`` taken back."""
    times = st.integers(now - 6, now + 6) | st.none() if draw(st.booleans()) else st.integers(now - 2, now + 6)
    if spec.left_time is None:
        times = st.integers(0, 3)
    texts = st.sampled_from([None, "", "x", "yy"])
    values = st.tuples(texts, times) if side else st.tuples(times, st.none() | st.integers(0, 1), texts)
    key = st.tuples(*(st.none() | KEYS[column.type] for column in spec.keys))
    if draw(st.booleans()):
        key = st.tuples(*(KEYS[column.type] for column in spec.keys))
    rows: list[Row] = draw(st.lists(st.tuples(st.just(1), key, values), max_size=10))
    if not spec.updating[side]:
        return rows or draw(st.sampled_from([None, []]))
    sent += rows
    for _ in range(draw(st.integers(0, min(4, len(sent))))):
        gone = sent.pop(draw(st.integers(0, len(sent) - 1)))
        rows.insert(draw(st.integers(0, len(rows))), (-1, *gone[1:]))
    return rows


def whole(state: SliceState) -> list[bytes]:
    return [bytes(state.delta(0, state.epoch, table=table).serialize()) for table in (0, 1)]


def put_out(state: SliceState) -> bytes:
    return bytes(state.outputs(state.epoch, "changelog").serialize())


@SMALL
@given(st.data())
def test_epochs_undone_and_copied_equal_the_oracle(data: st.DataObject) -> None:
    spec = data.draw(joins())
    operator, model = JoinOperator(spec), Model(spec)
    state, copy = operator.new_slice(), None
    watermark, sent = NEVER, ([], [])  # type: tuple[int, tuple[list[Row], list[Row]]]
    now = 20
    for epoch in range(1, data.draw(st.integers(2, 8))):
        now += data.draw(st.integers(0, 5))
        late, watermark = watermark, max(watermark, data.draw(st.sampled_from([NEVER, now - 3, now, now + 2])))
        time = EpochTime(late, watermark, 0)
        inputs = [rows_of(data.draw, spec, side, now, sent[side]) for side in (0, 1)]
        decoded = [decode(operator, side, rows) for side, rows in enumerate(inputs)]
        if data.draw(st.booleans()):
            before = whole(state)
            state.apply(epoch, *decoded, time=time)
            state.undo()
            assert whole(state) == before
        state.apply(epoch, *decoded, time=time)
        expected = model.apply([_seen(spec, side, rows) for side, rows in enumerate(inputs)], time)
        assert ordered(plain(state.outputs(epoch, "changelog"))) == ordered(expected)
        assert ordered(plain(state.read(epoch))) == ordered(model.state())
        assert {what: count for what, count in state.counts.items() if count} == {
            what: count for what, count in model.counts.items() if count
        }
        if copy is not None:
            copy.apply(epoch, *decoded, time=time)
            assert put_out(copy) == put_out(state)
            assert whole(copy) == whole(state)
        if data.draw(st.booleans()):
            copy = operator.new_slice()
            copy.load([state.delta(0, epoch, table=table) for table in (0, 1)], epoch)


def _seen(spec: JoinSpec, side: int, rows: list[Row] | None) -> list[Row] | None:
    """Columns that are neither put out nor a time make no difference: rows that differ in them alone are equal."""
    if rows is None:
        return None
    kept = (*spec.right_out, spec.right_time) if side else (*spec.left_out, spec.left_time)
    return [
        (sign, key, tuple(value if number in kept else None for number, value in enumerate(values)))
        for sign, key, values in rows
    ]


def test_buckets_shrink_and_are_purged() -> None:
    """Thousands of rows under one key that come and go, so that slots are renumbered."""
    spec = JoinSpec((Column("k", "bigint"),), LEFT, RIGHT, (1,), (1,), "full", 0, 1, 3, 3)
    operator, model = JoinOperator(spec), Model(spec)
    state: Any = operator.new_slice()
    watermark = NEVER
    for epoch in range(1, 8):
        now = 5 * epoch
        late, watermark = watermark, now - 8
        left = [(1, (n % 3,), (now + n % 7, n, "x")) for n in range(250)]
        right = [(1, (n % 150,), ("y", now - n % 5)) for n in range(150)]
        inputs = (left * 3, right * 3) if epoch < 3 else (left[:20], right[:20])
        time = EpochTime(late, watermark, 0)
        state.apply(epoch, *(decode(operator, side, rows) for side, rows in enumerate(inputs)), time=time)
        expected = model.apply(inputs, time)
        assert ordered(plain(state.outputs(epoch, "changelog"))) == ordered(expected)
        assert state.rows == len(model.held[0])
    assert state.delta(0, state.epoch).num_rows < 500
