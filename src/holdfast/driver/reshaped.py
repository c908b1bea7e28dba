"""A stage of a changed graph, from shape to shape: how its tables come from those of the stage that it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from holdfast.container.footprints import packed
from holdfast.container.slices import table_name
from holdfast.operators.marked import Marked
from holdfast.operators.stage import StagePlan
from holdfast.plan.changes import TableSource, mapping
from holdfast.state import copies


class Reshaped:
    """One stage of the new graph, and how its tables come from those of the stage it was."""

    def __init__(self, stored: StagePlan | None, asked: StagePlan, epoch: int, units: bool) -> None:
        operator = asked.build()
        self.living: list[int] = []
        """Units of every slice so far."""
        self._operator, self._layouts = asked.operator, operator.layouts
        self._names = [table_name(asked.name, at) for at in range(len(self._layouts))]
        empty = operator.new_slice()
        empty.load([], epoch)
        self._empty = [empty.delta(0, epoch, table=at) for at in range(len(self._layouts))]
        self._mapping: list[TableSource] | None = None
        self._marked = Marked(operator) if units else None
        former = stored.name if stored is not None else asked.name
        if stored is None:
            self._mapping = [TableSource(None, ())] * len(self._layouts)
        else:
            self._mapping = mapping(stored.operator, asked.operator)
        self._from = [None if one.table is None else table_name(former, one.table) for one in self._mapping or ()] or [
            table_name(former, at) for at in range(len(self._layouts))
        ]

    def count(self, number: int, tables: Sequence[pa.RecordBatch]) -> None:
        """How many units of a slice there are, where they are to be in the log."""
        if self._marked is not None:
            self.living.append(packed(self._marked, number, 0, tables).said.living)

    @property
    def sources(self) -> list[str]:
        """The old tables that are needed."""
        return [name for name in self._from if name is not None]

    def converted(
        self, found: Mapping[tuple[str, int], pa.RecordBatch], number: int
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        for at, (name, source) in enumerate(zip(self._names, self._from, strict=True)):
            if source is None:
                yield name, self._empty[at]
            elif self._mapping is None:
                yield name, found[source, number]
            else:
                copy = copies.reshaped(found[source, number], at, self._layouts[at], self._mapping[at].columns)
                yield name, self._operator.reshaped(at, copy)
