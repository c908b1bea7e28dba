"""Checkpoints from before sums had as many columns as now.

A sum got a column for what passes its range, a variance some for what rounding would lose. Each of these is 0 where
there was none of it, and stands after those that were there: so a table of that time is the present one with columns
left out.
"""

from __future__ import annotations

import pyarrow as pa

from holdfast.errors import StoreError
from holdfast.plan.changes import Aggregating, accumulators_of, tables_of
from holdfast.plan.stage import StagePlan
from holdfast.state import copies
from holdfast.state.table import Layout


def as_now(plan: StagePlan, table: int, layout: Layout, copy: pa.RecordBatch) -> pa.RecordBatch:
    """A copy of a stage's table, in the layout that it has now."""
    if copy.schema.equals(copies.schema(layout)):
        return copy
    columns = _columns(plan, table)
    former = [at for at in columns if at is not None]
    if columns and len(former) < len(columns) and len(former) == sum(n[:1] == "a" for n in copy.schema.names):
        return copies.reshaped(copy, table, layout, columns)
    raise StoreError(
        f"The checkpoint of stage '{plan.name}' was written by another version of Holdfast, in a form that this one "
        "does not read.",
        safe="Nothing was changed.",
        todo="Go on with the version that wrote the store, or begin with a new store.",
    )


def _columns(plan: StagePlan, table: int) -> list[int | None]:
    """Where each column of a table was then; None: there was none."""
    spec, names = plan.operator, tables_of(plan.operator)
    if not isinstance(spec, Aggregating) or names is None:
        return []
    new = {
        f"{name}.{number}"
        for name, one in accumulators_of(spec).items()
        for number in range(one.formerly, len(one.columns))
    }
    found: list[int | None] = []
    for name in list(names.values())[table]:
        found.append(None if name in new else sum(one is not None for one in found))
    return found
