"""What cannot be a stream is refused at its place in the text, with what to write instead."""

from __future__ import annotations

import re
import sys

import pytest
from sqlglot import exp

import holdfast as hf
from holdfast import testing
from holdfast.api.sql.grammar import parsed
from holdfast.api.sql.times import Apart, as_span, microseconds, take_bound

REFUSED = [
    ("SELECT product FROM clicks ORDER BY product", "ORDER BY product", "LIMIT k"),
    ("SELECT product FROM clicks LIMIT 3", "LIMIT 3", "ORDER BY"),
    ("SELECT product FROM clicks ORDER BY product LIMIT 3 OFFSET 1", "1", "ROW_NUMBER"),
    ("SELECT product FROM clicks ORDER BY product LIMIT 1 + 1", "LIMIT 1 + 1", "LIMIT 10"),
    ("SELECT product FROM clicks ORDER BY product ASC NULLS LAST LIMIT 1", "product ASC NULLS LAST", "IS NULL"),
    ("SELECT colour FROM clicks", "colour", "product, store, n, ts"),
    ("SELECT c.colour FROM clicks c", "c.colour", "product"),
    ("SELECT product FROM klicks", "klicks", "job.read"),
    ("SELECT n FROM clicks WHERE product IN (SELECT product FROM orders)", "SELECT product FROM orders", "JOIN"),
    ("SELECT (SELECT max(n) FROM clicks) AS m FROM orders", "(SELECT max(n) FROM clicks)", "JOIN"),
    ("SELECT product, median(n) FROM clicks GROUP BY product", "median(n)", "approx_count_distinct"),
    ("SELECT product, n FROM clicks GROUP BY product", "n", "GROUP BY"),
    ("SELECT * FROM clicks GROUP BY product", "*", "Name the keys"),
    ("SELECT count(*) FROM clicks GROUP BY ROLLUP (product)", "product", "UNION ALL"),
    ("SELECT sum(max(n)) FROM clicks", "max(n)", "subquery"),
    ("SELECT sum(DISTINCT n) FROM clicks", "sum(DISTINCT n)", "count(DISTINCT"),
    ("SELECT count(DISTINCT n, store) FROM clicks", "count(DISTINCT n, store)", "one value"),
    ("SELECT count(*) FROM clicks GROUP BY max(n)", "max(n)", "around this one"),
    ("SELECT count(*) FROM clicks GROUP BY 7", "7", "Name what"),
    ("SELECT first(n) FILTER (WHERE n > 1) FROM clicks", "first(n) FILTER (WHERE n > 1)", "if("),
    ("SELECT n FROM clicks HAVING n > 1", "HAVING n > 1", "WHERE"),
    ("SELECT window.start, count(*) FROM bare GROUP BY window(at, '1 minute')", "at", "WATERMARK"),
    ("SELECT count(*) FROM clicks GROUP BY window(ts)", "window(ts)", "5 minutes"),
    ("SELECT count(*) FROM clicks GROUP BY window(ts, '1 month')", "'1 month'", "'1 hour'"),
    ("SELECT count(*) FROM clicks GROUP BY window(ts + INTERVAL 1 DAY, '1 hour')", "ts + INTERVAL 1 DAY", "subquery"),
    ("SELECT product FROM clicks GROUP BY product, window(ts, '1 hour')", "window(ts, '1 hour')", "count(*)"),
    ("SELECT rank() OVER (ORDER BY n) FROM clicks", "rank() OVER (ORDER BY n)", "ROW_NUMBER"),
    ("SELECT sum(n) OVER (PARTITION BY store) AS s FROM clicks", "sum(n) OVER (PARTITION BY store)", "ROW_NUMBER"),
    ("SELECT * FROM (SELECT *, row_number() OVER (ORDER BY n) AS r FROM clicks) WHERE r > 3",
     "row_number() OVER (ORDER BY n)", "WHERE n <= 10"),
    ("SELECT * FROM clicks c JOIN orders o ON c.n < o.price", "JOIN orders o ON c.n < o.price", "BETWEEN"),
    ("SELECT * FROM clicks c CROSS JOIN orders o", "CROSS JOIN orders o", "BETWEEN"),
    ("SELECT c.n FROM clicks c LEFT SEMI JOIN orders o ON c.product = o.product", "LEFT SEMI JOIN", "LEFT JOIN"),
    ("SELECT c.n, o.price FROM clicks c LEFT JOIN orders o ON c.product = o.product", "LEFT JOIN orders o", "BETWEEN"),
    ("SELECT c.n FROM clicks c JOIN orders o ON c.product = o.product AND o.ts > c.ts", "o.ts > c.ts", "both"),
    ("SELECT c.n FROM clicks c LEFT JOIN orders o ON c.product = o.product AND o.ts BETWEEN c.ts AND c.ts + INTERVAL 1 "
     "HOUR AND c.n > o.price", "c.n > o.price", "inner join"),
    ("SELECT ts FROM clicks c JOIN orders o ON c.product = o.product", "ts", "c.ts or o.ts"),
    ("SELECT n FROM clicks VERSION AS OF 3", "", "now"),
    ("SELECT count(*) FROM clicks GROUP BY product WITH CUBE", "", "UNION ALL"),
    ("SELECT n FROM clicks CLUSTER BY n", "n", "where their key is"),
    ("SELECT n FROM clicks LATERAL VIEW explode(product) t AS y", "", "explode"),
    ("SELECT n FROM (SELECT n FROM clicks) AS t(a, b)", "t(a, b", "Name each"),
    ("SELECT id FROM range(10)", "range(10)", "Name a stream"),
    ("SELECT n FROM clicks a JOIN clicks a ON a.product = a.product", "JOIN clicks a", "another name"),
    ("SELECT n FROM clicks INTERSECT SELECT price FROM orders", "SELECT n FROM clicks INTERSECT", "UNION ALL"),
    ("SELECT n, store FROM clicks UNION ALL SELECT price FROM orders", "SELECT n, store", "as many"),
    ("SELECT n AS a, store AS a FROM clicks", "store", "AS"),
    ("SELECT n FROM clicks TABLESAMPLE (10 PERCENT)", "10", "hash"),
    ("SELECT 1", "SELECT 1", "FROM"),
    ("SELECT product, count(*) FROM clicks GROUP BY product QUALIFY 1 = 1", "", "WHERE"),
    ("DELETE FROM clicks", "DELETE FROM clicks", "SELECT"),
    ("INSERT INTO nowhere SELECT product, count(*) FROM clicks GROUP BY product", "nowhere", "CREATE TABLE nowhere"),
    ("SELECT n FROM", "FROM", "there"),
    ("SELECT 'open FROM clicks", "", "quotes"),
    ("SELECT n FROM clicks WATERMARK ts DELAY OF INTERVAL 1 MONTH", "INTERVAL 1 MONTH", "10 SECONDS"),
    ("SELECT sum(n) FROM clicks WINDOWING 3 PARSECS", "WINDOWING 3 PARSECS", "300 SECONDS"),
    ("WITH RECURSIVE t AS (SELECT n FROM clicks) SELECT n FROM t", "t AS (SELECT n", "step"),
]  # fmt: skip


