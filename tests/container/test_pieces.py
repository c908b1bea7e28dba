"""Pieces held for others: which versions are kept, which are refused, and what a torn saving leaves."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from container_kit import COUNTS

from holdfast.container.pieces import FOLD_EVERY, Pieces, Shape
from holdfast.errors import CorruptionError
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
        self.pieces = Pieces(LAYOUTS)

    def save(
        self, epoch: int, slots: dict[int, int], base: int | None = None, settled: int | None = None, **more: Any
    ) -> None:
        saving = more.get("saving", f"save {epoch}")
        about = {
            "piece": list(PIECE),
            "version": [epoch, 0],
            "base": [base, 0] if base else None,
            "settled": [settled, 0] if settled else None,
            "full": base is None,
            "rows": 100,
            "purged_at": 0,
            "last": True,
        }
        for table in more.get("tables", LAYOUTS):
            self.pieces.receive(saving, more.get("owner", "a"), table, about, rows(slots))
            self.pieces.end(saving, table)

    @property
    def versions(self) -> list[int]:
        return [held.version.epoch for held in self.pieces.inventory([3])]

    def values(self, epoch: int) -> dict[int, int] | None:
        found = self.pieces.rows(PIECE, Version(epoch), "two")
        if found is None:
            return None
        shape, batch = found
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
        holder.pieces.receive("s", "a", "one", {}, rows({0: 1}).drop_columns(["a0"]))


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
    assert holder.pieces.owned_by("a") == {3: Version(1)}
    holder.save(2, {0: 20}, base=1, settled=1, owner="b")
    assert holder.pieces.owned_by("a") == {}
    assert holder.pieces.owned_by("b") == {3: Version(2)}
    holder.pieces.drop([3], [PIECE])
    assert holder.versions == [1, 2]
    holder.pieces.drop([3])
    assert (holder.versions, holder.pieces.count, holder.pieces.nbytes) == ([], 0, 0)
