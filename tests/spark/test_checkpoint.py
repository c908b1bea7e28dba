"""Spark's own files, kept as durably as ours: what blocks carry, what is synced, what comes back."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from holdfast.errors import CorruptionError
from holdfast.log.blocks import Begun, Block
from holdfast.log.ledger import Ledger
from holdfast.log.records import Batch, Commit, Fence, Prepare
from holdfast.log.repair import COMMITTED, checksum_name, checksums
from holdfast.log.store import Store
from holdfast.spark import checkpoint as notes
from holdfast.spark.checkpoint import SparkNotes
from holdfast.spark.settling import Settled


class Checkpoint:
    """A store with Spark's checkpoint in it, written as Spark writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger(Store(path), "main")
        self.notes = SparkNotes(self.ledger)
        self.write("metadata", b'{"id":"q"}')
        self.write("sources/1/0", b"v1\n1794913759881")

    @property
    def spark(self) -> Path:
        return self.path / "main" / "spark"

    def write(self, name: str, content: bytes) -> None:
        for file, data in ((name, content), (checksum_name(name), checksums(content))):
            (self.spark / file).parent.mkdir(parents=True, exist_ok=True)
            (self.spark / file).write_bytes(data)

    def plan(self, batch: int, note: str | None = None) -> None:
        self.write(note or f"sources/0/{batch}", b'v1\n{"path":"file:///in/%d"}' % batch)
        self.write(f"offsets/{batch}", b'v1\n{"conf":{}}\n{"logOffset":%d}' % batch)

    def block(self, batch: int) -> dict[str, bytes]:
        """The batch is taken in: what its block carries."""
        carried, files = self.notes.carry(Batch("q", batch, ""))
        fence = Fence(1, batch + 1, 0)
        return self.ledger.put_block(
            Block(fence, Batch("q", batch, ""), spark=carried, attachments=tuple(files))
        ).carried()

    def begin(self, batch: int) -> None:
        """Sinks over the source may have it."""
        carried, files = self.notes.carry(Batch("q", batch, ""))
        self.ledger.put_begun(Begun(Fence(1, batch + 1, 0), Batch("q", batch, ""), {}, carried, tuple(files)))

    def names(self, batch: int) -> tuple[str, ...]:
        """The notes that the block of a batch knows of."""
        block = self.ledger.get_block(batch + 1)
        assert block is not None
        assert block.spark is not None
        return block.spark.names

    def done(self, batch: int) -> None:
        """Spark has noted that too."""
        self.write(f"commits/{batch}", COMMITTED)

    def again(self) -> SparkNotes:
        """After a cut: the next driver."""
        return SparkNotes(Ledger(Store(self.path), "main"))

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.spark)): path.read_bytes() for path in self.spark.rglob("*") if path.is_file()
        }


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "store")


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that others wrote and we synced, by name."""
    found: list[str] = []
    real = notes.sync_files

    def told(paths: object, root: str) -> None:
        found.extend(os.path.basename(path) for path in paths)  # type: ignore[attr-defined]
        real(paths, root)  # type: ignore[arg-type]

    monkeypatch.setattr(notes, "sync_files", told)
    return found


def test_a_block_carries_what_is_new_and_syncs_what_is_compact_or_large(
    checkpoint: Checkpoint, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.plan(0)
    assert checkpoint.block(0).keys() == {"metadata", "offsets/0", "sources/0/0", "sources/1/0"}
    checkpoint.plan(1)
    found = checkpoint.block(1)
    assert found.keys() == {"metadata", "offsets/1", "sources/0/1"}
    assert found["offsets/1"] == (checkpoint.spark / "offsets/1").read_bytes()
    assert synced == []
    checkpoint.plan(2, "sources/0/2.compact")
    assert checkpoint.block(2).keys() == {"metadata", "offsets/2"}
    assert set(synced) == {"2.compact", ".2.compact.crc"}
    monkeypatch.setattr(notes, "CARRIED_BYTES", 5)
    checkpoint.plan(3)
    assert checkpoint.block(3).keys() == {"metadata", "offsets/3"}
    assert {"3", ".3.crc"} <= set(synced)
    assert checkpoint.names(3) == ("sources/0/2.compact", "sources/0/3", "sources/1/0")


def test_what_a_block_that_lost_would_have_carried_is_carried_again(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0)
    checkpoint.block(0)
    checkpoint.plan(1)
    carried, _ = checkpoint.notes.carry(Batch("q", 1, ""))
    assert "sources/0/1" in carried.files
    checkpoint.notes.not_stored()
    assert checkpoint.block(1).keys() == {"metadata", "offsets/1", "sources/0/1"}


def test_a_checkpoint_that_is_gone_comes_back_from_many_blocks(checkpoint: Checkpoint) -> None:
    for batch in range(3):
        checkpoint.plan(batch)
        checkpoint.block(batch)
        checkpoint.done(batch)
    before = checkpoint.files()
    shutil.rmtree(checkpoint.spark)
    done = checkpoint.again().mend()
    assert done
    after = checkpoint.files()
    assert after == {name: content for name, content in before.items() if name in after}
    lost = {name for name in before if name not in after and "/." not in name}
    assert lost == {"offsets/0", "commits/0", "commits/1"}, "Spark looks at the last two"
    assert not checkpoint.again().mend()


def test_a_batch_that_has_a_block_is_done_for_spark_too(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0)
    checkpoint.block(0)
    checkpoint.again().mend()
    assert checkpoint.files()["commits/0"] == COMMITTED, "though no epoch has read it yet"


def test_what_was_begun_is_planned_again_as_it_was(checkpoint: Checkpoint) -> None:
    """Sinks over the source may have part of it: with other offsets they would lose rows, or have some twice."""
    checkpoint.plan(0)
    checkpoint.block(0)
    checkpoint.done(0)
    checkpoint.plan(1)
    whole = checkpoint.files()
    checkpoint.begin(1)
    for name in ("offsets/1", "offsets/.1.crc", "sources/0/1", "sources/0/.1.crc"):
        (checkpoint.spark / name).unlink()
    assert checkpoint.again().mend()
    assert checkpoint.files() == whole
    assert "commits/1" not in whole, "Spark offers it again"


def test_torn_files_are_made_whole_and_planned_batches_go(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0)
    checkpoint.block(0)
    checkpoint.done(0)
    checkpoint.plan(1)
    whole = checkpoint.files()
    (checkpoint.spark / "sources/0/0").write_bytes(b"")
    (checkpoint.spark / "offsets/0").write_bytes(whole["offsets/0"][:-1])
    (checkpoint.spark / "commits/0").write_bytes(b"v1")
    (checkpoint.spark / "sources/0/1").write_bytes(bytes(len(whole["sources/0/1"])))
    checkpoint.again().mend()
    gone = {"offsets/1", "offsets/.1.crc", "sources/0/1", "sources/0/.1.crc"}
    assert checkpoint.files() == {name: content for name, content in whole.items() if name not in gone}


def test_what_blocks_carried_is_safe_before_they_are_gone(checkpoint: Checkpoint, synced: list[str]) -> None:
    checkpoint.plan(0)
    checkpoint.block(0)
    checkpoint.notes.settle()
    assert set(synced) >= {"metadata", ".metadata.crc", "0", ".0.crc"}
    synced.clear()
    checkpoint.notes.settle()
    assert synced == []
    checkpoint.ledger.section.delete([Block.file_of(1)])
    checkpoint.plan(1)
    checkpoint.block(1)
    (checkpoint.spark / "sources/0/0").unlink()
    with pytest.raises(CorruptionError, match="has lost sources/0/0, and no block has it"):
        checkpoint.again().mend()


def test_prepares_of_before_there_were_blocks_carry_the_same(checkpoint: Checkpoint) -> None:
    for batch in range(2):
        checkpoint.plan(batch)
        carried, files = checkpoint.notes.carry(Batch("q", batch, ""))
        taken = {"batch": Batch("q", batch, ""), "spark": carried, "attachments": tuple(files)}
        checkpoint.ledger.put_prepare(Prepare(Fence(1, batch + 1, 0), 1, {}, (), 0, **taken))
    checkpoint.ledger.put_commit(Commit(Fence(1, 1, 0), {}, batch=Batch("q", 0, "")))
    before = checkpoint.files()
    shutil.rmtree(checkpoint.spark)
    assert checkpoint.again().mend()
    after = checkpoint.files()
    assert {name: after[name] for name in before} == before, "also what was prepared and not committed"
    assert after["commits/0"] == COMMITTED
    assert "commits/1" not in after


def test_a_store_of_an_older_holdfast_is_left_alone(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0)
    checkpoint.ledger.put_prepare(Prepare(Fence(1, 1, 0), 1, {}, (), 0, batch=Batch("q", 0, "")))
    (checkpoint.spark / "offsets/0").write_bytes(b"")
    before = checkpoint.files()
    assert checkpoint.again().mend() is None
    assert checkpoint.files() == before


# A file sink's folder


def sink_file(folder: Path, counter: int, *names: str, compact: tuple[str, ...] | None = None) -> None:
    """An entry of the sink's log with its files, as Spark leaves them."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * 500)
        (folder / checksum_name(name)).write_bytes(checksums(name.encode() * 500))
    listed = [json.dumps({"path": (folder / name).as_uri(), "action": "add"}) for name in (*(compact or ()), *names)]
    content = "\n".join(["v1", *listed]).encode()
    entry = f"_spark_metadata/{counter}" + (".compact" if compact is not None else "")
    (folder / entry).parent.mkdir(parents=True, exist_ok=True)
    (folder / entry).write_bytes(content)
    (folder / checksum_name(entry)).write_bytes(checksums(content))


