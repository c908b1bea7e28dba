"""``distinct`` against a dict of what was seen when; and its Bloom filter against the error that it states."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_model import Row, batch, plain

from holdfast.errors import PlanError
from holdfast.operators.distinct import DistinctOperator, DistinctSpec
from holdfast.operators.spec import Column
from holdfast.state.rows import Rows
from holdfast.state.slice import NEVER, EpochTime, SliceState
from holdfast.state.warm import warm
from holdfast.wire.codec import from_plain, to_plain

SMALL = settings(max_examples=60, deadline=None)
SPEC = DistinctSpec(
    (Column("user", "string"), Column("ad", "bigint")), (Column("n", "bigint"), Column("at", "timestamp")), 1, 10
)
# So many bits that a key too few would be a bug and not bad luck.
SURE = (2000, 1e-6)


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


class Model:
    """When each key that is remembered came first."""

    def __init__(self, spec: DistinctSpec) -> None:
        self.spec = spec
        self.seen: dict[tuple[Any, ...], int] = {}
        self.counts: Counter[str] = Counter()

    def apply(self, rows: list[Row], time: EpochTime) -> list[tuple[Any, ...]]:
        self.counts, out = Counter(), []
        for _, key, values in rows:
            at = 0 if self.spec.time is None else values[self.spec.time]
            if at is None:
                self.counts["null time"] += 1
            elif self.spec.time is not None and at < time.late:
                self.counts["late"] += 1
            elif key in self.seen:
                self.counts["duplicate"] += 1
            else:
                self.seen[key] = at
                out.append((*key, *values))
        if self.spec.within is not None:
            self.seen = {key: at for key, at in self.seen.items() if time.watermark <= at + self.spec.within}
        return out


def decode(operator: DistinctOperator, rows: list[Row]) -> Rows:
    return operator.decode(batch(operator.spec.keys, operator.spec.values, rows, signed=False))


def rows_of(draw: st.DrawFn, now: int, spread: int) -> list[Row]:
    key = st.tuples(st.sampled_from([None, "", "a", "bb"]), st.none() | st.integers(0, 2))
    values = st.tuples(st.integers(0, 9), st.integers(now - spread, now + spread) | st.none())
    return draw(st.lists(st.tuples(st.just(1), key, values), max_size=12))


def whole(state: SliceState) -> bytes:
    return bytes(state.delta(0, state.epoch).serialize())


@SMALL
@given(st.data())
def test_epochs_undone_and_copied_equal_the_oracle(data: st.DataObject) -> None:
    """A filter for ever is as good as exact; one within a time may remember longer, so there times stand still."""
    filtered = data.draw(st.booleans())
    within = data.draw(st.sampled_from([None, 1, 10]))
    time_at = 1 if within is not None else data.draw(st.sampled_from([None, 1]))
    spec = replace(SPEC, time=time_at, within=within, bloom=SURE if filtered else None)
    operator, model = DistinctOperator(spec), Model(spec)
    state, copy = operator.new_slice(), None
    now, watermark = 0, NEVER
    for epoch in range(1, data.draw(st.integers(2, 8))):
        now += data.draw(st.integers(0, 12)) if not (filtered and within) else 0
        rows = rows_of(data.draw, now, 8 if not (filtered and within) else 0)
        late, watermark = watermark, max(watermark, data.draw(st.sampled_from([NEVER, now - 5, now])))
        time, decoded = EpochTime(late, watermark, 0), decode(operator, rows)
        if data.draw(st.booleans()):
            before = whole(state)
            state.apply(epoch, decoded, time=time)
            state.undo()
            assert whole(state) == before
        state.apply(epoch, decoded, time=time)
        assert plain(state.outputs(epoch, "changed")) == model.apply(rows, time)
        assert state.counts == model.counts
        if not filtered:
            expected = [(*key, at) if within is not None else key for key, at in model.seen.items()]
            assert sorted(map(repr, plain(state.read(epoch)))) == sorted(map(repr, expected))
        if copy is not None:
            copy.apply(epoch, decoded, time=time)
            assert plain(copy.outputs(epoch, "changed")) == plain(state.outputs(epoch, "changed"))
            assert whole(copy) == whole(state)
        if data.draw(st.booleans()):
            copy = operator.new_slice()
            copy.load([state.delta(0, epoch)], epoch)


@pytest.mark.parametrize("filtered", [False, True])
def test_what_is_forgotten_is_purged_and_can_be_undone(filtered: bool) -> None:
    operator = DistinctOperator(replace(SPEC, bloom=(2_000_000, 0.01) if filtered else None))
    state = operator.new_slice()
    for epoch in range(1, 6):
        rows: list[Row] = [(1, (f"{epoch}.{number}", 0), (0, 100 * epoch)) for number in range(1500)]
        before = whole(state)
        decoded, time = decode(operator, rows), EpochTime(100 * epoch - 50, 100 * epoch - 50, 0)
        state.apply(epoch, decoded, time=time)
        state.undo()
        assert whole(state) == before
        state.apply(epoch, decoded, time=time)
        assert state.outputs(epoch, "changed").num_rows >= 1500 * (1 if not filtered else 0.95)
    assert state.delta(0, 5).num_rows <= 3 * 1500  # dead rows go when they are the majority, not one by one


@SMALL
@given(st.data())
def test_a_filter_lets_no_key_through_twice_within_the_time_and_forgets_it_later(data: st.DataObject) -> None:
    operator = DistinctOperator(replace(SPEC, bloom=SURE))
    state, now, watermark = operator.new_slice(), 0, NEVER
    passed: dict[Any, list[int]] = {}
    for epoch in range(1, 7):
        now += data.draw(st.integers(0, 15))
        late, watermark = watermark, max(watermark, now - 5)
        rows = [row for row in rows_of(data.draw, now, 4) if row[2][1] is not None]
        state.apply(epoch, decode(operator, rows), time=EpochTime(late, watermark, 0))
        for user, ad, _, at in plain(state.outputs(epoch, "changed")):
            assert all(abs(at - before) > 10 for before in passed.get((user, ad), []))
            passed.setdefault((user, ad), []).append(at)
    state.apply(7, None, time=EpochTime(watermark, now + 40, 0))
    assert state.rows == 0
    again = [(1, key, (0, now + 50)) for key in passed]
    state.apply(8, decode(operator, again), time=EpochTime(now + 40, now + 40, 0))
    assert state.outputs(8, "changed").num_rows == len(again)


@pytest.mark.parametrize("error", [0.2, 0.01, 0.001])
@pytest.mark.parametrize("within", [None, 1000])
def test_the_filter_keeps_the_error_it_states(error: float, within: int | None) -> None:
    """As many keys as were announced (per ``within``), and then new ones, a few at a time so as not to fill it more."""
    keys, rounds, tries = 30_000, 250, 300
    spec = DistinctSpec((Column("k", "bigint"),), (Column("at", "timestamp"),), 0, within, (keys, error), 1)
    operator = DistinctOperator(spec)
    state, random = operator.new_slice(), np.random.default_rng(5)

    def chunk(count: int, at: int) -> Rows:
        hashes = random.integers(-(2**55), 2**55, count) * 128 + 3  # as all keys of one slice have them
        times = pa.array(np.full(count, at)).cast(pa.timestamp("us", tz="UTC"))
        return operator.decode(pa.record_batch({"_h": hashes, "k0": np.arange(count), "v0": times}))

    for at in (500,) if within is None else (500, 2500, 1500):
        rows = chunk(keys, at)
        state.apply(state.epoch + 1, rows)
        state.apply(state.epoch + 1, rows)
        assert state.outputs(state.epoch, "changed").num_rows == 0
        state.release(state.epoch)
    dropped = 0
    for _ in range(rounds):
        state.apply(state.epoch + 1, chunk(tries, 1500))
        dropped += tries - state.outputs(state.epoch, "changed").num_rows
        state.undo()
    most = error * rounds * tries
    assert 0.3 * most < dropped < most + 4 * most**0.5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"time": None}, "event time"),
        ({"within": 0}, "remember nothing"),
        ({"time": 0}, "has type bigint"),
        ({"bloom": (0, 0.1)}, "cannot be made"),
        ({"bloom": (10, 0.0)}, "cannot be made"),
        ({"values": (Column("ad", "bigint"), Column("at", "timestamp"))}, "same name"),
    ],
)
def test_what_cannot_be_done_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        DistinctOperator(replace(SPEC, **change))


def test_the_spec_is_plain_data() -> None:
    spec = replace(SPEC, bloom=(1000, 0.01))
    assert from_plain(DistinctSpec, to_plain(spec)) == spec
