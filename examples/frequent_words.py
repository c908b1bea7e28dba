"""The most frequent of the last words of every topic: a sliding window by count, and top-k over it.

ChronoStream's first application. Which words are the last ones is the business of a function with a count window; it
says only what changes, so that counting and ranking are ordinary stages, spread over all slices, that never look at the
window again. Prints the ranking after every epoch.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from epochs import session, stream
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import holdfast as hf

LAST = 400
"""So many words of a topic are in its window."""
BEST = 3
STOP_WORDS = ("a", "of", "the", "to")


class LastWords:
    """A word that comes counts 1 more, and the one it pushes out of the window 1 less."""

    words = hf.states.window(rows=LAST, of="string")

    def rows(self, topic, rows, context):
        words, changes = context.state.words, Counter()
        for row in rows:
            if len(words) == LAST:
                changes[words[0]] -= 1
            words.append(row["word"])
            changes[row["word"]] += 1
        return [{"topic": topic, "word": word, "change": change} for word, change in changes.items() if change]


def build(job: hf.Job, articles: DataFrame) -> hf.StageStream:
    words = (
        job.read(articles)
        .select("topic", F.explode(F.split(F.lower("text"), r"\W+")).alias("word"))
        .where(F.length("word") > 0)
        .where(~F.col("word").isin(*STOP_WORDS))
    )
    changes = words.key_by("topic", name="last-words").process(LastWords, "topic string, word string, change bigint")
    counts = changes.key_by("topic", "word", name="counts").agg(count=hf.sum("change"))
    return counts.where("count > 0").top_k(BEST, by="count", per="topic", name="best")


def generate(seed: int = 1, epochs: int = 6, articles: int = 60) -> Iterator[pa.Table]:
    """Articles whose words are drawn from a vocabulary that drifts: what was frequent falls behind."""
    draw = np.random.default_rng(seed)
    vocabulary = np.array(
        ["the", "of", "to", "a", "Kelp", "current", "rock", "tide", "storm", "reef", "Holdfast", "salt"]
    )
    for epoch in range(epochs):
        shares = draw.dirichlet(np.roll(np.linspace(3.0, 0.2, len(vocabulary)), epoch))
        texts = [", ".join(draw.choice(vocabulary, draw.integers(3, 25), p=shares)) + "." for _ in range(articles)]
        yield pa.table({"topic": draw.choice(["sea", "weather", "travel"], articles), "text": texts})


def show(ranking: DataFrame, epoch: int) -> None:
    print(f"after epoch {epoch}, of the last {LAST} words:")
    for row in ranking.orderBy("topic", "rank").collect():
        print(f"  {row.topic:>8} {row.rank}. {row.word:<9} {row['count']:>4}")


def main() -> None:
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        job = hf.Job("frequent-words", spark, store=f"{folder}/state")
        build(job, stream(spark, f"{folder}/articles", generate())).for_each_batch(show)
        with job.start(trigger={"availableNow": True}) as run:
            run.await_termination()


if __name__ == "__main__":
    main()
