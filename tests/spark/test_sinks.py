"""Every kind of sink on real Spark: whole epochs, given twice, taken once where that is promised."""

from __future__ import annotations

import json
import pickle
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from holdfast.errors import PlanError
from holdfast.plan.epochs import Epoch
from holdfast.spark import stamps
from holdfast.spark.sinks import NoopSink, Sink, failed_sink, for_each_batch, open_sink
from holdfast.spark.tables import DeltaSink, TableSink

pytestmark = pytest.mark.spark

# Spark's workers cannot import this file.
register_pickle_by_value(sys.modules[__name__])

SCHEMA = "k string, n bigint"


def opened(spark: SparkSession, format: str, mode: str = "update", schema: str = SCHEMA, **given: Any) -> Sink:
    partition_by = given.pop("partition_by", ())
    stamp = given.pop("stamp", True)
    types = StructType.fromDDL(schema)
    return open_sink(spark, "out", format, given, mode, partition_by, types, "job-1/main/out", "job-1", stamp)


def rows(spark: SparkSession, *values: tuple[str, int]) -> DataFrame:
    names, numbers = ([row[at] for row in values] for at in (0, 1))
    table = pa.table({"k": pa.array(names, pa.string()), "n": pa.array(numbers, pa.int64())})
    return spark.createDataFrame(table, SCHEMA)


def scan(spark: SparkSession, partitions: int, calls: Path) -> DataFrame:
    """Rows as the containers give them, leaving one mark for each time a partition is read."""
    folder = str(calls)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                Path(folder, f"{number}-{uuid.uuid4().hex}").touch()
                yield pa.RecordBatch.from_pydict({"k": [f"k{number}"], "n": [number]})

    return spark.range(0, partitions, 1, partitions).mapInArrow(read, SCHEMA)


def found(spark: SparkSession, format: str, path: Path) -> list[tuple[Any, ...]]:
    read = spark.read.schema(f"{SCHEMA}, _epoch bigint").format(format).load(str(path))
    return sorted(tuple(row) for row in read.select("k", "n", "_epoch").collect())


@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
def test_files_take_an_epoch_once(spark: SparkSession, tmp_path: Path, format: str) -> None:
    path = tmp_path / "out"
    sink = opened(spark, format, path=str(path))
    assert (sink.exactly_once, sink.wants) == (True, "changed")
    sink.write(rows(spark, ("a", 1), ("b", 2)), epoch=3, counter=0)
    sink.write(rows(spark, ("a", 1), ("b", 2)), epoch=3, counter=0)
    sink.write(rows(spark), epoch=4, counter=1)
    sink.write(rows(spark, ("a", 5)), epoch=5, counter=2)
    again = opened(spark, format, path=str(path))  # after a restart
    again.write(rows(spark, ("a", 5)), epoch=5, counter=2)
    again.write(rows(spark, ("c", 7)), epoch=6, counter=3)
    assert found(spark, format, path) == [("a", 1, 3), ("a", 5, 5), ("b", 2, 3), ("c", 7, 6)]
    assert {int(log.name) for log in (path / "_spark_metadata").iterdir() if log.name.isdigit()} == {0, 1, 2, 3}


