"""A snapshot of a job that runs, and jobs that begin with it: each equals a batch over the rows up to its own epoch."""

from __future__ import annotations

import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kit import NEVER, committed_files, equal, write_files
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.log.store import Store

pytestmark = pytest.mark.spark
SCHEMA = "k bigint, g string, v bigint, x double, t timestamp"


class Shop:
    """One source folder, and jobs over it in stores of their own."""

    def __init__(self, base: Path, spark: SparkSession) -> None:
        self.base, self.spark = base, spark
        write_files(base / "later", 24, 400, 60, 1)
        (base / "in").mkdir()
        self.files = 0

    def more(self, files: int) -> None:
        for number in range(self.files, self.files + files):
            shutil.copy2(self.base / "later" / f"{number:04d}.parquet", self.base / "in")
        self.files += files

    def job(self, name: str, *, changed: bool = False) -> tuple[hf.Job, hf.StageStream]:
        job = hf.Job(name, self.spark, store=self.base / name)
        frame = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self.base / "in"))
        rows = job.read(frame, name="rows")
        aggregates: dict[str, Any] = {"n": hf.count(), "total": hf.sum("v")}
        if changed:
            aggregates["high"] = hf.max("x")
        totals = rows.key_by("k", name="totals").agg(**aggregates)
        totals.key_by("n", name="sizes").agg(keys=hf.count())
        windows = (
            rows.key_by("g", name="windows").window(hf.tumbling("10 s"), time="t", lateness="5 s").agg(n=hf.count())
        )
        totals.write("parquet", str(self.base / f"{name}-out"))
        windows.write("parquet", str(self.base / f"{name}-windows"), mode="append")
        return job, totals

    def rows(self, files: int) -> pa.Table:
        paths = [str(self.base / "later" / f"{number:04d}.parquet") for number in range(files)]
        return pa.concat_tables(pq.read_table(path) for path in paths)

    def check(self, run: hf.Run, files: int) -> None:
        """State is of all rows of these files, however they came."""
        rows = self.rows(files)
        truth = "SELECT k, count(*) AS n, sum(v)::BIGINT AS total FROM rows GROUP BY k"
        equal("SELECT k, n, total FROM held", truth, held=run.state("totals").to_arrow(), rows=rows)
        sizes = f"SELECT n, count(*) AS keys FROM ({truth}) GROUP BY n"
        equal("SELECT n, keys FROM held", sizes, held=run.state("sizes").to_arrow(), rows=rows)


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Shop:
    return Shop(tmp_path, spark)


def test_a_fork_goes_on_from_the_epoch_of_its_snapshot_beside_the_job(shop: Shop) -> None:
    shop.more(3)
    with shop.job("first")[0].start(containers=2, slices=8) as run:
        run.process_all_available()
        snapshot = run.snapshot()
        assert (snapshot.number, snapshot.epochs) == (1, {"main": 3})
        assert [(one.name, one.epoch) for one in run.status().snapshots] == [("1", 3)]
        shop.more(2)
        run.process_all_available()
        later = run.snapshot(keep="7 days")
        assert [str(one) for one in run.snapshots()] == [str(snapshot), str(later)]
        with shop.job("second")[0].start(containers=1, slices=8, fork=snapshot) as fork:
            fork.process_all_available()
            run.kill(run.status().containers[0].name)
            fork.kill(fork.status().containers[0].name)
            shop.more(2)
            fork.process_all_available()
            run.process_all_available()
            shop.check(fork, 7)
            shop.check(run, 7)
    # The fork's sinks have what came after the snapshot, and nothing of before.
    out = f"read_parquet({committed_files(shop.base / 'second-out')})"
    (least, most) = duckdb.sql(f"SELECT min(_epoch), max(_epoch) FROM {out}").fetchall()[0]
    assert 4 <= least <= most
    equal(
        f"SELECT k, n, total FROM {out} QUALIFY _epoch = max(_epoch) OVER (PARTITION BY k)",
        "SELECT k, count(*) AS n, sum(v)::BIGINT AS total FROM rows GROUP BY k HAVING max(late)",
        rows=pa.concat_tables(
            [
                shop.rows(3).append_column("late", pa.array([False] * 1200)),
                shop.rows(7)[1200:].append_column("late", pa.array([True] * 1600)),
            ]
        ),
    )
    # It goes on by itself, with or without a word about where it came from; what it came from may be gone.
    shutil.rmtree(shop.base / "first")
    shop.more(1)
    with shop.job("second")[0].start(containers=2, slices=8, fork=str(snapshot)) as fork:
        fork.process_all_available()
        shop.check(fork, 8)
    with shop.job("second")[0].start(containers=1) as fork:
        shop.check(fork, 8)


