"""Live state: one committed epoch, and the answer says which."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from kit import Drill, write_files
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.wire import tokens

pytestmark = pytest.mark.spark


def job_over(spark: SparkSession, path: Path, files: int, rows: int = 2000) -> tuple[hf.Job, hf.StageStream]:
    write_files(path / "input", files, rows, 300, seed=5)
    job = hf.Job("reading", spark, store=str(path / "store"))
    frame = (
        spark.readStream.schema("k bigint, g string, v bigint, x double")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(path / "input"))
    )
    kept = job.read(frame).key_by("k", "g").agg(n=hf.count())
    kept.write("noop")
    return job, kept


def test_every_way_says_its_epoch(tmp_path: Path, spark: SparkSession) -> None:
    job, kept = job_over(spark, tmp_path, 3)
    with job.start(slices=8, trigger={"availableNow": True}) as run:
        run.await_termination()
        state = run.state(kept)
        table = state.to_arrow()
        assert table.schema.metadata[b"holdfast.epoch"] == b"3"
        assert state.epoch == 3
        some = table.to_pylist()[0]
        assert state.get(some["k"], some["g"]) == {**some, "_epoch": 3}
        assert state.get(-1, "nobody") is None
        frame = state.to_df()
        assert frame.columns == ["k", "g", "n", "_epoch"]
        assert frame.select("_epoch").distinct().collect() == [(3,)]
        assert frame.count() == table.num_rows
        by_store = spark.read.format("holdfast").option("store", str(tmp_path / "store")).option("stage", kept.name)
        assert by_store.load().count() == table.num_rows
        with pytest.raises(hf.PlanError, match="2 columns"):
            state.get(1)
    assert not list(tokens._folder().glob(f"{run._file.job_id}*"))


def test_each_answer_is_whole(tmp_path: Path, spark: SparkSession) -> None:
    """Read all the time while epochs run: every answer is the state after exactly as many files as it says."""
    files, rows = 8, 2000
    job, kept = job_over(spark, tmp_path, files, rows)
    seen: list[tuple[int, int]] = []
    with job.start(slices=8, trigger={"availableNow": True}) as run:
        done = threading.Event()

        def read() -> None:
            state = run.state(kept)
            while not done.is_set():
                table = state.to_arrow()
                seen.append((state.epoch, sum(table["n"].to_pylist())))

        reader = threading.Thread(target=read)
        reader.start()
        run.await_termination()
        done.set()
        reader.join()
    assert len(seen) > files
    assert all(total == epoch * rows for epoch, total in seen), seen


def test_reads_wait_for_recovery(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    job, kept = job_over(spark, tmp_path, 3)
    with job.start(slices=8, trigger={"availableNow": True}) as run:
        run.await_termination()
        before = run.state(kept).to_arrow()
        for container in run.status().containers:
            run.kill(container.name)
        after = run.state(kept).to_arrow()
        assert after.sort_by([("k", "ascending"), ("g", "ascending")]) == before.sort_by(
            [("k", "ascending"), ("g", "ascending")]
        )
        status = run.status()
        assert [container.alive for container in status.containers] == [False, False, True, True]
        assert {event.kind for event in status.events} >= {"lost", "healed"}


def test_a_job_that_does_not_run(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    drill = Drill(tmp_path, files=1)
    drill.run_here(spark, monkeypatch)
    with pytest.raises(Exception, match="no token for this job"):
        spark.read.format("holdfast").option("store", str(tmp_path / "store")).option("stage", "source_by_k_agg").load()
