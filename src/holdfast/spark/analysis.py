"""What Spark is asked while a job is drawn: what an expression is called and typed, where a column comes from, whether
a DataFrame keeps state already; and what it does not understand, said in a few lines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from holdfast.errors import PlanError
from holdfast.plan.epochs import MARKER
from holdfast.plan.frames import DIFF, Constant, Expr, Expression, Found, Given, Where, no_epoch_here
from holdfast.spark.quiet import quiet


@dataclass(frozen=True)
class SparkFrame:
    """A DataFrame as a draft sees it."""

    frame: DataFrame

    @property
    def columns(self) -> list[str]:
        return self.frame.columns

    def find(self, given: Given, role: str) -> Found:
        with asking_spark(self.frame, role):
            value = _column(given)
            field = self.frame.select(value).schema.fields[0]
        return Found(field.name, field.dataType, value)

    def hashed(self, value: Expression) -> Expression:
        return F.when(value.isNotNull(), F.xxhash64(value))

    def plain(self, given: Given) -> str | None:
        if isinstance(given, str):
            return given if given in self.columns else None
        if not isinstance(given, Column | Expr):
            return None
        made = self.frame.select(_column(given))
        return origins(made)(made.columns[0])


def origins(frame: Any) -> Callable[[str], str | None]:
    """Of the columns that a ``select`` or ``with_column`` has made: which one of those before each is, unchanged if
    perhaps under another name; None: it is computed. Spark is asked when somebody wants to know."""

    @cache
    def found() -> Mapping[str, str]:
        return _origins(frame) if isinstance(frame, DataFrame) else frame.origins

    return lambda name: found().get(name)


def _origins(frame: DataFrame) -> dict[str, str]:
    project = frame._jdf.queryExecution().analyzed()
    if project.nodeName() != "Project":
        return {}
    before = {one.exprId().id(): one.name() for one in each(project.child().output())}
    made = {}
    for one in each(project.projectList()):
        value = one.child() if one.nodeName() == "Alias" else one
        if value.nodeName() == "AttributeReference" and value.exprId().id() in before:
            made[one.name()] = before[value.exprId().id()]
    return made


def each(sequence: Any) -> list[Any]:
    """The items of a sequence of Scala's."""
    return [sequence.apply(at) for at in range(sequence.size())]


def with_column(frame: Any, name: str, value: str | Column) -> Any:
    """``frame`` with one more column; text is SQL."""
    return frame.withColumn(name, F.expr(value) if isinstance(frame, DataFrame) and isinstance(value, str) else value)


def selected(frame: Any, columns: Sequence[str | Column | Expr]) -> Any:
    """``frame`` with just these columns."""
    if isinstance(frame, DataFrame):
        return frame.select(*[_column(one) if isinstance(one, Expr) else one for one in columns])
    return frame.select(*columns)


@contextlib.contextmanager
def asking_spark(frame: Any, role: str) -> Iterator[None]:
    """What Spark does not understand is an error that says which part of the job it was, and what there is instead."""
    with quiet():
        try:
            yield
        except AnalysisException as error:
            raise _not_understood(error, frame, role) from None


def _not_understood(error: AnalysisException, frame: Any, role: str) -> PlanError:
    if MARKER in str(error):
        return no_epoch_here()
    first, *more = [line.rstrip() for line in str(error).splitlines() if line.strip()] or ["it does not say why"]
    if isinstance(error, ParseException):
        sql = "\n".join(f"    {line}" for line in more if not line.startswith("== SQL"))
        return PlanError(
            f"Spark cannot read the SQL of the {role}: {first}" + (f"\n{sql}" if sql else ""),
            safe="Nothing was started.",
            todo="Correct the text; a column with other than letters, digits and _ in its name stands in backquotes.",
        )
    return PlanError(
        f"Spark cannot resolve the {role}: {first.rstrip(';')}",
        safe="Nothing was started.",
        todo=f"The columns there are: {', '.join(name for name in frame.columns if name != DIFF)}.",
    )


def _column(given: Given) -> Column:
    if isinstance(given, Constant):
        return F.lit(given.value).alias(given.name)
    if isinstance(given, Where):
        kept = F.expr(given.condition) if isinstance(given.condition, str) else _column(given.condition)
        return F.when(kept, F.lit(True) if given.value is None else _column(given.value))
    if isinstance(given, Expr):
        value = F.expr(given.text)
        return value if given.name is None else value.alias(given.name)
    return F.col(given) if isinstance(given, str) else given


def refuse_stateful(frame: DataFrame) -> None:
    """A DataFrame that already keeps state in Spark cannot be a source: its state would live twice."""
    todo = list(_walk(frame._jdf.queryExecution().analyzed()))
    for name, streaming_inputs in todo:
        if name in _STATEFUL and streaming_inputs >= _STATEFUL[name][0]:
            raise PlanError(
                f"The DataFrame given to job.read already keeps state in Spark ({_STATEFUL[name][1]}).",
                safe="Nothing was started.",
                todo=f"Read the plain stream, and use {_STATEFUL[name][2]} on it.",
            )


_STATEFUL: dict[str, tuple[int, str, str]] = {
    "Aggregate": (1, "a streaming aggregate", "key_by(...).agg(...)"),
    "Deduplicate": (1, "dropDuplicates", "key_by(...).agg(...) with hf.first"),
    "DeduplicateWithinWatermark": (1, "dropDuplicatesWithinWatermark", "key_by(...).agg(...) with hf.first"),
    "Distinct": (1, "distinct", "key_by(...).agg(...)"),
    "Join": (2, "a join of two streams", "one job.read for each side"),
    "GlobalLimit": (1, "limit", "a limit in the sink"),
    "FlatMapGroupsWithState": (1, "flatMapGroupsWithState", "key_by(...)"),
    "FlatMapGroupsInPandasWithState": (1, "applyInPandasWithState", "key_by(...)"),
    "TransformWithState": (1, "transformWithState", "key_by(...)"),
    "TransformWithStateInPySpark": (1, "transformWithState", "key_by(...)"),
    "TransformWithStateInPandas": (1, "transformWithStateInPandas", "key_by(...)"),
}


def _walk(plan: object) -> Iterator[tuple[str, int]]:
    children = plan.children()  # type: ignore[attr-defined]
    nodes = [children.apply(at) for at in range(children.size())]
    yield plan.nodeName(), sum(1 for child in nodes if child.isStreaming())  # type: ignore[attr-defined]
    for child in nodes:
        yield from _walk(child)