def test_a_sinks_files_its_log_and_all_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    real = os.fsync
    folder = tmp_path / "out"

    def told(descriptor: int) -> None:
        found.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), folder))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", told)
    settled = Settled(str(folder))
    sink_file(folder, 0, "day=a b/part-0")
    settled.settle(0)
    assert set(found) >= {"day=a b/part-0", "day=a b/.part-0.crc", "_spark_metadata/0", "_spark_metadata/.0.crc"}
    assert set(found) >= {"day=a b", "_spark_metadata", ".", ".."}, "the folder itself may be new"
    found.clear()
    sink_file(folder, 1, "day=c/part-1")
    sink_file(folder, 2, "day=c/part-2", compact=("day=a b/part-0", "day=c/part-1"))
    settled.settle(2)
    assert {name for name in found if "part" in name} == {"day=c/part-2", "day=c/.part-2.crc"}, "the others were"
    assert found[-1] == "."


@pytest.mark.parametrize("harm", ["entry cut", "entry empty", "part cut", "part gone", "part zeros", "sums gone"])
def test_an_entry_that_is_not_whole_is_taken_out(tmp_path: Path, harm: str) -> None:
    sink_file(tmp_path, 0, "part-0")
    settled = Settled(str(tmp_path))
    assert not settled.forget_torn(0)
    assert not settled.forget_torn(1)
    entry, part = tmp_path / "_spark_metadata" / "0", tmp_path / "part-0"
    match harm:
        case "entry cut":
            entry.write_bytes(entry.read_bytes()[:-3])
        case "entry empty":
            entry.write_bytes(b"")
        case "part cut":
            part.write_bytes(part.read_bytes()[:-1])
        case "part gone":
            part.unlink()
        case "part zeros":
            part.write_bytes(bytes(len(part.read_bytes())))
        case "sums gone":
            (tmp_path / ".part-0.crc").unlink()
    assert settled.forget_torn(0)
    assert os.listdir(tmp_path / "_spark_metadata") == []
