"""What became of a job's graph: the one a store was written with beside the one it is opened with now.

Stages match by name. A stage may come (it starts at nothing) or go (its state is dropped). What a stage may be that
stays, its kind says (``Spec.difference``): what would give its state another meaning is a refusal. Only what a spec
says is seen: an aggregate over another column of the same type is the same aggregate.

State is matched by names too: the tables of a kind whose columns come and go have names, and so have their columns, so
that ``mapping`` can tell where a column of the new layout comes from. The refused way was to load the old state and
fold it into new operators: a copy is columns already, and each either stays as it is or is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.operators.spec import Difference, Spec
from holdfast.operators.stage import StagePlan, TimePlan
from holdfast.state.table import Layout


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
        found = _difference(plan.operator, now[name].operator)
        changes += [f"stage '{name}': {line}" for line in found.told]
        refusals += [f"stage '{name}': {line}" for line in found.refused]
    for name, plan in now.items():
        if name in before:
            continue
        if plan.operator.takes_back:
            refusals.append(
                f"stage '{name}': nothing in the store, {plan.operator.kind} over rows that can be taken back "
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
    are for the same stages, and what the levels below made of it stays.
    """
    nulls = {plan.name for plan in asked if plan.operator.makes_null}

    def rest(plan: StagePlan) -> StagePlan:
        operator = plan.operator.mendable(above=plan.level >= level, null=plan.name in nulls)
        return replace(plan, operator=operator, time=TimePlan())

    return [rest(plan) for plan in stored] == [rest(plan) for plan in asked]


def _essence(plan: StagePlan) -> StagePlan:
    """What log and state depend on."""
    return replace(plan, operator=plan.operator.essence(), time=TimePlan())


def _difference(stored: Spec, asked: Spec) -> Difference:
    if stored.kind != asked.kind:
        return Difference(refused=(f"{stored.kind} in the store, {asked.kind} now",))
    return stored.difference(asked)


# --- columns by name ------------------------------------------------------------------------------------------------


def mapping(stored: Spec, asked: Spec) -> list[TableSource] | None:
    """Where the tables of ``asked`` come from, if the two can be one stage; None: they are the same."""
    before, now = stored.tables(), asked.tables()
    if [(table.name, table.names) for table in before] == [(table.name, table.names) for table in now]:
        return None
    return [_source(before, table) for table in now]


def _source(before: Sequence[Layout], table: Layout) -> TableSource:
    for number, old in enumerate(before):
        if _same(old, table):
            places = {name: at for at, name in enumerate(old.names)}
            return TableSource(number, tuple(places.get(name) for name in table.names))
    return TableSource(None, (None,) * len(table.columns))


def _same(old: Layout, new: Layout) -> bool:
    """Whether a table was that one. One without a name is known by whose columns it has, which a hidden one is not."""
    if old.name or new.name:
        return old.name == new.name
    return any(name in old.names for name in new.names if not name.startswith("("))
