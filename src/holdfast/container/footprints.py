"""Slices by their units: entries into the log as epochs are applied, and slices put together again from the log.

A slice comes back in three steps. Its history is read backwards until all units that live are found; what was over
since has a floor, as those that live have their footprint. The epochs above the oldest footprint are replayed, each
unit from its own on: before that it is not there, and sees neither rows nor time. At the end every unit has as many
rows as were counted, or the slice is not taken.

Where an entry cannot be read the same is done as of the epoch before it, and the rest is replayed as it was the first
time; the units of that part have no footprint then, and are written again before long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.container.slices import HostedStage
from holdfast.errors import CorruptionError, StoreError
from holdfast.invariants import Impossible, some
from holdfast.log.footprints import (
    INLINE_BYTES,
    BadEntry,
    Chains,
    Entry,
    EntryWriter,
    SliceSaid,
    Wrote,
    control_rows,
    entry_name,
    newest,
)
from holdfast.log.ledger import Ledger
from holdfast.log.records import Fence
from holdfast.operators.marked import Floors, Marked, Replaying, counted
from holdfast.operators.unit_table import ONE, OPEN, TOTALS, UNITS, keys_of
from holdfast.state import copies, inserting
from holdfast.state.columns import NO_INTS
from holdfast.state.keys import KeyRows
from holdfast.state.slice import SliceState
from holdfast.state.table import Layout
from holdfast.state.table_slice import TableSlice
from holdfast.state.work import SliceEntry

TOGETHER_BYTES = 256 << 10
"""What is read at once of an epoch: who wants one slice reads no more of others."""

Stage = tuple[str, Marked, Sequence[tuple[int, SliceEntry]]]


def of_level(
    stages: Iterable[HostedStage], slices: Sequence[int], ledger: Ledger, fence: Fence, level: int, label: str
) -> Wrote | None:
    """What the last epoch has to say of these slices."""
    found: list[Stage] = []
    for stage in stages:
        entries = []
        for number in slices:
            state = stage.held(number).state
            if isinstance(state, TableSlice) and state.epoch == fence.epoch and state.entry is not None:
                entries.append((number, state.entry))
        if isinstance(stage.operator, Marked):
            found.append((stage.plan.name, stage.operator, entries))
    return written(found, ledger, fence, level, label)


def written(stages: Iterable[Stage], ledger: Ledger, fence: Fence, level: int, label: str) -> Wrote | None:
    """The entries of a level's stages, slice by slice: in a file that is synced, or as bytes where they are few."""
    writer, told = EntryWriter(), {}
    for stage, marked, entries in stages:
        if not entries:
            continue
        for some_of in _together(entries):
            writer.add(stage, *_laid_out(marked, some_of))
        told[stage] = tuple((number, entry.living, entry.oldest) for number, entry in entries)
    if not told:
        return None
    file, checksum = writer.finish()
    name = entry_name(fence.epoch, level, fence.incarnation, label)
    if sum(map(len, file)) <= INLINE_BYTES:
        return Wrote(name, checksum, told, b"".join(bytes(part) for part in file))
    ledger.section.write(name, file)
    return Wrote(name, checksum, told)


def _together(entries: Sequence[tuple[int, SliceEntry]]) -> Iterator[Sequence[tuple[int, SliceEntry]]]:
    """Slices whose entries are read together: many small ones, or a large one alone."""
    found: list[tuple[int, SliceEntry]] = []
    nbytes = 0
    for number, entry in entries:
        found.append((number, entry))
        nbytes += sum(one.nbytes for part in entry.parts for one in part)
        if nbytes >= TOGETHER_BYTES:
            yield found
            found, nbytes = [], 0
    if found:
        yield found


def _laid_out(
    marked: Marked, entries: Sequence[tuple[int, SliceEntry]]
) -> tuple[list[SliceSaid], list[pa.RecordBatch]]:
    said = []
    for number, entry in entries:
        tables = [sum(part[at].rows for part in entry.parts) for at in range(marked.units_table)]
        rows = (sum(map(len, entry.units)), *tables)
        said.append(SliceSaid(number, entry.living, entry.logged, entry.taken, rows))
    control = control_rows(
        *(
            np.concatenate([part for _, entry in entries for part in getattr(entry, name)])
            for name in ("units", "kinds", "rows")
        )
    )
    batches = [control]
    for at in range(marked.units_table):
        parts = [part[at] for _, entry in entries for part in entry.parts]
        batches.append(copies.encode([part for part in parts if part.rows] or parts[:1]))
    return said, batches


