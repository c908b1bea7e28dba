"""``run.update``: one thing of a stage is another, from one epoch on.

What may be asked is the same for a job and for a hub. They differ in where filters over sources stand: a job has them
in Spark's query, where they are pushed into the source and cannot be replaced; a hub, and a job that was started with
``live_filters=True``, behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.cloudpickle import cloudpickle

from holdfast.api import recalled
from holdfast.api.keyed import StageStream
from holdfast.api.states import compiled, parameters_text
from holdfast.driver.live_changes import Update
from holdfast.errors import PlanError
from holdfast.plan.compile import PlannedStage
from holdfast.plan.graph import Source, leaves
from holdfast.plan.updates import drawn_as, refuse_more, refuse_unemptied
from holdfast.spark.analysis import asking_spark
from holdfast.spark.stream import read_alone

if TYPE_CHECKING:
    from holdfast.api.run import Run


def update(run: Run, stage: StageStream | str, given: Mapping[str, Any], *, reset: bool) -> Update:
    """For whoever holds the lock of the run's changes."""
    job, updates = run.job, run.job._updates
    public, planned = job._changeable(stage, run._plan)
    if (apart := job._apart(public, planned.node)) is not None:
        planned = apart.planned
    shown = replace(planned, plan=replace(planned.plan, name=public))  # as people know it
    said = {what: value for what, value in given.items() if value is not None}
    if len(said) > 1 or not (said or reset):
        raise PlanError(
            "run.update replaces one thing of a stage at a time.",
            safe="Nothing was changed.",
            todo="Give where=, function=, parameters= or k=; reset=True beside one of them, or alone.",
        )
    if reset:
        refuse_unemptied(shown)
    if "where" in said and run._plan.filters_in_stream:
        _refuse_streamed(public, planned)
    text = {what: _as_text(public, planned.plan.operator, what, value) for what, value in said.items()}
    was = updates.was.get(public) or drawn_as(planned)
    record = recalled.updated(public, was, text, reset=reset)
    recalled.changed(shown, record)
    made = recalled.changed(planned, record)
    if "k" in said and not reset:
        refuse_more(shown, said["k"])
    for item in made.inputs:
        frames = job._leaf_frames(item.node)
        with asking_spark(next(iter(frames.values())), f"change of '{public}'"):
            read_alone(item, frames)
    made.plan.build()
    following = updates.following(record)

    def taken() -> None:
        if apart is not None:
            apart.take(made)
        job._take_change(made, other=bool(said))
        if said:
            updates.was[public] = was
        updates.made = following

    name, told, change = planned.node.name, [recalled.text_of(record)], run._live.changes.change
    emptied = [name] if reset else []
    if apart is None:
        return change(job._plan_with(made, run._plan, following), told, record["by"], emptied, taken=taken)
    splits = {} if planned.plan.peers else {name: apart.old.name}  # a lookup holds nothing
    idle = [name] if run._left_out(public) else []
    return change(apart.plan(following, made), told, record["by"], emptied, splits, idle, taken)


def _refuse_streamed(public: str, planned: PlannedStage) -> None:
    sources = [leaf.name for item in planned.inputs for leaf in leaves(item.node) if isinstance(leaf, Source)]
    if sources:
        raise PlanError(
            f"The filter in front of stage '{public}' is in Spark's query over '{sources[0]}': rows that it drops, and "
            "columns that nobody asked for, do not come here, so no other filter could have them.",
            safe="Nothing was changed.",
            todo="Start the job with live_filters=True: then the query has every row and column of its sources, as a "
            "hub's has (hf.Hub), and filters stand behind it. Without, filters of stages over stages can be replaced, "
            "and function=, parameters=, k= and reset=True are for any stage.",
        )


def _as_text(public: str, spec: Any, what: str, value: Any) -> Any:
    if what == "k":
        return value
    if what == "parameters":
        return parameters_text(value)
    if what == "where":
        if not isinstance(value, str):
            raise PlanError(
                f"A filter that is changed while a job runs is SQL text, not {value!r}.",
                safe="Nothing was changed.",
                todo="Write where=\"price > 10 AND country = 'NZ'\": the store keeps it, for the next start.",
            )
        return value
    named = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    if cloudpickle._should_pickle_by_reference(named):  # type: ignore[no-untyped-call]
        raise PlanError(
            f"{named.__qualname__} is in module '{named.__module__}', and only its name would reach containers: "
            "they would go on with the code that they have.",
            safe="Nothing was changed.",
            todo=f"pyspark.cloudpickle.register_pickle_by_value({named.__module__}), then update again.",
        )
    pickled, states = compiled(value, None)
    if states and states != getattr(spec, "states", states):
        raise PlanError(
            f"The function for '{public}' declares other states than the one that is there.",
            safe="Nothing was changed.",
            todo="Declare the same ones; or stop the run, change the program, and start it.",
        )
    return recalled.as_function(pickled)
