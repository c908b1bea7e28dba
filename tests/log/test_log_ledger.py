"""The ledger: one owner, one prepare, and nothing deleted that somebody may need."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.errors import CorruptionError, StoreError
from holdfast.log import janitor
from holdfast.log.ledger import Ledger
from holdfast.log.pack import pack_name
from holdfast.log.records import (
    FEED,
    Commit,
    Fence,
    GraphFile,
    JobFile,
    Manifest,
    Mark,
    Prepare,
    Range,
    Routing,
    SegmentRef,
)
from holdfast.log.segment import segment_name
from holdfast.log.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def ledger(store: Store) -> Ledger:
    return Ledger(store)


def prepare(epoch: int, level: int = 1, incarnation: int = 1, attempt: int = 0, tasks: Iterable[int] = ()) -> Prepare:
    fence = Fence(incarnation, epoch, attempt)
    refs = tuple(SegmentRef(segment_name(fence, level, p, t), 1, 1, 1, p, t) for p, t in enumerate(tasks))
    return Prepare(fence, level, {FEED: Range(epoch, epoch)}, refs, clock=epoch)


def commit(epoch: int, incarnation: int = 1) -> Commit:
    return Commit(Fence(incarnation, epoch, 0), {FEED: Range(epoch, epoch)})


def manifest(epoch: int, *containers: str) -> Manifest:
    fence = Fence(1, epoch, 0)
    return Manifest(epoch, fence, tuple(pack_name(fence, c) for c in containers), (0,) * 4, "c9")


# Ownership


def test_each_owner_gets_the_next_incarnation_and_the_last_finds_out(store: Store) -> None:
    first, second = Ledger(store), Ledger(store)
    assert first.newest_owner() is None
    one = first.take_ownership("a", 1, "grpc://a:1")
    assert (one.incarnation, first.newest_owner()) == (1, one)
    two = second.take_ownership("b", 2, "grpc://b:2")
    assert two.incarnation == 2
    assert first.newest_owner() == two
    assert Ledger(store).newest_owner() == two


def test_rivals_for_ownership_all_get_one_of_their_own(store: Store) -> None:
    got: list[int] = []

    def rival() -> None:
        own = Ledger(store)
        got.extend(own.take_ownership("h", 1, "").incarnation for _ in range(5))

    threads = [threading.Thread(target=rival) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(1, 21))


# Prepare and commit


def test_whoever_loses_a_prepare_goes_on_with_the_winners(store: Store) -> None:
    old, new = Ledger(store), Ledger(store)
    winner = prepare(1, incarnation=1, tasks=[7])
    assert old.put_prepare(winner) == winner
    assert new.put_prepare(prepare(1, incarnation=2, tasks=[9])) == winner
    assert new.get_prepare(1, 1) == winner
    assert new.get_prepare(1, 2) is None


def test_whoever_loses_a_commit_gets_the_winners(store: Store) -> None:
    assert Ledger(store).put_commit(commit(1, incarnation=1)) == commit(1, incarnation=1)
    assert Ledger(store).put_commit(commit(1, incarnation=2)) == commit(1, incarnation=1)


def test_last_committed_and_last_prepared_see_what_others_write(store: Store) -> None:
    mine, other = Ledger(store), Ledger(store)
    assert mine.last_committed() is None
    assert mine.last_prepared() is None
    for epoch in range(1, 4):
        other.put_prepare(prepare(epoch))
        other.put_prepare(prepare(epoch, level=2))
        other.put_commit(commit(epoch))
        assert mine.last_committed() == commit(epoch)
        assert mine.last_prepared() == (epoch, 2)
    assert Ledger(store).last_committed() == commit(3)
    assert Ledger(store).last_prepared() == (3, 2)
    assert mine.get_commit(2) == commit(2)


def test_an_epoch_lists_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(store)
    ledger.take_ownership("h", 1, "")
    ledger.put_prepare(prepare(1))
    ledger.put_commit(commit(1))
    assert ledger.last_prepared() == (1, 1)

    def refuse(self: Store, folder: str = "") -> list[str]:
        raise AssertionError(f"listed {folder}")

    monkeypatch.setattr(Store, "list", refuse)
    for epoch in range(2, 5):
        assert ledger.last_committed() == commit(epoch - 1)
        ledger.newest_owner()
        ledger.put_prepare(prepare(epoch))
        ledger.put_commit(commit(epoch))
        assert ledger.last_prepared() == (epoch, 1)


def test_prepares_come_in_order_and_without_holes(ledger: Ledger, store: Store) -> None:
    for epoch in range(1, 6):
        for level in (2, 1):
            ledger.put_prepare(prepare(epoch, level))
    found = [(p.fence.epoch, p.level) for p in Ledger(store).prepares(2, 4)]
    assert found == [(2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2)]
    assert len(ledger.prepares(4)) == 4
    assert ledger.prepares(6) == []
    with pytest.raises(CorruptionError, match=r"prepare/0000000006.1 is missing; epochs 5 to 6"):
        ledger.prepares(5, 6)
    store.delete(["prepare/0000000003.1"])
    with pytest.raises(CorruptionError, match=r"prepare/0000000003.1 is missing"):
        ledger.prepares(1)
    assert len(ledger.prepares(4, 5)) == 4


def test_a_file_under_another_ones_name_is_not_believed(ledger: Ledger, store: Store) -> None:
    for epoch in (1, 2):
        ledger.put_prepare(prepare(epoch))
        ledger.put_commit(commit(epoch))
    shutil.copy(f"{store.uri}/prepare/0000000001.1", f"{store.uri}/prepare/0000000002.1")
    shutil.copy(f"{store.uri}/commit/0000000001", f"{store.uri}/commit/0000000002")
    with pytest.raises(CorruptionError, match=r"prepare/0000000002.1 holds what was written as prepare/0000000001.1"):
        ledger.get_prepare(2, 1)
    with pytest.raises(CorruptionError, match="holds what was written as commit/0000000001"):
        Ledger(store).last_committed()


def test_a_corrupt_newest_commit_is_never_skipped(ledger: Ledger, store: Store) -> None:
    ledger.put_commit(commit(1))
    ledger.put_commit(commit(2))
    Path(store.uri, "commit/0000000002").write_bytes(b"")
    with pytest.raises(CorruptionError, match="commit/0000000002"):
        Ledger(store).last_committed()


def test_routing_versions(ledger: Ledger, store: Store) -> None:
    assert ledger.last_routing() is None
    one, two = Routing(1, ("a", "a")), Routing(2, ("a", "b"))
    assert ledger.put_routing(one) == one
    assert Ledger(store).put_routing(two) == two
    assert ledger.put_routing(Routing(2, ("b", "b"))) == two
    assert ledger.last_routing() == two


def test_a_section_has_its_own_epochs_and_the_jobs_owner(store: Store) -> None:
    one, two = Ledger(store, "main"), Ledger(store, "side")
    one.put_prepare(prepare(1))
    one.take_ownership("h", 1, "")
    assert two.last_prepared() is None
    assert two.newest_owner() == one.newest_owner()
    assert store.list("main/prepare") == ["0000000001.1"]
    assert store.list("owner") == ["0000000001"]


# The job


JOB = JobFile("id-1", "clicks", {"sources": ["a"], "stages": [{"keys": ["p"], "agg": {"n": "count"}}]}, 128, 1)


def test_a_job_finds_its_store_again(ledger: Ledger) -> None:
    assert ledger.open_or_create_job(JOB) == JOB
    again = JobFile("id-2", JOB.name, {"sources": ("a",), "stages": JOB.graph["stages"]}, 128, 2)
    assert ledger.open_or_create_job(again) == JOB


def test_another_jobs_store_is_refused(ledger: Ledger) -> None:
    ledger.open_or_create_job(JOB)
    with pytest.raises(StoreError, match="belongs to job 'clicks', not to 'sales'"):
        ledger.open_or_create_job(JobFile("id-2", "sales", JOB.graph, 128, 2))


def test_another_graph_is_refused_and_what_differs_is_shown(ledger: Ledger, store: Store) -> None:
    ledger.open_or_create_job(JOB)
    graph = {"sources": ["a", "b"], "stages": [{"keys": ["q"], "agg": {"n": "count", "s": "sum"}}], "loops": 1}
    with pytest.raises(StoreError) as refused:
        ledger.open_or_create_job(JobFile("id-2", "clicks", graph, 64, 2))
    for line in (
        "slices: 128 in the store, 64 now",
        "graph.sources: ['a'] in the store, ['a', 'b'] now",
        "graph.stages[0].keys[0]: 'p' in the store, 'q' now",
        "graph.stages[0].agg.s: nothing in the store, 'sum' now",
        "graph.loops: nothing in the store, 1 now",
    ):
        assert line in str(refused.value)
    assert "agg.n" not in str(refused.value)
    assert store.list() == ["job.json"]


# What may go


def fill(ledger: Ledger, epochs: int) -> None:
    for epoch in range(1, epochs + 1):
        made = prepare(epoch, tasks=[epoch])
        ledger.section.write(made.segments[0].name, [b"rows"], sync=False)
        ledger.put_prepare(made)
        ledger.put_commit(commit(epoch))


def checkpoint(ledger: Ledger, epoch: int) -> None:
    made = manifest(epoch, "a", "b")
    for pack in made.packs:
        ledger.section.write(pack, [b"state"], sync=False)
    ledger.put_manifest(made)


def tidied(store: Store, up_to: int, incarnation: int = 1) -> list[str]:
    return janitor.Janitor(store, "", incarnation).round(up_to)


def epochs_in(store: Store, folder: str) -> list[int]:
    return sorted({int(name[:10]) for name in store.list(folder)})


def test_the_cut_keeps_what_the_second_newest_checkpoint_needs(
    ledger: Ledger, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "KEPT", 10)
    fill(ledger, 30)
    checkpoint(ledger, 5)
    assert tidied(store, 30) == []
    assert epochs_in(store, "log") == list(range(1, 31))

    for epoch in (15, 24, 28):
        checkpoint(ledger, epoch)
    store.write(pack_name(Fence(1, 14, 0), "of-a-failed-checkpoint"), [b""])
    store.write(pack_name(Fence(1, 30, 0), "of-one-in-the-making"), [b""])
    tidied(store, 12)
    assert epochs_in(store, "log") == list(range(13, 31))
    tidied(store, 30)  # not above the second newest
    assert epochs_in(store, "log") == list(range(25, 31))
    assert epochs_in(store, "prepare") == epochs_in(store, "commit") == list(range(21, 31))
    assert epochs_in(store, "checkpoint") == [24, 28, 30]
    for made in ledger.manifests():
        assert all(store.exists(pack) for pack in made.packs)
    assert len(ledger.prepares(25)) == 6
    assert Ledger(store).last_committed() == commit(30)


def graph(version: int, epoch: int, mends: int = 0) -> GraphFile:
    return GraphFile(version, epoch, 1, {}, [], [], [], [], 0, mends=mends)


def test_a_mark_of_failure_counts_until_the_epoch_was_applied_after_all(ledger: Ledger, store: Store) -> None:
    """Each version of the graph has its own: another function may fail, or not, where this one did."""
    ledger.put_prepare(prepare(1))
    assert ledger.failed(1) is None
    ledger.mark_failed(Fence(1, 1, 0), "a torn page")
    ledger.mark_failed(Fence(2, 1, 0), "again")
    assert ledger.failed(1) == Mark(Fence(1, 1, 0), "failed", 0, "a torn page")
    assert Ledger(store).last_prepared() == (1, 1)

    ledger.put_graph(graph(1, 0, mends=1))
    assert ledger.failed(1) is None
    ledger.mark_failed(Fence(3, 1, 0), "still torn")
    found = Ledger(store).failed(1)
    assert found is not None
    assert (found.graph, found.text) == (1, "still torn")
    Ledger(store).mark_applied(Fence(4, 1, 0))
    assert ledger.failed(1) is None


def test_an_epoch_whose_sinks_may_have_begun_never_counts_as_failed(ledger: Ledger, store: Store) -> None:
    """A driver applied it and died between two sinks; its successor's function raises: nobody may mend it."""
    ledger.put_prepare(prepare(1))
    ledger.mark_applied(Fence(1, 1, 0))
    Ledger(store).mark_failed(Fence(2, 1, 0), "a torn page")
    assert Ledger(store).failed(1) is None


