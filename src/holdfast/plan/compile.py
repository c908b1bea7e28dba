"""From the user's graph to what runs: levels, stage inputs, the job's fingerprint. What Spark runs of it is
``spark.stream``.

Rows of sources are taken in at the first level, for whichever level their stage is on; rows of stages at the level of
the stage they go to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from pyspark.sql.types import StructType

from holdfast.errors import PlanError
from holdfast.invariants import Impossible, some
from holdfast.operators.ahead import Cut, Partials
from holdfast.operators.bounds import Columns
from holdfast.operators.spec import Column as PlainColumn
from holdfast.operators.spec import Spec
from holdfast.operators.stage import InputPlan, StagePlan
from holdfast.plan.ddl import struct_of
from holdfast.plan.event_times import filtered, watched
from holdfast.plan.fingerprint import Fingerprint
from holdfast.plan.frames import Expression, Found, Frame, Given, S
from holdfast.plan.graph import (
    DIFF,
    Leaf,
    Loop,
    Node,
    Sink,
    Source,
    Stage,
    Step,
    evaluate,
    leaves,
    outputs,
    part,
    put_in,
    sources,
    updating,
)
from holdfast.plan.numbers import numbered
from holdfast.plan.types import key_type_error
from holdfast.state.hashing import can_hash
from holdfast.state.slice import MAIN, Mode

MAX_SLICES = 32_768
LEAF = "_s"
"""Tells rows of one source from those of another, where a stage's watermark is the least of both."""
Look = Callable[[S, str, Mapping[int, str]], S]
"""(rows, column of event times, the numbers of the leaves they come from with the names of their largest times)"""


@dataclass(frozen=True, eq=False)
class StageInput:
    """One input of a stage: where its rows come from and which columns of them Spark makes.

    ``time`` is the value column with the event time; ``observed`` names, for each leaf whose event times only this
    input sees, the largest of them. ``time_column`` is the event time as the steps before know it, if they do.
    """

    plan: StagePlan
    place: InputPlan
    node: Node
    keys: tuple[Expression, ...]
    values: tuple[Expression, ...]
    time: str | None = None
    observed: tuple[tuple[Leaf, str], ...] = ()
    ahead: int | None = None
    time_column: str | None = None
    time_name: str = ""
    """What to call the event time before people, however it is made."""

    @property
    def watches(self) -> bool:
        """Whether event times are to be seen ahead of filters."""
        return self.place.level == 1 and self.time_column is not None and filtered(self.node)

    @property
    def updating(self) -> bool:
        return updating(self.node)

    @property
    def mode(self) -> Mode:
        """What of the outputs below comes in."""
        return "changelog" if self.updating else "changed"

    @property
    def hashed_at_intake(self) -> bool:
        """Whether the intake computes the keys' hash itself, so that it need not cross from Spark."""
        return can_hash([key.type for key in self.plan.operator.keys])

    @cached_property
    def regular(self) -> StageInput | None:
        """Without the rows of loops; None: it has no others."""
        node = part(self.node, lambda leaf: not isinstance(leaf, Loop))
        return self if node is self.node else None if node is None else replace(self, node=node)

    def rows_for(self, loop: Loop, closing: Node) -> StageInput | None:
        """What it takes of a loop, out of the rows that close it. Loops say nothing of how far event time has come."""
        node = part(self.node, lambda leaf: leaf is loop)
        if node is None:
            return None
        return replace(self, node=put_in(node, loop, closing), observed=(), time_column=None)

    @cached_property
    def partials(self) -> Partials | None:
        """What Spark may aggregate of its rows before they cross to Python."""
        return self.plan.operator.partials()

    @cached_property
    def cut(self) -> Cut | None:
        """What a task may leave out of its rows, where it can tell keys by their hash."""
        return self.plan.operator.cut() if self.hashed_at_intake else None

    @property
    def hidden(self) -> tuple[str, ...]:
        return (*((DIFF,) if self.updating else ()), *((LEAF,) if len(self.observed) > 1 else ()))

    def evaluated(self, frames: Mapping[Node, S], look: Look[S]) -> S:
        """The rows behind the steps, from the frames of the leaves; ``look`` is shown rows that a filter may drop."""
        if not self.watches:
            return evaluate(self.node, frames, self.hidden)

        def see(node: Node, column: str) -> Step:
            below = set(leaves(node))
            mine = {at: name for at, (leaf, name) in enumerate(self.observed) if leaf in below}
            return Step(node, "look", lambda frame, _: look(frame, column, mine), filters=False)

        if self.time_column is None:
            raise Impossible("asked before: watches")
        return evaluate(watched(self.node, self.time_column, see), frames, self.hidden)


