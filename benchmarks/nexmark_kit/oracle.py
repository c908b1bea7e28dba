"""What each Nexmark query must answer, computed by DuckDB over all events at once.

The statements are nexmark-flink's definitions, with what a comparison needs besides: ties are settled by ``event``,
the place in the order of arrival, and results of windows name their window. A window [start, end) counts once the
final watermark, the largest time minus the lateness, has reached its end; an auction is closed once the watermark has
passed its ``expires``, for a bid at that instant still counts. Running results are those after the last event. Nothing
is late here: compare only runs whose lateness covers their disorder. Days are UTC days; averages are the exact quotient
as a double, where Flink cuts off the fraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa

from nexmark_kit.generator import Events

_TIMES = {"persons": ["dateTime"], "auctions": ["dateTime", "expires"], "bids": ["dateTime"]}
_SINGULAR = {"persons": "person", "auctions": "auction", "bids": "bid"}

_WINNING = """
    winning AS (
        SELECT a.id, max({'price': b.price, 'early': -epoch_us(b.dateTime), 'first': -b.event}) AS best
        FROM auctions a JOIN bids b ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
        GROUP BY a.id)"""
_RANKS = {
    "total": "true",
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}
_RANKED_BIDS = ", ".join(f"count(*) FILTER ({which}) AS {rank}_bids" for rank, which in _RANKS.items())
_RANKED_DISTINCT = ", ".join(
    f"count(DISTINCT {who}) FILTER ({which}) AS {rank}_{who}s"
    for who in ("bidder", "auction")
    for rank, which in _RANKS.items()
)
_DAY = "strftime(dateTime, '%Y-%m-%d') AS day"


def result(
    query: str, source: Events | Path, *, lateness: timedelta = timedelta(0), watermark: datetime | None = None
) -> pa.Table:
    """The rows that ``query`` ("q0" …, but not "q12", see `q12`) gives for these events, in no order.

    A path is a folder that `generator.write` made, in either layout. ``watermark`` replaces the largest time of any
    event minus the lateness, for example by the least over the kinds, where a job reads them as several sources.
    """
    with _opened(source) as connection:
        final = watermark or largest_time(source) - lateness
        connection.execute("SET VARIABLE watermark = ?::TIMESTAMP", [final.astimezone(UTC).replace(tzinfo=None)])
        return _rows(connection.sql(QUERIES[query]()))


def largest_time(source: Events | Path, kinds: Sequence[str] = ("persons", "auctions", "bids")) -> datetime:
    """The largest ``dateTime`` of the events of these kinds."""
    with _opened(source) as connection:
        union = " UNION ALL ".join(f"SELECT max(dateTime) AS latest FROM {kind}" for kind in kinds)
        [(latest,)] = connection.sql(f"SELECT max(latest) FROM ({union})").fetchall()
    assert isinstance(latest, datetime), "there are no events"
    return latest.replace(tzinfo=UTC)


def q0() -> str:
    """Every bid, as it is."""
    return "SELECT auction, bidder, price, dateTime, extra FROM bids"


def q1() -> str:
    """Every bid with its price in euros, exact to a thousandth."""
    return "SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, dateTime, extra FROM bids"


def q2() -> str:
    """Auction and price of the bids for every 123rd auction."""
    return "SELECT auction, price FROM bids WHERE auction % 123 = 0"


def q3() -> str:
    """Who sells in category 10 in Oregon, Idaho or California, and in which auctions; one row per auction."""
    return """
        SELECT p.name, p.city, p.state, a.id
        FROM auctions a JOIN persons p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')"""


def q4() -> str:
    """The average, per category, of the highest valid bid of each auction so far (equal bids are the same price)."""
    return f"""
        WITH {_WINNING}
        SELECT a.category AS id, avg(w.best.price) AS final
        FROM auctions a JOIN winning w USING (id) GROUP BY a.category"""


