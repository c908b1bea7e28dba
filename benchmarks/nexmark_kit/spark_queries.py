"""Nexmark in Spark Structured Streaming, as somebody who knows it well would write it, and what it cannot express.

Each query is a function of the three streams to a streaming DataFrame and its output mode. Where a definition does not
fit (``row_number``, ``count(DISTINCT …)``), the query takes the cheapest built-in way to the same rows. Not taken:
state functions in Python (`transformWithStateInPandas`), which could express everything at a round trip per state
access, and chains of queries through a store in between. The rows are those of `oracle`, the last one for each key in
update mode; q8 also has rows of windows that are still open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from nexmark_kit.generator import AUCTION, BID, PERSON

Streams = Mapping[str, DataFrame]
Built = tuple[DataFrame, str]

LATENESS = "4 seconds"  # of nexmark-flink's watermark

_STORE = "spark.sql.streaming.stateStore."
_PROVIDER = "org.apache.spark.sql.execution.streaming.state."
_ALWAYS = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
# By state store: neither is the faster one for every query.
SETTINGS = {
    "heap": {**_ALWAYS, _STORE + "providerClass": _PROVIDER + "HDFSBackedStateStoreProvider"},
    "rocksdb": {
        **_ALWAYS,
        _STORE + "providerClass": _PROVIDER + "RocksDBStateStoreProvider",
        _STORE + "rocksdb.changelogCheckpointing.enabled": "true",
        # Counting the rows costs RocksDB a read for every write. Nobody here needs the count.
        _STORE + "rocksdb.trackTotalNumberOfRows": "false",
    },
}

CANNOT = {
    "q4": "A running average over a maximum that still changes. An aggregate behind another is refused in update mode "
    "(the second would take every change for a new row), and in append mode each needs an event time in its key, "
    "which an average per category does not have.",
    "q6": "As q4, per seller and over its last ten auctions; windows over rows are refused on streams too.",
}

_SPARK_TYPES = {"int64": "bigint", "string": "string", "timestamp[us, tz=UTC]": "timestamp"}
_KINDS = {"persons": ("person", PERSON), "auctions": ("auction", AUCTION), "bids": ("bid", BID)}
_RANKS = {
    "total": "true",
    "rank1": "price < 10000",
    "rank2": "price >= 10000 and price < 1000000",
    "rank3": "price >= 1000000",
}


def streams(spark: SparkSession, folder: Path, *, files_per_trigger: int) -> dict[str, DataFrame]:
    """The streams persons, auctions and bids of a folder that `generator.write` made, in either layout."""
    read = spark.readStream.option("maxFilesPerTrigger", files_per_trigger)
    if (folder / "bids").is_dir():
        kinds = {kind: f"event bigint, {_fields(types)}" for kind, (_, types) in _KINDS.items()}
        return {kind: read.schema(schema).parquet(str(folder / kind)) for kind, schema in kinds.items()}
    structs = [f"{name} struct<{_fields(types)}>" for name, types in _KINDS.values()]
    schema = ", ".join(["event bigint", "event_type int", *structs, "dateTime timestamp"])
    return {
        kind: read.schema(schema).parquet(str(folder)).where(f"event_type = {number}").select("event", f"{name}.*")
        for number, (kind, (name, _)) in enumerate(_KINDS.items())
    }


def start(spark: SparkSession, query: str, given: Streams, checkpoint: Path) -> StreamingQuery:
    """Runs a query over everything that is there, into a sink that takes all rows and keeps none."""
    built, mode = QUERIES[query](spark, given)
    writer = built.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def q0(spark: SparkSession, given: Streams) -> Built:
    return given["bids"].select("auction", "bidder", "price", "dateTime", "extra"), "append"


def q1(spark: SparkSession, given: Streams) -> Built:
    euros = fn.expr("cast(0.908 * price as decimal(23, 3))").alias("price")
    return given["bids"].select("auction", "bidder", euros, "dateTime", "extra"), "append"


def q2(spark: SparkSession, given: Streams) -> Built:
    return given["bids"].where("auction % 123 = 0").select("auction", "price"), "append"


def q3(spark: SparkSession, given: Streams) -> Built:
    persons = given["persons"].where("state in ('OR', 'ID', 'CA')").select("id", "name", "city", "state").alias("p")
    auctions = given["auctions"].where("category = 10").select("id", "seller").alias("a")
    return auctions.join(persons, fn.expr("a.seller = p.id")).select("p.name", "p.city", "p.state", "a.id"), "append"


def q5(spark: SparkSession, given: Streams) -> Built:
    bids = given["bids"].select("auction", "dateTime").withWatermark("dateTime", LATENESS)
    counts = bids.groupBy(fn.window("dateTime", "10 seconds", "2 seconds"), "auction").agg(fn.count("*").alias("num"))
    # Ties keep every auction, so a maximum with its argument would not do.
    every = counts.groupBy("window").agg(
        fn.max("num").alias("most"), fn.collect_list(fn.struct("auction", "num")).alias("auctions")
    )
    hottest = every.select("window", fn.explode(fn.expr("filter(auctions, one -> one.num = most)")).alias("hot"))
    window = [fn.col("window.start").alias("starttime"), fn.col("window.end").alias("endtime")]
    return hottest.select("hot.*", *window), "append"


def q7(spark: SparkSession, given: Streams) -> Built:
    """One aggregate instead of the definition's join, which would store every bid; it keeps up to four equal bids."""
    bids = given["bids"].withWatermark("dateTime", LATENESS)
    bid = fn.struct("auction", "price", "bidder", "dateTime", "extra")
    order = fn.struct(fn.col("price"), -fn.col("event"))
    highest = bids.groupBy(fn.window("dateTime", "10 seconds")).agg(fn.max_by(bid, order, 4).alias("best"))
    equal = fn.expr("filter(best, one -> one.price = best[0].price)")
    return highest.select(fn.explode(equal).alias("bid")).select("bid.*"), "append"