@dataclass(frozen=True, eq=False)
class PlannedStage:
    """A stage with everything that a driver knows of it."""

    node: Stage
    plan: StagePlan
    inputs: tuple[StageInput, ...]
    outputs: Mapping[str, StructType]
    state: StructType
    label: str
    bounds: Mapping[str, Columns] = field(default_factory=dict)
    """Of each output the columns that may be taken as time."""
    made_name: bool = False
    """Nobody has named it: its name says what it does."""

    @property
    def timed(self) -> bool:
        """Whether it has a watermark that its readers go by."""
        return bool(self.plan.time.observed or self.plan.time.follows)


@dataclass(frozen=True)
class Notes:
    """Of a hub: what its jobs call the stages that the store calls otherwise; and what was changed while it ran, beside
    what its program draws, to be done again at the next start."""

    names: Mapping[str, str] = field(default_factory=dict)
    updates: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, eq=False)
class Plan:
    """A job's stages and sinks in their order, whoever runs the steps between them."""

    planned: tuple[PlannedStage, ...]
    sinks: tuple[Sink, ...]

    @property
    def notes(self) -> Notes:
        """What a store is to keep of it beside its stages."""
        return Notes()

    @property
    def levels(self) -> int:
        return max(stage.plan.level for stage in self.planned)

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        return tuple(stage.plan for stage in self.planned)

    @property
    def made_names(self) -> list[str]:
        """Of the stages that nobody has named."""
        return [stage.plan.name for stage in self.planned if stage.made_name]

    def stage(self, name: str) -> PlannedStage:
        return next(stage for stage in self.planned if stage.plan.name == name)

    def sized(self, slices: int) -> Self:
        """The same plan for so many slices."""
        return self._with_operators(lambda spec: spec.sized(slices))

    def overflowing(self, how: str | None) -> Self:
        """The same plan with what a start says of results that are too large; None: Spark's ANSI mode does."""
        return self if how is None else self._with_operators(lambda spec: spec.overflowing(how))

    def _with_operators(self, change: Callable[[Spec], Spec]) -> Self:
        return replace(self, planned=tuple(with_operator(one, change(one.plan.operator)) for one in self.planned))

    def numbered(self, history: Sequence[Sequence[StagePlan]]) -> Self:
        """The same plan with its inputs numbered as in a store with that history of graphs."""
        places = numbered(self.stages, history)
        return replace(self, planned=tuple(_placed(stage, places[stage.plan.name]) for stage in self.planned))

    def in_order(self) -> Self:
        """The same plan with its inputs numbered in the order of its stages, for stages that were drawn apart."""
        found, number = [], 0
        for stage in self.planned:
            places = tuple(replace(item.place, number=number + at) for at, item in enumerate(stage.inputs))
            found.append(_placed(stage, places))
            number += len(places)
        return replace(self, planned=tuple(found))

    def intake(self, level: int) -> list[StageInput]:
        """The inputs whose rows are taken in at that level, in the order of their numbers; without rows of loops."""
        found = [item.regular for stage in self.planned for item in stage.inputs if item.place.level == level]
        return sorted((item for item in found if item is not None), key=lambda item: item.place.number)

    @property
    def closing(self) -> tuple[Sink, ...]:
        """What closes the loops."""
        return tuple(sink for sink in self.sinks if sink.closes)

    def around(self, sink: Sink) -> dict[int, list[StageInput]]:
        """Who takes the rows that close a loop, by the level at which they do in the next epoch."""
        found: dict[int, list[StageInput]] = {}
        loop = some(sink.closes, "it closes one")
        for item in (item for stage in self.planned for item in stage.inputs):
            if (mine := item.rows_for(loop, sink.node)) is not None:
                found.setdefault(item.place.level, []).append(mine)
        return {level: sorted(items, key=lambda item: item.place.number) for level, items in found.items()}

    @property
    def time_columns(self) -> dict[str, str]:
        """What the event time of each stage that has one is called."""
        found: dict[str, list[str]] = {}
        for item in (item for stage in self.planned for item in stage.inputs if item.time is not None):
            found.setdefault(item.plan.name, []).append(item.time_name)
        return {stage: "' or '".join(dict.fromkeys(names)) for stage, names in found.items()}

    @property
    def feeding(self) -> tuple[str, ...]:
        """What is fed back, by the names that functions have for it."""
        return tuple(sink.feeds for sink in self.sinks if sink.feeds)

    @property
    def stateless_sinks(self) -> list[Sink]:
        return [sink for sink in self.sinks if not outputs(sink.node)]

    def fingerprint(self) -> Fingerprint:
        """What a store must agree on with a job that opens it."""
        stages = {plan.name: {"level": plan.level, **plan.operator.described()} for plan in self.stages}
        return Fingerprint(tuple(source.name for source in self.places), stages)

    @property
    def places(self) -> list[Source]:
        """Sources in the order in which the streaming plan has them: Spark tells their offsets apart by that alone."""
        nodes = [item.node for item in self.intake(1)] + [sink.node for sink in self.stateless_sinks]
        return [leaf for node in nodes for leaf in sources(node)]


