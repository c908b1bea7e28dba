"""What Spark's tasks do ahead of a stage changes nothing: the same rows, without Spark, give the same results."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast import testing

pytestmark = pytest.mark.spark
SCHEMA = "k bigint, v bigint, name string, ts timestamp"
FIRST = dt.datetime(2026, 1, 1)
Draw = Callable[[hf.Stream], hf.StageStream]

STAGES: dict[str, Draw] = {
    "sliding": lambda rows: (
        rows.key_by("k")
        .window(hf.sliding("12 s", every="4 s"), time="ts", lateness="3 s")
        .agg(n=hf.count(), total=hf.sum("v"), least=hf.min("v"), name=hf.max("name"), mean=hf.mean("v"))
    ),
    "session": lambda rows: (
        rows.key_by("k", "name")
        .window(hf.session("2 s"), time="ts", lateness="3 s")
        .agg(n=hf.count(), most=hf.max("v"))
    ),
    "top_k": lambda rows: (
        rows.key_by("k").window(hf.tumbling("10 s"), time="ts", lateness="3 s").top_k(2, by="v", ties="all")
    ),
}


def epochs() -> list[list[dict[str, Any]]]:
    """Rows in disorder, some far too late, some without a time or a value."""
    draw = np.random.default_rng(11)
    found = []
    for epoch in range(4):
        seconds = epoch * 10 + draw.exponential(4, 400) - draw.exponential(3, 400) * (draw.random(400) < 0.2)
        rows = []
        for at in seconds.tolist():
            time = (FIRST + dt.timedelta(seconds=round(at, 3))).isoformat() if draw.random() > 0.01 else None
            value = int(draw.integers(0, 40)) if draw.random() > 0.05 else None
            rows.append(
                {"k": int(draw.integers(0, 7)), "v": value, "name": "abc"[int(draw.integers(0, 3))], "ts": time}
            )
        found.append(rows)
    return found


def test_it_changes_nothing(tmp_path: Path, spark: SparkSession) -> None:
    """All of them in one job."""
    model = testing.Job()
    given = model.read(SCHEMA)
    wanted = {shape: stage(given) for shape, stage in STAGES.items()}
    (tmp_path / "in").mkdir()
    with model.start() as run:
        for number, rows in enumerate(epochs()):
            run.epoch(rows)
            said = [row | {"ts": row["ts"] and f"{row['ts']}Z"} for row in rows]
            (tmp_path / "in" / f"{number}.json").write_text("\n".join(map(json.dumps, said)))
        expected = {shape: run.rows(stage) for shape, stage in wanted.items()}
        counts = [run.counts(stage) for stage in wanted.values()]
    assert all(one["late"] > 10 for one in counts)

    found: dict[str, list[dict[str, Any]]] = {shape: [] for shape in STAGES}
    job = hf.Job("ahead", spark, store=str(tmp_path / "store"))
    read = job.read(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{tmp_path}/in"))
    for shape, stage in STAGES.items():

        def keep(frame: DataFrame, epoch: int, shape: str = shape) -> None:
            found[shape].extend(frame.toArrow().to_pylist())

        stage(read).for_each_batch(keep)
    with job.start(containers=2, slices=5, preaggregate=True, trigger={"availableNow": True}) as run:
        run.await_termination()
        status = run.status().stages
    for shape in STAGES:
        testing.equal(found[shape], expected[shape])
    assert [dict(stage.counts) for stage in status] == counts
