"""A slice's state: the six questions.

``SliceState`` is what backup, checkpoint, migration, recovery and queries are written against. ``TableSlice``, in
``table_slice``, answers it for every operator: its state is one or more tables of keyed rows, and the operator says
what an epoch does to them and what it puts out (``SliceOperator``).

No locks: a slice is used by one thread at a time, and its caller sees to that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

import pyarrow as pa

from holdfast.state import copies
from holdfast.state.columns import Arena, Array, Ints
from holdfast.state.feedback import NO_FEEDBACK
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.table import Layout, Table
from holdfast.state.undo import Snapshot
from holdfast.state.work import MAIN, NEVER, NO_PEERS, NO_TIME, EpochTime, Turn, Work

__all__ = [
    "MAIN",
    "NEVER",
    "NO_TIME",
    "EpochTime",
    "Mode",
    "SliceOperator",
    "SliceState",
    "Turn",
    "Work",
    "read_copy",
]

Mode = Literal["changed", "all", "changelog"]


@runtime_checkable
class SliceState(Protocol):
    """Apply, undo, delta, load, read, size."""

    epoch: int
    touched: int
    """The last epoch that may have changed something: no delta after it has any rows."""

    @property
    def empty(self) -> bool:
        """Whether it has never had a row, and never could be told from one that has just been made."""

    def apply(
        self,
        epoch: int,
        *inputs: Rows | Iterable[Rows] | None,
        time: EpochTime = NO_TIME,
        peers: Mapping[str, SliceState] = NO_PEERS,
        feedback: Mapping[str, bytes] = NO_FEEDBACK,
        turn: Turn | None = None,
    ) -> None:
        """Bring the slice from ``epoch`` - 1 to ``epoch``. If it raises, the slice is as it was.

        An input may come in pieces where its operator is gradual; what comes of it is the same.

        ``peers`` are the same slice of stages that this one looks into, which have applied the epoch already;
        ``feedback`` is what the epoch before has fed back. A ``turn`` comes before the rows; what stands no more by it
        is taken back.
        """

    def run_by(self, operator: SliceOperator) -> None:
        """From now on epochs are applied by this operator, which keeps the same tables in another way."""

    def pass_over(self, epoch: int) -> None:
        """Bring the slice to ``epoch``, in which nothing happened to it: it is as if that had been applied without
        rows, at no cost. Dead rows are left behind by the next epoch that is applied."""

    def begin_with(self, parts: Sequence[pa.RecordBatch], epoch: int) -> None:
        """Become what full copies of another slice with the same tables say, as of ``epoch``. For whoever has a copy of
        this one from before, all of it is new in the epoch after: deltas into that bring every row."""

    def undo(self) -> None:
        """Take the last epoch back."""

    def release(self, epoch: int) -> None:
        """Epochs up to this one will not be undone, nor epochs below it read."""

    def delta(self, base: int, epoch: int, start: int = 0, count: int | None = None, table: int = 0) -> pa.RecordBatch:
        """Rows of a table changed in (base, epoch], as of ``epoch``, of ``count`` slots from ``start`` on; base 0 is a
        full copy.

        Parts that follow one another may be asked for while later epochs are applied or undone in between: as long as
        ``epoch`` is held, together they are what one call would have given.
        """

    def whole(self, epoch: int) -> list[pa.RecordBatch]:
        """Full copies of all tables as of ``epoch``."""

    def part(
        self, base: int, epoch: int, start: int = 0, count: int | None = None, table: int = 0
    ) -> tuple[copies.Header, copies.Picked]:
        """The same, with what it is beside it, and not yet Arrow: for those who send many of them."""

    def load(self, parts: Sequence[pa.RecordBatch], epoch: int) -> None:
        """Become what full copies of the tables and the deltas after them say."""

    def activate(self, loaded: Sequence[copies.Loader]) -> None:
        """Become what loaders have put together, one a table. They are this slice's from now on."""

    def demote(self) -> list[copies.Loader]:
        """The state at its present epoch as loaders that deltas may go on from. The slice itself is over."""

    def read(self, epoch: int, keys: KeyRows | None = None) -> pa.RecordBatch:
        """The first table's rows as of ``epoch``: all, or those of ``keys`` that exist, in their order."""

    def lookup(self, keys: KeyRows) -> tuple[Array, pa.RecordBatch]:
        """Which of ``keys`` there are at the present epoch, and the first table's rows of those, in their order."""

    def outputs(self, epoch: int, mode: Mode, port: str = MAIN) -> pa.RecordBatch:
        """What the epoch puts out, in an order that is part of the state."""

    @property
    def rows(self) -> int: ...

    @property
    def changed(self) -> int:
        """How many rows the last epoch puts out."""

    @property
    def counts(self) -> Mapping[str, int]:
        """What the last epoch counted: late rows and the like."""

    @property
    def due(self) -> int | None:
        """The clock (µs) at which an epoch would do something though no row comes; None: never."""

    @property
    def oldest(self) -> int | None:
        """When the oldest session that is open began, µs of event time; None: none is, or these are no sessions."""

    @property
    def nbytes(self) -> int: ...

    @property
    def undo_nbytes(self) -> int:
        """How much of it is only there to undo epochs or to read older ones."""


class SliceOperator(Protocol):
    """What a slice asks of its operator. The first layout is that of the table that ``read`` reads."""

    layouts: tuple[Layout, ...]
    emits: bool
    clocked: bool
    """Whether the clock alone can make it do something."""
    sweeps: bool
    """Whether every epoch forgets what the clock says, with rows or without."""
    gradual: bool
    """Whether the rows of an epoch may come in pieces: then it is ``Gradual`` too."""
    stands: bool
    """Whether the rows of the first table are what it has emitted and not taken back."""

    def due(self, tables: Sequence[Table]) -> int | None:
        """When it will: the clock in microseconds."""

    def oldest(self, tables: Sequence[Table]) -> int | None:
        """When the oldest open session began, if it has such."""

    def apply(self, work: Work, *inputs: Rows | None) -> None:
        """What the epoch does. Called in every epoch, with rows or without."""

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.RecordBatch:
        """Rows of the first table as people see them."""

    def find(self, table: Table, keys: KeyRows) -> Ints:
        """The slots of the first table that belong to these keys of the stage, -1 where there is none."""

    def empty(self, port: str) -> pa.RecordBatch:
        """No rows of that output."""


@runtime_checkable
class Cutting(Protocol):
    """An operator that shows the first rows only, of which there may be fewer from an epoch on."""

    def cut_down(self, work: Work) -> None:
        """Of all groups, what is behind the first rows goes."""


@runtime_checkable
class Gradual(Protocol):
    """An operator of one input that takes rows piece by piece; what comes of it is what ``apply`` makes of them all."""

    def take(self, work: Work, rows: Rows) -> None:
        """Some rows of the epoch, after those that came before."""

    def settle(self, work: Work) -> None:
        """All rows of the epoch have come."""


def read_copy(operator: SliceOperator, copy: copies.Loader, keys: KeyRows) -> pa.RecordBatch:
    """Rows of those of ``keys`` that a copy of the first table has; slower than a slice's own read."""
    snapshot = Snapshot.of(copy.table)
    copy.table.reindex(copy.table.rows)
    try:
        slots = operator.find(copy.table, keys)
    finally:
        copy.table.drop_index()
    slots = snapshot.living(slots[slots >= 0])
    return operator.finish(copy.table.keys(slots), snapshot.columns(slots), copy.table.arenas)