def test_only_the_levels_that_a_graph_mends_may_be_of_the_graph_before(ledger: Ledger, store: Store) -> None:
    ledger.put_prepare(prepare(4))
    ledger.put_prepare(prepare(4, level=2))
    zombie = Ledger(store)
    assert zombie.graph() is None
    ledger.put_graph(graph(1, 3, mends=2))
    for level in (1, 2):
        found = ledger.get_prepare(4, level)
        assert found is not None
        ledger.refuse_former_graph(found)
    zombie.put_prepare(prepare(4, level=3))
    with pytest.raises(StoreError, match="version 0 of the job's graph"):
        ledger.put_prepare(prepare(4, level=3, incarnation=2))
    zombie.put_prepare(prepare(5))
    with pytest.raises(StoreError, match="version 0 of the job's graph"):
        ledger.put_prepare(prepare(5, incarnation=2))


def test_marks_go_with_the_commit(ledger: Ledger, store: Store) -> None:
    fill(ledger, 5)
    for epoch in (2, 6):
        ledger.mark_failed(Fence(1, epoch, 0), "")
        ledger.mark_applied(Fence(1, epoch, 0))
    tidied(store, 0)
    assert [name for name in sorted(store.list("prepare")) if not name.endswith(".1")] == [
        "0000000006.applied0",
        "0000000006.failed0",
    ]


