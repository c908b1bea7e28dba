"""Scale, move and kill while epochs follow each other: state and sinks still equal what a batch query says."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import driver
import pytest
from kit import NEVER, Drill, EpochsGoOn, Stage
from pyspark.sql import SparkSession

import holdfast as hf
from benchmarks.kit import baselines
from holdfast.errors import ContainerError
from holdfast.wire.messages import TakeDigests

pytestmark = pytest.mark.spark


# ------------------------------------------------------------------------------------- scale, move, threads


def test_scale_move_and_threads(stage: Stage) -> None:
    """One wish after the other, each both ways that slices can go, while epochs go on."""

    def during(going: EpochsGoOn) -> None:
        for containers in (4, 2):
            going.run.scale(containers=containers)
            going.epochs(1)  # they go on: before it is settled, or at once afterwards
            going.settle()
            assert sorted(going.slices().values()) == [16 // containers] * containers
        assert not {"move", "moved", "balanced"} & set(kinds(going)), going.run.status().events

        first, second = going.slices()
        some = owned(going, first)[:3]
        going.run.move(some, to=second)
        going.settle()
        assert going.slices() == {first: 5, second: 11}
        assert {going.run._shell.machine.owner(number) for number in some} == {second}
        assert kinds(going).count("rescaled") == 2
        assert kinds(going).count("moved") == 1

        for threads in (2, 1, 2):
            going.run.scale(threads=threads)
            assert {one.threads for one in going.alive} == {threads}
            going.epochs(1)
        going.run.scale(threads=1, container=going.alive[0].name)
        assert sorted(one.threads for one in going.alive) == [1, 2]

        # As others do it: the benchmarks compare with that, and it must be right.
        baselines.repartition(going.run, threads=2)
        baselines.scale_stopped(going.run, 3)
        going.settle()
        assert len(going.alive) == 3

    drill = stage.play(during, shape="two")
    found = Counter(drill.kinds)
    assert (found["rescaled"], found["moved"], found["threads"], found["ended"]) == (3, 1, 4, 2), drill.report["events"]
    assert not {"lost", "failed"} & set(drill.kinds), drill.report["events"]


def test_slices_move_in_a_stream_without_rows(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes by which owner and destination could be compared, so what they hold is."""
    drill = Drill(tmp_path, files=2, rows=600, keys=300, config={"flows": True, "shape": "two"})

    def during(run: hf.Run) -> None:
        run.process_all_available()
        going, epoch = EpochsGoOn(drill, run), run._shell.machine.committed
        first, second = going.slices()
        asked: list[tuple[str, int]] = []
        call = run._fleet.call

        def noting(container: str, message: Any, timeout: float | None = None) -> Any:
            if isinstance(message, TakeDigests):
                asked.append((container, message.epoch))
            return call(container, message, timeout)

        monkeypatch.setattr(run._fleet, "call", noting)
        run.move(owned(going, first)[:3], to=second)
        going.settle()
        assert run._shell.machine.committed == epoch
        assert sorted(asked) == [(first, epoch), (second, epoch)]
        assert going.slices() == {first: 5, second: 11}

    drill.run_here(spark, monkeypatch, during)
    drill.check()


def kinds(going: EpochsGoOn) -> list[str]:
    return [event.kind for event in going.run._shell.history.events]


def owned(going: EpochsGoOn, name: str) -> list[int]:
    return [number for number, owner in enumerate(going.run._shell.machine.routing.table) if owner == name]


# ------------------------------------------------------------------------------------------------- recovery


def test_losses_are_healed_from_copies_and_beyond_them_from_the_store(stage: Stage) -> None:
    """One copy of each slice: one of three may go, and both others take their share; then two go at once."""

    def during(going: EpochsGoOn) -> None:
        going.settle()
        going.kill(1)
        going.settle()
        after = kinds(going)[kinds(going).index("lost") :]
        assert after.count("activated") >= 2, "both peers take their share"
        assert "restored" not in after
        assert "healed" in after
        going.kill(2)

    drill = stage.play(during, containers=3, backups=1)
    assert drill.kinds.count("lost") == 3
    after = drill.kinds[[at for at, kind in enumerate(drill.kinds) if kind == "lost"][1] :]
    assert {"activated", "restored"} <= set(after), "the third has copies of some slices, not of all"


def test_two_of_four_at_once_from_memory(stage: Stage) -> None:
    def during(going: EpochsGoOn) -> None:
        going.settle()
        going.kill(2)

    drill = stage.play(during, containers=4, backups=2)
    after = drill.after("lost")
    assert drill.kinds.count("lost") == 2
    assert "activated" in after
    assert "restored" not in after


def test_replacements_killed_while_they_start(stage: Stage) -> None:
    """Everything is lost, and those that come instead die before they serve: others are started."""

    def during(going: EpochsGoOn) -> None:
        fleet = going.run._fleet
        going.kill(2)
        deadline, killed = time.monotonic() + NEVER, 0
        while killed < 2:
            assert time.monotonic() < deadline, "no replacements came"
            if len(alive := fleet.alive()) == 2:  # they were quicker than we
                going.kill(2)
            for coming in [one.name for one in fleet.all() if one.alive and one.name not in alive]:
                with contextlib.suppress(ContainerError):  # it serves since
                    fleet.kill(coming)
                    killed += 1
            time.sleep(0.001)
        going.epochs(2)

    stage.play(during)


@pytest.mark.parametrize(
    "config",
    [{"safety": "sync"}, pytest.param({"safety": None}, marks=pytest.mark.heavy)],
    ids=["sync", "none"],
)
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
    ("places", "backups"), [(("mid-copy", "mid-activate"), 0), (("mid-activate", "mid-demote"), 1)]
)
def test_source_or_destination_killed_in_a_move(stage: Stage, places: tuple[str, str], backups: int) -> None:
    def during(going: EpochsGoOn) -> None:
        for place, containers in zip(places, (3, 4), strict=True):
            going.settle()
            going.die_at(place, lambda containers=containers: going.run.scale(containers=containers))  # type: ignore[misc]
            going.settle()
            assert len(going.slices()) == containers

    drill = stage.play(during, backups=backups)
    assert drill.kinds.count("lost") >= 2


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

    deeds: list[list[str]] = []

    def during(going: EpochsGoOn) -> None:
        for _ in range(6):
            deed = driver.anything(going.run, draw)
            print(f"epoch {going.committed}: {deed}")
            deeds.append(deed.split())
            time.sleep(draw.choice([0.0, 0.1, 0.5]))
            going.epochs(draw.choice([0, 0, 1, 2]))
        going.settle()
        scaled = [int(number) for deed, number in (one for one in deeds if one[0] == "scale")]
        assert len(going.alive) == (scaled or [config["containers"]])[-1], "the last wish counts"

    drill = stage.play(during, **config)
    noticed(drill, deeds)


def noticed(drill: Drill, deeds: list[list[str]]) -> None:
    """Each deed left its mark in the story of the run."""
    events = drill.report["events"]
    for deed, *rest in deeds:
        if deed == "kill":
            for name in [one for one in rest if one != "all"]:
                told = [kind for kind, text in events if f"container {name} " in f"{text} "]
                assert {"lost", "ended"} & set(told), (name, events)
    assert drill.kinds.count("threads") >= sum(deed == "threads" for deed, *_ in deeds), events
    moves = drill.kinds.count("moved") + drill.kinds.count("move")
    assert moves or not any(deed == "move" for deed, *_ in deeds), events
