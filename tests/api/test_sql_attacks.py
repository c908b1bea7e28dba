"""Queries that once gave a wrong answer, or passed over what they said: each is right now, or refused by name."""

# ruff: noqa: E501 - a query is read in one line

from __future__ import annotations

import datetime as dt
from typing import Any

import duckdb
import pytest

import holdfast as hf
from holdfast import testing
from holdfast.plan.ddl import schema_of
from holdfast.testing.values import to_table

T, O = "k bigint, v bigint, s string, ts timestamp", "k bigint, p bigint, kk bigint, ts timestamp"  # noqa: E741
FIRST = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ROWS = {
    "t": [{"k": at % 4, "v": at, "s": "ab"[at % 2], "ts": FIRST + dt.timedelta(seconds=at * 7)} for at in range(12)],
    "o": [{"k": at % 3, "p": at * 10, "kk": at % 5, "ts": FIRST + dt.timedelta(seconds=at * 13)} for at in range(6)],
}
BETWEEN = "b.ts BETWEEN a.ts - INTERVAL 60 SECONDS AND a.ts + INTERVAL 60 SECONDS"


def played(text: str, **more: Any) -> tuple[list[str], list[dict[str, Any]]]:
    job = testing.Job()
    job.read(T, name="t", time="ts", lateness="1 hour")
    job.read(O, name="o", time="ts", lateness="1 hour")
    for name, inner in more.items():
        job.sql(inner, name)
    stream = job.sql(text)
    job.sql("SELECT count(*) AS all_of_t FROM t", "all_of_t")
    job.sql("SELECT count(*) AS all_of_o FROM o", "all_of_o")
    with job.start(slices=3) as run:
        run.epoch(o=ROWS["o"])  # what is looked up is there before
        run.epoch(t=ROWS["t"][:5])
        run.epoch(t=ROWS["t"][5:])
        return stream.columns, run.rows(stream)


def truth(text: str, **views: str) -> tuple[list[str], list[dict[str, Any]]]:
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
        for name, ddl in (("t", T), ("o", O)):
            connection.register(name, to_table(ROWS[name], schema_of(ddl), name))
        for name, view in views.items():
            connection.execute(f"CREATE VIEW {name} AS {view}")
        found = connection.sql(text).to_arrow_table()
    return found.column_names, found.to_pylist()


def plain(rows: list[dict[str, Any]]) -> list[str]:
    def one(value: Any) -> Any:
        if isinstance(value, dt.datetime):
            return value.astimezone(dt.UTC).isoformat()
        return value if value is None or isinstance(value, str) else float(value)

    return sorted(str([one(value) for value in row.values()]) for row in rows)


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT a.v, b.p, c.v AS w FROM t a JOIN o b ON a.k = b.kk AND {BETWEEN} JOIN t c ON a.k = c.k AND c.ts BETWEEN a.ts - INTERVAL 60 SECONDS AND a.ts + INTERVAL 60 SECONDS AND c.ts >= b.ts",
        "WITH a AS (SELECT v FROM t WHERE v > 5), b AS (WITH a AS (SELECT v FROM t WHERE v <= 5) SELECT * FROM a) SELECT * FROM b UNION ALL SELECT * FROM a",
        "SELECT v FROM (WITH t AS (SELECT v FROM t WHERE v > 5) SELECT v FROM t) x UNION ALL SELECT v FROM t",
        "WITH a AS (SELECT kk FROM o), o AS (SELECT v AS kk FROM t) SELECT * FROM a",
        "SELECT v AS x FROM t ORDER BY -x LIMIT 3",
        "SELECT * FROM t ORDER BY v DESC, ts LIMIT 2",
        "SELECT t.* FROM t ORDER BY 2 DESC LIMIT 2",
        "SELECT *, v AS w FROM t ORDER BY w LIMIT 2",
        "SELECT DISTINCT t.s FROM t ORDER BY t.s LIMIT 1",
        "SELECT DISTINCT s AS x FROM t ORDER BY s DESC LIMIT 1",
        "SELECT l.k, v, kk, p FROM (SELECT k, v FROM t) l JOIN (SELECT kk, p FROM o) r ON l.k = r.kk",
        "SELECT * FROM (SELECT k, v FROM t) l JOIN (SELECT kk, p FROM o) r ON l.k = r.kk",
        "SELECT a.v, b.p, c.p AS q FROM t a JOIN o b ON a.k = b.kk JOIN o c USING (kk)",
        "SELECT a.v + 1 AS x FROM t a JOIN (SELECT kk, p AS key1 FROM o) b ON a.k + 1 = b.kk + 1 AND b.key1 > 0",
        "SELECT k, max(v) AS m FROM t GROUP BY k HAVING m > 8",
        "SELECT * FROM (SELECT v, s, row_number() OVER (PARTITION BY s ORDER BY v) AS n FROM t) q WHERE q.n <= 2 AND v > 0",
        "SELECT n + 1 AS x FROM (SELECT v + 1 AS n, -v AS v FROM t)",
    ],
)
def test_it_is_right(text: str) -> None:
    columns, rows = played(text)
    names, right = truth(text)
    assert [name.lower() for name in columns] == [name.lower() for name in names]
    assert right
    assert plain(rows) == plain(right)


