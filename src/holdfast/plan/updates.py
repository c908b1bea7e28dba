"""A drawn stage with something of it replaced, in a way that no state or log depends on: its filter, its function.

What was replaced must be done again when the program that draws the stage starts anew, so it is plain data; and it is
only done again on the stage that it was made for (``drawn_as``): if the program draws another one by now, somebody has
to say which of the two is meant.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from dataclasses import replace

from pyspark import cloudpickle

from holdfast.errors import PlanError
from holdfast.invariants import some
from holdfast.plan.compile import PlannedStage, with_operator
from holdfast.plan.graph import Node, Step, steps

WHERE = "where"


def with_filter(stage: PlannedStage, condition: str) -> PlannedStage:
    """The filter nearest in front of it replaced; if there is none, one put there."""
    if len(stage.inputs) != 1:
        raise PlanError(
            f"Stage '{stage.plan.name}' has {len(stage.inputs)} inputs, and a filter is in front of one.",
            safe="Nothing was changed.",
            todo="Add a stage with the other filter, and remove this one.",
        )
    (item,) = stage.inputs
    if item.updating:
        raise PlanError(
            f"Stage '{stage.plan.name}' reads rows that can be taken back: by another filter it would be told to take "
            "back what it never got, or keep what is no more.",
            safe="Nothing was changed.",
            todo="Change the filter of the stage below; or stop, change, start with another name for this one.",
        )
    made = replace(item, node=_refiltered(item.node, condition) or _filter(item.node, condition))
    return replace(stage, inputs=(made,))


def _filter(node: Node, condition: str) -> Step:
    return Step(node, WHERE, _where(condition), before=lambda name: name, text=condition)


def _where(condition: str) -> Callable[..., object]:
    return lambda frame, _: frame.where(condition)


def _refiltered(node: Node, condition: str) -> Node | None:
    """None: there is no filter on the one way that rows come."""
    if not isinstance(node, Step):
        return None
    if node.label == WHERE:
        return replace(node, run=_where(condition), text=condition, epochal=False)
    parent = _refiltered(node.parent, condition)
    return None if parent is None else replace(node, parent=parent)


def with_function(stage: PlannedStage, function: bytes | None = None, parameters: str | None = None) -> PlannedStage:
    """It calls another function, or with other parameters; None: as it was."""
    spec = stage.plan.operator.calling(function, parameters)
    if spec is None:
        raise PlanError(
            f"Stage '{stage.plan.name}' is {stage.label}: it has no function, and no parameters.",
            safe="Nothing was changed.",
            todo="Only a stage of process(…) has; of any stage the filter in front of it can be replaced: where=.",
        )
    return with_operator(stage, spec)


def with_limit(stage: PlannedStage, limit: int) -> PlannedStage:
    """It shows so many rows of a group."""
    if stage.plan.operator.limit is None:
        raise PlanError(
            f"Stage '{stage.plan.name}' is {stage.label}: it has no k.",
            safe="Nothing was changed.",
            todo="Only a stage of top_k(…) has.",
        )
    if type(limit) is not int or limit < 1:
        raise PlanError(f"{limit!r} is no number of rows.", safe="Nothing was changed.", todo="Give k=1 or more.")
    return with_operator(stage, stage.plan.operator.limited(limit))


def refuse_more(stage: PlannedStage, limit: int) -> None:
    now = some(stage.plan.operator.limit, "it has one")
    if limit > now:
        raise PlanError(
            f"Stage '{stage.plan.name}' keeps the first {now}, so there is nothing that the first {limit} could be "
            "made of: what was behind them is gone.",
            safe="Nothing was changed.",
            todo=f"Begin anew with run.update(…, k={limit}, reset=True); or add a job with k={limit}, and remove this "
            "one.",
        )


def refuse_unemptied(stage: PlannedStage) -> None:
    """``reset`` takes back all that a stage has put out, as far as anybody would, and forgets it."""
    if any(item.updating for item in stage.inputs):
        raise PlanError(
            f"Stage '{stage.plan.name}' reads rows that can be taken back: once it is empty it would be told to take "
            "back what it has forgotten.",
            safe="Nothing was changed.",
            todo="Reset the stage below: what it takes back then empties this one, too.",
        )
    if not stage.plan.operator.empties:
        raise PlanError(
            f"Stage '{stage.plan.name}' is {stage.label} with results that are put out before they are final: what of "
            "them stands is not kept, so it cannot be taken back at once.",
            safe="Nothing was changed.",
            todo="Add a job with a stage like this one, and remove this job.",
        )


def drawn_as(stage: PlannedStage) -> str:
    """Equal for stages that were drawn alike, as far as it can be told from one start to the next."""
    filters = [[step.text for step in steps(item.node) if step.label == WHERE] for item in stage.inputs]
    spec = stage.plan.operator
    function = getattr(spec, "function", None)
    if isinstance(function, bytes):
        spec = some(spec.calling(_plain(function), None), "it has a function")
    return hashlib.sha256(repr((spec.essence(), filters)).encode()).hexdigest()


def _plain(function: bytes) -> bytes:
    """How a class is pickled depends on which of its parts are one object, and that changes when it is unpickled; from
    then on it stays."""
    pickled: bytes = cloudpickle.dumps(pickle.loads(function))  # type: ignore[no-untyped-call]
    return pickled
