"""What a container holds back for those who read or write slowly, and where that ends."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from container_kit import ALL, NEVER, TOKEN, World, inputs, job_at, until

from holdfast.container import checkpoints
from holdfast.container import reads as reading
from holdfast.container.job import HostedJob
from holdfast.container.reads import Reading
from holdfast.driver.endpoint import Desk
from holdfast.errors import ContainerError, EpochGone
from holdfast.log.pack import Pack
from holdfast.spark import scan as scanning
from holdfast.spark.scan import Scan
from holdfast.wire.handlers import handler
from holdfast.wire.messages import WriteCheckpoint
from holdfast.wire.questions import Renew, Renewed

KEYS = list(range(2000))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, 1)
    made.own("c0")
    yield made
    made.close()


def job_of(world: World) -> HostedJob:
    return job_at(world.services[0])


def run(world: World, epochs: Iterable[int]) -> None:
    """Epochs that change every key."""
    for epoch in epochs:
        world.log(epoch, inputs(KEYS, [epoch] * len(KEYS)))
        world.apply("c0", epoch)


def held_back(job: HostedJob) -> int:
    return sum(held.state.undo_nbytes for stage in job.stages.values() for held in stage.slices.values())


class SlowStore:
    """A store that takes nothing of a pack until it is let."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.asked = threading.Semaphore(0)
        self._may: defaultdict[str, threading.Event] = defaultdict(threading.Event)

    def let(self, name: str) -> None:
        self._may[name].set()

    def write(self, name: str, parts: Iterable[Any], **more: Any) -> int:
        may = self._may[name]
        self.asked.release()
        assert may.wait(NEVER), "it was not let"
        return int(self._store.write(name, parts, **more))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def begin(job: HostedJob, epoch: int, pack: str) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def write() -> None:
        try:
            found.append(job.checkpoints.write(epoch, ALL, pack))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    return thread, found


def test_a_slow_store_holds_no_epoch_back(world: World) -> None:
    job = job_of(world)
    run(world, range(1, 3))
    as_of_2 = world.state("c0", 2)
    one_epoch = held_back(job)
    slow = job.checkpoints._store = SlowStore(job.store)  # type: ignore[assignment]
    writing, found = begin(job, 2, "checkpoint/0000000002-1-1-c0.pack")
    slow.asked.acquire()
    run(world, range(3, 13))
    assert held_back(job) <= 2 * one_epoch, "undo sets wait for the store"
    slow.let("checkpoint/0000000002-1-1-c0.pack")
    writing.join()
    assert found[0] > 0
    (name,) = [f"checkpoint/{name}" for name in job.store.list("checkpoint")]
    world.complete(2, name)
    job.restore(ALL, 2, 2)  # what was written is the state as it was then
    assert world.state("c0", 2) == as_of_2
    assert Pack.open(job.store, name).verify()


def test_packs_that_the_store_does_not_take_do_not_pile_up(world: World) -> None:
    job = job_of(world)
    run(world, [1])
    slow = job.checkpoints._store = SlowStore(job.store)  # type: ignore[assignment]
    first = begin(job, 1, "checkpoint/0000000001-1-1-c0.pack")
    slow.asked.acquire()
    second = begin(job, 1, "checkpoint/0000000001-1-2-c0.pack")
    slow.asked.acquire()
    with pytest.raises(ContainerError, match="has not taken"):
        job.checkpoints.write(1, ALL, "checkpoint/0000000001-1-3-c0.pack")
    slow.let("checkpoint/0000000001-1-1-c0.pack")
    first[0].join()  # while the second is still being written
    slow.let("checkpoint/0000000001-1-2-c0.pack")
    second[0].join()
    (older,), (newer,) = first[1], second[1]
    assert isinstance(older, ContainerError)
    assert "is newer" in older.what
    assert newer > 0
    assert len(job.store.list("checkpoint")) == 1  # the one that was overtaken left nothing
    assert not job.checkpoints._writing


def test_a_large_pack_is_put_together_on_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "SPOOL_BYTES", 1000)
    job = job_of(world)
    run(world, [1])
    whole = world.state("c0", 1)
    pack = "checkpoint/0000000001-1-1-c0.pack"
    assert job.checkpoints.write(1, ALL, pack) > 1000
    world.complete(1, pack)
    job.restore(ALL, 1, 1)
    assert world.state("c0", 1) == whole


