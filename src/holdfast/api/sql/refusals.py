"""Parts of SQL that no stream has. What is not known is refused: a clause that is passed over in silence is a wrong
answer."""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from holdfast.api.sql.ranks import not_over
from holdfast.api.sql.text import Node, Text

_ORDER = {"order", "sort", "limit", "offset", "with_"}
KNOWN: dict[type[Any], set[str]] = {
    exp.Select: {"expressions", "from_", "joins", "where", "group", "having", "distinct", "hint", *_ORDER},
    exp.Subquery: {"this", "alias", *_ORDER},
    exp.Union: {"this", "expression", "distinct", "by_name", *_ORDER},
    exp.Table: {"this", "db", "catalog", "alias"},
    exp.Join: {"this", "on", "using", "side", "kind", "method"},
    exp.Group: {"expressions", "all"},
    exp.Limit: {"expression"},
    exp.Window: {"this", "partition_by", "order", "over", "spec"},
}
INSTEAD = {
    "laterals": ("LATERAL VIEW", "Use explode before: job.read(df.selectExpr(…)), or transform."),
    "windows": ("WINDOW clause", "Write OVER (…) where it is used."),
    "qualify": ("QUALIFY", "Use WHERE over a subquery that has the row number."),
    "cluster": ("CLUSTER BY", "Leave it out: rows go where their key is."),
    "distribute": ("DISTRIBUTE BY", "Leave it out: rows go where their key is."),
    "pivots": ("PIVOT", "Use FILTER (WHERE …) on each aggregate."),
    "sample": ("TABLESAMPLE", "Use WHERE with a hash of the key."),
    "version": ("past versions", "Read what it holds now."),
    "into": ("INTO", "Use INSERT INTO … SELECT."),
    "rollup": ("ROLLUP", "Write a query for each grouping, and UNION ALL them."),
    "cube": ("CUBE", "Write a query for each grouping, and UNION ALL them."),
    "grouping_sets": ("GROUPING SETS", "Write a query for each grouping, and UNION ALL them."),
}
GROUPINGS: dict[type[Any], str] = {exp.Rollup: "rollup", exp.Cube: "cube", exp.GroupingSets: "grouping_sets"}


def refuse_unknown(text: Text, query: Node) -> None:
    """Whatever of a query, or of one within it, would not be looked at."""
    for node in query.walk():
        known = KNOWN.get(type(node))
        for part, value in node.args.items():
            if known is not None and part not in known and value:
                raise _refused(text, part, value[0] if isinstance(value, list) else value, node)
        if type(node) in GROUPINGS:
            raise _refused(text, GROUPINGS[type(node)], node, node.find_ancestor(exp.Group))
        if isinstance(node, exp.Window) and not _is_item(node):
            raise not_over(text, node)
        if isinstance(node, exp.Query) and node is not query and not _is_relation(node):
            raise text.wrong(
                node,
                "a query cannot stand within an expression.",
                "Join its stage by key: JOIN totals ON totals.k = c.k",
            )


def _is_item(node: Node) -> bool:
    """A column of the result, as it is."""
    around = node.parent.parent if isinstance(node.parent, exp.Alias) else node.parent
    return isinstance(around, exp.Select)


def _is_relation(node: Node) -> bool:
    while isinstance(node.parent, exp.Subquery | exp.SetOperation):
        node = node.parent
    return isinstance(node.parent, exp.From | exp.Join | exp.CTE | exp.Lateral | None)


def _refused(text: Text, part: str, place: Any, around: Node | None) -> Exception:
    what, todo = INSTEAD.get(part, (part.replace("_", " ").upper(), "Leave it out, or write it with verbs."))
    return text.wrong(place if isinstance(place, exp.Expression) else around, f"a stream has no {what}.", todo)
