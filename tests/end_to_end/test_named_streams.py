"""What a stage of one job puts out, read by another job: each of the two equals a batch query over the first one's
input, with nobody dying and with whoever can."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import driver
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit import Ended, committed_files, equal, finish, write_files
from pyspark.sql import SparkSession
from stream_driver import QUIET, job_a, job_b

import holdfast as hf
from holdfast import faults
from holdfast.log.store import Store
from holdfast.log.streams import NamedStream

pytestmark = pytest.mark.spark


class Two:
    """Job A over files that come, job B over what it names."""

    def __init__(self, base: Path, spark: SparkSession | None = None, files: int = 6) -> None:
        self.base, self._spark = base, spark
        write_files(base / "later", files, 300, 40, 1)
        (base / "in").mkdir()
        self.files = 0

    def more(self, files: int) -> None:
        for number in range(self.files, self.files + files):
            shutil.copy2(self.base / "later" / f"{number:04d}.parquet", self.base / "in")
        self.files += files

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None
        return self._spark

    def run_a(self, **drawn: Any) -> None:
        with job_a(self.spark, self.base, **drawn).start(**QUIET) as run:
            run.await_termination()

    def run_b(self, name: str = "b", reader: str | None = None) -> None:
        """And see what it has."""
        job, stages = job_b(self.spark, self.base, name, reader=reader)
        with job.start(**QUIET) as run:
            run.await_termination()
            self.check_b({stage: run.state(stream).to_arrow() for stage, stream in stages.items()}, name)

    def check_b(self, states: dict[str, pa.Table], name: str = "b") -> None:
        counted = f"SELECT k, count(*) AS n FROM read_parquet('{self.base}/in/*.parquet') GROUP BY k HAVING n > 1"
        assert states["sizes"].num_rows
        equal("SELECT n, keys FROM held", f"SELECT n, count(*) keys FROM ({counted}) GROUP BY n", held=states["sizes"])
        best = f"SELECT row_number() OVER (ORDER BY n DESC, k) AS rank, k, n FROM ({counted}) WHERE k % 2 = 0"
        equal("SELECT rank, k, n FROM held", f"{best} QUALIFY rank <= 5", held=states["busiest"])
        closed = f"read_parquet({committed_files(self.base / 'a-windows')})"
        windows = "SELECT g, window_start, window_end, n"
        equal(
            f"{windows} FROM read_parquet({committed_files(self.base / f'{name}-windows')})", f"{windows} FROM {closed}"
        )
        best, ours = "SELECT window_start, rank, g, n", committed_files(self.base / f"{name}-best")
        rank = "row_number() OVER (PARTITION BY window_start ORDER BY n DESC, g) AS rank"
        ranked = f"SELECT window_start, {rank}, g, n FROM {closed} QUALIFY rank <= 2"
        equal(f"{best} FROM read_parquet({ours})", ranked)
        truth = f"SELECT g, count(*) AS windows, sum(n)::BIGINT AS rows FROM {closed} GROUP BY g"
        equal("SELECT g, windows, rows FROM held", truth, held=states["groups"])

    def stream(self, name: str) -> NamedStream:
        return NamedStream(Store(self.base / "a"), name)

    def epochs(self, name: str) -> list[int]:
        """Of the blocks, which are numbered without gaps."""
        stream = self.stream(name)
        found = [stream.blocks.get(number) for number in stream.kept()]
        assert stream.kept() == [*range(1, len(found) + 1)]
        return [block.epoch for block in found if block is not None]


def test_another_job_reads_what_a_stage_puts_out(tmp_path: Path, spark: SparkSession) -> None:
    two = Two(tmp_path, spark)
    two.more(3)
    two.run_a()
    assert two.epochs("totals") == [1, 2, 3]
    two.run_b()
    two.more(3)
    two.run_a()
    two.run_b()
    assert two.epochs("totals") == [1, 2, 3, 4, 5, 6]
    lease = two.stream("totals").lease("b")
    assert lease is not None
    assert lease.position >= 3, "it is known to have read what it read in its first run"
    # A query of Spark's own reads the same, without a job.
    options = {"store": str(tmp_path / "a"), "stream": "windows"}
    query = spark.readStream.format("holdfast").options(**options).load()
    writing = query.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "plain-spark"))
    writing.trigger(availableNow=True).start(str(tmp_path / "plain")).awaitTermination()
    plain, closed = (f"read_parquet({committed_files(tmp_path / name)})" for name in ("plain", "a-windows"))
    windows = "SELECT g, epoch_us(window_start) AS start, epoch_us(window_end) AS stop, n"
    equal(f"{windows} FROM {plain}", f"{windows} FROM {closed}")
    kept = spark.read.format("holdfast").options(**options).load().toArrow()
    equal(f"{windows} FROM kept", f"{windows} FROM {closed}", kept=kept)


@pytest.mark.heavy
def test_a_stream_of_other_columns_is_read_up_to_there_and_then_from_there(tmp_path: Path, spark: SparkSession) -> None:
    two = Two(tmp_path, spark, files=4)
    two.more(2)
    two.run_a()
    job = plain_b(two)
    with job.start(**QUIET) as run:
        run.await_termination()
    two.more(2)
    two.run_a(more=True)
    job = plain_b(two)
    if job._sources[0].frame.columns == ["k", "n", "_d"]:
        with (
            job.start(**QUIET) as run,
            pytest.raises(hf.StoreError, match=r"From block 3 on(?s:.*)total"),
        ):
            run.await_termination()
    assert plain_b(two, "c")._sources[0].frame.columns == ["k", "n", "_d"], "for a reader that has read nothing"
    job = plain_b(two)
    assert job._sources[0].frame.columns == ["k", "n", "total", "_d"]
    with job.start(**QUIET) as run:
        run.await_termination()
        held = run.state("sizes").to_arrow()
    counted = f"SELECT k, count(*) AS n FROM read_parquet('{tmp_path}/in/*.parquet') GROUP BY k HAVING n > 1"
    equal("SELECT n, keys FROM held", f"SELECT n, count(*) AS keys FROM ({counted}) GROUP BY n", held=held)


def plain_b(two: Two, name: str = "b", **options: Any) -> hf.Job:
    job = hf.Job(name, two.spark, store=two.base / name)
    totals = job.stream("totals", store=two.base / "a", **options)
    totals.key_by("n", name="sizes").agg(keys=hf.count())
    return job


@pytest.mark.heavy
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, spark: SparkSession) -> None:
    two = Two(tmp_path, spark)
    drawn = job_a(spark, tmp_path)
    with pytest.raises(hf.PlanError, match="Two streams are named 'totals'"):
        _stage(drawn, "totals").named("totals")
    with pytest.raises(hf.PlanError, match="source's rows"):
        _source(drawn).named("raw")
    with pytest.raises(hf.PlanError, match="cannot be a stream's name"):
        _stage(drawn, "totals").named("a/b")
    with pytest.raises(hf.PlanError, match="keep cannot be 'soon'"):
        _stage(drawn, "totals").named("other", keep="soon")
    with pytest.raises(hf.StoreError, match="no stream 'totals'"):
        plain_b(two)
    two.more(3)
    two.run_a()
    with pytest.raises(hf.StoreError, match="no stream 'cold'") as raised:
        hf.Job("c", spark, store=tmp_path / "c").stream("cold", store=tmp_path / "a")
    assert "'totals', 'windows'" in str(raised.value)
    with pytest.raises(hf.PlanError, match="own store"):
        hf.Job("a", spark, store=tmp_path / "a").stream("totals", store=tmp_path / "a")
    with pytest.raises(hf.PlanError, match="change: a sink straight over them"):
        hf.Job("c", spark, store=tmp_path / "c").stream("totals", store=tmp_path / "a").write("parquet", "never")
    with pytest.raises(hf.PlanError, match="hub reads DataFrames alone"):
        hf.Hub("h", spark, store=tmp_path / "h").stream("totals", store=tmp_path / "a")
    with plain_b(two).start(**QUIET) as run:
        run.await_termination()
    with pytest.raises(hf.StoreError, match=r"a reader 'b' already: job 'b' in .*/b, which has read up to"):
        plain_b(two, "c", reader="b")
    # The same job, begun anew in an empty store.
    shutil.rmtree(tmp_path / "b")
    with plain_b(two).start(**QUIET) as run, pytest.raises(hf.StoreError, match="this query begins anew"):
        run.await_termination()
    # Blocks go, and with them what a reader would begin with, or go on with.
    stream = two.stream("totals")
    stream.forget("b")
    with plain_b(two, "d").start(**QUIET) as run:
        run.await_termination()
    two.more(3)
    two.run_a()
    stream.store.delete([f"block/{number:010d}" for number in range(1, 5)])
    with (
        plain_b(two, "d").start(**QUIET) as run,
        pytest.raises(hf.StoreError, match=r"Block 4 .* is not kept"),
    ):
        run.await_termination()
    with plain_b(two, "e").start(**QUIET) as run, pytest.raises(hf.StoreError, match="begins with block 5 by now"):
        run.await_termination()


def _stage(job: hf.Job, name: str) -> hf.Stream:
    stream, _ = job._named_streams[name]
    return stream


def _source(job: hf.Job) -> hf.Stream:
    return _stage(job, "rows")


@pytest.mark.heavy
def test_a_stream_that_is_named_late_begins_with_all_rows(tmp_path: Path, spark: SparkSession) -> None:
    two = Two(tmp_path, spark, files=4)

    def job(*, named: bool) -> hf.Job:
        drawn = hf.Job("a", spark, store=tmp_path / "a")
        rows = drawn.read(driver.source(spark, str(tmp_path / "in")), name="rows")
        totals = rows.key_by("k", name="totals").agg(n=hf.count())
        if named:
            totals.named("totals")
        return drawn

    two.more(2)
    with job(named=False).start(**QUIET) as run:
        run.await_termination()
    two.more(2)
    with job(named=True).start(**QUIET) as run:
        run.await_termination()
    assert two.epochs("totals") == [3, 4]
    with plain_b(two).start(**QUIET) as run:
        run.await_termination()
        held = run.state("sizes").to_arrow()
    counted = f"SELECT k, count(*) AS n FROM read_parquet('{tmp_path}/in/*.parquet') GROUP BY k"
    equal("SELECT n, keys FROM held", f"SELECT n, count(*) AS keys FROM ({counted}) GROUP BY n", held=held)
    with job(named=False).start(**QUIET) as run:
        assert any("stream 'totals' is written no more" in event.text for event in run.status().events)
    with pytest.raises(hf.PlanError, match="was not written for a while"):
        job(named=True).start(**QUIET)


@pytest.mark.heavy
def test_a_lagging_reader_holds_blocks_until_it_has_read_them_or_is_let_go(tmp_path: Path, spark: SparkSession) -> None:
    two = Two(tmp_path, spark, files=12)
    two.more(2)
    changes = QUIET | {"trigger": "10 ms"}
    with job_a(spark, tmp_path, keep=None).start(**changes) as run:
        run.process_all_available()
        with plain_b(two).start(**QUIET) as reading:
            reading.await_termination()
        run._jobs.log.tidy()
        assert two.stream("totals").kept() == [2]
        least = size(tmp_path / "a" / "stream" / "totals")
        two.more(8)
        run.process_all_available()
        run._jobs.log.tidy()
        status = run.status().streams["totals"]
        assert two.stream("totals").kept()[0] <= 3
        assert status.backlog == status.blocks - 2 > 0
        with plain_b(two).start(**QUIET) as reading:
            reading.await_termination()
        run._jobs.log.tidy()
        assert run.status().streams["totals"].backlog == 0
        assert two.stream("totals").kept() == [status.blocks]
        assert size(tmp_path / "a" / "stream" / "totals") <= 1.1 * least
        two.more(2)
        run.process_all_available()
        run._jobs.log.tidy()
        assert len(two.stream("totals").kept()) > 1
        run.forget("b")
        run._jobs.log.tidy()
        assert len(two.stream("totals").kept()) == 1
        assert size(tmp_path / "a" / "stream" / "totals") <= 1.1 * least
        with pytest.raises(hf.PlanError, match="has a reader 'nobody'"):
            run.forget("nobody")


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# --- with processes that die ----------------------------------------------------------------------------


class Drivers:
    """Both jobs, each in a process of its own and with faults of its own."""

    def __init__(self, two: Two) -> None:
        self.two = two
        for which in "ab":
            (two.base / f"faults-{which}").mkdir()

    def plant(self, which: str, *faults: str) -> None:
        for fault in faults:
            (self.two.base / f"faults-{which}" / fault).touch()

    def planted(self, which: str) -> list[str]:
        return sorted(path.name for path in (self.two.base / f"faults-{which}").iterdir())

    def run(self, which: str) -> Ended:
        environment = {
            **os.environ,
            "HOLDFAST_FAULTS": str(self.two.base / f"faults-{which}"),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        program = str(Path(__file__).with_name("stream_driver.py"))
        process = subprocess.Popen(
            [sys.executable, program, str(self.two.base), which],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.two.base,
        )
        return finish(process)


@pytest.mark.drivers
def test_drivers_of_both_are_killed_around_blocks(tmp_path: Path) -> None:
    """A dies before and after a block that it writes, B wherever it has read some; containers of both die, too."""
    two = Two(tmp_path, files=7)
    two.more(5)
    drivers = Drivers(two)
    drivers.plant("a", *[f"driver@{place}@{epoch}" for epoch, place in enumerate((*faults.NAMED, "after-commit"), 2)])
    drivers.plant("a", "container@mid-apply@3", "container@mid-apply@5")
    drivers.plant("b", "driver@after-segments@1", "driver@after-prepare@1", "driver@after-commit@2")
    drivers.plant("b", "container@mid-apply@2")
    for which in "abababab":
        ended = drivers.run(which)
        assert ended.killed or ended.code == 0, ended.error
    assert drivers.planted("a") == drivers.planted("b") == []
    two.more(2)
    for which in "ab":
        ended = drivers.run(which)
        assert ended.code == 0, ended.error
    assert two.epochs("totals") == [*range(1, len(two.epochs("totals")) + 1)]
    names = ("sizes", "busiest", "groups")
    two.check_b({name: pq.read_table(tmp_path / f"{name}.parquet") for name in names})
