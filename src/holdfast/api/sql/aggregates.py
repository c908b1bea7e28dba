"""Aggregate calls in a query as the aggregates of ``agg``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from holdfast.api import aggregates as hf
from holdfast.api.sql.scope import Scope
from holdfast.api.sql.text import Node
from holdfast.plan.aggregate import Aggregate

KNOWN = "sum, avg, count, count(DISTINCT …), count_if, min, max, stddev, variance, first, last, approx_count_distinct"
_SIMPLE: dict[type[Any], Callable[..., Aggregate]] = {
    exp.Sum: hf.sum,
    exp.Avg: hf.mean,
    exp.Min: hf.min,
    exp.Max: hf.max,
    exp.Stddev: hf.stddev,
    exp.StddevSamp: hf.stddev,
    exp.Variance: hf.var,
}
_CHOSEN: dict[type[Any], Callable[..., Aggregate]] = {
    exp.First: hf.first,
    exp.FirstValue: hf.first,
    exp.AnyValue: hf.first,
    exp.Last: hf.last,
}
_CHOSEN |= {exp.LastValue: hf.last}
_WRAPPING = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls)


def is_aggregate(node: Node) -> bool:
    """A whole call, with its FILTER and the like."""
    if isinstance(node, _WRAPPING):
        return is_aggregate(node.this)
    return isinstance(node, exp.AggFunc)


def aggregates_in(node: Node | None) -> list[Node]:
    """All calls in an expression, not those over windows of rows, nor those in queries within it."""
    if node is None or isinstance(node, exp.Query):
        return []
    if isinstance(node, exp.Window):
        parts = [*node.args.get("partition_by", []), node.args.get("order")]
        return [call for part in parts for call in aggregates_in(part)]
    if is_aggregate(node):
        return [node]
    return [call for child in node.iter_expressions() for call in aggregates_in(child)]


def aggregate_of(scope: Scope, call: Node) -> Aggregate:
    """What ``agg`` takes for a call."""
    text, node, where, ignore_nulls = scope.text, call, None, False
    while isinstance(node, _WRAPPING):
        if isinstance(node, exp.Filter):
            where = scope.said(node.expression.this)
        ignore_nulls = ignore_nulls or isinstance(node, exp.IgnoreNulls)
        node = node.this
    if inner := [one for child in node.iter_expressions() for one in aggregates_in(child)]:
        raise text.wrong(
            inner[0], "an aggregate cannot stand within another one.", "Compute the inner one in a subquery."
        )
    if isinstance(node, exp.Count):
        return _count(scope, node, where)
    if isinstance(node.this, exp.Star) or node.args.get("expressions"):
        raise text.wrong(call, f"{type(node).__name__.lower()} takes one column.", f"What a stream keeps: {KNOWN}.")
    if isinstance(node, exp.CountIf):
        condition = scope.said(node.this)
        return hf.count(where=condition if where is None else f"({condition}) AND ({where})")
    if isinstance(node.this, exp.Distinct):
        raise text.wrong(call, "DISTINCT is kept for count alone.", "Use count(DISTINCT …), or SELECT DISTINCT before.")
    if type(node) in _SIMPLE:
        return _SIMPLE[type(node)](scope.value(node.this), where=where)
    if type(node) in _CHOSEN:
        if where is not None:
            raise text.wrong(
                call, "first and last take no FILTER.", "Give them null elsewhere: first(if(…, x, NULL), true)."
            )
        second = node.args.get("expression") or node.args.get("ignore_nulls")
        said = isinstance(second, exp.Boolean) and bool(second.this)
        return _CHOSEN[type(node)](scope.value(node.this), ignore_nulls=ignore_nulls or said)
    if isinstance(node, exp.ApproxDistinct):
        accuracy = node.args.get("accuracy")
        if accuracy is not None and (not isinstance(accuracy, exp.Literal) or accuracy.is_string):
            raise text.wrong(call, "the accuracy must be a number.", "approx_count_distinct(x, 0.01)")
        return hf.approx_distinct(scope.value(node.this), float(accuracy.name) if accuracy else 0.05, where=where)
    raise text.wrong(
        call, f"a stream keeps no {type(node).__name__.lower()}.", f"What it keeps: {KNOWN}; or use process."
    )


def _count(scope: Scope, node: exp.Count, where: str | None) -> Aggregate:
    if node.expressions:
        raise scope.text.wrong(node, "count takes one column.", "Write count_if(a IS NOT NULL AND b IS NOT NULL).")
    if isinstance(node.this, exp.Distinct):
        distinct = node.this.expressions
        if len(distinct) != 1 or isinstance(distinct[0], exp.Star):
            raise scope.text.wrong(
                node, "count(DISTINCT …) takes one column.", "Count one value made of them: count(DISTINCT hash(a, b))."
            )
        return hf.count_distinct(scope.value(distinct[0]), where=where)
    constant = node.this is None or isinstance(node.this, exp.Star | exp.Literal)
    return hf.count(None if constant else scope.value(node.this), where=where)
