"""One side of a join: which columns of its input are kept, where they stand in a table, how they come out again."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from holdfast.operators.keyed import Fields
from holdfast.state import multimap
from holdfast.state.columns import FLAG, Arena, Array, Ints
from holdfast.state.payload import Payload
from holdfast.state.rows import Values
from holdfast.state.table import Table


class JoinSide:
    """One input and its table: which of its columns are kept, and where; which times of the other its rows match."""

    def __init__(
        self,
        number: int,
        fields: Fields,
        out: tuple[int, ...],
        time: int | None,
        reach: tuple[int | None, int | None],
        outer: bool,
    ) -> None:
        self.number = number
        self.time = time
        self.reach = reach  # back and ahead
        self.outer = outer
        self.kept = tuple(dict.fromkeys((*out, *(() if time is None else (time,)))))
        self.out = out
        self.payload = Payload([fields[column][1] for column in self.kept])
        self.output = Payload([fields[column][1] for column in out])
        self.fields = tuple(fields[column] for column in out)
        self.matched = 1  # the column that says so, in outer joins
        self.first = 2 if outer else 1
        self.columns = (multimap.SIZE, *((FLAG,) if outer else ()), *self.payload.columns)
        self.time_column = -1 if time is None else self.first + 2 * self.kept.index(time)

    @property
    def lives(self) -> int | None:
        """How long after its time a row may still find partners."""
        return self.reach[1]

    def wanted(self, values: Sequence[Values]) -> list[Values]:
        return [values[number] for number in self.kept]

    def from_input(self, values: Sequence[Values], at: Ints) -> list[pa.Array]:
        return self.output.arrays([values[number] for number in self.out], at)

    def from_columns(self, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> list[pa.Array]:
        """Of rows whose columns these are."""
        where = [self.first + 2 * number + more for number in range(len(self.out)) for more in (0, 1)]
        return self.output.read([columns[number] for number in where], [arenas[number] for number in where])

    def from_slots(self, table: Table, slots: Ints) -> list[pa.Array]:
        wanted = self.first + 2 * len(self.out)  # what is put out stands ahead of what is only kept
        return self.from_columns([column[slots] for column in table.columns[:wanted]], table.arenas)

    def held(self, table: Table, slots: Ints) -> list[Values]:
        """All that is kept of those rows."""
        found = []
        for number in range(self.first, len(table.columns), 2):
            arena = table.arenas[number]
            values, valid = table.columns[number][slots], table.columns[number + 1][slots]
            found.append(Values(values, valid, None if arena is None else arena.data))
        return found
