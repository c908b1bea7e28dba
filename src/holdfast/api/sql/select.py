"""One query as a stream: its relations, filters, groups, ranks and columns, each by its verb."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from holdfast.api.sql.aggregates import aggregates_in, is_aggregate
from holdfast.api.sql.grouping import Grouping, keyed_by, unquoted
from holdfast.api.sql.joins import joined
from holdfast.api.sql.ranks import Rank, first_rows, limited, not_over, numbered_rows, without_rank
from holdfast.api.sql.relations import Relations, Tables, latest
from holdfast.api.sql.scope import Column, Relation, Scope, Table
from holdfast.api.sql.text import Node, Text, quoted
from holdfast.api.sql.windows import END, START
from holdfast.plan.frames import Expr


@dataclass(frozen=True)
class Item:
    """A column of the result."""

    name: str
    node: Node
    text: str
    """In the stream's names."""


class Query:
    """Compiles the queries of one text. ``tables`` knows what there is beside it."""

    def __init__(self, text: Text, tables: Tables, everything: Callable[[], list[Relation]]) -> None:
        self._text = text
        self._relations = Relations(text, tables, everything, self.relation)

    def relation(self, node: Node, name: str | None = None, rank: Rank | None = None) -> Relation:
        """The rows of a query; ``name`` is that of its last stage, ``rank`` says which of its row numbers matter."""
        self._relations.with_common(node)
        match node:
            case exp.Subquery():
                inner = self.relation(node.this, None if limited(node) else name, rank)
                return self._ordered(node, inner, name) if limited(node) else inner
            case exp.Union():
                return self._union(node, name)
            case exp.Select():
                return self._select(node, name, rank)
            case exp.Intersect() | exp.Except():
                what = type(node).__name__.upper()
                raise self._text.wrong(node, f"a stream has no {what}.", "Use a join, or UNION ALL.")
        raise self._text.wrong(node, "this is no query.", "Write SELECT … FROM …")

    def _union(self, node: exp.Union, name: str | None) -> Relation:
        left, right = self.relation(node.this), self.relation(node.expression)
        if node.args.get("by_name"):
            raise self._text.wrong(node, "UNION goes by position.", "Select the columns in the same order.")
        mine, theirs = left.physical(), right.physical()
        if len(mine) != len(theirs):
            raise self._text.wrong(
                node, f"its sides have {len(mine)} and {len(theirs)} columns.", "Select as many on both sides."
            )
        called = dict(zip(theirs, mine, strict=True))
        times = latest(left.times, {called[one]: late for one, late in right.times.items() if one in called})
        both = Relation(
            left.stream.union(right.stream), tuple(replace(one, relation="") for one in left.columns), times
        )
        behind = limited(node)
        if node.args.get("distinct"):
            stage = None if behind else name
            both = replace(both, stream=keyed_by(both.stream, tuple(mine), stage).distinct())
        return self._ordered(node, both, name) if behind else both

    def _ordered(self, node: Node, rows: Relation, name: str | None) -> Relation:
        """ORDER BY and LIMIT behind a query that is done."""
        scope = Scope(self._text, rows.columns)

        def value(one: Node) -> Any:
            if isinstance(one, exp.Literal) and not one.is_string and 1 <= int(one.name) <= len(rows.columns):
                return rows.columns[int(one.name) - 1].physical
            return scope.value(one)

        first = first_rows(self._text, node, rows.stream, value, name)
        return replace(rows, stream=first.select(*rows.physical()))

    # ---------------------------------------------------------------------------------------------- select

    def _select(self, node: exp.Select, name: str | None, rank: Rank | None) -> Relation:
        source = node.args.get("from_")
        if source is None:
            raise self._text.wrong(node, "it reads from nothing.", "Write SELECT … FROM a stream.")
        where, inner_rank = without_rank(self._text, node, source.this)
        rows = self._relations.find(source.this, node, inner_rank)
        if isinstance(rows, Table):
            raise self._text.wrong(
                source.this,
                f"'{rows.name}' is a table that does not grow.",
                "Begin with a stream, and JOIN the table to it.",
            )
        joins = [(one, self._relations.find(one.this, node)) for one in node.args.get("joins") or []]
        grouped = self._groups(node)
        parts = [*[isinstance(right, Relation) for _, right in joins], grouped]
        parts += [rank is not None or limited(node), bool(node.args.get("distinct"))]
        names = _Names(name, parts.count(True))
        for join, right in joins:
            rows = joined(self._text, rows, join, right, node, names.take() if isinstance(right, Relation) else None)
        scope = Scope(self._text, rows.columns)
        if where:
            said = [scope.said(one) for one in where]
            condition = said[0] if len(said) == 1 else " AND ".join(f"({one})" for one in said)
            rows = replace(rows, stream=rows.stream.where(condition))
        said_of, value = scope.said, scope.value
        per: tuple[str, ...] = ()
        if grouped:
            group = Grouping(self._text, scope, rows, node)
            rows = group.stage(names.take())
            said_of, value, per = group.said, group.value, (START, END) if group.by_clause else ()
        having = node.args.get("having")
        if having is not None:
            if not grouped:
                raise self._text.wrong(having, "HAVING needs groups.", "Use WHERE.")
            rows = replace(rows, stream=rows.stream.where(said_of(having.this)))
        items = self._items(node, scope, said_of, rank)
        if rank is not None:
            rows = replace(rows, stream=numbered_rows(self._text, node, rows.stream, rank, value, names.take()))
        elif limited(node) and not node.args.get("distinct"):
            asked = _asked(items, value)
            rows = replace(rows, stream=first_rows(self._text, node, rows.stream, asked, names.take(), per))
        made = self._projected(node, rows, items, names)
        if limited(node) and node.args.get("distinct"):  # what is the same twice is one of the first rows once
            if per:
                raise self._text.wrong(
                    node.args["distinct"], "WINDOWING has no DISTINCT with LIMIT.", "GROUP BY what shall be distinct."
                )
            return self._ordered(node, made, names.take())
        return made

    def _projected(self, node: exp.Select, rows: Relation, items: list[Item], stages: _Names) -> Relation:
        names = [one.name for one in items]
        twice = next((one for at, one in enumerate(items) if one.name.lower() in {n.lower() for n in names[:at]}), None)
        if twice is not None:
            raise self._text.wrong(
                twice.node, f"two columns are called '{twice.name}'.", "Give one of them another name with AS."
            )
        stream = rows.stream
        plain = [unquoted(one.text) if unquoted(one.text) in stream.columns else None for one in items]
        if names != stream.columns or plain != names:
            stream = stream.select(
                *[
                    one.name if same == one.name else Expr(one.text).alias(one.name)
                    for one, same in zip(items, plain, strict=True)
                ]
            )
        times = {
            one.name: rows.times[same] for one, same in zip(items, plain, strict=True) if same and same in rows.times
        }
        made = Relation(stream, tuple(Column("", name, name) for name in names), times)
        distinct = node.args.get("distinct")
        if distinct:
            if distinct.args.get("on"):
                raise self._text.wrong(
                    distinct, "there is no DISTINCT ON.", "GROUP BY it, with first(…) of the others."
                )
            made = replace(made, stream=keyed_by(made.stream, tuple(names), stages.take()).distinct())
        return made

    def _items(self, node: exp.Select, scope: Scope, said: Callable[[Node], str], rank: Rank | None) -> list[Item]:
        items = []
        for one in node.expressions:
            inner = one.this if isinstance(one, exp.Alias) else one
            if isinstance(inner, exp.Window):
                if rank is None or one.alias.lower() != rank.name.lower():
                    raise not_over(self._text, inner)
                items.append(Item(rank.name, one, quoted(rank.name)))
            elif inner.is_star:
                items += self._starred(inner, scope, node)
            else:
                items.append(Item(one.alias_or_name or self._made_name(inner), inner, said(inner)))
        return items

    def _starred(self, node: Node, scope: Scope, select: exp.Select) -> list[Item]:
        star = node.this if isinstance(node, exp.Column) else node
        if self._groups(select):
            raise self._text.wrong(node, "a star cannot stand beside groups.", "Name the keys and the aggregates.")
        if star.args.get("replace") or star.args.get("rename"):
            raise self._text.wrong(node, "a star is all columns, or all EXCEPT some.", "Name the others.")
        hidden = {one.name.lower() for one in star.args.get("except_") or star.args.get("except") or []}
        whose = node.table.lower() if isinstance(node, exp.Column) else None
        found: dict[str, Item] = {}
        for one in scope.columns:
            if (whose is None or one.relation.lower() == whose) and one.name.lower() not in hidden:
                found.setdefault(one.physical, Item(one.name, node, quoted(one.physical)))
        if not found:
            raise self._text.wrong(node, "these are no columns.", "Name a relation of FROM, or leave fewer out.")
        return list(found.values())

    def _made_name(self, node: Node) -> str:
        """As near to what Spark would call it as can be without asking."""
        if is_aggregate(node) and isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
            return "count(1)"
        said = " ".join(self._text.cut(node).split())
        return said.lower() if is_aggregate(node) else said

    # --------------------------------------------------------------------------------------------- refusals

    def _groups(self, node: exp.Select) -> bool:
        parts = [*node.expressions, node.args.get("having"), node.args.get("order"), node.args.get("sort")]
        return bool(node.args.get("group")) or any(aggregates_in(part) for part in parts)


class _Names:
    """Who of the stages of one SELECT gets the name: the last one."""

    def __init__(self, name: str | None, count: int) -> None:
        self._name = name
        self._left = count

    def take(self) -> str | None:
        self._left -= 1
        return self._name if self._left == 0 else None


def _asked(items: list[Item], value: Callable[[Node], Any]) -> Callable[[Node], Any]:
    """What ORDER BY names: a column of the result by its number or its name, or an expression."""
    aliases = {one.name.lower(): one.node for one in items}

    def found(node: Node) -> Any:
        if isinstance(node, exp.Literal) and not node.is_string and 1 <= int(node.name) <= len(items):
            node = items[int(node.name) - 1].node
        elif isinstance(node, exp.Column) and not node.table and node.name.lower() in aliases:
            node = aliases[node.name.lower()]
        return value(node)

    return found
