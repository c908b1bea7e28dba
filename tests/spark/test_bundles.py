"""Unions of many stages: branches that are alike are one, and every row comes as often as it should."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import holdfast as hf
from holdfast.driver import epochs
from holdfast.plan.graph import Output
from holdfast.spark.bundles import bundles

pytestmark = pytest.mark.spark
KINDS = 7
SCHEMA = "kind long, k long, s string, v long"


def drawn(spark: SparkSession, folder: Path) -> tuple[hf.Job, list[Any]]:
    """Stages by the same key over unlike rows, and two by another."""
    job = hf.Job("unions", spark, store=folder / "store")
    rows = job.read(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in")), name="r")
    stages = [
        rows.where(f"kind = {at}").key_by("k", name=f"by_k_{at}").agg(n=hf.count(), total=hf.sum("v"))
        for at in range(KINDS)
    ]
    stages += [rows.where(f"kind = {at}").key_by("s", name=f"by_s_{at}").agg(n=hf.count()) for at in range(2)]
    return job, stages


def united(streams: list[Any]) -> Any:
    first, *others = streams
    for other in others:
        first = first.union(other)
    return first


def write(spark: SparkSession, folder: Path, files: int = 3) -> None:
    for number in range(files):
        rows = spark.range(200).selectExpr(
            f"(id + {number}) % {KINDS} AS kind", "id % 13 AS k", "concat('s', id % 3) AS s", "id AS v"
        )
        rows.coalesce(1).write.mode("append").json(str(folder / "in"))


def kinds(job: hf.Job, stream: Any) -> list[list[str]] | None:
    stream.write("noop")
    plan = job.plan()
    (sink,) = plan.sinks
    schema = lambda leaf: plan.stage(leaf.stage.name).outputs[leaf.port]  # noqa: E731
    found = bundles(sink.node, schema, lambda columns: job.spark.createDataFrame([], columns))
    return None if found is None else [[one.stage.name for one in bundle.outputs] for bundle in found]


def test_branches_that_do_the_same_are_one(tmp_path: Path, spark: SparkSession) -> None:
    write(spark, tmp_path, 1)
    job, stages = drawn(spark, tmp_path)
    first = [stage.select("n", (F.col("n") + 1).alias("more")) for stage in stages[:3]]
    other = stages[3].select("n", F.expr("n + 1 AS more"))  # written otherwise
    unlike = stages[4].select("n", F.expr("n + 2 AS more"))
    filtered = [stage.where("n > 1").select("n", F.expr("n + 1 AS more")) for stage in stages[5:]]
    assert kinds(job, united([first[0], unlike, *filtered, *first[1:], other, first[0]])) == [
        ["by_k_0", "by_k_1", "by_k_2", "by_k_3", "by_k_0"],
        ["by_k_4"],
        ["by_k_5", "by_k_6"],
        ["by_s_0", "by_s_1"],
    ]


@pytest.mark.parametrize("step", ["transform", "rand", "epoch", "few"])
def test_what_depends_on_more_than_its_row_stays_as_it_is(tmp_path: Path, spark: SparkSession, step: str) -> None:
    write(spark, tmp_path, 1)
    job, stages = drawn(spark, tmp_path)
    made = {
        "transform": lambda one: one.transform(lambda df: df.select("n").distinct()),
        "rand": lambda one: one.select("n", F.rand().alias("luck")),
        "epoch": lambda one: one.select("n", hf.epoch().alias("epoch")),
        "few": lambda one: one.select("n"),
    }[step]
    assert kinds(job, united([made(one) for one in (stages[:3] if step == "few" else stages)])) is None


@pytest.mark.parametrize("small", [True, False])
def test_every_row_comes_as_often_as_it_should(
    tmp_path: Path, spark: SparkSession, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the driver, and by tasks that scan; of one that stands there twice, twice."""
    write(spark, tmp_path)
    job, stages = drawn(spark, tmp_path)
    if not small:
        scanned = ("by_k_0", "by_s_0")
        monkeypatch.setattr(epochs.EpochJobs, "_is_small", lambda _, output, mode: output.stage.name not in scanned)
    called: list[int] = []
    as_it_was = epochs.EpochJobs._frame

    def frame(self: epochs.EpochJobs, tables: Any, output: Output, mode: Any) -> Any:
        called.append(len(tables))
        return as_it_was(self, tables, output, mode)

    monkeypatch.setattr(epochs.EpochJobs, "_frame", frame)
    found: Counter[tuple[int, int]] = Counter()

    def take(df: Any, epoch: int) -> None:
        found.update((row.n, int(epoch)) for row in df.collect())

    united([stage.select("n") for stage in [*stages, stages[0]]]).for_each_batch(take)
    with job.start(slices=4, containers=2, trigger={"availableNow": True}) as run:
        run.await_termination()
    assert len(called) == 2 * 3, "one frame for each of two kinds, in three epochs"
    wanted: Counter[tuple[int, int]] = Counter()
    counts: Counter[tuple[object, ...]] = Counter()
    files = sorted((tmp_path / "in").glob("*.json"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    for epoch, file in enumerate(files, 1):
        touched: set[tuple[object, ...]] = set()
        for row in spark.read.schema(SCHEMA).json(str(file)).collect():
            keys = [("k", row.kind, row.k), *([("s", row.kind, row.s)] if row.kind < 2 else [])]
            for key in keys:
                counts[key] += 1
                touched.add(key)
        for key in touched:
            wanted[counts[key], epoch] += 2 if key[:2] == ("k", 0) else 1
    assert found == wanted
