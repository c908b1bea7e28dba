"""Which columns a name in a query means, and what the stream behind it calls them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from holdfast.api.sql.text import Node, Text, quoted
from holdfast.api.stream import Stream
from holdfast.plan.frames import Expr


@dataclass(frozen=True)
class Column:
    """A column as a query sees it, and what the stream calls it."""

    relation: str
    name: str
    physical: str


@dataclass(frozen=True)
class Relation:
    """Rows with names. ``times`` are the columns that may be event time, with how late their rows may be."""

    stream: Stream
    columns: tuple[Column, ...]
    times: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(stream: Stream, name: str, times: Mapping[str, str]) -> Relation:
        return Relation(stream, tuple(Column(name, one, one) for one in stream.columns), times)

    def called(self, alias: str) -> Relation:
        return replace(self, columns=tuple(replace(one, relation=alias) for one in self.columns))

    def physical(self) -> list[str]:
        return [one.physical for one in self.columns]

    def narrowed(self, wanted: Collection[str], taken: Collection[str]) -> Relation:
        """Only the columns wanted, none called as one that is ``taken``; the stream stays as it is where that is so."""
        kept = [one for one in self.columns if one.physical in wanted]
        new, used = {}, {name.lower() for name in taken}
        for one in kept:
            name = one.physical
            while name.lower() in used:
                name = f"{one.relation}_{name}" if not name.startswith(f"{one.relation}_") else f"{name}_"
            new[one.physical] = name
            used.add(name.lower())
        if [*new] == self.stream.columns and all(old == name for old, name in new.items()):
            return replace(self, columns=tuple(kept))
        chosen = [old if old == name else Expr(quoted(old)).alias(name) for old, name in new.items()]
        return replace(
            self,
            stream=self.stream.select(*chosen),
            columns=tuple(replace(one, physical=new[one.physical]) for one in kept),
            times={new[name]: late for name, late in self.times.items() if name in new},
        )


@dataclass(frozen=True)
class Table:
    """Rows that are there already: a table or view of Spark's, which a stream can be joined with."""

    name: str
    columns: tuple[str, ...]
    alias: str = ""

    def called(self, alias: str) -> Table:
        return replace(self, alias=alias)


class Scope:
    """The columns that expressions of one SELECT may name."""

    def __init__(self, text: Text, columns: Iterable[Column]) -> None:
        self.text = text
        self.columns = list(columns)

    def relation_of(self, parts: list[str]) -> bool:
        return len(parts) > 1 and any(one.relation.lower() == parts[0].lower() for one in self.columns)

    def find(self, node: exp.Column) -> tuple[Column, list[str]]:
        """The column, and the fields of it that are asked for."""
        parts = [part.name for part in node.parts]
        qualified = self.relation_of(parts)
        name, rest = (parts[1], parts[2:]) if qualified else (parts[0], parts[1:])
        found = {
            one.physical: one
            for one in self.columns
            if one.name.lower() == name.lower() and (not qualified or one.relation.lower() == parts[0].lower())
        }
        if not found:
            there = ", ".join(dict.fromkeys(one.name for one in self.columns)) or "none"
            raise self.text.wrong(
                node, f"there is no column '{'.'.join(parts)}' here.", f"The columns there are: {there}."
            )
        if len(found) > 1:
            whose = " or ".join(f"{one.relation}.{one.name}" for one in found.values())
            raise self.text.wrong(node, f"'{name}' may be one of several columns.", f"Say which: {whose}.")
        return next(iter(found.values())), rest

    def plain(self, node: Node) -> str | None:
        """What the stream calls it, if it is a column as it is."""
        while isinstance(node, exp.Paren):
            node = node.this
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return None
        column, rest = self.find(node)
        return None if rest else column.physical

    def put(self, node: Node) -> str | None:
        """In the place of a column: what the stream calls it, unless that is what is written."""
        if not isinstance(node, exp.Column):
            return None
        column, rest = self.find(node)
        written = [part.name for part in node.parts]
        return None if written == [column.physical, *rest] else ".".join(map(quoted, [column.physical, *rest]))

    def said(self, node: Node) -> str:
        """The user's own characters, in the stream's names."""
        return self.text.rewritten(node, self.put)

    def value(self, node: Node) -> str | Expr:
        """As a verb takes it: the name of a column, or an expression."""
        return self.plain(node) or Expr(self.said(node))

    def canonical(self, node: Node) -> Node:
        """To compare by: columns by the stream's names, alike however they are written."""

        def known(one: Node) -> Node:
            if not isinstance(one, exp.Column) or isinstance(one.this, exp.Star):
                return one
            column, rest = self.find(one)
            made: Any = exp.column(column.physical, quoted=True)
            for name in rest:
                made = exp.Dot(this=made, expression=exp.to_identifier(name.lower()))
            return made  # type: ignore[no-any-return]

        return node.copy().transform(known)


def columns_in(node: Node) -> list[exp.Column]:
    """Every column that a SELECT names itself, not in the queries within it."""
    found: list[exp.Column] = []

    def walk(one: Node) -> None:
        if isinstance(one, exp.Column):
            found.append(one)
            return
        for child in one.iter_expressions():
            if not isinstance(child, exp.Query):
                walk(child)

    walk(node)
    return found


def conjuncts(node: Node | None) -> list[Node]:
    """The conditions that must all hold."""
    if node is None:
        return []
    if isinstance(node, exp.And):
        return [*conjuncts(node.this), *conjuncts(node.expression)]
    if isinstance(node, exp.Paren) and isinstance(node.this, exp.And):
        return conjuncts(node.this)
    return [node]
