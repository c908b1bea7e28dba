"""The aggregates of a stage side by side: which columns they have in a table, and rows or accumulators into them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.errors import PlanError
from holdfast.operators.accumulator import Accumulator, Input
from holdfast.operators.aggregate import accumulator_of
from holdfast.operators.keyed import Fields
from holdfast.operators.spec import AggregateSpec, StageSpec
from holdfast.state.columns import Arena, Array, ColumnSpec, Ints
from holdfast.state.payload import append
from holdfast.state.rows import Rows

Arenas = Sequence[Arena | None]


class Accumulators:
    """Some aggregates. Their columns stand in a table one after the other, from ``first`` on.

    ``numbers`` are those of the decoded columns that each takes, ``partials`` those it takes of a partial input.
    """

    def __init__(
        self,
        members: Sequence[Accumulator],
        numbers: Sequence[Sequence[int]],
        partials: Sequence[Sequence[int]],
        first: int = 0,
    ) -> None:
        self.members = tuple(members)
        self._numbers = [list(one) for one in numbers]
        self._partials = [list(one) for one in partials]
        self._ranges: list[slice] = []
        columns: list[ColumnSpec] = []
        for member in self.members:
            start = first + len(columns)
            self._ranges.append(slice(start, start + len(member.columns)))
            columns += member.columns
        self.columns = tuple(columns)

    def fold(self, columns: Sequence[Array], arenas: Arenas, slots: Ints, rows: Rows) -> None:
        wanted = self._partials if rows.partial else self._numbers
        for member, own, numbers in zip(self.members, self._ranges, wanted, strict=True):
            values = [rows.values[number] for number in numbers]
            if rows.partial:
                member.merge(columns[own], arenas[own], slots, values)
            else:
                member.fold(columns[own], arenas[own], slots, values, rows.sign)

    def combine(
        self,
        columns: Sequence[Array],
        arenas: Arenas,
        slots: Ints,
        others: Sequence[Array],
        other_arenas: Arenas,
        sign: int = 1,
    ) -> None:
        """``others`` are rows of a table in which the aggregates have the same places as in ``columns``."""
        for member, own in zip(self.members, self._ranges, strict=True):
            member.combine(columns[own], arenas[own], slots, others[own], other_arenas[own], sign)

    def judge(self, columns: Sequence[Array], slots: Ints) -> None:
        """Rows are about to leave the stage: refuse the epoch if a result does not fit and must."""
        for member, own in zip(self.members, self._ranges, strict=True):
            member.judge(columns[own], slots)

    def leave(self, columns: Sequence[Array], arenas: Arenas) -> list[pa.Array]:
        """Results of rows that leave the stage."""
        self.judge(columns, np.arange(len(columns[0]) if columns else 0))
        return self.finish(columns, arenas)

    def finish(self, columns: Sequence[Array], arenas: Arenas) -> list[pa.Array]:
        return [
            member.finish(columns[own], arenas[own]) for member, own in zip(self.members, self._ranges, strict=True)
        ]

    def chosen(self, exactly: bool) -> tuple[int, ...]:
        """Which of them can be taken out exactly, or which cannot."""
        return tuple(at for at, member in enumerate(self.members) if member.invertible_exactly == exactly)

    def part(self, numbers: Sequence[int], first: int) -> Accumulators:
        """Some of them, for a table of their own."""
        members, wanted = [self.members[at] for at in numbers], [self._numbers[at] for at in numbers]
        return Accumulators(members, wanted, [self._partials[at] for at in numbers], first)

    def pick(self, columns: Sequence[Array], numbers: Sequence[int]) -> list[Array]:
        """The columns of some of them."""
        return [column for at in numbers for column in columns[self._ranges[at]]]

    def pick_arenas(self, arenas: Arenas, numbers: Sequence[int]) -> list[Arena | None]:
        return [arena for at in numbers for arena in arenas[self._ranges[at]]]

    @property
    def fields(self) -> Fields:
        return tuple((member.spec.name, member.output) for member in self.members)


class Inputs:
    """The value columns that somebody wants, each in the form it is wanted in, none decoded twice."""

    def __init__(self) -> None:
        self.wanted: list[Input] = []
        self.partial: list[Input] = []

    def number(self, one: Input, *, partial: bool = False) -> int:
        """Where the decoded rows have it."""
        wanted = self.partial if partial else self.wanted
        if one not in wanted:
            wanted.append(one)
        return wanted.index(one)


def accumulators(
    aggregates: Sequence[AggregateSpec],
    inputs: Inputs,
    first: int,
    *,
    updating: bool,
    ansi: bool,
    overflow: str = "",
) -> Accumulators:
    """The accumulators of a stage, or the refusal that names the aggregate there cannot be."""
    for one in aggregates:
        if one.function == "count_distinct":
            raise PlanError(
                f"'{one.name}' counts distinct values exactly, which windows cannot.",
                safe="nothing was started or written.",
                todo="use approx_distinct, or make the window part of the key: key_by(F.window(…).start, …).agg(…)",
            )
    stage = StageSpec((), tuple(aggregates), updating, ansi, overflow)
    members = [accumulator_of(one, stage) for one in aggregates]
    numbers = [[inputs.number(one) for one in member.inputs] for member in members]
    partials = []
    for at, member in enumerate(members):
        named = [(f"p{at}_{part}", kind) for part, kind in enumerate(member.partials or ())]
        partials.append([inputs.number((name, kind, kind.kind), partial=True) for name, kind in named])
    return Accumulators(members, numbers, partials, first)


def fresh(specs: Sequence[ColumnSpec], rows: int) -> tuple[list[Array], list[Arena | None]]:
    """Columns of zeros that are no table's."""
    columns = [np.zeros((rows, spec.width) if spec.width else rows, spec.dtype) for spec in specs]
    return columns, [Arena() if spec.spans else None for spec in specs]


def copy_rows(
    columns: Sequence[Array], arenas: Arenas, into: Sequence[Array], into_arenas: Arenas, slots: Array
) -> None:
    """Rows to slots of other columns, bit for bit."""
    for source, lies_in, target, arena in zip(columns, arenas, into, into_arenas, strict=True):
        target[slots] = source if arena is None or lies_in is None else append(arena, source, lies_in.data)