def with_operator(stage: PlannedStage, spec: Spec) -> PlannedStage:
    if spec is stage.plan.operator:
        return stage
    plan = replace(stage.plan, operator=spec)
    return replace(stage, plan=plan, inputs=tuple(replace(item, plan=plan) for item in stage.inputs))


def _placed(stage: PlannedStage, places: tuple[InputPlan, ...]) -> PlannedStage:
    plan = replace(stage.plan, inputs=places)
    inputs = (replace(item, plan=plan, place=place) for item, place in zip(stage.inputs, places, strict=True))
    return replace(stage, plan=plan, inputs=tuple(inputs))


class Values:
    """The value columns of one input, each once however many ask for it."""

    def __init__(self, frame: Frame, stage: str) -> None:
        self._frame = frame
        self._stage = stage
        self.columns: list[Expression] = []
        self.plain: list[PlainColumn] = []
        self._seen: dict[str, int] = {}

    def add(self, given: Given, role: str, *, hashed: bool = False) -> int:
        """The number of that column; ``hashed``: what crosses is its hash."""
        found = self._find(given, role)
        crossing = self._frame.hashed(found.value) if hashed else found.value
        number = self._seen.setdefault(str(crossing), len(self.columns))
        if number == len(self.columns):
            self.columns.append(crossing)
            self.plain.append(PlainColumn(found.name, found.type.simpleString()))
        return number

    def kind(self, given: Given, role: str) -> str:
        return self._find(given, role).type.simpleString()

    def _find(self, given: Given, role: str) -> Found:
        return self._frame.find(given, f"{role} of stage '{self._stage}'")


def key_columns(stage: str, keys: tuple[Given, ...], frame: Frame) -> list[Found]:
    found = [frame.find(key, f"key of stage '{stage}'") for key in keys]
    for key in found:
        problem = key_type_error(key.type)
        if problem is not None:
            raise PlanError(
                f"'{key.name}' cannot be a key of stage '{stage}': {problem}",
                safe="Nothing was started.",
            )
    return found


def planned_stage(
    node: Stage, plan: StagePlan, inputs: tuple[StageInput, ...], label: str, ports: tuple[str, ...] = (MAIN,)
) -> PlannedStage:
    """Build the operator once, so that it raises what it cannot do now and not in the first epoch."""
    operator = plan.build()
    produced = {port: struct_of(operator.output_types(port)) for port in ports}
    for names in ([one.name for one in schema.fields] for schema in produced.values()):
        refuse_doubles(names, plan.name)
    return PlannedStage(node, plan, inputs, produced, struct_of(operator.state_types()), label)


def refuse_doubles(names: list[str], stage: str) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise PlanError(f"Stage '{stage}' would put out two columns named {', '.join(map(repr, doubled))}.")
