"""GROUP BY: keys, windows and aggregates of a SELECT as one stage, and what they are called behind it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from sqlglot import exp

from holdfast.api.keyed import KeyedStream
from holdfast.api.sql.aggregates import aggregate_of, aggregates_in, is_aggregate
from holdfast.api.sql.scope import Relation, Scope, columns_in
from holdfast.api.sql.text import Node, Text, quoted
from holdfast.api.sql.windows import END, START, is_window, windowing, windows_of
from holdfast.api.stream import Stream
from holdfast.plan.frames import Constant, Expr

ONE = Constant("all", 0)
"""The key of what has none."""


class Grouping:
    """The groups of one SELECT."""

    def __init__(self, text: Text, scope: Scope, rows: Relation, node: exp.Select) -> None:
        self._text, self._scope, self._node = text, scope, node
        self._rows = rows
        self._aliases = {one.alias.lower(): one.this for one in node.expressions if isinstance(one, exp.Alias)}
        self._within: list[str] = []
        self._keys: list[tuple[Node, str]] = []
        """What is grouped by, in terms to compare by, and its column."""
        self._windows = windowing(scope, rows, node)
        self.by_clause = self._windows is not None
        for one in self._wanted():
            self._add(one)
        self._calls: list[tuple[Node, str, Node]] = []
        for item in [*node.expressions, node.args.get("having"), node.args.get("order"), node.args.get("sort")]:
            for call in aggregates_in(item):
                self._count(call, item)

    def stage(self, name: str | None) -> Relation:
        if not self._calls and not self._windows:  # only keys: SELECT k FROM t GROUP BY k
            keys = tuple(column for _, column in self._keys)
            stream: Stream = keyed_by(self._rows.stream.select(*keys), keys, name).distinct()
            return Relation(stream, ())
        aggregates = {column: aggregate_of(self._scope, call) for _, column, call in self._calls}
        keyed = keyed_by(self._rows.stream, tuple(column for _, column in self._keys) or (ONE,), name)
        if self._windows is None:
            return Relation(keyed.agg(**aggregates), ())
        if not aggregates:
            raise self._text.wrong(
                self._windows.call or self._node,
                "windows need an aggregate.",
                "Add count(*), or another, to the SELECT.",
            )
        windows = self._windows
        cut = keyed.window(windows.window, time=windows.time, lateness=windows.lateness)
        return Relation(cut.agg(**aggregates), (), {START: "0 s", END: "0 s"})

    def said(self, node: Node) -> str:
        """An expression in the names of what the stage puts out."""
        return self._text.rewritten(node, self.put)

    def value(self, node: Node) -> str | Expr:
        return self.plain(node) or Expr(self.said(node))

    def plain(self, node: Node) -> str | None:
        """The column of the stage that it is, as it is."""
        while isinstance(node, exp.Paren):
            node = node.this
        put = self.put(node)
        if put is None:
            return str(node.name) if isinstance(node, exp.Column) and len(node.parts) == 1 else None
        return next((one for one in self._columns if quoted(one) == put), None)

    @property
    def _columns(self) -> set[str]:
        ends = {START, END} if self._windows else set()
        return {column for _, column in self._keys} | {column for _, column, _ in self._calls} | ends

    def _wanted(self) -> list[Node]:
        group = self._node.args.get("group")
        if group is None:
            return []
        if group.args.get("all"):
            inner = [one.this if isinstance(one, exp.Alias) else one for one in self._node.expressions]
            return [one for one in inner if not aggregates_in(one)]
        return [self._meant(one) for one in group.expressions]

    def _meant(self, node: Node) -> Node:
        """What a key is: a column of the SELECT by its number or its alias, or itself."""
        if isinstance(node, exp.Literal) and not node.is_string:
            if not node.name.isdigit() or not 1 <= int(node.name) <= len(self._node.expressions):
                raise self._text.wrong(node, f"there is no column number {node.name}.", "Name what is grouped by.")
            one = self._node.expressions[int(node.name) - 1]
            found: Node = one.this if isinstance(one, exp.Alias) else one
            return found
        known = {column.name.lower() for column in self._scope.columns}
        if isinstance(node, exp.Column) and not node.table and node.name.lower() not in known:
            meant: Node = self._aliases.get(node.name.lower(), node)
            return meant
        return node

    def _add(self, node: Node) -> None:
        while isinstance(node, exp.Paren):
            node = node.this
        if calls := aggregates_in(node):
            raise self._text.wrong(
                calls[0], "an aggregate cannot be grouped by.", "Group its rows in a query around this one."
            )
        if is_window(node):
            if self._windows is not None:
                raise self._text.wrong(node, "rows can be cut into one kind of windows only.", "Use one of them.")
            self._windows = windows_of(self._scope, self._rows, node)  # type: ignore[arg-type]
            return
        plain = self._scope.plain(node)
        if plain is None:
            alias = next((name for name, one in self._aliases.items() if one == node), None)
            plain = self._unused(alias or "_".join(re.findall(r"\w+", self._text.cut(node))) or "key")
            self._rows = replace(self._rows, stream=self._rows.stream.with_column(plain, self._scope.said(node)))
        if plain not in {column for _, column in self._keys}:
            self._keys.append((self._scope.canonical(node), plain))

    def _unused(self, name: str) -> str:
        while name in self._rows.stream.columns:
            name += "_"
        return name

    def _count(self, call: Node, item: Node) -> None:
        canonical = self._scope.canonical(call)
        if any(canonical == known for known, _, _ in self._calls):
            return
        taken = {column for _, column in self._keys} | {column for _, column, _ in self._calls} | {START, END, "all"}
        whole = isinstance(item, exp.Alias) and item.this is call
        name = item.alias if whole else " ".join(self._text.cut(call).split()).lower()
        if isinstance(call, exp.Count) and isinstance(call.this, exp.Star) and not whole:
            name = "count(1)"
        while name in taken:
            name += "_"
        self._calls.append((canonical, name, call))

    def put(self, node: Node) -> str | None:
        if is_aggregate(node):
            canonical = self._scope.canonical(node)
            return next((quoted(name) for known, name, _ in self._calls if known == canonical), None)
        if (ends := self._end_of_window(node)) is not None:
            return ends
        if isinstance(node, exp.Column):
            if not node.table and node.name.lower() in self._aliases and not self._knows(node):
                return self._by_alias(node)
            canonical = self._scope.canonical(node)
            found = next((name for known, name in self._keys if known == canonical), None)
            if found is None:
                raise self._text.wrong(
                    node,
                    f"'{node.name}' is neither grouped by nor within an aggregate.",
                    f"Add it to GROUP BY, or write first({node.name}).",
                )
            return None if found == self._text.cut(node) else quoted(found)
        if (
            self._keys
            and not isinstance(node, exp.Literal)
            and not any(isinstance(one, exp.Query) for one in node.walk())
        ):
            plain = not any(is_aggregate(one) or is_window(one) for one in node.walk())
            if plain and all(self._knows(one) for one in columns_in(node)) and columns_in(node):
                canonical = self._scope.canonical(node)
                return next((quoted(name) for known, name in self._keys if known == canonical), None)
        return None

    def _by_alias(self, node: exp.Column) -> str:
        """What a column of the result is, where it is named in another expression."""
        name = node.name.lower()
        if name in self._within:
            raise self._text.wrong(
                node, f"there is no column '{node.name}' here.", "A column cannot be made of itself."
            )
        self._within.append(name)
        try:
            return f"({self.said(self._aliases[name])})"
        finally:
            self._within.pop()

    def _knows(self, node: exp.Column) -> bool:
        parts = [part.name.lower() for part in node.parts]
        name = parts[1] if self._scope.relation_of(parts) else parts[0]
        return any(one.name.lower() == name for one in self._scope.columns)

    def _end_of_window(self, node: Node) -> str | None:
        """``window.start``, ``window(ts, …).end``, or all of it."""
        if self._windows is None:
            return None
        name = self._windows.name
        if isinstance(node, exp.Column) and node.table.lower() == name and node.name.lower() in ("start", "end"):
            return quoted(START if node.name.lower() == "start" else END)
        if isinstance(node, exp.Dot) and is_window(node.this) and self._same(node.this):
            end = node.expression.name.lower()
            if end not in ("start", "end"):
                raise self._text.wrong(node, f"a window has no '{end}'.", "It has .start and .end.")
            return quoted(START if end == "start" else END)
        column = isinstance(node, exp.Column) and not node.table and node.name.lower() == name and not self._knows(node)
        if column or (is_window(node) and self._same(node)):
            return f"named_struct('start', {START}, 'end', {END})"
        if isinstance(node, exp.Anonymous) and node.name.lower() == "window_time":
            return f"({END} - INTERVAL 1 MICROSECOND)"
        if (
            isinstance(node, exp.Column)
            and not node.table
            and node.name.lower() in (START, END)
            and not self._knows(node)
        ):
            return quoted(node.name.lower())
        return None

    def _same(self, node: Node) -> bool:
        call = self._windows.call if self._windows else None
        if call is None or self._scope.canonical(call) != self._scope.canonical(node):
            raise self._text.wrong(
                node, "these are not the windows of GROUP BY.", "Write the same call in both places."
            )
        return True


def keyed_by(stream: Stream, keys: tuple[Any, ...], name: str | None) -> KeyedStream:
    return KeyedStream(stream, keys, name, by=() if keys == (ONE,) else None)
