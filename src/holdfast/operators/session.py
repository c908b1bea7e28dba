"""``key_by(...).window(hf.session(gap))``: rows of a key no more than a gap apart are one session, as in Spark.

An epoch takes its rows and the open sessions of their keys, joins them in one pass in the order of time, and writes the
sessions that come of it in the place of the old ones. A row that bridges sessions makes one of them: their
accumulators are combined in the order in which they began, and the epoch's rows fold in after that, in their own order.
``first`` and ``last`` go by this order.

A row is late if a session of it alone would have closed before the epoch, as in Spark, unless an open session of its
key began by then: what falls into a session that is there, however long it is, belongs to it. So whether a row is late
depends on nothing else that comes in its epoch, and no session begins before all that are open, or more than a gap
before the watermark: whoever takes the start of sessions as time can rely on that (``bounds``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from holdfast.errors import PlanError
from holdfast.invariants import invariant
from holdfast.operators.aggregates.accumulator import ROWS, Arenas, Inputs, copy_rows, fresh
from holdfast.operators.aggregates.spec import AggregatingSpec, Wanted, aggregates_of
from holdfast.operators.ahead import Partials
from holdfast.operators.bounds import END, START, Bound, Columns, Reading
from holdfast.operators.draft import Draft, Given, refuse_updating
from holdfast.operators.keyed import Fields, KeyedOperator, refuse_doubles
from holdfast.operators.late import LATE, late_columns, past_sessions
from holdfast.operators.spec import AggregateSpec, Column
from holdfast.operators.timed import TimedInput, stretch_of
from holdfast.operators.window import TIMESTAMP
from holdfast.state import arrow, combine, fold
from holdfast.state.columns import INT, NO_BYTES, Arena, Array, Ints
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.slice import MAIN, NEVER, Work
from holdfast.state.table import Layout, Table

SESSIONS, OWNERS = 0, 1
COUNT, FIRST, LAST = 0, 1, 2  # columns of a session: its rows, and the times of its first and last one
_OWN = (INT.named(ROWS), INT.named("(first)"), INT.named("(last)"))
OPEN, LOWEST = 0, 1  # columns of a key: its open sessions, and the number of the first of them


@dataclass(frozen=True)
class SessionSpec(AggregatingSpec):
    """Sessions over a keyed stream; aggregates read value columns ``v0`` …, ``gap`` is in microseconds."""

    kind = "session"
    free = frozenset({"aggregates", "values", "time", "late", "overflow"})
    label = "session window"
    undivided = None

    keys: tuple[Column, ...]
    aggregates: tuple[AggregateSpec, ...]
    values: tuple[Column, ...]
    gap: int
    unit: str
    time: str | None
    mode: str = "append"
    late: tuple[int, ...] = ()
    ansi: bool = True
    overflow: str = ""

    @classmethod
    def drafted(
        cls,
        draft: Draft,
        wanted: Mapping[str, Wanted],
        *,
        size: int,
        every: int,
        unit: Literal["event", "clock", "rows"],
        offset: int,
        time: Given | None,
        mode: str,
        early: int,
        keep_late: bool,
    ) -> SessionSpec:
        """Told as other windows are: ``size`` is the gap, and they begin with their rows."""
        if early:
            raise PlanError(
                "A session has no early results.",
                safe="Nothing was started.",
                todo="Use mode='update': its results as they change.",
            )
        refuse_updating(draft, "a session window")
        aggregates = aggregates_of(draft, wanted)
        number = draft.take_time(time)
        return cls(
            keys=draft.inputs[0].keys,
            aggregates=aggregates,
            gap=size,
            unit=unit,
            time=None if number is None else f"v{number}",
            mode=mode,
            late=late_columns(draft, keep_late),
            ansi=draft.ansi,
            values=tuple(draft.inputs[0].values.plain),
        )

    def build(self) -> SessionOperator:
        return SessionOperator(self)

    @property
    def updates(self) -> bool:
        return self.mode == "update"

    @property
    def timed(self) -> bool:
        return self.unit == "event"

    def partials(self) -> Partials | None:
        """By stretches of time that no session ends and begins again in."""
        columns = self.partial_columns()
        stretch = stretch_of(self.time, self.values, self.gap)
        if self.late or columns is None or (self.time is not None and stretch is None):
            return None
        return Partials(columns, stretch and replace(stretch, from_first=True, alone=self.gap))

    def bounds(self, name: str, inputs: Sequence[Reading], ports: Mapping[str, Sequence[str]]) -> Mapping[str, Columns]:
        own = (Bound(name),)
        start = Bound(name, self.gap, open=True)
        return {MAIN: {START: (start,), END: own}, LATE: dict.fromkeys(inputs[0].times, own)}


@dataclass(frozen=True)
class _Old:
    """The open sessions of an epoch's keys: slots, whose they are, which number among them, from when to when."""

    slots: Ints
    owners: Ints
    numbers: Ints
    first: Ints
    last: Ints


