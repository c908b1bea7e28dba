"""A slice's life: epochs held and released, dead rows, purges, copies, growth, bytes that become garbage."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import CorruptionError, EpochGone, FunctionError
from holdfast.operators.aggregate import AggregateOperator, AggregateSpec, Column, Rows, StageSpec
from holdfast.state.slice import SliceState
from holdfast.state.table_slice import PURGE_ABOVE


def operator(*aggregates: AggregateSpec, key: str = "bigint", updating: bool = False) -> AggregateOperator:
    count = AggregateSpec("n", "count", None, None)
    return AggregateOperator(StageSpec((Column("k", key),), (count, *aggregates), updating_input=updating))


SUM = AggregateSpec("s", "sum", "v0", "bigint")
LAST = AggregateSpec("l", "last", "v0", "string")


def rows(op: AggregateOperator, keys: Any, values: Any = None, signs: Any = None) -> Rows:
    keys = pa.array(keys)
    columns = {"_h": pa.array([crc32(repr(key).encode()) * 31 for key in keys.to_pylist()], pa.int64()), "k0": keys}
    columns["v0"] = pa.array([1] * len(keys) if values is None else values)
    if op.spec.updating_input:
        columns["_d"] = pa.array([1] * len(keys) if signs is None else signs, pa.int8())
    return op.decode(pa.record_batch(columns))


def bits(batch: pa.RecordBatch) -> bytes:
    return bytes(batch.serialize())


def column(batch: pa.RecordBatch, name: str) -> list[Any]:
    return batch.column(name).to_pylist()  # type: ignore[no-any-return]


def test_it_is_a_slice_state() -> None:
    assert isinstance(operator().new_slice(), SliceState)


def test_epochs_follow_one_another() -> None:
    op = operator(SUM)
    state = op.new_slice()
    state.apply(1, None)
    state.apply(2, rows(op, [1]).slice(0, 0))
    assert state.epoch == 2
    with pytest.raises(AssertionError, match="epoch 4 cannot follow 2"):
        state.apply(4, rows(op, [1]))
    assert state.rows == 0


def test_epochs_that_were_passed_over_are_held_undone_and_released_like_others() -> None:
    op = operator(SUM)
    state, other = op.new_slice(), op.new_slice()
    for epoch, given in enumerate([[1, 2], None, [2], None, None, [3]], 1):
        found = None if given is None else rows(op, given)
        other.apply(epoch, found)
        if found is None:
            state.pass_over(epoch)
        else:
            state.apply(epoch, found)
        assert (state.changed, state.rows, state.counts) == (other.changed, other.rows, other.counts)
        for mode in ("changed", "changelog", "all"):
            assert state.outputs(epoch, mode).equals(other.outputs(epoch, mode))
    assert state.touched == 6
    for epoch in range(7):
        assert state.read(epoch).equals(other.read(epoch))
    for base in range(6):
        assert state.delta(base, 6).equals(other.delta(base, 6))
    for one in (state, other):
        one.release(3)
        one.undo()
        one.undo()
    assert state.epoch == other.epoch == 4
    assert state.read(3).equals(other.read(3))
    assert state.outputs(4, "changelog").equals(other.outputs(4, "changelog"))
    for one in (state, other):
        with pytest.raises(EpochGone):
            one.read(2)
        with pytest.raises(EpochGone):
            one.outputs(3, "changelog")
        one.undo()
        with pytest.raises(EpochGone, match="can no longer be undone"):
            one.undo()


def test_held_epochs_stay_readable_and_released_ones_are_gone() -> None:
    op = operator(SUM)
    state = op.new_slice()
    for epoch in range(1, 6):
        state.apply(epoch, rows(op, [1, epoch * 10], [epoch, epoch]))
    assert [column(state.read(epoch), "s")[0] for epoch in range(1, 6)] == [1, 3, 6, 10, 15]
    assert [state.read(epoch).num_rows for epoch in range(6)] == [0, 2, 3, 4, 5, 6]
    state.release(3)
    assert column(state.outputs(3, "changed"), "k") == [1, 30]
    for gone in (0, 2, 6):
        with pytest.raises(EpochGone, match=f"epoch {gone} is not held, only 3 to 5"):
            state.read(gone)
    with pytest.raises(EpochGone):
        state.outputs(3, "changelog")
    state.undo()
    state.undo()
    assert state.epoch == 3
    with pytest.raises(EpochGone, match="can no longer be undone"):
        state.undo()
    assert column(state.read(3), "s") == [6, 1, 2, 3]


def test_an_undone_epoch_leaves_no_trace() -> None:
    op = operator(SUM, key="string")
    state, never = op.new_slice(), op.new_slice()
    for slice_ in (state, never):
        slice_.apply(1, rows(op, ["a", "bb"]))
    state.apply(2, rows(op, ["a", *(f"new{n}" for n in range(500))]))
    state.undo()
    for slice_ in (state, never):
        slice_.apply(2, rows(op, ["c", "bb"]))
    assert bits(state.delta(0, 2)) == bits(never.delta(0, 2))
    assert bits(state.delta(1, 2)) == bits(never.delta(1, 2))
    assert column(state.delta(1, 2), "slot") == [1, 2]


def test_changelog_takes_the_old_row_back_first() -> None:
    op = operator(SUM)
    state = op.new_slice()
    state.apply(1, rows(op, [5, 6, 7], [1, 2, 3]))
    state.apply(2, rows(op, [8, 7, 5], [4, 10, 10]))
    state.apply(3, rows(op, [5], [100]))  # a later epoch must not show
    found = state.outputs(2, "changelog")
    assert found.schema == op.output_schema.append(pa.field("_d", pa.int8()))
    assert list(zip(*(column(found, name) for name in ("k", "s", "_d")), strict=True)) == [
        *((5, 1, -1), (5, 11, 1), (7, 3, -1), (7, 13, 1), (8, 4, 1))
    ]
    state.apply(4, None)
    assert state.outputs(4, "changelog").num_rows == 0


def test_dead_rows_are_in_deltas_and_nowhere_else() -> None:
    op = operator(SUM, updating=True)
    state = op.new_slice()
    state.apply(1, rows(op, [1, 2], [10, 20]))
    state.apply(2, rows(op, [1], [10], [-1]))
    assert column(state.read(2), "k") == [2]
    assert state.rows == 1
    assert state.outputs(2, "changed").num_rows == 0
    gone = state.outputs(2, "changelog")
    assert (column(gone, "k"), column(gone, "s"), column(gone, "_d")) == ([1], [10], [-1])
    assert column(state.delta(1, 2), "slot") == [0]
    other = op.new_slice()
    other.load([state.delta(0, 1), state.delta(1, 2)], 2)
    for slice_ in (state, other):
        slice_.apply(3, rows(op, [3, 1], [5, 6]))  # reborn, in its old slot
    assert column(other.read(3), "k") == [1, 2, 3]
    assert bits(other.delta(0, 3)) == bits(state.delta(0, 3))


def test_more_taken_back_than_given_is_an_error() -> None:
    op = operator(SUM, updating=True)
    state = op.new_slice()
    with pytest.raises(FunctionError, match="1 keys had more rows taken back"):
        state.apply(1, rows(op, [1, 2], [1, 1], [1, -1]))
    assert (state.epoch, state.rows) == (0, 0)


def purged() -> tuple[AggregateOperator, SliceState, list[pa.RecordBatch]]:
    """Epoch 1 has many rows, epoch 2 kills most, epoch 3 begins with a purge."""
    op = operator(SUM, key="string", updating=True)
    state = op.new_slice()
    names = [f"key{n}" for n in range(2 * PURGE_ABOVE)]
    state.apply(1, rows(op, names, list(range(len(names)))))
    dead = len(names) - 100
    state.apply(2, rows(op, names[:dead], list(range(dead)), [-1] * dead))
    copies = [state.delta(0, 1), state.delta(1, 2)]
    state.apply(3, rows(op, [names[-1], "new"], [7, 8]))
    return op, state, copies


def test_a_purge_renumbers_and_older_bases_get_full_copies() -> None:
    op, state, copies = purged()
    assert state.delta(0, 3).num_rows == 101
    assert state.delta(2, 3).num_rows == 101
    assert column(state.outputs(3, "changelog"), "_d") == [-1, 1, 1]
    assert column(state.outputs(3, "changed"), "k") == [f"key{2 * PURGE_ABOVE - 1}", "new"]
    assert state.delta(2, 2).num_rows == 0
    assert state.read(2).num_rows == 100
    assert state.read(1).num_rows == 2 * PURGE_ABOVE
    state.apply(4, rows(op, ["new"], [1]))
    assert state.delta(3, 4).num_rows == 1
    other = op.new_slice()
    other.load([*copies, state.delta(2, 3), state.delta(3, 4)], 4)
    assert bits(other.delta(0, 4)) == bits(state.delta(0, 4))
    assert other.delta(2, 4).num_rows == 101  # the copy knows of the purge too


def test_copies_purge_in_the_same_epoch_as_the_original() -> None:
    op, state, copies = purged()
    other = op.new_slice()
    other.load(copies, 2)
    other.apply(3, rows(op, [f"key{2 * PURGE_ABOVE - 1}", "new"], [7, 8]))
    assert bits(other.delta(0, 3)) == bits(state.delta(0, 3))


def test_undoing_a_purge_brings_the_dead_back_to_their_slots() -> None:
    op, state, copies = purged()
    after = state.delta(0, 3)
    state.undo()
    assert bits(state.delta(1, 2)) == bits(copies[1])
    state.apply(3, rows(op, [f"key{2 * PURGE_ABOVE - 1}", "new"], [7, 8]))
    assert bits(state.delta(0, 3)) == bits(after)


@pytest.mark.parametrize("key", ["bigint", "string"])
def test_many_keys_keep_order_of_appearance(key: str) -> None:
    op = operator(SUM, key=key)
    state = op.new_slice()
    random = np.random.default_rng(3)
    seen: dict[Any, int] = {}
    for epoch in range(1, 6):
        keys = random.integers(0, 30_000, 10_000).tolist()
        keys = keys if key == "bigint" else [f"key {n}" for n in keys]
        for name in keys:
            seen[name] = seen.get(name, 0) + 1
        state.apply(epoch, rows(op, keys))
        state.release(epoch)
    found = state.read(5)
    assert dict(zip(column(found, "k"), column(found, "n"), strict=True)) == seen
    assert column(found, "k") == list(seen)
    assert state.rows == len(seen)
    if key == "bigint":
        assert state.nbytes < 120 * len(seen)


def test_replaced_strings_do_not_pile_up() -> None:
    op = operator(LAST)
    state = op.new_slice()
    keys = list(range(200))
    for epoch in range(1, 60):
        state.apply(epoch, rows(op, keys, [f"{epoch:04d}" + "x" * 60] * 200))
        state.release(epoch - 2)
    assert column(state.read(59), "l") == ["0059" + "x" * 60] * 200
    assert column(state.read(58), "l") == ["0058" + "x" * 60] * 200  # the undo set moved with the bytes
    assert state.nbytes < 20 * 64 * 200
    state.undo()
    assert column(state.read(58), "l") == ["0058" + "x" * 60] * 200


def test_copies_survive_ipc() -> None:
    op = operator(SUM, AggregateSpec("m", "max", "v0", "bigint"))
    state, other = op.new_slice(), op.new_slice()
    state.apply(1, rows(op, [1, 2, 3], [4, 5, 6]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, state.delta(0, 1).schema) as writer:
        writer.write(state.delta(0, 1))
    raw = b"x" + sink.getvalue().to_pybytes()  # nothing in it is aligned any more
    with pa.ipc.open_stream(pa.py_buffer(raw).slice(1)) as reader:
        other.load([reader.read_next_batch()], 1)
    other.apply(2, rows(op, [3], [9]))
    assert column(other.read(2), "s") == [4, 5, 15]


def test_copies_that_do_not_fit_are_refused_and_change_nothing() -> None:
    op, different = operator(SUM), operator()
    state, other = op.new_slice(), op.new_slice()
    for epoch in (1, 2, 3):
        state.apply(epoch, rows(op, [epoch]))
    other.apply(1, rows(op, [99]))
    with pytest.raises(CorruptionError, match="no header"):
        other.load([state.read(3)], 3)
    with pytest.raises(CorruptionError, match=r"\(2, 3\] does not continue a slice at epoch 1"):
        other.load([state.delta(0, 1), state.delta(2, 3)], 3)
    with pytest.raises(CorruptionError, match="does not continue"):
        other.load([different.new_slice().delta(0, 0)], 0)
    assert column(other.read(1), "k") == [99]
    other.load([], 0)
    assert (other.epoch, other.rows) == (0, 0)


def test_unaligned_and_large_buffers_are_read() -> None:
    op = operator(SUM, AggregateSpec("l", "min", "v1", "string"), key="string")
    batch = pa.record_batch(
        {
            "_h": pa.array([1, 2, 1]),
            "k0": pa.array(["a", "b", "a"], pa.large_string()),
            "v0": pa.array([1, 2, 3]),
            "v1": pa.array(["z", None, "y"], pa.large_string()),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    raw = pa.py_buffer(b"abc" + sink.getvalue().to_pybytes()).slice(3)
    with pa.ipc.open_stream(raw) as reader:
        decoded = op.decode(reader.read_next_batch())
    state = op.new_slice()
    state.apply(1, decoded)
    found = state.read(1)
    assert [column(found, name) for name in ("k", "s", "l")] == [["a", "b"], [4, 2], ["y", None]]
