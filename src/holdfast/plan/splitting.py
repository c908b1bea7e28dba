"""A stage beside an equal one, and readers that go over to it: what a plan says of the one, said of the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from holdfast.operators.bounds import Columns, together
from holdfast.operators.stage import StagePlan, TimePlan
from holdfast.plan.compile import PlannedStage, StageInput
from holdfast.plan.graph import Loop, Node, Output, Sink, Source, Stage, Step, Union
from holdfast.plan.stage_names import renamed


class Instead:
    """``new`` in the place of ``old``, wherever somebody reads it."""

    def __init__(self, old: Stage, new: Stage) -> None:
        self.old, self.new = old, new
        self._nodes: dict[Node, Node] = {}

    def beside(self, planned: PlannedStage) -> PlannedStage:
        """The old stage as the new one: it reads what it read."""
        made = self._named(planned, {self.old.name: self.new.name}, own=True)
        return replace(made, node=self.new)

    def reader(self, planned: PlannedStage) -> PlannedStage:
        """A stage that has read the old one, or follows its watermark."""
        names = {self.old.name: self.new.name}
        inputs = tuple(replace(item, node=self.node(item.node)) for item in planned.inputs)
        return self._named(replace(planned, inputs=inputs), names)

    def sink(self, sink: Sink) -> Sink:
        node = self.node(sink.node)
        return sink if node is sink.node else replace(sink, node=node)

    def node(self, node: Node) -> Node:
        found = self._nodes.get(node)
        if found is None:
            found = self._nodes[node] = self._made(node)
        return found

    def _made(self, node: Node) -> Node:
        match node:
            case Output():
                return replace(node, stage=self.new) if node.stage is self.old else node
            case Step():
                parent = self.node(node.parent)
                return node if parent is node.parent else replace(node, parent=parent)
            case Union():
                left, right = self.node(node.left), self.node(node.right)
                same = left is node.left and right is node.right
                return node if same else replace(node, left=left, right=right)
            case Source() | Loop():
                return node

    def _named(self, planned: PlannedStage, names: Mapping[str, str], *, own: bool = False) -> PlannedStage:
        before = planned.plan
        times = {
            name: _time(name, names, before.name if own else None)
            for name in (*before.time.observed, *(name for item in planned.inputs for _, name in item.observed))
        }
        follows = before.time if own else _followed(before, names)
        plan = renamed(before, names)
        plan = replace(plan, time=replace(follows, observed=tuple(times[name] for name in before.time.observed)))
        inputs = tuple(self._input(item, plan, times) for item in planned.inputs)
        bounds = {port: _bounds(columns, names) for port, columns in planned.bounds.items()}
        return replace(planned, plan=plan, inputs=inputs, bounds=bounds)

    def _input(self, item: StageInput, plan: StagePlan, times: Mapping[str, str]) -> StageInput:
        observed = []
        for leaf, name in item.observed:
            now = self.node(leaf)
            observed.append((now if isinstance(now, Source | Output) else leaf, times[name]))
        return replace(item, plan=plan, observed=tuple(observed))


def _time(name: str, names: Mapping[str, str], own: str | None) -> str:
    """Largest event times are called by the stage that takes them, the input, and where they come from. All but the
    middle may have strokes."""
    for old, new in names.items():
        if own == old and name.startswith(f"{old}/"):
            return f"{new}{name[len(old) :]}"
        if own is None and name.endswith(f"/{old}"):
            return f"{name[: -len(old)]}{new}"
    return name


def _followed(plan: StagePlan, names: Mapping[str, str]) -> TimePlan:
    time = plan.time
    follows = tuple(names.get(name, name) for name in time.follows)
    return replace(time, follows=follows, opened=tuple(names.get(name, name) for name in time.opened))


def _bounds(columns: Columns, names: Mapping[str, str]) -> Columns:
    return {
        column: together(tuple(replace(one, stage=names.get(one.stage, one.stage)) for one in bounds))
        for column, bounds in columns.items()
    }
