"""Where an epoch's output rows go: one small class per kind of sink.

A sink is given each epoch's rows once, and again after a crash. Files and Delta remember which epochs they have and
take each at once or not at all; the others may see an epoch twice, with the same rows and the same number, and their
rows carry whose they are (``stamps``). Files go through Spark's own streaming file sink, so any Spark reader of the
folder sees whole epochs only; the price is its rule that batch ids start at 0 and have no gaps, hence the counter
beside the epoch. Nothing here plans or changes the rows: whatever a sink does with them runs the scan, never the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StructField, StructType

from holdfast.errors import PlanError, SinkError
from holdfast.invariants import some
from holdfast.plan.epochs import Epoch
from holdfast.plan.graph import Sink as SinkPlan
from holdfast.plan.types import simple_type
from holdfast.spark import compat, stamps
from holdfast.spark.hadoop import list_names, local_path
from holdfast.spark.settling import Settled
from holdfast.spark.stamps import EPOCH_COLUMN
from holdfast.spark.tables import DeltaSink, KafkaSink, TableSink, Wants, option
from holdfast.spark.words import own_words

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text", "xml", "avro")
MODES = ("update", "complete")


class Sink(Protocol):
    """What the master needs of a sink."""

    name: str
    exactly_once: bool
    forgets: bool
    """An epoch that it gets again is there twice, for others to see: somebody else should remember it."""
    wants: Wants

    def write(self, df: DataFrame, epoch: int, counter: int) -> None:
        """Take the rows of ``epoch``; ``counter`` numbers this sink's epochs from 0 without gaps."""

    def close(self) -> None: ...


def open_sink(
    spark: SparkSession,
    name: str,
    format: str,
    options: Mapping[str, str],
    mode: str,
    partition_by: Sequence[str],
    schema: StructType,
    identity: str,
    job: str,
    stamp: bool = True,
    table: str = "",
) -> Sink:
    """The sink of a format, checked as far as it can be without rows.

    ``identity`` names this sink for ever (job, section, sink): exactly-once tables keep their progress by it.
    ``stamp``: rows carry the id of the ``job``, the name and the epoch. ``table`` is the name of one in the catalog.
    """
    wants = _wants(name, mode)
    for column in partition_by:
        if column not in schema.names and not (stamp and column == EPOCH_COLUMN):
            raise PlanError(
                f"Sink {name!r} is partitioned by {column!r}, which is not among its columns.",
                todo=f"Partition by one of {', '.join(schema.names)}.",
            )
    kind = format.lower()
    if kind == "console":
        return ConsoleSink(name, options, wants)
    if kind == "memory":
        return MemorySink(spark, name, options, schema, wants)
    if kind == "noop":
        return NoopSink(name, wants)
    _look_up(spark, name, format)
    if kind in FILE_FORMATS and not table:
        return FileSink(spark, name, kind, options, partition_by, schema, wants, stamp)
    if kind == "kafka":
        return KafkaSink(name, options, wants, job, stamp)
    if stamp:
        stamps.refuse_taken_names(name, schema, stamps.COLUMNS, "Rename it before write, or write(…, stamp=False).")
    made: TableSink = (
        DeltaSink(name, options, partition_by, wants, job, stamp, identity)
        if kind == "delta" and not table
        else TableSink(name, format, options, partition_by, wants, job, stamp, table)
    )
    if stamp and not made.replaces:
        stamps.refuse_unstamped_table(spark, name, format, options, table)
    return made


