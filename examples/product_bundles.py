"""Bundles of products: what is bought together belongs together, however many steps apart.

Connected components of a graph that grows. Every product has a label, at first its own number; it tells its neighbours
whenever that falls, and takes the least that it hears of. What it tells goes round a loop, to be heard in the next
epoch; with ``settle=True`` that comes to its end before further baskets are taken, and each batch ends with the bundles
as they are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from epochs import session, stream
from pyspark.sql import DataFrame

import holdfast as hf

TOLD = "product bigint, other bigint, bundle bigint"


class Bundles:
    """The least number among all products that hang together with one."""

    bundle = hf.states.value("bigint")
    others = hf.states.map("bigint", "boolean")

    def rows(self, product, rows, context):
        state = context.state
        before = state.bundle
        told = [row["bundle"] for row in rows if row["bundle"] is not None]
        least = min([product if before is None else before, *told])
        new = dict.fromkeys(row["other"] for row in rows if row["bundle"] is None)
        to = [other for other in new if other not in state.others]
        for other in to:
            state.others[other] = True
        if least != before:
            state.bundle = least
            to = list(state.others.keys())
            context.emit({"product": product, "bundle": least}, to="bundles")
        for other in to:
            yield {"product": other, "other": product, "bundle": least}


def build(job, bought) -> hf.StageStream:
    """``bought``: rows of two products of one basket."""
    nobody = ("bundle", "CAST(NULL AS bigint)")
    one = bought.select("product", "other").with_column(*nobody)
    other = bought.select("other", "product").with_column(*nobody)
    told = job.loop(TOLD, name="told")
    bundles = (
        one.union(other)
        .union(told)
        .key_by("product", name="bundles")
        .process(Bundles, TOLD, outputs={"bundles": "product bigint, bundle bigint"})
    )
    told.close(bundles)
    return bundles


def generate(seed: int = 1, epochs: int = 4, pairs: int = 60, products: int = 200) -> Iterator[pa.Table]:
    draw = np.random.default_rng(seed)
    for _ in range(epochs):
        yield pa.table({"product": draw.integers(0, products, pairs), "other": draw.integers(0, products, pairs)})


def read(job: hf.Job, baskets: DataFrame) -> hf.StageStream:
    return build(job, job.read(baskets))


def main() -> None:
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        job = hf.Job("product-bundles", spark, store=f"{folder}/state")
        bundles = read(job, stream(spark, f"{folder}/baskets", generate()))
        with job.start(trigger={"availableNow": True}, settle=True) as run:
            run.await_termination()
            run.state(bundles).to_df().groupBy("bundle").count().orderBy("count", ascending=False).show(5)
            print(run.status().loops[0])


if __name__ == "__main__":
    main()
