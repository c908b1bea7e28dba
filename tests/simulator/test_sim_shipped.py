"""The job in the simulator with the containers and the ledger that ship; and bugs in them that no model could have."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.container.job import HostedJob
from holdfast.errors import CorruptionError
from holdfast.log.records import Batch, Fence, Prepare
from simulator.__main__ import main
from simulator.disks import Disk
from simulator.shipped import ShippedJob, ShippedStore, SimulatedFiles, file_store, rows_of

pytestmark = pytest.mark.long
SEEDS = 100
"""Thirty times as many as the rarest of these bugs takes: one of three runs shows it."""


def test_shipped_containers_keep_their_promises(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scenario", "job", "--shipped", "--seeds", "12", "--first", "301"]) == 0
    assert "12 scenarios" in capsys.readouterr().out


def test_a_seed_tells_the_same_story_twice() -> None:
    first, second = (ShippedJob(7, trace=True) for _ in range(2))
    assert first.run() == second.run()
    assert first.world.notes == second.world.notes


class UndoForgetsATable(HostedJob):
    """The values of an epoch that was taken back stay; the keys do not."""

    def undo(self, epoch: int, slices: Sequence[int]) -> None:
        for number in slices:
            state: Any = self.stages["values"].held(number).state
            if state.epoch == epoch and state._undo:
                state._undo[-1][-1] = SimpleNamespace(restore=lambda table: table)
        super().undo(epoch, slices)


class RestoreSkipsAnEpoch(HostedJob):
    """The first one above the checkpoint."""

    def restore(self, slices: Sequence[int], epoch: int, checkpoint: int) -> tuple[int, int]:
        log, read = self.log, self.log.prepare

        def prepare(past: int, level: int) -> Prepare:
            found = read(past, level)
            return replace(found, segments=()) if past == checkpoint + 1 else found

        log.prepare = prepare  # type: ignore[method-assign]
        try:
            return super().restore(slices, epoch, checkpoint)
        finally:
            log.prepare = read  # type: ignore[method-assign]


class CheckpointsThePresent(HostedJob):
    """A pack says it is of the epoch that was asked for, and has what the slices are now."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        part = self.reading.part

        def now(stage: str, table: int, number: int, base: int, epoch: int, start: int) -> Any:
            newest = self.stages[stage].held(number).state.epoch
            header, rows = part(stage, table, number, base, newest, start)
            return replace(header, epoch=epoch), rows

        self.reading.part = now  # type: ignore[method-assign]


class NothingIsSynced(SimulatedFiles):
    def create(self, path: str, data: bytes) -> bool:
        if path in self._disk.names():
            return False
        self._disk.put(path, data, sync=False)
        return True


def run_many(**planted: Any) -> None:
    for seed in range(1, SEEDS + 1):
        ShippedJob(seed, **planted).run()


@pytest.mark.parametrize(
    ("planted", "noticed"),
    [
        ({"make_job": UndoForgetsATable}, "is wrong at position|saw unlike rows"),
        ({"make_job": RestoreSkipsAnEpoch}, "is wrong at position|saw unlike rows"),
        ({"make_job": CheckpointsThePresent}, "is wrong at position|saw unlike rows"),
        ({"make_files": NothingIsSynced}, "the store has|a prepare is gone|are gone|is cut short"),
    ],
    ids=lambda one: next(iter(one.values())).__name__ if isinstance(one, dict) else "",
)
def test_a_bug_planted_in_what_ships_is_found(planted: dict[str, Any], noticed: str) -> None:
    with pytest.raises((AssertionError, CorruptionError), match=noticed):
        run_many(**planted)


def test_the_disk_forgets_what_was_not_synced_and_nothing_else() -> None:
    disk = Disk(1 << 20)
    store = file_store(disk)
    assert store.put_if_absent("a/b", b"one")
    assert not store.put_if_absent("a/b", b"two")
    store.write("a/c", [b"th", b"ree"])
    store.write("loose", [b"x" * 100], sync=False)
    for seed in range(20):
        disk.crash(random.Random(seed))
    assert (store.read("a/b"), store.read("a/c")) == (b"one", b"three")
    assert store.list("a") == ["b", "c"]
    assert store.read_if_present("nothing") is None


def test_the_oracle_knows_the_rows_that_were_stored() -> None:
    store = ShippedStore(1, 4, ())
    batch, fence = Batch("q", 4, "offsets"), Fence(1, 1, 1)
    assert rows_of(batch, fence) == rows_of(batch, fence) != rows_of(batch, Fence(1, 1, 2))
    tag = store.tag(batch, fence, 1, ())
    assert tag.segment.rows == tag.segment.input_rows == len(rows_of(batch, fence))
