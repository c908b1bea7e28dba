"""What may go from a store, and what may not: by judgement alone, and on a disk."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.log import janitor
from holdfast.log.janitor import GIVEN_UP_SECONDS, Held, Janitor, graphs_may_go, may_go
from holdfast.log.ledger import Ledger
from holdfast.log.pack import pack_name, parse_pack_name
from holdfast.log.records import FEED, Commit, Fence, GraphFile, Manifest, Prepare, Range, Routing, SegmentRef
from holdfast.log.segment import segment_name
from holdfast.log.store import Store


def checkpoint(epoch: int, incarnation: int = 3) -> Manifest:
    fence = Fence(incarnation, epoch, 0)
    return Manifest(epoch, fence, (pack_name(fence, "a"), pack_name(fence, "b")), (0, 1), "c")


def held(*epochs: int, packs: dict[str, float] | None = None) -> Held:
    manifests = tuple(checkpoint(epoch) for epoch in epochs)
    named = {pack: 0.0 for one in manifests for pack in one.packs}
    return Held(3, manifests=manifests, manifest_files=epochs, packs=named | (packs or {}))


def of(incarnation: int, epoch: int, attempt: int = 7) -> str:
    return pack_name(Fence(incarnation, epoch, attempt), "x")


def test_packs_of_a_checkpoint_that_was_given_up_go_when_a_newer_one_is_complete() -> None:
    packs = {of(3, epoch): 5.0 for epoch in (4, 8, 12)}
    assert may_go(held(packs=packs), 100) == []
    assert may_go(held(6, packs=packs), 100) == [of(3, 4)]
    assert may_go(held(6, 10, packs=packs), 100) == [of(3, 4), of(3, 8)]
    assert may_go(held(6, 10, packs={of(3, 10): 5.0}), 100) == [], "tried twice, and the second one counts"


def test_packs_of_a_replaced_driver_wait_until_it_must_have_given_up() -> None:
    """It may be about to store the manifest that names them."""
    young, old = {of(2, 8): 5.0}, {of(2, 8): GIVEN_UP_SECONDS + 1}
    assert may_go(held(6, 10, packs=young), 100) == []
    assert may_go(held(6, 10, packs=old), 100) == [of(2, 8)]
    assert may_go(held(9, 10, packs=young), 100) == [of(2, 8)], "two are complete above it"
    assert may_go(held(packs=old), 0) == [of(2, 8)], "also where nothing is ever checkpointed"
    successor = {of(4, 8): GIVEN_UP_SECONDS + 1}
    assert may_go(held(6, 10, packs=successor), 100) == [], "a successor's are its own business"


def test_packs_of_a_manifest_that_cannot_be_read_stay() -> None:
    known = replace(held(6), manifest_files=(6, 8), packs=dict.fromkeys(checkpoint(8, 1).packs, 9000000000.0))
    assert may_go(known, 100) == []


def test_old_manifests_go_before_their_packs() -> None:
    gone = may_go(held(2, 5, 9), 100)
    assert gone == ["checkpoint/0000000002.complete", *checkpoint(2).packs]


def test_folders_of_spark_go_once_epochs_of_the_new_graph_are_committed() -> None:
    graph = GraphFile(2, 5, 1, {}, [], [], [], [], 0, spark="spark-2-7")
    known = replace(held(), graph=graph, folders=("spark", "spark-1-3", "spark-2-6", "spark-2-7", "spark-3-9"))
    assert may_go(known, 100) == []
    assert may_go(replace(known, committed_graph=2), 100) == ["spark/", "spark-1-3/", "spark-2-6/"]
    assert may_go(replace(known, graph=None, committed_graph=2), 100) == []


def test_graphs_go_when_nothing_that_stays_is_in_their_terms() -> None:
    newest = GraphFile(9, 0, 1, {}, [], [], [], [], 0, live=True, past={"input": 0})
    manifests = tuple(replace(checkpoint(epoch), graph=graph) for epoch, graph in ((2, 1), (5, 4), (8, 6)))
    known = replace(held(), manifests=manifests, graph=newest, graphs=tuple(range(2, 12)), terms={6: 5})
    gone = ["graph/0000000002.json", "graph/0000000003.json"]
    assert graphs_may_go(known, 100) == gone, "the second checkpoint from the end is in terms of the fourth"
    assert graphs_may_go(replace(known, terms={6: 3}), 100) == gone[:1], "so is the log above it"
    assert graphs_may_go(known, 3) == [], "the log stays above epoch 3, and what is there was not looked at"
    assert graphs_may_go(replace(known, terms={4: 2}), 3) == []
    assert graphs_may_go(replace(known, graph=replace(newest, past={})), 100) == [], "nobody else knows what they had"
    assert graphs_may_go(replace(known, graph=None), 100) == []
    unnamed = (manifests[0], replace(manifests[1], graph=None), manifests[2])
    assert graphs_may_go(replace(known, manifests=unnamed), 100) == [], "it is of whichever there was then"
    later = replace(known, manifests=tuple(replace(one, graph=11) for one in manifests), terms={6: 11})
    assert graphs_may_go(later, 100)[-1] == "graph/0000000008.json", "never the one that the job has"


def test_whatever_is_held_what_a_start_needs_stays(drill_seed: int) -> None:
    """The two newest checkpoints with their packs, all of the log above the older one, the newest prepares and commits,
    and everything that is not decided yet."""
    for seed in range(300 * (drill_seed - 1), 300 * drill_seed):
        draw = random.Random(seed)
        last = draw.randint(1, 160)
        epochs = sorted(draw.sample(range(1, last + 1), min(last, draw.randint(0, 4))))
        packs = {of(draw.randint(1, 4), draw.randint(1, last + 2)): draw.uniform(0, 9000) for _ in range(9)}
        levels = frozenset((epoch, level) for epoch in range(1, last + 2) for level in (1, 2))
        names = {segment_name(Fence(draw.randint(1, 3), e, 0), lv, 0, draw.randint(0, 2)): (e, lv) for e, lv in levels}
        names |= {segment_name(Fence(3, last + 2, 0), 1, 0, 0): (last + 2, 1)}
        named = {
            level: frozenset(n for n, at in names.items() if at == level and draw.random() < 0.7) for level in levels
        }
        known = replace(
            held(*epochs, packs=packs),
            segments=names,
            prepares=levels,
            named=named,
            marks={f"prepare/{e:010d}.failed0": e for e in (last - 1, last + 1)},
            commits=tuple(range(1, last + 1)),
        )
        up_to = draw.randint(0, last)
        gone = set(may_go(known, up_to))
        cut = min(up_to, epochs[-2]) if len(epochs) > 1 else 0
        for one in known.manifests[-2:]:
            assert not gone & {one.file, *one.packs}, seed
        for name, level in names.items():
            needed = level[0] > cut and (level not in known.prepares or name in named[level])
            assert (name not in gone) == needed, seed
        for epoch in range(1, last + 1):
            stays = epoch > cut or epoch > last - 99
            assert (f"commit/{epoch:010d}" not in gone) >= stays
            assert (Prepare.file_of(epoch, 1) not in gone) >= stays
        assert Prepare.file_of(last + 1, 1) not in gone
        assert f"prepare/{last + 1:010d}.failed0" not in gone
        newest = epochs[-1] if epochs else 0
        for name in packs:
            parsed = parse_pack_name(name)
            assert parsed is not None
            assert name not in gone or parsed[0].epoch < newest or parsed[0].incarnation < 3, seed


def prepare(epoch: int, names: list[str]) -> Prepare:
    refs = tuple(SegmentRef(name, 1, 1, 0, 0, 0) for name in names)
    return Prepare(Fence(1, epoch, 0), 1, {FEED: Range(epoch, epoch)}, refs, 0)


def test_without_checkpoints_the_log_stays_and_garbage_goes(tmp_path: Path) -> None:
    """``safety=None``: the log is all there is. What nobody will ever read is no part of it."""
    store = Store(tmp_path)
    ledger = Ledger(store, "main")
    log: list[str] = []
    garbage: list[str] = []
    for epoch in range(1, 4):
        good, dead = segment_name(Fence(1, epoch, 0), 1, 0, 5), segment_name(Fence(1, epoch, 0), 1, 0, 4)
        log.append(good)
        garbage.append(dead)
        ledger.section.write(good, [b"rows"])
        ledger.section.write(dead, [b"rows"])
        ledger.put_prepare(prepare(epoch, [good]))
        ledger.mark_applied(Fence(1, epoch, 0))
        ledger.put_commit(Commit(Fence(1, epoch, 0), {FEED: Range(epoch, epoch)}))
    for version in range(1, 31):
        ledger.put_routing(Routing(version, ("a",)))
    ledger.take_ownership("h", 1, "")
    before = store.list("owner")
    making = [
        "main/prepare/.0000000004.1.0123456789abcdef.tmp",
        "main/commit/.0000000004.0123456789abcdef0123456789abcdef",
        "main/spark/offsets/.7.11bfc103-d173-4412-a657-94a95bb599a1.tmp",
        "main/spark/sources/0/..7.11bfc103-d173-4412-a657-94a95bb599a1.tmp.crc",
        "owner/.0000000002.0123456789abcdef.tmp",
        "probe-0123456789abcdef",
    ]
    for name in [*making, "main/spark/offsets/7", "main/spark/offsets/.7.crc"]:
        store.write(name, [b"half"])
    tidy = Janitor(store, "main", 1)
    tidy.round(0)
    assert sorted(f"log/{name}" for name in store.list("main/log")) == log, "and no segment of a dead attempt"
    assert store.list("main/prepare") == [Path(prepare(epoch, []).file).name for epoch in (1, 2, 3)]
    assert len(store.list("main/commit")) == 3
    assert store.list("routing") == [f"{version:010d}" for version in range(21, 31)]
    assert all((tmp_path / name).exists() for name in making), "somebody may be at it"
    for name in making:
        os.utime(tmp_path / name, (1, 1))
    tidy.round(0)
    assert not any((tmp_path / name).exists() for name in making)
    assert (tmp_path / "main/spark/offsets/.7.crc").exists()
    assert store.list("owner") == before


def test_a_round_ends_when_its_time_is_up_and_the_next_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    ledger = Ledger(store)
    dead = [segment_name(Fence(1, 1, 0), 1, 0, task) for task in range(5)]
    for name in dead:
        store.write(name, [b"rows"], sync=False)
    ledger.put_prepare(prepare(1, []))
    ticks = iter(range(100))
    monkeypatch.setattr(janitor, "ROUND_SECONDS", 2.5)
    monkeypatch.setattr(janitor.time, "monotonic", lambda: next(ticks))
    tidy = Janitor(store, "", 1)
    assert tidy.round(0) == dead[:2]
    assert tidy.round(0) == dead[2:4]
    assert tidy.round(0) == dead[4:]


def test_what_prepares_carry_is_safe_before_they_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor, "KEPT", 1)
    ledger = Ledger(store := Store(tmp_path))
    for epoch in (1, 2, 3):
        ledger.put_prepare(prepare(epoch, []))
        ledger.put_manifest(checkpoint(epoch))
        for pack in checkpoint(epoch).packs:
            store.write(pack, [b"state"])
    there: list[list[str]] = []
    Janitor(store, "", 3, lambda: there.append(store.list("prepare"))).round(2)
    assert [len(names) for names in there] == [3]
    assert store.list("prepare") == ["0000000003.1"]