def test_names_that_look_like_something_else() -> None:
    """Not of DuckDB, whose words for them differ: an expression that a column is called like, words, a lone minus."""
    job = testing.Job()
    job.read("`null` bigint, `order` bigint, `v + 1` bigint, v bigint, rank bigint", name="t")
    words = job.sql("SELECT `null` AS x, t.`order` AS y FROM t WHERE t.`null` > 2", "words")
    called = job.sql("SELECT v + 1 AS a, `v + 1` AS b, -v AS v FROM t", "called")
    again = job.sql("SELECT v + 1, v FROM (SELECT v + 1, -v AS v FROM t)", "again")
    first = job.sql("SELECT rank, v FROM t ORDER BY v DESC LIMIT 1", "first")
    total = job.sql("SELECT count(*), sum(v), -1 FROM t", "total")
    with job.start() as run:
        run.epoch([{"null": at, "order": 7, "v + 1": 100, "v": at, "rank": 5} for at in range(4)])
        assert run.rows(words) == [{"x": 3, "y": 7}]
        assert run.rows(called)[3] == {"a": 4, "b": 100, "v": -3}
        assert run.rows(again)[3] == {"v + 1": -2, "v": -3}
        assert run.rows(first) == [{"rank": 5, "v": 3}]
        assert run.rows(total) == [{"count(1)": 4, "sum(v)": 6, "-1": -1}]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("SELECT -v AS v, k FROM t ORDER BY v + 0 LIMIT 3", "SELECT * FROM (SELECT -v AS v, k FROM t) ORDER BY v LIMIT 3"),
        ("SELECT v AS x, k AS v FROM t ORDER BY abs(v) DESC, x LIMIT 3",
         "SELECT * FROM (SELECT v AS x, k AS v FROM t) ORDER BY abs(v) DESC, x LIMIT 3"),
        ("SELECT * FROM (SELECT v, k FROM t) l JOIN (SELECT p, k FROM o) r USING (k)",
         "SELECT l.k, l.v, r.p FROM t l JOIN o r ON l.k = r.k"),
    ],
)  # fmt: skip
def test_where_spark_differs_from_others(text: str, same: str) -> None:
    """ORDER BY means columns of the result also within expressions; what is joined USING comes first."""
    columns, rows = played(text)
    names, right = truth(same)
    assert columns == names
    assert plain(rows) == plain(right)


TOTALS = "SELECT kk, sum(p) AS total FROM o GROUP BY kk"


def test_a_row_without_a_partner_has_no_key_of_the_stage() -> None:
    text = "SELECT t.v FROM t LEFT JOIN totals x ON x.kk = t.v WHERE x.total IS NULL"
    assert plain(played(text, totals=TOTALS)[1]) == plain(truth(text, totals=TOTALS)[1])
    with pytest.raises(hf.PlanError, match=r"there is no column 'x\.kk'"):
        played("SELECT t.v FROM t LEFT JOIN totals x ON x.kk = t.v WHERE x.kk IS NULL", totals=TOTALS)
    text = "SELECT t.v, x.kk, x.total FROM t JOIN totals x ON x.kk = t.v"
    assert plain(played(text, totals=TOTALS)[1]) == plain(truth(text, totals=TOTALS)[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT a.k, b.n FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY v) AS n FROM t) a JOIN (SELECT kk, p AS n FROM o) b ON a.k = b.kk WHERE b.n <= 20", "OVER"),
        ("SELECT q.n FROM (SELECT v, row_number() OVER (PARTITION BY s ORDER BY v) AS n FROM t) q(n, v) WHERE n <= 1", "OVER"),
        ("SELECT v FROM t ORDER BY v LIMIT 1 WINDOWING 60 SECONDS", "WINDOWING"),
        ("SELECT DISTINCT s FROM t WINDOWING 60 SECONDS", "WINDOWING"),
        ("SELECT v - lag(v) OVER (ORDER BY ts) AS n FROM t", "OVER"),
        ("SELECT v FROM t WHERE row_number() OVER (ORDER BY v) < 3", "OVER"),
        ("SELECT k, c - lag(c) OVER (ORDER BY k) AS d FROM (SELECT k, count(*) AS c FROM t GROUP BY k)", "OVER"),
        (f"SELECT a.v FROM t a JOIN o b ON a.k = b.kk AND {BETWEEN} JOIN t c ON a.k = c.k AND c.ts >= b.ts AND c.ts <= a.ts", "one direction"),
        ("SELECT * FROM t a JOIN o b ON a.k = b.k", "two columns are called 'k'"),
        ("CREATE VIEW q (a) AS SELECT v FROM t", "a view has the columns"),
        ("SELECT max(v, k) FROM t", "one column"),
        ("SELECT sum(*) FROM t", "one column"),
        ("SELECT count(DISTINCT *) FROM t", "one column"),
        ("SELECT approx_count_distinct(v, k) FROM t", "accuracy"),
        ("SELECT window(ts, '1 minute').foo, count(*) AS n FROM t GROUP BY window(ts, '1 minute')", "has no 'foo'"),
        ("SELECT * EXCEPT (nonesuch) FROM t", "nonesuch"),
        ("SELECT v FROM t ORDER BY 99 LIMIT 1", "no column number 99"),
        ("SELECT v FROM t ORDER BY 1.5 LIMIT 1", "no column number 1.5"),
        ("SELECT count(*) FROM t GROUP BY 1.5", "no column number 1.5"),
        ("SELECT k, x + 1 AS x FROM t GROUP BY k", "no column 'x'"),
        ("SELECT v FROM t WINDOWING", "ends too early"),
        ("CREATE TABLE q (", "too early"),
        ("SELECT n AS k, count(*) AS c FROM (SELECT v AS n, k FROM t) GROUP BY n ORDER BY sum(k) LIMIT 1", "column of the result"),
    ],
)  # fmt: skip
def test_it_is_refused(text: str, said: str) -> None:
    with pytest.raises(hf.PlanError, match=said):
        played(text)
