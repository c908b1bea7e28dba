"""What an aggregate is to the operators that use it: columns in the state, rows into them, results out of them.

One by itself (``Accumulator``), and those of a stage side by side in one table (``Accumulators``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from holdfast.errors import FunctionError
from holdfast.operators.keyed import Fields
from holdfast.operators.spec import AggregateSpec
from holdfast.state.columns import NO_INTS, Arena, Array, ColumnSpec, Ints
from holdfast.state.payload import append
from holdfast.state.rows import Rows, Values
from holdfast.state.types import AtomicType, Kind

ROWS = "(rows)"
"""The column of a table that counts the rows behind its aggregates."""
Overflow = Literal["fail", "null", "wrap"]
"""What becomes of a result that is too large for its type: the epoch fails, or it is null, or as Spark has it without
ANSI: integers wrap around, decimals are null."""

# A value column as an accumulator wants it: name, type, and the kind to decode it to ("valid": nulls only).
Input = tuple[str, AtomicType | None, Kind | Literal["valid"]]


class Accumulator(ABC):
    """The state of one aggregate, for all keys of a slice."""

    invertible: ClassVar[bool] = False
    invertible_exactly: bool = False
    """What was combined in can be taken out again and leaves nothing behind: no rounding, no infinity."""
    output: AtomicType
    columns: tuple[ColumnSpec, ...]
    inputs: tuple[Input, ...]
    partials: tuple[AtomicType, ...] | None = None

    bounded: bool = False
    """Whether a result can be too large for its type."""

    sharpened: ClassVar[bool] = False
    """Whether stores of the first format had its results to other last digits."""

    @property
    def formerly(self) -> int:
        """How many of its columns there were in the first checkpoints; those after them are 0 there."""
        return len(self.columns)

    @property
    def named_columns(self) -> list[ColumnSpec]:
        """Its columns as a table has them, told apart by the aggregate's name."""
        return [
            column.named(f"{self.spec.name}.{number}", added=number >= self.formerly)
            for number, column in enumerate(self.columns)
        ]

    def __init__(self, spec: AggregateSpec, overflow: Overflow) -> None:
        self.spec = spec
        self.overflow = overflow

    @abstractmethod
    def fold(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        values: Sequence[Values],
        sign: Ints,
    ) -> None:
        """Rows into columns; ``sign`` is empty unless rows may be taken back."""

    def merge(
        self, columns: Sequence[Array], arenas: Sequence[Arena | None], slots: Ints, values: Sequence[Values]
    ) -> None:
        """Rows of a partial input into columns."""
        self.fold(columns, arenas, slots, values, NO_INTS)

    @abstractmethod
    def combine(
        self,
        columns: Sequence[Array],
        arenas: Sequence[Arena | None],
        slots: Ints,
        others: Sequence[Array],
        other_arenas: Sequence[Arena | None],
        sign: int = 1,
    ) -> None:
        """Accumulators ``others``, row by row, into ``slots``; out of them if ``sign`` is -1, where that is exact."""

    @abstractmethod
    def finish(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.Array:
        """Results of the rows whose columns these are; null where one does not fit (or what Spark makes of it)."""

    def lost(self, columns: Sequence[Array], slots: Ints) -> bool:
        """Whether a result among those slots does not fit; asked only of those that are ``bounded``."""
        return False

    def judge(self, columns: Sequence[Array], slots: Ints) -> None:
        """Refuse an epoch that would let a result leave the stage that is too large for its type."""
        if self.bounded and self.overflow == "fail" and self.lost(columns, slots):
            raise FunctionError(
                f"{self.spec.function} '{self.spec.name}' overflowed {self.output.name}.",
                safe="no slice keeps anything of this epoch.",
                todo='start the job with on_overflow="null": this epoch is finished then, and such a result is null '
                "for as long as it does not fit. For results that always fit, give the stage another name, or the job "
                "a new store, and cast the input to a wider type (decimal(38,0), double).",
            )


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
        self.numbers = [list(one) for one in numbers]
        self.partials = [list(one) for one in partials]
        self._ranges: list[slice] = []
        columns: list[ColumnSpec] = []
        for member in self.members:
            start = first + len(columns)
            self._ranges.append(slice(start, start + len(member.columns)))
            columns += member.named_columns
        self.columns = tuple(columns)
        self.bounded = any(member.bounded for member in self.members)

    def first_column(self, member: int) -> int:
        first: int = self._ranges[member].start
        return first

    def fold(self, columns: Sequence[Array], arenas: Arenas, slots: Ints, rows: Rows) -> None:
        wanted = self.partials if rows.partial else self.numbers
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
        members, wanted = [self.members[at] for at in numbers], [self.numbers[at] for at in numbers]
        return Accumulators(members, wanted, [self.partials[at] for at in numbers], first)

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
