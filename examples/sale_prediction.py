"""Will a new game sell? A job that asks two others, each of which has its own business.

ELF's running example. *Micro-promotion* ranks products by their clicks; *product bundling* counts which products are
bought together, and keeps the best companions of each; *sale prediction* takes the name of a product that the new one
is like, joins it with its companions, and these with the ranking: if many of them are popular now, so may the new one
be.

The two questions are edges of one graph: of the same epoch, in the log, and their answers follow when what was asked
changes. No row of a source is read twice, whoever reads it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from epochs import SECOND, START, session, stream, times
from pyspark.sql import DataFrame

import holdfast as hf

PRODUCTS = 60
POPULAR, COMPANIONS = 20, 5
APART, LATENESS = 240, 300  # seconds: what is bought together; how much out of order that comes


class Answers(NamedTuple):
    stated: hf.StageStream
    predicted: hf.StageStream


def draw(hub: hf.Hub, clicks: DataFrame, purchases: DataFrame, launches: DataFrame) -> Answers:
    hub.read(clicks, name="clicks")
    hub.read(purchases, name="purchases")
    hub.read(launches, name="launches")
    promote(hub.job("micro-promotion", creator="marketing"))
    bundle(hub.job("product-bundling", creator="recommendations"))
    return predict(hub.job("sale-prediction", creator="studio"))


def promote(job: hf.HubJob) -> None:
    counts = job.stream("clicks").where("clicks > 0").key_by("product", name="counts").agg(clicks=hf.sum("clicks"))
    counts.top_k(POPULAR, by="clicks", name="popular")


def bundle(job: hf.HubJob) -> None:
    bought = job.stream("purchases")
    other = bought.select("basket", hf.expr("product AS companion"), hf.expr("ts AS then"))
    pairs = bought.key_by("basket", name="pairs").join(
        other.key_by("basket"), time=("ts", "then"), within=f"{APART} s", lateness=f"{LATENESS} s"
    )
    together = pairs.where("product <> companion").key_by("product", "companion", name="together").agg(times=hf.count())
    together.key_by("product", name="groups").top_k(COMPANIONS, by="times")


def predict(job: hf.HubJob) -> Answers:
    launches = job.stream("launches")
    stated = launches.key_by("product", name="stated").lookup(job.stream("micro-promotion/counts"))
    groups = job.stream("product-bundling/groups").select("product", "companion", "times")
    alike = launches.key_by("product", name="alike").join(groups.key_by("product"))
    popular = job.stream("micro-promotion/popular").select(hf.expr("product AS companion"), "clicks")
    found = alike.key_by("companion", name="popular-companions").join(popular.key_by("companion"))
    predicted = found.key_by("launch", name="prediction").agg(companions=hf.count(), clicks=hf.sum("clicks"))
    return Answers(stated, predicted)


def generate(seed: int = 1, epochs: int = 6) -> Iterator[tuple[pa.Table, pa.Table, pa.Table]]:
    """Clicks, purchases and launches: some products are clicked on much more than others, and the products of a basket
    stand near to each other."""
    random = np.random.default_rng(seed)
    for epoch in range(epochs):
        clicked = random.zipf(1.4, 3000) % PRODUCTS
        first = random.integers(0, PRODUCTS, 400)
        items = (first[:, None] + random.zipf(1.8, (400, 3)).cumsum(axis=1)) % PRODUCTS
        at = START + epoch * 180 * SECOND + random.integers(0, 180 * SECOND, 400)
        bought = at[:, None] + random.integers(-400 * SECOND, 0, (400, 3))
        stated = random.choice(PRODUCTS, 8, replace=False)
        yield (
            pa.table({"product": names(clicked), "clicks": random.integers(0, 4, 3000)}),
            pa.table(
                {
                    "basket": np.repeat(np.arange(400) + epoch * 400, 3),
                    "product": names(items.ravel()),
                    "ts": times(bought.ravel()),
                }
            ),
            pa.table({"launch": [f"launch {epoch}.{number}" for number in range(8)], "product": names(stated)}),
        )


def names(numbers: np.ndarray) -> list[str]:
    return [f"game {number}" for number in numbers]


def main() -> None:
    spark = session()
    with tempfile.TemporaryDirectory() as base:
        hub = hf.Hub("shop", spark, store=f"{base}/state")
        tables = zip(*generate(), strict=True)
        folders = (Path(base, name) for name in ("clicks", "purchases", "launches"))
        draw(hub, *(stream(spark, folder, given) for folder, given in zip(folders, tables, strict=True)))
        with hub.start(trigger={"availableNow": True}) as run:
            run.await_termination()
            print(*run.sql("SELECT * FROM `sale-prediction/prediction` ORDER BY clicks DESC, launch LIMIT 5"), sep="\n")
            print(*run.jobs, sep="\n")


if __name__ == "__main__":
    main()