class FileSink:
    """A folder of files and the log that says which belong to whole epochs."""

    exactly_once = True
    forgets = False

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        format: str,
        options: Mapping[str, str],
        partition_by: Sequence[str],
        schema: StructType,
        wants: Wants,
        stamp: bool,
    ) -> None:
        self.name = name
        self.wants = wants
        self._stamp = stamp
        if wants == "all":
            raise PlanError(
                f"Sink {name!r} writes {format} files in mode 'complete', but files can only be added to.",
                todo="Use mode='update': each row carries the epoch in which it became true in _epoch.",
            )
        added = (EPOCH_COLUMN,) if stamp else ()
        stamps.refuse_taken_names(name, schema, added, "Rename the column before write, or write(…, stamp=False).")
        written = [field for field in schema.fields if field.name not in partition_by]
        if format == "text" and (
            not set(added) <= set(partition_by) or [simple_type(field.dataType) for field in written] != ["string"]
        ):
            raise PlanError(
                f"Sink {name!r} writes text, which holds one string column; it would get "
                f"{', '.join([*(field.name for field in written), *added])}.",
                todo="Select one string column and write with partition_by=['_epoch'], or use json.",
            )
        self._sink = _file_stream_sink(
            spark,
            name,
            format,
            options,
            partition_by,
            StructType([*schema.fields, *(StructField(column, LongType()) for column in added)]),
        )
        self.path = option(options, "path") or ""
        self._spark = spark
        local = local_path(spark, self.path)
        self._settled = Settled(local) if local else None  # elsewhere a closed file is as durable as it gets

    def newest(self) -> int:
        """The number of the last epoch in the folder's own log; -1 if there is none."""
        names = list_names(self._spark, f"{self.path}/_spark_metadata")
        return max((int(name.split(".")[0]) for name in names if name.split(".")[0].isdigit()), default=-1)

    def mend(self, counter: int) -> bool:
        """Before an epoch that was prepared is finished: what a power cut left of it here is no part of the folder, and
        is written again. Whether it was so."""
        return self._settled is not None and self._settled.forget_torn(counter)

    def write(self, df: DataFrame, epoch: int, counter: int) -> None:
        rows = df.withColumn(EPOCH_COLUMN, sf.lit(epoch).cast("bigint")) if self._stamp else df
        self._sink.addBatch(counter, rows._jdf)
        if self._settled is not None:
            self._settled.settle(counter)

    def close(self) -> None:
        return


class MemorySink:
    """A temporary view over rows kept in the driver, for looking and for tests; it does not outlive the
    driver.
    """

    exactly_once = False
    forgets = False  # by the time it could get an epoch again, it has nothing

    def __init__(
        self, spark: SparkSession, name: str, options: Mapping[str, str], schema: StructType, wants: Wants
    ) -> None:
        self.name = name
        self.wants = wants
        self.view = option(options, "queryName") or name
        client = _client(spark)
        self._sink = JavaClass("org.apache.spark.sql.execution.streaming.sources.MemorySink", client)()
        session = spark._jsparkSession
        columns = JavaClass("org.apache.spark.sql.catalyst.types.DataTypeUtils", client).toAttributes(
            session.parseDataType(schema.json())
        )
        plan = JavaClass("org.apache.spark.sql.execution.streaming.sources.MemoryPlan", client)(self._sink, columns)
        rows = JavaClass("org.apache.spark.sql.classic.Dataset", client).ofRows(session, plan)
        try:
            rows.createOrReplaceTempView(self.view)
        except PySparkException as error:
            raise PlanError(
                f"Sink {name!r} cannot be a view named {self.view!r}.",
                todo="Give it a name that SQL takes: option queryName, letters, digits and _.",
            ) from error

    def write(self, df: DataFrame, epoch: int, counter: int) -> None:
        # The rows stay in the JVM: collect() gives a handle to its array, not the array.
        self._sink.write(counter, self.wants == "all", df._jdf.collect())

    def close(self) -> None:
        return


class ConsoleSink:
    """Prints each epoch's rows as Spark's console sink does."""

    exactly_once = False
    forgets = False

    def __init__(self, name: str, options: Mapping[str, str], wants: Wants) -> None:
        self.name = name
        self.wants = wants
        self._rows = int(option(options, "numRows") or 20)
        truncate = (option(options, "truncate") or "true").lower()
        self._truncate: bool | int = int(truncate) if truncate.isdigit() else truncate == "true"

    def write(self, df: DataFrame, epoch: int, counter: int) -> None:
        line = "-" * 43
        rows = df._show_string(self._rows, self._truncate, False)  # type: ignore[operator]
        print(f"{line}\nEpoch: {epoch}\n{line}\n{rows}", flush=True)

    def close(self) -> None:
        return


