"""From the user's words to the spec of a stage: one function a kind.

All of them are checked against the schema of the rows they will see, so that a misspelt column is an error on the line
that has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from holdfast.errors import PlanError
from holdfast.invariants import some
from holdfast.operators.spec import AggregateSpec, StageSpec
from holdfast.operators.spec import Column as PlainColumn
from holdfast.plan.aggregate import Aggregate
from holdfast.plan.compile import PlannedStage
from holdfast.plan.draft import Draft, DraftInput
from holdfast.plan.frames import Given
from holdfast.plan.graph import updating
from holdfast.plan.types import aggregate_result_type

if TYPE_CHECKING:
    from holdfast.operators.distinct import DistinctSpec
    from holdfast.operators.join import JoinSpec
    from holdfast.operators.lookup import LookupSpec
    from holdfast.operators.process import ProcessSpec
    from holdfast.operators.session import SessionSpec
    from holdfast.operators.top_k import TopKSpec
    from holdfast.operators.window import WindowSpec
    from holdfast.operators.window_top_k import WindowTopKSpec


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
