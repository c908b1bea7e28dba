"""Whether what a job put out is what the oracle says: the same rows, under the oracle's names."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow as pa

from nexmark_kit import oracle

LATENESS = timedelta(seconds=4)

# What the columns are called by the oracle, and the key whose newest rows count where a query updates its results.
_OURS: dict[str, tuple[str, str | None]] = {
    "q3": ("name, city, state, auction AS id", None),
    "q4": ("category AS id, final", "category"),
    "q5": ("auction, num, window_start AS starttime, window_end AS endtime", None),
    "q6": ("seller, avg_price", "seller"),
    "q7": ("auction, price, bidder, dateTime, extra", None),
    "q8": ("id, name, starttime", None),
    "q9": (
        "id, itemName, description, initialBid, reserve, opened AS dateTime, closes AS expires, seller, category, "
        "extra, id AS auction, bidder, price, bid_at AS bid_dateTime, bid_extra",
        "id",
    ),
    "q11": ("bidder, bid_count, window_start AS starttime, window_end AS endtime", None),
    "q15": ("* EXCLUDE (_e)", "day"),
    "q16": ("* EXCLUDE (_e)", "channel, day"),
    "q17": ("* EXCLUDE (_e)", "auction, day"),
    "q18": ("auction, bidder, price, channel, url, dateTime, extra", "bidder, auction"),
    "q19": ("auction, bidder, price, channel, url, dateTime, extra, rank_number", "auction"),
    "q20": ("* EXCLUDE (_e)", None),
}
_TIMES = {"q6": ("auctions", "bids"), "q8": ("persons", "auctions")}


def check(query: str, folder: Path, epochs: list[tuple[int, pa.Table]]) -> int:
    """Compare; the number of rows that agree. Raises, with the first few that do not, otherwise."""
    latest = min(oracle.largest_time(folder, [kind]) for kind in _TIMES.get(query, ("bids",)))
    wanted = oracle.result(query, folder, watermark=latest - LATENESS)
    columns, key = _OURS[query]
    tables = [
        table.append_column("_e", pa.array([epoch] * table.num_rows)) for epoch, table in epochs if table.num_rows
    ]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("wanted", wanted)
        if not tables:
            assert wanted.num_rows == 0, f"{query} put out nothing, the oracle has {wanted.num_rows} rows"
            return 0
        connection.register("ours", pa.concat_tables(tables))
        newest = f"QUALIFY _e = max(_e) OVER (PARTITION BY {key})" if key else ""
        connection.execute(f"CREATE TABLE mine AS SELECT {columns} FROM ours {newest}")
        if query == "q8":  # it comes before its window is over
            connection.execute(f"DELETE FROM mine WHERE starttime + INTERVAL '10 seconds' > '{latest - LATENESS}'")
        names = [f'"{name}"' for name in wanted.column_names]
        plain = ", ".join(_plain(wanted.schema.field(at), name) for at, name in enumerate(names))
        for found, other, what in (("mine", "wanted", "too many"), ("wanted", "mine", "missing")):
            wrong = connection.sql(
                f"SELECT {plain} FROM {found} EXCEPT ALL SELECT {plain} FROM {other} LIMIT 3"
            ).fetchall()
            assert not wrong, f"{query}: rows {what}: {wrong}"
    return int(wanted.num_rows)


def _plain(field: pa.Field, name: str) -> str:
    if pa.types.is_floating(field.type):
        return f"round({name}, 6)"
    return f"{name}::TIMESTAMP" if pa.types.is_timestamp(field.type) else name
