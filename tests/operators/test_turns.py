"""A stage that is emptied or cut down before an epoch's rows: what it takes back is exactly what stands no more."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from join_model import batch, plain
from test_window_top_k import batch as window_batch
from test_window_top_k import spec_of
from top_k_model import Model

from holdfast.operators.aggregate import StageSpec
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.top_k import TopKOperator, TopKSpec
from holdfast.operators.window_top_k import WindowTopKOperator
from holdfast.state.slice import NEVER, EpochTime, SliceState, Turn

KEYS, VALUES = (Column("g", "string"),), (Column("n", "bigint"), Column("word", "string"))
TOP = TopKSpec(KEYS, VALUES, ((0, True),), 6)
SUMS = StageSpec(KEYS, (AggregateSpec("n", "count", None, None), AggregateSpec("total", "sum", "v0", "bigint")))


def content(state: SliceState, tables: int) -> list[bytes]:
    whole = [state.delta(0, state.epoch, table=at) for at in range(tables)]
    return [bytes(one.replace_schema_metadata(None).serialize()) for one in whole]


class Reader:
    """Whoever follows the changes of a slice."""

    def __init__(self) -> None:
        self.rows: Counter[tuple[Any, ...]] = Counter()

    def take(self, changes: pa.RecordBatch) -> None:
        for *row, sign in plain(changes):
            self.rows[tuple(row)] += sign
            assert self.rows[tuple(row)] >= 0, row

    def follows(self, state: SliceState) -> None:
        assert +self.rows == Counter(plain(state.read(state.epoch)))


@pytest.mark.parametrize("ties", ["cut", "all"])
@pytest.mark.parametrize("updating", [False, True])
def test_who_follows_a_top_k_has_what_it_shows(ties: str, updating: bool, drill_seed: int) -> None:
    for seed in range(20 * drill_seed, 20 * drill_seed + 20):
        draw = random.Random(seed)
        spec = replace(TOP, ties=ties, updating_input=updating)
        model, reader, operator = Model(spec), Reader(), TopKOperator(spec)
        state, again = operator.new_slice(), operator.new_slice()
        for epoch in range(1, 15):
            turn: Turn | None = draw.choice([None, "cut"] if updating else [None, "cut", "reset"])
            if turn is not None:
                highest = 8 if turn == "reset" else operator.spec.k
                operator = TopKOperator(replace(spec, k=draw.randint(1, highest)))
                model.spec = operator.spec
                model.rows = {} if turn == "reset" else model.rows
            rows = [
                (1, (draw.choice("abc"),), (draw.randrange(6), draw.choice("xyz")))
                for _ in range(draw.choice([0, 0, 3, 9]))
            ]
            model.apply(rows)
            given = operator.decode(batch(KEYS, VALUES, rows, signed=updating)) if rows else None
            for one in (state, again):
                one.run_by(operator)
            before = content(state, len(operator.layouts))
            state.apply(epoch, given, turn=turn)
            state.undo()
            assert content(state, len(operator.layouts)) == before, seed
            for one in (state, again):
                one.apply(epoch, given, turn=turn)
            assert content(state, len(operator.layouts)) == content(again, len(operator.layouts))
            reader.take(state.outputs(epoch, "changelog"))
            reader.follows(state)
            groups = [(key, model.first(group)) for key, group in model.rows.items()]
            shown = Counter((*key, rank, *values) for key, group in groups for rank, values in group)
            assert Counter(plain(state.read(epoch))) == shown, seed
            if draw.random() < 0.5:
                state.release(epoch)


def test_who_follows_an_aggregate_that_is_emptied_takes_all_of_it_back(drill_seed: int) -> None:
    for seed in range(20 * drill_seed, 20 * drill_seed + 20):
        draw = random.Random(seed)
        operator, reader = SUMS.build(), Reader()
        state, truth = operator.new_slice(), dict[str, list[int]]()
        read: dict[int, list[tuple[Any, ...]]] = {}
        for epoch in range(1, 12):
            turn: Turn | None = draw.choice([None, None, "reset"])
            rows = [(1, (draw.choice("abc"),), (draw.randrange(6), "")) for _ in range(draw.choice([0, 0, 3, 9]))]
            truth = {} if turn == "reset" else truth
            stood = len(read.get(epoch - 1, ()))
            for _, (key,), (number, _) in rows:
                n, total = truth.get(key, [0, 0])
                truth[key] = [n + 1, total + number]
            state.apply(epoch, operator.decode(batch(KEYS, VALUES, rows, signed=False)) if rows else None, turn=turn)
            reader.take(state.outputs(epoch, "changelog"))
            reader.follows(state)
            assert (state.changed > 0) == (state.outputs(epoch, "changelog").num_rows > 0)
            assert {key: [n, total] for key, n, total in plain(state.read(epoch))} == truth, seed
            changed = plain(state.outputs(epoch, "changed"))
            assert {row[0] for row in changed} == {key for _, (key,), _ in rows}, "nothing of what is gone"
            if turn == "reset":
                assert [row[-1] for row in plain(state.outputs(epoch, "changelog"))].count(-1) == stood
            read[epoch] = plain(state.read(epoch))
        for epoch, found in read.items():
            assert plain(state.read(epoch)) == found, "as of an epoch before it"
        base = state.epoch - 3
        delta, copy = state.delta(base, state.epoch), operator.new_slice()
        copy.load([state.delta(0, base), delta] if base else [delta], state.epoch)
        assert plain(copy.read(state.epoch)) == read[state.epoch]


def test_open_windows_are_cut_down_and_nobody_hears_of_it() -> None:
    rows = [("a", price, price, 5) for price in range(6)]
    wide, narrow = (WindowTopKOperator(spec_of(k, "cut")) for k in (5, 2))
    state = wide.new_slice()
    state.apply(1, wide.decode(window_batch(rows)), time=EpochTime(NEVER, NEVER))
    assert state.rows == 5
    state.run_by(narrow)
    state.apply(2, None, turn="cut")
    assert (state.rows, state.changed) == (2, 0)
    state.apply(3, narrow.decode(window_batch([("a", 9, 9, 6)])), time=EpochTime(NEVER, 20))
    assert [row[3:6] for row in plain(state.outputs(3, "changed"))] == [(1, 9, 9), (2, 5, 5)]


def test_which_stages_can_be_emptied() -> None:
    assert SUMS.empties
    assert TOP.empties
    assert not replace(SUMS, updating_input=True).empties
    assert not replace(TOP, updating_input=True).empties
    assert spec_of(3, "cut").empties
