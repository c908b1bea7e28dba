"""A stage on its way from what a user asked for to what runs: its inputs, its operator, its watermark.

Each kind of stage has one function here that turns the user's words into a spec. All of them are checked against the
schema of the rows they will see, so that a misspelt column is an error on the line that has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from holdfast.errors import PlanError
from holdfast.invariants import some
from holdfast.operators.build import Spec
from holdfast.operators.spec import AggregateSpec, StageSpec
from holdfast.operators.spec import Column as PlainColumn
from holdfast.operators.timed import LATE
from holdfast.plan.bounds import TIMES, Bound, Bounds, Columns, Reading, bounds_of, is_timed, together, traced
from holdfast.plan.compile import PlannedStage, StageInput, Values, key_columns
from holdfast.plan.frames import DIFF, Expression, Frame, Given
from holdfast.plan.graph import Node, Output, Source, Stage, StageRows, leaves, outputs, updating
from holdfast.plan.stage import InputPlan, StagePlan, TimePlan
from holdfast.spark.types import aggregate_result_type

if TYPE_CHECKING:
    from holdfast.api.aggregates import Aggregate
    from holdfast.operators.distinct import DistinctSpec
    from holdfast.operators.join import JoinSpec
    from holdfast.operators.lookup import LookupSpec
    from holdfast.operators.process import ProcessSpec
    from holdfast.operators.session import SessionSpec
    from holdfast.operators.top_k import TopKSpec
    from holdfast.operators.window import WindowSpec
    from holdfast.operators.window_top_k import WindowTopKSpec


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
        if not outputs(self.node):
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
    after: Stage | None = None
    """A stage that must have applied the epoch before this one does, though no row of it comes here."""

    @staticmethod
    def of(name: str, rows: Sequence[tuple[Node, Frame, tuple[Given, ...]]], *, ansi: bool) -> Draft:
        inputs = []
        for node, frame, keys in rows:
            found = key_columns(name, keys, frame)
            plain = tuple(PlainColumn(key.name, key.type.simpleString()) for key in found)
            inputs.append(DraftInput(node, frame, keys, plain, tuple(key.value for key in found), Values(frame, name)))
        for item in inputs:
            if len({isinstance(leaf, Source) for leaf in leaves(item.node)}) > 1:
                raise PlanError(
                    f"An input of stage '{name}' mixes rows of sources with rows of stages.",
                    safe="Nothing was started.",
                    todo="Union sources before key_by, or outputs of stages after it.",
                )
        return Draft(name, inputs, ansi)

    @property
    def updating(self) -> bool:
        return any(updating(item.node) for item in self.inputs)

    def take_time(self, on: Given | None, port: int = 0) -> int | None:
        """The event time column of an input, as one of its values."""
        if on is None:
            return None
        item = self.inputs[port]
        kind = item.values.kind(on, "event time")
        if kind not in TIMES:
            raise PlanError(
                f"The event time of stage '{self.name}' has type {kind}.",
                safe="Nothing was started.",
                todo="Use a timestamp column; cast it before with with_column.",
            )
        item.time = item.values.add(on, "event time")
        item.time_column = item.frame.plain(on)
        return item.time

    def finish(
        self, spec: Spec, known: Mapping[Stage, PlannedStage], numbers: Mapping[int, int]
    ) -> tuple[Stage, StagePlan, tuple[StageInput, ...]]:
        """The stage as it runs. ``numbers`` says how many inputs each level's intake has so far."""
        below = [leaf.stage for item in self.inputs for leaf in outputs(item.node)]
        below += [self.after] if self.after is not None else []
        level = 1 + max((known[stage].plan.level for stage in below), default=0)
        taken = dict(numbers)
        places, observed, seen = [], [], []
        follows: Bounds = ()
        for port, item in enumerate(self.inputs):
            at = level if outputs(item.node) else 1
            places.append(InputPlan(at, taken.get(at, 0)))
            taken[at] = taken.get(at, 0) + 1
            mine = []
            for leaf in dict.fromkeys(leaves(item.node)):
                if isinstance(leaf, Output) and known[leaf.stage].timed:
                    mark = (Bound(leaf.stage.name),) if item.time is None else self._bounds(item, leaf, known)
                    follows = together(follows, mark)
                elif item.time is not None:
                    name = leaf.name if isinstance(leaf, Source) else leaf.stage.name
                    mine.append((leaf, f"{self.name}/{port}/{name}"))
            observed += [name for _, name in mine]
            seen.append(tuple(mine))
        timed = bool(observed) or all(
            isinstance(leaf, Output) and known[leaf.stage].timed for item in self.inputs for leaf in leaves(item.node)
        )
        time = TimePlan()
        if timed and is_timed(spec):
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