def test_readers_give_way_when_memory_does_and_are_told(world: World) -> None:
    job = job_of(world)
    run(world, range(1, 3))
    job.reading._pinned_bytes = 3 * held_back(job)
    job.reading.pin("slow", 2)
    run(world, range(3, 12))
    assert held_back(job) <= 5 * held_back(job) // 4 + job.reading._pinned_bytes
    with pytest.raises(EpochGone, match="too slow was given up"):
        list(job.reading.outputs("counts", ALL, 2, "read", reader="slow"))
    with pytest.raises(EpochGone, match="is not held"):  # nobody's fault but its own
        list(job.reading.outputs("counts", ALL, 2, "read", reader="another"))
    assert job.reading.renew("slow") is False


def test_a_checkpoint_gives_way_last_and_says_so(world: World) -> None:
    """Its pin may cost as much as the state; then it is given up, and the next one does not step back. Readers of an
    older epoch go before it, those of newer ones cost nothing and change nothing."""
    job = job_of(world)
    run(world, [1])
    pins = job.reading
    pins.pin("reader", 1)
    run(world, [2])
    pins._pinned_bytes = 1
    began, go_on = threading.Event(), threading.Event()
    packed = pins.packed

    def slowly(epoch: int, slices: Any) -> Iterator[Any]:
        began.set()
        assert go_on.wait(NEVER)
        yield from packed(epoch, slices)

    pins.packed = slowly  # type: ignore[method-assign]
    taking, found = begin(job, 2, "checkpoint/0000000002-1-1-c0.pack")
    assert began.wait(NEVER)
    run(world, [3])
    pins.pin("dashboard", 3)
    run(world, [4])
    checkpoint = "checkpoint-checkpoint/0000000002-1-1-c0.pack"
    assert set(pins._pins) == {checkpoint, "dashboard"}
    for epoch in range(5, 40):
        pins.pin("dashboard", epoch - 1)
        run(world, [epoch])
    assert checkpoint not in pins._pins
    pins.unpin("dashboard", 39)
    go_on.set()
    taking.join()
    assert isinstance(found[0], ContainerError)
    assert "given up" in found[0].what
    assert "MiB" in found[0].what
    assert not job.store.list("checkpoint")
    assert job.checkpoints.hurried
    pins.packed = packed  # type: ignore[method-assign]
    world.tell("c0", WriteCheckpoint, 39, id="1.1")
    assert not job.checkpoints.hurried


def test_what_is_remembered_of_readers_is_bounded() -> None:
    pins = Reading({}, pinned_bytes=-1)
    for number in range(1000):
        pins.pin(str(number), 1)
        pins.release(1)
    assert len(pins._given_up) == 100
    assert not pins._pins


def test_a_long_read_keeps_its_lease_and_a_dead_one_loses_it(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However long reading takes, and whatever epochs go on meanwhile."""
    monkeypatch.setattr(scanning, "RENEW_SECONDS", 0.1)
    job = job_of(world)
    run(world, range(1, 3))
    before = world.state("c0", 2)
    renewed = []

    class Renewing:
        @handler
        def renew(self, call: Renew) -> Renewed:
            renewed.append(job.reading.renew(call.reader))
            return Renewed(renewed[-1])

    desk = Desk("127.0.0.1", TOKEN)
    desk.table.add(Renewing())
    try:
        job.reading.pin("long", 2)
        address = world.clients["c0"].address
        parts = tuple(((address, (number,)),) for number in ALL)
        scan = Scan(desk.address, TOKEN, "j", 1, "counts", 1, 2, "read", parts, reader="long")
        rows = []
        for number, epoch in zip(ALL, range(3, 7), strict=True):
            ends = job.reading._pins["long"].until
            for batch in scan.part(number):
                rows += [(number, *row.values()) for row in batch.to_pylist()]
                until(lambda: job.reading._pins["long"].until > ends)  # noqa: B023 - slow: it waits for a renewal
            run(world, [epoch])
        assert rows == [row[1:] for row in before if row[0] == "counts"]
        assert all(renewed)
        assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-lease"]
    finally:
        desk.close()
    # Nobody renews it any more, and so it ends: one lease later, which is now.
    monkeypatch.setattr(reading.time, "monotonic", lambda: job.reading._pins["long"].until + 1)
    run(world, [7])
    assert not job.reading._pins
    with pytest.raises(EpochGone):
        list(job.reading.outputs("counts", ALL, 2, "read", reader="long"))
