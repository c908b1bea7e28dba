"""Copies between real containers: backups that follow their owner, take over from it, and survive what tears them."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from container_kit import ALL, COUNTS, World, hashes, held, inputs, job_at, until

from holdfast.container.messages import CopiesPush
from holdfast.errors import EpochGone, FencedError, from_wire
from holdfast.log.records import Fence
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.wire.client import Unreachable
from holdfast.wire.messages import Activate, Call, Demote, DropCopies, Forget, Reply, Undo
from holdfast.wire.questions import AskLoads, AskStatus, Get, Pin, SetThreads, Unpin


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, 3)
    made.own("c0")
    yield made
    made.close()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, 3, processes=True, environment={"HOLDFAST_FAULTS": str(tmp_path / "faults")})
    (tmp_path / "faults").mkdir()
    made.own("c0")
    yield made
    made.close()


def test_a_backup_follows_its_owner_and_takes_over(mortal: World) -> None:
    """Copies now and then, the owner dies, the peer activates and replays: the same rows in the same slots."""
    mortal.own("c2")  # the oracle: it applies everything and nothing happens to it
    rng = random.Random(5)
    for epoch in range(1, 9):
        mortal.random_epoch(epoch, rng)
        mortal.apply("c0", epoch)
        mortal.apply("c2", epoch)
        if epoch in (1, 2, 3, 6):
            done = mortal.copy("c0", epoch, mortal.to("c1"))
            assert held(done) == {"c1": dict.fromkeys(ALL, epoch)}
            assert done.failed == {}
            assert done.nbytes > 0
    status = mortal.call("c1", AskStatus())
    assert (status.backups, status.threads) == (4, 2)
    assert status.backup_bytes > 0
    mortal.kill("c0")
    figures = mortal.tell("c1", Activate, 8)
    assert figures.nbytes > 0
    assert figures.replayed == sum(mortal.prepares[epoch].segments[0].rows for epoch in (7, 8))
    assert mortal.state("c1", 8) == mortal.state("c2", 8)
    assert mortal.versions("c1") == {}, "a backup that became active is no backup any more"
    mortal.random_epoch(9, rng)
    ours, theirs = (mortal.apply(name, 9, digests=ALL) for name in ("c1", "c2"))
    assert ours.digests == theirs.digests
    assert [number for number, _ in ours.digests] == ALL
    assert mortal.state("c1", 9, mode="changed") == mortal.state("c2", 9, mode="changed")


def test_a_second_copy_is_only_what_changed(world: World) -> None:
    many = list(range(5000))
    world.log(1, inputs(many, many))
    world.apply("c0", 1)
    first = world.copy("c0", 1, world.to("c1"))
    assert first.rows == 2 * 5000
    world.log(2, inputs([1, 2, 7777], [5, 6, 7]))
    world.apply("c0", 2)
    second = world.copy("c0", 2, world.to("c1"), world.to("c2", [0, 1]))
    share = sum(int(number) % 4 in (0, 1) for number in hashes([*many, 7777]))
    assert second.rows == 2 * 3 + 2 * share, "a delta for one, a full copy for the other"
    assert held(second) == {"c1": dict.fromkeys(ALL, 2), "c2": {0: 2, 1: 2}}
    again = world.copy("c0", 2, world.to("c1"))
    assert (again.rows, held(again)["c1"]) == (0, held(second)["c1"])
    assert held(world.copy("c0", 1, world.to("c1")))["c1"] == held(second)["c1"], "newer is not overwritten"


def test_a_copy_of_a_committed_epoch_while_later_ones_run(world: World) -> None:
    rng = random.Random(1)
    world.random_epoch(1, rng)
    world.apply("c0", 1)
    world.call("c0", Pin("test", 1))
    truth = world.state("c0", 1)
    for epoch in (2, 3, 4):
        world.random_epoch(epoch, rng)
        world.apply("c0", epoch)
    world.tell("c0", Undo, 4)
    assert held(world.copy("c0", 1, world.to("c1")))["c1"] == dict.fromkeys(ALL, 1)
    world.tell("c1", Activate, 1)
    assert world.state("c1", 1) == truth
    world.call("c0", Unpin("test"))
    gone = world.copy("c0", 1, world.to("c2"))
    assert held(gone) == {}, "an epoch that is not held any more cannot be sent, and says so"


def test_versions_may_differ_and_active_slices_go_on(world: World) -> None:
    rng = random.Random(2)
    for epoch in range(1, 5):
        world.random_epoch(epoch, rng)
        world.apply("c0", epoch)
        world.copy("c0", epoch, world.to("c1", ALL[:epoch]) if epoch < 3 else world.to("c1", [2]))
    assert world.versions("c1") == {0: 2, 1: 2, 2: 4}
    with pytest.raises(EpochGone, match="slices 3 active"):
        world.tell("c1", Activate, 4)
    assert world.versions("c1") == {0: 2, 1: 2, 2: 4}, "nothing was changed for the others"
    with pytest.raises(EpochGone, match="slices 2 active"):
        world.tell("c1", Activate, 3, slices=[0, 2])
    world.tell("c1", Activate, 3, slices=[0])
    assert world.state("c1", 3, [0]) != []
    world.tell("c1", Activate, 4, slices=[0, 1, 2])
    assert world.state("c1", 4, [0, 1, 2]) == world.state("c0", 4, [0, 1, 2])


def test_a_slice_that_moved_is_a_backup_where_it_was(world: World) -> None:
    rng = random.Random(3)
    for epoch in (1, 2):
        world.random_epoch(epoch, rng)
        world.apply("c0", epoch)
    world.copy("c0", 2, world.to("c1"))
    world.tell("c1", Activate, 2, slices=[0, 1])
    with pytest.raises(EpochGone, match="cannot become a backup of epoch 1: it is at 2"):
        world.tell("c0", Demote, 1, slices=[0])
    with pytest.raises(EpochGone, match="not here"):
        world.tell("c2", Demote, 2, slices=[0])
    for _ in range(2):  # asking twice is asking once
        world.tell("c0", Demote, 2, slices=[0, 1])
    assert world.versions("c0") == {0: 2, 1: 2}
    with pytest.raises(EpochGone, match="Slice 0 of 'counts' is not here"):
        world.state("c0", 2, [0])
    world.random_epoch(3, rng)
    world.apply("c1", 3, [0, 1])
    world.apply("c0", 3, [2, 3])
    delta = world.copy("c1", 3, world.to("c0", [0, 1]))
    assert held(delta) == {"c0": {0: 3, 1: 3}}
    truth = world.state("c1", 3, [0, 1])
    world.tell("c1", Forget, slices=[0, 1])
    world.tell("c0", Activate, 3, slices=[0, 1])
    assert world.state("c0", 3, [0, 1]) == truth
    world.tell("c1", DropCopies)
    assert world.versions("c1") == {}


def test_a_backup_answers_with_the_epoch_of_its_answer(world: World) -> None:
    world.log(1, inputs([1, 2, 3], [10, 20, 30]))
    world.apply("c0", 1)
    world.copy("c0", 1, world.to("c1"))
    world.log(2, inputs([1, 2, 3], [1, 1, 1]))
    world.apply("c0", 2)
    number = int(hashes([2])[0] % 4)
    keys = inputs([2, 99], [0, 0])[0].select(["_h", "k0"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as out:
        out.write_batch(keys)
    call = Get("counts", number, None, bytes(sink.getvalue()))
    answer = world.call("c1", call)
    assert answer.epoch == 1
    assert pa.ipc.open_stream(answer.rows).read_all().to_pylist() == [{"k": 2, "n": 1, "total": 20}]
    with pytest.raises(EpochGone, match="no backup here"):
        world.call("c2", call)


def test_dead_and_hung_peers_do_not_hold_up_the_others(mortal: World) -> None:
    """A process that is stopped neither reads nor breaks its connection."""
    mortal.log(1, inputs(list(range(1000)), list(range(1000))))
    mortal.apply("c0", 1)
    os.kill(mortal.processes["c2"].pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        done = mortal.copy("c0", 1, mortal.to("c2"), mortal.to("c1"), silence=6)
        assert time.monotonic() - started > 5.9
    finally:
        os.kill(mortal.processes["c2"].pid, signal.SIGCONT)
    assert held(done) == {"c1": dict.fromkeys(ALL, 1)}
    assert set(done.failed) == {"c2"}
    mortal.kill("c2")
    mortal.log(2, inputs([1, 2, 3, 4, 5, 6, 7], [1] * 7))
    mortal.apply("c0", 2)
    done = mortal.copy("c0", 2, mortal.to("c2"), mortal.to("c1"))
    assert held(done) == {"c1": dict.fromkeys(ALL, 2)}
    assert "Unreachable" in done.failed["c2"]


def test_bandwidth_is_bounded(world: World) -> None:
    world.log(1, inputs(list(range(4000)), list(range(4000))))
    world.apply("c0", 1)
    nbytes = world.copy("c0", 1, world.to("c1")).nbytes
    job_at(world.services[0]).copy_bandwidth = 2 * nbytes
    slow = world.copy("c0", 1, world.to("c2"))
    assert slow.nbytes == nbytes
    assert 0.3 < slow.seconds < 20
    assert world.versions("c2") == world.versions("c1")


@pytest.mark.parametrize(("place", "victim"), [("mid-copy", "c0"), ("mid-activate", "c1"), ("mid-demote", "c0")])
def test_a_death_in_the_middle_leaves_whole_copies_only(mortal: World, tmp_path: Path, place: str, victim: str) -> None:
    rng = random.Random(4)
    for epoch in (1, 2):
        mortal.random_epoch(epoch, rng)
        mortal.apply("c0", epoch)
    mortal.copy("c0", 1 if place == "mid-copy" else 2, mortal.to("c1"), mortal.to("c2"))
    truth = mortal.state("c0", 2)
    (tmp_path / "faults" / f"container@{place}@2").touch()
    fatal: Call[Reply] = {
        "mid-copy": mortal.sending(victim, 2, mortal.to("c1")),
        "mid-activate": Activate(victim, Fence(1, 2, 1), frozenset(ALL), 2),
        "mid-demote": Demote(victim, Fence(1, 2, 1), frozenset(ALL), 2),
    }[place]
    with pytest.raises(Unreachable):
        mortal.call(victim, fatal)
    until(lambda: not mortal.processes[victim].alive)
    survivor = "c2" if victim == "c1" else "c1"
    assert set(mortal.versions(survivor)) == set(ALL)
    mortal.tell(survivor, Activate, 2)
    assert mortal.state(survivor, 2) == truth


def test_a_replaced_masters_copy_is_refused(world: World) -> None:
    world.log(1, inputs([1, 2], [1, 2]))
    world.apply("c0", 1)
    world.call("c1", AskStatus(), 2)
    done = world.copy("c0", 1, world.to("c1"))
    assert "FencedError" in done.failed["c1"]
    stream = world.clients["c1"].push(CopiesPush(1, "x", "counts"), pa.schema({"slot": "int32"}), 5)
    with pytest.raises(Exception, match="has been replaced by master 2") as caught:
        stream.close()
    assert isinstance(from_wire(str(caught.value)), FencedError)
    assert world.versions("c1", incarnation=2) == {}


def test_loads_and_threads(world: World) -> None:
    rng = random.Random(6)
    for epoch in range(1, 4):
        world.random_epoch(epoch, rng)
        world.apply("c0", epoch)
    loads = world.call("c0", AskLoads()).loads
    assert set(loads) == set(ALL)
    assert all(rows > 0 and seconds > 0 for rows, seconds in loads.values())
    stop = threading.Event()

    def resize() -> None:
        while not stop.is_set():
            for threads in (1, 3):
                assert world.call("c0", SetThreads(threads)).seconds >= 0

    changing = threading.Thread(target=resize)
    changing.start()
    try:
        for epoch in range(4, 10):
            world.random_epoch(epoch, rng)
            world.apply("c0", epoch)
    finally:
        stop.set()
        changing.join()
    assert world.call("c0", AskStatus()).threads == 3
    world.own("c2")
    for epoch in range(1, 10):
        world.apply("c2", epoch)
    assert world.state("c0", 9) == world.state("c2", 9)
    world.tell("c0", Forget, slices=[0])
    assert 0 not in world.call("c0", AskLoads()).loads


def test_merging_happens_behind(world: World) -> None:
    rng = random.Random(7)
    sizes = []
    for epoch in range(1, 12):
        world.random_epoch(epoch, rng, keys=2000)
        world.apply("c0", epoch)
        world.copy("c0", epoch, world.to("c1"))
        sizes.append(world.call("c1", AskStatus()).backup_bytes)
    before = max(sizes)
    world.tell("c1", Activate, 11)
    assert world.state("c1", 11) == world.state("c0", 11)
    assert world.call("c1", AskStatus()).backup_bytes == 0
    until(lambda: world.call("c1", AskStatus()).backups == 0)
    assert before < 3_000_000


VALUES = replace(
    COUNTS,
    name="values",
    operator=StageSpec((Column("k", "bigint"),), (AggregateSpec("values", "count_distinct", "v0", "bigint"),)),
)
"""Two tables a slice."""


@pytest.mark.parametrize("rows", [[], [0, 4]], ids=["none", "of others"])
def test_a_slice_that_never_had_a_row_is_taken_over_though_its_first_stage_has_two_tables(
    tmp_path: Path, rows: list[int]
) -> None:
    """Found by the search: a copy of nothing is one empty table, and whoever activated it asked for the second."""
    world = World(tmp_path, plans=(VALUES,))
    try:
        world.own("c0")
        for epoch in (1, 2):
            world.log(epoch, inputs(rows, rows) if rows else [])
            world.apply("c0", epoch)
            world.copy("c0", epoch, world.to("c1"))
        world.tell("c1", Activate, 2)
        assert world.state("c1", 2) == world.state("c0", 2)
        world.log(3, inputs([*range(20)], [*range(20)]))
        for name in ("c0", "c1"):
            world.apply(name, 3)
        assert world.state("c1", 3) == world.state("c0", 3)
        assert len(world.state("c1", 3)) == 20
    finally:
        world.close()
