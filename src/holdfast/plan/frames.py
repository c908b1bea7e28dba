"""Frames as drafting sees them: columns by name, and what an expression over them is called and typed.

A stage is drafted against the rows it will see, not against Spark: all it asks of them is ``Frame``. Spark's DataFrame
answers through ``SparkFrame``; ``holdfast.testing`` has frames of its own that need no JVM. Stateless steps ask for a
little more (``Steps``), which a DataFrame has as it is. What Spark makes of an expression stays opaque here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, Self, TypeVar

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import DataType

from holdfast.errors import PlanError
from holdfast.plan.epochs import MARKER
from holdfast.plan.quiet import quiet

DIFF = "_d"
Expression = Any
"""What a frame made of a name: Spark's Column, or whatever another kind of frame evaluates later."""


@dataclass(frozen=True)
class Constant:
    """The same number in every row."""

    name: str
    value: int


@dataclass(frozen=True, eq=False)
class Where:
    """``value`` in rows for which the condition is true, null in all others; without a value, true."""

    condition: str | Column
    value: str | Column | None = None


Given = str | Column | Constant | Where
"""What a user, or a verb on a user's behalf, may name a column by."""


@dataclass(frozen=True)
class Found:
    """An expression over a frame: what it is called there, its type, and itself."""

    name: str
    type: DataType
    value: Expression


class Frame(Protocol):
    """Rows as a draft sees them."""

    @property
    def columns(self) -> list[str]: ...

    def find(self, given: Given, role: str) -> Found:
        """The expression; ``role`` says in the error what it would have been."""

    def hashed(self, value: Expression) -> Expression:
        """Spark's xxhash64 of it, null where it is."""

    def plain(self, given: Given) -> str | None:
        """The name of the column, if it is one of the frame's as it is."""


class Steps(Protocol):
    """Rows as stateless steps see them, and as they are carried between steps."""

    @property
    def columns(self) -> list[str]: ...

    def select(self, *columns: str) -> Self: ...

    def union(self, other: Self) -> Self: ...


S = TypeVar("S", bound=Steps)


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
        if not isinstance(given, Column):
            return None
        made = self.frame.select(given)
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
    before = {one.exprId().id(): one.name() for one in _each(project.child().output())}
    made = {}
    for one in _each(project.projectList()):
        value = one.child() if one.nodeName() == "Alias" else one
        if value.nodeName() == "AttributeReference" and value.exprId().id() in before:
            made[one.name()] = before[value.exprId().id()]
    return made


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


def with_column(frame: Any, name: str, value: str | Column) -> Any:
    """``frame`` with one more column; text is SQL."""
    return frame.withColumn(name, F.expr(value) if isinstance(frame, DataFrame) and isinstance(value, str) else value)


def with_sign(frame: Any) -> Any:
    """``frame`` with every row one that is."""
    if isinstance(frame, DataFrame):
        return frame.withColumn(DIFF, F.lit(1).cast("tinyint"))
    return frame.with_constant(DIFF, 1, "tinyint")


def no_epoch_here() -> PlanError:
    return PlanError(
        "hf.epoch() stands where rows are not on their way from a stage to a sink, or inside transform.",
        safe="Nothing was started.",
        todo="Use it in select, with_column or where behind the last stage: which rows an epoch has is Spark's choice, "
        "so state that depends on its number would mean nothing.",
    )


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
        kept = F.expr(given.condition) if isinstance(given.condition, str) else given.condition
        return F.when(kept, F.lit(True) if given.value is None else _column(given.value))
    return F.col(given) if isinstance(given, str) else given
