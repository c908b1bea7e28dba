"""Questions that Spark and DuckDB answer alike, by a list of what they may be made of; all else is for Spark.

Columns, ``count``, ``sum``, ``min``, ``max`` and ``avg`` of them, conditions that compare a column with a number or a
string of its own kind, ``IS NULL``, ``IN``, ``BETWEEN``; groups and joins by columns that are no floats; order, limit.
Not in it: arithmetic (they divide and overflow differently), casts and functions, times compared with text, decimals.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from sqlglot import exp

from holdfast.api.sql.scope import conjuncts
from holdfast.api.sql.text import Node, Text, span

Types = Mapping[str, pa.Schema]
"""A table, or a relation of FROM → its columns."""
_COMPARED = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_UNION = {"this", "expression"}
_PARTS = {"expressions", "from_", "joins", "where", "group", "having", "order", "limit", "distinct"}


def answer_columns(text: Text, query: Node, tables: Types) -> list[pa.Field] | None:
    """The columns of the answer as Spark has them, if both engines give the same rows; None: they may not."""
    if isinstance(query, exp.Subquery) and not any(query.args.get(part) for part in ("order", "limit", "with_")):
        return answer_columns(text, query.this, tables)
    if isinstance(query, exp.Union):
        known = all(part in _UNION for part, value in query.args.items() if value)
        left, right = answer_columns(text, query.this, tables), answer_columns(text, query.expression, tables)
        if not known or left is None or right is None or [one.type for one in left] != [one.type for one in right]:
            return None
        return left
    if not isinstance(query, exp.Select) or any(value for part, value in query.args.items() if part not in _PARTS):
        return None
    relations = _relations(text, query, tables)
    return None if relations is None else _Judge(text, query, relations).found()


def _relations(text: Text, query: exp.Select, tables: Types) -> dict[str, pa.Schema] | None:
    """What it reads from, by its names there; None: something that is not known."""
    source = query.args.get("from_")
    found: dict[str, pa.Schema] = {}
    for node in [source.this if source is not None else None, *[one.this for one in query.args.get("joins") or []]]:
        parts = {part for part, value in node.args.items() if value} if node is not None else set()
        schema = None
        if isinstance(node, exp.Table) and parts <= {"this", "alias"}:
            schema = tables.get(node.name.lower())
        elif isinstance(node, exp.Subquery) and parts == {"this", "alias"}:
            columns = answer_columns(text, node.this, tables)
            schema = None if columns is None else pa.schema(columns)
        if node is None or schema is None or (node.args.get("alias") and node.args["alias"].args.get("columns")):
            return None
        found[node.alias or node.name] = schema
    return found


class _Judge:
    def __init__(self, text: Text, query: exp.Select, types: Types) -> None:
        self._text = text
        self._query = query
        self._types = types
        self._aliases = {one.alias.lower() for one in query.expressions if isinstance(one, exp.Alias)}

    def found(self) -> list[pa.Field] | None:
        query = self._query
        if any(map(self._hides, query.expressions)):
            return None
        items: list[pa.Field] = []
        for one in query.expressions:
            inner = one.this if isinstance(one, exp.Alias) else one
            if isinstance(inner, exp.Star) and not inner.args.get("except_") and len(self._types) == 1:
                items += list(next(iter(self._types.values())))
                continue
            kind, name = self._value(inner), self._name(one)
            if kind is None or name is None:
                return None
            items.append(pa.field(name, kind))
        if not all(self._joined(one) for one in query.args.get("joins") or []):
            return None
        group, order = query.args.get("group"), query.args.get("order")
        keys = group.expressions if group is not None else []
        if group is not None and any(value for part, value in group.args.items() if part != "expressions"):
            return None
        if any(not self._exact(one) for one in keys):
            return None
        if query.args.get("distinct") and (
            query.args["distinct"].args.get("on") or any(_inexact(item.type) for item in items)
        ):
            return None
        conditions = [*self._conditions("where"), *self._conditions("having")]
        if not all(self._condition(one) for one in conditions):
            return None
        if order is not None and not all(self._ordered(one) for one in order.expressions):
            return None
        limit = query.args.get("limit")
        if limit is not None and not isinstance(limit.expression, exp.Literal):
            return None
        return items

    def _name(self, node: Node) -> str | None:
        """What Spark calls the column, where that is plain."""
        if isinstance(node, exp.Alias):
            return str(node.alias)
        if isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
            return "count(1)"
        names = {name for schema in self._types.values() for name in schema.names}
        return str(node.name) if isinstance(node, exp.Column) and node.name in names else None

    def _joined(self, join: exp.Join) -> bool:
        if any(value for part, value in join.args.items() if part not in ("this", "on", "side", "kind")):
            return False
        if join.side.lower() not in ("", "left") or join.kind.lower() not in ("", "inner", "outer"):
            return False
        pairs = conjuncts(join.args.get("on"))
        always = len(pairs) == 1 and isinstance(pairs[0], exp.Boolean) and bool(pairs[0].this)
        return always or (bool(pairs) and all(isinstance(one, exp.EQ) and self._alike_keys(one) for one in pairs))

    def _alike_keys(self, pair: exp.EQ) -> bool:
        one, other = self._column(pair.this), self._column(pair.expression)
        return one is not None and one == other and not _inexact(one)

    def _conditions(self, part: str) -> list[Node]:
        return conjuncts(self._query.args[part].this) if self._query.args.get(part) else []

    def _condition(self, node: Node) -> bool:
        match node:
            case exp.Paren() | exp.Not():
                return self._condition(node.this)
            case exp.And() | exp.Or():
                return self._condition(node.this) and self._condition(node.expression)
            case exp.Is():
                return isinstance(node.expression, exp.Null) and self._value(node.this) is not None
            case exp.In():
                kind = self._value(node.this)
                rest = [value for part, value in node.args.items() if part not in ("this", "expressions") and value]
                return not rest and all(self._fits(kind, one) for one in node.expressions)
            case exp.Between():
                kind = self._value(node.this)
                return self._fits(kind, node.args["low"]) and self._fits(kind, node.args["high"])
        if isinstance(node, _COMPARED):
            one, other = node.this, node.expression
            if _is_constant(one):
                one, other = other, one
            return self._fits(self._value(one), other)
        return False

    def _ordered(self, node: Node) -> bool:
        """By columns alone: of the result, or where that has a row for each that is read, of what is read."""
        one = node.this
        if not isinstance(one, exp.Column) or node.args.get("nulls_first") == bool(node.args.get("desc")):
            return False
        selected = [item for item in self._query.expressions if isinstance(item, exp.Column)]
        if any(item.name.lower() == one.name.lower() and item.table == one.table for item in selected):
            return True
        if not one.table and one.name.lower() in self._aliases:
            return True
        each = not self._query.args.get("group") and not self._query.args.get("distinct")
        return each and not any(map(_aggregates, self._query.expressions)) and self._column(one) is not None

    def _hides(self, node: Node) -> bool:
        """A name of the result that is another column where it is read: engines differ in which they take."""
        if not isinstance(node, exp.Alias):
            return False
        names = {name.lower() for schema in self._types.values() for name in schema.names}
        same = isinstance(node.this, exp.Column) and node.this.name.lower() == node.alias.lower()
        return node.alias.lower() in names and not same

    def _fits(self, kind: pa.DataType | None, node: Node) -> bool:
        """Whether a constant is of a column's own kind, and written as both read it, so that neither casts anything."""
        if kind is None or not _is_constant(node):
            return False
        literal = node.this if isinstance(node, exp.Neg) else node
        if literal.is_string:
            place = span(literal)
            said = self._text.text[place[0] : place[1]] if place else ""
            plain = said.startswith("'") and "\\" not in said
            return bool(plain and pa.types.is_string(kind) and literal is node)
        whole = literal.name.isdigit() and len(literal.name) < 19
        return bool(whole and (pa.types.is_signed_integer(kind) or pa.types.is_float64(kind)))

    def _exact(self, node: Node) -> bool:
        kind = self._column(node)
        return kind is not None and not _inexact(kind)

    def _value(self, node: Node) -> pa.DataType | None:
        """The type of a column or of an aggregate of one."""
        if isinstance(node, exp.Column):
            return self._column(node)
        if isinstance(node, exp.Count):
            inner = node.this
            if isinstance(inner, exp.Distinct):
                one = inner.expressions[0] if len(inner.expressions) == 1 else None
                return pa.int64() if one is not None and self._exact(one) else None
            whole = isinstance(inner, exp.Star) and not node.expressions
            return pa.int64() if whole or (isinstance(inner, exp.Column) and self._column(inner) is not None) else None
        kind = self._column(node.this) if isinstance(getattr(node, "this", None), exp.Column) else None
        if kind is None:
            return None
        if isinstance(node, exp.Min | exp.Max):
            return None if node.args.get("expressions") else kind
        if isinstance(node, exp.Sum | exp.Avg) and pa.types.is_signed_integer(kind):
            return pa.int64() if isinstance(node, exp.Sum) else pa.float64()
        return None

    def _column(self, node: Node) -> pa.DataType | None:
        if not isinstance(node, exp.Column) or len(node.parts) > 2 or isinstance(node.this, exp.Star):
            return None
        found = [
            schema.field(at).type
            for relation, schema in self._types.items()
            if not node.table or relation.lower() == node.table.lower()
            for at, name in enumerate(schema.names)
            if name.lower() == node.name.lower()
        ]
        return found[0] if len(found) == 1 else None


def _is_constant(node: Node) -> bool:
    return isinstance(node, exp.Literal) or (isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal))


def _aggregates(node: Node) -> bool:
    return node.find(exp.AggFunc) is not None


def _inexact(kind: pa.DataType) -> bool:
    """Zeros of two signs and NaNs: engines differ in what is the same."""
    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_nested(kind))
