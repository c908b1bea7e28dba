"""Gathering: a question goes down a group's tree, the answers come up, combined at every inner node (ELF §2.3).

A child counts once, under the parent that asked it first; should another parent ask too, because the tree was being
repaired, it gets an empty part. So nobody is ever counted twice, and whoever is lost on the way makes the result not
``whole``: the one who asked decides whether to ask again.
"""

from __future__ import annotations

from typing import Any

from holdfast.ring.overlay.core import Core, Seen
from holdfast.ring.overlay.groups import Groups
from holdfast.ring.overlay.instructions import Answer, Gathered
from holdfast.ring.overlay.messages import Ask, MessageId, Part, Result


class Gathering:
    """One question at one node: who has not answered yet, and what there is so far."""

    __slots__ = ("members", "parent", "since", "value", "waiting", "whole")

    def __init__(self, parent: int | None, waiting: set[int], since: int) -> None:
        self.parent = parent
        self.waiting = waiting
        self.since = since
        self.value: Any = None
        self.members = 0
        self.whole = True


class Gathers:
    __slots__ = ("_asked", "_core", "_groups", "_open", "_seen")

    def __init__(self, core: Core, groups: Groups) -> None:
        self._core = core
        self._groups = groups
        self._seen = Seen(core)
        self._open: dict[MessageId, Gathering] = {}
        self._asked: dict[MessageId, tuple[int, Any, int]] = {}
        """Questions of this node: group, question, and when."""

    def start(self, id_: MessageId, group: int, question: Any) -> None:
        self._asked[id_] = group, question, self._core.tick

    def ask(self, message: Ask, parent: int | None) -> None:
        """A question from above; without a parent this node is the root."""
        core, id_ = self._core, message.id
        if not self._seen.first(id_):
            known = self._open.get(id_)
            if parent is not None and (known is None or known.parent != parent):
                core.send(parent, Part(id_, None, 0, whole=True))
            return
        children = list(self._groups.below(message.group, parent))
        gathering = self._open[id_] = Gathering(parent, set(children), core.tick)
        for child in children:
            core.send(child, message)
        tree = self._groups.trees.get(message.group)
        if tree is not None and tree.member:
            gathering.waiting.add(core.id)
            core.out.append(Answer(message.group, id_, message.question))
        self._end_if_done(id_, gathering)

    def answered(self, id_: MessageId, value: Any) -> None:
        self.part(self._core.id, Part(id_, value, 1, whole=True))

    def part(self, sender: int, message: Part) -> None:
        gathering = self._open.get(message.id)
        if gathering is None or sender not in gathering.waiting:
            return  # late, doubled, or given up
        gathering.waiting.discard(sender)
        if message.members:
            combine = self._core.combine
            gathering.value = combine(gathering.value, message.value) if gathering.members else message.value
            gathering.members += message.members
        gathering.whole &= message.whole
        self._end_if_done(message.id, gathering)

    def gone(self, peer: int) -> None:
        for id_, gathering in list(self._open.items()):
            if peer in gathering.waiting:
                gathering.waiting.discard(peer)
                gathering.whole = False
                self._end_if_done(id_, gathering)

    def _end_if_done(self, id_: MessageId, gathering: Gathering) -> None:
        if gathering.waiting:
            return
        del self._open[id_]
        core, value, members, whole = self._core, gathering.value, gathering.members, gathering.whole
        if gathering.parent is not None:
            core.send(gathering.parent, Part(id_, value, members, whole))
        elif id_[0] == core.id:
            self.result(Result(id_, value, members, whole))
        else:
            core.send(id_[0], Result(id_, value, members, whole))

    def result(self, message: Result) -> None:
        found = self._asked.pop(message.id, None)
        if found:
            group, question, _ = found
            self._core.out.append(Gathered(message.id, group, question, message.value, message.members, message.whole))

    def tick(self) -> None:
        tick, within = self._core.tick, self._core.settings.gather_within
        for id_, gathering in list(self._open.items()):
            if tick - gathering.since >= within:
                gathering.whole = False
                gathering.waiting.clear()
                self._end_if_done(id_, gathering)
        for id_, (_, _, since) in list(self._asked.items()):
            if tick - since >= 2 * within:
                self.result(Result(id_, None, 0, whole=False))
