"""Rows of unlike shape in one frame, which is all that a streaming query can have.

``_input`` tells a row's branch. Branches share columns: the third text of one lies where the third text of another
does, and what a branch does not need is null. So a row is as wide as the widest branch and not as all of them together,
and nothing is wrapped in a struct that would have to be copied in and out. A task's rows are of one branch, because
Spark's union keeps partitions apart, so telling them apart costs nothing there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

INPUT = "_input"


@dataclass(frozen=True)
class Tagging:
    """For each branch: its columns, and the number of the shared column that each of them is in."""

    branches: tuple[tuple[tuple[str, int], ...], ...]

    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Rows of the union by their branches, with the branches' own columns."""
        which = rows.column(rows.schema.get_field_index(INPUT))
        least, most = pc.min_max(which).as_py().values()
        if least is None:
            return
        for number in range(least, most + 1):
            mine = rows if least == most else rows.filter(pc.equal(which, number))
            if mine.num_rows:
                names, columns = zip(*self.branches[number], strict=True)
                taken = [mine.column(mine.schema.get_field_index(f"c{at}")) for at in columns]
                yield number, pa.RecordBatch.from_arrays(taken, names=names)


def tagging(schemas: Sequence[StructType]) -> tuple[Tagging, list[DataType]]:
    """Which columns the branches share, and their types."""
    shared: list[DataType] = []
    of_kind: dict[str, list[int]] = {}
    branches = []
    for schema in schemas:
        used: dict[str, int] = {}
        columns = []
        for field in schema.fields:
            kind = field.dataType.simpleString()
            mine = of_kind.setdefault(kind, [])
            at = used.get(kind, 0)
            used[kind] = at + 1
            if at == len(mine):
                mine.append(len(shared))
                shared.append(field.dataType)
            columns.append((field.name, mine[at]))
        branches.append(tuple(columns))
    return Tagging(tuple(branches)), shared