def test_the_last_hundred_prepares_and_commits_outlive_the_cut(ledger: Ledger, store: Store) -> None:
    fill(ledger, 103)
    checkpoint(ledger, 101)
    checkpoint(ledger, 102)
    tidied(store, 101)
    assert epochs_in(store, "log") == [102, 103]
    assert epochs_in(store, "prepare") == epochs_in(store, "commit") == list(range(4, 104))


def test_a_corrupt_manifest_does_not_count(ledger: Ledger, store: Store) -> None:
    """Neither for the cut, which stays below the second newest that can be read, nor for who recovers."""
    fill(ledger, 3)
    for epoch in (1, 2, 3):
        checkpoint(ledger, epoch)
    Path(store.uri, "checkpoint/0000000003.complete").write_bytes(b"torn")
    tidied(store, 3)
    assert epochs_in(store, "log") == [2, 3]
    with pytest.raises(CorruptionError, match=r"checkpoint/0000000003\.complete"):
        ledger.manifests()
    told: list[CorruptionError] = []
    assert [made.epoch for made in ledger.manifests(told.append)] == [1, 2]
    assert len(told) == 1


def test_a_second_manifest_of_an_epoch_yields_to_the_first(ledger: Ledger) -> None:
    assert ledger.put_manifest(manifest(5, "a")) == manifest(5, "a")
    assert ledger.put_manifest(manifest(5, "b")) == manifest(5, "a")


