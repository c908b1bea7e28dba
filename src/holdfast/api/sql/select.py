"""One query as a stream: its relations, filters, groups, ranks and columns, each by its verb."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from holdfast.api.sql.aggregates import aggregates_in, is_aggregate
from holdfast.api.sql.grammar import WINDOWING
from holdfast.api.sql.grouping import Grouping, keyed_by
from holdfast.api.sql.joins import joined
from holdfast.api.sql.ranks import Rank, first_rows, limited, not_over, numbered_rows, without_rank
from holdfast.api.sql.relations import Relations, Tables, latest
from holdfast.api.sql.scope import Column, Relation, Scope, Table, columns_in
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
    plain: str | None = None
    """The column that it is, as it is."""


class Query:
    """Compiles the queries of one text. ``tables`` knows what there is beside it."""

    def __init__(self, text: Text, tables: Tables, everything: Callable[[], list[Relation]]) -> None:
        self._text = text
        self._relations = Relations(text, tables, everything, self.relation)

    def relation(self, node: Node, name: str | None = None, rank: Rank | None = None) -> Relation:
        """The rows of a query; ``name`` is that of its last stage, ``rank`` says which of its row numbers matter."""
        with self._relations.with_common(node):
            return self._rows(node, name, rank)

    def _rows(self, node: Node, name: str | None, rank: Rank | None) -> Relation:
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
            if isinstance(one, exp.Literal) and not one.is_string:
                if not one.name.isdigit() or not 1 <= int(one.name) <= len(rows.columns):
                    raise self._text.wrong(one, f"there is no column number {one.name}.", "Name what is ordered by.")
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
        if WINDOWING in node.meta and not grouped:
            raise self._text.wrong(
                node.meta[WINDOWING][0],
                "WINDOWING is about groups.",
                "GROUP BY something, with an aggregate of the rest.",
            )
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
        terms: Scope | Grouping = scope
        per: tuple[str, ...] = ()
        if grouped:
            terms = Grouping(self._text, scope, rows, node)
            rows = terms.stage(names.take())
            per = (START, END) if terms.by_clause else ()
        having = node.args.get("having")
        if having is not None:
            if not grouped:
                raise self._text.wrong(having, "HAVING needs groups.", "Use WHERE.")
            rows = replace(rows, stream=rows.stream.where(terms.said(having.this)))
        items = self._items(node, scope, terms, rank)
        asked = _Asked(self._text, items, scope, terms)
        distinct = node.args.get("distinct")
        if rank is not None:
            rows = replace(rows, stream=numbered_rows(self._text, node, rows.stream, rank, terms.value, names.take()))
        elif limited(node) and not distinct:
            rows = replace(rows, stream=first_rows(self._text, node, rows.stream, asked.value, names.take(), per))
        made = self._projected(node, rows, items, names)
        if limited(node) and distinct:  # what is the same twice is one of the first rows once
            if per:
                raise self._text.wrong(
                    distinct, "WINDOWING has no DISTINCT with LIMIT.", "GROUP BY what shall be distinct."
                )
            first = first_rows(self._text, node, made.stream, asked.column, names.take())
            return replace(made, stream=first.select(*made.physical()))
        return made

    def _projected(self, node: exp.Select, rows: Relation, items: list[Item], stages: _Names) -> Relation:
        names = [one.name for one in items]
        twice = next((one for at, one in enumerate(items) if one.name.lower() in {n.lower() for n in names[:at]}), None)
        if twice is not None:
            raise self._text.wrong(
                twice.node, f"two columns are called '{twice.name}'.", "Give one of them another name with AS."
            )
        stream = rows.stream
        if names != stream.columns or [one.plain for one in items] != names:
            stream = stream.select(
                *[one.name if one.plain == one.name else Expr(one.text).alias(one.name) for one in items]
            )
        times = {one.name: rows.times[one.plain] for one in items if one.plain and one.plain in rows.times}
        made = Relation(stream, tuple(Column("", name, name) for name in names), times)
        distinct = node.args.get("distinct")
        if distinct:
            if distinct.args.get("on"):
                raise self._text.wrong(
                    distinct, "there is no DISTINCT ON.", "GROUP BY it, with first(…) of the others."
                )
            made = replace(made, stream=keyed_by(made.stream, tuple(names), stages.take()).distinct())
        return made

    def _items(self, node: exp.Select, scope: Scope, terms: Scope | Grouping, rank: Rank | None) -> list[Item]:
        items = []
        for one in node.expressions:
            inner = one.this if isinstance(one, exp.Alias) else one
            if isinstance(inner, exp.Window):
                if rank is None or one.alias.lower() != rank.name.lower():
                    raise not_over(self._text, inner)
                items.append(Item(rank.name, one, quoted(rank.name), rank.name))
            elif inner.is_star and isinstance(inner, exp.Star | exp.Column):
                items += self._starred(inner, scope, node)
            else:
                items.append(Item(self._called(one), inner, terms.said(inner), terms.plain(inner)))
        return items

    def _starred(self, node: Node, scope: Scope, select: exp.Select) -> list[Item]:
        star = node.this if isinstance(node, exp.Column) else node
        if self._groups(select):
            raise self._text.wrong(node, "a star cannot stand beside groups.", "Name the keys and the aggregates.")
        if star.args.get("replace") or star.args.get("rename"):
            raise self._text.wrong(node, "a star is all columns, or all EXCEPT some.", "Name the others.")
        hidden = {one.name.lower() for one in star.args.get("except_") or star.args.get("except") or []}
        whose = node.table.lower() if isinstance(node, exp.Column) else None
        these = [one for one in scope.columns if whose is None or one.relation.lower() == whose]
        if strangers := hidden - {one.name.lower() for one in these}:
            raise self._text.wrong(
                node, f"there is no column '{min(strangers)}' to leave out.", "Leave out what there is."
            )
        found = [
            Item(
                one.name,
                exp.column(one.name, table=one.relation or None, quoted=True),
                quoted(one.physical),
                one.physical,
            )
            for one in these
            if one.name.lower() not in hidden
        ]
        if not found:
            raise self._text.wrong(node, "these are no columns.", "Name a relation of FROM, or leave fewer out.")
        return found

    def _called(self, node: Node) -> str:
        """As it is named, or as near to what Spark would call it as can be without asking."""
        if isinstance(node, exp.Alias | exp.Column):
            return str(node.alias_or_name)
        if isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
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


class _Asked:
    """What ORDER BY names: a column of the result by its number or its name, which hides one of the source, or an
    expression of either."""

    def __init__(self, text: Text, items: list[Item], scope: Scope, terms: Scope | Grouping) -> None:
        self._text, self._items, self._scope, self._terms = text, items, scope, terms
        self._named = {one.name.lower(): one for one in items}

    def value(self, node: Node) -> Any:
        item = self._item(node)
        if item is not None:
            return item.plain or Expr(item.text)
        for call in aggregates_in(node):
            for column in columns_in(call):
                hidden = self._of(column)
                if hidden is not None and self._scope.canonical(hidden.node) != self._scope.canonical(column):
                    raise self._text.wrong(
                        column, f"'{column.name}' is a column of the result here.", "Say whose it is."
                    )
        if any(self._of(column) is not None for column in columns_in(node)):
            return Expr(self._text.rewritten(node, self._put))
        return self._terms.value(node)

    def column(self, node: Node) -> str:
        """Of distinct rows, which have no other columns."""
        item = self._item(node)
        if item is None:
            meant = self._scope.canonical(node)
            item = next((one for one in self._items if self._scope.canonical(one.node) == meant), None)
        if item is None:
            raise self._text.wrong(node, "DISTINCT rows are ordered by what is selected.", "Select it, too.")
        return item.name

    def _item(self, node: Node) -> Item | None:
        if isinstance(node, exp.Literal) and not node.is_string:
            if not node.name.isdigit() or not 1 <= int(node.name) <= len(self._items):
                raise self._text.wrong(node, f"there is no column number {node.name}.", "Name what is ordered by.")
            return self._items[int(node.name) - 1]
        return self._of(node) if isinstance(node, exp.Column) else None

    def _of(self, node: exp.Column) -> Item | None:
        return self._named.get(node.name.lower()) if not node.table and len(node.parts) == 1 else None

    def _put(self, node: Node) -> str | None:
        if isinstance(node, exp.Column) and (item := self._of(node)) is not None:
            return f"({item.text})"
        return self._terms.put(node)
