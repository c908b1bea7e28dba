"""Rows that a ``top_k`` will never show, left out before they are logged.

Of the rows a task has at hand, those behind the k-th of their group cannot be among the first k of it, whatever else
comes. A group is told by its hash and its key: two keys of one hash may get in each other's way, and then too many rows
stay, never too few. So does every row that ties with the k-th in the columns of the order, for only the stage breaks
ties. Orders that NumPy does not sort as Spark does (floats, texts, nulls) are left to the stage as well.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.invariants import some
from holdfast.operators.ahead import MANY, Cut

PAYS_BELOW = 0.8  # of the rows left: sorting costs about a fifth of what a row costs from here on


def cut(rows: pa.RecordBatch, keys: int, wanted: Cut) -> pa.RecordBatch:
    """Those of ``rows`` (``_h``, ``k0``, …) that may be among the first, in the order they came."""
    found = _first(rows, keys, wanted)
    if found is None:
        stay, many = None, np.ones(rows.num_rows, np.int64)
    else:
        stay, many = found
        rows = rows.take(pa.Array.from_buffers(pa.int64(), len(stay), [None, pa.py_buffer(stay)]))
    if wanted.window is None:
        return rows
    return rows.append_column(MANY, pa.Array.from_buffers(pa.int64(), len(many), [None, pa.py_buffer(many)]))


def _first(rows: pa.RecordBatch, keys: int, wanted: Cut) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """Which rows stay, and how many each stands for; None if that cannot be told or leaves nearly all."""
    groups = [_ints(rows.column(name)) for name in ("_h", *(f"k{at}" for at in range(keys)))]
    order = [(_ints(rows.column(name)), descending) for name, descending in wanted.order]
    if wanted.window is not None:
        time, size, offset = wanted.window
        times = _ints(rows.column(time))
        groups.append(None if times is None else (times - offset) // size)
    by = [None if column is None else (~column if descending else column) for column, descending in order]
    if any(column is None for column in (*groups, *by)) or rows.num_rows == 0:
        return None
    # The hash stands for the key; a window does not follow from it.
    sorted_by = [groups[0]] if wanted.window is None else [groups[0], groups[-1]]
    at = np.lexsort((*reversed(by), *reversed(sorted_by)))
    begins, differs = np.zeros(len(at), bool), np.zeros(len(at), bool)
    begins[0] = True
    for column in groups:
        begins[1:] |= _steps(column, at)
    differs |= begins
    for column in by:
        differs[1:] |= _steps(column, at)
    starts = np.flatnonzero(begins)
    sizes = np.diff(np.append(starts, len(at)))
    last = np.repeat(starts + np.minimum(sizes, wanted.k) - 1, sizes)  # of its group's first k
    ties = np.cumsum(differs)
    stays = (np.arange(len(at)) <= last) | (ties == ties[last])
    if np.count_nonzero(stays) > PAYS_BELOW * len(at):
        return None
    many = stays.astype(np.int64)
    many[starts] += np.add.reduceat(~stays, starts, dtype=np.int64)
    kept = np.zeros(len(at), np.int64)
    kept[at] = many
    stay = np.flatnonzero(kept)
    return stay, kept[stay]


def _steps(column: npt.NDArray[np.signedinteger] | None, at: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    column = some(column, "asked before")
    ordered = column[at]
    found: npt.NDArray[np.bool_] = ordered[1:] != ordered[:-1]
    return found


def _ints(column: pa.Array) -> npt.NDArray[np.signedinteger] | None:
    """The values of a column of integers, dates or timestamps without nulls."""
    kind = column.type
    if column.null_count or not (pa.types.is_signed_integer(kind) or pa.types.is_temporal(kind)):
        return None
    width = kind.bit_width // 8
    return np.frombuffer(column.buffers()[1], f"i{width}", len(column), column.offset * width)
