"""Eventual checkpoints on real Spark: whatever dies, state and sinks equal what a batch query says."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import driver
import pyarrow.parquet as pq
import pytest
from kit import NEVER, Drill
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.log import footprints
from holdfast.log.janitor import Janitor
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store

pytestmark = pytest.mark.spark
OFTEN = {"Q": 1.2, "U": 2_000, "CI": "80 ms", "CP": "100 ms", "age": "1 ms"}
"""Every footprint is too old in the next epoch: each slice writes one unit at least, then as many as there is time."""
EVENTUAL = {"safety": "eventual", "shape": "all", "eventual": OFTEN}
"""A running aggregate, windows, groups of their results and the best of those: three levels."""


FEW = {"containers": 1, "slices": 4}


def ledger(drill: Drill) -> Ledger:
    return Ledger(Store(str(drill.base / "store")), "main")


def newest(drill: Drill) -> footprints.Footprints:
    commit = ledger(drill).last_committed()
    assert commit is not None
    assert commit.footprints is not None
    return commit.footprints


def moved_on(drill: Drill, beyond: int) -> bool:
    """Whether checks have moved the oldest footprint of a slice beyond that epoch. How many slices they get round to is
    a matter of time, and of who else has the machine."""
    heads = [head for of in newest(drill).heads.values() for head in of]
    return any(oldest > beyond for _, living, oldest in heads if living)


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
    assert moved_on(drill, beyond=1)


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


@pytest.mark.drivers
def test_an_epoch_that_was_begun_with_another_safety_is_finished_first(tmp_path: Path) -> None:
    """Also if the driver dies as it turns."""
    drill = Drill(tmp_path, files=3, rows=400, config={**EVENTUAL, **FEW, "safety": "delta"})
    for place, other in (
        ("after-prepare@2", "eventual"),
        ("before-graph@1", "eventual"),
        ("after-graph@1", "eventual"),
    ):
        drill.plant(f"driver@{place}")
        assert drill.run().killed
        drill.config["safety"] = other
    ended = drill.run()
    assert ended.code == 0, ended.error
    drill.check()
    assert newest(drill).base == 1


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
    assert newest(drill).oldest > 3
    assert min(int(name[:10]) for name in held.list("log")) > 1
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
        draw(job, job.read(rows).key_by("k"))  # type: ignore[operator]
        with pytest.raises(hf.PlanError) as caught:
            job.start(safety=hf.Eventual(), **options)  # type: ignore[arg-type]
        assert not (tmp_path / name / "main").exists()
        return str(caught.value)

    def bloom(_: hf.Job, rows: hf.KeyedStream) -> None:
        rows.distinct(error=0.01, expected=100).write("noop")

    def early(_: hf.Job, rows: hf.KeyedStream) -> None:
        rows.window(hf.tumbling("10 s"), time="t", early="5 s").agg(n=hf.count()).write("noop")

    def clocked(_: hf.Job, rows: hf.KeyedStream) -> None:
        rows.window(hf.sliding("10 s", every="5 s")).agg(n=hf.count()).write("noop")

    def plain(_: hf.Job, rows: hf.KeyedStream) -> None:
        rows.agg(n=hf.count()).write("noop")

    assert "distinct(time=" in refused("bloom", bloom)
    assert "early=" in refused("early", early)
    assert "event time" in refused("clocked", clocked)
    assert "ring" in refused("ring", plain, ring=True)
    assert "Chained" in refused("chained", plain, recovery=hf.Chained())


OTHERS = ({"safety": "delta"}, {"safety": "eventual", "eventual": OFTEN}, {"safety": "sync"})


def test_a_job_goes_on_with_another_safety_and_back(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of the epoch in between has every unit that the log does not have yet."""
    drill = Drill(tmp_path, files=2, rows=600, config={**FEW, "shape": "all", "safety": "delta"})
    drill.run_here(spark, monkeypatch)
    for number, other in enumerate((*OTHERS, OTHERS[1], OTHERS[1])):
        drill.config |= other
        drill.add_file()
        drill.add_file()
        drill.plant(f"container@mid-apply@{2 * number + 4}")
        drill.run_here(spark, monkeypatch)
        assert drill.planted == []
        assert "lost" in drill.kinds
        drill.check()
        commit = ledger(drill).last_committed()
        assert commit is not None
        assert (commit.footprints is not None) == (other["safety"] == "eventual")
        told = [text for kind, text in drill.report["events"] if kind == "changed"]
        assert bool(told) == (number < 4 and number > 0), told


def test_a_job_is_changed_and_its_units_stay(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = Drill(tmp_path, files=2, rows=400, config={**FEW, "safety": "eventual", "shape": "two"})

    def look(run: hf.Run) -> None:
        run._shell.wait_for(lambda: run._shell.machine.committed >= 1, NEVER)
        for refused in (run.snapshot, run.scrub):
            with pytest.raises(hf.PlanError, match="not there under"):
                refused()

    drill.run_here(spark, monkeypatch, look)
    drill.check()
    drill.config["shape"] = "one"
    for epoch in (3, 4):
        drill.add_file()
        drill.plant(f"container@mid-apply@{epoch}")
        drill.run_here(spark, monkeypatch)
        assert drill.planted == []
        drill.check()
    assert newest(drill).base == 2


def test_a_function_that_raised_is_mended(tmp_path: Path, spark: SparkSession) -> None:
    """The epoch that failed is finished by the new one, over a checkpoint of what the log had before it."""
    drill = Drill(tmp_path, files=3, rows=200, keys=40)
    files = [pq.read_table(path).select(["k", "v"]).to_pylist() for path in sorted((tmp_path / "input").iterdir())]
    bad = min({row["v"] for row in files[2] if row["v"]} - {row["v"] for file in files[:2] for row in file})

    def job(forgiving: bool) -> tuple[hf.Job, hf.StageStream]:
        def counted(key: int, rows: list[dict[str, int]], context: Any) -> Any:
            for row in rows:
                if row["v"] == bad and not forgiving:
                    raise ValueError("a bad one")
                context.state.n += 1
            yield {"k": key, "n": context.state.n}

        made = hf.Job("mended", spark, store=str(tmp_path / "store"))
        rows = made.read(driver.source(spark, str(tmp_path / "input"))).key_by("k", name="counted")
        stage = rows.process(counted, "k bigint, n bigint", state={"n": hf.states.value("bigint", default=0)})
        stage.write("noop")
        return made, stage

    options: Any = {**FEW, "safety": hf.Eventual(**OFTEN), "trigger": {"availableNow": True}}  # type: ignore[arg-type]
    with pytest.raises(hf.FunctionError), job(False)[0].start(**options) as run:
        run.await_termination()
    mended, stage = job(True)
    with mended.start(**options) as run:
        run.await_termination()
        found = {row["k"]: row["n"] for row in run.state(stage).to_arrow().to_pylist()}
        assert "changed" in [event.kind for event in run.status().events]
    assert found == Counter(row["k"] for file in files for row in file)
    assert newest(drill).base == 2
