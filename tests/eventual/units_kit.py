"""Slices of every kind under random epochs, whose log is kept as commits and files of entries would keep it."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from holdfast.api import states as hs
from holdfast.container import footprints
from holdfast.container.footprints import Recovery, written
from holdfast.log.footprints import Footprints
from holdfast.log.ledger import Ledger
from holdfast.log.records import FEED, Commit, Fence, GraphFile, Range
from holdfast.operators.aggregate import StageSpec
from holdfast.operators.cumulative import CumulativeSpec
from holdfast.operators.distinct import DistinctSpec
from holdfast.operators.join import JoinSpec
from holdfast.operators.marked import Marked
from holdfast.operators.process import ProcessSpec
from holdfast.operators.session import SessionSpec
from holdfast.operators.spec import AggregateSpec, Column, Operator, Spec
from holdfast.operators.top_k import TopKSpec
from holdfast.operators.unit_table import Pace
from holdfast.operators.window import WindowSpec
from holdfast.operators.window_top_k import WindowTopKSpec
from holdfast.state.rows import Rows
from holdfast.state.slice import NEVER, EpochTime
from holdfast.state.table_slice import TableSlice
from holdfast.state.types import required

KEYS = (Column("k", "bigint"), Column("s", "string"))
VALUES = (Column("a", "bigint"), Column("b", "string"), Column("t", "timestamp"))
AGGREGATES = (
    AggregateSpec("n", "count", None, None),
    AggregateSpec("total", "sum", "v0", "bigint"),
    AggregateSpec("words", "count", "v1", "string"),
)
CHOSEN = (*AGGREGATES, AggregateSpec("low", "min", "v1", "string"), AggregateSpec("last", "last", "v0", "bigint"))


class Counting:
    seen = hs.value("bigint", default=0)
    words = hs.map("string", "bigint")

    def rows(self, key, rows, context):  # type: ignore[no-untyped-def]
        for row in rows:
            context.state.seen += 1
            context.state.words[row["b"] or ""] = row["a"]
            if row["a"] == 3:
                context.state.seen = 0
                context.state.words.clear()
        yield {"seen": context.state.seen}


def window(unit: str = "event", size: int = 10, every: int = 10, **more: Any) -> WindowSpec:
    time = "v2" if unit == "event" else None
    aggregates = AGGREGATES if more.get("updating_input") else CHOSEN
    return WindowSpec(KEYS, aggregates, VALUES, size, every, unit, time, **more)


KINDS: dict[str, Spec] = {
    "running": StageSpec(KEYS, CHOSEN),
    "running, taken back": StageSpec(KEYS, AGGREGATES, updating_input=True),
    "count_distinct": StageSpec(KEYS, (AGGREGATES[0], AggregateSpec("d", "count_distinct", "v1", "string"))),
    "tumbling": window(),
    "tumbling, updates": window(mode="update"),
    "tumbling, taken back": window(updating_input=True),
    "tumbling by clock": window("clock"),
    "sliding": window(size=15, every=5),
    "sliding, updates": window(size=15, every=5, mode="update"),
    "sliding, taken back": window(size=15, every=5, updating_input=True),
    "rows": window("rows", 4, 4),
    "rows, not numbered": window("rows", 3, 3, numbered=False),
    "rows, sliding": window("rows", 6, 2),
    "cumulative": CumulativeSpec(KEYS, CHOSEN, VALUES, 20, 5, "event", "v2"),
    "session": SessionSpec(KEYS, CHOSEN, VALUES, 6, "event", "v2"),
    "session, updates": SessionSpec(KEYS, CHOSEN, VALUES, 6, "event", "v2", mode="update"),
    "join": JoinSpec(KEYS, VALUES, VALUES, (0, 1), (), "inner", 2, 2, 8, 8),
    "join, outer": JoinSpec(KEYS, VALUES, VALUES, (0, 1), (), "full", 2, 2, 8, 8),
    "join for ever": JoinSpec(KEYS, VALUES[:2], VALUES[:2], (0, 1), (), "inner", None, None, None, None),
    "distinct": DistinctSpec(KEYS, VALUES, 2, 12),
    "distinct for ever": DistinctSpec(KEYS, VALUES, None, None),
    "top_k": TopKSpec(KEYS[:1], VALUES, ((0, True),), 2),
    "top_k, all ties": TopKSpec(KEYS[:1], VALUES, ((0, True),), 2, ties="all"),
    "top_k, taken back": TopKSpec(KEYS[:1], VALUES, ((0, True),), 2, updating_input=True),
    "top_k of windows": WindowTopKSpec(KEYS[:1], VALUES, ((0, True),), 2, 2, 10),
    "process": ProcessSpec(
        KEYS, VALUES, None, cloudpickle.dumps(Counting), hs.specs(Counting, None), (("", (Column("seen", "bigint"),)),)
    ),
}
Event = tuple[int, tuple[Any, ...], tuple[Any, ...]]
"""Sign, key, values."""


@dataclass(frozen=True)
class Given:
    """An epoch: the rows of each input, and its time."""

    inputs: tuple[list[Event], ...]
    time: EpochTime


def ports(spec: Spec) -> int:
    return 2 if isinstance(spec, JoinSpec) else 1


def history(draw: random.Random, spec: Spec, epochs: int) -> list[Given]:
    """Rows around a time that goes on by leaps, some late, some without one, some epochs without any."""
    found, mark, clock = [], NEVER, 1000
    keys = [(number, draw.choice((None, "x", "yy"))) for number in range(draw.randint(1, 8))]
    alive: list[Event] = []
    for _ in range(epochs):
        late, now = mark, max(mark, 0)
        clock += draw.choice((0, 3, 20))
        if draw.random() < 0.6:
            mark = now + draw.choice((0, 1, 4, 9, 30))
        inputs = []
        for _ in range(ports(spec)):
            rows = []
            for _ in range(draw.choice((0, 1, 4, 12))):
                time = draw.choice((now + draw.randint(-9, 12), now + draw.randint(0, 5), now + draw.randint(0, 5)))
                values = (draw.randint(0, 4), draw.choice((None, "", "ab", "c" * 30)), max(time, 0))
                rows.append((1, draw.choice(keys)[: len(spec.keys)], values))
            if getattr(spec, "updating_input", False):
                gone = draw.sample(alive, draw.randint(0, len(alive))) if draw.random() < 0.5 else []
                for row in gone:
                    alive.remove(row)
                alive += rows
                rows = [(-1, *row[1:]) for row in gone] + rows
            inputs.append(rows)
        found.append(Given(tuple(inputs), EpochTime(late, mark, clock)))
    return found


def decoded(operator: Operator, spec: Spec, given: Given) -> list[Rows | None]:
    found: list[Rows | None] = []
    for port, rows in enumerate(given.inputs):
        columns: dict[str, pa.Array] = {
            "_h": pa.array([zlib.crc32(repr(key).encode()) * 2654435761 - 2**62 for _, key, _ in rows], pa.int64())
        }
        if getattr(spec, "updating_input", False):
            columns["_d"] = pa.array([sign for sign, _, _ in rows], pa.int8())
        for number, column in enumerate(spec.keys):
            columns[f"k{number}"] = pa.array([key[number] for _, key, _ in rows], required(column.type, "").arrow)
        values = spec.left if isinstance(spec, JoinSpec) else getattr(spec, "values", VALUES[:2])
        for number, column in enumerate(values):
            kind = required(column.type, "").arrow
            every = [one[number] for _, _, one in rows]
            columns[f"v{number}"] = pa.array(every, pa.int64() if column.type == "timestamp" else kind).cast(kind)
        found.append(operator.decode(pa.record_batch(columns), port=port) if rows else None)
    return found


class MemorySection:
    """Files of entries, in memory."""

    is_local = False

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def write(self, name: str, parts: Sequence[bytes]) -> None:
        self.files[name] = b"".join(map(bytes, parts))

    def exists(self, name: str) -> bool:
        return name in self.files

    def size(self, name: str) -> int:
        return len(self.files[name])

    def read_range(self, name: str, at: int, length: int) -> pa.Buffer:
        return pa.py_buffer(self.files[name][at : at + length])


@dataclass
class MemoryLedger:
    """Commits as the bytes that a store would have."""

    section: MemorySection = field(default_factory=MemorySection)
    commits: dict[int, bytes] = field(default_factory=dict)

    changed: GraphFile | None = None

    def graph(self) -> GraphFile | None:
        return self.changed

    def get_commit(self, epoch: int) -> Commit | None:
        data = self.commits.get(epoch)
        return None if data is None else Commit.from_bytes(data, Commit.file_of(epoch))


class Live:
    """One slice that lives, with its log."""

    def __init__(self, spec: Spec, draw: random.Random, *, slices: int = 1) -> None:
        self.spec, self.draw = spec, draw
        self.marked = Marked(cast(Operator, spec.build()))
        self.state = cast(TableSlice, self.marked.new_slice())
        self.ledger = MemoryLedger()
        self.footprints = Footprints.begin(["s"], slices)
        self.inputs: list[tuple[list[Rows | None], EpochTime]] = []
        self.packed: list[pa.RecordBatch] = []

    @property
    def log(self) -> Ledger:
        return cast(Ledger, self.ledger)

    def pace(self) -> Pace | None:
        if self.draw.random() < 0.4:
            return None
        draw = self.draw
        return Pace(draw.choice((1.0, 2.0)), draw.choice((0.1, 1, 20)), draw.choice((1e-9, 3.0)), each=1.0)

    def rebase(self) -> None:
        """The job starts again, changed: all that there is from before is a checkpoint of the operator's own tables."""
        epoch = self.state.epoch
        self.packed = [self.state.delta(0, epoch, table=at) for at in range(self.marked.units_table)]
        living = footprints.packed(self.marked, 0, epoch, self.packed).said.living
        self.ledger.changed = GraphFile(1, epoch, 1, {}, [], [], ["pack"], [0], 0, units={"s": [living]})
        self.ledger.commits.clear()
        self.ledger.section.files.clear()
        self.footprints = Footprints.above(self.ledger.changed)
        self.state = self.recovered()[0]

    def apply(self, given: Given) -> None:
        rows, epoch = decoded(self.marked, self.spec, given), self.state.epoch + 1
        self.state.run_by(self.marked.noting("writes", self.pace()))
        if self.draw.random() < 0.2:
            self.state.apply(epoch, *rows, time=given.time)
            self.state.undo()
            self.state.run_by(self.marked.noting("writes", self.pace()))
        self.state.apply(epoch, *rows, time=given.time)
        self.inputs.append((rows, given.time))
        self.commit(epoch)

    def commit(self, epoch: int) -> None:
        entry = self.state.entry
        fence = Fence(1, epoch, 1)
        entries = [("s", self.marked, [] if entry is None else [(0, entry)])]
        wrote = written(entries, self.log, fence, 1, "c-1")
        self.footprints, attached = self.footprints.after(epoch, [] if wrote is None else [("s", 0, wrote)])
        ranges = {FEED: Range(epoch, epoch)}
        commit = Commit(fence, ranges, footprints=self.footprints, attachments=attached)
        self.ledger.commits[epoch] = commit.to_bytes()
        self.state.release(epoch - 1)

    def recovered(self, recovery: Recovery | None = None) -> tuple[TableSlice, int]:
        """Brought back from the log, and how many epochs were replayed."""
        epoch = self.state.epoch
        found = (recovery or Recovery(self.log, epoch, lambda *_: self.packed)).of("s", self.marked, 0)
        state = found.begin()
        for at in range(found.oldest + 1, epoch + 1):
            found.before(state, at)
            state.run_by(found.operator if at <= found.through else self.marked.noting("nowhere"))
            rows, time = self.inputs[at - 1]
            state.apply(at, *rows, time=time)
            state.release(at)
        found.before(state, epoch + 1)
        state.run_by(self.marked)
        return state, epoch - found.oldest


