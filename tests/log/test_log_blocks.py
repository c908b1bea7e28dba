"""Blocks of the source: what is written of a batch, what a start finds, and what may go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import CorruptionError
from holdfast.log.blocks import Begun, Block, Standing, TakenOver, batch_at, block_of, standing
from holdfast.log.janitor import Janitor
from holdfast.log.ledger import Ledger
from holdfast.log.records import FEED, Batch, Carried, Commit, Fence, Manifest, Prepare, Range, SegmentRef
from holdfast.log.segment import segment_name
from holdfast.log.store import Store

BEGUN = Begun(Fence(2, 5, 1), Batch("q", 4, "{}"), {"files": 3}, Carried("spark", ("sources/0/0",), {"x": 0}), (b"x",))
BLOCK = Block(
    Fence(2, 5, 1),
    Batch("q", 4, "{}"),
    (SegmentRef("", 3, 10, 7, 0, 1, inline=1, input_rows=9, partial=(0,), inputs=(0, 2)),),
    {"t": 17},
    {"s": {"late": 2}},
    {"s": 9},
    {"files": 3},
    {"gone": 1},
    "layout",
    spark=Carried("spark", ("sources/0/0",), {"offsets/4": 0}),
    attachments=(b"offsets", b"rows"),
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(Store(str(tmp_path / "store")), "main")


def block(number: int, *names: str, incarnation: int = 1, **more: object) -> Block:
    refs = tuple(SegmentRef(name, 1, 1, 1, 0, 0) for name in names)
    return Block(Fence(incarnation, number, 1), Batch("q", number - 1, f"to {number}"), refs, **more)  # type: ignore[arg-type]


def epoch(ledger: Ledger, number: int, taken: Range, *, commit: bool = True) -> None:
    ledger.put_prepare(Prepare(Fence(1, number, 1), 1, {FEED: taken}, (), 0))
    if commit:
        ledger.put_commit(Commit(Fence(1, number, 1), {FEED: taken}))


def test_records_come_back_as_they_were_and_a_changed_byte_is_an_error() -> None:
    for record in (BEGUN, BLOCK, TakenOver(Fence(2, 5, 1), "files")):
        data = record.to_bytes()
        assert type(record).from_bytes(data, record.file) == record
        with pytest.raises(CorruptionError):
            type(record).from_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:], record.file)
    assert BLOCK.carried() == {"offsets/4": b"offsets"}
    assert BEGUN.given_to({"files": 2}) == ("files",)
    assert BEGUN.given_to({"files": 3}) == ()


def test_of_two_writers_of_a_block_one_wins_and_the_other_reads_it(ledger: Ledger) -> None:
    first, second = block(1), replace(block(1, incarnation=2), batch=Batch("q", 0, "others"))
    assert ledger.put_block(first) == first
    assert Ledger(ledger.store, "main").put_block(second) == first
    begun = replace(BEGUN, fence=Fence(1, 2, 1))
    assert ledger.put_begun(begun) == begun
    assert ledger.put_begun(replace(begun, batch=Batch("q", 1, "others"))) == begun


def test_what_a_start_finds(ledger: Ledger) -> None:
    assert standing(ledger) == Standing()
    for number in (1, 2, 3, 4):
        ledger.put_block(block(number))
    epoch(ledger, 1, Range(1, 1))
    epoch(ledger, 2, Range(2, 1))
    epoch(ledger, 3, Range(2, 2), commit=False)
    begun = replace(BEGUN, fence=Fence(1, 5, 1))
    ledger.put_begun(begun)
    ledger.put_taken_over(TakenOver(Fence(1, 5, 1), "files"))
    found = standing(ledger)
    assert (found.last, found.batch, found.position) == (4, Batch("q", 3, "to 4"), 1)
    assert [one.number for one in found.unread] == [3, 4], "what is prepared is not unread any more"
    assert (found.begun, found.former) == (begun, None)
    assert ledger.taken_over(5, ["files", "other"]) == frozenset({"files"})
    assert batch_at(ledger, 2) == Batch("q", 1, "to 2")


def test_blocks_go_on_from_the_last_epoch_of_a_store_of_before(ledger: Ledger) -> None:
    def former(number: int, batch: Batch, *, commit: bool = True) -> None:
        ledger.put_prepare(Prepare(Fence(1, number, 1), 1, {}, (), 0, batch=batch))
        if commit:
            ledger.put_commit(Commit(Fence(1, number, 1), {}, batch=batch))

    former(1, Batch("q", 0, "a"))
    former(2, Batch("q", 0, "a", tick=1))
    found = standing(Ledger(ledger.store, "main"))
    assert (found.last, found.batch, found.position, found.former) == (2, Batch("q", 0, "a"), 2, None)
    former(3, Batch("q", 1, "b"), commit=False)
    found = standing(Ledger(ledger.store, "main"))
    assert (found.last, found.batch, found.former) == (2, Batch("q", 0, "a"), Batch("q", 1, "b"))
    assert ledger.get_prepare(3, 1).ranges == {FEED: Range(3, 3)}  # type: ignore[union-attr]
    ledger.put_block(replace(block(3), batch=Batch("q", 1, "b")))
    found = standing(Ledger(ledger.store, "main"))
    assert (found.last, found.batch, found.former, found.unread) == (3, Batch("q", 1, "b"), None, ())
    assert block_of(Ledger(ledger.store, "main"), Batch("q", 0, "?")) == (1, Batch("q", 0, "a"))
    assert block_of(Ledger(ledger.store, "main"), Batch("q", 1, "?")) == (3, Batch("q", 1, "b"))
    assert block_of(Ledger(ledger.store, "main"), Batch("q", 2, "?")) is None


def test_a_tick_that_was_prepared_before_there_were_blocks_has_a_number_too(ledger: Ledger) -> None:
    batch = Batch("q", 0, "a")
    ledger.put_prepare(Prepare(Fence(1, 1, 1), 1, {}, (), 0, batch=batch))
    ledger.put_commit(Commit(Fence(1, 1, 1), {}, batch=batch))
    ledger.put_prepare(Prepare(Fence(1, 2, 1), 1, {}, (), 0, batch=replace(batch, tick=1)))
    found = standing(Ledger(ledger.store, "main"))
    assert (found.last, found.batch, found.former) == (2, batch, None)


def test_any_batch_that_has_a_block_is_found(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        ledger.put_block(block(number))
    for number in (1, 2, 3):
        assert block_of(ledger, Batch("q", number - 1, "?")) == (number, Batch("q", number - 1, f"to {number}"))
    assert block_of(ledger, Batch("q", 3, "?")) is None


def test_garbage_of_batches_is_told_by_their_blocks_and_goes_while_what_is_unread_stays(ledger: Ledger) -> None:
    section = ledger.section
    names = {number: segment_name(Fence(1, number - 1, 1), 0, 0, 1) for number in range(1, 6)}
    dead = {number: segment_name(Fence(1, number - 1, 1), 0, 0, 2) for number in range(1, 7)}
    for name in (*names.values(), *dead.values()):
        section.write(name, [b"rows"])
    for number in range(1, 6):
        ledger.put_begun(replace(BEGUN, fence=Fence(1, number, 1)))
        ledger.put_block(block(number, names[number]))
    ledger.put_begun(replace(BEGUN, fence=Fence(1, 6, 1)))
    for number in (1, 2, 3, 4):
        epoch(ledger, number, Range(number, number))
    gone = Janitor(ledger.store, "main", 1).round(0)
    assert sorted(gone) == sorted([*(dead[n] for n in range(1, 6)), *(Begun.file_of(n) for n in range(1, 6))])
    for number in (2, 3):
        ledger.put_manifest(Manifest(number, Fence(1, number, 1), ("p",), (0,), "a test"))
    gone = Janitor(ledger.store, "main", 1).round(2)
    assert names[1] in gone
    assert names[2] in gone
    assert names[3] not in gone, "its epoch is above the cut"
    assert ledger.block_numbers() == [1, 2, 3, 4, 5], "Spark may have forgotten the last ones"
    assert section.exists(dead[6]), "an older driver may still name it"