# --- one function a kind ------------------------------------------------------------------------------------------


def aggregates_of(draft: Draft, wanted: Mapping[str, Aggregate]) -> tuple[AggregateSpec, ...]:
    values, specs = draft.inputs[0].values, []
    for name, aggregate in wanted.items():
        if aggregate.column is None:
            specs.append(AggregateSpec(name, aggregate.function, None, None, aggregate.options))
            continue
        role = f"aggregate '{name}'"
        kind = values.kind(aggregate.column, role)
        aggregate_result_type(aggregate.function, kind)
        number = values.add(aggregate.column, role, hashed=aggregate.function == "approx_distinct")
        where = None if aggregate.where is None else f"v{values.add(aggregate.where, role)}"
        specs.append(AggregateSpec(name, aggregate.function, f"v{number}", kind, aggregate.options, where))
    return tuple(specs)


def aggregate(draft: Draft, wanted: Mapping[str, Aggregate]) -> StageSpec:
    return StageSpec(draft.inputs[0].keys, aggregates_of(draft, wanted), draft.updating, draft.ansi)


def window(
    draft: Draft,
    wanted: Mapping[str, Aggregate],
    *,
    size: int,
    every: int,
    unit: Literal["event", "clock", "rows"],
    offset: int,
    on: Given | None,
    mode: str,
    early: int,
    keep_late: bool,
) -> WindowSpec:
    from holdfast.operators.window import WindowSpec

    specs = aggregates_of(draft, wanted)
    time = draft.take_time(on)
    return WindowSpec(
        keys=draft.inputs[0].keys,
        aggregates=specs,
        size=size,
        every=every,
        unit=unit,
        time=None if time is None else f"v{time}",
        offset=offset,
        mode=mode,
        early=early,
        late=_late_columns(draft, keep_late),
        updating_input=draft.updating,
        ansi=draft.ansi,
        values=tuple(draft.inputs[0].values.plain),
    )


def session(
    draft: Draft,
    wanted: Mapping[str, Aggregate],
    *,
    gap: int,
    unit: Literal["event", "clock"],
    on: Given | None,
    mode: str,
    keep_late: bool,
) -> SessionSpec:
    from holdfast.operators.session import SessionSpec

    _refuse_updating(draft, "a session window")
    specs = aggregates_of(draft, wanted)
    time = draft.take_time(on)
    return SessionSpec(
        keys=draft.inputs[0].keys,
        aggregates=specs,
        gap=gap,
        unit=unit,
        time=None if time is None else f"v{time}",
        mode=mode,
        late=_late_columns(draft, keep_late),
        ansi=draft.ansi,
        values=tuple(draft.inputs[0].values.plain),
    )


def _late_columns(draft: Draft, keep: bool) -> tuple[int, ...]:
    if not keep:
        return ()
    draft.ports.append("late")
    item = draft.inputs[0]
    return tuple(item.values.add(name, "late row") for name in item.columns if name not in item.key_names)


def join(
    draft: Draft,
    *,
    how: str,
    on: tuple[Given | None, Given | None],
    before: int | None,
    after: int | None,
) -> JoinSpec:
    from holdfast.operators.join import JoinSpec

    left, right = draft.inputs
    if [key.type for key in left.keys] != [key.type for key in right.keys]:
        raise PlanError(
            f"The keys of the two sides of '{draft.name}' have unlike types: "
            f"{', '.join(key.type for key in left.keys)} and {', '.join(key.type for key in right.keys)}.",
            safe="Nothing was started.",
            todo="Cast one side before key_by: equal values of unlike types have unlike hashes.",
        )
    numbers = []
    for port, item in enumerate(draft.inputs):
        draft.take_time(on[port], port)
        mine = [name for name in item.columns if name not in item.key_names]
        numbers.append(tuple(item.values.add(name, "column") for name in mine))
    return JoinSpec(
        keys=left.keys,
        left=tuple(left.values.plain),
        right=tuple(right.values.plain),
        left_out=numbers[0],
        right_out=numbers[1],
        how=how,
        left_time=left.time,
        right_time=right.time,
        before=before,
        after=after,
        updating=(updating(left.node), updating(right.node)),
        ansi=draft.ansi,
    )


