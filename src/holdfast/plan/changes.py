"""What became of a job's graph: the one a store was written with beside the one it is opened with now.

Stages match by name, and within them aggregates and typed states do. A stage or an aggregate may come (it starts at
nothing) or go (its state is dropped). What would give the state that stays another meaning is a refusal: another key,
another type, another kind of operator, another size of window. Only what a spec says is seen: an aggregate over another
column of the same type is the same aggregate.

State is matched by names too: every column of every table of a stage has one (``tables_of``), so that ``mapping`` can
tell where a column of the new layout comes from. The refused way was to load the old state and fold it into new
operators: a copy is columns already, and each either stays as it is or is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.operators.accumulator import Accumulator
from holdfast.operators.aggregate import accumulator_of
from holdfast.operators.build import Spec, kind_of
from holdfast.operators.count_distinct import values_seen
from holdfast.operators.data import to_plain
from holdfast.operators.distinct import DistinctSpec
from holdfast.operators.process import ProcessSpec
from holdfast.operators.sameness import without_chance
from holdfast.operators.session import SessionSpec
from holdfast.operators.spec import AggregateSpec, StageSpec
from holdfast.operators.stage import StagePlan, TimePlan
from holdfast.operators.window import WindowSpec
from holdfast.state.typed import StateSpec, TypedStates

Aggregating = StageSpec | WindowSpec | SessionSpec

# Compared one by one below, or of no concern to the state: where values stand in the log, what is put out, and how.
_APART: Mapping[str, frozenset[str]] = {
    "aggregate": frozenset({"keys", "aggregates", "overflow"}),
    "window": frozenset({"keys", "aggregates", "values", "time", "late", "early", "overflow"}),
    "session": frozenset({"keys", "aggregates", "values", "time", "late", "overflow"}),
    "join": frozenset({"keys"}),
    "lookup": frozenset({"keys", "values", "peer", "found", "how"}),  # it holds nothing
    "top_k": frozenset({"keys", "rank", "hidden_keys"}),
    "window_top_k": frozenset({"keys", "rank"}),
    "distinct": frozenset({"keys", "values", "time"}),
    "process": frozenset({"keys", "values", "time", "function", "states", "outputs", "rows", "errors", "drop_late"}),
}
_COUNTS = ("count", "count_distinct", "approx_distinct")
_BY_VALUE = ("count_distinct", "approx_distinct")  # what they hold depends on the type of what came in
_SAID_OF_OVERFLOW = {
    "": "as Spark's ANSI mode has it from now on",
    "fail": "the epoch fails from now on",
    "null": "null from now on",
}
_ROWS = "(rows)"
_VALUES = "values of "  # the beginning of the names of tables that count_distinct has, followed by who shares them


@dataclass(frozen=True)
class Comparison:
    """``changes`` to tell people of; ``refusals``, line by line; ``converts``: the store's state or log is not in the
    terms of the new graph, even where there is nothing to tell.
    """

    changes: tuple[str, ...]
    refusals: tuple[str, ...]
    converts: bool


@dataclass(frozen=True)
class TableSource:
    """Where a table of the new layout comes from: the number of the old one and of its columns; None: from nothing."""

    table: int | None
    columns: tuple[int | None, ...]


# --- graphs ---------------------------------------------------------------------------------------------------------


def compare(
    stored: Sequence[StagePlan],
    asked: Sequence[StagePlan],
    stored_sources: Sequence[str] = (),
    asked_sources: Sequence[str] = (),
) -> Comparison:
    """What happened to the graph between a store and a job that opens it."""
    changes: list[str] = []
    refusals: list[str] = []
    known = ", ".join(sorted(set(stored_sources)))
    for name in dict.fromkeys(asked_sources):
        if name not in stored_sources:
            refusals.append(
                f"source '{name}': nothing in the store, which has {known} (it would be read from its beginning, and "
                "what the job had from it under another name would come twice)"
            )
    for name in dict.fromkeys(stored_sources):
        if name not in asked_sources:
            changes.append(f"source '{name}' is gone: how far it was read is forgotten")
    before, now = {plan.name: plan for plan in stored}, {plan.name: plan for plan in asked}
    for name, plan in before.items():
        if name not in now:
            changes.append(f"stage '{name}' is gone: its state is dropped")
            continue
        told, refused = _compare_stages(plan.operator, now[name].operator)
        changes += [f"stage '{name}': {line}" for line in told]
        refusals += [f"stage '{name}': {line}" for line in refused]
    for name, plan in now.items():
        if name in before:
            continue
        if _takes_back(plan.operator):
            refusals.append(
                f"stage '{name}': nothing in the store, {_shown_kind(plan.operator)} over rows that can be taken back "
                "now (it would be told to take back rows that it never got)"
            )
        else:
            changes.append(f"stage '{name}' is new: it starts empty, with the rows of the next epoch")
    converts = [_essence(plan) for plan in stored] != [_essence(plan) for plan in asked]
    return Comparison(tuple(changes), tuple(refusals), converts)


def mends(stored: Sequence[StagePlan], asked: Sequence[StagePlan], level: int) -> bool:
    """Whether all that differs are functions and states of ``process`` on that level or above it, or that results which
    are too large become null.

    Then an epoch that is prepared up to that level, and had raised there, is the same in terms of both graphs: its rows
    are for the same stages, and what the levels below made of it stays: where they could have failed by an overflow and
    did not, nothing of theirs becomes null. Outputs may not differ, because the sinks of an epoch are fixed with its
    first level.
    """
    nulls = {plan.name for plan in asked if getattr(plan.operator, "overflow", "") == "null"}

    def rest(plan: StagePlan) -> StagePlan:
        plain, spec = _essence(plan), plan.operator
        if isinstance(spec, Aggregating) and plan.name in nulls and (spec.overflow or spec.ansi):
            return replace(plain, operator=replace(spec, overflow="null"))
        if plan.level < level or not isinstance(spec, ProcessSpec):
            return plain
        return replace(plain, operator=replace(spec, function=b"", states=()))

    return [rest(plan) for plan in stored] == [rest(plan) for plan in asked]


def same_function(one: bytes, other: bytes) -> bool:
    """Whether two pickled functions are the same, as far as their bytes tell."""
    return without_chance(one) == without_chance(other)


def _essence(plan: StagePlan) -> StagePlan:
    """What log and state depend on."""
    spec = plan.operator
    if isinstance(spec, ProcessSpec):
        spec = replace(spec, function=without_chance(spec.function))
    return replace(plan, operator=spec, time=TimePlan())


# --- one stage ------------------------------------------------------------------------------------------------------


def _compare_stages(stored: Spec, asked: Spec) -> tuple[list[str], list[str]]:
    """(what to tell, what cannot be)"""
    if kind_of(stored) != kind_of(asked):
        return [], [f"{_shown_kind(stored)} in the store, {_shown_kind(asked)} now"]
    told: list[str] = []
    refused = _unlike("key columns", _shown_keys(stored), _shown_keys(asked))
    kind, before, now = kind_of(stored), to_plain(stored), to_plain(asked)
    for name in now:
        if name not in _APART[kind]:
            refused += _unlike(name, before.get(name), now[name])
    if isinstance(stored, WindowSpec) and isinstance(asked, WindowSpec):
        refused += _unlike("early results", bool(stored.early), bool(asked.early))
    if isinstance(stored, DistinctSpec) and isinstance(asked, DistinctSpec):
        refused += _unlike("type of the event time", _time_type(stored), _time_type(asked))
    if isinstance(stored, Aggregating) and isinstance(asked, Aggregating) and not refused:
        _compare_aggregates(stored, asked, told, refused)
        if stored.overflow != asked.overflow:
            told.append(f"results that are too large for their type: {_SAID_OF_OVERFLOW[asked.overflow]}")
    if isinstance(stored, ProcessSpec) and isinstance(asked, ProcessSpec):
        _compare_states(stored, asked, told, refused)
    return told, refused


def _compare_aggregates(stored: Aggregating, asked: Aggregating, told: list[str], refused: list[str]) -> None:
    before, now = accumulators_of(stored), accumulators_of(asked)
    for name, one in now.items():
        if name in before:
            if not _same_state(before[name], one):
                refused.append(
                    f"aggregate '{name}': {_shown_aggregate(before[name])} in the store, {_shown_aggregate(one)} now"
                )
        elif _takes_back(asked):
            refused.append(
                f"aggregate '{name}': nothing in the store, {_shown_aggregate(one)} now (its input takes rows back, "
                "and those from before never went into it)"
            )
        else:
            zero = "0" if one.spec.function in _COUNTS else "null"
            told.append(f"aggregate '{name}' is new: it starts at {zero} for the keys there are")
    told += [f"aggregate '{name}' is gone: its state is dropped" for name in before if name not in now]
    shared, sharing = _sharing(before), _sharing(now)
    for name, mates in sharing.items():
        if name in shared and mates & before.keys() != shared[name] & now.keys():
            refused.append(
                f"aggregate '{name}' counts values of one column with {_listed(shared[name] - {name})} in the "
                f"store, with {_listed(mates - {name})} now"
            )
    if not told and list(before) != list(now):
        told.append("its aggregates stand in another order")


def _sharing(members: Mapping[str, Accumulator]) -> dict[str, frozenset[str]]:
    """Who counts distinct values of the same column as whom."""
    names = list(members)
    groups = [frozenset(names[number] for number in seen.counts) for seen in values_seen([*members.values()])]
    return {name: group for group in groups for name in group}


def _listed(names: frozenset[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "nobody"


def _same_state(stored: Accumulator, asked: Accumulator) -> bool:
    """An input may get wider where the state and the result stay what they are."""
    one, other = stored.spec, asked.spec
    if (one.function, one.options, one.where is None) != (other.function, other.options, other.where is None):
        return False
    if one.function in _BY_VALUE and one.input_type != other.input_type:
        return False
    return (stored.columns, stored.output, stored.invertible_exactly) == (
        asked.columns,
        asked.output,
        asked.invertible_exactly,
    )


def _compare_states(stored: ProcessSpec, asked: ProcessSpec, told: list[str], refused: list[str]) -> None:
    before, now = ({state.name: state for state in spec.states} for spec in (stored, asked))
    for name, state in now.items():
        if name not in before:
            told.append(f"state '{name}' is new: it starts empty for the keys there are")
            continue
        refused += _unlike(f"state '{name}'", _shown_state(before[name]), _shown_state(state))
        if before[name].ttl and state.ttl:
            refused += _unlike(f"the ttl of state '{name}' counts by", before[name].by, state.by)
        if before[name].ttl != state.ttl:
            told.append(f"state '{name}' has another ttl")
    told += [f"state '{name}' is gone: it is dropped" for name in before if name not in now]
    if not same_function(stored.function, asked.function):
        told.append("its function is another: it is called from the next epoch on")


# --- how things are said --------------------------------------------------------------------------------------------


def _unlike(what: str, stored: Any, asked: Any) -> list[str]:
    return [] if stored == asked else [f"{what}: {stored} in the store, {asked} now"]


def _shown_kind(spec: Spec) -> str:
    return kind_of(spec)


def _shown_keys(spec: Spec) -> str:
    return ", ".join(f"{key.name}: {key.type}" for key in spec.keys)


def _shown_aggregate(one: Accumulator) -> str:
    spec: AggregateSpec = one.spec
    options = "".join(f", {name}={value}" for name, value in spec.options)
    options += ", where …" if spec.where else ""
    return f"{spec.function}({spec.input_type or '*'}{options}) → {one.output.name}"


def _shown_state(state: StateSpec) -> str:
    said = [state.type] if not state.key_type else [state.key_type, state.type]
    said += [f"limit {state.limit}"] if state.limit else []
    said += [f"default {state.default!r}"] if state.default is not None else []
    return f"{state.kind}({', '.join(one for one in said if one)})"


def _time_type(spec: DistinctSpec) -> str | None:
    return None if spec.time is None else spec.values[spec.time].type


def _takes_back(spec: Spec) -> bool:
    return bool(getattr(spec, "updating_input", False)) or any(getattr(spec, "updating", ()))


# --- columns by name ------------------------------------------------------------------------------------------------


def accumulators_of(spec: Aggregating) -> dict[str, Accumulator]:
    """The accumulators of a stage by their names."""
    stage = StageSpec((), spec.aggregates, _takes_back(spec), spec.ansi)
    return {one.name: accumulator_of(one, stage) for one in spec.aggregates}


def tables_of(spec: Spec) -> dict[str, list[str]] | None:
    """Names for the tables of a stage's state and for their columns, in their order; None: they never change."""
    return _NAMED[kind_of(spec)](spec) if kind_of(spec) in _NAMED else None