@pytest.mark.drivers
def test_windows_that_were_open_close_in_job_and_fork_alike(shop: Shop) -> None:
    """Watermarks come along: what a window had is in the fork's, and what came too late there comes too late here."""
    shop.more(4)
    with shop.job("first")[0].start(containers=1, slices=4) as run:
        run.process_all_available()
        snapshot = run.snapshot()
        shop.more(5)
        run.process_all_available()
    with shop.job("second")[0].start(containers=1, slices=4, fork=snapshot, trigger="availableNow") as fork:
        fork.await_termination()
    found = {
        name: pq.read_table(committed_files(shop.base / f"{name}-windows")).sort_by(
            [("window_start", "ascending"), ("g", "ascending")]
        )
        for name in ("first", "second")
    }
    # One batch of the fork may take what were several of the job, so epochs differ; rows do not.
    since = found["first"].filter(pc.field("_epoch") > 4).drop_columns("_epoch")
    assert 0 < since.num_rows < found["first"].num_rows
    assert since.equals(found["second"].drop_columns("_epoch"))


def test_a_changed_job_forks_too(shop: Shop) -> None:
    shop.more(3)
    with shop.job("first")[0].start(containers=1, slices=4, safety=None) as run:
        run.process_all_available()
        snapshot = run.snapshot()
        with shop.job("second", changed=True)[0].start(containers=2, slices=4, fork=snapshot) as fork:
            shop.more(2)
            fork.process_all_available()
            shop.check(fork, 5)
            since = shop.rows(5)[1200:]
            equal(
                "SELECT k, high FROM held WHERE high IS NOT NULL",
                "SELECT k, max(x) AS high FROM rows GROUP BY k",
                held=fork.state("totals").to_arrow(),
                rows=since,
            )
        run.process_all_available()
        shop.check(run, 5)


def test_what_cannot_be_forked_is_refused_and_nothing_is_begun(shop: Shop) -> None:
    job, _ = shop.job("first")
    with job.start(containers=1, slices=4) as run:
        with pytest.raises(hf.PlanError, match="has not committed an epoch yet"):
            run.snapshot()
        shop.more(2)
        run.process_all_available()
        with pytest.raises(hf.PlanError, match="keep cannot be 'a while'"):
            run.snapshot(keep="a while")
        one, other = run.snapshot(), run.snapshot()
        assert one.epochs == other.epochs, "two names for one epoch"
        run.forget(other)
        assert run.snapshots() == [one]
        assert run.snapshot().number == 3, "a number is never given to another"
        with pytest.raises(hf.StoreError, match=r"(?s)has no snapshot 2.*Those that it has: 1, 3"):
            run.forget(2)
        with pytest.raises(hf.StoreError, match="has no snapshot 2"):
            shop.job("second")[0].start(slices=4, fork=other)
        for nonsense in ("first", "first#", "#1", 7):
            with pytest.raises(hf.PlanError, match="fork= takes a snapshot"):
                shop.job("second")[0].start(slices=4, fork=nonsense)  # type: ignore[arg-type]
        with pytest.raises(hf.StoreError, match="which was not forked"):
            job.start(slices=4, fork=one)
        (shop.base / "second" / "main").mkdir(parents=True)
        (shop.base / "second" / "main" / "notes.txt").touch()
        with pytest.raises(hf.StoreError, match=r"needs an empty store, and .* has main/notes.txt"):
            shop.job("second")[0].start(slices=4, fork=one)
        assert not (shop.base / "second" / "job.json").exists()
        with pytest.raises(hf.StoreError, match="slices"):
            shop.job("third")[0].start(slices=8, fork=one)
        with shop.job("third")[0].start(containers=1, slices=4, fork=one) as fork:
            shop.check(fork, 2)
            assert fork.snapshots() == []
            with pytest.raises(hf.PlanError, match="is no snapshot of job 'third'"):
                fork.forget(one)
        with pytest.raises(hf.StoreError, match=r"which began with .*first#1"):
            shop.job("third")[0].start(slices=4, fork=f"{one.store}#3")


