"""Copies taken in parts while epochs come and go: the same bits as one taken in peace, and a state that goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CorruptionError, EpochGone
from holdfast.operators.aggregate import AggregateOperator, AggregateSpec, Column, StageSpec
from holdfast.state import columns, copies, table_slice
from holdfast.state.rows import Rows
from holdfast.state.slice import SliceState, read_copy

COUNT = AggregateSpec("n", "count", None, None)
SUM = AggregateSpec("s", "sum", "v0", "bigint")
OPERATORS = {
    "integers": AggregateOperator(StageSpec((Column("k", "bigint"),), (COUNT, SUM))),
    "taken back": AggregateOperator(StageSpec((Column("k", "string"),), (COUNT, SUM), updating_input=True)),
    "strings": AggregateOperator(
        StageSpec(
            (Column("k", "string"),),
            (
                COUNT,
                AggregateSpec("least", "min", "v0", "string"),
                AggregateSpec("most", "max", "v0", "string"),
                AggregateSpec("last", "last", "v0", "string"),
            ),
        )
    ),
}


@dataclass
class Feed:
    """Makes rows, and knows what they add up to. Where rows can be taken back, a key that lives is."""

    kind: str
    alive: dict[int, int] = field(default_factory=dict)
    totals: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def operator(self) -> AggregateOperator:
        return OPERATORS[self.kind]

    def rows(self, items: list[tuple[int, int]]) -> Rows | None:
        keys, values, signs = [], [], []
        for number, value in items:
            sign = 1
            if self.kind == "taken back":
                sign = -1 if number in self.alive else 1
                value = self.alive.pop(number) if sign < 0 else self.alive.setdefault(number, value)
            count, total = self.totals.get(number, (0, 0))
            self.totals[number] = (count + sign, total + sign * value)
            keys.append(number)
            values.append(value)
            signs.append(sign)
        if not keys:
            return None
        batch = key_rows(self.kind, keys)
        text = self.kind == "strings"
        batch = batch.append_column("v0", pa.array([f"{value:03d}" * 40 for value in values] if text else values))
        if self.kind == "taken back":
            batch = batch.append_column("_d", pa.array(signs, pa.int8()))
        return self.operator.decode(batch)

    def expected(self) -> dict[Any, int]:
        name = (lambda number: number) if self.kind == "integers" else (lambda number: f"key {number}")
        return {name(number): count for number, (count, _) in self.totals.items() if count}


def key_rows(kind: str, numbers: list[int]) -> pa.RecordBatch:
    hashes = [crc32(str(number % 7).encode()) for number in numbers]  # different keys of one hash, on purpose
    keys = pa.array(numbers, pa.int64()) if kind == "integers" else pa.array([f"key {number}" for number in numbers])
    return pa.record_batch({"_h": pa.array(hashes, pa.int64()), "k0": keys})


@contextmanager
def small_limits() -> Iterator[None]:
    """Purges and new arenas at sizes that a test reaches."""
    real = columns.Arena.__init__

    def init(arena: columns.Arena) -> None:
        real(arena)
        arena.copy_at = 1000

    with patch.object(table_slice, "PURGE_ABOVE", 4), patch.object(columns.Arena, "__init__", init):
        yield


def bits(batch: pa.RecordBatch) -> bytes:
    return bytes(batch.serialize())


EPOCH = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 999)), max_size=15, unique_by=lambda item: item[0])


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(sorted(OPERATORS)),
    history=st.lists(EPOCH, min_size=1, max_size=6),
    base=st.integers(0, 6),
    later=st.lists(st.one_of(st.just("undo"), EPOCH), max_size=8),
    count=st.integers(1, 9),
)
def test_parts_taken_among_later_epochs_are_the_copy_taken_in_peace(
    kind: str, history: list[list[tuple[int, int]]], base: int, later: list[Any], count: int
) -> None:
    with small_limits():
        feed = Feed(kind)
        state, twin = feed.operator.new_slice(), feed.operator.new_slice()
        for epoch, items in enumerate(history, 1):
            rows = feed.rows(items)
            state.apply(epoch, rows)
            twin.apply(epoch, rows)
            twin.release(epoch)
        pinned, base = len(history), min(base, len(history))
        state.release(pinned)
        truth, counts = feed.expected(), feed.kind
        script, parts = iter(later), []
        alive_then = [dict(feed.alive)]
        while not parts or not copies.header_of(parts[-1]).last:
            start = copies.header_of(parts[-1]).stop if parts else 0
            parts.append(state.delta(base, pinned, start, count))
            step = next(script, None)
            if step == "undo" and state.epoch > pinned:
                state.undo()
                feed.alive = alive_then.pop()
            elif isinstance(step, list):
                alive_then.append(dict(feed.alive))
                state.apply(state.epoch + 1, feed.rows(step))
        assert bits(copies.whole(parts)) == bits(twin.delta(base, pinned))
        assert copies.header_of(copies.whole(parts)) == copies.header_of(twin.delta(base, pinned))
        assert bits(state.delta(0, pinned)) == bits(twin.delta(0, pinned))
        rebuilt = Feed(counts).operator.new_slice()
        rebuilt.load([twin.delta(0, pinned)] if base == 0 else [twin.delta(0, pinned), *parts], pinned)
        found = rebuilt.read(pinned)
        assert dict(zip(*(found.column(name).to_pylist() for name in ("k", "n")), strict=True)) == truth


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(sorted(OPERATORS)),
    history=st.lists(EPOCH, min_size=2, max_size=8),
    copied=st.sets(st.integers(1, 8)),
    count=st.integers(1, 9),
)
def test_a_backup_goes_on_where_its_owner_was(
    kind: str, history: list[list[tuple[int, int]]], copied: set[int], count: int
) -> None:
    """Copies of some epochs, merged as they come, then the rest of the log: all the owner's, bit by bit."""
    with small_limits():
        feed = Feed(kind)
        owner = feed.operator.new_slice()
        backup = copies.Loader(feed.operator.layout)
        log, outputs, have = [], {}, 0
        for epoch, items in enumerate(history, 1):
            log.append(feed.rows(items))
            owner.apply(epoch, log[-1])
            outputs[epoch] = bits(owner.outputs(epoch, "changed"))
            if epoch in copied:
                for part in parts_of(owner, have, epoch, count):
                    backup.add(part)
                have = epoch
                asked = key_rows(kind, [20, 3, 3, 0, 55])
                keys = feed.operator.decode_keys(asked)
                assert bits(read_copy(feed.operator, backup, keys)) == bits(owner.read(epoch, keys))
            owner.release(epoch)
        active = feed.operator.new_slice()
        active.activate([backup])
        assert active.epoch == have
        for epoch in range(have + 1, len(history) + 1):
            active.apply(epoch, log[epoch - 1])
            assert bits(active.outputs(epoch, "changed")) == outputs[epoch]
        assert bits(active.delta(0, active.epoch)) == bits(owner.delta(0, owner.epoch))
        demoted = active.demote()
        with pytest.raises(EpochGone):
            active.read(len(history))
        again = feed.operator.new_slice()
        again.activate(demoted)
        more = feed.rows([(number, 1) for number in range(0, 20, 3)])
        for one in (again, owner):
            one.apply(len(history) + 1, more)
        assert bits(again.outputs(again.epoch, "changelog")) == bits(owner.outputs(owner.epoch, "changelog"))