def mapping(stored: Spec, asked: Spec) -> list[TableSource] | None:
    """Where the tables of ``asked`` come from, if the two can be one stage; None: they are the same."""
    before, now = tables_of(stored), tables_of(asked)
    if before is None or now is None or list(before.items()) == list(now.items()):
        return None
    numbers = {name: number for number, name in enumerate(before)}
    found = []
    for table, columns in now.items():
        source = _table_like(before, table, columns)
        if source is None:
            found.append(TableSource(None, (None,) * len(columns)))
        else:
            found.append(TableSource(numbers[source], tuple(_find(before[source], column) for column in columns)))
    return found


def _table_like(before: Mapping[str, Sequence[str]], table: str, columns: Sequence[str]) -> str | None:
    """The table that was this one. Those of values are known by the counts that share them: such come and go."""
    if not table.startswith(_VALUES):
        return table if table in before else None
    counts = set(columns) - {_ROWS}
    return next((name for name, held in before.items() if name.startswith(_VALUES) and counts & {*held}), None)


def _find(columns: Sequence[str], name: str) -> int | None:
    return columns.index(name) if name in columns else None


def _columns(members: Sequence[Accumulator]) -> list[str]:
    return [f"{member.spec.name}.{number}" for member in members for number in range(len(member.columns))]


