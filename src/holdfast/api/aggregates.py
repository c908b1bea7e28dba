"""The aggregates a user can ask for, named and behaving as in ``pyspark.sql.functions``.

``where`` is SQL's ``FILTER (WHERE …)``: only rows for which it is true count for that aggregate.
"""

from __future__ import annotations

from pyspark.sql import Column

from holdfast.api.columns import ColumnOrName
from holdfast.api.columns import column as checked
from holdfast.plan.aggregate import Aggregate as Aggregate  # it is asked for here
from holdfast.plan.frames import Given, Where

Condition = str | Column
_ROLE = "What an aggregate is of"


def count(column: ColumnOrName | None = None, *, where: Condition | None = None) -> Aggregate:
    """The number of rows; with a column, of rows where it is not null."""
    if isinstance(column, str) and column == "*":
        column = None
    return Aggregate("count", _kept(column, where))


def sum(column: ColumnOrName, *, where: Condition | None = None) -> Aggregate:
    """The sum of the values that are not null; null if there are none. Overflow as ``spark.sql.ansi.enabled`` says."""
    return Aggregate("sum", _kept(column, where))


def min(column: ColumnOrName, *, where: Condition | None = None) -> Aggregate:
    """The least value that is not null. NaN is the largest of floats, strings are ordered by their bytes."""
    return Aggregate("min", _kept(column, where))


def max(column: ColumnOrName, *, where: Condition | None = None) -> Aggregate:
    """The largest value that is not null."""
    return Aggregate("max", _kept(column, where))


def mean(column: ColumnOrName, *, where: Condition | None = None) -> Aggregate:
    """The arithmetic mean of the values that are not null."""
    return Aggregate("mean", _kept(column, where))


def var(column: ColumnOrName, *, where: Condition | None = None) -> Aggregate:
    """The sample variance; null below two values."""
    return Aggregate("var", _kept(column, where))


def stddev(column: ColumnOrName, *, where: Condition | None = None) -> Aggregate:
    """The sample standard deviation; null below two values."""
    return Aggregate("stddev", _kept(column, where))


def first(column: ColumnOrName, ignore_nulls: bool = False) -> Aggregate:
    """The first value in the log's order."""
    return Aggregate("first", checked(_ROLE, column), (("ignore_nulls", ignore_nulls),))


def last(column: ColumnOrName, ignore_nulls: bool = False) -> Aggregate:
    """The last value in the log's order."""
    return Aggregate("last", checked(_ROLE, column), (("ignore_nulls", ignore_nulls),))


def approx_distinct(column: ColumnOrName, rsd: float = 0.05, *, where: Condition | None = None) -> Aggregate:
    """About how many distinct values there are, by a HyperLogLog sketch with this relative standard deviation."""
    return Aggregate("approx_distinct", _kept(column, where), (("rsd", rsd),))


def count_distinct(column: ColumnOrName, *, where: Condition | None = None) -> Aggregate:
    """How many distinct values that are not null there are, exactly: every value is kept.

    Several of one column, each with a ``where`` of its own, keep every value once for all of them.
    """
    kept = None if where is None else Where(checked("where", where))
    return Aggregate("count_distinct", checked(_ROLE, column), where=kept)


def _kept(column: ColumnOrName | None, where: Condition | None) -> Given | None:
    """The column, null in rows that do not count."""
    if column is not None:
        checked(_ROLE, column)
    return column if where is None else Where(checked("where", where), column)