@dataclass(frozen=True)
class _Groups:
    """What old sessions and rows come together to, in the order of time: whose it is, from when to when, and its number
    among those of its key; and of which group each old session and each row is.
    """

    owner: Ints
    first: Ints
    last: Ints
    number: Ints
    of_old: Ints
    of_row: Ints


class SessionOperator(KeyedOperator):
    """Table 0: sessions by (key, number), numbers in the order of time. Table 1: the numbers that a key has open."""

    def __init__(self, spec: SessionSpec) -> None:
        invariant(spec.unit in ("event", "clock"), f"unknown unit {spec.unit!r}")
        invariant(spec.mode in ("append", "update"), f"unknown mode {spec.mode!r}")
        if spec.gap <= 0:
            raise PlanError(
                f"a session's gap of {spec.gap} would never let two rows be together.",
                safe="nothing was started or written.",
                todo="give a positive gap.",
            )
        super().__init__(spec.keys, [spec.values])
        self.spec, self.clocked = spec, spec.unit == "clock"
        # A row exactly a gap later still belongs to it: so it is over when the watermark has passed its end.
        self._reach = spec.gap + 1
        inputs = Inputs()
        self._aggregates = spec.accumulators(inputs, LAST + 1)
        self._input = TimedInput(inputs, spec.values, spec.time if spec.unit == "event" else None, spec.late)
        self.state: Fields = (
            *(*self.keys, ("window_start", TIMESTAMP), ("window_end", TIMESTAMP)),
            *self._aggregates.fields,
        )
        self.outputs = {MAIN: self.state}
        if spec.late:
            self.outputs[LATE] = (*self.keys, *self._input.late_fields)
        for fields in self.outputs.values():
            refuse_doubles([name for name, _ in fields])
        words, tail = self.codec.words, self.codec.tail
        self.layouts: tuple[Layout, ...] = (
            Layout(words + 1, tail, (*_OWN, *self._aggregates.columns), COUNT, "sessions"),
            Layout(words, tail, (INT.named("open"), INT.named("lowest")), OPEN, "owners"),
        )

    def decode(self, batch: pa.RecordBatch, *, port: int = 0, partial: bool = False) -> Rows:
        return self._input.decode(batch, self.codec, signed=False, partial=partial)

    def due(self, tables: Sequence[Table]) -> int | None:
        """When the first session ends."""
        sessions = tables[SESSIONS]
        lasts = sessions.columns[LAST][: sessions.rows][sessions.columns[COUNT][: sessions.rows] > 0]
        return int(lasts.min()) + self._reach if len(lasts) else None

    def oldest(self, tables: Sequence[Table]) -> int | None:
        sessions = tables[SESSIONS]
        firsts = sessions.columns[FIRST][: sessions.rows][sessions.columns[COUNT][: sessions.rows] > 0]
        return int(firsts.min()) if len(firsts) else None

    def find(self, table: Table, keys: KeyRows) -> Ints:
        return self.find_extended(table, keys, 1)

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Arenas) -> pa.RecordBatch:
        edges = [arrow.of_fixed(TIMESTAMP, one, NO_BYTES) for one in (columns[FIRST], columns[LAST] + self.spec.gap)]
        results = self._aggregates.finish(columns, arenas)
        return pa.RecordBatch.from_arrays([*self.codec.encode(keys), *edges, *results], schema=self.output_schema)

    def apply(self, work: Work, *inputs: Rows | None) -> None:
        rows, time = inputs[0], work.time
        if self.spec.unit == "clock":
            if rows is not None and len(rows):
                self._add(work, rows, np.full(len(rows), time.clock, np.int64), NEVER)
            self._close(work, time.clock)
            return
        if rows is not None and len(rows):
            rows, times = self._input.timed(work, rows)
            if len(rows):
                self._add(work, rows, times, time.late)
        elif time.watermark <= time.late:
            return  # what ends by then has been closed
        self._close(work, time.watermark)

    # -- rows into sessions

    def _add(self, work: Work, rows: Rows, times: Ints, late: int) -> None:
        owners = work.place(rows.keys, OWNERS)
        old = self._open(work, _distinct(owners, work.tables[OWNERS].rows))
        alone = self._input.lasts(rows, times) + self._reach <= late
        if alone.any():
            begins = np.full(work.tables[OWNERS].rows, np.iinfo(np.int64).max)
            begins[old.owners[old.numbers == 0]] = old.first[old.numbers == 0]
            is_late = past_sessions(times, alone, owners, begins)
            kept, times = self._input.without_late(work, self, rows, times, is_late)
            if kept is None:
                return
            rows, owners = kept, owners[~is_late]
        groups = self._joined(work, old, owners, times, self._input.lasts(rows, times))
        self._replace(work, rows, old, groups)

    def _open(self, work: Work, keys: Ints) -> _Old:
        """The open sessions of those keys, key by key in the order of time."""
        owners, sessions = work.tables[OWNERS], work.tables[SESSIONS]
        count = owners.columns[OPEN][keys]
        of = np.repeat(keys, count)
        numbers = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
        slots = sessions.find(owners.keys(of).extended(owners.columns[LOWEST][of] + numbers))
        invariant((slots >= 0).all(), "a key has lost a session")
        return _Old(slots, of, numbers, sessions.columns[FIRST][slots], sessions.columns[LAST][slots])

    def _joined(self, work: Work, old: _Old, owners: Ints, firsts: Ints, lasts: Ints) -> _Groups:
        of, first = np.concatenate([old.owners, owners]), np.concatenate([old.first, firsts])
        last = np.concatenate([old.last, lasts])
        group, owner, begins, ends, number = (np.empty(len(of), np.int64) for _ in range(5))
        latest = np.zeros(work.tables[OWNERS].rows, np.int64)
        order = np.argsort(first, kind="stable")
        gap = self._reach
        count = combine.join_sessions(order, of, first, last, gap, latest, group, owner, begins, ends, number)
        known = len(old.slots)
        return _Groups(owner[:count], begins[:count], ends[:count], number[:count], group[:known], group[known:])

    def _replace(self, work: Work, rows: Rows, old: _Old, groups: _Groups) -> None:
        """Old sessions by the groups that they and the rows make."""
        sessions, owners = work.tables[SESSIONS], work.tables[OWNERS]
        columns, arenas = self._combined(sessions, rows, old, groups)
        grew = np.zeros(len(groups.owner), bool)
        grew[groups.of_row] = True
        if self.spec.mode == "update":
            work.take_back(self.finish, old.slots[grew[groups.of_old]], SESSIONS)
        # A session that nothing happened to stays where it is, unless those before it have become more or less.
        moved = np.zeros(len(groups.owner), bool)
        moved[groups.of_old] = old.numbers != groups.number[groups.of_old]
        write = np.flatnonzero(grew | moved)
        of = groups.owner[write]
        slots = work.place(owners.keys(of).extended(owners.columns[LOWEST][of] + groups.number[write]), SESSIONS)
        copy_rows([column[write] for column in columns], arenas, sessions.columns, sessions.arenas, slots)
        count = np.zeros(owners.rows, np.int64)
        np.add.at(count, groups.owner, 1)
        work.bury(old.slots[old.numbers >= count[old.owners]], SESSIONS)
        owners.columns[OPEN][groups.owner] = count[groups.owner]
        if self.spec.mode == "update":
            self._emit(work, slots[grew[write]])

    def _combined(
        self, sessions: Table, rows: Rows, old: _Old, groups: _Groups
    ) -> tuple[list[Array], list[Arena | None]]:
        columns, arenas = fresh(self.layouts[SESSIONS].columns, len(groups.owner))
        columns[FIRST][:], columns[LAST][:] = groups.first, groups.last
        order = np.argsort(old.first, kind="stable")
        slots, into = old.slots[order], groups.of_old[order]
        others = [column[slots] for column in sessions.columns]
        fold.count(columns[COUNT], into, NO_BYTES, others[COUNT])
        self._aggregates.combine(columns, arenas, into, others, sessions.arenas)
        fold.count(columns[COUNT], groups.of_row, NO_BYTES, rows.sign)
        self._aggregates.fold(columns, arenas, groups.of_row, rows)
        return columns, arenas

    # -- sessions that end

    def _close(self, work: Work, upto: int) -> None:
        """By (end, slot). A key's sessions end in the order of their numbers."""
        sessions, owners = work.tables[SESSIONS], work.tables[OWNERS]
        lasts = sessions.columns[LAST][: sessions.rows]
        ended = np.flatnonzero((lasts <= upto - self._reach) & (sessions.columns[COUNT][: sessions.rows] > 0))
        if not len(ended):
            return
        ended = ended[np.argsort(lasts[ended], kind="stable")]
        if self.spec.mode == "append":
            self._emit(work, ended)
        keys, count = np.unique(owners.find(sessions.keys(ended).shortened(1)), return_counts=True)
        work.bury(ended, SESSIONS)
        work.touch(keys, OWNERS)
        owners.columns[OPEN][keys] -= count
        owners.columns[LOWEST][keys] += count
        work.bury(keys[owners.columns[OPEN][keys] == 0], OWNERS)

    def _emit(self, work: Work, slots: Ints) -> None:
        if len(slots):
            sessions = work.tables[SESSIONS]
            self._aggregates.judge(sessions.columns, slots)
            work.emit(
                self.finish(sessions.keys(slots), [column[slots] for column in sessions.columns], sessions.arenas)
            )


def _distinct(slots: Ints, rows: int) -> Ints:
    if 16 * len(slots) < rows:
        return np.unique(slots)
    seen = np.zeros(rows, bool)
    seen[slots] = True
    return np.flatnonzero(seen)
