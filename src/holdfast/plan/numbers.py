"""The numbers of inputs: given once in the life of a job, and never to another.

Segments know the rows of an input by its number (and the level that took them in). An input, which is a stage's name
and its place among the stage's inputs, keeps the number that it got, whatever comes and goes around it; one that is new
gets a number that no graph of the job has ever had, and so does a stage that was gone and comes back. So what was
logged under one graph means the same under a later one. What a job draws are numbers of a new one: those of its store
take their place (``numbered``).

In stores of old a number was a position among the inputs of its level, and had another meaning after a change. There
nothing can be mended; such a graph's numbers are kept from now on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.plan.stage_names import by_number

Input = tuple[str, int]
"""A stage, and which of its inputs."""


def numbered(asked: Sequence[StagePlan], history: Sequence[Sequence[StagePlan]]) -> dict[str, tuple[InputPlan, ...]]:
    """The inputs of every stage, with the numbers that they have in a store. ``history`` are the graphs that the job
    has had, the one of now last; without any the numbers are as they were drawn."""
    if not history:
        return {plan.name: plan.inputs for plan in asked}
    known = dict(_inputs(history[-1]))
    names = by_number(history[-1], asked)
    known |= {(names[name], at): place for (name, at), place in known.items() if name in names}
    meant: dict[InputPlan, set[Input]] = {}
    for input, place in (pair for graph in history for pair in _inputs(graph)):
        meant.setdefault(place, set()).add(input)
    unused = 1 + max((place.number for place in meant), default=-1)
    given: set[InputPlan] = set()
    found: dict[str, list[InputPlan]] = {plan.name: [] for plan in asked}
    for input, drawn in _inputs(asked):
        before = known.get(input)
        place = drawn if before is None else replace(drawn, number=before.number)
        # Only a stage that moved to another level, in a store of old, can find its number taken there.
        taken = place in given or (place != before and meant.get(place, set()) - {input})
        if before is None or taken:
            place, unused = replace(drawn, number=unused), unused + 1
        given.add(place)
        found[input[0]].append(place)
    return {name: tuple(places) for name, places in found.items()}


def positions(drawn: Sequence[StagePlan]) -> list[StagePlan]:
    """The stages with inputs numbered as stores of old had them: from 0 on each level."""
    taken: Counter[int] = Counter()
    found = []
    for plan in drawn:
        places = []
        for place in plan.inputs:
            places.append(replace(place, number=taken[place.level]))
            taken[place.level] += 1
        found.append(replace(plan, inputs=tuple(places)))
    return found


def _inputs(graph: Iterable[StagePlan]) -> Iterator[tuple[Input, InputPlan]]:
    for plan in graph:
        for at, place in enumerate(plan.inputs):
            yield (plan.name, at), place
