"""A stage on its way from what a user asked for to what runs: its inputs, its place, its watermark.

What it does with its rows is a spec, which its kind makes of the draft (``operators.draft``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.errors import PlanError
from holdfast.operators.bounds import Bound, Bounds, Columns, Reading, together
from holdfast.operators.late import LATE
from holdfast.operators.spec import Column as PlainColumn
from holdfast.operators.spec import Spec
from holdfast.operators.stage import InputPlan, StagePlan, TimePlan
from holdfast.plan.bounds import TIMES, bounds_of, traced
from holdfast.plan.compile import PlannedStage, StageInput, Values, key_columns
from holdfast.plan.frames import DIFF, Expression, Frame, Given
from holdfast.plan.graph import Loop, Node, Output, Source, Stage, StageRows, leaves, loops, outputs, updating


@dataclass
class DraftInput:
    """One input: its rows and, where it has one, the column with their event time."""

    node: Node
    frame: Frame
    given: tuple[Given, ...]
    keys: tuple[PlainColumn, ...]
    key_values: tuple[Expression, ...]
    values: Values
    time: int | None = None
    time_column: str | None = None
    """Its name, where it is a column as it is and no expression."""

    @property
    def columns(self) -> list[str]:
        return [name for name in self.frame.columns if name != DIFF]

    @property
    def updating(self) -> bool:
        return updating(self.node)

    @property
    def key_names(self) -> list[str]:
        return [key.name for key in self.keys]

    @property
    def plain_keys(self) -> tuple[str | None, ...]:
        return tuple(self.frame.plain(key) for key in self.given)

    @property
    def times(self) -> frozenset[str]:
        """The columns that are the event time: the one that was named, and others that are the same unchanged."""
        if self.time_column is None:
            return frozenset()
        origin = traced(self.node, self.time_column)
        same = [] if None in origin.values() else [one for one in self.columns if traced(self.node, one) == origin]
        return frozenset({self.time_column, *same})

    def bounds(self, known: Mapping[Stage, PlannedStage]) -> Columns:
        """Those of its columns whose times the watermarks of the stages below bound."""
        if not outputs(self.node) or loops(self.node):  # what goes round is of any time
            return {}
        found = {}
        for column in self.columns:
            below = [
                known[leaf.stage].bounds.get(leaf.port, {}).get(name or "")
                for leaf, name in traced(self.node, column).items()
                if isinstance(leaf, Output)
            ]
            if None not in below:
                found[column] = together(*below)  # type: ignore[arg-type]
        return found


@dataclass
class Draft:
    name: str
    inputs: list[DraftInput]
    ansi: bool
    lateness: int = 0
    ahead: int | None = None
    ports: list[str] = field(default_factory=lambda: [""])
    called: str = ""
    """What the drawing calls it; ``name`` is what the store does."""
    made_name: bool = False
    after: Stage | None = None
    """A stage that must have applied the epoch before this one does, though no row of it comes here."""
    label: str = ""
    """What people call it; "": as its kind does."""

    @staticmethod
    def of(name: str, rows: Sequence[tuple[Node, Frame, tuple[Given, ...]]], *, ansi: bool) -> Draft:
        inputs = []
        for node, frame, keys in rows:
            found = key_columns(name, keys, frame)
            plain = tuple(PlainColumn(key.name, key.type.simpleString()) for key in found)
            inputs.append(DraftInput(node, frame, keys, plain, tuple(key.value for key in found), Values(frame, name)))
        for item in inputs:
            if len({type(leaf) for leaf in leaves(item.node) if not isinstance(leaf, Loop)}) > 1:
                raise PlanError(
                    f"An input of stage '{name}' mixes rows of sources with rows of stages.",
                    safe="Nothing was started.",
                    todo="Union sources before key_by, or outputs of stages after it.",
                )
        return Draft(name, inputs, ansi)

    @property
    def updating(self) -> bool:
        return any(item.updating for item in self.inputs)

    def take_time(self, given: Given | None, port: int = 0) -> int | None:
        """The event time column of an input, as one of its values."""
        if given is None:
            return None
        item = self.inputs[port]
        kind = item.values.kind(given, "event time")
        if kind not in TIMES:
            raise PlanError(
                f"The event time of stage '{self.name}' has type {kind}.",
                safe="Nothing was started.",
                todo="Use a timestamp column; cast it before with with_column.",
            )
        item.time = item.values.add(given, "event time")
        item.time_column = item.frame.plain(given)
        return item.time

    def finish(
        self, spec: Spec, known: Mapping[Stage, PlannedStage], number: int
    ) -> tuple[Stage, StagePlan, tuple[StageInput, ...]]:
        """The stage as it runs. Its inputs are numbered from ``number`` on."""
        below = [leaf.stage for item in self.inputs for leaf in outputs(item.node)]
        below += [self.after] if self.after is not None else []
        level = 1 + max((known[stage].plan.level for stage in below), default=0)
        places, observed, seen = [], [], []
        follows: Bounds = ()
        for port, item in enumerate(self.inputs):
            places.append(InputPlan(level if outputs(item.node) else 1, number + port))
            mine = []
            for leaf in dict.fromkeys(leaves(item.node)):
                if isinstance(leaf, Loop):
                    continue  # rows that go round say nothing of how far time has come
                if isinstance(leaf, Output) and known[leaf.stage].timed:
                    mark = (Bound(leaf.stage.name),) if item.time is None else self._bounds(item, leaf, known)
                    follows = together(follows, mark)
                elif item.time is not None:
                    name = leaf.name if isinstance(leaf, Source) else leaf.stage.name
                    mine.append((leaf, f"{self.name}/{port}/{name}"))
            observed += [name for _, name in mine]
            seen.append(tuple(mine))
        timed = bool(observed) or all(
            isinstance(leaf, Output) and known[leaf.stage].timed
            for item in self.inputs
            for leaf in leaves(item.node)
            if not isinstance(leaf, Loop)
        )
        time = TimePlan()
        if timed and spec.timed:
            names, holds = tuple(one.stage for one in follows), tuple(one.hold for one in follows)
            opened = tuple(one.stage for one in follows if one.open)
            time = TimePlan(tuple(observed), names, self.lateness, holds, opened)
        plan = StagePlan(self.name, level, tuple(places), spec, time)
        node = Stage(self.name, tuple(StageRows(item.node, item.given) for item in self.inputs))
        inputs = tuple(
            StageInput(
                plan,
                place,
                item.node,
                item.key_values,
                tuple(item.values.columns),
                None if item.time is None else f"v{item.time}",
                mine,
                self.ahead,
                item.time_column,
                "" if item.time is None else item.values.plain[item.time].name,
            )
            for item, place, mine in zip(self.inputs, places, seen, strict=True)
        )
        return node, plan, inputs

    def bounds(self, made: PlannedStage, known: Mapping[Stage, PlannedStage]) -> dict[str, Columns]:
        """Which columns of what it puts out may be taken as time."""
        if not made.timed:
            return {}
        ports = {
            port: [field.name for field in schema.fields if field.dataType.simpleString() in TIMES]
            for port, schema in made.outputs.items()
        }
        given = [Reading(item.bounds(known), item.times, item.plain_keys) for item in self.inputs]
        return bounds_of(self.name, made.plan.operator, given, ports)

    def _bounds(self, item: DraftInput, leaf: Output, known: Mapping[Stage, PlannedStage]) -> Bounds:
        """How far the watermark of a stage below holds for the column that is taken as time here."""
        column = None if item.time_column is None else traced(item.node, item.time_column)[leaf]
        found = None if column is None else known[leaf.stage].bounds.get(leaf.port, {}).get(column)
        if found is None:
            raise PlanError(
                f"Stage '{self.name}' cannot take {_shown(column, item)} as its event time: the watermark of "
                f"'{leaf.stage.name}' says nothing about it, so rows that are in time there would be late here.",
                safe="Nothing was started.",
                todo=_usable(item.bounds(known), known[leaf.stage]),
            )
        if leaf.port == LATE and not self.lateness:
            raise PlanError(
                f"Stage '{self.name}' reads the late rows of '{leaf.stage.name}', and would call all of them late.",
                safe="Nothing was started.",
                todo="Say how far behind they may be: lateness='1 day', say.",
            )
        return found


def _shown(column: str | None, item: DraftInput) -> str:
    named = f"'{item.time_column}'" if item.time_column is not None else "this expression"
    return named if column is not None or item.time_column is None else f"{named}, which is computed on the way,"


def _usable(columns: Columns, below: PlannedStage) -> str:
    if columns:
        return f"Take {' or '.join(map(repr, sorted(columns)))}, unchanged; select may give it another name."
    return (
        f"No column of '{below.plan.name}' here is bounded by its watermark. Take the time before it, or go by windows "
        "and their window_end (docs/operators.md has what each verb offers)."
    )
