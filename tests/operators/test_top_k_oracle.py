"""``top_k`` over every type and kind of input against the oracle, with undone epochs and copies."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_model import batch, plain
from top_k_model import Model, Row

from holdfast.operators.spec import Column
from holdfast.operators.top_k import TopKOperator, TopKSpec
from holdfast.state.rows import Rows
from holdfast.state.slice import SliceState
from holdfast.state.warm import warm

SMALL = settings(max_examples=60, deadline=None)
CONTEXT = Context(prec=60)
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-1, 1),
    "bigint": st.sampled_from([-(2**63), -1, 0, 5, 2**63 - 1]),
    "double": st.sampled_from([-math.inf, -1.5, 0.0, 2.0, math.inf, math.nan]),
    "decimal(38,2)": st.sampled_from([-(10**36), -1, 0, 1, 2**64 - 1, 2**64, 10**36]).map(
        lambda n: Decimal(n).scaleb(-2, CONTEXT)
    ),
    "string": st.sampled_from(["", "a", "ab", "b", "é", "\U0001f600", "\uffff"]),
    "boolean": st.booleans(),
    "timestamp": st.integers(-2, 2),
}
KEYS = {"bigint": st.integers(0, 1), "string": st.sampled_from(["", "aa", "ü"])}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


@st.composite
def specs(draw: st.DrawFn, updating: bool = False) -> TopKSpec:
    kinds = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=3))
    keys = draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2))
    numbers = draw(st.permutations(range(len(kinds))))[: draw(st.integers(1, len(kinds)))]
    return TopKSpec(
        tuple(Column(f"key{number}", kind) for number, kind in enumerate(keys)),
        tuple(Column(f"value{number}", kind) for number, kind in enumerate(kinds)),
        tuple((number, draw(st.booleans())) for number in numbers),
        draw(st.integers(1, 4)),
        draw(st.sampled_from(["cut", "all"])),
        updating_input=updating,
    )


def rows_of(draw: st.DrawFn, spec: TopKSpec, most: int = 10) -> list[Row]:
    key = st.tuples(*(st.none() | KEYS[column.type] for column in spec.keys))
    values = st.tuples(*(st.none() | TYPES[column.type] for column in spec.values))
    return draw(st.lists(st.tuples(st.just(1), key, values), max_size=most))


def decode(operator: TopKOperator, rows: list[Row]) -> Rows:
    spec = operator.spec
    return operator.decode(batch(spec.keys, spec.values, rows, signed=spec.updating_input))


def whole(state: SliceState, tables: range) -> list[bytes]:
    return [bytes(state.delta(0, state.epoch, table=table).serialize()) for table in tables]


@SMALL
@given(st.data())
def test_epochs_undone_and_copied_equal_the_oracle(data: st.DataObject) -> None:
    updating = data.draw(st.booleans())
    spec = data.draw(specs(updating))
    operator, model = TopKOperator(spec), Model(spec)
    tables = range(len(operator.layouts))
    state, copy, sent = operator.new_slice(), None, []  # type: Any, Any, list[Row]
    for epoch in range(1, data.draw(st.integers(2, 7))):
        rows = rows_of(data.draw, spec)
        if updating:
            sent += rows
            for _ in range(data.draw(st.integers(0, min(6, len(sent))))):
                gone = sent.pop(data.draw(st.integers(0, len(sent) - 1)))
                rows.insert(data.draw(st.integers(0, len(rows))), (-1, *gone[1:]))
        decoded = decode(operator, rows)
        if data.draw(st.booleans()):
            before = whole(state, tables)
            state.apply(epoch, decoded)
            state.undo()
            assert whole(state, tables) == before
        state.apply(epoch, decoded)
        expected = model.apply(rows)
        found = plain(state.outputs(epoch, "changelog"))
        if updating:  # rows that cancel out name no group
            found, expected = sorted(found, key=repr), sorted(expected, key=repr)
        assert repr(found) == repr(expected)
        assert sorted(map(repr, plain(state.read(epoch)))) == sorted(map(repr, model.state()))
        if copy is not None:
            copy.apply(epoch, decoded)
            assert copy.outputs(epoch, "changelog").serialize().equals(state.outputs(epoch, "changelog").serialize())
            assert whole(copy, tables) == whole(state, tables)
        if data.draw(st.booleans()):
            copy = operator.new_slice()
            copy.load([state.delta(0, epoch, table=table) for table in tables], epoch)


@SMALL
@given(st.data())
def test_final_groups_come_out_at_once_and_nothing_is_kept(data: st.DataObject) -> None:
    spec = data.draw(specs())
    final = TopKOperator(TopKSpec(**{**spec.__dict__, "final_input": True}))
    rows = rows_of(data.draw, spec, 20)
    state = final.new_slice()
    state.apply(1, decode(final, rows))
    assert repr(plain(state.outputs(1, "changelog"))) == repr(Model(spec).apply(rows))
    assert state.rows == 0
