"""Kill anything anywhere: state and sinks still equal what a batch query over the same files says."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import incubator
import pytest
from kit import NEVER, Drill, committed_files, equal
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.driver import sizes

pytestmark = pytest.mark.spark
PUSHED = {"preaggregate": False, "push": True}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({}, id="plain", marks=pytest.mark.heavy),
        pytest.param({"preaggregate": True}, id="preaggregated", marks=pytest.mark.heavy),
        pytest.param({**PUSHED, "slices": 7, "containers": 3}, id="pushed", marks=pytest.mark.heavy),
        pytest.param({"slices": 300, "containers": 1, "shape": "two"}, id="many-slices", marks=pytest.mark.heavy),
    ],
)
def test_without_faults(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, config: dict[str, object]
) -> None:
    drill = Drill(tmp_path, config=config)
    drill.run_here(spark, monkeypatch)
    drill.check()


@pytest.mark.parametrize(
    ("shape", "config"),
    [
        pytest.param("one", {"preaggregate": True}, marks=pytest.mark.heavy),
        ("two", {**PUSHED, "slices": 7, "containers": 3}),
    ],
    ids=["one", "two"],
)
def test_containers_and_spark_workers_killed(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    task_faults: Path,
    shape: str,
    config: dict[str, object],
) -> None:
    """A container in an intake, twice in applying, twice in a sink; and Spark's own workers.

    A task whose worker dies is tried again by Spark; its first segment, if it wrote one, is garbage.
    """
    monkeypatch.setattr(sizes, "SMALL_BYTES", 0 if shape == "one" else 1 << 20)  # by scan, or in one answer
    drill = Drill(tmp_path, files=7, config={"shape": shape, "strikes": str(tmp_path / "faults"), **config})
    drill.plant(*[f"container@{place}" for place in ("mid-apply@2", "mid-sink@3", "mid-apply@5", "mid-sink@6")])
    for number in (2, 4, 7):
        (task_faults / f"task@in-intake@{number}").touch()

    def aim(run: hf.Run) -> None:
        victim = run.status().containers[0]
        (tmp_path / "faults" / "strike@77").write_text(str(victim.pid))

    drill.run_here(spark, monkeypatch, aim)
    assert drill.planted == []
    assert list(task_faults.iterdir()) == []
    assert drill.kinds.count("lost") == 5
    drill.check()


def test_every_container_killed_at_once_then_one_falls_silent(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The silent one is stopped, not dead: its port still listens, nobody answers. It is killed and replaced."""
    incubator.let_silence_last(monkeypatch, kill=5.0)
    drill = Drill(tmp_path)

    def strike(run: hf.Run) -> None:
        machine = run._shell.machine
        assert run._shell.wait_for(lambda: machine.committed >= 2, NEVER)
        for container in run.status().containers:
            run.kill(container.name)
        assert run._shell.wait_for(lambda: machine.committed >= 4, NEVER)
        os.kill(next(one.pid for one in run.status().containers if one.alive), signal.SIGSTOP)

    drill.run_here(spark, monkeypatch, strike)
    assert drill.kinds.count("lost") == 3
    drill.check()


