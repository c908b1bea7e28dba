"""The aggregates a user can ask for, named and behaving as in ``pyspark.sql.functions``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column


@dataclass(frozen=True, eq=False)
class Aggregate:
    """A function over the rows of a key; what ``agg`` takes."""

    function: str
    column: str | Column | None = None
    options: tuple[tuple[str, Any], ...] = ()


def count(column: str | Column | None = None) -> Aggregate:
    """The number of rows; with a column, of rows where it is not null."""
    if isinstance(column, str) and column == "*":
        column = None
    return Aggregate("count", column)


def sum(column: str | Column) -> Aggregate:
    """The sum of the values that are not null; null if there are none. Overflow as ``spark.sql.ansi.enabled`` says."""
    return Aggregate("sum", column)


def min(column: str | Column) -> Aggregate:
    """The least value that is not null. NaN is the largest of floats, strings are ordered by their bytes."""
    return Aggregate("min", column)


def max(column: str | Column) -> Aggregate:
    """The largest value that is not null."""
    return Aggregate("max", column)


def mean(column: str | Column) -> Aggregate:
    """The arithmetic mean of the values that are not null."""
    return Aggregate("mean", column)


def var(column: str | Column) -> Aggregate:
    """The sample variance; null below two values."""
    return Aggregate("var", column)


def stddev(column: str | Column) -> Aggregate:
    """The sample standard deviation; null below two values."""
    return Aggregate("stddev", column)


def first(column: str | Column, ignore_nulls: bool = False) -> Aggregate:
    """The first value in the log's order."""
    return Aggregate("first", column, (("ignore_nulls", ignore_nulls),))


def last(column: str | Column, ignore_nulls: bool = False) -> Aggregate:
    """The last value in the log's order."""
    return Aggregate("last", column, (("ignore_nulls", ignore_nulls),))


def approx_distinct(column: str | Column, rsd: float = 0.05) -> Aggregate:
    """About how many distinct values there are, by a HyperLogLog sketch with this relative standard deviation."""
    return Aggregate("approx_distinct", column, (("rsd", rsd),))


def count_distinct(column: str | Column) -> Aggregate:
    """How many distinct values that are not null there are, exactly: every value is kept."""
    return Aggregate("count_distinct", column)