def test_files_of_an_unfinished_epoch_are_not_seen(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "out"
    sink = opened(spark, "parquet", path=str(path))
    sink.write(rows(spark, ("a", 1)), epoch=1, counter=0)

    def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                if number == 1:
                    raise ValueError("lost")
                yield pa.RecordBatch.from_pydict({"k": ["half"], "n": [number]})

    with pytest.raises(Exception, match="lost"):
        sink.write(spark.range(0, 2, 1, 2).mapInArrow(broken, SCHEMA), epoch=2, counter=1)
    assert found(spark, "parquet", path) == [("a", 1, 1)]
    sink.write(rows(spark, ("b", 2)), epoch=2, counter=1)
    assert found(spark, "parquet", path) == [("a", 1, 1), ("b", 2, 2)]


@pytest.mark.parametrize("partition_by", [(), ("k",)], ids=["plain", "partitioned"])
def test_files_read_the_rows_once_and_keep_the_job_group(
    spark: SparkSession, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    sink = opened(spark, "parquet", path=str(tmp_path / "out"), partition_by=partition_by)
    context = spark.sparkContext
    group = tmp_path.name
    context.setJobGroup(group, "sink out of epoch 1")
    sink.write(scan(spark, 4, calls), epoch=1, counter=0)
    assert context.getLocalProperty("spark.jobGroup.id") == group
    assert context.getLocalProperty("spark.job.description") == "sink out of epoch 1"
    assert len(context.statusTracker().getJobIdsForGroup(group)) == 1
    context.setLocalProperty("spark.jobGroup.id", None)
    assert sorted(mark.name.split("-")[0] for mark in calls.iterdir()) == ["0", "1", "2", "3"]
    assert found(spark, "parquet", tmp_path / "out") == [(f"k{n}", n, 1) for n in range(4)]
    folders = {part.name for part in (tmp_path / "out").iterdir() if part.name.startswith("k=")}
    assert folders == ({f"k=k{n}" for n in range(4)} if partition_by else set())


def test_files_from_inside_for_each_batch(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(0, 20, 1, 2).write.parquet(str(tmp_path / "in"))
    sink = opened(spark, "parquet", path=str(tmp_path / "out"))

    def batch(df: DataFrame, number: int) -> None:
        sink.write(df.selectExpr("string(id % 3) as k", "id as n"), number, number)
        sink.write(rows(spark, ("ignored", 0)), number, number)

    stream = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    started = stream.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path / "c"))
    started.trigger(availableNow=True).start().awaitTermination()
    assert sorted(n for _, n, _ in found(spark, "parquet", tmp_path / "out")) == list(range(20))


def test_text_needs_one_string_column(spark: SparkSession, tmp_path: Path) -> None:
    for schema, partition_by in ((SCHEMA, ()), ("line string", ()), ("n bigint", ("_epoch",))):
        with pytest.raises(PlanError, match="text"):
            opened(spark, "text", schema=schema, path=str(tmp_path), partition_by=partition_by)
    sink = opened(spark, "text", schema="line string", path=str(tmp_path / "t"), partition_by=("_epoch",))
    sink.write(spark.sql("select 'hello' as line"), epoch=9, counter=0)
    assert [tuple(row) for row in spark.read.text(str(tmp_path / "t")).collect()] == [("hello", 9)]


def test_memory_appends_changes_and_replaces_everything(spark: SparkSession) -> None:
    changes = opened(spark, "memory", queryName="seen_changes")
    everything = opened(spark, "memory", mode="complete", queryName="seen_all")
    assert (changes.wants, everything.wants) == ("changed", "all")
    for sink in (changes, everything):
        assert not sink.exactly_once
        sink.write(rows(spark, ("a", 1)), epoch=1, counter=0)
        sink.write(rows(spark, ("a", 1)), epoch=1, counter=0)
        sink.write(rows(spark, ("a", 2), ("b", 1)), epoch=2, counter=1)
    assert sorted(map(tuple, spark.table("seen_changes").collect())) == [("a", 1), ("a", 2), ("b", 1)]
    assert sorted(map(tuple, spark.sql("select * from seen_all").collect())) == [("a", 2), ("b", 1)]


def test_memory_goes_by_the_sinks_name_and_refuses_one_that_is_no_view(spark: SparkSession) -> None:
    opened(spark, "memory").write(rows(spark, ("a", 1)), epoch=0, counter=0)
    assert spark.table("out").count() == 1
    with pytest.raises(PlanError, match="no-view"):
        opened(spark, "memory", queryName="no-view")


def test_console_prints_as_spark_does(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    sink = opened(spark, "console", numrows="1", truncate="false")
    sink.write(rows(spark, ("a" * 30, 1), ("b", 2)), epoch=12, counter=0)
    shown = capsys.readouterr().out
    assert f"{'-' * 43}\nEpoch: 12\n{'-' * 43}\n+" in shown
    assert "a" * 30 in shown
    assert "only showing top 1 row" in shown
    opened(spark, "console", truncate="5").write(rows(spark, ("a" * 30, 1)), epoch=0, counter=0)
    assert "|aa...|" in capsys.readouterr().out


def test_noop_reads_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    opened(spark, "noop").write(scan(spark, 3, tmp_path), epoch=1, counter=0)
    assert sorted(mark.name[0] for mark in tmp_path.iterdir()) == ["0", "1", "2"]


class Recorder(DataSource):
    """A batch writer that notes what it was asked to do."""

    @classmethod
    def name(cls) -> str:
        return "recorder"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return RecorderWriter(dict(self.options), overwrite)


class RecorderWriter(DataSourceWriter):
    def __init__(self, options: dict[str, str], overwrite: bool) -> None:
        self.options = options
        self.overwrite = overwrite

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        asked = {"overwrite": self.overwrite, "txn": [self.options.get("txnappid"), self.options.get("txnversion")]}
        rows = sorted(plain(row) for row in iterator)
        if rows:
            with Path(self.options["note"]).open("a") as note:
                note.write(json.dumps({**asked, "rows": rows}) + "\n")
        return WriterCommitMessage()


def plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    return value.decode() if isinstance(value, (bytes, bytearray)) else value


def noted(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_any_other_format_gets_appends(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(Recorder)
    note = tmp_path / "note"
    sink = opened(spark, "recorder", note=str(note))
    assert isinstance(sink, TableSink)
    assert not sink.exactly_once
    sink.write(rows(spark, ("a", 1)).coalesce(1), epoch=1, counter=0)
    complete = opened(spark, "recorder", mode="complete", note=str(note))
    complete.write(rows(spark, ("b", 2)).coalesce(1), epoch=2, counter=1)
    opened(spark, "recorder", note=str(note), stamp=False).write(rows(spark, ("c", 3)).coalesce(1), epoch=3, counter=2)
    assert [(entry["overwrite"], entry["rows"]) for entry in noted(note)] == [
        (False, [["a", 1, "job-1", "out", 1]]),
        (True, [["b", 2, "job-1", "out", 2]]),
        (False, [["c", 3]]),
    ]


def test_delta_is_told_who_writes_which_epoch(spark: SparkSession, tmp_path: Path) -> None:
    class Delta(Recorder):
        @classmethod
        def name(cls) -> str:
            return "delta"

    spark.dataSource.register(Delta)
    sink = opened(spark, "delta", note=str(tmp_path / "note"))
    assert isinstance(sink, DeltaSink)
    assert sink.exactly_once
    sink.write(rows(spark, ("a", 1)).coalesce(1), epoch=41, counter=3)
    assert [entry["txn"] for entry in noted(tmp_path / "note")] == [["job-1/main/out", "41"]]
    assert [entry["rows"] for entry in noted(tmp_path / "note")] == [[["a", 1, "job-1", "out", 41]]]


def test_messages_carry_the_epoch_behind_their_own_headers(spark: SparkSession) -> None:
    """As Spark's Kafka writer will see them; the broker's side is among the services."""
    messages = spark.sql(
        "select 'v' as value, array(struct('mine' as key, cast('x' as binary) as value)) as headers union all "
        "select 'w', null"
    )
    ours = [["holdfast-job", "job-1"], ["holdfast-sink", "out"], ["holdfast-epoch", "7"]]
    found = stamps.with_headers(messages, "job-1", "out", 7)
    assert found.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    assert [plain(row) for row in found.collect()] == [["v", [["mine", "x"], *ours]], ["w", ours]]
    assert [plain(row) for row in stamps.with_headers(messages.select("value"), "job-1", "out", 7).collect()] == [
        ["v", ours],
        ["w", ours],
    ]


class Table(Recorder):
    """One that can be read as well, and has the columns that an option says."""

    @classmethod
    def name(cls) -> str:
        return "somewhere"

    def schema(self) -> str:
        return self.options["has"]


def test_a_table_without_the_columns_is_refused_before_it_starts(spark: SparkSession) -> None:
    spark.dataSource.register(Table)
    with pytest.raises(PlanError, match=r"(?s)has no _job, _epoch\..*stamp=False"):
        opened(spark, "somewhere", has="k string, n bigint, _sink string", note="")
    opened(spark, "somewhere", has="k string, n bigint, _SINK string, _Job string, _epoch bigint", note="")
    opened(spark, "somewhere", has="k string, n bigint", note="", stamp=False)
    opened(spark, "somewhere", has="k string, n bigint", note="", mode="complete")  # it is made anew
    with pytest.raises(PlanError, match="has no _job"):
        opened(spark, "somewhere", has="k string, n bigint", note="", mode="complete", truncate="true")
    with pytest.raises(PlanError, match="already have a column _sink"):
        opened(spark, "somewhere", schema="k string, _SINK string", has="k string", note="")


def test_files_without_the_epoch(spark: SparkSession, tmp_path: Path) -> None:
    sink = opened(spark, "parquet", path=str(tmp_path / "out"), stamp=False)
    sink.write(rows(spark, ("a", 1)), epoch=3, counter=0)
    assert spark.read.parquet(str(tmp_path / "out")).columns == ["k", "n"]
    text = opened(spark, "text", schema="line string", path=str(tmp_path / "t"), stamp=False)
    text.write(spark.sql("select 'hello' as line"), epoch=9, counter=0)
    assert [tuple(row) for row in spark.read.text(str(tmp_path / "t")).collect()] == [("hello",)]
    with pytest.raises(PlanError, match="'_epoch'"):
        opened(spark, "parquet", path=str(tmp_path / "p"), partition_by=("_epoch",), stamp=False)


def test_for_each_batch_gets_the_rows_and_the_epoch(spark: SparkSession) -> None:
    seen: list[tuple[Epoch, int]] = []
    sink = for_each_batch("mine", lambda df, epoch: seen.append((epoch, df.count())), "complete", "job-1")
    assert (sink.exactly_once, sink.wants, sink.name) == (False, "all", "mine")
    sink.write(rows(spark, ("a", 1), ("b", 2)), epoch=8, counter=0)
    sink.close()
    assert seen == [(8, 2)]
    epoch = pickle.loads(pickle.dumps(seen[0][0]))  # as a function that runs in Spark's tasks would take it along
    assert (epoch, epoch.job, epoch.sink, epoch + 1) == (8, "job-1", "mine", 9)


def test_what_cannot_work_is_refused_before_it_starts(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="parkett"):
        opened(spark, "parkett", path=str(tmp_path))
    with pytest.raises(PlanError, match="avro"):  # a format whose package is not there
        opened(spark, "avro", path=str(tmp_path))
    with pytest.raises(PlanError, match="complete"):
        opened(spark, "parquet", mode="complete", path=str(tmp_path))
    with pytest.raises(PlanError, match="append"):
        opened(spark, "parquet", mode="append", path=str(tmp_path))
    with pytest.raises(PlanError, match="'absent'"):
        opened(spark, "parquet", path=str(tmp_path), partition_by=("absent",))
    with pytest.raises(PlanError, match=r"(?i)path"):
        opened(spark, "parquet")
    with pytest.raises(PlanError, match="_epoch"):
        opened(spark, "parquet", schema="k string, _epoch bigint", path=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_what_a_sink_raised_comes_in_its_own_words(spark: SparkSession, tmp_path: Path) -> None:
    """Not behind Spark's, whichever way it came."""

    def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raise KeyError("no such product")
            yield batch

    def in_a_task() -> None:
        opened(spark, "parquet", path=str(tmp_path / "out")).write(
            spark.range(1).mapInArrow(broken, SCHEMA), epoch=1, counter=0
        )

    def in_the_jvm() -> None:
        opened(spark, "jdbc", url="jdbc:nothing:", dbtable="t").write(rows(spark, ("a", 1)), epoch=1, counter=0)

    def on_the_driver() -> None:
        for_each_batch("out", lambda df, epoch: [].pop(), "update", "job-1").write(rows(spark), epoch=1, counter=0)

    for write, words in (
        (in_a_task, "KeyError: 'no such product'"),
        (in_the_jvm, "SQLException: No suitable driver"),
        (on_the_driver, "IndexError: pop from empty list"),
    ):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever Spark makes of it
            write()
        told = str(failed_sink(NoopSink("out", "changed"), 4, raised.value)).splitlines()[0]
        assert told.startswith(words)
        assert told.endswith("(raised by sink 'out' in epoch 4)")
