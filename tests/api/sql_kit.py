"""Random queries over two streams, and what another engine says to the same text over the same rows.

Each query is drawn from one row of the table in docs/sql.md. The oracle's text is the query's own but where SQL says a
thing of streams only (watermarks, ELF's clause): then it is written beside it, in plain SQL.
"""

# ruff: noqa: E501 - a query is read in one line

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass
from typing import Any

CLICKS = "product string, store string, n bigint, x double, ts timestamp"
ORDERS = "product string, buyer bigint, price bigint, ts timestamp"
FIRST = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
LATENESS = 600
"""Seconds; rows are out of order by less than that."""
Row = dict[str, Any]
KINDS = ("plain", "grouped", "filtered", "windows", "sessions", "elf", "best", "numbered", "join", "outer", "distinct", "lookup", "union", "with")  # fmt: skip


@dataclass(frozen=True)
class Asked:
    kind: str
    text: str
    truth: str
    """For the oracle; ``{closed}`` in it is the time up to which windows are closed."""
    ordered: bool = False
    closing: tuple[str, ...] = ()
    """Columns of the result that say until when a row may still come or change: later than the watermark, it is left
    out on both sides."""
    dialect: str = "spark"

    @property
    def in_spark(self) -> str:
        """For Spark in batch, which has windows of its own."""
        if self.kind in ("windows", "sessions"):
            return self.text
        since_1970 = self.truth.replace("to_timestamp(floor(epoch(ts)", "timestamp_seconds(floor(unix_seconds(ts)")
        return since_1970.replace("'{closed}'::TIMESTAMPTZ", "TIMESTAMP '{closed}'")


