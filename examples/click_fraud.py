"""Ads that are clicked again and again by the same visitors, found with a Bloom filter.

SR3's third application. A click counts if its visitor has not clicked the ad in the last ten minutes. Remembering that
exactly takes a row for every visitor and ad; a Bloom filter takes some bits, at the price that a share of at most
``ERROR`` of honest clicks is not paid for. Ads with many clicks of the other kind are put out whenever they change.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from epochs import SECOND, START, session, stream, times
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import holdfast as hf

WITHIN, LATENESS = 600, 30  # seconds
ERROR = 0.001
DOUBTFUL = 0.3


def build(job: hf.Job, clicks: DataFrame) -> tuple[hf.StageStream, hf.Stream]:
    """The clicks to be paid for, and the ads that get too many others."""
    rows = job.read(clicks)
    paid = rows.key_by("visitor", "ad", name="paid").distinct(
        time="ts", within=f"{WITHIN} s", lateness=f"{LATENESS} s", error=ERROR, expected=50_000
    )
    every = rows.key_by("ad", name="clicks-by-ad").agg(clicks=hf.count())
    both = every.key_by("ad", name="both").join(paid.key_by("ad", name="paid-by-ad").agg(paid=hf.count()).key_by("ad"))
    share = 1 - F.col("paid") / F.col("clicks")
    return paid, both.with_column("doubtful", share).where(F.col("doubtful") > DOUBTFUL)


def generate(seed: int = 1, epochs: int = 6, clicks: int = 3000) -> Iterator[pa.Table]:
    """Honest visitors, who click an ad once or twice, and a few machines that click one ad all day."""
    draw = np.random.default_rng(seed)
    for epoch in range(epochs):
        at = START + np.sort(draw.integers(0, 240 * SECOND, clicks)) + epoch * 240 * SECOND
        at -= draw.integers(0, LATENESS * SECOND, clicks)
        machine = draw.random(clicks) < 0.1
        ad = np.where(machine, draw.choice([3, 17], clicks), draw.integers(0, 30, clicks))
        visitor = np.where(machine, draw.integers(0, 20, clicks), draw.integers(20, 20_000, clicks))
        yield pa.table({"visitor": visitor, "ad": [f"ad {number}" for number in ad], "ts": times(at)})


def show(doubtful: DataFrame, epoch: int) -> None:
    for row in doubtful.orderBy("ad").collect():
        print(f"epoch {epoch}: {row.ad} has {row.clicks} clicks, {row.doubtful:.0%} of them doubtful")


def main() -> None:
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        job = hf.Job("click-fraud", spark, store=f"{folder}/state")
        _, doubtful = build(job, stream(spark, f"{folder}/clicks", generate()))
        doubtful.for_each_batch(show)
        with job.start(trigger={"availableNow": True}) as run:
            run.await_termination()
            print(*run.status().stages, sep="\n")  # "paid" has counted the duplicates


if __name__ == "__main__":
    main()