@dataclass
class Recovering:
    """A slice on its way back: its history up to ``through``, and the slice."""

    marked: Marked
    history: Sequence[Entry]
    through: int

    def __post_init__(self) -> None:
        history = self.history
        units = np.concatenate([NO_INTS, *(one.units for one in history)])
        epochs = np.repeat([one.epoch for one in history], [len(one.units) for one in history])
        every, first = np.unique(units, return_index=True)
        self._floors = Floors(every, epochs[first].astype(np.int64))
        self._units, at = newest(history)
        self._epochs = epochs[at].astype(np.int64)
        self.oldest = int(self._epochs.min()) if len(at) else self.through
        self._columns = [
            np.concatenate([NO_INTS, *(one.rows for one in history)])[at],
            self._epochs,
            np.concatenate([NO_INTS, *map(_positions, history)])[at],
            np.repeat([one.said.taken for one in history], [len(one.units) for one in history])[at].astype(np.int64),
        ]
        self._by_epoch = {one.epoch: one for one in history}
        self.operator = Replaying(self.marked.operator, self._floors, history[0].epoch if history else 0)

    def begin(self) -> TableSlice:
        """The slice as of the oldest footprint: with none of its units."""
        state = TableSlice(self.marked)
        state.load([], self.oldest)
        if self.history:
            said = self.history[0].said
            state.insert({self.marked.totals_table: _picked(TOTALS, ONE, [said.taken, said.logged, 0], self.oldest)})
        return state

    def before(self, state: SliceState, epoch: int) -> None:
        """Units whose footprint is of the epoch before come in."""
        if not isinstance(state, TableSlice):
            raise Impossible("a slice with units is in tables")
        if epoch - 1 <= self.through:
            self._insert(state, epoch - 1)
        if epoch - 1 == self.through:
            self._check(state)

    def _insert(self, state: TableSlice, epoch: int) -> None:
        mine = self._epochs == epoch
        if not mine.any():
            return
        units = self._units[mine]
        parts: dict[int, copies.Picked] = {}
        for at, batch in enumerate(self._by_epoch[epoch].tables):
            layout = self.marked.layouts[at]
            rows = some(copies.decode(batch, layout), "an entry has the columns of its stage")
            of = self.marked.units(at, inserting.keys_of(rows))
            keep = np.isin(of, units)
            if keep.any():
                chosen = batch if keep.all() else batch.take(pa.array(np.flatnonzero(keep)))
                parts[at] = some(copies.decode(chosen, layout), "the same columns")
        columns = [column[mine] for column in self._columns]
        parts[self.marked.units_table] = _picked(UNITS, keys_of(units), columns, epoch)
        state.insert(parts)
        totals = state.tables[self.marked.totals_table].columns
        totals[2][0] += len(units)

    def _check(self, state: TableSlice) -> None:
        tables = state.tables
        units = tables[self.marked.units_table]
        alive = np.flatnonzero(units.columns[0][: units.rows] > 0)
        said = dict(zip(units.words[alive, 0].tolist(), units.columns[0][alive].tolist(), strict=True))
        if said != counted(self.marked.operator, tables[: self.marked.units_table]) or len(said) != len(self._units):
            raise CorruptionError(
                f"What the log says of units up to epoch {self.through}, replayed, is not what was counted.",
                safe="Nothing was changed.",
                todo="Bring the files under 'entry' and 'commit' back from a copy of the store.",
            )


Packed = Callable[[str, int], Sequence[pa.RecordBatch]]
"""Of a stage and a slice, its operator's tables in the checkpoint that the graph begins with."""


def packed(marked: Marked, number: int, epoch: int, tables: Sequence[pa.RecordBatch]) -> Entry:
    """A checkpoint's part of a slice, as the entry that it stands for: a footprint of every unit in it."""
    found, living = [], []
    for at, batch in enumerate(tables):
        layout = marked.layouts[at]
        if layout.alive is not None:
            counts = batch.column(batch.schema.get_field_index(f"a{layout.alive}")).to_numpy(zero_copy_only=False)
            if not counts.all():
                batch = batch.take(pa.array(np.flatnonzero(counts)))
        living.append(batch)
        rows = some(copies.decode(batch, layout), "a checkpoint has the columns of its stage")
        found.append(marked.units(at, inserting.keys_of(rows)) if rows.rows else NO_INTS)
    units, rows_of = np.unique(np.concatenate([NO_INTS, *found]), return_counts=True)
    said = SliceSaid(number, len(units), 0, 0, (len(units), *(batch.num_rows for batch in living)))
    return Entry(epoch, 0, said, units, np.full(len(units), OPEN, np.int8), rows_of.astype(np.int64), living)


class Recovery:
    """Slices of one job that come back from the log, as of ``epoch`` or as close before it as it can be read."""

    def __init__(self, ledger: Ledger, epoch: int, pack: Packed | None = None) -> None:
        self._chains = Chains(ledger)
        self._epoch, self._pack = epoch, pack
        self.told: list[str] = []

    @property
    def nbytes(self) -> int:
        return self._chains.nbytes

    def of(self, stage: str, marked: Marked, number: int) -> Recovering:
        through, first, base = self._epoch, None, self._chains.base
        while through and through >= base:
            try:
                history = self._history(stage, marked, number, through)
            except BadEntry as error:
                first, through = first or error, min(error.epoch, through) - 1
            except StoreError as error:
                raise first or error from None
            else:
                self.told += [] if first is None else [first.what]
                return Recovering(marked, history, through)
        if first is not None and base:
            raise first
        self.told += [] if first is None else [first.what]
        return Recovering(marked, [], 0)

    def _history(self, stage: str, marked: Marked, number: int, through: int) -> list[Entry]:
        """As far as it is needed, if need be down to the checkpoint that the graph begins with."""
        history = self._chains.history(stage, number, through)
        _, living, _ = self._chains.head(stage, number, through)
        if living > len(newest(history)[0]):
            tables = some(self._pack, "units are in a checkpoint")(stage, number)
            history.append(packed(marked, number, self._chains.base, tables))
            if (found := len(newest(history)[0])) != living:
                raise CorruptionError(
                    f"Log and checkpoint of slice {number} of '{stage}' up to epoch {through} have {found} of its "
                    f"{living} units.",
                    safe="Nothing was changed.",
                    todo="Bring the files under 'entry', 'commit' and 'checkpoint' back from a copy of the store.",
                )
        return history


def _positions(entry: Entry) -> np.ndarray:
    return np.arange(entry.said.logged - len(entry.units) + 1, entry.said.logged + 1)


def _picked(layout: Layout, keys: KeyRows, columns: Sequence[object], epoch: int) -> copies.Picked:
    rows = len(keys)
    change, slots = np.full(rows, epoch, np.int32), np.arange(rows, dtype=np.int32)
    values = [np.broadcast_to(np.asarray(column, np.int64), rows).copy() for column in columns]
    return copies.Picked(layout, rows, [slots, change, keys.hash, keys.nulls, keys.words, *values])
