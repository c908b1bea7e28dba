"""Graphs of stages on real Spark: windows, joins, groups of groups, against a batch query, without faults and with."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import graph_model as model
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driver import source
from kit import NEVER, Drill, equal, write_files
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import holdfast as hf
from holdfast import faults
from holdfast.driver import sizes

register_pickle_by_value(model)  # containers cannot import it
pytestmark = pytest.mark.spark
SECOND = 1_000_000
WAYS = {"by the driver": 1 << 20, "by tasks": 0}  # what rows take from one level to the next, if they are few


# --- three levels, killed anywhere ------------------------------------------------------------------------------------


@pytest.mark.heavy  # the same with faults is below
@pytest.mark.parametrize("way", ["by the driver", "by tasks"])
def test_three_levels_without_faults(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(sizes, "SMALL_BYTES", WAYS[way])
    drill = Drill(tmp_path, config={"shape": "graph"})
    drill.run_here(spark, monkeypatch)
    drill.check()


@pytest.mark.parametrize("way", [pytest.param("by the driver", marks=pytest.mark.heavy), "by tasks"])
def test_three_levels_and_a_container_killed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Only what was lost is made again: no slice of a container that lives is touched."""
    monkeypatch.setattr(sizes, "SMALL_BYTES", WAYS[way])
    drill = Drill(tmp_path, config={"shape": "graph", "containers": 3})
    drill.plant("container@mid-apply@3", "container@mid-sink@5")
    drill.run_here(spark, monkeypatch)
    assert drill.planted == []
    drill.check()
    events = drill.report["events"]
    assert [kind for kind, _ in events].count("lost") == 2
    # From a loss to its end exactly the lost slices are made active again, whatever their stages: none of another's.
    healed = brought_back = 0
    for kind, text in events[[kind for kind, _ in events].index("lost") :]:
        if kind in ("activated", "restored"):
            brought_back += int(text.split()[0])
        elif kind == "healed":
            assert brought_back == int(text.split()[0]), events
            healed += 1
        elif kind == "lost":
            brought_back = 0
    assert healed == 2


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_three_levels_and_a_driver_killed(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    drill = Drill(tmp_path, rows=2000, config={"shape": "graph"})
    place = draw.choice([place for place in faults.PLACES if place != "in-intake"])
    drill.plant(f"driver@{place}@{draw.randint(2, 5)}")
    assert drill.run().killed, f"nobody died at {drill.planted}"
    ended = drill.run()
    assert ended.code == 0, ended.error
    drill.check()


def test_three_levels_while_it_scales(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    drill = Drill(tmp_path, files=8, config={"shape": "graph"})

    def scale(run: hf.Run) -> None:
        assert run._shell.wait_for(lambda: run._shell.machine.committed >= 2, NEVER)
        run.scale(containers=3)
        assert run._shell.wait_for(lambda: run._shell.machine.committed >= 4, NEVER)
        run.scale(containers=1)

    drill.run_here(spark, monkeypatch, scale)
    drill.check()


# --- graphs nobody thought of -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in range(2, 9))])
def test_a_random_graph_with_containers_killed(tmp_path: Path, spark: SparkSession, seed: int) -> None:
    """The graphs and the oracle of ``tests/testing``: what holds there holds with Spark, containers and kills."""
    chosen, epochs = model.random_graph(seed)
    schema = pa.schema([("k", pa.string()), ("g", pa.int32()), ("v", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
    job, streams = hf.Job("random", spark, store=str(tmp_path / "store")), []
    for name in model.SOURCES:
        (tmp_path / name).mkdir()
        for number, rows in enumerate(epochs):
            table = pa.Table.from_pylist(model.as_dicts(rows[name]), schema)
            path = tmp_path / name / f"{number}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1e9 + number, 1e9 + number))  # the order in which Spark reads them
        reader = spark.readStream.schema(model.SCHEMA).option("maxFilesPerTrigger", 1)
        streams.append(job.read(reader.parquet(str(tmp_path / name)), name))
    drawn, oracle = model.draw(*streams, chosen), model.Oracle(chosen)
    found: dict[tuple[int, int], Counter[Any]] = {}
    for number, stream in enumerate(drawn.streams):

        def take(frame: Any, epoch: int, number: int = number) -> None:
            found[number, epoch] = model.counted(frame.toArrow().to_pylist())

        stream.for_each_batch(take, name=f"sink{number}")
    with job.start(containers=2, slices=4, trigger={"availableNow": True}) as run:
        kill_one(run)
        run.await_termination()
        expected = [oracle.epoch(rows) for rows in epochs]
        for number, stage in enumerate(drawn.stages):
            kind = oracle.nodes[number].choice.kind
            if kind in ("sums", "groups", "best"):
                assert stage is not None
                assert model.held(run.state(stage).to_arrow().to_pylist(), kind) == expected[-1][number], chosen
    for number, node in enumerate(oracle.nodes):
        for epoch in range(1, len(epochs) + 1):
            if not node.is_table:
                assert found[number, epoch] == expected[epoch - 1][number], (number, epoch, chosen)


# --- single operators, each with its oracle -----------------------------------------------------------------------


class Bench:
    """Two folders of files as streams, one file an epoch, and the rows that a job puts out, epoch by epoch."""

    def __init__(self, base: Path, spark: SparkSession, files: int = 5, rows: int = 1500, keys: int = 60) -> None:
        self.base, self.spark, self.files = base, spark, files
        write_files(base / "left", files, rows, keys, seed=7)
        write_files(base / "right", files, rows // 3, keys, seed=8)

    def run(
        self, build: Callable[[hf.Job], dict[str, hf.Stream]], during: Callable[[hf.Run], None] | None = None
    ) -> dict[str, pa.Table]:
        job = hf.Job("bench", self.spark, store=str(self.base / "store"))
        found: dict[str, list[pa.Table]] = {}
        for name, stream in build(job).items():
            taken = found.setdefault(name, [])

            def take(frame: Any, epoch: int, taken: list[pa.Table] = taken) -> None:
                rows = frame.toArrow()
                taken.append(rows.append_column("_epoch", pa.array([epoch] * rows.num_rows, pa.int64())))

            stream.for_each_batch(take, name=name)
        with job.start(containers=2, slices=8, trigger={"availableNow": True}) as run:
            if during is not None:
                during(run)
            run.await_termination()
            self.status = run.status()
        return {name: pa.concat_tables(tables) for name, tables in found.items()}

    def stream(self, job: hf.Job, side: str) -> hf.Stream:
        return job.read(source(self.spark, str(self.base / side)), name=side)

    def rows(self, side: str = "left") -> str:
        """All rows with their epoch, as SQL."""
        files = sorted((self.base / side).glob("*.parquet"))
        every = " UNION ALL ".join(
            f"SELECT {epoch} AS epoch, k, g, v, t::TIMESTAMP AS t FROM '{path}'" for epoch, path in enumerate(files, 1)
        )
        return f"({every})"

    @property
    def watermarks(self) -> str:
        """After each epoch, of a stage that allows a second of lateness."""
        return (
            "(SELECT epoch, max(max(t)) OVER (ORDER BY epoch) - INTERVAL '1 second' AS watermark "
            f"FROM {self.rows()} GROUP BY epoch)"
        )


def kill_one(run: hf.Run) -> None:
    assert run._shell.wait_for(lambda: run._shell.machine.committed >= 2, NEVER)
    run.kill(run.status().containers[0].name)


@pytest.mark.parametrize("during", [pytest.param(None, marks=pytest.mark.heavy), kill_one], ids=["calm", "killed"])
def test_sliding_and_cumulative_windows_and_their_late_rows(
    tmp_path: Path, spark: SparkSession, during: Callable[[hf.Run], None] | None
) -> None:
    bench = Bench(tmp_path, spark)

    def build(job: hf.Job) -> dict[str, hf.Stream]:
        left = bench.stream(job, "left")
        windows, growing = (
            left.key_by("g", name=name)
            .window(kind, time="t", lateness="1 s", late="keep")
            .agg(n=hf.count(), total=hf.sum("v"), most=hf.max("k"))
            for name, kind in (
                ("slid", hf.sliding("4 s", every="2 s")),
                ("grown", hf.cumulative("8 s", every="2 s", offset="1 s")),
            )
        )
        return {"windows": windows, "late": windows.late, "growing": growing}

    found = bench.run(build, during)
    late = f"""
        SELECT r.* FROM {bench.rows()} r JOIN {bench.watermarks} w ON w.epoch = r.epoch - 1
        WHERE time_bucket(INTERVAL '2 seconds', t) + INTERVAL '4 seconds' <= watermark"""
    equal(
        "SELECT g, k, v, t::TIMESTAMP AS t, _epoch AS epoch FROM late",
        f"SELECT g, k, v, t, epoch FROM ({late})",
        late=found["late"],
    )
    truth = f"""
        WITH panes AS (
            SELECT r.*, unnest([0, 2]) AS back FROM {bench.rows()} r),
        placed AS (
            SELECT p.*, time_bucket(INTERVAL '2 seconds', t) - back * INTERVAL '1 second' AS window_start FROM panes p),
        kept AS (
            SELECT p.* FROM placed p LEFT JOIN {bench.watermarks} w ON w.epoch = p.epoch - 1
            WHERE window_start + INTERVAL '4 seconds' > coalesce(watermark, window_start)),
        windows AS (
            SELECT g, window_start, window_start + INTERVAL '4 seconds' AS window_end, count(*) AS n, sum(v) AS total,
                   max(k) AS most
            FROM kept GROUP BY ALL)
        SELECT o.*, min(w.epoch) AS _epoch FROM windows o JOIN {bench.watermarks} w ON watermark >= window_end
        GROUP BY ALL"""
    equal(
        "SELECT g, window_start::TIMESTAMP AS window_start, window_end::TIMESTAMP AS window_end, n, total, most, "
        "_epoch FROM windows",
        truth,
        windows=found["windows"],
    )
    growing = f"""
        WITH days AS (
            SELECT *, time_bucket(INTERVAL '8 seconds', t, INTERVAL '1 second') AS window_start FROM {bench.rows()}),
        placed AS (
            SELECT d.*, window_start + step * INTERVAL '2 seconds' AS window_end FROM days d, range(1, 5) steps(step)
            WHERE t < window_start + step * INTERVAL '2 seconds'),
        kept AS (
            SELECT p.* FROM placed p LEFT JOIN {bench.watermarks} w ON w.epoch = p.epoch - 1
            WHERE window_end > coalesce(watermark, window_start)),
        windows AS (
            SELECT g, window_start, window_end, count(*) AS n, sum(v) AS total, max(k) AS most FROM kept GROUP BY ALL)
        SELECT o.*, min(w.epoch) AS _epoch FROM windows o JOIN {bench.watermarks} w ON watermark >= window_end
        GROUP BY ALL"""
    equal(
        "SELECT g, window_start::TIMESTAMP AS window_start, window_end::TIMESTAMP AS window_end, n, total, most, "
        "_epoch FROM windows",
        growing,
        windows=found["growing"],
    )
    stage = next(stage for stage in bench.status.stages if stage.name == "slid")
    assert stage.counts["late"] == found["late"].num_rows > 0
    assert stage.watermark is not None


def test_joins_of_two_streams_within_a_time(tmp_path: Path, spark: SparkSession) -> None:
    """Bounded so widely that no row is late: then the result is that of a batch join."""
    bench = Bench(tmp_path, spark, rows=600)

    def build(job: hf.Job) -> dict[str, hf.Stream]:
        left = bench.stream(job, "left").select("k", "v", "t")
        right = bench.stream(job, "right").select("k", F.col("v").alias("w"), F.col("t").alias("u"))
        bounds = {"time": ("t", "u"), "within": ("1 s", "2 s"), "lateness": "30 s"}
        return {how: left.key_by("k", name=how).join(right.key_by("k"), how=how, **bounds) for how in ("inner", "full")}

    found = bench.run(build, kill_one)
    pairs = f"""
        SELECT coalesce(l.k, r.k) AS k, l.v AS v, l.t AS t, r.v AS w, r.t AS u
        FROM {bench.rows()} l {{}} JOIN {bench.rows("right")} r
        ON l.k = r.k AND r.t BETWEEN l.t - INTERVAL '1 second' AND l.t + INTERVAL '2 seconds'"""
    ours = "SELECT k, v, t::TIMESTAMP AS t, w, u::TIMESTAMP AS u FROM joined"
    equal(ours, pairs.format("INNER"), joined=found["inner"])
    # Rows without a partner come when none can come any more; those at the end of the input still wait.
    equal(f"{ours} WHERE t IS NOT NULL AND u IS NOT NULL", pairs.format("INNER"), joined=found["full"])
    alone = f"SELECT * FROM ({pairs.format('FULL')}) WHERE (t IS NULL) != (u IS NULL)"
    with duckdb.connect() as connection:
        connection.register("joined", found["full"])
        came = f"{ours} WHERE (t IS NULL) != (u IS NULL)"
        assert connection.sql(f"SELECT * FROM ({came}) EXCEPT ALL ({alone})").fetchall() == []


def test_distinct_and_top_k_of_a_running_aggregate(tmp_path: Path, spark: SparkSession) -> None:
    bench = Bench(tmp_path, spark)

    def build(job: hf.Job) -> dict[str, hf.Stream]:
        rows = bench.stream(job, "left")
        counts = rows.key_by("k", name="counts").agg(n=hf.count(), total=hf.sum("v"))
        return {
            "first": rows.select("k", "g").key_by("k", "g", name="pairs").distinct(),
            "best": counts.top_k(5, by=["n", ("k", "asc")], name="best"),
            "groups": rows.key_by("g", name="groups").agg(keys=hf.count_distinct("k"), low=hf.count_distinct("v")),
        }

    found = bench.run(build, kill_one)
    equal("SELECT k, g FROM first", f"SELECT DISTINCT k, g FROM {bench.rows()}", first=found["first"])
    equal(
        "SELECT rank, n, k, total FROM best WHERE _epoch = (SELECT max(_epoch) FROM best)",
        f"""SELECT row_number() OVER (ORDER BY n DESC, k) AS rank, n, k, total
            FROM (SELECT k, count(*) AS n, sum(v) AS total FROM {bench.rows()} GROUP BY k) QUALIFY rank <= 5""",
        best=found["best"],
    )
    equal(
        "SELECT g, keys, low FROM groups QUALIFY _epoch = max(_epoch) OVER (PARTITION BY g)",
        f"SELECT g, count(DISTINCT k) AS keys, count(DISTINCT v) AS low FROM {bench.rows()} GROUP BY g",
        groups=found["groups"],
    )


def test_a_source_and_a_stage_in_one_join(tmp_path: Path, spark: SparkSession) -> None:
    """Rows of a source wait at the first level's intake for a stage on the second."""
    bench = Bench(tmp_path, spark)

    def build(job: hf.Job) -> dict[str, hf.Stream]:
        left, right = bench.stream(job, "left"), bench.stream(job, "right")
        windows = left.key_by("k").window(hf.tumbling("10 s"), time="t", lateness="10 s").agg(n=hf.count())
        mine = right.select("k", "v", "t").key_by("k", F.window("t", "10 seconds").start.alias("opened"))
        theirs = windows.key_by("k", F.col("window_start").alias("opened"))
        return {"joined": mine.join(theirs)}

    found = bench.run(build)["joined"]
    truth = f"""
        WITH closed AS (SELECT max(t) - INTERVAL '10 seconds' AS watermark FROM {bench.rows()}),
        windows AS (
            SELECT k, time_bucket(INTERVAL '10 seconds', t) AS window_start, count(*) AS n
            FROM {bench.rows()} GROUP BY ALL)
        SELECT r.k, v, n FROM {bench.rows("right")} r JOIN windows w
        ON r.k = w.k AND time_bucket(INTERVAL '10 seconds', t) = window_start
        WHERE window_start + INTERVAL '10 seconds' <= (SELECT watermark FROM closed)"""
    equal("SELECT k, v, n FROM joined", truth, joined=found)


def test_a_lookup_sees_the_other_stage_as_of_the_same_epoch(tmp_path: Path, spark: SparkSession) -> None:
    bench = Bench(tmp_path, spark)

    def build(job: hf.Job) -> dict[str, hf.Stream]:
        left, right = bench.stream(job, "left"), bench.stream(job, "right")
        counts = left.where("k < 40").key_by("k").agg(n=hf.count(), most=hf.max("v"))
        asked = right.select("k", "g").key_by("k")
        return {
            "left": asked.lookup(counts),
            "inner": right.select("k").key_by("k", name="i").lookup(counts, how="inner"),
        }

    found = bench.run(build, kill_one)
    truth = f"""
        SELECT r.k, r.g, (SELECT nullif(count(*), 0) FROM {bench.rows()} l WHERE l.k = r.k AND l.k < 40
                          AND l.epoch <= r.epoch) AS n,
               (SELECT max(v) FROM {bench.rows()} l WHERE l.k = r.k AND l.k < 40 AND l.epoch <= r.epoch) AS most, epoch
        FROM {bench.rows("right")} r"""
    equal("SELECT k, g, n, most, _epoch AS epoch FROM looked", truth, looked=found["left"])
    equal(
        "SELECT k, n, most, _epoch AS epoch FROM looked",
        f"SELECT k, n, most, epoch FROM ({truth}) WHERE n IS NOT NULL",
        looked=found["inner"],
    )


# --- processing time ----------------------------------------------------------------------------------------------


def test_a_window_of_processing_time_closes_without_rows(tmp_path: Path, spark: SparkSession) -> None:
    """No row comes after the first file: the master runs an epoch of its own when the window is over."""
    write_files(tmp_path / "left", 1, 500, 20, seed=3)
    job = hf.Job("ticks", spark, store=str(tmp_path / "store"))
    windows = job.read(source(spark, str(tmp_path / "left"))).key_by("k").window(hf.tumbling("2 s")).agg(n=hf.count())
    totals = windows.key_by("n").agg(keys=hf.count())
    got: dict[int, pa.Table] = {}
    windows.for_each_batch(lambda frame, epoch: got.__setitem__(epoch, frame.toArrow()), name="windows")
    with job.start(containers=2, slices=8) as run:
        run.process_all_available()
        deadline = time.monotonic() + NEVER
        while sum(one.num_rows for one in got.values()) < 20 and time.monotonic() < deadline:
            time.sleep(0.1)
        rows = pa.concat_tables([one for one in got.values() if one.num_rows])
        assert sum(rows["n"].to_pylist()) == 500
        assert max(got) >= 2, "the result came in an epoch of its own"
        # A sink is before its commit.
        assert run._shell.wait_for(lambda: run._shell.machine.committed >= max(got), NEVER)
        assert sum(row["keys"] for row in run.state(totals).to_arrow().to_pylist()) == rows.num_rows
        before = run.status().epoch
        time.sleep(1.5)
        assert run.status().epoch == before, "nothing is due any more: no further ticks"
        # And Spark's next batch follows the ticks.
        draw = np.random.default_rng(1)
        table = pq.read_table(tmp_path / "left" / "0000.parquet").slice(0, 50)
        pq.write_table(table, tmp_path / "more.parquet")
        (tmp_path / "more.parquet").rename(tmp_path / "left" / f"{draw.integers(1, 9)}.parquet")
        run.process_all_available()
        assert run.status().epoch > before
    with job_again(spark, tmp_path) as run:
        run.process_all_available()
        assert run.status().stages[0].keys >= 0


def job_again(spark: SparkSession, base: Path) -> hf.Run:
    """The same job, started on the store that a run with ticks has left."""
    job = hf.Job("ticks", spark, store=str(base / "store"))
    windows = job.read(source(spark, str(base / "left"))).key_by("k").window(hf.tumbling("2 s")).agg(n=hf.count())
    windows.key_by("n").agg(keys=hf.count())
    windows.for_each_batch(lambda frame, epoch: None, name="windows")
    return job.start(containers=2, slices=8)
