"""What Spark may do of a stage's work before its rows leave it, said as data. ``spark`` carries it out.

A running aggregate goes by its keys alone. A window also needs to know its rows' pane, a session its rows' times: rows
of one key and pane share every decision that a window takes (late, closed, which windows), and rows of one key and one
stretch of event time no longer than the gap are in one session whatever else comes. So those are grouped as well, and
one row stands for all of a group: where it begins (``_from``), the largest time (``_to``), how many there were
(``_n``). What depends on a row by itself is refused: late rows that are wanted back, ``first`` and ``last``, rows that
can be taken back.

Plain data and nothing else: Spark's Python workers read it.
"""

from __future__ import annotations

from dataclasses import dataclass

FROM, TO, MANY = "_from", "_to", "_n"
"""The columns of a partial input that are not a key's or an aggregate's."""


@dataclass(frozen=True)
class PartialColumn:
    """One aggregate of a group's rows: its function and its column, None for a count of rows.

    ``types`` are those of the columns ``p<number>_0``, ``p<number>_1``, … that it is handed over in. ``where`` is for
    counts of distinct values: a column that is null in rows that do not count.
    """

    function: str
    column: str | None = None
    types: tuple[str, ...] = ("bigint",)
    where: str | None = None


@dataclass(frozen=True)
class Stretch:
    """Rows of a key are grouped by stretches of the event time in column ``time``, so long (µs) from ``offset`` on.

    A group begins with its stretch; ``from_first``: with its first row. Rows further behind the watermark than
    ``alone`` may be late each for itself: those are grouped by their very time.
    """

    time: str
    length: int
    offset: int = 0
    from_first: bool = False
    alone: int | None = None


@dataclass(frozen=True)
class Partials:
    """A row for each key of a task and, with a ``stretch``, each stretch of time."""

    columns: tuple[PartialColumn, ...]
    stretch: Stretch | None = None


@dataclass(frozen=True)
class Cut:
    """The first ``k`` rows of every key by ``order`` (column, descending); with ``window`` (column with the event time,
    size, offset) of every key in each of those. Then each row that stays says in ``_n`` how many it stands for, because
    the stage counts those that come late.
    """

    k: int
    order: tuple[tuple[str, bool], ...]
    window: tuple[str, int, int] | None = None


def ordered(order: tuple[tuple[int, bool], ...]) -> tuple[tuple[str, bool], ...]:
    """An order by numbers of value columns, by their names."""
    return tuple((f"v{number}", descending) for number, descending in order)
