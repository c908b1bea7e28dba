"""PageRank of a graph that grows, by pushes.

A page keeps its rank, and what it has been given and not passed on. When that is more than a tolerance it adds it to
its rank, and gives a share of it to each page that it links to; what is given goes round a loop. A page that gets
another link puts right what it gave until then, with amounts below zero where that was too much, so ranks are what they
would be had all links been there from the beginning.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from epochs import session, stream
from pyspark.sql import DataFrame

import holdfast as hf

DAMPING = 0.85
TOLERANCE = 1e-3
"""What a page keeps to itself. Of n pages the ranks are together at most n · TOLERANCE / (1 - DAMPING) off."""
GIVEN = "page bigint, target bigint, amount double"


class Ranks:
    rank = hf.states.value("double", default=0.0)
    held = hf.states.value("double")
    links = hf.states.map("bigint", "boolean")

    def rows(self, page, rows, context):
        state = context.state
        held = (1.0 - DAMPING if state.held is None else state.held) + sum(row["amount"] for row in rows)
        links = list(state.links.keys())
        new = dict.fromkeys(row["target"] for row in rows if row["target"] is not None)
        added = [target for target in new if target not in state.links]
        gives = {}
        if added:
            before = DAMPING * state.rank / len(links) if links else 0.0
            after = DAMPING * state.rank / (len(links) + len(added))
            gives = dict.fromkeys(links, after - before) | dict.fromkeys(added, after)
            for target in added:
                state.links[target] = True
            links += added
        if abs(held) > TOLERANCE:
            state.rank += held
            for target in links:
                gives[target] = gives.get(target, 0.0) + DAMPING * held / len(links)
            held = 0.0
        state.held = held
        for target, amount in gives.items():
            if amount:
                yield {"page": target, "target": None, "amount": amount}


def build(job, links) -> hf.StageStream:
    """``links``: rows of a page and the one that it links to."""
    nothing = ("amount", "CAST(0 AS double)")
    out = links.select("page", "target").with_column(*nothing)
    into = links.select("target").with_column("nobody", "CAST(NULL AS bigint)").with_column(*nothing)
    given = job.loop(GIVEN, name="given")
    ranks = out.union(into).union(given).key_by("page", name="ranks").process(Ranks, GIVEN)
    given.close(ranks)
    return ranks


def generate(seed: int = 1, epochs: int = 3, links: int = 60, pages: int = 40) -> Iterator[pa.Table]:
    draw = np.random.default_rng(seed)
    for _ in range(epochs):
        page, target = draw.integers(0, pages, links), draw.zipf(1.5, links) % pages
        yield pa.table({"page": page, "target": target.astype(np.int64)})


def read(job: hf.Job, links: DataFrame) -> hf.StageStream:
    return build(job, job.read(links))


def main() -> None:
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        job = hf.Job("page-rank", spark, store=f"{folder}/state")
        ranks = read(job, stream(spark, f"{folder}/links", generate()))
        with job.start(trigger={"availableNow": True}, settle=True) as run:
            run.await_termination()
            run.state(ranks).to_df().select("page", "rank").orderBy("rank", ascending=False).show(5)
            print(run.status().loops[0])


if __name__ == "__main__":
    main()
