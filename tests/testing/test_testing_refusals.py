"""What the kit cannot do rightly is an error on the line that asks for it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Column

import holdfast as hf
from holdfast import testing
from holdfast.plan.ddl import schema_of


def column() -> Column:
    """Without a JVM none can be made; to be told from text is all that is asked of it here."""
    return object.__new__(Column)


EXPRESSION_IN: dict[str, Callable[[hf.Stream], object]] = {
    "select": lambda read: read.select(column()),
    "where": lambda read: read.where(column()),
    "with_column": lambda read: read.with_column("x", column()),
    "key_by": lambda read: read.key_by(column()).agg(n=hf.count()),
    "agg": lambda read: read.key_by("k").agg(n=hf.sum(column())),
    "top_k": lambda read: read.key_by("k").top_k(1, by=column()),
    "time": lambda read: read.key_by("k").window(hf.tumbling("1 s"), time=column()).agg(n=hf.count()),
}


@pytest.mark.parametrize("verb", EXPRESSION_IN)
def test_expressions_of_spark(verb: str) -> None:
    read = testing.Job().read("k string, n bigint, ts timestamp")
    with pytest.raises(hf.PlanError, match=r"expression of Spark's.*\n.*\n.*SQL text"):
        EXPRESSION_IN[verb](read)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda read: read.select("k", "m"), "no column 'm' for the 'select' step"),
        (lambda read: read.where("m > 1"), "cannot resolve the 'where' step"),
        (lambda read: read.where("n + 1"), "not a condition"),
        (lambda read: read.where("n >"), "cannot resolve"),
        (lambda read: read.with_column("x", "sum(n)"), "not one value a row"),
        (lambda read: read.with_column("x", "[n]"), "DuckDB's type"),
        (lambda read: read.key_by("m").agg(n=hf.count()), "no column 'm' for the key of stage 'source_by_m_agg'"),
        (lambda read: read.key_by("k").agg(n=hf.sum("m")), "no column 'm' for the aggregate 'n' of stage"),
        (lambda read: read.key_by("k").agg(n=hf.sum("k")), "cannot take type string"),
        (lambda read: read.key_by("k").window(hf.tumbling("1 s"), time="n").agg(n=hf.count()), "event time"),
        (lambda read: read.union(read.select("n", "k")), "do not fit together"),
        (lambda read: read.transform(lambda df: df.dropDuplicates()), "no DataFrame.dropDuplicates"),
        (lambda read: read.select("*").key_by("k").process(len, "k strong"), "no list of columns"),
    ],
)
def test_steps_and_stages_that_make_no_sense(wrong: Any, said: str) -> None:
    with pytest.raises(hf.PlanError, match=said):
        wrong(testing.Job().read("k string, n bigint"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"n": 1.5}, "Row 1 of 'source': column 'n': 1.5 is a float, not a bigint"),
        ({"n": True}, "a bool, not a bigint"),
        ({"n": 1 << 63}, "no bigint"),
        ({"k": 1}, "an int, not a string|a int, not a string"),
        ({"ts": "yesterday"}, "'yesterday' is no timestamp"),
        ({"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}, "no timestamp_ntz"),
        ({"price": "cheap"}, "'cheap' is no decimal"),
        ({"price": Decimal("1.234")}, "no decimal"),
        ({"must": None}, "'must' must not be null"),
        ({"m": 1}, "no column 'm', only k, n"),
        (["a"], "is a list, not a dict"),
    ],
)
def test_rows_that_do_not_fit(row: Any, said: str) -> None:
    job = testing.Job()
    read = job.read("k string, n bigint, ts timestamp, at timestamp_ntz, price decimal(5,2), must boolean not null")
    counts = read.key_by("k").agg(n=hf.count())
    run = job.start()
    given = {"must": True, **row} if isinstance(row, dict) else row
    with pytest.raises(hf.PlanError, match=said):
        run.epoch([{"must": False}, given])
    assert run.epoch([{"must": False, "price": "1.20", "ts": dt.datetime(2026, 1, 1)}]) == 1
    assert run.rows(counts) == [{"k": None, "n": 1}]


def test_a_run_is_asked_for_what_it_has_not() -> None:
    job, other = testing.Job(), testing.Job()
    read = job.read("k string", name="one")
    counts, more = read.key_by("k").agg(n=hf.count()), job.read("k string", name="two")
    stranger = other.read("k string")
    more.key_by("k").distinct()
    run = job.start()
    for wrong, said in (
        (lambda: run.epoch(three=[]), "no source 'three'.*\n.*'one', 'two'"),
        (lambda: run.epoch([{"k": "a"}]), "several sources"),
        (lambda: run.epoch(one={"k": "a"}), "list of dicts"),
        (lambda: run.epoch(crash="mid-lunch"), "after-prepare, mid-apply, after-commit, all"),
        (lambda: run.crash("in-intake"), "cannot crash at 'in-intake'"),
        (lambda: run.rows(stranger), "no stream of the job"),
        (lambda: run.state(read), "Only a stage has state"),
        (lambda: run.advance("soon"), "no span of time"),
        (lambda: job.start(slices=0), "0 slices"),
        (lambda: job.start(clock="noon"), "'noon' is no time"),
        (lambda: testing.Job().read("k array<string>"), "no list of columns"),
    ):
        with pytest.raises(hf.PlanError, match=said):
            wrong()
    assert run.rows(counts) == []
    with run:
        pass
    with pytest.raises(hf.PlanError, match="The run is over"):
        run.epoch()


def test_a_step_that_fails_on_a_row() -> None:
    job = testing.Job()
    counts = job.read("k string").with_column("n", "cast(k as bigint)").key_by("n").agg(rows=hf.count())
    run = job.start()
    run.epoch([{"k": "1"}])
    with pytest.raises(hf.FunctionError, match="'with_column' step"):
        run.epoch([{"k": "one"}])
    run.epoch([{"k": "1"}])
    assert run.rows(counts) == [{"n": 1, "rows": 2}]


def test_schemas_from_text() -> None:
    text = "a long, B INT not null, `c d` Decimal( 10 , 2 ), `e``f`: varchar(3), g dec, h timestamp_ltz"
    found = [(field.name, field.dataType.simpleString(), field.nullable) for field in schema_of(text).fields]
    assert found == [
        ("a", "bigint", True),
        ("B", "int", False),
        ("c d", "decimal(10,2)", True),
        ("e`f", "varchar(3)", True),
        ("g", "decimal(10,0)", True),
        ("h", "timestamp", True),
    ]
    for wrong in ("", "a", "a int,", "a int b int", "a decimal(40,2)", "a varchar(1,2)", "a map<int,int>"):
        with pytest.raises(hf.PlanError, match="no list of columns"):
            schema_of(wrong)
