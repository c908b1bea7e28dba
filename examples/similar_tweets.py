"""Tweets of one place that say nearly the same: each is compared with the recent ones around it.

ChronoStream's second application. A function keeps the last minutes of every place in a time window, which forgets by
itself, and finds the tweet most like a new one by the words they share; ``top_k`` keeps the best pairs of a place.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from epochs import SECOND, START, session, stream, times
from pyspark.sql import DataFrame

import holdfast as hf

APART = dt.timedelta(minutes=10)
"""Tweets further apart than this are not compared."""
LIKE = 0.5
BEST = 3


class MostSimilar:
    """Of what came before it, the tweet that shares most words with a new one (Jaccard's index), if it is enough."""

    recent = hf.states.window(time="11 minutes", of="string")  # APART, and the minute that a tweet may be late

    def rows(self, place, rows, context):
        recent = context.state.recent
        for row in rows:
            words, found = set(row["text"].split()), []
            for at, tweet in recent.items():
                number, text = tweet.split(" ", 1)
                other = set(text.split())
                if abs(row["ts"] - at) <= APART:
                    found.append((len(words & other) / len(words | other), -int(number)))
            similarity, number = max(found, default=(0.0, 0))
            if similarity >= LIKE:
                yield {"place": place, "id": row["id"], "like": -number, "similarity": similarity}
            recent.append(f"{row['id']} {row['text']}", row["ts"])


def build(job: hf.Job, tweets: DataFrame) -> hf.StageStream:
    pairs = (
        job.read(tweets)
        .key_by("place", name="most-similar")
        .process(
            MostSimilar,
            "place string, id bigint, like bigint, similarity double",
            time="ts",
            lateness="1 minute",
            late="count",
        )
    )
    return pairs.top_k(BEST, by=["similarity", ("id", "asc")], per="place", name="best")


def generate(seed: int = 1, epochs: int = 6, tweets: int = 150) -> Iterator[pa.Table]:
    """Tweets of some minutes an epoch, up to a minute out of order; now and then one is hours late."""
    draw = np.random.default_rng(seed)
    words = np.array([f"w{number}" for number in range(40)] + ["kelp", "storm", "harbour", "ferry", "fog", "gulls"])
    for epoch in range(epochs):
        number = np.arange(tweets) + epoch * tweets
        at = START + number * 2 * SECOND - draw.integers(0, 59 * SECOND, tweets)
        if epoch:
            at[draw.integers(0, tweets, 3)] -= 7200 * SECOND
        texts = [" ".join(draw.choice(words, draw.integers(3, 7), replace=False)) for _ in number]
        places = draw.choice(["Bergen", "Brest", "Cork"], tweets)
        yield pa.table({"id": number, "place": places, "text": texts, "ts": times(at)})


def main() -> None:
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        job = hf.Job("similar-tweets", spark, store=f"{folder}/state")
        best = build(job, stream(spark, f"{folder}/tweets", generate()))
        with job.start(trigger={"availableNow": True}) as run:
            run.await_termination()
            run.state(best).to_df().orderBy("place", "rank").show(truncate=False)
            print(run.status().stages[0])  # with the tweets that came too late


if __name__ == "__main__":
    main()
