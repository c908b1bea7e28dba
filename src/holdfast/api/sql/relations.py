"""What FROM and JOIN name: streams, stages, tables, queries within, and all that is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from sqlglot import exp

from holdfast.api.sql.grammar import ALL, WATERMARK
from holdfast.api.sql.ranks import Rank
from holdfast.api.sql.scope import Relation, Scope, Table, columns_in
from holdfast.api.sql.text import Node, Text
from holdfast.api.sql.times import as_span, microseconds

Tables = Callable[[str], "Relation | Table | None"]


@dataclass
class Common:
    """A query of WITH."""

    node: exp.CTE
    seen: dict[str, Common]
    """Those that it may name itself."""
    made: Relation | None = None


class Compile(Protocol):
    """The rows of a query; ``name`` is that of its last stage."""

    def __call__(self, node: Node, name: str | None = None, rank: Rank | None = None) -> Relation: ...


class Relations:
    """``tables`` knows what there is beside the text, ``everything`` all that is read, ``compile`` queries within."""

    def __init__(self, text: Text, tables: Tables, everything: Callable[[], list[Relation]], compile: Compile) -> None:
        self._text = text
        self._tables = tables
        self._everything = everything
        self._compile = compile
        self._common: dict[str, Common] = {}

    @contextmanager
    def with_common(self, node: Node) -> Iterator[None]:
        """Meanwhile the queries of WITH can be named; each of them sees those before it, and what it is within sees."""
        outer = self._common
        common = node.args.get("with_")
        for one in common.expressions if common is not None else []:
            if common is not None and common.recursive:
                raise self._text.wrong(common, "a stream has no recursion.", "Write one query for each step.")
            self._common = {**self._common, one.alias.lower(): Common(one, self._common)}
        try:
            yield
        finally:
            self._common = outer

    def find(self, node: Node, select: exp.Select, rank: Rank | None = None) -> Relation | Table:
        found = self._named(node, select, rank)
        if WATERMARK not in node.meta or isinstance(found, Table):
            return found
        column, delay = node.meta[WATERMARK]
        time, late = Scope(self._text, found.columns).plain(column), microseconds(self._text.cut(delay))
        if time is None or late is None:
            raise self._text.wrong(
                delay if time else column,
                "a watermark is a column and a delay.",
                "WATERMARK ts DELAY OF INTERVAL 10 SECONDS",
            )
        return replace(found, times={**found.times, time: as_span(late)})

    def _named(self, node: Node, select: exp.Select, rank: Rank | None) -> Relation | Table:
        if isinstance(node, exp.Subquery):
            return self._renamed(node, self._compile(node, None, rank).called(node.alias))
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            raise self._text.wrong(node, "this cannot be read from.", "Name a stream, a stage or a subquery.")
        if node.this.name == ALL and node.this.quoted:
            return self._all(node, select)
        name = ".".join(part.name for part in node.parts)
        if name.lower() in self._common:
            return self._common_one(self._common[name.lower()]).called(node.alias or node.name)
        found = self._tables(name)
        if found is None:
            raise self._text.wrong(
                node,
                f"there is no stream, stage or table '{name}'.",
                "Read it first: job.read(df, name=…), or CREATE STREAM.",
            )
        found = found.called(node.alias or node.name)
        return found if isinstance(found, Table) else self._renamed(node, found)

    def _renamed(self, node: Node, rows: Relation) -> Relation:
        """With the names of ``AS t(a, b)``."""
        alias = node.args.get("alias")
        columns = alias.args.get("columns") if alias is not None else None
        if not columns:
            return rows
        if len(columns) != len(rows.columns):
            raise self._text.wrong(alias, "it names more or fewer columns than there are.", "Name each of them.")
        named = zip(rows.columns, columns, strict=True)
        return replace(rows, columns=tuple(replace(old, name=new.name) for old, new in named))

    def _common_one(self, common: Common) -> Relation:
        """A query of WITH is one stream, however often it is named."""
        if common.made is None:
            here, self._common = self._common, common.seen
            try:
                common.made = self._renamed(common.node, self._compile(common.node.this, common.node.alias))
            finally:
                self._common = here
        return common.made

    def _all(self, node: Node, select: exp.Select) -> Relation:
        """ELF's ``FROM *``: all that is read and has the columns of the query."""
        aliases = {one.alias.lower() for one in select.expressions if isinstance(one, exp.Alias)}
        named = {one.name.lower() for one in columns_in(select)} - aliases
        fit = [one for one in self._everything() if named <= {column.name.lower() for column in one.columns}]
        if not fit:
            raise self._text.wrong(node, "no source of the job has all the columns that are named.", "Name a source.")
        first, *others = fit
        for other in others:
            shared = [one.name for one in first.columns if one.name in {its.name for its in other.columns}]
            times = latest({one: first.times[one] for one in first.times if one in shared}, other.times)
            first = Relation.of(first.stream.select(*shared).union(other.stream.select(*shared)), "", times)
        return first


def latest(mine: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """How late rows of two streams may be that are one: as late as those of either, where both say."""
    return {name: max(late, theirs[name], key=_seconds) for name, late in mine.items() if name in theirs}


def _seconds(span: str) -> float:
    return float(span.removesuffix(" s"))
