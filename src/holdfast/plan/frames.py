"""Frames as drafting sees them: columns by name, and what an expression over them is called and typed.

A stage is drafted against the rows it will see, not against Spark: all it asks of them is ``Frame``. Spark's DataFrame
answers through ``spark.analysis``; ``holdfast.testing`` has frames of its own that need no JVM. Stateless steps ask for
a little more (``Steps``), which a DataFrame has as it is. What Spark makes of an expression stays opaque here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import DataType

from holdfast.errors import PlanError

DIFF = "_d"
Expression = Any
"""What a frame made of a name: Spark's Column, or whatever another kind of frame evaluates later."""


@dataclass(frozen=True)
class Constant:
    """The same number in every row."""

    name: str
    value: int


@dataclass(frozen=True)
class Expr:
    """SQL text over the columns of the rows: ``hf.expr("price * 100").alias("cents")``."""

    text: str
    name: str | None = None

    def alias(self, name: str) -> Expr:
        """The same, called ``name``."""
        return Expr(self.text, name)


@dataclass(frozen=True, eq=False)
class Where:
    """``value`` in rows for which the condition is true, null in all others; without a value, true."""

    condition: str | Column | Expr
    value: str | Column | Expr | None = None


Given = str | Column | Expr | Constant | Where
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


def with_sign(frame: Any) -> Any:
    """``frame`` with every row one that is."""
    if hasattr(type(frame), "with_constant"):  # a frame in memory; a DataFrame would be asked for such a column
        return frame.with_constant(DIFF, 1, "tinyint")
    return frame.withColumn(DIFF, F.lit(1).cast("tinyint"))


def no_epoch_here() -> PlanError:
    return PlanError(
        "hf.epoch() stands where rows are not on their way from a stage to a sink, or inside transform.",
        safe="Nothing was started.",
        todo="Use it in select, with_column or where behind the last stage: which rows an epoch has is Spark's choice, "
        "so state that depends on its number would mean nothing.",
    )