def rows_of(draw: random.Random, epochs: int, each: int) -> list[dict[str, list[Row]]]:
    """The rows of both streams, epoch by epoch: event time goes on, with disorder."""
    made = []
    for epoch in range(epochs):

        def moment() -> dt.datetime:
            second = epoch * 400 + draw.randint(0, 500)  # noqa: B023
            return FIRST + dt.timedelta(seconds=second, milliseconds=draw.choice([0, 0, 1, 500]))

        clicks = [
            {
                "product": draw.choice(["ant", "bee", "cat", "dög", None]),
                "store": draw.choice(["games", "books", "it's"]),
                "n": draw.choice([None, draw.randint(-5, 20)]),
                "x": draw.choice([0.5, -1.25, 3.0, None]),
                "ts": moment(),
            }
            for _ in range(each)
        ]
        orders = [
            {
                "product": draw.choice(["ant", "bee", "cow", None]),
                "buyer": draw.randint(1, 6),
                "price": draw.randint(1, 9) * 10,
                "ts": moment(),
            }
            for _ in range(each // 2)
        ]
        made.append({"clicks": clicks, "orders": orders})
    return made


def last(rows: list[dict[str, list[Row]]], *names: str) -> dt.datetime:
    """The watermark once all of these streams have been read."""
    newest = [max(row["ts"] for epoch in rows for row in epoch[name]) for name in names]
    return min(newest) - dt.timedelta(seconds=LATENESS)


AGGREGATES = [
    "count(*)", "sum(n)", "min(n)", "max(x)", "count(n)", "avg(n)", "sum(n * 2 + 1)", "max(store)", "count(DISTINCT store)",
    "sum(n) FILTER (WHERE x > 0)", "count(*) FILTER (WHERE store = 'games')", "sum(c.n) / count(*)", "max(n) - min(n)",
]  # fmt: skip
CONDITIONS = ["n > 3", "store <> 'books'", "x IS NOT NULL", "c.product IN ('ant', 'bee')", "n BETWEEN -2 AND 9", "coalesce(n, 0) >= 0 OR x < 0",
              "store = 'it''s'"]  # fmt: skip
KEYS = ["product", "store", "c.product", "coalesce(product, 'none')", "n % 3", "upper(store)"]


def asked(draw: random.Random, kind: str) -> Asked:
    """One query of a kind."""
    where = f" WHERE {draw.choice(CONDITIONS)}" if draw.random() < 0.5 else ""
    fit = [one for one in AGGREGATES if kind != "windows" or "DISTINCT" not in one]
    chosen = draw.sample(fit, draw.randint(1, 3))
    aggregates = ", ".join(f"{one} AS a{at}" for at, one in enumerate(chosen))
    keys = draw.sample(KEYS[1:], draw.randint(1, 2))
    named = ", ".join(f"{key} AS k{at}" for at, key in enumerate(keys))
    by = ", ".join(draw.choice([key, str(at + 1), f"k{at}"]) for at, key in enumerate(keys))
    match kind:
        case "plain":
            text = f"SELECT c.product AS p, n + 1 AS m, upper(c.store) AS s, * EXCEPT (ts, n) FROM clicks c{where}"
            return Asked(kind, text.replace("* EXCEPT (ts, n)", "x"), text.replace("* EXCEPT (ts, n)", "x"))
        case "grouped":
            text = f"SELECT {named}, {aggregates} FROM clicks AS c{where} GROUP BY {by}"
            return Asked(kind, text, text)
        case "filtered":
            having = draw.choice(["count(*) > 2", "sum(n) IS NOT NULL", "a0 IS NOT NULL AND min(n) < 10"])
            text = f"SELECT {named}, {aggregates} FROM clicks c{where} GROUP BY {', '.join(keys)} HAVING {having}"
            return Asked(kind, text, text)
        case "windows":
            size, step = draw.choice([(300, 300), (600, 200), (60, 60)])
            call = f"window(ts, '{size} seconds'" + (f", '{step} seconds')" if step != size else ")")
            text = f"SELECT window.start AS s, window.end AS e, store, {aggregates} FROM clicks c{where} GROUP BY {call}, store"
            spans = f"range(0, {size // step})"
            truth = (
                f"SELECT s, s + INTERVAL {size} SECONDS AS e, store, {aggregates} FROM (SELECT *, to_timestamp("
                f"floor(epoch(ts) / {step}) * {step} - step.range * {step}) AS s FROM clicks c, {spans} step{where}) c "
                f"GROUP BY s, store"
            )
            return Asked(kind, text, truth, closing=("e",))
        case "sessions":
            text = (
                "SELECT session_window.start AS s, session_window.end AS e, store, count(*) AS a0, sum(n) AS a1 "
                f"FROM clicks c{where} GROUP BY store, session_window(ts, '20 seconds')"
            )
            truth = (
                "WITH o AS (SELECT *, lag(ts) OVER (PARTITION BY store ORDER BY ts) AS before FROM clicks c"
                f"{where}), g AS (SELECT *, sum(CASE WHEN before IS NULL OR ts > before + INTERVAL 20 SECONDS THEN 1 "
                "ELSE 0 END) OVER (PARTITION BY store ORDER BY ts ROWS UNBOUNDED PRECEDING) AS number FROM o) "
                "SELECT min(ts) AS s, max(ts) + INTERVAL 20 SECONDS AS e, store, count(*) AS a0, sum(n) AS a1 FROM g "
                "GROUP BY store, number"
            )
            return Asked(kind, text, truth, closing=("e",))
        case "elf":
            text = (
                "SELECT product, SUM(n) AS total FROM * WHERE store == `games` GROUP BY product "
                "SORT BY SUM(n) DESC, product LIMIT 2 WINDOWING 300 SECONDS;"
            )
            truth = (
                "SELECT product, total FROM (SELECT *, row_number() OVER (PARTITION BY s ORDER BY total DESC NULLS LAST, "
                "product ASC NULLS FIRST) AS rank FROM (SELECT product, SUM(n) AS total, to_timestamp(floor(epoch(ts) / 300) * "
                "300) AS s FROM clicks WHERE store = 'games' GROUP BY product, s) WHERE s + INTERVAL 300 SECONDS <= "
                "'{closed}'::TIMESTAMPTZ) WHERE rank <= 2"
            )
            return Asked(kind, text, truth, dialect="elf")
        case "best":
            k, way = draw.randint(1, 4), draw.choice(["", " DESC", " ASC"])
            order = f"a0{way}, k0 ASC"
            nulls = "a0 DESC NULLS LAST" if way == " DESC" else "a0 ASC NULLS FIRST"
            text = (
                f"SELECT store AS k0, {chosen[0]} AS a0 FROM clicks c{where} GROUP BY store ORDER BY {order} LIMIT {k}"
            )
            return Asked(kind, text, text.replace(f"a0{way}, k0 ASC", f"{nulls}, k0 ASC"))
        case "numbered":
            k = draw.randint(1, 3)
            inner = "row_number() OVER (PARTITION BY store ORDER BY n DESC{}, ts ASC{}, product ASC{}, x ASC{}) AS r"
            text = f"SELECT store, r, n, ts FROM (SELECT *, {inner} FROM clicks c{where}) t WHERE r <= {k}"
            return Asked(kind, text.format("", "", "", ""),
                         text.format(" NULLS LAST", " NULLS FIRST", " NULLS FIRST", " NULLS FIRST"))  # fmt: skip
        case "join":
            low, high = draw.choice([(60, 120), (0, 300), (30, 0)])
            between = f"o.ts BETWEEN c.ts - INTERVAL {low} SECONDS AND c.ts + INTERVAL {high} SECONDS"
            more = draw.choice(["", " AND o.price > 30", " AND c.n < o.price"])
            text = (
                f"SELECT c.product AS p, c.n, o.price, o.product AS q, c.ts AS t FROM clicks c JOIN orders o "
                f"ON c.product = o.product AND {between}{more}{where}"
            )
            return Asked(kind, text, text)
        case "outer":
            side = draw.choice(["LEFT", "RIGHT", "FULL"])
            text = (
                f"SELECT c.product AS p, o.product AS q, c.n, o.price, c.ts AS t, o.ts AS u FROM clicks c {side} JOIN "
                "orders o ON o.product = c.product AND o.ts >= c.ts - INTERVAL 1 MINUTE AND o.ts <= c.ts + INTERVAL '2' MINUTES"
            )
            return Asked(kind, text, text, closing=("t", "u"))
        case "distinct":
            text = f"SELECT DISTINCT store, n % 2 AS odd FROM clicks c{where}"
            if draw.random() < 0.5:
                first = f"{text} ORDER BY odd DESC{{}}, store LIMIT {draw.randint(1, 4)}"
                return Asked(kind, first.format(""), first.format(" NULLS LAST"))
            return Asked(kind, text, text)
        case "lookup":  # of what the stage holds after all rows: those that come last
            text = "SELECT c.store, c.n, c.ts AS t, t.total FROM clicks c LEFT JOIN totals t ON t.product = c.product"
            return Asked(kind, text, "")
        case "union":
            text = (
                f"SELECT product, count(*) AS a0, sum(v) AS a1 FROM (SELECT product, n AS v FROM clicks c{where} UNION ALL "
                "SELECT product, price FROM orders) GROUP BY product"
            )
            return Asked(kind, text, text)
        case "with":
            text = (
                f"WITH per AS (SELECT product, store, count(*) AS n1, sum(n) AS n2 FROM clicks c{where} GROUP BY product, "
                "store) SELECT store, count(*) AS a0, sum(n1) AS a1, count(n2) AS a2 FROM per GROUP BY store"
            )
            return Asked(kind, text, text)
    raise AssertionError(kind)