@pytest.mark.long
def test_driver_killed_where_it_matters_most(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fixed, what the sinks have and the log has not, what Spark does not know of. The last driver is here."""
    drill = killed_at(tmp_path, ["after-prepare", "after-sinks", "after-commit"], 2)
    drill.run_here(spark, monkeypatch)
    drill.check()


@pytest.mark.drivers
@pytest.mark.parametrize("prefetch", [0, 1])
def test_driver_killed_at_every_place(tmp_path: Path, prefetch: int) -> None:
    """Then in a rescale, when some slices live twice."""
    places = [place for place in faults.PLACES if place != "in-intake"]
    drill = killed_at(tmp_path, places, 6, prefetch=prefetch)
    ended = drill.run(rescale={"at": len(places), "to": 3, "die_in": "dual"})
    assert ended.killed, ended.error
    ended = drill.run()
    assert ended.code == 0, ended.error
    drill.check()


@pytest.mark.drivers
@pytest.mark.parametrize("prefetch", [0, 1])
def test_driver_killed_around_a_sink_over_the_source(tmp_path: Path, prefetch: int) -> None:
    """Between the note of the batch, its sinks and its block: every row is in each of them once."""
    places = [*faults.OVER_SOURCE, "mid-sink", "after-block"]
    drill = killed_at(tmp_path, places, 1, shape="over source", prefetch=prefetch)
    ended = drill.run()
    assert ended.code == 0, ended.error
    drill.check()
    inputs = f"read_parquet('{tmp_path}/input/*.parquet')"
    raw, keys = (committed_files(tmp_path / "out" / name) for name in ("raw", "keys"))
    equal(f"SELECT k, v FROM read_parquet({raw})", f"SELECT k, v FROM {inputs}")
    equal(f"SELECT k::BIGINT AS k FROM read_json({keys})", f"SELECT k FROM {inputs}")


def killed_at(tmp_path: Path, places: list[str], after: int, **config: Any) -> Drill:
    """An epoch for each, and some ``after`` them. Each driver goes on where the one before died."""
    drill = Drill(tmp_path, files=len(places) + after, rows=1500, config={"shape": "all", **config})
    drill.plant(*[f"driver@{place}@{number}" for number, place in enumerate(places, 1)])
    for place in places:
        ended = drill.run()
        assert ended.killed, f"{place}: {ended.error}"
    assert drill.planted == []
    return drill


@pytest.mark.drivers
def test_driver_killed_in_intake(tmp_path: Path) -> None:
    drill = Drill(tmp_path, files=4, config={"strikes": str(tmp_path / "faults")})
    ended = drill.run(strike_driver_at=77)
    assert ended.killed, ended.error
    ended = drill.run()
    assert ended.code == 0, ended.error
    drill.check()


def test_several_sources_in_one_epoch(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    drill = Drill(tmp_path, config={"shape": "sources"})
    drill.plant("container@mid-apply@3")
    drill.run_here(spark, monkeypatch)
    assert drill.planted == []
    drill.check_state()


def test_random_drill(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, task_faults: Path, drill_seed: int
) -> None:
    """Faults of every kind at random places; ``--rounds N --first-seed S`` runs more of them."""
    print(f"seed {drill_seed}")
    draw = random.Random(drill_seed)
    config = {
        "shape": draw.choice(["one", "two"]),
        "containers": draw.randint(1, 4),
        "slices": draw.choice([1, 5, 16, 64]),
        "store_every": draw.randint(1, 4),
        "push": draw.choice([True, False]),
        "preaggregate": draw.choice([True, False, "auto"]),
    }
    print(config)
    drill = Drill(tmp_path, files=8, rows=draw.choice([50, 3000]), keys=draw.choice([10, 400]), seed=drill_seed)
    drill.config.update(config)
    monkeypatch.setattr(sizes, "SMALL_BYTES", draw.choice([0, 1 << 20]))
    for number in draw.sample(range(1, 9), 4):
        drill.plant(f"container@{draw.choice(['mid-apply', 'mid-sink'])}@{number}")
    of_task = task_faults / f"task@in-intake@{draw.randint(1, 8)}"
    of_task.touch()
    planted, failed = drill.planted, failed_tasks(spark)
    drill.run_here(spark, monkeypatch)
    drill.check()
    # Each was injected, if its epoch came (Spark may take two files at once), and somebody noticed.
    epochs = drill.report["epoch"]
    died = [fault for fault in planted if int(fault.rpartition("@")[2]) <= epochs]
    assert drill.planted == sorted(set(planted).difference(died))
    assert drill.kinds.count("lost") == len(died) >= 3, drill.report["events"]
    if not of_task.exists():
        assert failed_tasks(spark) > failed
    else:
        of_task.unlink()
        assert epochs < int(of_task.name.rpartition("@")[2])


def failed_tasks(spark: SparkSession) -> int:
    """As Spark itself counts them, of the whole session."""
    return int(spark._jsc.sc().statusStore().executorSummary("driver").failedTasks())  # type: ignore[attr-defined]


@pytest.mark.heavy
def test_a_plan_that_is_not_deterministic(tmp_path: Path) -> None:
    """Values drawn at random: whatever the log says is the truth, also for an epoch finished by another driver."""
    drill = Drill(tmp_path, files=5, config={"random": True, "preaggregate": False})
    drill.plant("container@mid-apply@2", "driver@after-prepare@3", "driver@after-segments@4")
    for _ in range(2):
        ended = drill.run(store_every=100)
        assert ended.killed, ended.error
    ended = drill.run(store_every=100)
    assert ended.code == 0, ended.error
    logged = drill.logged_rows()
    equal(
        f"SELECT k, n, total FROM '{tmp_path}/result/one.parquet'",
        "SELECT k0 k, count(*) n, sum(v0) total FROM logged GROUP BY k0",
        logged=logged,
    )
    files = committed_files(tmp_path / "out" / "parquet")
    equal(
        f"SELECT k, n, total, _epoch FROM read_parquet({files})",
        "SELECT a.k0 k, count(*) n, sum(b.v0) total, a.epoch _epoch FROM (SELECT DISTINCT k0, epoch FROM logged) a "
        "JOIN logged b ON a.k0 = b.k0 AND b.epoch <= a.epoch GROUP BY a.k0, a.epoch",
        logged=logged,
    )