def _of_aggregate(spec: StageSpec) -> dict[str, list[str]]:
    members = list(accumulators_of(spec).values())
    taken_back = [_ROWS] if spec.updating_input else []
    tables = {"keys": [*taken_back, *_columns(members)]}
    for seen in values_seen(members):
        names = [members[number].spec.name for number in seen.counts]
        tables[f"{_VALUES}{', '.join(names)}"] = [*taken_back, *names]
    return tables


def _of_window(spec: WindowSpec) -> dict[str, list[str]]:
    members = list(accumulators_of(spec).values())
    every = [_ROWS, *_columns(members)]
    counted = {"counters": [_ROWS]} if spec.unit == "rows" else {}
    if spec.every == spec.size or spec.mode == "update" or spec.early > 0:
        early = spec.early > 0 and spec.mode != "update"
        return {"windows": every} | counted | ({"shown": every, "said": ["clock", "epoch"]} if early else {})
    if spec.unit == "rows":
        return {"panes": every} | counted
    exact = [member for member in members if member.invertible_exactly]
    closed = {"closed": ["clock"]} if spec.unit == "clock" else {}
    return {"panes": every, "running": [_ROWS, *_columns(exact)]} | closed


def _of_session(spec: SessionSpec) -> dict[str, list[str]]:
    own = [_ROWS, "(first)", "(last)"]
    return {"sessions": own + _columns(list(accumulators_of(spec).values())), "owners": ["open", "lowest"]}


def _of_process(spec: ProcessSpec) -> dict[str, list[str]]:
    states = TypedStates(spec.states, 0).states
    columns = [f"{state.spec.name}.{number}" for state in states for number in range(len(state.columns))]
    return {"keys": ["(alive)", "(timers)", *columns], "timers": ["(alive)", "(name)"]}


_NAMED: Mapping[str, Callable[[Any], dict[str, list[str]]]] = {
    "aggregate": _of_aggregate,
    "window": _of_window,
    "session": _of_session,
    "process": _of_process,
}
