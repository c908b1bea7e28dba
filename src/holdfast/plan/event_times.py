"""Where a stage's event times can be seen before its filters have dropped any row.

A watermark is about how far a source has come, not about which of its rows a stage wants: a selective filter must not
hold it back. So the largest event time is taken where its column first is, upstream of the filters, by a step that only
looks (``see``). Evaluating the filters late instead would have later steps meet rows that they were guarded from.
Behind a step that makes the column, or that may make any column (``transform``), the largest time is taken there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holdfast.plan.graph import Loop, Node, Output, Source, Step, Union

See = Callable[[Node, str], Step]
"""Puts a look at a column on top of a node."""


def filtered(node: Node) -> bool:
    """Whether a step on the way may drop rows."""
    match node:
        case Source() | Output() | Loop():
            return False
        case Step():
            return node.filters or filtered(node.parent)
        case Union():
            return filtered(node.left) or filtered(node.right)


def watched(node: Node, column: str, see: See, *, drops: bool = False) -> Node:
    """``node`` with looks at ``column`` wherever filters come later (``drops``: some come after ``node``)."""
    match node:
        case Source() | Output() | Loop():
            return see(node, column) if drops else node
        case Step():
            before = node.before(column)
            if before is None:
                return see(node, column) if drops else node
            return replace(node, parent=watched(node.parent, before, see, drops=drops or node.filters))
        case Union():
            left = watched(node.left, column, see, drops=drops)
            return replace(node, left=left, right=watched(node.right, node.across[column], see, drops=drops))
