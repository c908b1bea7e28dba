"""One pass over a source: every reader gets what it would have got alone, and nothing is computed for rows that a
filter was there to keep away."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import holdfast as hf
from holdfast.plan.passes import Crossing
from holdfast.spark.observing import Look, seen_by
from holdfast.spark.one_pass import Pass, Reader, readable, share_of

pytestmark = pytest.mark.spark

Chain = Callable[[DataFrame], DataFrame]
EPOCH = datetime(1970, 1, 1)


@pytest.fixture(scope="module")
def source(spark: SparkSession) -> DataFrame:
    rows = [
        (None if at % 7 == 0 else at - 20, at % 3, None if at % 5 == 0 else f"s{at % 4}", datetime(2126, 1, 1, 0, at))
        for at in range(50)
    ]
    named = spark.createDataFrame(rows, "x bigint, y int, s string, ts timestamp")
    return named.withColumn("select", F.col("y") + 1).withColumn("a.b`c", F.col("x") * 2).cache()


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def check(source: DataFrame, chains: Sequence[Chain]) -> DataFrame:
    """In Spark, where stateless sinks take their share, and in the tasks, where stages take theirs."""
    alone = [chain(source) for chain in chains]
    drawn = Pass(source, [Reader(one) for one in alone])
    crossing, shares = drawn.over(source), drawn.shares
    # Some of the source's rows, in a frame that has nothing to do with it but its columns' names.
    others = source.sparkSession.createDataFrame(source.where("x > 3").collect(), source.schema)
    elsewhere = drawn.over_some(others)
    for chain, share in zip(chains, shares, strict=True):
        assert rows_of(share_of(elsewhere, share)) == rows_of(chain(others))
    for one, share in zip(alone, shares, strict=True):
        taken = share_of(crossing, share)
        assert taken.columns == one.columns
        assert [field.dataType for field in taken.schema] == [field.dataType for field in one.schema]
        assert rows_of(taken) == rows_of(one)
    takers = Crossing(None, (tuple(enumerate(shares)),))
    found: dict[int, list[tuple[object, ...]]] = {number: [] for number in range(len(chains))}
    for batch in crossing.toArrow().to_batches(max_chunksize=7):
        for number, mine in takers.split(batch):
            found[number] += [tuple(row.values()) for row in mine.to_pylist()]
    for number, one in enumerate(alone):
        wanted = [tuple(row.values()) for row in one.toArrow().to_pylist()]
        assert sorted(found[number], key=repr) == sorted(wanted, key=repr)
    return crossing


def test_readers_with_filters_names_and_expressions_of_their_own(source: DataFrame) -> None:
    crossing = check(
        source,
        [
            lambda df: df.where("x > 3").select("s", "x"),
            lambda df: df.where("y = 1").where("x > 0").withColumn("x", F.col("x") * 10).select("x", "y"),
            lambda df: df.select(F.upper("s").alias("s"), F.col("`a.b``c`")),
            lambda df: df.where("s IS NULL").select("select", "ts"),
        ],
    )
    assert crossing.columns[-1] == "_w0"
    assert crossing.count() == 50, "one of them takes every row"


def test_rows_that_nobody_wants_do_not_cross(source: DataFrame) -> None:
    crossing = check(source, [lambda df: df.where("x = 2").select("x"), lambda df: df.where("x = 3").select("x")])
    assert crossing.count() == 2
    assert crossing.columns == ["p0", "_w0"]  # the column that both want, once


def test_a_filter_guards_what_stands_behind_it(source: DataFrame) -> None:
    """With ANSI rules 1 / 0 fails the query, so it must not be computed where the filter says no; nor where it says
    null."""
    chains: list[Chain] = [
        lambda df: df.where("y <> 0").select((F.lit(1) / F.col("y")).alias("r")),
        lambda df: df.where("y <> 0").where("1 / y > 0.6").withColumn("q", F.expr("1 % y")).select("q"),
        lambda df: df.where("x > 0").where("100 / x > 3").select("x"),  # null: neither true nor false
        lambda df: df.select("x", "y"),
        lambda df: df.where("s LIKE 's%'").select(F.expr("CAST(substring(s, 2) AS int)").alias("n")),
    ]
    check(source, chains)


def test_a_filter_that_many_have_is_one_bit(source: DataFrame) -> None:
    same: list[Chain] = [lambda df, at=at: df.where("y = 1").select(F.col("x").alias(f"c{at}")) for at in range(5)]
    drawn = Pass(source, [Reader(chain(source)) for chain in same])
    crossing, shares = drawn.over(source), drawn.shares
    assert {share.bit for share in shares} == {0}
    assert crossing.columns == ["p0", "_w0"]


@pytest.mark.parametrize(
    "filters", [pytest.param(64, marks=pytest.mark.heavy), 65, pytest.param(129, marks=pytest.mark.heavy)]
)
def test_more_filters_than_a_word_has_bits(source: DataFrame, filters: int) -> None:
    chains: list[Chain] = [
        lambda df, at=at: df.where(f"x = {at - 40} OR (x IS NULL AND y = {at % 3})").select("x", "y")
        for at in range(filters)
    ]
    alone = [chain(source) for chain in chains]
    drawn = Pass(source, [Reader(one) for one in alone])
    crossing, shares = drawn.over(source), drawn.shares
    assert len([name for name in crossing.columns if name.startswith("_w")]) == -(-filters // 64)
    table = crossing.toArrow()
    found = dict.fromkeys(range(filters), 0)
    for batch in table.to_batches():
        for number, mine in Crossing(None, (tuple(enumerate(shares)),)).split(batch):
            found[number] += mine.num_rows
    rows = source.select("x", "y").collect()
    for number in found:
        wanted = [row for row in rows if row.x == number - 40 or (row.x is None and row.y == number % 3)]
        assert found[number] == len(wanted), number


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("x", "{}"),  # which Spark casts
        pytest.param("s", "'s{}'", marks=pytest.mark.heavy),
        pytest.param("y8", "{}", marks=pytest.mark.heavy),
        pytest.param("day", "DATE '2126-01-{:02}'", marks=pytest.mark.heavy),
        pytest.param("tiny", "CAST({} AS tinyint)", marks=pytest.mark.heavy),
    ],
)
def test_many_values_of_one_column_are_looked_up_in_it(source: DataFrame, column: str, value: str) -> None:
    """Nulls, values that no row has, one that two want, one that stands on the left, expressions and filters behind."""
    wide = (
        source.withColumn("y8", F.coalesce(F.col("x"), F.lit(0)).cast("int") % 12)
        .withColumn("tiny", F.col("x").cast("tinyint"))
        .withColumn("day", F.date_add(F.lit("2126-01-01"), F.col("y")))
        .cache()
    )

    def wants(number: int) -> Chain:
        return lambda df: df.where(f"{column} = {value.format(number)}").select("s", "x", "y8")

    chains = [wants(number) for number in range(1, 10)]
    guarded = lambda df: df.where(f"{value.format(3)} = {column}").select((F.col("x") + 1).alias("x"))  # noqa: E731
    behind = lambda df: df.where(f"{column} = {value.format(1)}").where("x > 0").select("x")  # noqa: E731
    crossing = check(wide, [*chains, wants(2), guarded])
    assert not [name for name in crossing.columns if name.startswith("_w")], "no bit is needed"
    assert crossing.count() == wide.where(" OR ".join(f"{column} = {value.format(at)}" for at in range(1, 10))).count()
    mixed = check(wide, [*chains, behind, lambda df: df.where("y > 0").select("y")])
    assert [name for name in mixed.columns if name.startswith("_w")] == ["_w0"]
    few = check(wide, [*chains[:3], wants(2)])
    assert [name for name in few.columns if name.startswith("_w")] == ["_w0"]


def test_values_that_spark_compares_in_its_own_way_are_bits(source: DataFrame) -> None:
    wide = source.selectExpr("x", "x / 2D AS half", "s COLLATE UTF8_LCASE AS name", "x = 1 AS one").cache()
    halves = [lambda df, at=at: df.where(f"half = {at}D").select("x") for at in range(-3, 6)]
    names = [lambda df, at=at: df.where(f"name = 'S{at}'").select("x") for at in range(9)]
    for chains in (halves, names, [lambda df: df.where("one = true").select("x"), *halves]):
        assert "_w0" in check(wide, chains).columns


def test_what_cannot_be_guarded_or_repeated_keeps_a_branch(source: DataFrame) -> None:
    twice = F.udf(lambda x: x and x * 2, "bigint")
    other = source.select("y").distinct()
    for chain in (
        source.withColumn("r", F.rand()),
        source.where(F.rand() < 0.5),
        source.withColumn("t", twice("x")),
        source.where(twice("x") > 1),
        source.withColumn("e", F.explode(F.array("x", "y"))),
        source.union(source),
        source.join(other, "y"),
        source.where("x > (SELECT 3)"),
        source.withColumn("n", F.expr("1 / y")).where("y <> 0"),  # alone, Spark runs the filter first
        other,
    ):
        assert not readable(source, chain)
    assert readable(source, source)
    assert readable(source, source.where("x > 1"))


def test_looks_see_what_filters_drop(source: DataFrame) -> None:
    early = source.where("y = 1").where("x > 0")
    behind = source.where("x < 0").withColumn("later", F.expr("ts + INTERVAL 1 DAY"))
    ntz = source.withColumn("n", F.col("ts").cast("timestamp_ntz"))
    readers = [
        Reader(early.select("x"), (Look(source.select("ts"), ("one", "two"), None),)),
        Reader(source.where("x < 0").where("y = 5").select("x"), (Look(behind.select("later"), ("three",), None),)),
        Reader(source.where("y = 7").select("x"), (Look(ntz.select("n"), ("four",), None),)),
        Reader(source.where("y = 8").select("x"), (Look(source.select("ts"), ("five",), 0),)),
    ]
    crossing = Pass(source, readers).over(source)
    assert len(crossing.collect()) == early.count()
    seen = seen_by(crossing._jdf.queryExecution())
    latest = max(row.ts for row in source.collect())
    below = max(row.ts for row in source.where("x < 0").collect()) + timedelta(days=1)
    assert {name: EPOCH + timedelta(microseconds=micros) for name, micros in seen.items()} == {
        "one": latest,
        "two": latest,
        "three": below,
        "four": latest,
    }, "and the fifth has only times ahead of the clock"


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.heavy)])
def test_random_readers(source: DataFrame, rounds: int) -> None:
    """Chains of filters and columns in any order, some alike, against each alone."""
    seed = random.Random(rounds)
    filters = ["x > 0", "y = 1", "s = 's1'", "x % 2 = 0", "y <> 0", "s IS NOT NULL", "1 = 1", "x > y"]
    made = ["x + y", "upper(s)", "x * x", "coalesce(x, -1)", "CASE WHEN y <> 0 THEN 6 / y END", "ts", "length(s)"]

    def chain() -> Chain:
        steps = [seed.choice(("where", "column")) for _ in range(seed.randint(0, 5))]
        said = [(step, seed.choice(filters if step == "where" else made), seed.randint(0, 2)) for step in steps]

        def run(df: DataFrame) -> DataFrame:
            for step, text, at in said:
                df = df.where(text) if step == "where" else df.withColumn(f"m{at}", F.expr(text))
            return df.select("x", "y", *[name for name in df.columns if name.startswith("m")])

        return run

    for _ in range(rounds):
        drawn = [chain() for _ in range(seed.randint(5, 12))]
        check(source, [one for one in drawn if readable(source, one(source))])


def test_conditions_that_share_what_only_one_of_them_guards(tmp_path: Path, spark: SparkSession) -> None:
    """Spark computes what columns share ahead of them, unless the query is told not to: a job tells it."""
    rows = spark.createDataFrame([("num", "7"), ("text", "x"), ("num", "1"), ("text", "y")], "kind string, v string")
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    job = hf.Job("shared", spark, store=tmp_path / "store")
    read = job.read(spark.readStream.schema("kind string, v string").parquet(str(tmp_path / "in")))
    texts = {
        "more": "kind = 'num' AND CAST(v AS int) > 5",
        "less": "kind = 'num' AND CAST(v AS int) < 3",
        "text": "kind = 'text'",
    }
    for name, text in texts.items():
        read.where(text).key_by("kind", name=name).agg(n=hf.count()).write("noop", name=name)
    before = spark.conf.get("spark.sql.subexpressionElimination.enabled")
    with job.start(containers=1, slices=2, trigger="availableNow") as run:
        run.await_termination()
        found = {name: [row["n"] for row in run.state(name).to_arrow().to_pylist()] for name in texts}
    assert found == {"more": [1], "less": [1], "text": [2]}
    assert spark.conf.get("spark.sql.subexpressionElimination.enabled") == before
