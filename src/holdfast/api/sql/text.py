"""The text of a query: cut by the positions of its tokens, rewritten in places, pointed at when something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from holdfast.errors import PlanError

SPAN = "span"
Node = exp.Expr
"""Whatever sqlglot makes of a part of the text."""
Span = tuple[int, int]


def span(node: Node) -> Span | None:
    """Where a node stands, from its first character to behind its last."""
    found = node.meta.get(SPAN)
    if found is not None:
        return found  # type: ignore[no-any-return]
    if "start" in node.meta:
        return node.meta["start"], node.meta["end"] + 1
    below = [one for child in node.iter_expressions() if (one := span(child)) is not None]
    return (min(start for start, _ in below), max(end for _, end in below)) if below else None


class Text:
    def __init__(self, text: str) -> None:
        self.text = text

    def cut(self, node: Node) -> str:
        """The user's own characters for a node."""
        start, end = self._span(node)
        return self.text[start:end]

    def rewritten(self, node: Node, put: Callable[[Node], str | None]) -> str:
        """The characters of a node, with what ``put`` says in the place of the nodes in it that it knows."""
        start, end = self._span(node)
        said, at = [], start
        for (first, last), new in sorted(self._replaced(node, put)):
            said += [self.text[at:first], new]
            at = last
        return "".join([*said, self.text[at:end]])

    def wrong(self, node: Node | Span | None, what: str, todo: str) -> PlanError:
        """An error that points at the place."""
        place = node if isinstance(node, tuple) else None if node is None else span(node)
        return PlanError(
            f"SQL: {what}" + ("" if place is None else f"\n{self.marked(place)}"),
            safe="Nothing was started.",
            todo=todo,
        )

    def marked(self, place: Span) -> str:
        """The line with the place, and carets below it."""
        start, end = place
        first = self.text.rfind("\n", 0, start) + 1
        last = self.text.find("\n", start)
        line = self.text[first:] if last < 0 else self.text[first:last]
        width = max(1, min(end, first + len(line)) - start)
        gap = "".join("\t" if letter == "\t" else " " for letter in line[: start - first])
        return f"    {line}\n    {gap}{'^' * width}"

    def _span(self, node: Node) -> Span:
        found = span(node)
        if found is None:
            raise self.wrong(
                node.find_ancestor(Node),
                f"'{node.sql('spark')}' is not understood where it stands.",
                "Write it in another way, or as a column of its own in a subquery.",
            )
        return found

    def _replaced(self, node: Node, put: Callable[[Node], str | None]) -> Iterator[tuple[Span, str]]:
        new = put(node)
        if new is not None:
            yield self._span(node), new
            return
        for child in node.iter_expressions():
            yield from self._replaced(child, put)


def quoted(name: str) -> str:
    """A column's name as Spark reads it in SQL, whatever it is: ``null`` is a name, too."""
    return f"`{name.replace('`', '``')}`"