@pytest.mark.drivers
def test_a_fork_that_was_cut_off_is_begun_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.more(3)
    with shop.job("first")[0].start(containers=2, slices=4) as run:
        run.process_all_available()
        snapshot = run.snapshot()
        run.snapshot()
    for place in ("mid-fork", "after-fork"):

        def die(_role: str, name: str, _epoch: int, place: str = place) -> None:
            if name == place:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(faults, "place", die)
            with pytest.raises(KeyboardInterrupt):
                shop.job("second")[0].start(containers=1, slices=4, fork=snapshot)
        if place == "mid-fork":
            assert not (shop.base / "second" / "job.json").exists()
            (pack, *_) = sorted((shop.base / "second" / "main" / "checkpoint").glob("*.pack"))
            pack.write_bytes(pack.read_bytes()[:1000])  # as the power may leave it
            with pytest.raises(hf.StoreError, match=r"A fork of .*first#1 into .* was cut off"):
                shop.job("second")[0].start(slices=4)
            with pytest.raises(hf.StoreError, match=r"needs an empty store, and .* has fork"):
                shop.job("second")[0].start(slices=4, fork=f"{snapshot.store}#2")
    shop.more(1)
    with shop.job("second")[0].start(containers=1, slices=4, fork=snapshot) as fork:
        fork.process_all_available()
        shop.check(fork, 4)


def test_packs_of_a_snapshot_stay_until_it_is_let_go(shop: Shop) -> None:
    section = Store(str(shop.base / "first" / "main"))
    with shop.job("first")[0].start(containers=1, slices=4, safety=hf.Delta(store_every=1)) as run:
        shop.more(1)
        run.process_all_available()
        snapshot = run.snapshot()
        for _ in range(5):
            shop.more(1)
            run.process_all_available()
            run.snapshot(keep="1 millisecond")  # each waits for a checkpoint, and is over at once
        run._jobs.log.tidy()
        assert run.snapshots() == [snapshot]
        packs = [name for name in section.list("checkpoint") if name.endswith(".pack")]
        assert len(packs) == 3, "of the newest two checkpoints, and of the snapshot"
        with shop.job("second")[0].start(containers=1, slices=4, fork=snapshot) as fork:
            fork.process_all_available()
            shop.check(fork, 6)
        run.forget(1)
        run._jobs.log.tidy()
        assert len([name for name in section.list("checkpoint") if name.endswith(".pack")]) == 2
        assert run.snapshots() == []
        assert run.snapshot().number == 7


