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

from holdfast.invariants import some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
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


def tagged_union(branches: Sequence[DataFrame]) -> tuple[DataFrame, Tagging]:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    from holdfast.plan.types import quoted

    found, types = tagging([branch.schema for branch in branches])
    union: DataFrame | None = None
    for number, (branch, own) in enumerate(zip(branches, found.branches, strict=True)):
        names = {at: name for name, at in own}
        columns = [
            (F.col(quoted(names[at])) if at in names else F.lit(None).cast(kind)).alias(f"c{at}")
            for at, kind in enumerate(types)
        ]
        rows = branch.select(F.lit(number).alias(INPUT), *columns)
        union = rows if union is None else union.union(rows)
    union = some(union, "a union of nothing")
    return union, found


def branch(union: DataFrame, found: Tagging, number: int) -> DataFrame:
    """The rows of one branch, as they were."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    own = [F.col(f"c{at}").alias(name) for name, at in found.branches[number]]
    return union.where(F.col(INPUT) == number).select(*own)
