"""Whether a graph with loops is one that can run, and what their rows are in terms of. Pure.

A loop is an edge from an epoch to the next one. Without these edges the graph has no circle, because stages are drawn
one on top of the other; and whoever reads a loop has rows from elsewhere too, or nothing would ever go round.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from holdfast.errors import PlanError
from holdfast.invariants import some
from holdfast.plan.compile import Plan, PlannedStage
from holdfast.plan.graph import Loop, Node, Output, Sink, Source, Stage, leaves, loops
from holdfast.wire.codec import to_plain

_SAFE = "Nothing was started."


def check(drawn: Iterable[Loop], stages: Sequence[PlannedStage], sinks: Sequence[Sink]) -> None:
    """Raises where a loop is not closed, is read by nobody, or is all that its reader has."""
    closed = {sink.closes for sink in sinks if sink.closes is not None}
    read = {loop for stage in stages for item in stage.inputs for loop in loops(item.node)}
    for loop in drawn:
        if loop not in closed:
            raise PlanError(
                f"Loop '{loop.name}' is never closed: it would have no rows.",
                safe=_SAFE,
                todo="Say whose rows go round: loop.close(stream).",
            )
        if loop not in read:
            raise PlanError(
                f"No stage reads loop '{loop.name}'.",
                safe=_SAFE,
                todo="Bring its rows to a stage (key_by), or do not draw it.",
            )
    fed: dict[Stage, bool] = {}
    known = {stage.node: stage for stage in stages}
    for stage in stages:
        if not _fed(stage, known, fed, []):
            name = next(loop.name for item in stage.inputs for loop in loops(item.node))
            raise PlanError(
                f"Stage '{stage.plan.name}' reads loop '{name}' and nothing else: no row would ever come to it.",
                safe=_SAFE,
                todo="Give it rows of a source or of another stage too: rows.union(loop), or a join of both.",
            )


def _fed(stage: PlannedStage, known: dict[Stage, PlannedStage], fed: dict[Stage, bool], above: list[Stage]) -> bool:
    """Whether rows of a source can reach a stage without going round: a search from the stage down, depth first."""
    if stage.node in above:
        raise PlanError(f"Stage '{stage.plan.name}' stands on itself.", safe=_SAFE, todo="Use job.loop(…) for that.")
    if stage.node not in fed:
        below = [leaf for item in stage.inputs for leaf in leaves(item.node)]
        above.append(stage.node)
        fed[stage.node] = any(_reached(leaf, known, fed, above) for leaf in below)
        above.pop()
    return fed[stage.node]


def _reached(leaf: Node, known: dict[Stage, PlannedStage], fed: dict[Stage, bool], above: list[Stage]) -> bool:
    match leaf:
        case Source():
            return True
        case Output():
            return leaf.stage not in known or _fed(known[leaf.stage], known, fed, above)
    return False


def layout_of(plan: Plan, slices: int) -> str:
    """What the rows of loops are in terms of; "": there are no loops. Functions may be others, as with blocks."""
    said = []
    for sink in plan.closing:
        name = some(sink.closes, "it closes one").name
        for item in (item for items in plan.around(sink).values() for item in items):
            operator = item.plan.operator.mendable(above=True, null=True)
            place = [name, item.plan.name, item.place.number, item.place.level, operator.kind]
            said.append([place, to_plain(operator)])
    if not said:
        return ""
    told = json.dumps([slices, sorted(said, key=lambda one: str(one[0]))], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:32]
