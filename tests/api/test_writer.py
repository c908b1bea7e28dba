"""``stream.writeStream``: the words of Spark's builder, and what they add to the job. Without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming import DataStreamWriter

import holdfast as hf
from holdfast import testing
from holdfast.api.writer import StreamWriter
from holdfast.plan.graph import Sink


def drawn() -> tuple[testing.Job, hf.StageStream]:
    job = testing.Job()
    return job, job.read("k int, v int", name="rows").key_by("k").agg(n=hf.count())


def test_every_word_of_sparks_builder_is_known() -> None:
    words = {name for name in vars(DataStreamWriter) if not name.startswith("_")}
    assert words <= {name for name in vars(StreamWriter) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("say", "expected"),
    [
        (
            lambda to: to.format("json").option("path", "out").start(),
            ("json:out", "json", "update", {"path": "out"}, ()),
        ),
        (lambda to: to.start("out"), ("parquet:out", "parquet", "update", {"path": "out"}, ())),
        (
            lambda to: (
                to.format("csv").options(header=True, sep=";").partitionBy("k", "n").queryName("mine").start("out")
            ),
            ("mine", "csv", "update", {"header": "true", "sep": ";", "path": "out"}, ("k", "n")),
        ),
        (
            lambda to: to.start(
                "out", format="orc", outputMode="update", partitionBy=["k"], queryName="q", compression="x"
            ),
            ("q", "orc", "update", {"compression": "x", "path": "out"}, ("k",)),
        ),
        (lambda to: to.format("noop").outputMode("complete").start(), ("sink1", "noop", "complete", {}, ())),
        (lambda to: to.toTable("shop.counts"), ("table:shop.counts", "parquet", "update", {}, ())),
    ],
)
def test_what_is_said_is_what_write_would_have(
    say: Callable[[StreamWriter], hf.Stream], expected: tuple[Any, ...]
) -> None:
    job, counts = drawn()
    assert say(counts.writeStream) is counts
    (sink,) = job.plan().sinks
    assert (sink.name, sink.format, sink.mode, dict(sink.options), sink.partition_by) == expected
    assert sink.stamp


def test_the_two_ways_are_one() -> None:
    def sinks(say: Callable[[hf.StageStream], object]) -> list[Sink]:
        job, counts = drawn()
        say(counts)
        return list(job.plan().sinks)

    (one,), (other,) = (
        sinks(lambda counts: counts.write("json", "out", partition_by="k", name="n", lineSep="|")),
        sinks(
            lambda c: c.writeStream.format("json").partitionBy("k").queryName("n").option("lineSep", "|").start("out")
        ),
    )
    assert [getattr(one, name) for name in ("name", "format", "mode", "options", "partition_by", "stamp", "table")] == [
        getattr(other, name) for name in ("name", "format", "mode", "options", "partition_by", "stamp", "table")
    ]


def test_a_function_of_ones_own() -> None:
    job, counts = drawn()

    def take(df: Any, epoch: int) -> None:
        pass

    counts.writeStream.foreachBatch(take).outputMode("complete").queryName("mine").start()
    (sink,) = job.plan().sinks
    assert (sink.name, sink.function, sink.mode) == ("mine", take, "complete")
    with pytest.raises(hf.PlanError, match="no table"):
        counts.writeStream.foreachBatch(take).toTable("t")


@pytest.mark.parametrize(
    ("say", "what", "instead"),
    [
        (lambda to: to.trigger(processingTime="1 second"), "A trigger is the job's", r"'processingTime': '1 second'"),
        (lambda to: to.option("checkpointLocation", "x"), "no checkpoint of its own", "store"),
        (lambda to: to.options(CHECKPOINTLOCATION="x"), "no checkpoint of its own", "store"),
        (lambda to: to.foreach(print), "There is no foreach", "foreachBatch"),
        (lambda to: to.clusterBy("k"), "not clustered", "partitionBy"),
        (lambda to: to.outputMode("nonsense").start("out"), "no output mode 'nonsense'", "update"),
        (lambda to: to.outputMode("append").start("out"), "cannot be appended", "update"),
    ],
)
def test_what_belongs_to_the_job_says_where(say: Callable[[StreamWriter], object], what: str, instead: str) -> None:
    job, counts = drawn()
    with pytest.raises(hf.PlanError, match=what) as refused:
        say(counts.writeStream)
    assert instead in refused.value.todo
    assert not job.plan().sinks


def test_a_join_is_named_on_its_left() -> None:
    job = testing.Job()
    left, right = (job.read(f"k int, {name} int", name=name) for name in ("a", "b"))
    with pytest.raises(hf.PlanError, match="right side of a join was given the name 'mine'") as refused:
        left.key_by("k").join(right.key_by("k", name="mine"))
    assert "Name the left side" in refused.value.todo
    assert left.key_by("k", name="mine").join(right.key_by("k")).name == "mine"
    assert left.key_by("k").join(right.key_by("k"), name="other").name == "other"
