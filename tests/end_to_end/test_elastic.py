"""Scale, move and kill while epochs follow each other: state and sinks still equal what a batch query says."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import driver
import pytest
from kit import Drill, EpochsGoOn, Stage

pytestmark = pytest.mark.spark


# ------------------------------------------------------------------------------------- scale, move, threads


@pytest.mark.parametrize("shape", ["one", "two"])
def test_scale_up_and_down(stage: Stage, shape: str) -> None:
    def during(going: EpochsGoOn) -> None:
        before = going.committed
        for containers in (4, 2):
            going.run.scale(containers=containers)
            going.settle()
            assert sorted(going.slices().values()) == [16 // containers] * containers
        assert going.committed >= before + 2, "epochs went on meanwhile"

    drill = stage.play(during, shape=shape)
    assert drill.kinds.count("rescaled") == 2
    assert drill.kinds.count("ended") == 2
    assert not {"lost", "failed", "move"} & set(drill.kinds), drill.report["events"]


def test_move(stage: Stage) -> None:
    def during(going: EpochsGoOn) -> None:
        first, second = going.slices()
        table = going.run._shell.machine.routing.table
        some = [number for number, owner in enumerate(table) if owner == first][:3]
        going.run.move(some, to=second)
        going.settle()
        assert going.slices() == {first: 5, second: 11}
        assert {going.run._shell.machine.owner(number) for number in some} == {second}

    drill = stage.play(during)
    assert drill.kinds.count("moved") == 1
    assert not {"lost", "failed", "move", "rescaled", "balanced"} & set(drill.kinds), drill.report["events"]


def test_threads_change_within_epochs(stage: Stage) -> None:
    def during(going: EpochsGoOn) -> None:
        for threads, method in ((2, None), (1, None), (2, "repartition")):
            going.run.scale(threads=threads, method=method)
            assert {one.threads for one in going.alive} == {threads}
            going.epochs(1)
        going.run.scale(threads=1, container=going.alive[0].name)
        assert sorted(one.threads for one in going.alive) == [1, 2]

    drill = stage.play(during)
    assert drill.kinds.count("threads") == 4


def test_stop_and_copy_comes_to_the_same(stage: Stage) -> None:
    def during(going: EpochsGoOn) -> None:
        going.run.scale(containers=3, method="stop-and-copy")
        going.settle()
        to = going.alive[0].name
        going.run.move(range(4), to=to, method="stop-and-copy")
        going.settle()
        assert {going.run._shell.machine.owner(number) for number in range(4)} == {to}

    drill = stage.play(during)
    assert {"rescaled", "moved"} <= set(drill.kinds)


# ------------------------------------------------------------------------------------------------- recovery


def test_one_of_three_is_healed_from_copies(stage: Stage) -> None:
    def during(going: EpochsGoOn) -> None:
        going.settle()
        going.kill(1)

    drill = stage.play(during, containers=3, backups=1)
    after = drill.after("lost")
    assert after.count("activated") >= 2, "both peers take their share"
    assert "restored" not in after
    assert "healed" in after
    assert drill.kinds.count("lost") == 1


def test_two_of_four_at_once_from_memory(stage: Stage) -> None:
    def during(going: EpochsGoOn) -> None:
        going.settle()
        going.kill(2)

    drill = stage.play(during, containers=4, backups=2)
    after = drill.after("lost")
    assert drill.kinds.count("lost") == 2
    assert "activated" in after
    assert "restored" not in after


def test_more_losses_than_backups_come_from_the_store(stage: Stage) -> None:
    def during(going: EpochsGoOn) -> None:
        going.settle()
        going.kill(2)

    drill = stage.play(during, containers=3, backups=1)
    assert drill.kinds.count("lost") == 2
    assert {"activated", "restored"} <= set(drill.after("lost")), "the third has copies of some slices, not of all"


def test_replacements_killed_while_they_start(stage: Stage) -> None:
    """Everything is lost, and those that come instead die before they serve: others are started."""

    def during(going: EpochsGoOn) -> None:
        fleet = going.run._fleet
        going.kill(2)
        deadline = time.monotonic() + 20
        while len(coming := [one.name for one in fleet.all() if one.alive and one.name not in fleet.alive()]) < 2:
            assert time.monotonic() < deadline, "no replacements came"
            time.sleep(0.001)
        for name in coming:
            fleet.kill(name)
        going.epochs(2)

    stage.play(during)


@pytest.mark.parametrize("config", [{"safety": "sync"}, {"safety": None}], ids=["sync", "none"])
def test_without_backups(stage: Stage, config: dict[str, Any]) -> None:
    def during(going: EpochsGoOn) -> None:
        going.run.scale(containers=3)
        going.settle()
        going.kill(1)
        going.epochs(2)
        going.run.scale(containers=2)
        going.settle()

    drill = stage.play(during, **config)
    assert drill.kinds.count("rescaled") == 2
    assert ("checkpoint" in drill.kinds) == (config["safety"] == "sync")
    assert "restored" in drill.after("lost")


@pytest.mark.parametrize(
    ("place", "backups"), [("mid-copy", 0), ("mid-activate", 0), ("mid-activate", 1), ("mid-demote", 1)]
)
def test_source_or_destination_killed_in_a_move(stage: Stage, place: str, backups: int) -> None:
    def during(going: EpochsGoOn) -> None:
        going.settle()
        going.run.scale(containers=3)
        going.die_at(place)
        going.settle()
        assert len(going.slices()) == 3

    drill = stage.play(during, backups=backups)
    assert "lost" in drill.kinds


# -------------------------------------------------------------------------------------------------- reading


def test_state_can_be_read_throughout(stage: Stage) -> None:
    """Every answer is the state after exactly as many files as it says."""
    rows, seen, got = 600, [], []

    def during(going: EpochsGoOn) -> None:
        over = threading.Event()
        state = going.run.state(going.stream)

        def read() -> None:
            while not over.is_set():
                table = state.to_arrow()
                seen.append((state.epoch, sum(table["n"].to_pylist())))
                found = state.get(7)
                got.append((found["_epoch"], found["n"]))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            going.run.scale(containers=3)
            going.settle()
            going.kill(1)
            going.epochs(2)
            going.run.scale(containers=2)
            going.settle()
        finally:
            over.set()
            reader.join()

    drill = stage.play(during, rows=rows)
    assert len(seen) > 5
    assert all(total == epoch * rows for epoch, total in seen), seen
    sevens = drill.counts_of(7)
    assert all(sevens[epoch] == n for epoch, n in got), (got, sevens)
    assert [epoch for epoch, _ in seen] == sorted(epoch for epoch, _ in seen)


# ------------------------------------------------------------------------------------------------ the driver


def test_driver_killed_during_a_rescale(tmp_path: Path) -> None:
    """In dual mode, when some slices live twice; the next driver finds nothing but the store."""
    drill = Drill(tmp_path, files=8, rows=600, keys=300)
    ended = drill.run(rescale={"at": 2, "to": 3, "die_in": "dual"})
    assert ended.killed, ended.error
    ended = drill.run()
    assert ended.code == 0, ended.error
    drill.check()


# ------------------------------------------------------------------------------------------------- at random


def test_random_elastic_drill(stage: Stage, drill_seed: int) -> None:
    """Scales, moves, thread changes and kills at random; ``--rounds N --first-seed S`` runs more of them."""
    print(f"seed {drill_seed}")
    draw = random.Random(drill_seed)
    config = {
        "shape": draw.choice(["one", "two"]),
        "containers": draw.randint(1, 4),
        "threads": draw.randint(1, 2),
        "slices": draw.choice([3, 16, 64]),
        "backups": draw.randint(0, 2),
        "copy_every": draw.choice([1, 3, "500 ms"]),
        "store_every": draw.choice([2, 5, "2 s"]),
        "safety": draw.choice(["delta", "delta", "delta", "sync", None]),
        "push": draw.choice([True, False]),
    }
    print(config)

    def during(going: EpochsGoOn) -> None:
        for _ in range(6):
            deed = driver.anything(going.run, draw)
            print(f"epoch {going.committed}: {deed}")
            time.sleep(draw.choice([0.0, 0.1, 0.5]))
            going.epochs(draw.choice([0, 0, 1, 2]))
        going.settle()

    stage.play(during, **config)
