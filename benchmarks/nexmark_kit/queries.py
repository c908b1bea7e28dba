"""Nexmark's stateful queries as a user of Holdfast writes them; the stateless ones (q0, q1, q2, q22) are Spark's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import holdfast as hf

LATENESS = "4 seconds"
_RANKS = {
    "total": None,
    "rank1": "price < 10000",
    "rank2": "price >= 10000 and price < 1000000",
    "rank3": "price >= 1000000",
}
Streams = Mapping[str, DataFrame]

register_pickle_by_value(sys.modules[__name__])  # containers cannot import it


def q3(job: hf.Job, given: Streams) -> hf.Stream:
    persons = job.read(given["persons"], "persons").where("state IN ('OR', 'ID', 'CA')")
    auctions = job.read(given["auctions"], "auctions").where("category = 10")
    sellers = persons.select("id", "name", "city", "state").key_by("id")
    return sellers.join(auctions.select("seller", F.col("id").alias("auction")).key_by("seller"))


def _bids_of_auctions(job: hf.Job, given: Streams, auction: list[Column], bid: list[Column]) -> hf.Stream:
    """Every valid bid with its auction, whichever came first."""
    auctions = job.read(given["auctions"], "auctions").select(
        "id", F.col("dateTime").alias("opened"), F.col("expires").alias("closes"), *auction
    )
    bids = job.read(given["bids"], "bids").select("auction", F.col("dateTime").alias("bid_at"), *bid)
    return auctions.key_by("id").join(bids.key_by("auction")).where("bid_at BETWEEN opened AND closes")


def q4(job: hf.Job, given: Streams) -> hf.Stream:
    bids = _bids_of_auctions(job, given, [F.col("category")], [F.col("price")])
    best = bids.key_by("id", "category").agg(best=hf.max("price"))
    return best.key_by("category").agg(final=hf.mean("best"))


def q5(job: hf.Job, given: Streams) -> hf.Stream:
    bids = job.read(given["bids"]).select("auction", "dateTime")
    counted = bids.key_by("auction").window(hf.sliding("10 s", every="2 s"), time="dateTime", lateness=LATENESS)
    return counted.agg(num=hf.count()).top_k(1, by="num", ties="all")


class WinningBids:
    """Of an auction and the bids for it: its best valid bid, once no other can come."""

    seller = hf.states.value("bigint")
    opens = hf.states.value("timestamp")
    expires = hf.states.value("timestamp")
    best = hf.states.value("bigint")
    early = hf.states.map("timestamp", "bigint", ttl=LATENESS)
    """The best bid of each time, while the auction is not known; it may be one that is over."""

    def rows(self, auction: int, rows: list[dict[str, Any]], context: Any) -> None:
        state = context.state
        bids = [(row["dateTime"], row["price"]) for row in rows if row["price"] is not None]
        if len(bids) < len(rows):
            opened = next(row for row in rows if row["price"] is None)
            state.seller, state.opens, state.expires = opened["seller"], opened["dateTime"], opened["expires"]
            context.set_timer(opened["expires"] + timedelta(microseconds=1))  # a bid at that instant still counts
            bids += state.early.items()
            state.early.clear()
        if state.seller is None:
            for at, price in bids:
                state.early[at] = max(price, state.early.get(at, price))
            return
        first, last = state.opens, state.expires
        valid = [price for at, price in bids if first <= at <= last]
        if valid:
            state.best = max(*valid, state.best or 0)

    def timer(self, auction: int, time: datetime, context: Any) -> Iterator[dict[str, Any]]:
        state = context.state
        if state.best is not None:
            yield {"seller": state.seller, "auction": auction, "expires": state.expires, "price": state.best}
        state.seller = state.opens = state.expires = state.best = None


def q6(job: hf.Job, given: Streams) -> hf.Stream:
    """Auctions and bids are one stream by auction, so that one function sees both."""
    no_number, no_time = F.lit(None).cast("bigint"), F.lit(None).cast("timestamp")
    auctions = job.read(given["auctions"], "auctions").select(
        F.col("id").alias("auction"), "dateTime", "expires", "seller", no_number.alias("price")
    )
    bids = job.read(given["bids"], "bids").select(
        "auction", "dateTime", no_time.alias("expires"), no_number.alias("seller"), "price"
    )
    won = (
        auctions.union(bids)
        .key_by("auction")
        .process(
            WinningBids,
            "seller bigint, auction bigint, expires timestamp, price bigint",
            time="dateTime",
            lateness=LATENESS,
        )
    )
    last = won.top_k(10, by=["expires", "auction"], per="seller")
    return last.key_by("seller").agg(avg_price=hf.mean("price"))


def q7(job: hf.Job, given: Streams) -> hf.Stream:
    """All bids of a window are one group; Spark's tasks hand over only those that may be the highest."""
    bids = job.read(given["bids"]).select("auction", "price", "bidder", "dateTime", "extra")
    windows = bids.key_by(F.lit(0).alias("all")).window(hf.tumbling("10 s"), time="dateTime", lateness=LATENESS)
    return windows.top_k(1, by="price", ties="all").select("auction", "price", "bidder", "dateTime", "extra")


