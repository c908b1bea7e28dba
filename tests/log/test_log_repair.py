"""Spark's checkpoint after a power cut: whatever was lost, what is needed comes back, and nothing torn stays."""

from __future__ import annotations

import random
from collections.abc import Mapping

from holdfast.log.repair import COMMITTED, Standing, checksum_name, checksums, current, mend, wanting

OFFSETS = b'v1\n{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":"2"}}\n{"logOffset":%d}\n%d'


def with_checksums(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return dict(files) | {checksum_name(name): checksums(content) for name, content in files.items()}


def checkpoint(batches: int, compacts: int = 4) -> dict[str, bytes]:
    """A file source and a Kafka-like one, whose only note is where it began. All batches are done."""
    files = {"metadata": b'{"id":"11bfc103"}', "sources/1/0": b'v1\n{"topic":{"0":23}}'}
    for batch in range(batches):
        files[f"offsets/{batch}"] = OFFSETS % (batch, batch * 17)
        files[f"commits/{batch}"] = COMMITTED
        name = f"sources/0/{batch}" + (".compact" if batch % compacts == compacts - 1 else "")
        files[name] = b'v1\n{"path":"file:///in/%d.json","batchId":%d}' % (batch, batch) * (40 if "." in name else 1)
    return with_checksums(files)


def notes(files: Mapping[str, bytes]) -> frozenset[str]:
    return current(name for name in files if name.startswith("sources/") and "/." not in name)


def mended(standing: Standing, disk: Mapping[str, bytes], carried: Mapping[str, bytes]) -> dict[str, bytes]:
    wanted = wanting(standing, disk)
    done = mend(standing, disk, {name: content for name, content in carried.items() if name in wanted})
    assert not done.missing
    gone = {*done.drop, *done.write}
    kept = {name: content for name, content in disk.items() if not gone & {name, _file_of(name)}}
    return kept | with_checksums(done.write)


def _file_of(name: str) -> str:
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}{base[1:-4]}" if base.startswith(".") else name


def test_whole_files_are_left_alone() -> None:
    truth = checkpoint(6)
    standing = Standing(5, 5, notes(truth))
    assert not wanting(standing, truth)
    assert not mend(standing, truth, {})


def test_compact_files_replace_what_is_before_them() -> None:
    assert notes(checkpoint(6)) == {"sources/0/3.compact", "sources/0/4", "sources/0/5", "sources/1/0"}
    assert notes(checkpoint(3)) == {"sources/0/0", "sources/0/1", "sources/0/2", "sources/1/0"}


def test_whatever_a_cut_takes_comes_back(drill_seed: int) -> None:
    for seed in range(500 * (drill_seed - 1), 500 * drill_seed):
        print(f"seed {seed}")
        take_and_mend(random.Random(seed))


def take_and_mend(draw: random.Random) -> None:
    """Any file of Spark's missing, empty, torn or full of zeros, checksums too, but for what is synced: afterwards it
    is as if nothing had happened, for all that Spark looks at."""
    batches = draw.randint(1, 9)
    truth = checkpoint(batches)
    prepared = batches - 1
    committed = prepared - draw.randint(0, 1)
    planned = draw.random() < 0.5
    names = notes(truth)
    synced = {name for name in names if name.endswith(".compact")}
    disk = {name: content for name, content in truth.items() if name != f"commits/{batches - 1}" or draw.random() < 0.5}
    if committed < prepared:
        disk.pop(f"commits/{prepared}", None)
    if planned:  # Spark was about to begin another batch
        disk |= with_checksums({f"offsets/{batches}": OFFSETS % (batches, 1), f"sources/0/{batches}": b"v1\n{}"})
    for name in list(disk):
        if _file_of(name) not in synced and draw.random() < 0.4:
            content = disk.pop(name)
            cut = draw.randrange(len(content))
            if (kind := draw.randrange(4)) < 3:
                disk[name] = [b"", content[:cut], content[:cut] + bytes(len(content) - cut)][kind]
    standing = Standing(committed, prepared, names)
    after = mended(standing, disk, truth)
    for name in {*names, "metadata", *(f"offsets/{n}" for n in (prepared, committed, committed - 1) if n >= 0)}:
        assert after[name] == truth[name]
        assert after.get(checksum_name(name)) == checksums(truth[name])
    if committed >= 0:
        assert after[f"commits/{committed}"] == COMMITTED
    assert f"commits/{committed + 1}" not in after
    if f"offsets/{batches}" in after:  # the batch that was planned is tried again as it was, if nothing of it is gone
        assert all(disk.get(name) == truth[name] for name in names)
        assert after[f"offsets/{batches}"] == OFFSETS % (batches, 1)
        assert after[f"sources/0/{batches}"] == b"v1\n{}"
    spare = f"sources/0/{batches}"
    assert spare not in after or after[checksum_name(spare)] == checksums(after[spare])
    assert not mend(standing, after, {}), "mending what is mended"


