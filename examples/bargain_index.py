"""Quotes below what has just been paid: the volume-weighted average price (VWAP) of a sliding window, joined to quotes.

A quote is judged by the VWAP of the minute up to the last full ten seconds before it. That VWAP comes out when its
window closes, usually after the quote has come; the join has the quote wait for it, and forgets both when the watermark
has passed. How good a bargain is: exp(VWAP - ask) for each share offered.
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

SIZE, EVERY, LATENESS = 60, 10, 5  # seconds


def build(job: hf.Job, trades: DataFrame, quotes: DataFrame) -> hf.Stream:
    traded = (
        job.read(trades, name="trades")
        .key_by("symbol", name="vwap")
        .window(hf.sliding(f"{SIZE} s", every=f"{EVERY} s"), time="ts", lateness=f"{LATENESS} s")
        .agg(paid=hf.sum(F.col("price") * F.col("shares")), shares=hf.sum("shares"))
    )
    prices = traded.select(
        "symbol", F.col("window_end").alias("since"), (F.col("paid") / F.col("shares")).alias("vwap")
    )
    offers = job.read(quotes, name="quotes").with_column("since", F.window("ts", f"{EVERY} seconds").start)
    judged = offers.key_by("symbol", "since", name="judged").join(
        prices.key_by("symbol", "since"), time=("ts", "since"), within=(f"{EVERY} s", "0 s"), lateness=f"{LATENESS} s"
    )
    bargains = judged.where("vwap > ask")
    return bargains.select(
        "symbol", "ts", "ask", "vwap", (F.exp(F.expr("vwap - ask")) * F.col("offered")).alias("index")
    )


def generate(seed: int = 1, epochs: int = 6, rows: int = 800) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Trades and quotes of half a minute an epoch, up to five seconds out of order; prices wander."""
    draw = np.random.default_rng(seed)
    symbols = np.array(["KELP", "REEF", "SALT", "TIDE"])
    price = np.array([20.0, 55.0, 7.0, 90.0])
    for epoch in range(epochs):
        price = price * draw.normal(1, 0.01, len(price))
        tables = []
        for names in (("price", "shares"), ("ask", "offered")):
            at = START + np.sort(draw.integers(0, 30 * SECOND, rows)) + epoch * 30 * SECOND
            of = draw.integers(0, len(symbols), rows)
            costs = (price[of] * draw.normal(1, 0.01, rows)).round(2)
            columns = dict(zip(names, (costs, draw.integers(1, 50, rows)), strict=True))
            moved = times(at - draw.integers(0, LATENESS * SECOND, rows))
            tables.append(pa.table({"symbol": symbols[of], **columns, "ts": moved}))
        yield tables[0], tables[1]


def show(bargains: DataFrame, epoch: int) -> None:
    for row in bargains.orderBy(F.desc("index")).limit(3).collect():
        print(f"epoch {epoch}: {row.symbol} at {row.ask:.2f}, VWAP {row.vwap:.2f}, index {row['index']:.1f}")


def main() -> None:
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        job = hf.Job("bargain-index", spark, store=f"{folder}/state")
        trades, quotes = zip(*generate(), strict=True)
        sources = stream(spark, f"{folder}/trades", trades), stream(spark, f"{folder}/quotes", quotes)
        build(job, *sources).for_each_batch(show)
        with job.start(trigger={"availableNow": True}) as run:
            run.await_termination()
            print(*run.status().stages, sep="\n")


if __name__ == "__main__":
    main()
