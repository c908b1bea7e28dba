"""Which rows come too late, and what becomes of them: the rules of all operators that have event time.

Late is judged by the watermark as it was before the epoch (``EpochTime.late``), so it never depends on what else comes
in the same epoch, nor on the order of rows. A row by itself is late when its time is past; one that goes into windows,
when the last of them is closed; one that goes into sessions, when nothing that it could be part of is open. Late rows
are counted in ``run.status()`` as "late"; windows and sessions put them out as a stream, if somebody wants them.
"""

from __future__ import annotations

from holdfast.operators.draft import Draft, all_columns
from holdfast.operators.grid import Grid
from holdfast.state.columns import Array, Ints
from holdfast.state.rows import Rows
from holdfast.state.work import Work

LATE = "late"
"""The output for rows that came too late."""


def past(work: Work, times: Ints) -> Array:
    """Rows that count at their own time: of a join, ``distinct``, ``process``."""
    late: Array = times < work.time.late
    return late


def past_windows(work: Work, grid: Grid, times: Ints) -> Array | None:
    """Rows whose windows have all been closed; None where no row is so, by a look at the earliest."""
    late = work.time.late
    if not len(times) or grid.final_ends(times.min(keepdims=True))[0] > late:
        return None
    closed: Array = grid.final_ends(times) <= late
    return closed


def past_sessions(times: Ints, alone: Array, owners: Ints, first: Ints) -> Array:
    """Rows that would be closed as sessions of their own (``alone``) and that no open session of their key reaches:
    ``first`` is the earliest begin of one, key by key."""
    late: Array = alone & (times < first[owners])
    return late


def count(work: Work, rows: Rows, gone: Array) -> None:
    """A row of a partial input stands for as many as its sign says."""
    if len(gone):
        work.count("late", int(rows.sign[gone].sum()) if rows.partial else len(gone))


def late_columns(draft: Draft, keep: bool) -> tuple[int, ...]:
    """The value columns of rows that came too late, where somebody wants them: then they are an output."""
    if not keep:
        return ()
    draft.ports.append(LATE)
    return all_columns(draft.inputs[0], "late row")
