"""The first rows in an order: ``ORDER BY … LIMIT k``, and row numbers of which the first k are wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from holdfast.api.keyed import KeyedStream
from holdfast.api.sql.grouping import ONE
from holdfast.api.sql.scope import conjuncts
from holdfast.api.sql.text import Node, Text
from holdfast.api.sql.windows import END, START, is_window
from holdfast.api.stream import Order, Stream
from holdfast.errors import PlanError

Value = Callable[[Node], Any]
"""An expression as a verb takes it."""


@dataclass(frozen=True)
class Rank:
    """``ROW_NUMBER() OVER (…) AS name``, of which the first ``k`` are wanted."""

    name: str
    k: int


def limited(node: Node) -> bool:
    """Whether a query has an order or a limit of its own, or both, as it must."""
    return any(node.args.get(part) is not None for part in ("order", "sort", "limit", "offset"))


def first_rows(
    text: Text, node: Node, stream: Stream, value: Value, name: str | None, per: tuple[str, ...] = ()
) -> Stream:
    """ORDER BY … LIMIT k; ``per`` are columns of which each group has its own first rows."""
    order, limit = node.args.get("order") or node.args.get("sort"), node.args.get("limit")
    if offset := node.args.get("offset"):
        raise text.wrong(offset, "a stream has no OFFSET.", "Number the rows: ROW_NUMBER() OVER (ORDER BY …).")
    if limit is None:
        raise text.wrong(
            order,
            "rows of a stream are never all there to be ordered.",
            "Add LIMIT k: the k first rows are kept up to date.",
        )
    if order is None:
        raise text.wrong(limit, "LIMIT without an order would keep any rows.", "Add ORDER BY …")
    k = limit.expression
    if not isinstance(k, exp.Literal) or k.is_string or not k.name.isdigit() or int(k.name) < 1:
        raise text.wrong(limit, "how many rows are kept must be a number from 1 on.", "LIMIT 10")
    rank = "rank"
    while rank in stream.columns:  # a column of the stage that nobody asked for
        rank += "_"
    return _top(stream, int(k.name), _by(text, order, value), per, rank, name)


def numbered_rows(text: Text, node: exp.Select, stream: Stream, rank: Rank, value: Value, name: str | None) -> Stream:
    """The rows whose number is at most ``rank.k``."""
    over = next(one.this for one in node.expressions if isinstance(one.this, exp.Window))
    if not isinstance(over.this, exp.RowNumber) or over.args.get("spec") is not None:
        raise not_over(text, over)
    if over.args.get("order") is None:
        raise text.wrong(over, "row numbers need an order.", "ROW_NUMBER() OVER (PARTITION BY … ORDER BY …)")
    if limited(node):
        raise text.wrong(
            node.args.get("order") or node.args["limit"], "row numbers and LIMIT are two ranks.", "Use one."
        )
    per: list[Any] = []
    for one in over.args.get("partition_by") or []:
        if is_window(one) or (isinstance(one, exp.Column) and one.name.lower() in ("window", "session_window")):
            per += [START, END]
        else:
            per.append(value(one))
    return _top(stream, rank.k, _by(text, over.args["order"], value), tuple(per), rank.name, name)


def without_rank(text: Text, node: exp.Select, source: Node) -> tuple[list[Node], Rank | None]:
    """The conditions of WHERE without the one that bounds a row number of the subquery, and that."""
    where = conjuncts(node.args["where"].this) if node.args.get("where") else []
    if not isinstance(source, exp.Subquery) or not isinstance(source.this, exp.Select):
        return where, None
    alias = source.args.get("alias")
    renamed = alias is not None and alias.args.get("columns")
    mine = {source.alias.lower()} | (set() if node.args.get("joins") else {""})
    for one in source.this.expressions:
        if isinstance(one, exp.Alias) and isinstance(one.this, exp.Window):
            for condition in [] if renamed else where:
                if (k := _at_most(condition, one.alias, mine)) is not None:
                    return [other for other in where if other is not condition], Rank(one.alias, k)
            raise not_over(text, one.this)
    return where, None


def not_over(text: Text, node: Node) -> PlanError:
    return text.wrong(
        node,
        "of functions OVER rows a stream has the first k row numbers alone.",
        "SELECT * FROM (SELECT …, ROW_NUMBER() OVER (PARTITION BY … ORDER BY …) AS n FROM …) WHERE n <= 10",
    )


def _by(text: Text, order: Node, value: Value) -> list[Order]:
    by: list[Order] = []
    for one in order.expressions:
        descending, nulls_first = bool(one.args.get("desc")), bool(one.args.get("nulls_first"))
        if nulls_first == descending and "nulls" in text.cut(one).lower():
            raise text.wrong(
                one, "nulls are first in ascending order and last in descending.", "Order by (x IS NULL) before that."
            )
        by.append((value(one.this), "desc" if descending else "asc"))
    return by


def _top(stream: Stream, k: int, by: list[Order], per: tuple[Any, ...], rank: str, name: str | None) -> Stream:
    """Of all rows, also of windows, unless it is said of which."""
    if per:
        return stream.top_k(k, by, per=list(per), rank=rank, name=name)
    return KeyedStream(stream, (ONE,), name, by=())._top_k(k, by, "cut", rank, final=False, hidden=True)


def _at_most(condition: Node, name: str, relations: set[str]) -> int | None:
    """k, if the condition is ``name <= k`` in one of the ways to say it, of a column of one of these relations."""
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if not isinstance(condition, exp.LTE | exp.LT | exp.EQ | exp.GTE | exp.GT):
        return None
    one, other = condition.this, condition.expression
    mirrored = isinstance(one, exp.Literal)
    if mirrored:
        one, other = other, one
    if not (isinstance(one, exp.Column) and one.name.lower() == name.lower() and isinstance(other, exp.Literal)):
        return None
    if one.table.lower() not in relations:
        return None
    if other.is_string or not other.name.isdigit() or int(other.name) < 1:
        return None
    k = int(other.name)
    if isinstance(condition, exp.GTE if mirrored else exp.LTE):
        return k
    if isinstance(condition, exp.GT if mirrored else exp.LT):
        return k - 1 or None
    return 1 if isinstance(condition, exp.EQ) and k == 1 else None
