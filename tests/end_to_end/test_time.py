"""Event time on real Spark: what filters drop still tells how far a source has come, whatever happens to tasks."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import holdfast as hf

pytestmark = pytest.mark.spark
FIRST = dt.datetime(2026, 1, 1)
SCHEMA = "k bigint, v bigint, ts timestamp, plain timestamp_ntz"


def write(folder: Path, number: int, rows: list[tuple[int, int]]) -> None:
    """Rows of a value and a second since the first."""
    folder.mkdir(exist_ok=True)
    times = [(FIRST + dt.timedelta(seconds=second)).isoformat() for _, second in rows]
    said = [{"k": v % 3, "v": v, "ts": f"{at}Z", "plain": at} for (v, _), at in zip(rows, times, strict=True)]
    path = folder / f"{number}.json"
    path.write_text("\n".join(json.dumps(one) for one in said))
    os.utime(path, (number + 1, number + 1))  # Spark takes them by that, and two may be written in one millisecond


def test_a_selective_filter_does_not_hold_the_watermark_back(
    tmp_path: Path, spark: SparkSession, task_faults: Path
) -> None:
    """One row in a hundred is wanted, and of the second source none. A task dies on the way and is tried again."""
    far = 3_000_000_000
    for number in range(3):
        write(tmp_path / "one", number, [(v, 60 * number + v % 60) for v in range(100)])
        write(tmp_path / "two", number, [(1, 60 * number + 30), (2, far)])
    (task_faults / "task@in-intake@2").touch()
    job = hf.Job("time", spark, store=str(tmp_path / "store"))
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    one, two = (job.read(reader.json(str(tmp_path / name)), name) for name in ("one", "two"))

    def windows(rows: hf.Stream, name: str, on: str = "ts", **options: str) -> hf.StageStream:
        return rows.key_by("k", name=name).window(hf.tumbling("10 s"), on=on, **options).agg(n=hf.count())  # type: ignore[arg-type]

    wanted = windows(one.where("v = 7"), "wanted")
    windows(one.where("v = 7").select("k", "plain"), "plain", on="plain")
    windows(one.union(two.where("v < 0")).where("v = 7"), "both", ahead="1 hour")
    windows(two.where("v < 0"), "none")
    windows(one.select("*", F.col("ts").alias("made")).where("v = 7"), "made", on="made")
    wanted.write("parquet", str(tmp_path / "out"))
    with job.start(containers=1, slices=4, trigger={"availableNow": True}) as run:
        run.await_termination()
        marks = {stage.name: stage.watermark for stage in run.status().stages}
        assert all(stage.keys == 0 for stage in run.status().stages), "all windows are closed"
    assert not (task_faults / "task@in-intake@2").exists()
    seconds = {"wanted": 179, "plain": 179, "both": 150, "none": far, "made": 179}
    assert marks == {name: (FIRST + dt.timedelta(seconds=at)).replace(tzinfo=dt.UTC) for name, at in seconds.items()}
    closed = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row["_epoch"], row["n"]) for row in closed) == [(1, 1), (2, 1), (3, 1)]
