"""Columns that say how they are sorted (``F.col("n").desc()``): the column, and which way."""

from __future__ import annotations

from typing import Any, NamedTuple

from py4j.java_gateway import JavaClass
from pyspark import SparkContext
from pyspark.sql import Column

from holdfast.invariants import some


class Sorted(NamedTuple):
    column: Column
    descending: bool
    nulls_first: bool


def sorted_as(column: Column) -> Sorted | None:
    """None if the column says nothing of an order."""
    java: Any = vars(column).get("_jc")  # the tests' own frames know columns without a JVM
    if java is None or _name(node := java.node()) != "SortOrder":
        return None
    gateway = some(SparkContext._gateway, "there is a column, so there is a JVM")
    plain = JavaClass("org.apache.spark.sql.Column", gateway._gateway_client)(node.child())
    return Sorted(
        Column(plain), _name(node.sortDirection()).startswith("Desc"), _name(node.nullOrdering()) == "NullsFirst$"
    )


def _name(java: object) -> str:
    return str(java.getClass().getSimpleName())  # type: ignore[attr-defined]
