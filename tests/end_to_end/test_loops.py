"""Loops on real Spark: rows that go round until nothing is left, against oracles over the files, with nobody dying and
with whoever can. One loop of these jobs counts rows, so that one that was taken twice, or never, shows."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import driver
import pyarrow.parquet as pq
import pytest
from driver import source
from kit import NEVER, Drill, EpochsGoOn, committed_files, write_files
from loop_oracles import components
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import holdfast as hf
from holdfast.driver import sizes
from holdfast.log.janitor import Janitor
from holdfast.log.ledger import Ledger
from holdfast.log.snapshots import Snapshots
from holdfast.log.store import Store

pytestmark = pytest.mark.spark
register_pickle_by_value(sys.modules[__name__])
NODES, LIVES = 400, 5


def drilled(base: Path, **more: Any) -> Drill:
    config = {"shape": "loops", "slices": 8, "nodes": NODES, "lives": LIVES, **more.pop("config", {})}
    return Drill(base, **{"files": 3, "rows": 60, "keys": NODES, **more}, config=config)


def rows_of(drill: Drill) -> list[dict[str, Any]]:
    files = sorted((drill.base / "input").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist() if row["v"] is not None]


def came_by(rows: list[dict[str, Any]], lives: int) -> Counter[int]:
    """How many rows each key must have seen."""
    return Counter(row["k"] + step for row in rows for step in range(row["v"] % lives + 1))


def check(drill: Drill, *, settled: bool = False) -> None:
    rows, result = rows_of(drill), drill.base / "result"
    lives = drill.config["lives"]
    onward = pq.read_table(result / "onward.parquet").to_pylist()
    assert {row["k"]: row["seen"] for row in onward} == came_by(rows, lives)
    bundles = {row["product"]: row["bundle"] for row in pq.read_table(result / "bundles.parquet").to_pylist()}
    assert bundles == components((row["k"], row["v"] % drill.config["nodes"]) for row in rows)
    written = [
        (row["product"], row["bundle"])
        for file in committed_files(drill.base / "out" / "bundles")
        for row in pq.read_table(file).to_pylist()
    ]
    assert len(written) == len(set(written)), "a label only falls: each is put out once"
    assert bundles.items() <= set(written)
    passed = [row for file in committed_files(drill.base / "out" / "onward") for row in pq.read_table(file).to_pylist()]
    assert Counter((row["k"], row["lives"]) for row in passed) == Counter(
        (row["k"] + step, row["v"] % lives - step) for row in rows for step in range(1, row["v"] % lives + 1)
    )
    ledger = Ledger(Store(str(drill.base / "store")), "main")
    newest = ledger.last_committed()
    assert newest is not None
    assert newest.waiting == ()
    waited = False
    for epoch in range(1, newest.fence.epoch + 1) if settled else ():
        prepare, commit = ledger.get_prepare(epoch, 1), ledger.get_commit(epoch)
        assert prepare is not None
        assert commit is not None
        assert not (waited and prepare.ranges["source"]), "rows of the source wait until the loops are dry"
        waited = bool(commit.waiting)


def test_rows_go_round_until_nothing_is_left_also_where_the_log_is_replayed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = drilled(tmp_path, config={"safety": "none", "settle": True})
    drill.plant("container@mid-apply@3")
    seen: list[hf.Status] = []

    def act(run: hf.Run) -> None:
        run.await_termination()
        seen.append(run.status())

    drill.run_here(spark, monkeypatch, act)
    assert not drill.planted
    check(drill, settled=True)
    assert [(loop.name, loop.backlog) for loop in seen[0].loops] == [("told", 0), ("on", 0)]
    assert seen[0].loops["on"].rounds == LIVES - 1
    assert "  loop on: " in str(seen[0])


@pytest.mark.drivers
@pytest.mark.parametrize("settle", [False, True])
def test_drivers_die_between_the_rows_of_a_loop_and_their_epochs(tmp_path: Path, settle: bool) -> None:
    """Each after another step of an epoch that has rows to go round: none is lost, and none comes twice."""
    places = ("after-loop", "after-sinks", "after-commit", "after-prepare", "mid-sink", "after-loop")
    drill = drilled(tmp_path, files=4, config={"settle": settle})
    for epoch, place in enumerate(places, 2):
        drill.plant(f"driver@{place}@{epoch}")
    for _ in places:
        drill.run(settle=settle)
    assert not drill.planted
    ended = drill.run(settle=settle)
    assert ended.code == 0, ended
    check(drill, settled=settle)


@pytest.mark.heavy
@pytest.mark.parametrize("safety", ["delta", "shards", "sync", "none"])
def test_containers_die_and_slices_move_while_rows_go_round_for_long(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, safety: str
) -> None:
    config = {"flows": True, "safety": safety, "lives": 150}
    drill = drilled(tmp_path, files=1, rows=40, config=config)

    def act(run: hf.Run) -> None:
        going = EpochsGoOn(drill, run)
        going.epochs(5)
        going.kill(1)
        going.epochs(5)
        run.scale(containers=3)
        going.settle()
        run.move(range(4), to=going.alive[-1].name)
        run.move(range(4, 8), to=going.alive[0].name)
        going.settle()
        going.epochs(2)
        assert run.status().loops["on"].backlog > 0, "it has not run dry meanwhile"
        drill.add_file()  # a block takes what goes round along
        going.kill(0)
        going.epochs(3)

    drill.run_here(spark, monkeypatch, act)
    check(drill)


class Shop:
    """Files of rows that go onward, and jobs over them in stores of their own."""

    def __init__(self, base: Path, spark: SparkSession, rows: int, lives: int) -> None:
        self.base, self.spark, self.lives = base, spark, lives
        write_files(base / "input", 1, rows, 20_000, 7)

    def job(self, name: str, lives: int | None = None, **more: Any) -> tuple[hf.Job, hf.StageStream]:
        job = hf.Job(name, self.spark, store=self.base / name)
        rows = job.read(source(self.spark, str(self.base / "input"))).where("v IS NOT NULL")
        on = job.loop("k bigint, lives bigint", name="on", **more)
        own = rows.select("k", F.expr(f"pmod(v, {lives or self.lives})").alias("lives"))
        onward = own.union(on).key_by("k", name="onward").process(driver.Onward, "k bigint, lives bigint")
        on.close(onward)
        return job, onward

    def check(self, run: hf.Run, stage: hf.StageStream) -> None:
        rows = [row for file in (self.base / "input").iterdir() for row in pq.read_table(file).to_pylist()]
        truth = came_by([row for row in rows if row["v"] is not None], self.lives)
        assert {row["k"]: row["seen"] for row in run.state(stage).to_arrow().to_pylist()} == truth


@pytest.mark.heavy
def test_snapshots_and_forks_carry_what_goes_round_in_segments_of_tasks_too(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "SMALL_BYTES", 1)  # nothing is few: Spark's tasks take it all in
    shop = Shop(tmp_path, spark, rows=30_000, lives=30)
    job, stage = shop.job("first")
    safety = hf.Delta(store_every=2)
    with job.start(containers=2, slices=4, safety=safety) as run:
        run._shell.wait_for(lambda: run._shell.machine.committed >= 3, NEVER)
        snapshot = run.snapshot()
        ledger = Ledger(Store(str(tmp_path / "first")), "main")
        commit = ledger.get_commit(snapshot.epochs["main"])
        assert commit is not None
        assert commit.waiting_files, "rows are in files that the snapshot must hold"
        run.process_all_available()
        assert run.status().loops["on"].backlog == 0
        shop.check(run, stage)
        run._shell._upkeep.tidy()
        assert all(ledger.section.exists(ref.name) for ref in commit.waiting_files), "they stay as long as it does"
        for older in ledger.prepares(1, snapshot.epochs["main"] - 3):
            assert not any(ref.name and ledger.section.exists(ref.name) for ref in older.segments), "others go"
    forked, mine = shop.job("second")
    with forked.start(containers=2, safety=safety, fork=snapshot) as run:
        run.process_all_available()
        shop.check(run, mine)
    janitor = Janitor(ledger.store, "main", 9)
    janitor.round(1 << 40)
    assert all(ledger.section.exists(ref.name) for ref in commit.waiting_files)
    Snapshots(ledger.store).forget(snapshot.number)
    janitor.round(1 << 40)
    assert not any(ledger.section.exists(ref.name) for ref in commit.waiting_files)


@pytest.mark.heavy
def test_a_stop_leaves_what_goes_round_to_the_next_start_and_a_changed_job_has_to_wait_for_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    shop = Shop(tmp_path, spark, rows=200, lives=60)
    job, stage = shop.job("shop")
    with job.start(containers=1, slices=4) as run:
        run._shell.wait_for(lambda: run._shell.machine.committed >= 4, NEVER)
        began = time.monotonic()
        run.stop()
        assert time.monotonic() - began < 10, "a stop does not wait for loops"
    ledger = Ledger(Store(str(tmp_path / "shop")), "main")
    stopped = ledger.last_committed()
    assert stopped is not None
    assert sum(one.rows for one in stopped.waiting) > 0
    changed = hf.Job("shop", spark, store=tmp_path / "shop")
    rows = changed.read(source(spark, str(tmp_path / "input")))
    rows.key_by("k", name="onward").process(driver.Onward, "k bigint, lives bigint")
    with pytest.raises(hf.StoreError, match="rows wait in its loop 'on'") as told:
        changed.start()
    assert "drain=True" in told.value.todo
    bounded, _ = shop.job("shop", max_rounds=3)
    with bounded.start(containers=1) as run, pytest.raises(hf.PlanError, match="Loop 'on' has not run dry in 3 epochs"):
        run.process_all_available()
    again = ledger.last_committed()
    assert again is not None
    assert again.fence.epoch == stopped.fence.epoch + 3
    with job.start(containers=1, drain=True) as run:
        run.await_termination()
        shop.check(run, stage)


def test_what_a_job_with_loops_cannot_have_is_refused_by_name(tmp_path: Path, spark: SparkSession) -> None:
    shop = Shop(tmp_path, spark, rows=10, lives=2)
    job, _ = shop.job("shop")
    with pytest.raises(hf.PlanError, match=r"A job with loops cannot run under safety=hf\.Eventual"):
        job.start(safety=hf.Eventual())
    plain = hf.Job("plain", spark, store=tmp_path / "plain")
    plain.read(source(spark, str(tmp_path / "input"))).key_by("k").agg(n=hf.count())
    with pytest.raises(hf.PlanError, match="settle=True holds sources back until loops are dry"):
        plain.start(settle=True)
    hub = hf.Hub("hub", spark, store=tmp_path / "hub")
    hub.read(source(spark, str(tmp_path / "input")), name="rows")
    with pytest.raises(hf.PlanError, match="The jobs of a hub cannot have loops"):
        hub.job("one").loop("k bigint")
