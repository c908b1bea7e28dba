"""What a verb takes as a column is what PySpark takes: a name, a ``Column``, an expression; where it takes several,
also as a list. And SQL text, as ``hf.expr``, which needs no Spark to be written down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column

from holdfast.errors import PlanError
from holdfast.plan.frames import Expr

ColumnOrName = str | Column | Expr


def expr(text: str) -> Expr:
    """SQL text as a column, as ``pyspark.sql.functions.expr``: ``hf.sum(hf.expr("price * amount"))``.

    It is text until rows come, so jobs drawn with it can be tested without Spark, and it can be stored.
    """
    if not isinstance(text, str) or not text.strip():
        raise PlanError(f"hf.expr takes SQL text, not {text!r}.", safe="Nothing was started.")
    return Expr(text)


def column(role: str, given: Any) -> ColumnOrName:
    """``given``, if it can be one. ``role`` says in the error what it would have been."""
    if isinstance(given, str | Column | Expr):
        return given
    raise PlanError(
        f"{role} cannot be {given!r}, which is no column.",
        safe="Nothing was started.",
        todo="Use its name, or an expression of pyspark.sql.functions: F.col('n') + 1.",
    )


def columns(role: str, given: Iterable[Any]) -> tuple[ColumnOrName, ...]:
    """All of them, those in lists too."""
    return tuple(column(role, one) for some in given for one in (some if isinstance(some, list | tuple) else (some,)))