def rows_of(state: TableSlice, tables: Sequence[int], *, change: bool = True) -> list[Counter[Any]]:
    """The living rows of some tables, in no order."""
    return [_living(state, at, change) for at in tables]


def _living(state: TableSlice, at: int, change: bool) -> Counter[Any]:
    table = state.tables[at]
    alive = table.layout.alive
    slots = np.arange(table.rows) if alive is None else np.flatnonzero(table.columns[alive][: table.rows] > 0)
    found: Counter[Any] = Counter()
    for slot in slots.tolist():
        tail = b""
        if table.layout.tail:
            start, length = table.spans[slot].tolist()
            tail = table.tail.data[start : start + length].tobytes()
        values = []
        for column, arena in zip(table.columns, table.arenas, strict=True):
            if arena is None:
                values.append(column[slot].tobytes())
            else:
                start, length = column[slot].tolist()
                values.append(arena.data[start : start + length].tobytes())
        key = int(table.hash[slot]), int(table.nulls[slot]), table.words[slot].tobytes(), tail
        found[key, tuple(values), int(table.change[slot]) if change else 0] += 1
    return found


def outputs(state: TableSlice, marked: Marked, epoch: int) -> list[Counter[str]]:
    named = getattr(marked.operator, "outputs", {"": ()})
    return [Counter(map(repr, state.outputs(epoch, "changelog", port).to_pylist())) for port in named]


