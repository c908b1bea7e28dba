"""A small Arrow table as a DataFrame, by the shortest way into the JVM.

``createDataFrame`` hands a table over through a server socket and some twenty round trips; for a few thousand rows of
an epoch that is most of the cost. Here the serialised batch itself crosses, in one call, to the same place.
"""

from __future__ import annotations

import pyarrow as pa
from py4j.java_gateway import JavaClass
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.invariants import some

PARTITION_ROWS = 131_072
LOCAL_BYTES = "spark.sql.execution.arrow.localRelationThreshold"
"""Spark's: a table of more bytes is no local relation, which the driver alone would work on."""


def frame_of(session: SparkSession, table: pa.Table, schema: StructType) -> DataFrame:
    """``table`` as a local relation, or as the partitions of a large one. Its Arrow types must be those that Spark has
    for ``schema``."""
    if not table.num_rows:
        return session.createDataFrame([], schema)
    gateway = session.sparkContext._gateway
    gateway = some(gateway, "Holdfast needs a classic session with its own JVM")
    client = gateway._gateway_client
    batches = JavaClass("java.util.ArrayList", client)()
    for batch in table.combine_chunks().to_batches(max_chunksize=PARTITION_ROWS):
        batches.add(bytes(batch.serialize()))
    iterator = JavaClass("scala.jdk.javaapi.CollectionConverters", client).asScala(batches.iterator())
    utils = JavaClass("org.apache.spark.sql.api.python.PythonSQLUtils", client)
    return DataFrame(utils.toDataFrame(iterator, schema.json(), session._jsparkSession), session)
