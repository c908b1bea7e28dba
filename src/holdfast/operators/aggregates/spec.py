"""What stages that keep aggregates have in common, whatever they keep them of: keys, windows or sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol, Self

from holdfast.errors import PlanError
from holdfast.operators.aggregates.accumulator import Accumulator, Accumulators, Inputs
from holdfast.operators.aggregates.count_distinct import values_seen
from holdfast.operators.aggregates.functions import Terms, accumulator_of, accumulators
from holdfast.operators.ahead import PartialColumn
from holdfast.operators.draft import Draft, Given
from holdfast.operators.spec import AggregateSpec, Difference, Spec

_MOST_VALUES = 4  # columns with distinct values ahead: each adds its rows once more
_COUNTS = ("count", "count_distinct", "approx_distinct")
_BY_VALUE = ("count_distinct", "approx_distinct")  # what they hold depends on the type of what came in
_SAID_OF_OVERFLOW = {
    "": "as Spark's ANSI mode has it from now on",
    "fail": "the epoch fails from now on",
    "null": "null from now on",
}


class Wanted(Protocol):
    """An aggregate as a user asked for it."""

    @property
    def function(self) -> str: ...

    @property
    def column(self) -> Given | None: ...

    @property
    def options(self) -> tuple[tuple[str, Any], ...]: ...

    @property
    def where(self) -> Given | None: ...


def aggregates_of(draft: Draft, wanted: Mapping[str, Wanted]) -> tuple[AggregateSpec, ...]:
    values, specs = draft.inputs[0].values, []
    for name, aggregate in wanted.items():
        if aggregate.column is None:
            specs.append(AggregateSpec(name, aggregate.function, None, None, aggregate.options))
            continue
        role = f"aggregate '{name}'"
        kind = values.kind(aggregate.column, role)
        number = values.add(aggregate.column, role, hashed=aggregate.function == "approx_distinct")
        where = None if aggregate.where is None else f"v{values.add(aggregate.where, role)}"
        specs.append(AggregateSpec(name, aggregate.function, f"v{number}", kind, aggregate.options, where))
    return tuple(specs)


class AggregatingSpec(Spec):
    """Aggregates come and go between two runs by their names; one that stays must be the same function of values whose
    accumulators look the same."""

    exact_distinct: ClassVar[bool] = False
    """Whether it can count distinct values exactly, for which every value has a row of its own."""
    aggregates: tuple[AggregateSpec, ...]
    ansi: bool
    overflow: str

    def members(self) -> dict[str, Accumulator]:
        """Its accumulators by their names."""
        for one in self.aggregates:
            if one.function == "count_distinct" and not self.exact_distinct:
                raise PlanError(
                    f"'{one.name}' counts distinct values exactly, which windows cannot.",
                    safe="nothing was started or written.",
                    todo="use approx_distinct, or make the window part of the key: key_by(F.window(…).start, …).agg(…)",
                )
        terms = Terms(self.takes_back, self.ansi, self.overflow)
        return {one.name: accumulator_of(one, terms) for one in self.aggregates}

    def accumulators(self, inputs: Inputs, first: int) -> Accumulators:
        """They side by side, in columns of a table from ``first`` on."""
        return accumulators(list(self.members().values()), inputs, first)

    def partial_columns(self) -> tuple[PartialColumn, ...] | None:
        """What Spark may compute of its aggregates ahead; None if it cannot of all of them."""
        members = list(self.members().values())
        if self.takes_back or any(member.partials is None for member in members):
            return None
        if len(values_seen(members)) > _MOST_VALUES:
            return None
        return tuple(
            PartialColumn(one.function, one.input, tuple(kind.name for kind in member.partials or ()), one.where)
            for one, member in zip(self.aggregates, members, strict=True)
        )

    def overflowing(self, how: str) -> Self:
        said_already = how == "fail" and self.ansi
        return self._with_overflow("" if said_already else how)

    @property
    def makes_null(self) -> bool:
        return self.overflow == "null"

    def mendable(self, *, above: bool, null: bool) -> Self:
        """Where it could have failed by an overflow and did not, nothing becomes null either."""
        return self._with_overflow("null") if null and (self.overflow or self.ansi) else self

    def _with_overflow(self, overflow: str) -> Self:
        return replace(self, overflow=overflow)  # type: ignore[type-var]  # every kind is a dataclass

    @property
    def sharpened(self) -> tuple[str, ...]:
        return tuple(name for name, one in self.members().items() if one.sharpened)

    def difference(self, asked: Self) -> Difference:
        found = super().difference(asked)
        if found.refused:
            return found
        told, refused = _compared(self, asked)
        if self.overflow != asked.overflow:
            told.append(f"results that are too large for their type: {_SAID_OF_OVERFLOW[asked.overflow]}")
        return Difference(tuple(told), tuple(refused))


def _compared(stored: AggregatingSpec, asked: AggregatingSpec) -> tuple[list[str], list[str]]:
    """(what to tell, what cannot be)"""
    told: list[str] = []
    refused: list[str] = []
    before, now = stored.members(), asked.members()
    for name, one in now.items():
        if name in before:
            if not _same_state(before[name], one):
                refused.append(f"aggregate '{name}': {_shown(before[name])} in the store, {_shown(one)} now")
        elif asked.takes_back:
            refused.append(
                f"aggregate '{name}': nothing in the store, {_shown(one)} now (its input takes rows back, "
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
    return told, refused


def _sharing(members: Mapping[str, Accumulator]) -> dict[str, frozenset[str]]:
    """Who counts distinct values of the same column as whom."""
    groups = [frozenset(seen.names) for seen in values_seen([*members.values()])]
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


def _shown(one: Accumulator) -> str:
    spec = one.spec
    options = "".join(f", {name}={value}" for name, value in spec.options)
    options += ", where …" if spec.where else ""
    return f"{spec.function}({spec.input_type or '*'}{options}) → {one.output.name}"