def q8(spark: SparkSession, given: Streams) -> Built:
    window = fn.window("dateTime", "10 seconds").alias("window")
    persons = given["persons"].withWatermark("dateTime", LATENESS).select("id", "name", window).alias("p")
    auctions = given["auctions"].withWatermark("dateTime", LATENESS).select("seller", window)
    sellers = auctions.dropDuplicates(["seller", "window"]).alias("a")
    both = persons.join(sellers, fn.expr("p.id = a.seller and p.window = a.window"))
    return both.select("p.id", "p.name", fn.col("p.window.start").alias("starttime")), "append"


def q9(spark: SparkSession, given: Streams) -> Built:
    auctions, bids = given["auctions"].drop("event").alias("a"), given["bids"].drop("channel", "url").alias("b")
    valid = auctions.join(bids, fn.expr("a.id = b.auction and b.dateTime between a.dateTime and a.expires"))
    winner = [fn.col("b.auction"), fn.col("b.bidder"), fn.col("b.price")]
    winner += [fn.col("b.dateTime").alias("bid_dateTime"), fn.col("b.extra").alias("bid_extra")]
    order = fn.struct(fn.col("b.price"), -fn.unix_micros("b.dateTime"), -fn.col("b.event"))
    best = valid.groupBy("a.id").agg(fn.max_by(fn.struct("a.*", *winner), order).alias("best"))
    return best.select("best.*"), "update"


def q11(spark: SparkSession, given: Streams) -> Built:
    bids = given["bids"].select("bidder", "dateTime").withWatermark("dateTime", LATENESS)
    sessions = bids.groupBy("bidder", fn.session_window("dateTime", "10 seconds").alias("s"))
    window = [fn.col("s.start").alias("starttime"), fn.col("s.end").alias("endtime")]
    return sessions.agg(fn.count("*").alias("bid_count")).select("bidder", "bid_count", *window), "append"


def q12(spark: SparkSession, given: Streams) -> Built:
    """Spark's processing time is the time at which a batch begins."""
    bids = given["bids"].select("bidder", fn.current_timestamp().alias("now")).withWatermark("now", "0 seconds")
    counts = bids.groupBy("bidder", fn.window("now", "10 seconds").alias("w")).agg(fn.count("*").alias("bid_count"))
    window = [fn.col("w.start").alias("starttime"), fn.col("w.end").alias("endtime")]
    return counts.select("bidder", "bid_count", *window), "update"


