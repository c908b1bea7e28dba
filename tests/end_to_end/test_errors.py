"""What goes wrong in somebody's own code or data comes as an error of ours, their own exception first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import holdfast as hf

pytestmark = pytest.mark.spark
NOW: dict[str, Any] = {"containers": 1, "slices": 2, "trigger": "availableNow"}


def test_of_udfs_steps_and_sources(tmp_path: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    def boom(key):  # type: ignore[no-untyped-def]
        raise ValueError(f"the user's own words about {key}")

    def bad_mapper(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            raise KeyError("in a mapper")
        yield from ()

    (tmp_path / "good").mkdir()
    (tmp_path / "bad").mkdir()
    pq.write_table(pa.table({"k": [7]}), tmp_path / "good" / "1.parquet")
    (tmp_path / "bad" / "1.parquet").write_bytes(b"no parquet at all, not even close to it")
    changes: dict[str, tuple[str, Callable[[DataFrame], DataFrame], str]] = {
        "udf": (
            "good",
            lambda frame: frame.withColumn("k", F.udf(boom, "bigint")("k")),
            rf"^ValueError: the user's own words about 7 \({__file__}, line \d+, in boom\)\. That was raised while",
        ),
        "mapper": ("good", lambda frame: frame.mapInArrow(bad_mapper, "k bigint"), r"^KeyError: 'in a mapper' \("),
        "cast": (
            "good",
            lambda frame: frame.selectExpr("cast('x' || k AS bigint) AS k"),
            r"^\[CAST_INVALID_INPUT\] The value 'x7' of the type \"STRING\" cannot be cast",
        ),
        "source": ("bad", lambda frame: frame, r"^SparkException: \[FAILED_READ_FILE.*bad/1.parquet"),
    }
    for name, (folder, change, says) in changes.items():
        job = hf.Job(name, spark, store=str(tmp_path / name))
        frame = spark.readStream.schema("k bigint").parquet(str(tmp_path / folder))
        job.read(change(frame)).key_by("k").agg(n=hf.count()).write("noop")
        with job.start(**NOW) as run:
            with pytest.raises(hf.SparkError, match=says) as caught:
                run.await_termination()
            assert "rows of block 1 were read" in caught.value.what
            assert len(str(caught.value).splitlines()) == 3
            assert caught.value.details
            assert caught.value.__cause__ is None
    assert "QueryContextLogger" not in capfd.readouterr().err


def test_of_plans(tmp_path: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    """And of what is asked of a run that it does not have."""
    pq.write_table(pa.table({"k": [7]}), tmp_path / "1.parquet")
    job = hf.Job("plans", spark, store=str(tmp_path / "store"))
    rows = job.read(spark.readStream.schema("k bigint").parquet(str(tmp_path / "*.parquet")))
    for wrong in (
        lambda: rows.where("k >"),
        lambda: rows.with_column("more", "k +"),
        lambda: rows.key_by("k").agg(n=hf.sum("k", where="k >")),
    ):
        with pytest.raises(
            hf.PlanError, match=r"Spark cannot read the SQL of the .*: \[PARSE_SYNTAX_ERROR\]"
        ) as caught:
            wrong()
        assert "k" in caught.value.what.splitlines()[1]
        assert caught.value.safe
    for wrong in (lambda: rows.where("kk > 1"), lambda: rows.select("kk"), lambda: rows.key_by("kk").agg(n=hf.count())):
        with pytest.raises(hf.PlanError, match=r"UNRESOLVED_COLUMN.*`kk`") as caught:
            wrong()
        assert caught.value.todo == "The columns there are: k."
    assert capfd.readouterr().err == ""

    counts = rows.key_by("k", name="counts").agg(n=hf.count())
    counts.write("noop")
    with job.start(**NOW) as run:
        run.await_termination()
        later = rows.key_by("k", name="later").agg(n=hf.count())
        with pytest.raises(hf.PlanError, match="'later' was drawn when this run had started") as caught:
            run.state(later)
        assert "The stages of this run are: counts." in caught.value.todo
        for stranger, said in (("count", "There is no stage 'count'"), (rows, "takes a stream of this job")):
            with pytest.raises(hf.PlanError, match=said) as caught:
                run.state(stranger)  # type: ignore[arg-type]
            assert "The stages of this run are: counts." in caught.value.todo
        assert run.state("counts").get(7) == {"k": 7, "n": 1, "_epoch": 1}
        assert run.state(counts).get(7) == {"k": 7, "n": 1, "_epoch": 1}


@pytest.mark.heavy
@pytest.mark.own_nursery
def test_functions_over_sets_see_one_order_for_the_life_of_a_job(tmp_path: Path, spark: SparkSession) -> None:
    """In every container, those that replace others and those of the next start too."""

    class Order:
        """A set in the order that this interpreter has it in."""

        order = hf.states.value("string")

        def rows(self, key: Any, rows: Any, context: Any) -> None:
            context.state.order = " ".join({f"word{number}" for number in range(20)})

    (tmp_path / "in").mkdir()
    seen: set[str] = set()
    for number in (1, 2):
        pq.write_table(pa.table({"k": list(range(40))}), tmp_path / "in" / f"{number}.parquet")
        job = hf.Job("seeds", spark, store=str(tmp_path / "store"))
        frame = spark.readStream.schema("k bigint").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        orders = job.read(frame).key_by("k").process(Order, "k bigint")
        orders.write("noop")
        with job.start(**(NOW | {"containers": 2, "slices": 8})) as run:
            seed = run._file.hash_seed
            run.await_termination()
            seen |= set(run.state(orders).to_arrow()["order"].to_pylist())
            run.kill(run.status().containers[0].name)
            assert run.await_settled(120)
            seen |= set(run.state(orders).to_arrow()["order"].to_pylist())
    code = 'print(" ".join({f"word{number}" for number in range(20)}))'
    alone = subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": str(seed)}, capture_output=True)
    assert seen == {alone.stdout.decode().strip()}
