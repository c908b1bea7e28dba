"""A slice's state: the six questions, and their columnar answer.

``SliceState`` is what backup, checkpoint, migration, recovery and queries are written against.
``ColumnarSlice`` answers it for every operator whose state is a row of accumulators per key: the operator
says how rows fold into columns and how columns become output; epochs, undo, deltas and reads are the same
for all and live here.

No locks: a slice is used by one thread at a time, and its caller sees to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from holdfast.errors import EpochGone, FunctionError
from holdfast.state import copies
from holdfast.state.columns import Arena, Array, Ints
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.table import Layout, Table
from holdfast.state.undo import Snapshot, UndoSet

Mode = Literal["changed", "all", "changelog"]
# Below this many rows dead ones cost less than renumbering everybody.
PURGE_ABOVE = 1024


@runtime_checkable
class SliceState(Protocol):
    """Apply, undo, delta, load, read, size."""

    epoch: int

    def apply(self, epoch: int, rows: Rows | None) -> None:
        """Bring the slice from ``epoch`` - 1 to ``epoch``. If it raises, the slice is as it was."""

    def undo(self) -> None:
        """Take the last epoch back."""

    def release(self, epoch: int) -> None:
        """Epochs up to this one will not be undone, nor epochs below it read."""

    def delta(self, base: int, epoch: int, start: int = 0, count: int | None = None) -> pa.RecordBatch:
        """Rows changed in (base, epoch], as of ``epoch``, of ``count`` slots from ``start`` on; base 0 is a full copy.

        Parts that follow one another may be asked for while later epochs are applied or undone in between: as long as
        ``epoch`` is held, together they are what one call would have given.
        """

    def load(self, parts: Sequence[pa.RecordBatch], epoch: int) -> None:
        """Become what a full copy and the deltas after it say."""

    def activate(self, copy: copies.Loader) -> None:
        """Become what a loader has put together. It is this slice's from now on."""

    def demote(self) -> copies.Loader:
        """The state at its present epoch as a loader that deltas may go on from. The slice itself is over."""

    def read(self, epoch: int, keys: KeyRows | None = None) -> pa.RecordBatch:
        """Output rows as of ``epoch``: all, or those of ``keys`` that exist, in their order."""

    def outputs(self, epoch: int, mode: Mode) -> pa.RecordBatch:
        """What the epoch puts out, in slot order."""

    @property
    def rows(self) -> int: ...

    @property
    def changed(self) -> int:
        """How many keys the last epoch touched."""

    @property
    def nbytes(self) -> int: ...

    @property
    def undo_nbytes(self) -> int:
        """How much of it is only there to undo epochs or to read older ones."""


class SliceOperator(Protocol):
    """What a columnar slice asks of its operator."""

    layout: Layout
    changelog_schema: pa.Schema

    def fold(self, table: Table, slots: Ints, rows: Rows) -> None: ...

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.RecordBatch: ...


def read_copy(operator: SliceOperator, copy: copies.Loader, keys: KeyRows) -> pa.RecordBatch:
    """Output rows of those of ``keys`` that a copy has, in their order; slower than a slice's own read."""
    snapshot = Snapshot.of(copy.table)
    slots = copy.table.search(keys)
    slots = snapshot.living(slots[slots >= 0])
    return operator.finish(copy.table.keys(slots), snapshot.columns(slots), copy.table.arenas)


