"""Which Sparks are taken, and whether the one that is installed has every name of the JVM that is used.

Run under each version (``./dev test --spark 4.1``), what a version lacks fails here first, and by its name.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.spark import compat

SOURCE = Path(hf.__file__).parent
SPARK, STREAMING = "org.apache.spark", "org.apache.spark.sql.execution.streaming"
NAMED: dict[str, tuple[str, ...]] = {
    # On every version alike; what differs is in compat, and OWN_NAMES has it.
    f"{SPARK}.SparkContext": ("getExecutorIds()", "isStopped()"),
    f"{SPARK}.api.java.JavaSparkContext": ("sc()",),
    f"{SPARK}.api.python.PythonUtils": ("toSeq(List)", "toScalaMap(Map)"),
    f"{SPARK}.sql.api.python.PythonSQLUtils": ("toDataFrame(Iterator,String,SparkSession)",),
    f"{SPARK}.sql.functions": ("col(String)", "expr(String)"),
    f"{SPARK}.sql.streaming.OutputMode": ("Append()",),
    f"{SPARK}.sql.classic.SparkSession": (
        *("cloneSession()", "sessionState()", "parseDataType(String)", "setActiveSession(SparkSession)"),
        "internalCreateDataFrame(RDD,StructType,boolean)",
    ),
    f"{SPARK}.sql.internal.SessionState": ("conf()", "planner()", "newHadoopConf()"),
    f"{SPARK}.sql.classic.Dataset": (
        *("select(Seq)", "selectExpr(Seq)", "where(String)", "toDF(Seq)", "schema()", "collect()"),
        *("groupBy(Seq)", "groupingSets(Seq,Seq)", "queryExecution()", "createOrReplaceTempView(String)"),
        "ofRows(SparkSession,LogicalPlan)",
    ),
    f"{SPARK}.sql.classic.RelationalGroupedDataset": ("agg(Column,Seq)",),
    f"{SPARK}.sql.types.StructType": ("asNullable()",),
    f"{SPARK}.sql.catalyst.types.DataTypeUtils": ("toAttributes(StructType)",),
    f"{SPARK}.sql.catalyst.plans.logical.LogicalPlan": (
        *("children()", "collectLeaves()", "isStreaming()", "nodeName()", "output()", "withNewChildren(Seq)"),
    ),
    f"{SPARK}.sql.catalyst.plans.logical.Project": ("child()", "projectList()"),
    f"{SPARK}.sql.catalyst.plans.logical.Filter": ("child()", "condition()"),
    f"{SPARK}.sql.catalyst.expressions.Alias": (
        *("child()", "name()", "nodeName()", "toAttribute()", "Alias(Expression,String,ExprId,Seq,Option,Seq)"),
    ),
    f"{SPARK}.sql.catalyst.expressions.Coalesce": ("Coalesce(Seq)",),
    f"{SPARK}.sql.catalyst.expressions.In": ("In(Expression,Seq)",),
    f"{SPARK}.sql.catalyst.expressions.EqualTo": ("left()", "right()"),
    f"{SPARK}.sql.catalyst.expressions.If": ("If(Expression,Expression,Expression)",),
    f"{SPARK}.sql.catalyst.expressions.Literal": ("create(Object,DataType)",),
    f"{SPARK}.sql.catalyst.analysis.UnresolvedAttribute": ("quoted(String)",),
    f"{SPARK}.sql.catalyst.expressions.NamedExpression": ("newExprId()",),
    f"{SPARK}.sql.catalyst.optimizer.CollapseProject$": (
        "replaceAlias(Expression,AttributeMap)",  # and getAliasMap, of a Seq or an Iterable: test_one_pass calls it
    ),
    f"{SPARK}.sql.catalyst.trees.TreePattern": ("PYTHON_UDF()", "PLAN_EXPRESSION()"),
    f"{SPARK}.sql.classic.ExpressionUtils": ("column(Expression)",),
    f"{SPARK}.sql.types.DataTypes": ("createStructType(List)",),
    f"{SPARK}.sql.catalyst.expressions.AttributeReference": ("exprId()", "name()", "nodeName()"),
    f"{SPARK}.sql.catalyst.expressions.ExprId": ("id()",),
    f"{SPARK}.sql.catalyst.expressions.Expression": (
        *("containsPattern(Value)", "dataType()", "deterministic()", "nodeName()", "references()"),
        *("semanticEquals(Expression)", "semanticHash()", "withNewChildren(Seq)", "eval(InternalRow)"),
    ),
    f"{SPARK}.sql.execution.QueryExecution": (
        *("analyzed()", "optimizedPlan()", "observedMetrics()"),
        "createSparkPlan(SparkPlanner,LogicalPlan)",
        "prepareExecutedPlan(SparkSession,SparkPlan)",
    ),
    f"{SPARK}.sql.execution.SparkPlan": ("execute()", "output()", "schema()"),
    f"{SPARK}.sql.execution.UnaryExecNode": ("child()",),
    f"{SPARK}.sql.execution.datasources.DataSource": ("lookupDataSource(String,SQLConf)",),
    f"{STREAMING}.sinks.FileStreamSink": ("addBatch(long,Dataset)",),
    f"{STREAMING}.sources.MemorySink": ("MemorySink()", "write(long,boolean,Row[])"),
    f"{STREAMING}.sources.MemoryPlan": ("MemoryPlan(MemorySink,Seq)",),
    f"{STREAMING}.runtime.StreamingQueryWrapper": ("streamingQuery()",),
    f"{STREAMING}.runtime.StreamExecution": ("lastExecution()",),
    f"{SPARK}.sql.Column": ("Column(ColumnNode)", "node()"),
    f"{SPARK}.sql.internal.SortOrder": ("child()", "nullOrdering()", "sortDirection()"),
    f"{SPARK}.sql.Row": ("isNullAt(int)", "getLong(int)"),
    "java.util.ArrayList": ("add(Object)", "iterator()"),
    "scala.jdk.javaapi.CollectionConverters": ("asScala(Iterator)",),
    "scala.Option": ("empty()",),
    "scala.collection.immutable.Seq": ("apply(Object)", "size()", "mkString(String)"),
    "scala.collection.immutable.Map": ("iterator()",),
    "org.apache.hadoop.fs.Path": (
        "Path(String)",
        "getFileSystem(Configuration)",
        "getName()",
        "getParent()",
        "toUri()",
    ),
    "org.apache.hadoop.fs.FileContext": ("getFileContext(URI,Configuration)", "rename(Path,Path,Rename[])"),
    "org.apache.hadoop.fs.Options$Rename": ("values()",),
    "org.apache.hadoop.fs.FileSystem": (
        *("create(Path,boolean)", "createFile(Path)", "delete(Path,boolean)", "exists(Path)", "listStatus(Path)"),
        *("makeQualified(Path)", "open(Path)", "resolvePath(Path)"),
    ),
    "org.apache.hadoop.fs.FSDataOutputStream": ("hsync()", "write(byte[])", "close()"),
    "org.apache.hadoop.fs.FSDataOutputStreamBuilder": (
        *("overwrite(boolean)", "recursive()", "opt(String,boolean)", "build()"),
    ),
}
_OLD_SOURCE = "DataSource(SparkSession,String,Seq,Option,Seq,Option,Map,Option)"
_NEW_SOURCE = "DataSource(SparkSession,String,Seq,Option,Seq,Option,Map,Option,Option)"
OWN_NAMES: dict[tuple[int, int], dict[str, tuple[str, ...]]] = {
    version: {
        f"{SPARK}.sql.execution.datasources.DataSource": (source, sink),
        f"{SPARK}.resource.TaskResourceRequests": (cpus,),
    }
    for version, source, sink, cpus in [
        ((4, 1), _OLD_SOURCE, "createSink(OutputMode)", "cpus(int)"),
        ((4, 2), _NEW_SOURCE, "createSink(OutputMode)", "cpus(int)"),
        ((4, 3), _NEW_SOURCE, "createSink(OutputMode,StructType)", "cpus(double)"),
    ]
}
"""The calls that ``compat`` makes for each."""


def names_of(spark: SparkSession, named: str) -> set[str]:
    """What a class has that can be called, its parameters by their simple names."""
    java: Any = spark._jvm
    found = java.java.lang.Class.forName(named)
    said = java.org.apache.commons.lang3.ArrayUtils.toString  # one answer, not one for each method
    text = said(found.getMethods()) + said(found.getConstructors())
    return {
        f"{name.rpartition('.')[2]}({','.join(re.split('[.$]', one)[-1] for one in parameters.split(','))})".replace(
            "...", "[]"
        )
        for name, parameters in re.findall(r"([\w.$]+)\(([^)]*)\)", text)
    }


@pytest.mark.spark
def test_this_spark_has_every_name_that_is_used(spark: SparkSession) -> None:
    missing = []
    for wanted in (NAMED, OWN_NAMES[compat.version_of(spark)]):
        for named, calls in wanted.items():
            known = names_of(spark, named)
            missing += [f"{named}: {call}" for call in calls if call not in known]
    assert not missing, f"Spark {spark.version} has no\n" + "\n".join(missing)


def test_every_class_that_the_source_names_is_looked_at() -> None:
    named = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r'"((?:org\.apache|java|scala)\.[\w.$]+)"', path.read_text())
    }
    assert named
    assert named <= NAMED.keys()


@pytest.mark.spark
def test_this_pyspark_has_every_private_name_that_is_used(spark: SparkSession) -> None:
    """What begins with an underscore and is not ours is promised by nobody."""
    context, frame = spark.sparkContext, spark.range(1)
    for thing, name in [
        *((spark, "_jsparkSession"), (frame.id, "_jc"), (frame, "_jdf"), (frame, "_show_string"), (context, "_jsc")),
        *((context, "_gateway"), (context._gateway, "_gateway_client")),
    ]:
        assert hasattr(thing, name), f"PySpark {pyspark.__version__} has no {type(thing).__name__}.{name}"
    assert frame._show_string(1, True, False).count("|") == 4  # type: ignore[operator]
    query = frame.sparkSession.readStream.format("rate").load().writeStream.format("noop").start()
    try:
        assert query._jsq.streamingQuery() is not None
    finally:
        query.stop()


# ---------------------------------------------------------------- which are taken


@pytest.mark.parametrize(
    "version", ["4.1.0", "4.1.4", "4.2.1", "4.3.0", "4.3.0.dev2", "4.3.1-SNAPSHOT", "4.2.0-amzn-1", "4.1"]
)
def test_what_is_known_is_taken(version: str) -> None:
    assert compat.OLDEST <= compat.refuse_unknown(version) <= compat.NEWEST


@pytest.mark.parametrize(
    ("version", "todo"),
    [
        ("3.5.1", "pyspark>=4.1,<4.4"),
        ("4.0.2", "pyspark>=4.1,<4.4"),
        ("4.4.0", "a newer Holdfast that knows Spark 4.4.0"),
        ("5.0.0", "a newer Holdfast"),
        ("unknown", "pyspark>=4.1,<4.4"),
    ],
)
def test_what_is_too_old_or_too_new_is_refused_by_name(version: str, todo: str) -> None:
    with pytest.raises(hf.PlanError, match=rf"This is Spark {version}; this Holdfast runs on Spark 4\.1 to 4\.3") as no:
        compat.refuse_unknown(version)
    assert todo in no.value.todo


def test_the_package_asks_for_the_same_versions() -> None:
    wanted = (SOURCE.parents[1] / "pyproject.toml").read_text()
    (oldest, beyond) = re.findall(r'"pyspark>=([\d.]+),<([\d.]+)"', wanted)[0]
    assert (oldest, beyond) == ("4.1", f"{compat.NEWEST[0]}.{compat.NEWEST[1] + 1}")
    assert OWN_NAMES.keys() == {(4, minor) for minor in range(compat.OLDEST[1], compat.NEWEST[1] + 1)}


@pytest.mark.spark
def test_a_job_does_not_start_on_an_unknown_spark(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = hf.Job("early", spark, store=str(tmp_path / "store"))
    rows = job.read(spark.readStream.format("rate").load())
    rows.key_by("value").agg(n=hf.count()).write("parquet", str(tmp_path / "out"))
    monkeypatch.setattr(SparkSession, "version", property(lambda _: "4.0.1"))
    with pytest.raises(hf.PlanError, match=r"This is Spark 4\.0\.1"):
        job.start()
    assert list(tmp_path.iterdir()) == []


def test_an_old_pyspark_is_refused_at_the_import(tmp_path: Path) -> None:
    """It has not even the modules that ours import: a ModuleNotFoundError would say nothing."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.5.1'\n")
    ended = subprocess.run(
        [sys.executable, "-c", "import holdfast as hf; hf.Job"],
        env={"PYTHONPATH": f"{tmp_path}:{SOURCE.parent}"},
        capture_output=True,
        text=True,
    )
    assert ended.stderr.splitlines()[-3].startswith("holdfast.errors.PlanError: This is Spark 3.5.1; ")


def test_nothing_else_asks_for_a_version() -> None:
    asking = re.compile(r"pyspark\.__version__|pyspark\.version|spark\.version|spark\.sparkContext\.version")
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if asking.search(path.read_text())}
    assert found == {"spark/compat.py", "cli/__init__.py"}  # the shell greets with it
