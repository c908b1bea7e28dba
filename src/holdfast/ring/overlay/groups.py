"""Groups, as in Scribe: a tree for each, made of the routes from its members to the node nearest to the group's id.

A tree is nothing but each node's next hop towards the group's id, so it cannot differ from the routing for long:
every tick each node of the tree compares, and moves to another parent if the hop has changed. Children report to
their parents again and again and are forgotten when they stop; when an inner node dies its children find the failed
hop, take another, and are back. Soft state costs a message per edge every few ticks, and needs no repair protocol.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.ring.overlay.core import Core, Seen
from holdfast.ring.overlay.instructions import Hear
from holdfast.ring.overlay.messages import Attach, Cast, Detach, MessageId
from holdfast.ring.overlay.view import View


class Tree:
    """This node's place in the tree of one group."""

    __slots__ = ("children", "former", "member", "parent")

    def __init__(self) -> None:
        self.parent: int | None = None
        """None for the root, and for someone between two parents."""
        self.former: int | None = None
        """The parent before, kept for a tick: what is on its way down must not fall between the two."""
        self.children: dict[int, int] = {}
        """Child → the tick of its last report."""
        self.member = False


class Groups:
    __slots__ = ("_core", "_seen", "_view", "trees")

    def __init__(self, core: Core, view: View) -> None:
        self._core = core
        self._view = view
        self._seen = Seen(core)
        self.trees: dict[int, Tree] = {}

    # --------------------------------------------------------------------------------------------------- trees

    def subscribe(self, group: int) -> None:
        self._tree(group).member = True

    def unsubscribe(self, group: int) -> None:
        if group in self.trees:
            self.trees[group].member = False
            self._tidy(group)

    def attached(self, child: int, group: int) -> None:
        self._tree(group).children[child] = self._core.tick

    def detached(self, child: int, group: int) -> None:
        if group in self.trees and self.trees[group].children.pop(child, None) is not None:
            self._tidy(group)

    def gone(self, peer: int) -> None:
        """The peer is lost or has left."""
        for group in list(self.trees):
            tree = self.trees[group]
            if tree.former == peer:
                tree.former = None
            if tree.parent == peer:
                tree.parent = None
                self._find_parent(group, tree)
            if tree.children.pop(peer, None) is not None:
                self._tidy(group)

    def relatives(self) -> set[int]:
        """Parents and children in all trees."""
        return {
            one for tree in self.trees.values() for one in (tree.parent, tree.former, *tree.children) if one is not None
        }

    def _tree(self, group: int) -> Tree:
        tree = self.trees.get(group)
        if tree is None:
            tree = self.trees[group] = Tree()
            if self._core.joined:
                self._find_parent(group, tree)
        return tree

    def _find_parent(self, group: int, tree: Tree) -> None:
        hop, _ = self._view.next_hop(group)
        if hop == tree.parent:
            return
        self._release(group, tree, hop)
        tree.former, tree.parent = tree.parent, hop
        if hop is not None:
            self._core.send(hop, Attach(group))

    def _release(self, group: int, tree: Tree, parent: int | None) -> None:
        """Takes leave of the former parent, unless it is the one again."""
        if tree.former is not None and tree.former != parent:
            self._core.send(tree.former, Detach(group))
        tree.former = None

    def _tidy(self, group: int) -> None:
        """Whoever is neither member nor between members leaves the tree."""
        tree = self.trees[group]
        if not tree.member and not tree.children:
            self._release(group, tree, tree.parent)
            if tree.parent is not None:
                self._core.send(tree.parent, Detach(group))
            del self.trees[group]

    def tick(self) -> None:
        core = self._core
        for group in list(self.trees):
            tree = self.trees[group]
            oldest = core.tick - 3 * core.settings.refresh_every
            if any(at < oldest for at in tree.children.values()):
                tree.children = {child: at for child, at in tree.children.items() if at >= oldest}
            self._release(group, tree, tree.parent)
            self._find_parent(group, tree)
            if tree.parent is not None and core.due(core.settings.refresh_every):
                core.send(tree.parent, Attach(group))
            self._tidy(group)

    def unreached_parent(self, parent: int, group: int) -> None:
        """The report did not arrive: next tick finds another parent, or the same one again."""
        tree = self.trees.get(group)
        if tree is not None and tree.parent == parent:
            tree.parent = None

    # ----------------------------------------------------------------------------------------------- multicast

    def cast(self, group: int, id_: MessageId, payload: object, sender: int | None) -> None:
        """To this node, if it is a member, and on to its children; once, however often it comes."""
        if not self._seen.first(id_):
            return
        tree = self.trees.get(group)
        if tree is None:
            return
        if tree.member:
            self._core.out.append(Hear(group, id_, payload))
        for child in self.below(group, sender):
            self._core.send(child, Cast(group, id_, payload))

    def below(self, group: int, sender: int | None) -> Iterator[int]:
        tree = self.trees.get(group)
        if tree is not None:
            yield from [child for child in tree.children if child != sender]