def q5() -> str:
    """The auctions with the most bids in each window of 10 s that begins every 2 s; on a tie, all of them."""
    return """
        WITH panes AS (
            SELECT auction, time_bucket(INTERVAL '2 seconds', dateTime) AS pane, count(*) AS num
            FROM bids GROUP BY ALL),
        windows AS (
            SELECT auction, CAST(sum(num) AS BIGINT) AS num, pane - back * INTERVAL '2 seconds' AS starttime
            FROM panes, range(5) AS steps(back) GROUP BY ALL)
        SELECT auction, num, starttime, starttime + INTERVAL '10 seconds' AS endtime
        FROM windows WHERE starttime + INTERVAL '10 seconds' <= getvariable('watermark')
        QUALIFY num = max(num) OVER (PARTITION BY starttime)"""


def q6() -> str:
    """The average winning price of each seller's last 10 closed auctions that got a bid.

    The last are those that expire last; of two that expire at the same time, the one with the larger id.
    """
    return f"""
        WITH {_WINNING},
        closed AS (
            SELECT a.seller, w.best.price AS price,
                   row_number() OVER (PARTITION BY a.seller ORDER BY a.expires DESC, a.id DESC) AS place
            FROM auctions a JOIN winning w USING (id) WHERE a.expires < getvariable('watermark'))
        SELECT seller, avg(price) AS avg_price FROM closed WHERE place <= 10 GROUP BY seller"""


def q7() -> str:
    """The highest bids of each tumbling window of 10 s; on a tie, all of them.

    A bid belongs to its own window alone, where Flink's statement also compares it with the window it ends.
    """
    return """
        WITH highest AS (
            SELECT time_bucket(INTERVAL '10 seconds', dateTime) AS starttime, max(price) AS price
            FROM bids GROUP BY ALL)
        SELECT b.auction, b.price, b.bidder, b.dateTime, b.extra
        FROM bids b JOIN highest h
        ON b.price = h.price AND time_bucket(INTERVAL '10 seconds', b.dateTime) = h.starttime
        WHERE h.starttime + INTERVAL '10 seconds' <= getvariable('watermark')"""


def q8() -> str:
    """Persons who joined and opened an auction in the same tumbling window of 10 s, once each."""
    return """
        WITH p AS (SELECT DISTINCT id, name, time_bucket(INTERVAL '10 seconds', dateTime) AS starttime FROM persons),
        a AS (SELECT DISTINCT seller, time_bucket(INTERVAL '10 seconds', dateTime) AS starttime FROM auctions)
        SELECT p.id, p.name, p.starttime
        FROM p JOIN a ON p.id = a.seller AND p.starttime = a.starttime
        WHERE p.starttime + INTERVAL '10 seconds' <= getvariable('watermark')"""


def q9() -> str:
    """Each auction with its winning bid so far: the highest valid one, then the earliest, then the first to arrive."""
    return f"""
        WITH {_WINNING}
        SELECT a.* EXCLUDE (event), b.auction, b.bidder, b.price, b.dateTime AS bid_dateTime, b.extra AS bid_extra
        FROM winning w JOIN auctions a USING (id) JOIN bids b ON b.event = -w.best.first"""


def q11() -> str:
    """How many bids each bidder made in each session that 10 s of silence end; bids exactly 10 s apart share one."""
    return """
        WITH marked AS (
            SELECT *, coalesce(dateTime - lag(dateTime) OVER earlier > INTERVAL '10 seconds', true) AS opens
            FROM bids WINDOW earlier AS (PARTITION BY bidder ORDER BY dateTime, event)),
        sessions AS (
            SELECT *, count(*) FILTER (opens) OVER (PARTITION BY bidder ORDER BY dateTime, event) AS session
            FROM marked)
        SELECT bidder, count(*) AS bid_count, min(dateTime) AS starttime,
               max(dateTime) + INTERVAL '10 seconds' AS endtime
        FROM sessions GROUP BY bidder, session
        HAVING max(dateTime) + INTERVAL '10 seconds' <= getvariable('watermark')"""


def q12(source: Events | Path, epochs: Sequence[tuple[int, datetime]]) -> pa.Table:
    """How many bids each bidder made in each tumbling window of 10 s of processing time, all windows.

    Processing time is the clock of the epoch in which a bid came: ``epochs`` holds, for each, the number of its first
    event and its clock.
    """
    firsts = pa.array([first for first, _ in epochs], pa.int64())
    clocks = pa.array([clock.astimezone(UTC).replace(tzinfo=None) for _, clock in epochs], pa.timestamp("us"))
    with _opened(source) as connection:
        connection.register("epochs", pa.table({"first": firsts, "clock": clocks}))
        return _rows(
            connection.sql("""
                SELECT b.bidder, count(*) AS bid_count, time_bucket(INTERVAL '10 seconds', e.clock) AS starttime,
                       time_bucket(INTERVAL '10 seconds', e.clock) + INTERVAL '10 seconds' AS endtime
                FROM bids b ASOF JOIN epochs e ON b.event >= e.first GROUP BY ALL""")
        )


