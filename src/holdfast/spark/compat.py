"""The versions of Spark that Holdfast runs on, and the places in which they differ. Nothing else asks for a version.

What is named here is internal to Spark, so a version that nobody has tried is refused rather than tried on somebody's
state. ``tests/spark/test_compat.py`` holds every name of the JVM that we use against the Spark that is installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyspark
from py4j.java_gateway import JavaClass

from holdfast.errors import PlanError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST, NEWEST = (4, 1), (4, 3)
_SINK_GETS_SCHEMA = (4, 3)
_SOURCES_HAVE_NAMES = (4, 2)
_PARTS_OF_CORES = (4, 3)

Version = tuple[int, int]


def refuse_unknown(version: str = pyspark.__version__) -> Version:
    """Major and minor number of a version that Holdfast knows."""
    found = re.match(r"(\d+)\.(\d+)", version)
    numbers = (int(found[1]), int(found[2])) if found else None
    if numbers is None or not OLDEST <= numbers <= NEWEST:
        known = f"{_text(OLDEST)} to {_text(NEWEST)}"
        newer = numbers is not None and numbers > NEWEST
        raise PlanError(
            f"This is Spark {version}; this Holdfast runs on Spark {known}.",
            safe="Nothing was started.",
            todo=f"Install pyspark {_text(NEWEST)}, or a newer Holdfast that knows Spark {version}."
            if newer
            else f"Install pyspark {known}: pip install 'pyspark>={_text(OLDEST)},<{NEWEST[0]}.{NEWEST[1] + 1}'.",
        )
    return numbers


def version_of(spark: SparkSession) -> Version:
    """That of the JVM, which is another one than PySpark's if SPARK_HOME says so."""
    return refuse_unknown(spark.version)


def file_stream_sink(
    spark: SparkSession,
    client: Any,
    format: str,
    options: Mapping[str, str],
    partition_by: Sequence[str],
    schema_json: str,
) -> Any:
    """Spark's ``FileStreamSink``, made by the code that makes it for ``writeStream``."""
    version, session = version_of(spark), spark._jsparkSession
    python = JavaClass("org.apache.spark.api.python.PythonUtils", client)
    none = JavaClass("scala.Option", client).empty()
    paths, columns = python.toSeq([]), python.toSeq(list(partition_by))
    given = [session, format, paths, none, columns, none, python.toScalaMap(dict(options)), none]
    if version >= _SOURCES_HAVE_NAMES:
        given.append(none)
    source = JavaClass("org.apache.spark.sql.execution.datasources.DataSource", client)(*given)
    append = JavaClass("org.apache.spark.sql.streaming.OutputMode", client).Append()
    if version >= _SINK_GETS_SCHEMA:
        return source.createSink(append, session.parseDataType(schema_json))
    return source.createSink(append)


def cores_divide(spark: SparkSession | None = None) -> bool:
    """Whether a task may ask for less than a core, and so stand beside others at no cost; without a session, in one of
    the PySpark that is installed."""
    return (refuse_unknown() if spark is None else version_of(spark)) >= _PARTS_OF_CORES


def _text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
