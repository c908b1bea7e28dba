"""Two jobs, of which one reads what the other names: drawn for tests, and run in processes of their own, so that what
dies is a real driver."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import driver
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import holdfast as hf

QUIET: dict[str, Any] = {"containers": 1, "slices": 4, "safety": None, "trigger": "availableNow"}


def job_a(spark: SparkSession, base: Path, *, keep: str | None = "all", more: bool = False) -> hf.Job:
    """Totals, whose rows change, and closed windows, whose rows do not."""
    job = hf.Job("a", spark, store=base / "a")
    rows = job.read(driver.source(spark, str(base / "in")), name="rows")
    further = {"total": hf.sum("v")} if more else {}
    totals = rows.key_by("k", name="totals").agg(n=hf.count(), **further)
    totals.where("n > 1").named("totals", keep=keep)
    windows = rows.key_by("g", name="windows").window(hf.tumbling("10 s"), time="t", lateness="5 s").agg(n=hf.count())
    windows.named("windows", keep=keep)
    windows.write("parquet", str(base / "a-windows"), mode="append")
    return job


def job_b(
    spark: SparkSession, base: Path, name: str = "b", *, reader: str | None = None
) -> tuple[hf.Job, dict[str, hf.StageStream]]:
    """How many keys have been seen how often, the busiest, and how many rows closed windows have of each group."""
    job = hf.Job(name, spark, store=base / name)
    totals = job.stream("totals", store=base / "a", reader=reader)
    windows = job.stream("windows", store=base / "a", reader=reader)
    sizes = totals.key_by("n", name="sizes").agg(keys=hf.count())
    busiest = totals.where("k % 2 = 0").top_k(5, by=["n", ("k", "asc")], name="busiest")
    groups = windows.key_by("g", name="groups").agg(windows=hf.count(), rows=hf.sum("n"))
    windows.write("parquet", str(base / f"{name}-windows"), stamp=False)
    windows.top_k(2, by=["n", ("g", "asc")], name="best").write("parquet", str(base / f"{name}-best"), stamp=False)
    groups.write("parquet", str(base / f"{name}-groups"))
    return job, {"sizes": sizes, "busiest": busiest, "groups": groups}


def main(base: Path, which: str) -> None:
    spark = driver.session({"master": "local[2]"})
    spark.sparkContext.setLogLevel("OFF")
    options = {**QUIET, "containers": 2, "safety": hf.Delta(1, every=1, store_every=2)}
    if which == "a":
        with job_a(spark, base).start(**options) as run:
            run.await_termination()
        return
    job, stages = job_b(spark, base)
    with job.start(**options) as run:
        run.await_termination()
        for name, stage in stages.items():
            pq.write_table(run.state(stage).to_arrow(), base / f"{name}.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
