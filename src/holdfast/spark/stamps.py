"""Who wrote a row, and in which epoch: what rows carry into a sink that may get an epoch twice.

Whoever reads such a sink keeps the rows of an epoch once and knows which they are. Tables get three columns, messages
of Kafka three headers, so that key and value stay the user's. A table that has no such columns would fail in the first
epoch, long after whoever started the job has left, so it is looked at before.
"""

from __future__ import annotations

from collections.abc import Mapping

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from holdfast.errors import PlanError

EPOCH_COLUMN = "_epoch"
COLUMNS = ("_job", "_sink", EPOCH_COLUMN)
HEADERS = ("holdfast-job", "holdfast-sink", "holdfast-epoch")
_HEADERS_TYPE = "array<struct<key:string,value:binary>>"


def stamped(rows: DataFrame, job: str, sink: str, epoch: int) -> DataFrame:
    """The rows with the columns that say whose they are."""
    values = (sf.lit(job), sf.lit(sink), sf.lit(epoch).cast("bigint"))
    return rows.withColumns(dict(zip(COLUMNS, values, strict=True)))


def with_headers(messages: DataFrame, job: str, sink: str, epoch: int) -> DataFrame:
    """The messages with further headers, behind those that they have."""
    pairs = zip(HEADERS, (job, sink, str(epoch)), strict=True)
    ours = sf.array(
        *(sf.struct(sf.lit(key).alias("key"), sf.lit(value).cast("binary").alias("value")) for key, value in pairs)
    ).cast(_HEADERS_TYPE)
    named = next((name for name in messages.columns if name.lower() == "headers"), None)
    if named is None:
        return messages.withColumn("headers", ours)
    none = sf.array().cast(_HEADERS_TYPE)
    theirs = sf.coalesce(sf.col(named).cast(_HEADERS_TYPE), none)
    return messages.withColumn(named, sf.concat(theirs, ours))


def refuse_taken_names(name: str, schema: StructType, columns: tuple[str, ...], todo: str) -> None:
    known = {column.lower() for column in schema.names}
    for column in columns:
        if column in known:
            raise PlanError(
                f"The rows of sink {name!r} already have a column {column}, which the sink adds.",
                safe="Nothing was started.",
                todo=todo,
            )


def refuse_unstamped_table(
    spark: SparkSession, name: str, format: str, options: Mapping[str, str], table: str = ""
) -> None:
    """A table that is there must have the columns. One that cannot be looked at tells when it is written."""
    try:
        there = spark.table(table) if table else spark.read.format(format).options(**options).load()
        found = [column.lower() for column in there.columns]
    except (PySparkException, Py4JError):
        return
    missing = [column for column in COLUMNS if column not in found]
    if found and missing:
        raise PlanError(
            f"Sink {name!r} writes {', '.join(COLUMNS)} with every row, by which a row that comes twice is known; its "
            f"table has no {', '.join(missing)}.",
            safe="Nothing was started.",
            todo="Add them to the table (_job and _sink are strings, _epoch is a bigint), or write without: "
            "write(…, stamp=False). Then rows that come twice after a crash look like any others.",
        )
