"""Snapshots as files: what they say comes back, numbers are never used again, packs stay while one names them."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.driver.snapshots import _graph as graph_of
from holdfast.errors import CorruptionError, FormatError, StoreError
from holdfast.log.janitor import Held, Janitor, may_go
from holdfast.log.ledger import Ledger
from holdfast.log.pack import pack_name
from holdfast.log.records import FEED, Commit, Fence, GraphFile, JobFile, Manifest, Prepare, Range
from holdfast.log.snapshots import SnapshotFile, Snapshots
from holdfast.log.store import Store

FENCE = Fence(2, 7, 1)
PACKS = (pack_name(FENCE, "a"), pack_name(FENCE, "b"))
RANGES = {FEED: Range(7, 7)}


def snapshot(number: int, until: int | None = None) -> SnapshotFile:
    return SnapshotFile(
        number,
        100,
        until,
        JobFile("id", "job", {"a": 1}, 2, 5),
        GraphFile(3, 4, 1, {}, [{"name": "s"}], [], [], [], 0, names={"a/s": "s"}),
        Manifest(7, FENCE, PACKS, (0, 1), "c", 3),
        Commit(FENCE, RANGES, {"out": 6}, feedback={"top": b"rows"}),
        (Prepare(FENCE, 1, RANGES, (), 9, times={"s": 1}), Prepare(FENCE, 2, RANGES, (), 9)),
        {"input": 4},
        {"offsets/6": b"v1\n{}", "sources/0/6": b""},
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_it_is_what_was_written(store: Store) -> None:
    snapshots = Snapshots(store)
    for one in (snapshot(1), replace(snapshot(2, 50), graph=None, spark={})):
        assert snapshots.put(one)
        assert Snapshots(store).get(one.number) == one
    assert not snapshots.put(snapshot(1)), "the number is taken"
    assert snapshots.get(3) is None
    assert [one.spark or one.prepares for one in snapshots.every()] == [(), ()], "what only a fork needs is not kept"


def test_every_altered_byte_is_noticed(store: Store) -> None:
    whole = snapshot(1).to_bytes()
    noticed = 0
    for at in range(0, len(whole), 7):
        try:
            found = SnapshotFile.from_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], "snapshot/1")
        except (CorruptionError, FormatError):
            noticed += 1
        else:
            assert found == snapshot(1), "it was between two frames, where nothing is"
        with pytest.raises(CorruptionError):
            SnapshotFile.from_bytes(whole[:at], "snapshot/1")
    assert noticed > len(whole) / 7 / 2


def test_a_number_is_never_used_again(store: Store) -> None:
    snapshots = Snapshots(store)
    assert snapshots.next() == 1
    for number in (1, 2, 3):
        assert snapshots.next() == number
        assert snapshots.put(snapshot(number))
    for number in (3, 2, 1):
        snapshots.forget(number)
        assert Snapshots(store).next() == 4
    with pytest.raises(StoreError, match="has no snapshot 3"):
        snapshots.forget(3)
    snapshots.expire(0)
    assert store.list("snapshot") == ["0000000003.gone"], "one mark is enough"
    assert Snapshots(store).next() == 4
    assert snapshots.put(snapshot(4))
    snapshots.expire(0)
    assert store.list("snapshot") == ["0000000004"]


def test_it_is_over_when_its_time_is(store: Store) -> None:
    snapshots = Snapshots(store)
    for number, until in ((1, None), (2, 50), (3, 60)):
        assert snapshots.put(snapshot(number, until))
    assert snapshots.expire(49) == []
    assert snapshots.expire(59) == [2]
    assert [one.number for one in snapshots.every()] == [1, 3]
    assert snapshots.held() == frozenset(PACKS)


def test_packs_stay_while_a_snapshot_names_them() -> None:
    later = tuple(
        Manifest(epoch, Fence(2, epoch, 1), (pack_name(Fence(2, epoch, 1), "a"),), (0, 0), "c") for epoch in (8, 9)
    )
    ages = dict.fromkeys([*PACKS, *(pack for one in later for pack in one.packs)], 1e6)
    held = Held(2, manifests=later, manifest_files=(8, 9), packs=ages)
    assert may_go(held, 100) == [*PACKS]
    assert may_go(replace(held, kept=frozenset(PACKS)), 100) == []
    assert may_go(replace(held, kept=frozenset(PACKS[:1])), 100) == [PACKS[1]]


def test_one_that_cannot_be_read_holds_everything_and_hinders_nothing(store: Store, tmp_path: Path) -> None:
    snapshots = Snapshots(store)
    assert snapshots.put(snapshot(1, 50))
    assert snapshots.put(snapshot(2))
    file = tmp_path / SnapshotFile.file_of(2)
    file.write_bytes(file.read_bytes()[:-10])
    told: list[CorruptionError] = []
    assert [one.number for one in Snapshots(store).every(told.append)] == [1]
    assert len(told) == 1
    assert Snapshots(store).held() is None
    assert Snapshots(store).expire(60) == [1]
    with pytest.raises(CorruptionError):
        Snapshots(store).every()


def test_a_checkpoint_from_before_the_first_live_change_is_of_the_graph_before(store: Store) -> None:
    ledger = Ledger(store, "main")
    ledger.open_or_create_job(JobFile("id", "job", {}, 2, 5, stages=[{"name": "s"}]))
    before = Manifest(7, FENCE, PACKS, (0, 1), "c")
    ledger.put_graph(GraphFile(1, 0, 1, {}, [{"name": "s"}, {"name": "t"}], [], [], [], 0, live=True))
    ledger.put_prepare(Prepare(Fence(2, 8, 1), 1, RANGES, (), 9))
    found = graph_of(Ledger(store, "main"), before)
    assert found is None, "its packs have nothing of the stage that came"
    named = graph_of(Ledger(store, "main"), replace(before, epoch=8, graph=1))
    assert named is not None
    assert named.version == 1


def test_one_that_was_never_written_to_its_end_goes(store: Store, tmp_path: Path) -> None:
    """Its driver was killed: nobody gives the file its name."""
    Snapshots(store).put(snapshot(1))
    left = [tmp_path / "snapshot" / f".0000000002.{number}.tmp" for number in range(2)]
    for file in left:
        file.write_bytes(b"half")
    os.utime(left[0], (0, 0))
    Janitor(store, "main", 1).round(0)
    assert [file.exists() for file in left] == [False, True], "somebody may be about to name the young one"


def test_two_may_look_at_the_same_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a status does, from any thread."""
    snapshots, reached, go = Snapshots(store), threading.Event(), threading.Event()
    assert snapshots.put(snapshot(1))
    assert len(snapshots.every()) == 1
    assert snapshots.put(snapshot(2))
    other = threading.Thread(target=snapshots.every)
    really = Snapshots.get

    def get(self: Snapshots, number: int) -> SnapshotFile | None:
        if threading.current_thread() is other:
            reached.set()
            assert go.wait(60)
        return really(self, number)

    class Seen(list[int]):
        def __contains__(self, number: object) -> bool:  # the other one goes on just now
            go.set()
            other.join()
            return super().__contains__(number)

    with monkeypatch.context() as patch:
        patch.setattr(Snapshots, "get", get)
        other.start()
        assert reached.wait(60)
        patch.setattr(Snapshots, "numbers", lambda self: Seen([1, 2]))
        try:
            assert [one.number for one in snapshots.every()] == [1, 2]
        finally:
            go.set()
            other.join()
