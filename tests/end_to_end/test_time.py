"""Event time on real Spark: what filters drop still tells how far a source has come, whatever happens to tasks."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import holdfast as hf
from holdfast import testing

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
    tmp_path: Path, spark: SparkSession, task_faults: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row in a hundred is wanted, and of the second source none. A task dies on the way and is tried again. And the
    driver's clock jumps by a year, which no epoch records."""
    far = 3_000_000_000
    for number in range(3):
        write(tmp_path / "one", number, [(v, 60 * number + v % 60) for v in range(100)])
        write(tmp_path / "two", number, [(1, 60 * number + 30), (2, far)])
    (task_faults / "task@in-intake@2").touch()
    job = hf.Job("time", spark, store=str(tmp_path / "store"))
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    one, two = (job.read(reader.json(str(tmp_path / name)), name) for name in ("one", "two"))

    def windows(rows: hf.Stream, name: str, at: str = "ts", **options: str | None) -> hf.StageStream:
        return rows.key_by("k", name=name).window(hf.tumbling("10 s"), time=at, **options).agg(n=hf.count())  # type: ignore[arg-type]

    wanted = windows(one.where("v = 7"), "wanted")
    windows(one.where("v = 7").select("k", "plain"), "plain", at="plain")
    windows(one.union(two.where("v < 0")).where("v = 7"), "both", ahead="1 hour")
    windows(two.where("v < 0"), "none", ahead=None)
    windows(one.select("*", F.col("ts").alias("made")).where("v = 7"), "made", at="made")
    windows(one.with_column("void", F.lit(None).cast("timestamp")), "never", at="void")
    wanted.write("parquet", str(tmp_path / "out"))
    jumped, real = [0], time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + jumped[0])
    wanted.for_each_batch(lambda _, epoch: jumped.__setitem__(0, 365 * 86_400 * 10**9 if epoch == 1 else jumped[0]))
    with job.start(containers=1, slices=4, trigger={"availableNow": True}) as run:
        run.await_termination()
        marks = {stage.name: stage.watermark for stage in run.status().stages}
        clocks = [prepare.clock for epoch in (1, 2, 3) if (prepare := run._ledger.get_prepare(epoch, 1))]
        assert 0 < clocks[0] < clocks[1] < clocks[2] < real() // 1_000_000 + 3_600_000
        warned = [event.text for event in run.status().events if event.kind == "warning"]
        assert sum("jumped ahead by 365" in text for text in warned) == 1
        assert sum("'never', in column 'void', all 100 have none" in text for text in warned) == 1
        assert all(stage.keys == 0 for stage in run.status().stages), "all windows are closed"
    assert not (task_faults / "task@in-intake@2").exists()
    seconds = {"wanted": 179, "plain": 179, "both": 150, "none": far, "made": 179}
    assert marks.pop("never") is None
    assert marks == {name: (FIRST + dt.timedelta(seconds=at)).replace(tzinfo=dt.UTC) for name, at in seconds.items()}
    closed = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row["_epoch"], row["n"]) for row in closed) == [(1, 1), (2, 1), (3, 1)]


def test_readers_of_sessions_by_start_lose_none_when_containers_die(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest session that is open holds their watermark back, also when its slice has just been brought back."""
    (tmp_path / "faults").mkdir()
    monkeypatch.setenv("HOLDFAST_FAULTS", str(tmp_path / "faults"))
    draw = random.Random(7)
    model = testing.Job()
    sessions, wanted = by_start(model.read("k bigint, v bigint, ts timestamp"))
    epochs = [[(v, 12 * number + draw.randrange(-9, 16)) for v in draw.choices(range(30), k=8)] for number in range(7)]
    epochs.append([(99, 5_000)])
    with model.start() as said:
        for number, rows in enumerate(epochs):
            write(tmp_path / "in", number, rows)
            said.epoch([{"k": v % 3, "v": v, "ts": FIRST + dt.timedelta(seconds=at)} for v, at in rows])
        expected, watermark = said.rows(wanted), said.watermark(wanted)
        lasted = [row["window_end"] - row["window_start"] for row in said.rows(sessions)]
        assert sum(one > dt.timedelta(seconds=16) for one in lasted) > 3, "longer than the windows they are counted in"
        assert said.counts(wanted) == {}
    job = hf.Job("starts", spark, store=str(tmp_path / "store"))
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    _, stage = by_start(job.read(reader.json(str(tmp_path / "in"))).select("k", "v", "ts"))
    stage.write("parquet", str(tmp_path / "out"))
    for epoch in (2, 4, 6):
        (tmp_path / "faults" / f"container@mid-apply@{epoch}").touch()
    with job.start(containers=2, slices=4, trigger={"availableNow": True}) as run:
        run.await_termination()
        found = {one.name: one for one in run.status().stages}["starts"]
        with pytest.raises(hf.PlanError, match=r"'k' of stage 'starts' is of type bigint: 0\.7 is a float"):
            run.state(stage).get(0.7)
    assert not list((tmp_path / "faults").iterdir())
    assert (found.watermark, found.counts) == (watermark, {})
    testing.equal(spark.read.parquet(str(tmp_path / "out")).drop("_epoch").toArrow().to_pylist(), expected)


def by_start(rows: hf.Stream) -> tuple[hf.StageStream, hf.StageStream]:
    sessions = rows.key_by("k", name="sessions").window(hf.session("6 s"), time="ts", lateness="2 s").agg(n=hf.count())
    some = sessions.select("k", "window_start", "n")
    return sessions, some.key_by("k", name="starts").window(hf.tumbling("10 s"), time="window_start").agg(
        rows=hf.sum("n")
    )
