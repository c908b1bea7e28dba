"""The most clicked products of the last five minutes, every half minute: what to put a discount on.

The example of the ELF and SR3 papers: a sliding window by event time, and the best of every window. A window's ranking
comes out once, when no more than ``LATENESS`` late clicks can change it; later ones are counted, and dropped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from epochs import SECOND, START, session, stream, times
from pyspark.sql import DataFrame

import holdfast as hf

BEST = 5
SIZE, EVERY, LATENESS = 300, 30, 10  # seconds


def build(job: hf.Job, clicks: DataFrame) -> hf.StageStream:
    hot = (
        job.read(clicks)
        .where("store = 'video games'")
        .key_by("product", name="hot")
        .window(hf.sliding(f"{SIZE} s", every=f"{EVERY} s"), time="ts", lateness=f"{LATENESS} s")
        .agg(clicks=hf.sum("clicks"))
    )
    return hot.top_k(BEST, by="clicks", name="best")


def generate(seed: int = 1, epochs: int = 6, clicks: int = 2000) -> Iterator[pa.Table]:
    """Three minutes an epoch; a few products get most clicks; one click in 200 is up to ten minutes late."""
    draw = np.random.default_rng(seed)
    for epoch in range(epochs):
        at = START + np.sort(draw.integers(0, 180 * SECOND, clicks)) + epoch * 180 * SECOND
        at -= draw.integers(0, LATENESS * SECOND, clicks)
        at -= np.where(draw.random(clicks) < 0.005, draw.integers(0, 600 * SECOND, clicks), 0)
        products = draw.zipf(1.3, clicks) % 40
        yield pa.table(
            {
                "store": draw.choice(["video games", "toys"], clicks, p=[0.8, 0.2]),
                "product": [f"game {product}" for product in products],
                "clicks": draw.integers(1, 4, clicks),
                "ts": times(at),
            }
        )


def show(best: DataFrame, epoch: int) -> None:
    for row in best.orderBy("window_end", "rank").collect():
        if row.rank == 1:
            print(f"{row.window_start:%H:%M:%S} to {row.window_end:%H:%M:%S}", end="")
        print(f"  {row.product} ({row.clicks})", end="\n" if row.rank == BEST else "")


def main() -> None:
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        job = hf.Job("micro-promotion", spark, store=f"{folder}/state")
        build(job, stream(spark, f"{folder}/clicks", generate())).for_each_batch(show)
        with job.start(trigger={"availableNow": True}) as run:
            run.await_termination()
            print(run.status().stages[0])


if __name__ == "__main__":
    main()