class ColumnarSlice:
    """One slice of a keyed stage, in columns."""

    def __init__(self, operator: SliceOperator) -> None:
        self.epoch = 0
        self._operator = operator
        self._table = Table(operator.layout)
        self._undo: list[UndoSet] = []  # oldest first, one for each epoch up to the present one

    # -- apply and undo

    def apply(self, epoch: int, rows: Rows | None) -> None:
        assert epoch == self.epoch + 1, f"epoch {epoch} cannot follow {self.epoch}"
        former = self._purge(epoch)
        self._leave_garbage()
        undo = UndoSet.begin(epoch, self._table, former)
        self._undo.append(undo)
        self.epoch = epoch
        if rows is None or not len(rows):
            return
        try:
            placed = self._table.place(rows.keys, epoch)
            undo.take(self._table, placed)
            self._operator.fold(self._table, placed.slots, rows)
            self._bury(undo)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        if not self._undo:
            raise EpochGone(
                f"epoch {self.epoch} can no longer be undone.",
                safe="the slice is unchanged.",
                todo="recover the slice from a copy and the log.",
            )
        self._table = self._undo.pop().restore(self._table)
        self.epoch -= 1

    def release(self, epoch: int) -> None:
        self._undo = [undo for undo in self._undo if undo.epoch > epoch]

    def _bury(self, undo: UndoSet) -> None:
        """Rows whose count came down to 0 are dead: they keep slot, key and change epoch, and forget the
        rest.
        """
        alive = self._table.layout.alive
        if alive is None:
            return
        table = self._table
        concerned = np.concatenate([undo.slots, np.arange(undo.rows, table.rows)])
        counts = table.columns[alive][concerned]
        if (counts < 0).any():
            raise FunctionError(
                f"{int((counts < 0).sum())} keys had more rows taken back than they ever got.",
                safe="the slice is as it was before this epoch.",
                todo="check that the updating input sends every row with +1 before it takes it back with -1.",
            )
        dead = concerned[counts == 0]
        for column in table.columns:
            column[dead] = 0

    def _purge(self, epoch: int) -> Table | None:
        """Leave dead rows behind when they are the majority; the table before, if that happened.

        When depends on the rows alone, so every copy of the slice purges in the same epoch.
        """
        table, alive = self._table, self._table.layout.alive
        if alive is None or table.rows <= PURGE_ABOVE:
            return None
        living = np.flatnonzero(table.columns[alive][: table.rows])
        if 2 * len(living) >= table.rows:
            return None
        self._table = table.kept(living)
        self._table.purged_at = epoch
        return table

    def _leave_garbage(self) -> None:
        """Bytes that neither a row nor an undo set points at may go."""
        self._table.leave_garbage([undo.columns for undo in self._undo if undo.columns])

    # -- copies

    def delta(self, base: int, epoch: int, start: int = 0, count: int | None = None) -> pa.RecordBatch:
        assert 0 <= base <= epoch, f"a delta cannot lead from epoch {base} to {epoch}"
        snapshot = self._as_of(epoch)
        # A purge gave rows new slots: what is based on the old ones cannot be patched.
        purged_at = snapshot.table.purged_at
        full = base == 0 or base < purged_at
        stop = snapshot.rows if count is None else min(start + count, snapshot.rows)
        assert 0 <= start <= stop, f"there is no slot {start} at epoch {epoch}"
        slots = snapshot.slots(start, stop) if full else snapshot.changed(base, start, stop)
        return copies.encode(snapshot, slots, copies.Header(base, epoch, full, snapshot.rows, purged_at, start, stop))

    def load(self, parts: Sequence[pa.RecordBatch], epoch: int) -> None:
        loader = copies.Loader(self._operator.layout)
        for part in parts:
            loader.add(part)
        if not parts:
            loader.epoch = epoch
        assert loader.epoch == epoch, f"copies up to {loader.epoch} do not make epoch {epoch}"
        self.activate(loader)

    def activate(self, copy: copies.Loader) -> None:
        self._table, self._undo, self.epoch = copy.finish(), [], copy.epoch

    def demote(self) -> copies.Loader:
        copy = copies.Loader(self._operator.layout, self._table, self.epoch)
        # Whoever still has this object finds no epoch in it.
        self._table, self._undo, self.epoch = Table(self._operator.layout), [], -1
        return copy

    # -- reads

    def read(self, epoch: int, keys: KeyRows | None = None) -> pa.RecordBatch:
        snapshot = self._as_of(epoch)
        if keys is None:
            return self._finished(snapshot, snapshot.slots())
        slots = snapshot.table.find(keys)
        return self._finished(snapshot, slots[(slots >= 0) & (slots < snapshot.rows)])

    def outputs(self, epoch: int, mode: Mode) -> pa.RecordBatch:
        snapshot = self._as_of(epoch)
        if mode == "all":
            return self._finished(snapshot, snapshot.slots())
        if mode == "changed":
            return self._finished(snapshot, snapshot.changed(epoch - 1))
        assert mode == "changelog", f"unknown output mode {mode!r}"
        return self._changelog(snapshot, epoch)

    @property
    def rows(self) -> int:
        alive = self._table.layout.alive
        rows = self._table.rows
        return rows if alive is None else int(np.count_nonzero(self._table.columns[alive][:rows]))

    @property
    def changed(self) -> int:
        if not self._undo:
            return 0
        last = self._undo[-1]
        return len(last.slots) + self._table.rows - last.rows

    @property
    def nbytes(self) -> int:
        return self._table.nbytes + self.undo_nbytes

    @property
    def undo_nbytes(self) -> int:
        return sum(undo.nbytes for undo in self._undo)

    def _as_of(self, epoch: int) -> Snapshot:
        if epoch == self.epoch:
            return Snapshot.of(self._table)
        later = [undo for undo in reversed(self._undo) if undo.epoch > epoch]
        if epoch > self.epoch or len(later) != self.epoch - epoch:
            raise self._gone(epoch)
        return Snapshot.before(self._table, later)

    def _gone(self, epoch: int) -> EpochGone:
        return EpochGone(
            f"epoch {epoch} is not held, only {self.epoch - len(self._undo)} to {self.epoch}.",
            safe="the state itself is complete.",
            todo="read again at the latest committed epoch.",
        )

    def _finished(self, snapshot: Snapshot, slots: Ints) -> pa.RecordBatch:
        slots = snapshot.living(slots)
        return self._operator.finish(snapshot.table.keys(slots), snapshot.columns(slots), snapshot.table.arenas)

    def _changelog(self, snapshot: Snapshot, epoch: int) -> pa.RecordBatch:
        """Per changed key the old row with -1, then the new one with +1, in slot order."""
        undo = next((undo for undo in self._undo if undo.epoch == epoch), None)
        if undo is None:
            raise self._gone(epoch - 1)
        alive = snapshot.table.layout.alive
        new = snapshot.living(snapshot.changed(epoch - 1))
        latest = snapshot.columns(new)
        images = undo.columns or [column[:0] for column in latest]
        old = np.arange(len(undo.slots)) if alive is None else np.flatnonzero(images[alive])
        slots = np.concatenate([undo.slots[old], new])
        sign = np.concatenate([np.full(len(old), -1, np.int8), np.ones(len(new), np.int8)])
        order = np.lexsort((sign, slots))
        columns = [np.concatenate([image[old], now])[order] for image, now in zip(images, latest, strict=True)]
        rows = self._operator.finish(snapshot.table.keys(slots[order]), columns, snapshot.table.arenas)
        return pa.RecordBatch.from_arrays(
            [*rows.columns, pa.array(sign[order])], schema=self._operator.changelog_schema
        )