class NoopSink:
    """Runs the scan and drops the rows: what benchmarks write to."""

    exactly_once = True
    forgets = False

    def __init__(self, name: str, wants: Wants) -> None:
        self.name = name
        self.wants = wants

    def write(self, df: DataFrame, epoch: int, counter: int) -> None:
        df.write.format("noop").mode("overwrite").save()

    def close(self) -> None:
        return


class ForEachBatchSink:
    """A user's own function, called with the rows and the epoch, at least once."""

    exactly_once = False
    forgets = True

    def __init__(self, name: str, function: Callable[[DataFrame, Epoch], object], mode: str, job: str) -> None:
        self.name = name
        self.wants: Wants = _wants(name, mode)
        self._function = function
        self._job = job

    def write(self, df: DataFrame, epoch: int, counter: int) -> None:
        self._function(df, Epoch(epoch, self._job, self.name))

    def close(self) -> None:
        return


def for_each_batch(name: str, function: Callable[[DataFrame, Epoch], object], mode: str, job: str) -> Sink:
    return ForEachBatchSink(name, function, mode, job)


def failed_sink(sink: Sink, epoch: int, error: Exception) -> SinkError:
    """What a sink raised, in its own words first."""
    hint = " (a table that cannot have _job, _sink and _epoch: stamp=False)" if getattr(sink, "stamp", False) else ""
    return SinkError(
        f"{own_words(error)} (raised by sink '{sink.name}' in epoch {epoch})",
        safe="The epoch is prepared and not committed, so its rows will be the same; sinks before this one have them.",
        todo=f"Mend what the sink stumbled over{hint} and start again: the epoch is finished first.",
    )


def folder_of(sink: SinkPlan) -> str | None:
    """The folder that a sink writes files to, if it is one that does."""
    files = sink.function is None and not sink.table and sink.format.lower() in FILE_FORMATS
    return option(sink.options, "path") if files else None


def _wants(name: str, mode: str) -> Wants:
    if mode not in MODES:
        raise PlanError(
            f"Sink {name!r} has mode {mode!r}.",
            todo="Use 'update' (the changed keys of each epoch) or 'complete' (all keys, every epoch).",
        )
    return "all" if mode == "complete" else "changed"


def _look_up(spark: SparkSession, name: str, format: str) -> None:
    """Refuse a format Spark does not have now, not in the first epoch."""
    sources = JavaClass("org.apache.spark.sql.execution.datasources.DataSource", _client(spark))
    try:
        sources.lookupDataSource(format, spark._jsparkSession.sessionState().conf())
    except (PySparkException, Py4JJavaError) as error:
        raise PlanError(
            f"Sink {name!r} asks for format {format!r}, which this Spark does not have: {_first_line(error)}",
            safe="Nothing was started.",
            todo="Check the spelling, or add the connector's package to the session (spark.jars.packages).",
        ) from error


def _file_stream_sink(
    spark: SparkSession,
    name: str,
    format: str,
    options: Mapping[str, str],
    partition_by: Sequence[str],
    schema: StructType,
) -> Any:
    try:
        return compat.file_stream_sink(spark, _client(spark), format, options, partition_by, schema.json())
    except (PySparkException, Py4JError) as error:
        raise PlanError(
            f"Sink {name!r} cannot write {format} files: {_first_line(error)}",
            safe="Nothing was started.",
            todo="Give the folder as option path, and options as Spark's file sink takes them.",
        ) from error


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(error)
    return text.split("\n", 1)[0]


def _client(spark: SparkSession) -> Any:
    gateway = spark.sparkContext._gateway
    gateway = some(gateway, "Holdfast needs a classic session with its own JVM")
    return gateway._gateway_client