def q15(spark: SparkSession, given: Streams) -> Built:
    bids = given["bids"].select(_day(), "bidder", "auction", "price")
    return _with_text_of_day(bids.groupBy("day").agg(*_ranked_bids(), *_ranked_distinct())), "update"


def q16(spark: SparkSession, given: Streams) -> Built:
    minute = fn.date_format("dateTime", "HH:mm").alias("minute")
    bids = given["bids"].select("channel", _day(), minute, "bidder", "auction", "price")
    latest = fn.max("minute").alias("minute")
    counted = bids.groupBy("channel", "day").agg(latest, *_ranked_bids(), *_ranked_distinct())
    return _with_text_of_day(counted), "update"


def q17(spark: SparkSession, given: Streams) -> Built:
    bids = given["bids"].select("auction", _day(), "price")
    prices = [getattr(fn, name)("price").alias(f"{name}_price") for name in ("min", "max", "avg", "sum")]
    return _with_text_of_day(bids.groupBy("auction", "day").agg(*_ranked_bids(), *prices)), "update"


def q18(spark: SparkSession, given: Streams) -> Built:
    bid = fn.struct("auction", "bidder", "price", "channel", "url", "dateTime", "extra")
    last = fn.max_by(bid, fn.struct("dateTime", "event")).alias("bid")
    return given["bids"].groupBy("bidder", "auction").agg(last).select("bid.*"), "update"


def q19(spark: SparkSession, given: Streams) -> Built:
    bid = fn.struct("auction", "bidder", "price", "channel", "url", "dateTime", "extra")
    top = fn.max_by(bid, fn.struct(fn.col("price"), -fn.col("event")), 10).alias("top")
    ranked = given["bids"].groupBy("auction").agg(top).select(fn.posexplode("top").alias("place", "bid"))
    return ranked.select("bid.*", (fn.col("place") + 1).alias("rank_number")), "update"


def q20(spark: SparkSession, given: Streams) -> Built:
    auctions, bids = given["auctions"].where("category = 10").alias("a"), given["bids"].alias("b")
    bid = [
        "b.auction",
        "b.bidder",
        "b.price",
        "b.channel",
        "b.url",
        "b.dateTime as bid_dateTime",
        "b.extra as bid_extra",
    ]
    auction = ["a.itemName", "a.description", "a.initialBid", "a.reserve", "a.dateTime as auction_dateTime"]
    auction += ["a.expires", "a.seller", "a.category", "a.extra as auction_extra"]
    return bids.join(auctions, fn.expr("b.auction = a.id")).selectExpr(*bid, *auction), "append"


def q22(spark: SparkSession, given: Streams) -> Built:
    folders = [fn.split_part("url", fn.lit("/"), fn.lit(3 + number)).alias(f"dir{number}") for number in (1, 2, 3)]
    return given["bids"].select("auction", "bidder", "price", "channel", *folders), "append"


QUERIES: dict[str, Callable[[SparkSession, Streams], Built]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q5, q7, q8, q9, q11, q12, q15, q16, q17, q18, q19, q20, q22)
}


def _fields(types: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {_SPARK_TYPES[str(kind)]}" for name, kind in types.items())


def _day() -> Column:
    """A date is a cheaper key than its text; the result has the text, as defined."""
    return fn.to_date("dateTime").alias("day")


def _with_text_of_day(days: DataFrame) -> DataFrame:
    return days.withColumn("day", fn.col("day").cast("string"))


def _ranked_bids() -> list[Column]:
    return [fn.count_if(fn.expr(which)).alias(f"{rank}_bids") for rank, which in _RANKS.items()]


def _ranked_distinct() -> list[Column]:
    """Streams refuse ``count(DISTINCT …)``; the size of a set is the same number."""
    return [
        fn.size(fn.collect_set(fn.when(fn.expr(which), fn.col(who)))).alias(f"{rank}_{who}s")
        for who in ("bidder", "auction")
        for rank, which in _RANKS.items()
    ]
