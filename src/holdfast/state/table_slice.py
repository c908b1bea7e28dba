"""The columnar answer to a slice's six questions, for every operator.

Epochs, undo, deltas and reads are the same for all and live here. An operator touches rows only through ``Work``. What
it puts out is either a view of its first table (a running aggregate: rows whose change epoch is this one) or rows that
it emits there.

It is long because the questions are answered from the same few tables and undo sets, which nobody else touches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from holdfast.errors import EpochGone
from holdfast.invariants import Impossible, invariant
from holdfast.state import copies, inserting
from holdfast.state.columns import NO_INTS, Array, Ints
from holdfast.state.feedback import NO_FEEDBACK
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.slice import Cutting, Gradual, Mode, SliceOperator, SliceState
from holdfast.state.table import Table
from holdfast.state.undo import Snapshot, UndoSet
from holdfast.state.work import MAIN, NO_PEERS, NO_TIME, Emitted, EpochTime, SliceEntry, TakenBack, Turn, Work

PURGE_ABOVE = 1024
"""Below this many rows dead ones cost less than renumbering everybody."""


class TableSlice:
    """One slice of a stage, in tables."""

    def __init__(self, operator: SliceOperator) -> None:
        self.epoch = 0
        self._operator = operator
        self._tables = [Table(layout) for layout in operator.layouts]
        # Of the epochs after ``_since`` in which something happened, oldest first: an undo set a table, and what was
        # put out. Others have none.
        self._undo: list[list[UndoSet]] = []
        self._emitted: list[Emitted] = []
        self._since = 0
        """The oldest epoch that it can be taken back to, or read as of."""
        self.touched = 0
        """The last epoch that may have changed something."""
        self._living: int | None = None  # rows of the first table, once somebody has asked

    # -- apply and undo

    def apply(
        self,
        epoch: int,
        *inputs: Rows | Iterable[Rows] | None,
        time: EpochTime = NO_TIME,
        peers: Mapping[str, SliceState] = NO_PEERS,
        feedback: Mapping[str, bytes] = NO_FEEDBACK,
        turn: Turn | None = None,
    ) -> None:
        invariant(epoch == self.epoch + 1, f"epoch {epoch} cannot follow {self.epoch}")
        if turn == "reset":
            former: list[Table | None] = [*self._tables]
            self._tables = [_emptied(table, epoch) for table in self._tables]
        else:
            former = [self._purge(at, epoch) for at in range(len(self._tables))]
        self._leave_garbage()
        sets = [UndoSet.begin(epoch, table, was) for table, was in zip(self._tables, former, strict=True)]
        work = Work(epoch, time, self._tables, sets, peers, feedback)
        self._undo.append(sets)
        self._emitted.append(work.emitted)
        self.epoch, before, self.touched = epoch, self.touched, epoch
        self._living = None
        try:
            self._turn(work, turn, former[0])
            whole = [one for one in inputs if one is None or isinstance(one, Rows)]
            if len(whole) == len(inputs):
                self._operator.apply(work, *whole)
            else:
                self._apply_pieces(work, *inputs)
        except BaseException:
            self.undo()
            self.touched = before
            raise

    def _turn(self, work: Work, turn: Turn | None, former: Table | None) -> None:
        operator = self._operator
        if turn == "cut" and isinstance(operator, Cutting):
            operator.cut_down(work)
        elif turn == "reset" and former is not None and operator.emits and operator.stands:
            gone = Snapshot.of(former)
            work.take_back(operator.finish, gone.living(gone.slots()), former)

    def run_by(self, operator: SliceOperator) -> None:
        self._operator = operator

    def pass_over(self, epoch: int) -> None:
        invariant(epoch == self.epoch + 1, f"epoch {epoch} cannot follow {self.epoch}")
        self.epoch = epoch

    def begin_with(self, parts: Sequence[pa.RecordBatch], epoch: int) -> None:
        self.load(parts, epoch)
        for table in self._tables:
            table.purged_at = epoch + 1
        self.touched = epoch + 1

    def _apply_pieces(self, work: Work, *inputs: Rows | Iterable[Rows] | None) -> None:
        (pieces,) = inputs
        operator = self._operator
        if not isinstance(operator, Gradual) or not isinstance(pieces, Iterable):
            raise Impossible("rows came in pieces to an operator that needs all of them at once")
        for rows in pieces:
            operator.take(work, rows)
            self._leave_garbage()  # every piece may have replaced the strings of the one before
        operator.settle(work)

    def undo(self) -> None:
        if self.epoch <= self._since:
            raise EpochGone(
                f"epoch {self.epoch} can no longer be undone.",
                safe="the slice is unchanged.",
                todo="recover the slice from a copy and the log.",
            )
        self._living = None
        if self._last is not None:
            self._emitted.pop()
            self._tables = [undo.restore(table) for undo, table in zip(self._undo.pop(), self._tables, strict=True)]
        self.epoch -= 1

    def release(self, epoch: int) -> None:
        self._since = max(self._since, min(epoch, self.epoch))
        if not self._undo:
            return
        released = sum(sets[0].epoch <= self._since for sets in self._undo)
        if released:
            self._undo, self._emitted = self._undo[released:], self._emitted[released:]

    @property
    def _last(self) -> list[UndoSet] | None:
        """What takes the present epoch back, if anything happened in it."""
        return self._undo[-1] if self._undo and self._undo[-1][0].epoch == self.epoch else None

    def _purge(self, at: int, epoch: int) -> Table | None:
        """Leave dead rows behind when they are the majority; the table before, if that happened.

        When depends on the rows alone, so every copy of the slice purges in the same epoch.
        """
        table = self._tables[at]
        alive = table.layout.alive
        if alive is None or table.rows <= PURGE_ABOVE:
            return None
        counts = table.columns[alive][: table.rows]
        if 2 * np.count_nonzero(counts) >= table.rows:
            return None
        self._tables[at] = table.kept(np.flatnonzero(counts))
        self._tables[at].purged_at = epoch
        return table

    def _leave_garbage(self) -> None:
        """Bytes that neither a row nor an undo set points at may go."""
        for at, table in enumerate(self._tables):
            images = []
            for sets in reversed(self._undo if table.purged_at <= self.epoch else ()):
                if sets[at].columns:
                    images.append(sets[at].columns)
                if sets[at].former is not None:
                    break  # what is older points into the arenas of the table before
            table.leave_garbage(images)

    # -- copies

    def delta(self, base: int, epoch: int, start: int = 0, count: int | None = None, table: int = 0) -> pa.RecordBatch:
        header, rows = self.part(base, epoch, start, count, table)
        return copies.labelled(copies.encode([rows]), header)

    def whole(self, epoch: int) -> list[pa.RecordBatch]:
        return [self.delta(0, epoch, table=at) for at in range(len(self._tables))]

    def part(
        self, base: int, epoch: int, start: int = 0, count: int | None = None, table: int = 0
    ) -> tuple[copies.Header, copies.Picked]:
        invariant(0 <= base <= epoch, f"a delta cannot lead from epoch {base} to {epoch}")
        snapshot = self._as_of(epoch, table)
        # A purge gave rows new slots: what is based on the old ones cannot be patched.
        purged_at = snapshot.table.purged_at
        full = base == 0 or base < purged_at
        stop = snapshot.rows if count is None else min(start + count, snapshot.rows)
        invariant(0 <= start <= stop, f"there is no slot {start} at epoch {epoch}")
        slots = snapshot.slots(start, stop) if full else snapshot.changed(base, start, stop)
        header = copies.Header(base, epoch, full, snapshot.rows, purged_at, start, stop, table=table)
        return header, copies.pick(snapshot, slots)

    def load(self, parts: Sequence[pa.RecordBatch], epoch: int) -> None:
        loaders = [copies.Loader(layout) for layout in self._operator.layouts]
        for part in parts:
            header = copies.header_of(part)
            loaders[header.table].add(part, header)
        if not parts:
            for loader in loaders:
                loader.epoch = epoch
        invariant(
            all(loader.epoch == epoch for loader in loaders),
            f"copies up to {[loader.epoch for loader in loaders]} do not make epoch {epoch}",
        )
        self.activate(loaders)

    def activate(self, loaded: Sequence[copies.Loader]) -> None:
        (epoch,) = {loader.epoch for loader in loaded}
        self._tables, self._undo, self._emitted = [loader.finish() for loader in loaded], [], []
        self.epoch = self._since = self.touched = epoch
        self._living = None

    def demote(self) -> list[copies.Loader]:
        layouts = self._operator.layouts
        loaded = [copies.Loader(layout, table, self.epoch) for layout, table in zip(layouts, self._tables, strict=True)]
        # Whoever still has this object finds no epoch in it.
        self._tables, self._undo, self._emitted = [Table(layout) for layout in layouts], [], []
        self.epoch = self._since = -1
        return loaded

    # -- reads

    def read(self, epoch: int, keys: KeyRows | None = None) -> pa.RecordBatch:
        snapshot = self._as_of(epoch)
        if keys is None:
            return self._finished(snapshot, snapshot.slots())
        slots = self._operator.find(snapshot.table, keys)
        return self._finished(snapshot, slots[(slots >= 0) & (slots < snapshot.rows)])

    def lookup(self, keys: KeyRows) -> tuple[Array, pa.RecordBatch]:
        snapshot = Snapshot.of(self._tables[0])
        slots = self._operator.find(snapshot.table, keys)
        alive = snapshot.table.layout.alive
        known = slots >= 0
        if alive is not None:
            known[known] = snapshot.table.columns[alive][slots[known]] > 0
        return known, self._finished(snapshot, slots[known])

    def outputs(self, epoch: int, mode: Mode, port: str = MAIN) -> pa.RecordBatch:
        if mode != "all" and (self._operator.emits or port != MAIN):
            return self._emission(epoch, mode, port)
        snapshot = self._as_of(epoch)
        if mode == "all":
            return self._finished(snapshot, snapshot.slots())
        if epoch == 0:  # nothing has happened yet
            return self._signed(self._operator.empty(port), np.empty(0, np.int8), mode)
        if mode == "changed":
            return self._finished(snapshot, snapshot.changed(epoch - 1))
        invariant(mode == "changelog", f"unknown output mode {mode!r}")
        return self._changelog(snapshot, epoch)

    def _emission(self, epoch: int, mode: Mode, port: str) -> pa.RecordBatch:
        # Before its first epoch a slice has put out nothing; a released one is gone.
        if (epoch > self.epoch or epoch <= self._since) and not epoch == self.epoch == 0:
            raise self._gone(epoch)
        at = next((at for at, sets in enumerate(self._undo) if sets[0].epoch == epoch), None)
        emitted: Emitted = Emitted() if at is None else self._emitted[at]
        batches, signs = [], []
        for batch, sign in zip(emitted.batches.get(port, ()), emitted.signs.get(port, ()), strict=True):
            if isinstance(batch, pa.RecordBatch) or mode == "changelog":
                batches.append(batch.made() if isinstance(batch, TakenBack) else batch)
                signs.append(sign)
        if not batches:
            return self._signed(self._operator.empty(port), np.empty(0, np.int8), mode)
        rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return self._signed(rows, np.concatenate(signs), mode)

    @staticmethod
    def _signed(rows: pa.RecordBatch, sign: Array, mode: Mode) -> pa.RecordBatch:
        if mode == "changelog":
            return rows.append_column(pa.field("_d", pa.int8()), pa.array(sign, pa.int8()))
        return rows if (sign > 0).all() else rows.filter(pa.array(sign > 0))

    @property
    def empty(self) -> bool:
        return not any(table.rows or table.purged_at for table in self._tables)

    @property
    def rows(self) -> int:
        if self._living is None:
            table = self._tables[0]
            alive = table.layout.alive
            dead = 0 if alive is None else table.rows - int(np.count_nonzero(table.columns[alive][: table.rows]))
            self._living = table.rows - dead
        return self._living

    @property
    def changed(self) -> int:
        if self._last is None:
            return 0
        if self._operator.emits:
            return self._emitted[-1].rows
        last = self._last[0]
        return len(last.slots) + self._tables[0].rows - last.rows + len(_emptied_rows(last))

    @property
    def due(self) -> int | None:
        return self._operator.due(self._tables) if self._operator.clocked else None

    @property
    def oldest(self) -> int | None:
        return self._operator.oldest(self._tables)

    @property
    def counts(self) -> Mapping[str, int]:
        return self._emitted[-1].counts if self._last is not None else {}

    @property
    def entry(self) -> SliceEntry | None:
        """What the log shall say of the last epoch."""
        return self._emitted[-1].entry if self._last is not None else None

    @property
    def tables(self) -> Sequence[Table]:
        return self._tables

    def insert(self, parts: Mapping[int, copies.Picked]) -> None:
        """Rows that it does not have, into these tables: they are as of its present epoch, behind which there is no
        way back."""
        self.release(self.epoch)
        for at, part in parts.items():
            inserting.insert(self._tables[at], part, self.epoch)
        self.touched, self._living = self.epoch, None

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in self._tables) + self.undo_nbytes

    @property
    def undo_nbytes(self) -> int:
        kept = sum(undo.nbytes for sets in self._undo for undo in sets)
        return kept + sum(emitted.nbytes for emitted in self._emitted)

    def _as_of(self, epoch: int, table: int = 0) -> Snapshot:
        if epoch == self.epoch:
            return Snapshot.of(self._tables[table])
        if not self._since <= epoch <= self.epoch:
            raise self._gone(epoch)
        later = [sets[table] for sets in reversed(self._undo) if sets[table].epoch > epoch]
        return Snapshot.before(self._tables[table], later)

    def _gone(self, epoch: int) -> EpochGone:
        return EpochGone(
            f"epoch {epoch} is not held, only {self._since} to {self.epoch}.",
            safe="the state itself is complete.",
            todo="read again at the latest committed epoch.",
        )

    def _finished(self, snapshot: Snapshot, slots: Ints) -> pa.RecordBatch:
        slots = snapshot.living(slots)
        return self._operator.finish(snapshot.table.keys(slots), snapshot.columns(slots), snapshot.table.arenas)

    def _changelog(self, snapshot: Snapshot, epoch: int) -> pa.RecordBatch:
        """Per changed key the old row with -1, then the new one with +1, in slot order."""
        if epoch <= self._since:
            raise self._gone(epoch - 1)
        undo = next((sets[0] for sets in self._undo if sets[0].epoch == epoch), None)
        if undo is None:
            return self._signed(self._operator.empty(MAIN), np.empty(0, np.int8), "changelog")
        rows, sign = changelog(
            self._operator, snapshot.table, (undo.slots, undo.columns), snapshot.changed(epoch - 1), snapshot.columns
        )
        if undo.former is not None and len(gone := _emptied_rows(undo)):
            withdrawn = self._finished(Snapshot.of(undo.former), gone)
            rows, sign = pa.concat_batches([withdrawn, rows]), np.concatenate([np.full(len(gone), -1, np.int8), sign])
        return self._signed(rows, sign, "changelog")


def _emptied(table: Table, epoch: int) -> Table:
    """In its place: slots have other numbers from now on, as after a purge."""
    made = Table(table.layout)
    made.purged_at = epoch
    return made


def _emptied_rows(undo: UndoSet) -> Ints:
    """The rows that an epoch began with emptying its table of; a purge leaves some behind."""
    if undo.former is None or undo.rows:
        return NO_INTS
    gone = Snapshot.of(undo.former)
    return gone.living(gone.slots())


def changelog(
    operator: SliceOperator,
    table: Table,
    before: tuple[Ints, Sequence[Array]],
    changed: Ints,
    columns: Callable[[Ints], list[Array]],
) -> tuple[pa.RecordBatch, Array]:
    """Rows of a table as they were (-1) and as they are (+1), key by key in slot order, with their signs.

    ``before`` has the slots that an epoch touched and their columns, ``changed`` all slots it changed or made.
    """
    alive = table.layout.alive
    latest = columns(changed)
    if alive is not None:
        living = latest[alive] > 0
        changed, latest = changed[living], [column[living] for column in latest]
    slots, images = before[0], before[1] or [column[:0] for column in latest]
    old = np.arange(len(slots)) if alive is None else np.flatnonzero(images[alive])
    all_slots = np.concatenate([slots[old], changed])
    sign = np.concatenate([np.full(len(old), -1, np.int8), np.ones(len(changed), np.int8)])
    order = np.lexsort((sign, all_slots))
    merged = [np.concatenate([image[old], now])[order] for image, now in zip(images, latest, strict=True)]
    return operator.finish(table.keys(all_slots[order]), merged, table.arenas), sign[order]
