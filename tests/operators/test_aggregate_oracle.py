"""Every function on every type, against the oracle, through random epochs, undone ones, copies and old reads."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pytest
from aggregate_model import NUMERIC, TYPES, Model, assert_same, batch, bits, crc, decode, one_hash, plain, stage
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.operators.aggregate import AggregateOperator, StageSpec
from holdfast.state.warm import warm

SMALL = settings(max_examples=60, deadline=None)


EDGES: dict[str, list[Any]] = {
    "boolean": [None, False, True],
    "float": [None, 0.0, -0.0, math.nan, -math.inf, 0.5],
    "double": [None, 0.0, -0.0, math.nan, 1e-300, 0.1],
    "string": [None, "", "a", "b", "ab", "é"],
    "binary": [None, b"", b"\x00", b"\x00\x00", b"\xff"],
    "decimal(10,2)": [None, Decimal("0.00"), Decimal("-99999999.99"), Decimal("12.30")],
    "decimal(38,3)": [None, Decimal("0.000"), Decimal("-" + "9" * 35 + ".999"), Decimal("9" * 35 + ".999")],
    "date": [None, dt.date(1970, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [None, dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC)],
    "timestamp_ntz": [None, dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(1970, 1, 1)],
}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


@st.composite
def stages(draw: st.DrawFn, updating: bool = False) -> tuple[StageSpec, list[str]]:
    keys = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=3))
    value_types = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=3))
    options: list[tuple[Any, ...]] = [("count",)]
    for number, kind in enumerate(value_types):
        column = (f"v{number}", kind)
        options.append(("count", *column))
        if kind in NUMERIC:
            names = ("sum", "mean", "var", "stddev")
            if updating:  # infinities never come out again, and large values leave errors in the variance
                names = () if kind in ("float", "double") else names if kind == "tinyint" else names[:2]
            options += [(name, *column) for name in names]
        if not updating:
            options += [(name, *column) for name in ("min", "max", "first", "last")]
            options += [(name, *column, ("ignore_nulls", True)) for name in ("first", "last")]
    chosen = draw(st.lists(st.sampled_from(options), min_size=1, max_size=5))
    return stage(keys, chosen, updating_input=updating), value_types


def rows_of(draw: st.DrawFn, spec: StageSpec, value_types: list[str]) -> list[Any]:
    def nullable(kind: str) -> st.SearchStrategy[Any]:
        return st.none() | TYPES[kind]

    keys = draw(st.lists(st.tuples(*(nullable(column.type) for column in spec.keys)), min_size=1, max_size=5))
    one = st.tuples(st.just(1), st.sampled_from(keys), st.tuples(*(nullable(kind) for kind in value_types)))
    return draw(st.lists(one, max_size=12))


@SMALL
@given(st.data())
def test_epochs_undone_copied_and_read_late_equal_the_oracle(data: st.DataObject) -> None:
    spec, value_types = data.draw(stages())
    hashing = data.draw(st.sampled_from([crc, one_hash]))
    operator = AggregateOperator(spec)
    state, models = operator.new_slice(), [Model(spec)]
    full, log, kept = state.delta(0, 0), {}, 0
    for _ in range(data.draw(st.integers(1, 5))):
        epoch = state.epoch + 1
        rows = rows_of(data.draw, spec, value_types)
        decoded = decode(operator, value_types, rows, hashing=hashing)
        if data.draw(st.booleans()):
            before = state.delta(0, epoch - 1)
            state.apply(epoch, decoded)
            state.undo()
            assert bits(state.delta(0, epoch - 1)) == bits(before)
        model = models[-1].copy()
        model.apply(rows)
        models.append(model)
        state.apply(epoch, decoded)
        log[epoch] = decoded
        assert_same(state.outputs(epoch, "changed"), model.outputs(model.touched))
        if data.draw(st.booleans()):
            kept = data.draw(st.integers(kept, epoch))
            full = state.delta(0, kept)  # a checkpoint of an epoch that later ones have changed already
            state.release(kept)
        for held in range(kept, epoch + 1):
            assert_same(state.read(held), models[held].outputs())
            assert_same(state.outputs(held, "all"), models[held].outputs())

    middle = data.draw(st.integers(kept, state.epoch))
    rebuilt = operator.new_slice()
    rebuilt.load([full, state.delta(kept, middle)], middle)
    for epoch in range(middle + 1, state.epoch + 1):
        rebuilt.apply(epoch, log[epoch])
    assert bits(rebuilt.delta(0, state.epoch)) == bits(state.delta(0, state.epoch))
    for mode in ("all", "changed"):
        assert bits(rebuilt.outputs(state.epoch, mode)) == bits(state.outputs(state.epoch, mode))


@SMALL
@given(st.data())
def test_an_updating_input_takes_rows_back(data: st.DataObject) -> None:
    spec, value_types = data.draw(stages(updating=True))
    operator = AggregateOperator(spec)
    state, model, alive = operator.new_slice(), Model(spec), []
    view: list[Any] = []  # what a reader of the changelog has
    for epoch in range(1, data.draw(st.integers(2, 5))):
        rows = rows_of(data.draw, spec, value_types)
        gone = data.draw(st.lists(st.sampled_from(range(len(alive))), unique=True)) if alive else []
        rows = [(-1, *alive[number][1:]) for number in gone] + rows
        alive = [row for number, row in enumerate(alive) if number not in gone] + rows[len(gone) :]
        model.apply(rows)
        state.apply(epoch, decode(operator, value_types, rows))
        assert_same(state.read(epoch), model.outputs())
        assert state.rows == len(model.outputs())
        for *row, sign in plain(state.outputs(epoch, "changelog")):
            if sign < 0:
                view.remove(repr(row))
            else:
                view.append(repr(row))
        assert sorted(view) == sorted(repr(list(row)) for row in plain(state.read(epoch)))


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_every_type_is_a_key_and_comes_back(kind: str) -> None:
    spec = stage([kind, "int"], [("count",)])
    operator = AggregateOperator(spec)
    values = EDGES.get(kind, [None, 0, 1, -1, 100])
    rows = [(1, (value, number), ()) for value in values for number in (None, 1, 2)]
    state, model = operator.new_slice(), Model(spec)
    state.apply(1, decode(operator, [], rows + rows))
    model.apply(rows + rows)
    assert_same(state.read(1), model.outputs())
    wanted = rows[::2]
    keys = operator.decode_keys(batch(spec, [], wanted))
    found = state.read(1, keys)
    assert found.num_rows == len(wanted)
    absent = operator.decode_keys(batch(spec, [], [(1, (rows[0][1][0], 99), ())]))
    assert state.read(1, absent).num_rows == 0


def test_string_columns_do_not_run_into_each_other() -> None:
    spec = stage(["string", "string"], [("count",)])
    operator = AggregateOperator(spec)
    rows = [(1, key, ()) for key in [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), (None, "abc"), ("", None)]]
    state = operator.new_slice()
    state.apply(1, decode(operator, [], rows, hashing=one_hash))
    assert plain(state.read(1)) == [(*key, 1) for _, key, _ in rows]


def test_chunks_sliced_and_joined_are_the_same_rows() -> None:
    spec = stage(["string", "bigint"], [("last", "v0", "string"), ("sum", "v1", "double"), ("count", "v0")])
    operator, kinds = AggregateOperator(spec), ["string", "double"]
    rows = [(1, (f"k{n % 7}" if n % 5 else None, n % 3), ("x" * (n % 4) if n % 6 else None, n / 3)) for n in range(50)]
    whole, parts = operator.new_slice(), operator.new_slice()
    whole.apply(1, decode(operator, kinds, rows))
    first = decode(operator, kinds, rows[:30])
    second = operator.decode(batch(spec, kinds, [rows[0], *rows[30:]]).slice(1))  # an Arrow batch with an offset
    pieces = [first.slice(0, 11), first.slice(11, 11), first.slice(11, 30), second]
    parts.apply(1, operator.concat(pieces))
    assert bits(parts.delta(0, 1)) == bits(whole.delta(0, 1))
    assert len(operator.concat([first.slice(0, 0)])) == 0