def lookup(draft: Draft, peer: PlannedStage, *, how: str) -> LookupSpec:
    from holdfast.operators.lookup import LookupSpec

    _refuse_updating(draft, "a lookup")
    item = draft.inputs[0]
    held = peer.plan.operator
    if not isinstance(held, StageSpec):
        raise PlanError(
            f"Stage '{peer.plan.name}' cannot be looked into: it holds no single row for a key.",
            safe="Nothing was started.",
            todo="Look into a running aggregate (key_by(...).agg(...)); hf.last keeps the newest value of a key.",
        )
    if [key.type for key in item.keys] != [key.type for key in held.keys]:
        raise PlanError(
            f"The keys of '{draft.name}' and of '{peer.plan.name}' have unlike types: "
            f"{', '.join(key.type for key in item.keys)} and {', '.join(key.type for key in held.keys)}.",
            safe="Nothing was started.",
            todo="Cast before key_by: equal values of unlike types have unlike hashes.",
        )
    for name in item.columns:
        if name not in item.key_names:
            item.values.add(name, "column")
    draft.after = peer.node
    found = peer.plan.build().output_types()[len(held.keys) :]
    columns = tuple(PlainColumn(name, kind) for name, kind in found)
    return LookupSpec(item.keys, tuple(item.values.plain), peer.plan.name, columns, how)


def top_k(
    draft: Draft,
    *,
    k: int,
    by: Sequence[tuple[Given, bool]],
    ties: str,
    rank: str,
    final: bool,
    hidden_keys: bool,
) -> TopKSpec:
    from holdfast.operators.top_k import TopKSpec

    item = draft.inputs[0]
    order = _order(item, by, hidden_keys=hidden_keys)
    return TopKSpec(
        keys=item.keys,
        values=tuple(item.values.plain),
        order=order,
        k=k,
        ties=ties,
        rank=rank,
        updating_input=draft.updating,
        final_input=final,
        hidden_keys=hidden_keys,
    )


def window_top_k(
    draft: Draft,
    *,
    k: int,
    by: Sequence[tuple[Given, bool]],
    ties: str,
    rank: str,
    size: int,
    offset: int,
    on: Given,
) -> WindowTopKSpec:
    from holdfast.operators.window_top_k import WindowTopKSpec

    _refuse_updating(draft, "a top_k of windows")
    item = draft.inputs[0]
    time = draft.take_time(on)
    time = some(time, "these windows are in event time")
    order = _order(item, by)
    return WindowTopKSpec(item.keys, tuple(item.values.plain), order, k, time, size, offset, ties, rank)


def _order(
    item: DraftInput, by: Sequence[tuple[Given, bool]], *, hidden_keys: bool = False
) -> tuple[tuple[int, bool], ...]:
    """The columns to order by; all others come along."""
    order = tuple((item.values.add(value, "order"), descending) for value, descending in by)
    for name in item.columns:
        if hidden_keys or name not in item.key_names:
            item.values.add(name, "column")
    return order


def distinct(draft: Draft, *, on: Given | None, within: int | None, bloom: tuple[int, float] | None) -> DistinctSpec:
    from holdfast.operators.distinct import DistinctSpec

    _refuse_updating(draft, "distinct")
    item = draft.inputs[0]
    time = draft.take_time(on)
    for name in item.columns:
        if name not in item.key_names:
            item.values.add(name, "column")
    return DistinctSpec(item.keys, tuple(item.values.plain), time, within, bloom)


def process(
    draft: Draft,
    function: bytes,
    states: tuple[object, ...],
    produced: Mapping[str, tuple[PlainColumn, ...]],
    *,
    on: Given | None,
    rows: str,
    errors: str,
    drop_late: bool,
) -> ProcessSpec:
    from holdfast.operators.process import ProcessSpec

    _refuse_updating(draft, "process")
    item = draft.inputs[0]
    time = draft.take_time(on)
    for name in item.columns:
        if name not in item.key_names:
            item.values.add(name, "column")
    draft.ports += [port for port in produced if port] + (["errors"] if errors == "dead_letter" else [])
    return ProcessSpec(
        keys=item.keys,
        values=tuple(item.values.plain),
        time=time,
        function=function,
        states=states,  # type: ignore[arg-type]  # as the declarations gave them
        outputs=tuple(produced.items()),
        rows=rows,
        errors=errors,
        drop_late=drop_late,
    )


def _refuse_updating(draft: Draft, what: str) -> None:
    if draft.updating:
        raise PlanError(
            f"Stage '{draft.name}' is {what} over rows that can be taken back.",
            safe="Nothing was started.",
            todo="Make them final first: windows with mode='append' (the default) put out rows that stay.",
        )
