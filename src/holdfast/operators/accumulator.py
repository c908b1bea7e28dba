"""What an aggregate is to the operators that use it: columns in the state, rows into them, results out of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import pyarrow as pa

from holdfast.errors import FunctionError
from holdfast.operators.spec import AggregateSpec
from holdfast.state.columns import NO_INTS, Arena, Array, ColumnSpec, Ints
from holdfast.state.rows import Values
from holdfast.state.types import AtomicType, Kind

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

    @property
    def formerly(self) -> int:
        """How many of its columns there were in the first checkpoints; those after them are 0 there."""
        return len(self.columns)

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
