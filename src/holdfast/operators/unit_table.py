"""The table of units that a slice has beside its operator's own: how many rows each has, and where the log has it last.

And the pace at which units are written again: which of them are due, and what may be spent on that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.state.columns import INT, NO_BYTES, NO_SPANS, Ints
from holdfast.state.keys import KeyRows
from holdfast.state.table import Layout, Table

UNITS = Layout(1, False, (INT.named("rows"), INT.named("epoch"), INT.named("position"), INT.named("taken")), 0, "units")
ROWS, EPOCH, POSITION, TAKEN = range(4)
TOTALS = Layout(1, False, (INT.named("taken"), INT.named("logged"), INT.named("living")), name="totals")
TOTAL_TAKEN, TOTAL_LOGGED, TOTAL_LIVING = range(3)
OPEN, CHECK, CLOSE = 0, 1, 2
NEVER = 1 << 62
LARGEST = 10
"""So many of the largest units people are told of."""
NOWHERE = 0
"""The footprint of a unit that no entry has."""
ONE = KeyRows(np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros((1, 1), np.int64), NO_SPANS, NO_BYTES)


@dataclass
class Pace:
    """How much of an epoch a slice may spend on checks, and which units are due."""

    extent: float
    """Rows of the log, as a multiple of the living units, that recovery may read."""
    behind: float
    """Rows of the input that it may replay, as a multiple of the living units."""
    seconds: float
    """That may be spent; what is spent goes off. Below 0 it is a debt."""
    aged: int = 0
    """Footprints of this epoch or before are too old."""
    each: float = 2e-6
    """What a unit costs, by what the last ones did."""
    living: int = 0
    """Units of the slice when it was looked at last; and how many of them were left though they were due, how many rows
    of the log reach back to the oldest footprint, and how many of the input."""
    left: int = 0
    q: int = 0
    u: int = 0
    oldest: int = 0
    """The oldest footprint."""
    first: int = 0
    since: int = 0
    """Where in the log it stands, and how many rows of the input had been taken by then."""

    def moved(self, logged: int, taken: int) -> None:
        """The slice goes on: what a recovery would read grows until somebody looks at its units again."""
        if self.living:
            self.q, self.u = logged - self.first + 1, taken - self.since

    def due(self, units: Table, living: Ints, logged: int, taken: int, epoch: int) -> Ints:
        """The slots whose units are to be written again, oldest footprint first."""
        epochs, positions = units.columns[EPOCH][living], units.columns[POSITION][living]
        takens = units.columns[TAKEN][living]
        extent, behind = logged - positions + 1, taken - takens
        self.living = len(living)
        self.oldest = int(epochs.min(initial=NEVER))
        self.q, self.u = int(extent.max(initial=0)), int(behind.max(initial=0))
        self.first, self.since = int(positions.min(initial=NEVER)), int(takens.min(initial=NEVER))
        due = (extent > self.extent * len(living)) | (behind > self.behind * len(living))
        due |= (epochs <= self.aged) | (epochs == NOWHERE)
        due &= epochs < epoch
        slots = living[due]
        self.left = len(slots)
        return slots[np.lexsort((positions[due], epochs[due]))]


def keys_of(units: Ints) -> KeyRows:
    """Units as keys of their table. They are hashes already."""
    count = len(units)
    return KeyRows(units, np.zeros(count, np.int32), units.reshape(-1, 1).copy(), NO_SPANS, NO_BYTES)


def oldest(units: Table, epoch: int) -> int:
    """The oldest footprint of a living unit; where none lives nothing older than the epoch is needed."""
    epochs = units.columns[EPOCH][: units.rows][units.columns[ROWS][: units.rows] > 0]
    return int(epochs.min()) if len(epochs) else epoch


def largest_of(several: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sorted(itertools.chain.from_iterable(several), reverse=True)[:LARGEST])