def a_job() -> testing.Job:
    job = testing.Job()
    job.read("product string, store string, n bigint, ts timestamp", name="clicks", time="ts", lateness="10 s")
    job.read("product string, price bigint, ts timestamp", name="orders", time="ts", lateness="5 s")
    job.read("product string, at timestamp", name="bare")
    return job


@pytest.mark.parametrize(("text", "place", "instead"), REFUSED, ids=[text[:60] for text, _, _ in REFUSED])
def test_it_is_refused_with_its_place_and_what_to_write(text: str, place: str, instead: str) -> None:
    with pytest.raises(hf.PlanError) as caught:
        a_job().sql(text)
    said = str(caught.value)
    assert said.startswith("SQL: ")
    assert instead in caught.value.todo
    lines = said.splitlines()
    carets = next((at for at, line in enumerate(lines) if line.strip() and set(line.strip()) == {"^"}), None)
    if place:
        assert carets is not None, said
        under = "".join(letter for letter, mark in zip(lines[carets - 1], lines[carets], strict=False) if mark == "^")
        assert under.startswith(place[: len(under)]), said
        assert under.startswith(place) or place.startswith(under), said


def test_carets_are_under_the_right_line_of_a_long_text() -> None:
    with pytest.raises(hf.PlanError) as caught:
        a_job().sql("SELECT store,\n\tcolour\nFROM clicks")
    assert "\n    \tcolour\n    \t^^^^^^\n" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"text": ""}, "there is no text"),
        ({"text": "SELECT n FROM clicks", "dialect": "oracle"}, "There is no SQL dialect 'oracle'"),
        ({"text": "CREATE TABLE t USING noop"}, "the text has no query"),
        ({"text": "SELECT n FROM clicks; SELECT store FROM clicks", "name": "x"}, "A name is for the one query"),
        ({"text": "CREATE TABLE t AS SELECT n FROM clicks"}, "a table of a query's rows would end"),
        ({"text": "SELECT `it's` FROM *", "dialect": "elf"}, "cannot hold a quote"),
    ],
)
def test_texts_that_are_none(arguments: dict[str, str], said: str) -> None:
    with pytest.raises(hf.PlanError, match=re.escape(said)):
        a_job().sql(**arguments)  # type: ignore[arg-type]


