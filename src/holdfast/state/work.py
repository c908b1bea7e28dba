"""An operator's hands during one epoch, and what it puts out with them.

Rows are touched only through ``Work``, which keeps what they were before. What is put out is kept until the epoch is
released, for nobody could make it again from a state that has closed its windows; rows that are taken back become rows
again only for those who ask for a changelog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from holdfast.invariants import Impossible
from holdfast.state.columns import Arena, Array, Ints
from holdfast.state.feedback import NO_FEEDBACK
from holdfast.state.keys import KeyRows
from holdfast.state.table import Table
from holdfast.state.undo import UndoSet

if TYPE_CHECKING:
    from holdfast.state.copies import Picked
    from holdfast.state.slice import SliceState

NEVER = -(1 << 62)
"""The watermark of a stream that has not begun."""
MAIN = ""
"""The output of a stage that has but one."""


@dataclass(frozen=True)
class EpochTime:
    """What an epoch says of time, in microseconds. Rows before ``late`` come too late; what ends by ``watermark`` may
    close; ``clock`` is processing time.
    """

    late: int = NEVER
    watermark: int = NEVER
    clock: int = 0


Turn = Literal["reset", "cut"]
"""What happens to a slice before the rows of an epoch: it is emptied, or left with what its operator still shows."""
NO_TIME = EpochTime()
NO_PEERS: Mapping[str, SliceState] = {}

Finish = Callable[[KeyRows, Sequence[Array], Sequence[Arena | None]], pa.RecordBatch]


@dataclass(frozen=True)
class TakenBack:
    """Rows that an epoch takes back, as they were: made into rows only if somebody reads the changelog."""

    finish: Finish
    keys: KeyRows
    columns: list[Array]
    arenas: list[Arena | None]

    @property
    def num_rows(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in (self.keys.words, *self.columns))

    def made(self) -> pa.RecordBatch:
        return self.finish(self.keys, self.columns, self.arenas)


@dataclass
class SliceEntry:
    """What an epoch has to say of a slice's units, in order: of each what became of it and how many rows it has, and
    the rows of those that live, table by table. Beside it, as of then: how many units live, how many such rows the log
    has in all, how many rows of the input were taken, and the epoch of the oldest footprint of a unit that lives."""

    units: list[Ints] = field(default_factory=list)
    kinds: list[Array] = field(default_factory=list)
    rows: list[Ints] = field(default_factory=list)
    parts: list[list[Picked]] = field(default_factory=list)
    living: int = 0
    logged: int = 0
    taken: int = 0
    oldest: int = 0

    def add(self, units: Ints, kinds: Array, rows: Ints, parts: list[Picked]) -> None:
        self.units.append(units)
        self.kinds.append(kinds)
        self.rows.append(rows)
        self.parts.append(parts)


@dataclass
class Emitted:
    """What an epoch put out, output by output, in order; with signs where rows are taken back."""

    batches: dict[str, list[pa.RecordBatch | TakenBack]] = field(default_factory=dict)
    signs: dict[str, list[Array]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    entry: SliceEntry | None = None
    """What the log shall say of it, if it has something to say of the slice's units."""

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batches in self.batches.values() for batch in batches)

    @property
    def nbytes(self) -> int:
        return sum(batch.nbytes for batches in self.batches.values() for batch in batches)


class Work:
    """An operator's hands during one epoch: tables to read, and the ways to change them that can be undone."""

    def __init__(
        self,
        epoch: int,
        time: EpochTime,
        tables: Sequence[Table],
        undo: Sequence[UndoSet],
        peers: Mapping[str, SliceState] = NO_PEERS,
        feedback: Mapping[str, bytes] = NO_FEEDBACK,
    ) -> None:
        self.epoch = epoch
        self.time = time
        self.tables = tables
        self.peers = peers
        self.feedback = feedback
        self.emitted = Emitted()
        self.taken = 0
        """Rows of the input so far, where they come in pieces."""
        self.made: dict[int, list[Ints]] = {}
        """The rows of each table that an epoch has made anew under the keys they had."""
        self._undo = undo

    def place(self, keys: KeyRows, table: int = 0) -> Ints:
        """The slots of all keys, about to be changed; new ones get a row of zeros."""
        placed = self.tables[table].place(keys, self.epoch)
        self._undo[table].take(self.tables[table], placed.touched, placed.changed_at)
        return placed.slots

    def touch(self, slots: Ints, table: int = 0) -> None:
        """Those rows are about to be changed. No slot twice."""
        held = self.tables[table]
        first = slots[held.change[slots] != self.epoch]
        self._undo[table].take(held, first, held.change[first])
        held.change[first] = self.epoch

    def bury(self, slots: Ints, table: int = 0) -> None:
        """Those rows die: they keep slot, key and change epoch, and forget the rest. None is dead already."""
        held = self.tables[table]
        if held.layout.alive is None:
            raise Impossible("rows of this table do not die")
        self.touch(slots, table)
        for column in held.columns:
            column[slots] = 0

    def remade(self, slots: Ints, table: int = 0) -> None:
        """Nothing of those rows is from before the epoch, though they were alive then."""
        self.made.setdefault(table, []).append(slots)

    def concerned(self, table: int = 0) -> Ints:
        """The slots that this epoch has changed so far, old ones first."""
        return np.concatenate([self._undo[table].slots, np.arange(self._undo[table].rows, self.tables[table].rows)])

    def before(self, table: int = 0) -> tuple[Ints, list[Array]]:
        """The rows this epoch has changed, as they were before: slots and columns. None that were born in it."""
        undo = self._undo[table]
        return undo.slots, undo.columns or [column[:0] for column in self.tables[table].columns]

    def born(self, table: int = 0) -> int:
        """Slots from here on were made in this epoch."""
        return self._undo[table].rows

    def emit(self, rows: pa.RecordBatch, sign: Array | None = None, port: str = MAIN) -> None:
        """Put rows out after those before; ``sign`` is -1 for a row that is taken back."""
        if rows.num_rows:
            self.emitted.batches.setdefault(port, []).append(rows)
            signs = np.ones(rows.num_rows, np.int8) if sign is None else sign.astype(np.int8)
            self.emitted.signs.setdefault(port, []).append(signs)

    def take_back(self, finish: Finish, slots: Ints, table: int | Table = 0) -> None:
        """Rows of a table that were put out as they are now, and are about to change, are not true any more."""
        if len(slots):
            held = self.tables[table] if isinstance(table, int) else table
            # An arena never changes what it has, but it is left for another one when too much of it is garbage.
            arenas = [copy(arena) for arena in held.arenas]
            gone = TakenBack(finish, held.keys(slots), [column[slots] for column in held.columns], arenas)
            self.emitted.batches.setdefault(MAIN, []).append(gone)
            self.emitted.signs.setdefault(MAIN, []).append(np.full(len(slots), -1, np.int8))

    def count(self, what: str, rows: int) -> None:
        """Say how many rows something befell; the run's status adds them up."""
        if rows:
            self.emitted.counts[what] += rows