def q15() -> str:
    """Per day: bids, distinct bidders and distinct auctions, in all and by three ranges of price."""
    return f"SELECT {_DAY}, {_RANKED_BIDS}, {_RANKED_DISTINCT} FROM bids GROUP BY day"


def q16() -> str:
    """Per channel and day, what q15 counts, and the latest minute that had a bid."""
    return f"""
        SELECT channel, {_DAY}, max(strftime(dateTime, '%H:%M')) AS minute, {_RANKED_BIDS}, {_RANKED_DISTINCT}
        FROM bids GROUP BY channel, day"""


def q17() -> str:
    """Per auction and day: bids, in all and by three ranges of price, and least, largest, mean and sum of prices."""
    return f"""
        SELECT auction, {_DAY}, {_RANKED_BIDS}, min(price) AS min_price, max(price) AS max_price,
               avg(price) AS avg_price, CAST(sum(price) AS BIGINT) AS sum_price
        FROM bids GROUP BY auction, day"""


def q18() -> str:
    """The last bid of each bidder for each auction; of bids at the same time, the last to arrive."""
    return """
        WITH last AS (
            SELECT max({'at': dateTime, 'event': event}).event AS event FROM bids GROUP BY bidder, auction)
        SELECT auction, bidder, price, channel, url, dateTime, extra FROM bids SEMI JOIN last USING (event)"""


def q19() -> str:
    """The ten highest bids of each auction with their rank; of equal ones, the first to arrive ranks higher."""
    return """
        WITH ranked AS (
            SELECT event, row_number() OVER (PARTITION BY auction ORDER BY price DESC, event) AS rank_number
            FROM bids QUALIFY rank_number <= 10)
        SELECT auction, bidder, price, channel, url, dateTime, extra, rank_number FROM ranked JOIN bids USING (event)"""


def q20() -> str:
    """Every bid for an auction of category 10, with that auction; when a bid arrived first, it waits for it."""
    return """
        SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.dateTime AS bid_dateTime, b.extra AS bid_extra,
               a.itemName, a.description, a.initialBid, a.reserve, a.dateTime AS auction_dateTime, a.expires,
               a.seller, a.category, a.extra AS auction_extra
        FROM bids b JOIN auctions a ON b.auction = a.id WHERE a.category = 10"""


def q22() -> str:
    """Every bid with the three folders of its url."""
    return """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
               split_part(url, '/', 6) AS dir3
        FROM bids"""


QUERIES = {
    query.__name__: query for query in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q11, q15, q16, q17, q18, q19, q20, q22)
}


def _opened(source: Events | Path) -> duckdb.DuckDBPyConnection:
    """A database with the views persons, auctions and bids, times without a zone so that none can interfere."""
    connection = duckdb.connect()
    for kind, times in _TIMES.items():
        if isinstance(source, Events):
            connection.register(f"given_{kind}", source.by_kind()[kind])
            given = f"given_{kind}"
        elif (source / kind).is_dir():
            given = f"read_parquet('{source / kind}/*.parquet')"
        else:
            wanted = f"SELECT event, unnest({_SINGULAR[kind]}) FROM read_parquet('{source}/*.parquet')"
            given = f"({wanted} WHERE {_SINGULAR[kind]} IS NOT NULL)"
        plain = ", ".join(f"make_timestamp(epoch_us({column})) AS {column}" for column in times)
        connection.execute(f"CREATE VIEW {kind} AS SELECT * REPLACE ({plain}) FROM {given}")
    return connection


def _rows(relation: duckdb.DuckDBPyRelation) -> pa.Table:
    table = relation.to_arrow_table()
    zoned = [
        field.with_type(pa.timestamp("us", tz="UTC")) if pa.types.is_timestamp(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(zoned))
