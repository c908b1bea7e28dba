"""Checkpoints from before sums had as many columns as now.

A sum got a column for what passes its range, a variance some for what rounding would lose. Each of these is 0 where
there was none of it, and says of itself that it was ``added``: so a table of that time is the present one with these
columns left out.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from holdfast.errors import StoreError
from holdfast.state import copies
from holdfast.state.table import Layout


def as_now(stage: str, table: int, layout: Layout, copy: pa.RecordBatch) -> pa.RecordBatch:
    """A copy of a stage's table, in the layout that it has now."""
    if copy.schema.equals(copies.schema(layout)):
        return copy
    then = replace(layout, columns=tuple(column for column in layout.columns if not column.added))
    if copy.schema.equals(copies.schema(then)):
        places = iter(range(len(then.columns)))
        columns = [None if column.added else next(places) for column in layout.columns]
        return copies.reshaped(copy, table, layout, columns)
    raise StoreError(
        f"The checkpoint of stage '{stage}' was written by another version of Holdfast, in a form that this one "
        "does not read.",
        safe="Nothing was changed.",
        todo="Go on with the version that wrote the store, or begin with a new store.",
    )