def test_the_sweep_takes_segments_that_their_prepare_does_not_name(store: Store) -> None:
    ledger = Ledger(store)
    for epoch in (1, 2):
        ledger.put_prepare(prepare(epoch, tasks=[10, 11]))
    ledger.put_prepare(prepare(2, level=2, tasks=[12]))
    named = [ref.name for p in ledger.prepares(1) for ref in p.segments]
    failed = [segment_name(Fence(1, 1, 0), 1, 0, 9), segment_name(Fence(1, 2, 0), 2, 0, 8)]
    zombie = [segment_name(Fence(0, 2, 0), 1, 0, 10)]
    # Not prepared: this epoch's third level and the next epoch. An old owner may still be about to prepare those.
    open_ended = [segment_name(Fence(i, e, 0), lv, 0, 1) for i in (0, 1) for e, lv in ((2, 3), (3, 1))]
    for name in named + failed + zombie + open_ended:
        store.write(name, [b"rows"], sync=False)
    store.write("log/README", [b"not ours"], sync=False)

    sweeper = janitor.Janitor(store, "", 1)
    assert sorted(sweeper.round(0)) == sorted(failed + zombie)
    assert sorted(os.listdir(f"{store.uri}/log")) == sorted(
        [name.removeprefix("log/") for name in named + open_ended] + ["README"]
    )
    ledger.put_prepare(prepare(3, incarnation=1, tasks=[1]))
    assert sweeper.round(0) == [segment_name(Fence(0, 3, 0), 1, 0, 1)]
    assert sweeper.round(0) == []
    store.write(zombie[0], [b"rows"], sync=False)  # a task that had not heard of its end
    assert sweeper.round(0) == zombie
