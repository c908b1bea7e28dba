"""Jobs that come and go, again and again: nothing of that is left, in the store or in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit import NEVER, write_files
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.log.ledger import Ledger
from holdfast.log.store import Store

pytestmark = pytest.mark.spark

EVERY = 4
"""Epochs from one checkpoint to the next."""


def draw(base: Path, spark: SparkSession) -> hf.Hub:
    hub = hf.Hub("shop", spark, store=base / "store")
    frame = spark.readStream.schema("k bigint, v bigint").option("maxFilesPerTrigger", 1).parquet(str(base / "input"))
    hub.read(frame, name="rows")
    hub.job("totals").stream("rows").key_by("k", name="sums").agg(n=hf.count())
    return hub


def cycle(hub: hf.Hub, run: hf.HubRun, number: int, name: str) -> None:
    job = hub.job(name)
    job.sql(f"SELECT k % {2 + number % 5} AS rest, count(*) AS n FROM rows GROUP BY k % {2 + number % 5}", name="rests")
    run.add(job)
    run.remove(name)


def graphs(base: Path) -> list[int]:
    return Ledger(Store(str(base / "store")), "main").graph_versions()


def resident(pid: int) -> int:
    """Bytes in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def cycles(base: Path, spark: SparkSession, count: int) -> None:
    write_files(base / "input", 1, 100, keys=10, seed=3)
    terms = hf.Delta(store_every=EVERY)
    hub = draw(base, spark)
    with hub.start(containers=2, slices=4, safety=terms) as run:
        run.process_all_available()
        left: list[int] = []
        used: list[int] = []
        pids = [os.getpid(), *(one.pid for one in run.status().containers)]
        for number in range(count):
            cycle(hub, run, number, f"late{number % 3}")
            left.append(len(graphs(base)))
            if number % 100 == 99:
                used.append(sum(map(resident, pids)))
        assert max(left) < 12 * EVERY, "it takes two checkpoints until a graph goes"
        assert left[-1] < 2 * count
        if len(used) > 3:
            assert used[-1] < 1.05 * used[2], used
        made = 2 * count
        assert [change.version for change in run.history()] == [*range(1, made + 1)][-100:]
        run.kill(run.status().containers[0].name)
        assert run.await_settled(NEVER)
        held = run.state("totals/sums").to_arrow().num_rows
        stay = hub.job("late0")
        stay.sql("SELECT k, max(v) AS most FROM rows GROUP BY k", name="rests")
        run.add(stay)
        write_files(base / "more", 1, 100, keys=10, seed=4)
        (base / "more" / "0000.parquet").rename(base / "input" / "0001.parquet")
        run.process_all_available()
        rows = run.state("late0/rests").to_arrow().num_rows
        assert rows > 0
    names = Ledger(Store(str(base / "store")), "main").graphs().notes()[0]
    assert names["late0/rests"] == f"late0/rests~{1 + -(-count // 3)}", "no name is given twice"
    with draw(base, spark).start(containers=1, slices=4, safety=terms) as run:
        assert run.state("totals/sums").to_arrow().num_rows >= held
        assert run.state("late0/rests").to_arrow().num_rows == rows
        assert len(run.history()) == min(100, made + 1)


def test_files_of_graphs_go_that_nothing_is_in_terms_of(tmp_path: Path, spark: SparkSession) -> None:
    cycles(tmp_path, spark, 15)


@pytest.mark.heavy
def test_a_thousand_jobs_that_came_and_went_leave_nothing(tmp_path: Path, spark: SparkSession) -> None:
    cycles(tmp_path, spark, 1000)