def crashed(kind: str, seed: int, *, rebased: bool = False) -> tuple[Live, TableSlice]:
    """A history of a kind of slice that ends anywhere: live, and brought back. ``rebased``: the job was changed once or
    twice, and began with a checkpoint each time."""
    draw = random.Random(f"{kind} {seed}")
    live = Live(KINDS[kind], draw)
    epochs = history(draw, live.spec, draw.randint(1, 14))
    turns = draw.sample(range(len(epochs)), min(2, len(epochs))) if rebased else ()
    for at, given in enumerate(epochs):
        live.apply(given)
        if at in turns:
            live.rebase()
    return live, live.recovered()[0]


def difference(live: Live, back: TableSlice, *, marks: bool = True) -> str:
    """What is not the same of the two, now and after one more epoch; "" if all is. ``marks``: their footprints too."""
    own = range(live.marked.units_table)
    if rows_of(live.state, own) != rows_of(back, own):
        return "rows"
    units = [live.marked.units_table]
    if marks and rows_of(live.state, units, change=False) != rows_of(back, units, change=False):
        return "units"
    mine, theirs = (rows_of(one, [live.marked.totals_table], change=False) for one in (live.state, back))
    if marks and rows_of(back, units)[0] and mine != theirs:
        return "totals"
    more = history(live.draw, live.spec, 3)
    last = live.inputs[-1][1]
    for given in more:
        time = EpochTime(last.watermark, max(last.watermark, given.time.watermark), given.time.clock + last.clock)
        rows, last = decoded(live.marked, live.spec, replace(given, time=time)), time
        for state in (live.state, back):
            state.run_by(live.marked)
            state.apply(state.epoch + 1, *rows, time=time)
        if outputs(live.state, live.marked, live.state.epoch) != outputs(back, live.marked, back.epoch):
            return "outputs"
    return "" if rows_of(live.state, own) == rows_of(back, own) else "rows later"


__all__ = ["KINDS", "Live", "crashed", "difference", "footprints", "history", "outputs", "rows_of"]
