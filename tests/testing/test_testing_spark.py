"""The kit against Spark itself: the same hash, and the same results of the same functions of streams."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import holdfast as hf
from holdfast import testing
from holdfast.plan.ddl import schema_of
from holdfast.state.value_hashing import xxhash64
from holdfast.testing.values import to_table

pytestmark = pytest.mark.spark


def test_the_hash_is_sparks(spark: SparkSession) -> None:
    schema = schema_of("s string, b binary, d decimal(10,2), w decimal(38,10), n int, t boolean, x double")
    texts = [None, "", "a", "four", "eight bytes", "é" * 9, "x" * 31, "y" * 32, "z" * 100]
    wide = [None, "0", "-1", "127", "-128", "128", "-32769.5", "12345678901234567890.0123456789", "-0.0000000001"]
    rows: list[dict[str, Any]] = [
        {
            "s": text,
            "b": None if text is None else text.encode()[::-1],
            "d": None if number is None else Decimal(number[:6]),
            "w": number,
            "n": at,
            "t": at % 2 == 0,
            "x": at / 3,
        }
        for at, (text, number) in enumerate(zip(texts, wide, strict=True))
    ]
    table = to_table(rows, schema, "source")
    frame = spark.createDataFrame([tuple(row.values()) for row in table.to_pylist()], schema).coalesce(1)
    for names in (["s"], ["b"], ["d"], ["w"], ["s", "n"], ["x", "t", "s", "w"], ["n", "x"]):
        kinds = [schema[name].dataType.simpleString() for name in names]
        ours = xxhash64([table.column(name).combine_chunks() for name in names], kinds)
        theirs = [row[0] for row in frame.select(F.xxhash64(*names)).collect()]
        assert ours.tolist() == theirs, names


def drawn(clicks: hf.Stream) -> list[hf.StageStream]:
    large = clicks.where("n BETWEEN 1 AND 90").with_column("ones", "n % 10").with_column("shop", "upper(shop)")
    sums = large.key_by("shop", "ones").agg(
        rows=hf.count(), n=hf.sum("n"), mean=hf.mean("n"), about=hf.approx_distinct("n")
    )
    best = sums.select("shop", "ones", "n").top_k(2, by="n", per="shop")
    windows = large.key_by("shop").window(hf.sliding("20 s", every="5 s"), time="ts", lateness="3 s").agg(n=hf.max("n"))
    return [sums, best, windows]


def test_a_job_gives_what_it_gives_with_spark(spark: SparkSession, tmp_path: Path) -> None:
    ddl = "shop string, n bigint, ts timestamp"
    rows = [
        {"shop": f"s{at % 5}", "n": at * 37 % 101, "ts": f"2026-01-01 00:{at // 60:02d}:{at % 60:02d}"}
        for at in range(300)
    ]
    (tmp_path / "in").mkdir()
    pq.write_table(to_table(rows, schema_of(ddl), "source"), tmp_path / "in" / "0.parquet")
    job = hf.Job("both", spark, store=str(tmp_path / "store"))
    stages = drawn(job.read(spark.readStream.schema(ddl).parquet(str(tmp_path / "in"))))
    stages[-1].write("parquet", str(tmp_path / "out"))
    with job.start(slices=8, containers=1, trigger={"availableNow": True}) as run:
        run.await_termination()
        theirs = [run.state(stage).to_arrow() for stage in stages]
    closed = spark.read.parquet(str(tmp_path / "out")).drop("_epoch").toArrow()

    kit = testing.Job()
    ours = drawn(kit.read(ddl))
    with kit.start(slices=8) as tested:
        tested.epoch(rows)
        for stage, found in zip(ours, theirs, strict=True):
            testing.equal(tested.state(stage), found)
        testing.equal(tested.rows(ours[-1]), closed)
    assert closed.num_rows > 100