def test_without_sqlglot_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "holdfast.api.sql.script", raising=False)
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    for name in [name for name in sys.modules if name.startswith("holdfast.api.sql.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(hf.PlanError, match="sqlglot") as caught:
        a_job().sql("SELECT n FROM clicks")
    assert "holdfast[sql]" in caught.value.todo


def test_explain_of_sql_is_that_of_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    by_sql, by_verbs = testing.Job("one"), testing.Job("one")
    for job in (by_sql, by_verbs):
        job.read("product string, n bigint, ts timestamp", name="clicks", time="ts", lateness="10 s")
    clicks = by_verbs._named_streams["clicks"][0]
    totals = clicks.where("n > 1").key_by("product", name="totals").agg(total=hf.sum("n"), times=hf.count())
    totals.top_k(3, by=[("total", "desc")], name="best").select("product", "total").write("noop")
    tens = clicks.key_by("product").window(hf.sliding("10 s", "5 s"), time="ts", lateness="10 s").agg(m=hf.max("n"))
    tens.write("noop", name="tens")
    by_sql.sql("SELECT product, sum(n) AS total, count(*) AS times FROM clicks WHERE n > 1 GROUP BY product", "totals")
    by_sql.sql("SELECT product, total FROM totals ORDER BY total DESC LIMIT 3", "best").write("noop")
    by_sql.sql(
        "SELECT product, window_start, window_end, max(n) AS m FROM clicks "
        "GROUP BY product, window(ts, '10 seconds', '5 seconds')"
    ).write("noop", name="tens")
    said = []
    for job in (by_verbs, by_sql):
        job.explain()
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("condition", "low", "high"),
    [
        ("b.ts BETWEEN a.ts - INTERVAL 1 HOUR AND a.ts + INTERVAL 2 HOURS", -3600, 7200),
        ("a.ts BETWEEN b.ts AND b.ts + INTERVAL '10' SECONDS", -10, 0),
        ("b.ts - INTERVAL 5 SECONDS <= a.ts", None, 5),
        ("a.ts > b.ts - INTERVAL 5 SECONDS", None, 4.999999),
        ("(a.ts + INTERVAL 1 MINUTE) = b.ts", 60, 60),
        ("b.ts >= a.ts + INTERVAL '1 minute 30 seconds'", 90, None),
    ],
)
def test_bounds_in_time(condition: str, low: float | None, high: float | None) -> None:
    text, (node,) = parsed(f"SELECT 1 FROM a WHERE {condition}")
    apart = Apart()
    where = node.args["where"].this
    assert take_bound(text, where, lambda column: 0 if column.table == "a" else 1, apart)
    found = [None if one is None else one / 1e6 for one in (apart.low, apart.high)]
    assert found == [low, high]


def test_what_is_no_bound() -> None:
    text, (node,) = parsed("SELECT 1 FROM a WHERE a.ts + b.ts > INTERVAL 1 HOUR")
    assert not take_bound(text, node.args["where"].this, lambda _: 0, Apart())
    assert isinstance(node, exp.Select)
    assert as_span(microseconds("1 week 2 days") or 0) == f"{9 * 86400} s"
