"""Checkpoints from before sums had as many columns as now.

A sum got a column for what passes its range, a variance some for what rounding would lose. Each of these is 0 where
there was none of it, and stands after those that were there: so a table of that time is the present one with columns
left out.

But what is computed from it now may have other last digits than what was put out then. A stage that follows changes
holds the rows of then, and what is taken back must be one of them: such a job cannot go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import StoreError
from holdfast.operators.accumulators import Moments
from holdfast.operators.exact import ExactMoments, ExactSum
from holdfast.operators.stage import StagePlan
from holdfast.plan.changes import Aggregating, accumulators_of, tables_of
from holdfast.plan.graph import outputs
from holdfast.state import copies
from holdfast.state.table import Layout

if TYPE_CHECKING:
    from holdfast.plan.compile import PlannedStage

FIRST_EXACT = 2
"""The store's format since when sums and variances are as they are now."""
_NEARER_NOW = (Moments, ExactSum, ExactMoments)


def refuse_readers(planned: Iterable[PlannedStage], format: int) -> None:
    """Where a stage of a store of this format follows changes of results that have become more exact since."""
    if format >= FIRST_EXACT:
        return
    stages = {stage.plan.name: stage for stage in planned}
    for name, stage in stages.items():
        for below in (output.stage.name for item in stage.inputs if item.updating for output in outputs(item.node)):
            spec = stages[below].plan.operator
            nearer = accumulators_of(spec) if isinstance(spec, Aggregating) else {}
            if named := [column for column, one in nearer.items() if isinstance(one, _NEARER_NOW)]:
                raise StoreError(
                    f"Stage '{name}' follows the changes of stage '{below}', whose '{named[0]}' an earlier version of "
                    "Holdfast, which wrote this store, computed to other last digits: rows that it put out then could "
                    "not be taken back now.",
                    safe="Nothing was changed.",
                    todo="Go on with the version that wrote the store, or begin with a new store.",
                )


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
