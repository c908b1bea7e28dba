"""Where a vertex stands in a tree, and whether the trees that all of them tell of are one whole tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Standing(NamedTuple):
    """A container's place in a group's tree, as its own node of the ring sees it at this moment."""

    root: bool
    """It is the nearest to the tree's key, member or not: what is routed to the tree ends here."""
    parent: str | None
    """None for the root, and for somebody between two parents."""
    children: tuple[str, ...]


NOWHERE = Standing(root=False, parent=None, children=())


def is_whole(standings: Mapping[str, Standing]) -> bool:
    """Container → its standing, of all that are there: is there one root, and do all belong to it by parents that know
    them? What is multicast then reaches everybody.

    >>> is_whole({"a": Standing(True, None, ("b",)), "b": Standing(False, "a", ())})
    True
    >>> is_whole({"a": Standing(True, None, ()), "b": Standing(False, "a", ())})
    False
    """
    roots = [name for name, one in standings.items() if one.root]
    if len(roots) != 1:
        return False
    reached, todo = {roots[0]}, [roots[0]]
    while todo:
        above = todo.pop()
        for child in standings[above].children:
            if child not in standings or standings[child].parent != above:
                return False  # of the past, or not there yet
            if child not in reached:
                reached.add(child)
                todo.append(child)
    return len(reached) == len(standings)