def parts_of(state: SliceState, base: int, epoch: int, count: int) -> Iterator[pa.RecordBatch]:
    start, last = 0, False
    while not last:
        part = state.delta(base, epoch, start, count)
        start, last = copies.header_of(part).stop, copies.header_of(part).last
        yield part


def test_a_part_that_does_not_follow_is_refused() -> None:
    feed = Feed("integers")
    state = feed.operator.new_slice()
    state.apply(1, feed.rows([(number, 1) for number in range(10)]))
    parts = list(parts_of(state, 0, 1, 4))
    assert len(parts) == 3
    loader = copies.Loader(feed.operator.layout)
    with pytest.raises(CorruptionError, match="does not continue"):
        loader.add(parts[1])
    loader.add(parts[0])
    with pytest.raises(CorruptionError, match="does not continue"):
        loader.add(parts[2])
    with pytest.raises(AssertionError, match="last parts of a copy are missing"):
        loader.finish()
    loader.add(parts[1])
    loader.add(parts[2])
    assert (loader.epoch, loader.finish().rows) == (1, 10)


def test_copies_of_before_parts_are_read() -> None:
    """A pack of an earlier version has no slot range in its headers."""
    old = {"base": 0, "epoch": 3, "full": True, "rows": 7, "purged_at": 0, "format": 1}
    assert copies.Header.from_dict(old) == copies.Header(0, 3, True, 7, 0, 0, 7)


def test_a_backup_of_replaced_strings_does_not_grow() -> None:
    feed = Feed("strings")
    state = feed.operator.new_slice()
    backup = copies.Loader(feed.operator.layout)
    for epoch in range(1, 120):
        state.apply(epoch, feed.rows([(number, epoch) for number in range(20)]))
        backup.add(state.delta(epoch - 1, epoch))
        state.release(epoch)
    assert backup.nbytes < 20 * 3 * 120 * 20
    assert backup.nbytes > 20 * 2 * 120
