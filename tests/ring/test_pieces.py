"""Pieces held for others: which versions are kept, which are refused, and what a torn saving leaves."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pytest
from container_kit import COUNTS

from holdfast.errors import CorruptionError
from holdfast.ring.messages import PiecePart
from holdfast.ring.pieces import FOLD_EVERY, Pieces, Shape
from holdfast.safety.shards import PieceName, Version
from holdfast.state import copies

LAYOUTS = {"one": COUNTS.build().layouts[0], "two": COUNTS.build().layouts[0]}
SCHEMA = copies.schema(LAYOUTS["one"])
PIECE = PieceName(3, 1, 0)


def rows(slots: dict[int, int]) -> pa.RecordBatch:
    """Slot → any value."""
    columns = []
    for field in SCHEMA:
        if field.name == "slot":
            columns.append(pa.array(list(slots), field.type))
        elif pa.types.is_fixed_size_binary(field.type):
            columns.append(pa.array([bytes(field.type.byte_width)] * len(slots), field.type))
        else:
            columns.append(pa.array(list(slots.values()), pa.int64()).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class Holder:
    def __init__(self) -> None:
        self.pieces = Pieces(LAYOUTS.get)
        self.tables = len(LAYOUTS)

    def save(
        self, epoch: int, slots: dict[int, int], base: int | None = None, settled: int | None = None, **more: Any
    ) -> None:
        saving = more.get("saving", f"save {epoch}")
        for table in more.get("tables", LAYOUTS):
            self.part(saving, table, 0, slots, epoch, base, settled, owner=more.get("owner", "a"))
            self.pieces.end(saving, table)

    def part(
        self,
        saving: str,
        table: str,
        number: int,
        slots: dict[int, int],
        epoch: int,
        base: int | None = None,
        settled: int | None = None,
        last: bool = True,
        owner: str = "a",
    ) -> None:
        of = {"base": Version(base) if base else None, "settled": Version(settled) if settled else None}
        shape = Shape(100, 0)
        about = PiecePart(PIECE, Version(epoch), full=base is None, shape=shape, number=number, last=last, **of)
        self.pieces.receive(saving, owner, table, self.tables, about, rows(slots))

    @property
    def versions(self) -> list[int]:
        return [held.version.epoch for held in self.pieces.inventory([3])]

    def values(self, epoch: int) -> dict[int, int] | None:
        found = self.pieces.rows(PIECE, Version(epoch), "two")
        if not found:
            return None
        ((shape, batch),) = found
        assert shape == Shape(100, 0)
        return dict(zip(batch.column("slot").to_pylist(), batch.column("change").to_pylist(), strict=True))


@pytest.fixture
def holder() -> Holder:
    return Holder()


def test_the_settled_version_stays_until_the_next_is(holder: Holder) -> None:
    holder.save(1, {0: 10, 4: 10})
    holder.save(2, {4: 20, 9: 20}, base=1, settled=1)
    assert holder.versions == [1, 2]
    assert holder.values(1) == {0: 10, 4: 10}
    assert holder.values(2) == {0: 10, 4: 20, 9: 20}
    holder.save(5, {0: 50}, base=1, settled=1)  # 2 was not usable everywhere: nothing goes on from it
    assert holder.versions == [1, 5]
    assert holder.values(5) == {0: 50, 4: 10}
    holder.save(6, {}, base=5, settled=5)  # nothing changed
    assert holder.versions == [5, 6]
    assert holder.values(1) is None
    assert holder.values(6) == holder.values(5) == {0: 50, 4: 10}


def test_many_versions_are_folded(holder: Holder) -> None:
    holder.save(1, dict.fromkeys(range(20), 1))
    for epoch in range(2, 30):
        holder.save(epoch, {epoch % 20: epoch}, base=epoch - 1, settled=epoch - 1)
        assert holder.versions == [epoch - 1, epoch]
    expected = {slot: max([1, *(epoch for epoch in range(2, 30) if epoch % 20 == slot)]) for slot in range(20)}
    assert holder.values(29) == expected
    assert len(holder.pieces._held[PIECE].layers) <= FOLD_EVERY + 2
    assert holder.pieces.nbytes < 3 * rows(expected).nbytes * len(LAYOUTS)


def test_tables_come_and_go_with_their_stages(holder: Holder) -> None:
    """What a table was not there for, it has nothing of: also where only what changed is sent."""
    holder.tables = 1
    holder.save(1, {0: 10}, tables=["one"])
    assert holder.versions == [1]
    assert holder.pieces.rows(PIECE, Version(1), "two") == []
    holder.tables = 2
    holder.save(2, {4: 20}, base=1, settled=1)
    holder.save(3, {9: 30}, base=2, settled=2)
    assert holder.values(2) == {4: 20}
    assert holder.values(3) == {4: 20, 9: 30}
    for epoch in range(4, 12):  # long enough to be folded
        holder.save(epoch, {9: epoch}, base=epoch - 1, settled=epoch - 1)
    assert holder.values(11) == {4: 20, 9: 11}
    holder.tables = 1
    holder.save(12, {0: 12}, base=11, settled=11, tables=["one"])
    assert holder.versions == [11, 12]
    assert holder.values(11) == {4: 20, 9: 11}
    assert holder.pieces.rows(PIECE, Version(12), "two") == []
    assert holder.pieces.rows(PIECE, Version(13), "two") is None
    holder.save(13, {0: 13}, base=12, settled=12, tables=["gone"])
    assert holder.versions == [12, 13], "of a table that the job here does not have"


def test_what_does_not_fit_is_left_out(holder: Holder) -> None:
    holder.save(2, {0: 20}, base=1, settled=1)
    assert holder.versions == [], "a delta of nothing"
    holder.save(3, {0: 30})
    holder.save(2, {0: 20})
    assert holder.versions == [3], "older than what is here"
    holder.save(5, {1: 50}, base=4, settled=4)
    assert holder.versions == [3], "a delta of something else"
    holder.save(6, {1: 60}, settled=4)
    assert holder.versions == [6], "all of it: what is here is no part of the settled version"
    with pytest.raises(CorruptionError, match="other columns"):
        holder.pieces.receive("s", "a", "one", 2, ANY, rows({0: 1}).drop_columns(["a0"]))


def test_a_torn_saving_leaves_nothing(holder: Holder) -> None:
    holder.save(1, {0: 10})
    holder.save(2, {0: 20}, base=1, settled=1, tables=["one"])
    holder.pieces.end("save 2", "two")
    assert holder.versions == [1]
    holder.save(3, {0: 30}, base=1, settled=1)
    holder.save(2, {0: 20}, base=1, settled=1, tables=["two"])  # the rest of it, late
    assert holder.versions == [1, 3]


def test_who_owns_what_follows_the_newest(holder: Holder) -> None:
    holder.save(1, {0: 10})
    assert holder.pieces.owned_by(["a"]) == {3}
    holder.save(2, {0: 20}, base=1, settled=1, owner="b")
    assert holder.pieces.owned_by(["a"]) == set()
    assert holder.pieces.owned_by(["a", "b"]) == {3}
    holder.pieces.drop([3], Version(2), [PIECE])
    assert holder.versions == [1, 2]
    holder.pieces.drop([3], Version(2))
    assert (holder.versions, holder.pieces.count, holder.pieces.nbytes) == ([], 0, 0)


def delta(holder: Holder, saving: str, epoch: int, value: int, only: slice = slice(None)) -> None:
    """A delta of two tables with three parts each, the second of them without rows; or some of its six parts."""
    parts = [(table, number) for table in LAYOUTS for number in range(3)]
    for table, number in parts[only]:
        slots = {} if number == 1 else {number: value}
        holder.part(saving, table, number, slots, epoch, base=1, settled=1, last=number == 2)


@pytest.fixture
def settled(holder: Holder) -> Holder:
    """With the settled version that deltas go on from."""
    holder.save(1, {0: 10, 1: 10, 2: 10})
    return holder


def test_parts_come_together(settled: Holder) -> None:
    delta(settled, "a", 2, 20, slice(5))
    assert settled.versions == [1], "not before the last part"
    delta(settled, "a", 2, 20, slice(5, 6))
    assert settled.values(2) == {0: 20, 1: 10, 2: 20}


@pytest.mark.parametrize("lost", range(6))
def test_a_part_that_is_missing_costs_the_version(settled: Holder, lost: int) -> None:
    delta(settled, "a", 2, 20, slice(lost))
    delta(settled, "a", 2, 20, slice(lost + 1, None))
    assert settled.versions == [1]
    delta(settled, "again", 2, 20)
    assert settled.values(2) == {0: 20, 1: 10, 2: 20}


@pytest.mark.parametrize("lost", range(1, 6))
def test_what_was_given_up_is_not_taken_up_in_the_middle(settled: Holder, lost: int) -> None:
    """Whatever has come is let go, as if it had been silent for too long; the rest comes all the same."""
    delta(settled, "a", 2, 20, slice(lost))
    settled.pieces._incoming.clear()
    delta(settled, "a", 2, 20, slice(lost, None))
    settled.pieces.end("a", "one")
    settled.pieces.end("a", "two")
    assert settled.versions == [1]
    assert settled.pieces._incoming == {}


def test_the_rest_of_what_was_given_up_harms_no_other(settled: Holder) -> None:
    delta(settled, "a", 2, 20, slice(1))
    settled.pieces._incoming.clear()
    delta(settled, "b", 2, 30, slice(4))
    delta(settled, "a", 2, 20, slice(1, 3))
    delta(settled, "b", 2, 30, slice(4, None))
    assert settled.values(2) == {0: 30, 1: 10, 2: 30}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("first", range(1, 6))
@pytest.mark.parametrize("second", range(1, 6))
def test_savings_that_interleave_are_never_mixed(settled: Holder, first: int, second: int, version: int) -> None:
    """Two owners of a slice, one after the other; the later one overtakes, and nothing of the earlier one is in it."""
    delta(settled, "a", 2, 20, slice(first))
    delta(settled, "b", version, 30, slice(second))
    delta(settled, "a", 2, 20, slice(first, None))
    delta(settled, "b", version, 30, slice(second, None))
    assert settled.versions == [1, version]
    assert settled.values(version) == {0: 30, 1: 10, 2: 30}


@pytest.mark.parametrize("came", range(1, 6))
def test_an_older_saving_never_overtakes(settled: Holder, came: int) -> None:
    delta(settled, "new", 3, 30, slice(came))
    delta(settled, "old", 2, 20)
    assert settled.versions == [1]
    delta(settled, "new", 3, 30, slice(came, None))
    assert settled.versions == [1, 3]
    assert settled.values(3) == {0: 30, 1: 10, 2: 30}


def test_a_late_drop_leaves_what_is_newer(settled: Holder) -> None:
    delta(settled, "a", 3, 30)
    delta(settled, "b", 4, 40, slice(4))
    settled.pieces.drop([3], Version(2))
    assert settled.versions == [1, 3]
    settled.pieces.drop([3], Version(3))
    assert settled.versions == []
    assert [one.layer.version for one in settled.pieces._incoming.values()] == [Version(4)]
    settled.pieces.drop([3], Version(4))
    assert settled.pieces.nbytes == 0
