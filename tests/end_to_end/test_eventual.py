"""Eventual checkpoints on real Spark: whatever dies, state and sinks equal what a batch query says."""

from __future__ import annotations

import random
from pathlib import Path

import driver
import pytest
from kit import NEVER, Drill
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.log import footprints
from holdfast.log.janitor import Janitor
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store

pytestmark = pytest.mark.spark
OFTEN = {"Q": 1.2, "U": 2_000, "CI": "30 ms", "CP": "100 ms"}
EVENTUAL = {"safety": "eventual", "shape": "all", "eventual": OFTEN}
"""A running aggregate, windows, groups of their results and the best of those: three levels."""


def ledger(drill: Drill) -> Ledger:
    return Ledger(Store(str(drill.base / "store")), "main")


def newest(drill: Drill) -> footprints.Footprints:
    commit = ledger(drill).last_committed()
    assert commit is not None
    assert commit.footprints is not None
    return commit.footprints


def test_containers_killed(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """In applying and in a sink. What comes back comes from the log: there is no copy and no checkpoint."""
    drill = Drill(tmp_path, files=7, config=EVENTUAL)
    drill.plant("container@mid-apply@2", "container@mid-sink@3", "container@mid-apply@5", "container@mid-sink@6")
    drill.run_here(spark, monkeypatch)
    assert drill.planted == []
    assert drill.kinds.count("lost") == 4
    assert "restored" in drill.after("lost")
    assert not {"copied", "checkpoint"} & set(drill.kinds)
    drill.check()
    assert newest(drill).oldest > 1, "checks move the oldest footprint on"


@pytest.mark.heavy
@pytest.mark.parametrize("containers", [1, 3])
def test_all_containers_killed_at_once(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, containers: int
) -> None:
    drill = Drill(tmp_path, files=8, config={**EVENTUAL, "containers": containers, "flows": True})

    def strike(run: hf.Run) -> None:
        machine = run._shell.machine
        for epoch in (2, 5):
            run._shell.wait_for(lambda epoch=epoch: machine.committed >= epoch, NEVER)  # type: ignore[misc]
            for one in run.status().containers:
                if one.alive:
                    run.kill(one.name)

    drill.run_here(spark, monkeypatch, strike)
    assert drill.kinds.count("lost") >= 2
    drill.check()


@pytest.mark.drivers
@pytest.mark.parametrize("place", ["after-prepare@3", "mid-apply@4", "after-sinks@3", "after-commit@4"])
def test_driver_killed(tmp_path: Path, place: str) -> None:
    drill = Drill(tmp_path, config=EVENTUAL)
    drill.plant(f"driver@{place}")
    ended = drill.run()
    assert ended.killed, ended.error
    ended = drill.run()
    assert ended.code == 0, ended.error
    drill.check()


@pytest.mark.heavy
def test_a_job_that_goes_on_keeps_no_more_than_it_needs(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started again and again: each start finds all in the log, which is cut below what the next one needs."""
    monkeypatch.setattr("holdfast.log.janitor.KEPT", 2)
    drill = Drill(tmp_path, files=3, config=EVENTUAL)
    for _ in range(4):
        drill.run_here(spark, monkeypatch)
        Janitor(Store(str(tmp_path / "store")), "main", 1).round(0)
        for _ in range(3):
            drill.add_file()
    held = ledger(drill).section
    assert newest(drill).oldest >= 9
    assert min(int(name[:10]) for name in held.list("commit")) > 4
    drill.run_here(spark, monkeypatch)
    drill.check()


@pytest.mark.heavy
def test_scaled_and_moved_while_containers_die(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = Drill(tmp_path, files=6, config={**EVENTUAL, "flows": True})
    draw = random.Random(5)

    def unrest(run: hf.Run) -> None:
        machine = run._shell.machine
        with drill.flowing(lambda: machine.committed, most=25):
            while machine.committed < 20:
                before = machine.committed
                driver.anything(run, draw)
                run._shell.wait_for(lambda before=before: machine.committed > before, 30)  # type: ignore[misc]
        assert run.await_settled(NEVER), run.status()

    drill.run_here(spark, monkeypatch, unrest)
    drill.check()


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, spark: SparkSession) -> None:
    rows = spark.readStream.schema("k bigint, v bigint, t timestamp").parquet(str(tmp_path))

    def refused(name: str, draw: object, **options: object) -> str:
        job = hf.Job(name, spark, store=str(tmp_path / name))
        draw(job, job.source(rows).key_by("k"))  # type: ignore[operator]
        with pytest.raises(hf.PlanError) as caught:
            job.start(safety=hf.Eventual(), **options)  # type: ignore[arg-type]
        assert not (tmp_path / name / "main").exists()
        return str(caught.value)

    said = refused("bloom", lambda job, rows: job.sink(rows.distinct(error=0.01, expected=100)).memory("bloom"))
    assert "Bloom" in said
    assert "distinct(time=" in said