def test_a_whole_checkpoint_that_is_gone_comes_back() -> None:
    truth = checkpoint(3)
    after = mended(Standing(2, 2, notes(truth)), {}, truth)
    assert after == {name: content for name, content in truth.items() if not _file_of(name).endswith(("/0", "/1"))} | {
        name: truth[name]
        for one in ("offsets/1", "sources/0/0", "sources/0/1", "sources/1/0")
        for name in (one, checksum_name(one))
    }


def test_what_nobody_has_is_said() -> None:
    truth = checkpoint(6)
    disk = {name: content for name, content in truth.items() if name != "sources/0/3.compact"}
    assert mend(Standing(5, 5, notes(truth)), disk, {}).missing == ("sources/0/3.compact",)


def test_what_we_wrote_without_checksums_is_trusted() -> None:
    """Folders that an older Holdfast wrote after a change of the graph; they were synced."""
    disk = {name: content for name, content in checkpoint(6).items() if "/." not in name and name[0] != "."}
    assert not mend(Standing(5, 5, notes(disk)), disk, {}).missing


def test_planned_notes_go_from_the_first_torn_one_on() -> None:
    """What is before it may be all that there is: Spark has deleted what a compact file replaces."""
    truth = checkpoint(9)
    names = notes(checkpoint(6))
    disk = {name: content for name, content in truth.items() if name not in ("sources/0/6", ".sources/0/.6.crc")}
    disk |= {"sources/0/8": b""}
    done = mend(Standing(5, 5, names), disk, {})
    assert set(done.drop) == {"sources/0/8", "offsets/6", "offsets/7", "offsets/8"}


def test_before_the_first_prepare_everything_torn_goes() -> None:
    disk = {"metadata": b'{"id":', "offsets/0": b"", "sources/0/0": b"v1", "sources/0/.0.crc": b"crc"}
    done = mend(Standing(-1, -1), disk, {})
    assert set(done.drop) == {"metadata", "offsets/0", "sources/0/0"}
    assert not done.write


def test_before_the_first_prepare_an_id_with_torn_checksums_goes() -> None:
    """Spark reads them first. Without any, it takes the file as it is."""
    name, content = "metadata", b'{"id":"q"}'
    for torn in (b"", b"crc\0", checksums(content)[:-1], checksums(content)[:-4] + bytes(4)):
        assert mend(Standing(-1, -1), {name: content, checksum_name(name): torn}, {}).drop == (name,)
    assert not mend(Standing(-1, -1), with_checksums({name: content}), {})
    assert not mend(Standing(-1, -1), {name: content}, {})


def test_a_planned_batch_is_tried_again_as_it_was_if_all_of_it_is_there() -> None:
    whole = with_checksums({"metadata": b'{"id":"q"}', "offsets/0": OFFSETS % (0, 3), "sources/0/0": b"v1\n{}"})
    assert mend(Standing(-1, -1), whole, {}).drop == ("offsets/0",), "where the second source began is not there"
    whole |= with_checksums({"sources/1/0": b"v1\n12"})
    assert not mend(Standing(-1, -1), whole, {})
    listed = whole | with_checksums({"sources/0/1": b"v1\n{}"})
    assert mend(Standing(-1, -1), listed, {}).drop == ("offsets/0",), "a reader has listed more since"

    truth = checkpoint(9)
    standing = Standing(7, 7, notes(checkpoint(8)))
    assert not mend(standing, {name: truth[name] for name in truth if "commits/8" not in name}, {}).drop
    for lost in ("sources/0/8", "offsets/.8.crc", "sources/0/.8.crc", "metadata", "offsets/7"):
        disk = {name: content for name, content in truth.items() if name != lost}
        assert "offsets/8" in mend(standing, disk, truth).drop, lost
    gap = with_checksums({"sources/0/8": b"", "sources/0/9": b"v1\n{}", "offsets/8": OFFSETS % (9, 1)})
    assert "offsets/8" in mend(standing, {k: v for k, v in (truth | gap).items() if k != "sources/0/8"}, {}).drop
