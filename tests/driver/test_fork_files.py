"""What a fork writes, and what it finds: no Spark, the snapshot is put together by hand."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import faults
from holdfast.driver.fork import fork
from holdfast.driver.snapshots import _file as snapshot_of
from holdfast.log.blocks import Block
from holdfast.log.ledger import Ledger
from holdfast.log.pack import Pack, PackWriter, SliceState, pack_name
from holdfast.log.past import Past
from holdfast.log.records import FEED, Batch, Commit, Fence, GraphFile, JobFile, Manifest, Prepare, Range
from holdfast.log.snapshots import SnapshotFile, Snapshots
from holdfast.log.store import Store

EPOCH = 7
FENCE = Fence(2, EPOCH, 1)
RANGES = {FEED: Range(7, 7)}


@pytest.fixture
def told(tmp_path: Path) -> str:
    """A store with one snapshot, whose checkpoint is two packs."""
    source = Store(tmp_path / "first")
    packs = tuple(pack_name(FENCE, container) for container in "ab")
    for number, pack in enumerate(packs):
        rows = pa.record_batch({"n": pa.array(range(1000 * number, 1000 * number + 1000))})
        PackWriter(None).write(source.sub("main"), pack, [SliceState("counts", number, EPOCH, rows)])
    job = JobFile("id", "first", {}, 2, 5, stages=[{"name": "counts"}])
    prepares = (Prepare(FENCE, 1, RANGES, (), 9),)
    notes = {"offsets/6": b"v1\n{}\n{}", "sources/0/6": b"v1"}
    manifest = Manifest(EPOCH, FENCE, packs, (0, 1), "c", 0)
    found = SnapshotFile(
        1, 100, None, job, None, manifest, Commit(FENCE, RANGES), prepares, {}, notes, Batch("q", 6, "{}")
    )
    assert Snapshots(source).put(found)
    return f"{source.uri}#1"


def check(store: Store, told: str) -> None:
    """A whole job, with all rows."""
    ledger = Ledger(store, "main")
    job = ledger.find_job()
    assert job is not None
    assert (job.name, job.forked) == ("second", told)
    (manifest,) = ledger.manifests()
    commit = ledger.last_committed()
    assert commit is not None
    assert manifest.epoch == commit.fence.epoch == EPOCH
    for number in range(2):
        pack = Pack.open(ledger.section, manifest.pack_of(number))
        pack.verify()
        assert pack.slice("counts", number)["n"].to_pylist() == list(range(1000 * number, 1000 * number + 1000))


def test_it_is_whole(tmp_path: Path, told: str) -> None:
    store = Store(tmp_path / "second")
    fork(store, "second", told)
    check(store, told)
    fork(store, "second", told)  # it goes on


def test_what_a_start_left_that_died_while_it_tried_the_store_is_in_nobodys_way(tmp_path: Path, told: str) -> None:
    store = Store(tmp_path / "second")
    assert store.put_if_absent("probe-00ff", b"one")
    fork(store, "second", told)
    check(store, told)


@pytest.mark.parametrize("torn", ["short", "zeros"])
def test_a_pack_that_is_not_whole_is_written_again(tmp_path: Path, told: str, torn: str) -> None:
    """As the power may leave it: too short, or as long as it should be and full of zeros."""
    store = Store(tmp_path / "second")

    def cut(_role: str, place: str, _epoch: int) -> None:
        if place == "mid-fork":
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "place", cut)
        with pytest.raises(KeyboardInterrupt):
            fork(store, "second", told)
    pack, *_ = sorted((tmp_path / "second" / "main" / "checkpoint").glob("*.pack"))
    whole = pack.read_bytes()
    pack.write_bytes(whole[:1000] if torn == "short" else bytes(len(whole)))
    fork(store, "second", told)
    check(store, told)


def test_of_two_that_fork_at_once_none_takes_the_others_packs_away(tmp_path: Path, told: str) -> None:
    """One finds a pack that the other is still writing; then that one is done, and the first dies."""
    store, other = Store(tmp_path / "second"), Store(tmp_path / "second")
    fork(Store(tmp_path / "whole"), "second", told)
    name = pack_name(Fence(0, EPOCH, 0), "fork0")
    whole = (tmp_path / "whole" / "main" / name).read_bytes()
    assert store.put_if_absent("fork", told.encode())
    store.sub("main").write(name, [whole[:500]])
    finished: list[bool] = []

    def finish() -> None:
        if not finished:
            finished.append(True)
            (tmp_path / "second" / "main" / name).write_bytes(whole)
            fork(other, "second", told)
            check(store, told)

    def delete(self: Store, names: Iterable[str]) -> None:
        finish()
        really(self, names)
        raise KeyboardInterrupt

    really = Store.delete
    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Store, "delete", delete)
        patch.setattr(faults, "place", lambda _role, place, _epoch: finish() if place == "mid-fork" else None)
        fork(store, "second", told)
    assert finished
    check(store, told)


def test_a_fork_tells_of_no_change_that_it_has_not(tmp_path: Path) -> None:
    """The job was changed between the checkpoint and the snapshot of it."""
    ledger = Ledger(Store(tmp_path / "first"), "main")
    job = JobFile("id", "first", {}, 2, 5, stages=[{"name": "counts"}])
    ledger.open_or_create_job(job)

    def change(version: int, text: str, epoch: int) -> None:
        stages = [{"name": "counts"}, *({"name": f"late{at}"} for at in range(version))]
        past = Past.of(ledger.graphs()).to_dict()
        graph = GraphFile(version, 0, 1, {}, stages, [text], [], [], 0, live=True, former=version - 1, past=past)
        ledger.put_graph(graph)
        ledger.put_block(Block(Fence(1, epoch, 1), Batch("q", epoch - 1, "")))
        ledger.put_prepare(Prepare(Fence(1, epoch, 1), 1, {FEED: Range(epoch, epoch)}, (), 9))
        ledger.put_commit(Commit(Fence(1, epoch, 1), {FEED: Range(epoch, epoch)}))

    change(1, "the first", 7)
    change(2, "the second", 8)
    for name in ("offsets/5", "offsets/6", "sources/0/6"):
        ledger.section.write(f"spark/{name}", [b"v1"])
    manifest = Manifest(7, FENCE, (), (), "c", 1)
    made = snapshot_of(Ledger(ledger.store, "main"), manifest, job, 1, 0, None)
    past = Past.from_dict(made.past)
    assert [one.text for one in past.changes] == ["the first"]
    assert past.names.had("late1"), "no name is used again"
