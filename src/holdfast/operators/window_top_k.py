"""``key_by(...).window(...).top_k(k, ...)`` on a slice: the first k rows of every group in each tumbling window.

It is ``top_k`` over an append-only input whose groups are those of the stage, each with the start of a window, and
nothing is said of a group until its window closes. Then its rows are put out once and forgotten: what is held is never
more than k rows a group (and those that tie) of the windows that are open.

The order of what is put out: by the end of the window, then in slot order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from holdfast.invariants import some
from holdfast.operators.ahead import MANY, Cut, ordered
from holdfast.operators.bounds import END, START, Bound, Columns, Reading
from holdfast.operators.draft import Draft, Given, order_of, refuse_updating
from holdfast.operators.grid import Grid
from holdfast.operators.keyed import Fields, refuse_doubles, schema_of
from holdfast.operators.late import count, past_windows
from holdfast.operators.spec import Column, Spec
from holdfast.operators.top_k import TopKOperator, TopKSpec
from holdfast.operators.window import TIMESTAMP
from holdfast.state import arrow
from holdfast.state.columns import NO_BYTES, NO_INTS, Ints
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.slice import MAIN, NEVER, Work
from holdfast.state.table import Layout, Table


@dataclass(frozen=True)
class WindowTopKSpec(Spec):
    """The first ``k`` rows of each group and window by ``order``: (number of the value column, descending).

    ``time`` is the number of the value column with the event time; ``size`` and ``offset`` are microseconds.
    """

    kind = "window_top_k"
    free = frozenset({"rank"})
    windowed = True
    undivided = None

    keys: tuple[Column, ...]
    values: tuple[Column, ...]
    order: tuple[tuple[int, bool], ...]
    k: int
    time: int
    size: int
    offset: int = 0
    ties: str = "cut"
    rank: str = "rank"

    @classmethod
    def drafted(
        cls,
        draft: Draft,
        *,
        k: int,
        by: Sequence[tuple[Given, bool]],
        ties: str,
        rank: str,
        size: int,
        offset: int,
        time: Given,
    ) -> WindowTopKSpec:
        refuse_updating(draft, "a top_k of windows")
        item = draft.inputs[0]
        number = some(draft.take_time(time), "these windows are in event time")
        order = order_of(item, by)
        return cls(item.keys, tuple(item.values.plain), order, k, number, size, offset, ties, rank)

    def build(self) -> WindowTopKOperator:
        return WindowTopKOperator(self)

    @property
    def label(self) -> str:
        return f"top {self.k} of windows"

    @property
    def limit(self) -> int:
        return self.k

    def limited(self, limit: int) -> WindowTopKSpec:
        return replace(self, k=limit)

    def cut(self) -> Cut | None:
        return Cut(self.k, ordered(self.order), (f"v{self.time}", self.size, self.offset))

    def bounds(self, name: str, inputs: Sequence[Reading], ports: Mapping[str, Sequence[str]]) -> Mapping[str, Columns]:
        inside = dict.fromkeys((START, *inputs[0].times), (Bound(name, self.size),))
        return {MAIN: {**inside, END: (Bound(name),)}}


class WindowTopKOperator(TopKOperator):
    """The first k of every group in each window, when it closes."""

    def __init__(self, spec: WindowTopKSpec) -> None:
        super().__init__(TopKSpec(spec.keys, spec.values, spec.order, spec.k, spec.ties, spec.rank))
        self.stands = False
        self._time = spec.time
        self._grid = Grid(spec.size, spec.size, spec.offset)
        (shown,) = self.layouts
        self.layouts = (Layout(shown.words + 1, shown.tail, shown.columns, shown.alive),)
        edges = (("window_start", TIMESTAMP), ("window_end", TIMESTAMP))
        self.state: Fields = (*self.keys, *edges, *self.state[len(self.keys) :])
        self.outputs = {MAIN: self.state}
        self._schema = schema_of(self.state)
        refuse_doubles([name for name, _ in self.state])

    def units(self, table: int, keys: KeyRows) -> Ints:
        return keys.shortened(1).hash

    def row_units(self, rows: Rows, port: int, clock: int) -> Ints:
        return rows.keys.extended(self._grid.panes(rows.values[self._time].values)).hash

    def find(self, table: Table, keys: KeyRows) -> Ints:
        return self.find_extended(table, keys, 2)

    def decode(self, batch: pa.RecordBatch, *, port: int = 0, partial: bool = False) -> Rows:
        """A row of a partial input stands for others that come behind it: how many they are together is its sign."""
        rows = super().decode(batch, port=port)
        rows.partial, rows.sign = partial, arrow.ints(batch.column(MANY)) if partial else NO_INTS
        return rows

    def apply(self, work: Work, *inputs: Rows | None) -> None:
        (rows,) = inputs
        if rows is not None and len(rows):
            self._add(work, rows)
        if work.time.watermark != NEVER and (rows is not None or work.time.watermark > work.time.late):
            self._close(work)

    def _add(self, work: Work, rows: Rows) -> None:
        times = rows.values[self._time]
        if len(times.valid) and not times.valid.all():
            work.count("null time", len(rows) - int(np.count_nonzero(times.valid)))
            rows = rows.take(np.flatnonzero(times.valid))
        late = past_windows(work, self._grid, rows.values[self._time].values)
        if late is not None:
            count(work, rows, np.flatnonzero(late))
            rows = rows.take(np.flatnonzero(~late))
        if len(rows):
            starts = self._grid.panes(rows.values[self._time].values)
            self._append(work, Rows(rows.keys.extended(starts), rows.values))

    def _close(self, work: Work) -> None:
        table = work.tables[0]
        starts = table.words[: table.rows, -2]
        over = (starts <= work.time.watermark - self._grid.size) & (table.columns[0][: table.rows] > 0)
        slots = np.flatnonzero(over)
        if len(slots):
            slots = slots[np.argsort(starts[slots], kind="stable")]
            super()._emit(work, slots)
            work.bury(slots)

    def _emit(self, work: Work, slots: Ints) -> None:
        """Nobody hears of a group that is still open."""

    def _take_back(self, work: Work, slots: Ints) -> None:
        """Nor has heard of it before."""

    def _batch(self, keys: KeyRows, ranks: Ints, values: list[pa.Array]) -> pa.RecordBatch:
        starts = np.ascontiguousarray(keys.words[:, -1])
        edges = [arrow.of_fixed(TIMESTAMP, one, NO_BYTES) for one in (starts, starts + self._grid.size)]
        own = self.codec.encode(keys.shortened(1))
        return pa.RecordBatch.from_arrays([*own, *edges, pa.array(ranks, pa.int64()), *values], schema=self._schema)
