"""A union of many stages, for a sink: branches that do the same to rows of the same columns are one branch.

A hub may have a hundred jobs whose results go to one topic. As a union of a hundred branches that is a plan which Spark
takes seconds to make and start, every epoch. Where two branches stand on outputs of the same columns, and what each
makes of a row depends on that row alone, the rows may as well be put together first: what Spark has then is a branch
for every *kind* of branch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from holdfast.plan.graph import Node, Output, epochal, evaluate, leaves, opaque, sides
from holdfast.spark.one_pass import readable

FEW = 4
"""A union of fewer is left as it is: whether its branches are alike is a question to Spark."""


@dataclass
class Bundle:
    """Branches that are alike: the first of them, and the outputs that all of them stand on."""

    branch: Node
    outputs: list[Output]
    rows: DataFrame
    """The branch over no rows, to compare others with."""


def bundles(
    node: Node, schema: Callable[[Output], StructType], empty: Callable[[StructType], DataFrame]
) -> list[Bundle] | None:
    """What ``node`` is a union of, in the order of their first branches; None: it is better off as it is."""
    branches = list(sides(node))
    if len(branches) < FEW:
        return None
    frames: dict[str, DataFrame] = {}
    found: list[tuple[str, Bundle]] = []
    for branch in branches:
        leaf, *others = leaves(branch)
        if others or not isinstance(leaf, Output) or opaque(branch) or epochal(branch):
            return None
        columns = schema(leaf)
        kind = columns.json()
        base = frames.setdefault(kind, empty(columns))
        rows = evaluate(branch, {leaf: base})
        if not readable(base, rows):
            return None
        like = [one for of, one in found if of == kind and one.rows.sameSemantics(rows)]
        if like:
            like[0].outputs.append(leaf)
        else:
            found.append((kind, Bundle(branch, [leaf], rows)))
    return [bundle for _, bundle in found] if len(found) < len(branches) else None