def test_a_hub_is_forked_with_what_was_changed_while_it_ran(shop: Shop) -> None:
    def hub(name: str) -> hf.Hub:
        hub = hf.Hub(name, shop.spark, store=shop.base / name)
        frame = shop.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(shop.base / "in"))
        hub.read(frame, name="rows")
        job = hub.job("totals")
        job.stream("rows").key_by("k", name="sums").agg(n=hf.count())
        return hub

    shop.more(2)
    first = hub("first")
    with first.start(containers=1, slices=4) as run:
        run.process_all_available()
        late = first.job("late")
        late.sql("SELECT g, count(*) AS n FROM rows GROUP BY g", name="groups")
        run.add(late)
        run.update("totals/sums", where="k < 30")
        shop.more(1)
        run.process_all_available()
        snapshot = run.snapshot()
        with hub("second").start(containers=1, slices=4, fork=snapshot) as fork:
            assert [job.name for job in fork.jobs] == ["totals", "late"]
            shop.more(2)
            fork.process_all_available()
            run.process_all_available()
            early, since = shop.rows(2), shop.rows(5)[800:]
            rows = pa.concat_tables([early, since.filter(pc.field("k") < 30)])
            for one in (run, fork):
                held = one.state("totals/sums").to_arrow()
                equal("SELECT k, n FROM held", "SELECT k, count(*) AS n FROM rows GROUP BY k", held=held, rows=rows)
                held = one.state("late/groups").to_arrow()
                equal("SELECT g, n FROM held", "SELECT g, count(*) AS n FROM rows GROUP BY g", held=held, rows=since)
        # One that came back has another name in the store, which whoever draws before the fork cannot know.
        run.remove("late")
        again = first.job("late")
        again.sql("SELECT g, count(*) AS n FROM rows GROUP BY g", name="groups")
        run.add(again)
        shop.more(1)
        run.process_all_available()
        snapshot = run.snapshot()
    third = hub("third")
    third.job("late").sql("SELECT g, count(*) AS n FROM rows GROUP BY g", name="groups")
    with pytest.raises(hf.PlanError, match="'late/groups' has another name in the store"):
        third.start(containers=1, slices=4, fork=snapshot)
    with hub("third").start(containers=1, slices=4, fork=snapshot) as fork:
        held = fork.state("late/groups").to_arrow()
        truth = "SELECT g, count(*) AS n FROM rows GROUP BY g"
        equal("SELECT g, n FROM held", truth, held=held, rows=shop.rows(6)[2000:])


@pytest.mark.drivers
@pytest.mark.parametrize("forks", [2, pytest.param(20, marks=pytest.mark.heavy)])
def test_snapshots_at_any_moment_while_containers_die(shop: Shop, forks: int, drill_seed: int) -> None:
    """State and place in the source are of one epoch, or a row would be lost or counted twice in the fork."""
    print(f"seed {drill_seed}")
    draw = random.Random(drill_seed)
    shop.more(2)
    taken: list[hf.Snapshot] = []
    killed: set[str] = set()
    with shop.job("first")[0].start(containers=3, slices=8, safety=hf.Delta(store_every=2)) as run:
        run.process_all_available()
        over = threading.Event()

        def flow() -> None:
            while not over.wait(0.05):
                if run._shell.machine.committed >= shop.files and shop.files < forks + 4:
                    shop.more(1)

        flowing = threading.Thread(target=flow)
        flowing.start()
        try:
            for number in range(forks):
                assert run._shell.wait_for(lambda: run._shell.machine.committed > 2 + number, NEVER)  # noqa: B023
                time.sleep(draw.uniform(0, 0.3))
                if draw.random() < 0.7:
                    name = draw.choice([one.name for one in run.status().containers if one.alive])
                    run.kill(name)
                    killed.add(name)
                taken.append(run.snapshot(timeout=300))
        finally:
            over.set()
            flowing.join()
        run.process_all_available()
        shop.check(run, shop.files)
        told = [event.text for event in run.status().events if event.kind == "lost"]
        assert all(any(f"container {name} is lost" in text for text in told) for name in killed), (killed, told)
    assert len({one.epochs["main"] for one in taken}) > 1
    for at, snapshot in enumerate(taken):
        job, _ = shop.job(f"fork{at}")
        with job.start(containers=1, slices=8, fork=snapshot, trigger="availableNow") as fork:
            fork.await_termination()
            shop.check(fork, shop.files)