def q8(job: hf.Job, given: Streams) -> hf.Stream:
    opened = F.window("dateTime", "10 seconds").start.alias("starttime")
    persons = job.read(given["persons"], "persons").select("id", "name", "dateTime")
    sellers = job.read(given["auctions"], "auctions").select("seller", F.col("dateTime").alias("sold_at"))
    first = sellers.key_by("seller", F.window("sold_at", "10 seconds").start.alias("starttime")).distinct(
        time="sold_at", within="10 s", lateness=LATENESS
    )
    return persons.key_by("id", opened).join(
        first.key_by("seller", "starttime"), time=("dateTime", "sold_at"), within="10 s", lateness=LATENESS
    )


def q9(job: hf.Job, given: Streams) -> hf.Stream:
    auction = [F.col(name) for name in ("itemName", "description", "initialBid", "reserve", "seller", "category")]
    bid = [F.col("event"), F.col("bidder"), F.col("price"), F.col("extra").alias("bid_extra")]
    bids = _bids_of_auctions(job, given, [*auction, F.col("extra")], bid)
    return bids.key_by("id").top_k(1, by=["price", ("bid_at", "asc"), ("event", "asc")])


def q11(job: hf.Job, given: Streams) -> hf.Stream:
    bids = job.read(given["bids"]).select("bidder", "dateTime")
    sessions = bids.key_by("bidder").window(hf.session("10 s"), time="dateTime", lateness=LATENESS)
    return sessions.agg(bid_count=hf.count())


def q12(job: hf.Job, given: Streams) -> hf.Stream:
    bids = job.read(given["bids"]).select("bidder")
    return bids.key_by("bidder").window(hf.tumbling("10 s")).agg(bid_count=hf.count())


def q15(job: hf.Job, given: Streams) -> hf.Stream:
    return _with_text_of_day(job.read(given["bids"]).key_by(_day()).agg(**_ranked_bids(), **_ranked_distinct()))


def q16(job: hf.Job, given: Streams) -> hf.Stream:
    minute = hf.max(F.date_format("dateTime", "HH:mm"))
    bids = job.read(given["bids"]).key_by("channel", _day())
    return _with_text_of_day(bids.agg(minute=minute, **_ranked_bids(), **_ranked_distinct()))


def q17(job: hf.Job, given: Streams) -> hf.Stream:
    prices = {"min_price": hf.min("price"), "max_price": hf.max("price"), "avg_price": hf.mean("price")}
    bids = job.read(given["bids"]).key_by("auction", _day())
    return _with_text_of_day(bids.agg(**_ranked_bids(), **prices, sum_price=hf.sum("price")))


def q18(job: hf.Job, given: Streams) -> hf.Stream:
    return job.read(given["bids"]).key_by("bidder", "auction").top_k(1, by=["dateTime", "event"])


def q19(job: hf.Job, given: Streams) -> hf.Stream:
    return job.read(given["bids"]).key_by("auction").top_k(10, by=["price", ("event", "asc")], rank="rank_number")


def q20(job: hf.Job, given: Streams) -> hf.Stream:
    auctions = (
        job.read(given["auctions"], "auctions")
        .where("category = 10")
        .select(
            *("id", "itemName", "description", "initialBid", "reserve"),
            F.col("dateTime").alias("auction_dateTime"),
            *("expires", "seller", "category", F.col("extra").alias("auction_extra")),
        )
    )
    bids = job.read(given["bids"], "bids")
    renamed = {"dateTime": "bid_dateTime", "extra": "bid_extra"}
    mine = bids.select("auction", "bidder", "price", "channel", "url", *[F.col(a).alias(b) for a, b in renamed.items()])
    return mine.key_by("auction").join(auctions.key_by("id"))


def _day() -> Column:
    """A date is a cheaper key than its text; the result has the text, as defined."""
    return F.to_date("dateTime").alias("day")


def _with_text_of_day(days: hf.Stream) -> hf.Stream:
    return days.with_column("day", F.col("day").cast("string"))


def _ranked_bids() -> dict[str, hf.Aggregate]:
    return {f"{rank}_bids": hf.count(where=which) for rank, which in _RANKS.items()}


def _ranked_distinct() -> dict[str, hf.Aggregate]:
    return {
        f"{rank}_{what}s": hf.count_distinct(what, where=which)
        for what in ("bidder", "auction")
        for rank, which in _RANKS.items()
    }


QUERIES: dict[str, Callable[[hf.Job, Streams], hf.Stream]] = {
    query.__name__: query for query in (q3, q4, q5, q6, q7, q8, q9, q11, q12, q15, q16, q17, q18, q19, q20)
}
