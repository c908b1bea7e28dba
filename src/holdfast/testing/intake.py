"""An epoch's rows on their way into the log: the stateless steps of every input, then what a task of Spark's does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.driver.counts import counted
from holdfast.invariants import some
from holdfast.log.records import Fence, SegmentRef
from holdfast.log.store import Store
from holdfast.plan.compile import LEAF, StageInput
from holdfast.plan.graph import Node
from holdfast.spark.intake import Crossed, EventTime, Intake, IntakeTask
from holdfast.state.value_hashing import xxhash64
from holdfast.testing.frame import MemoryFrame

_IN_PREPARE = 1 << 62  # bytes: however many, rows go into the prepare itself


@dataclass(frozen=True)
class Taken:
    """What an intake found. ``rows`` is the segment that ``ref`` names, None if there were none."""

    ref: SegmentRef | None = None
    rows: bytes = b""
    times: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, Counter[str]] = field(default_factory=dict)


def take_in(
    inputs: Sequence[StageInput], frames: Sequence[Mapping[Node, MemoryFrame]], fence: Fence, slices: int, clock: int
) -> Taken:
    """The rows of one level's inputs, each from the frames of its leaves. ``clock`` is the epoch's, µs."""
    seen: dict[str, int] = {}
    batches = [_rows(item, leaves, clock, seen) for item, leaves in zip(inputs, frames, strict=True)]
    intake = Intake(
        store=cast(Store, None),  # no segment is ever a file
        fence=fence,
        level=inputs[0].place.level,
        slices=slices,
        hashed_keys=tuple(len(item.plan.operator.keys) if item.hashed_at_intake else 0 for item in inputs),
        times=tuple(_time(item, clock) for item in inputs),
        inline_bytes=_IN_PREPARE,
        numbers=tuple(item.place.number for item in inputs),
    )
    tag = IntakeTask(intake, partition=0, attempt=0).run(
        Crossed(rows.num_rows, ((number, rows),)) for number, rows in enumerate(batches) if rows.num_rows
    )
    if tag is None:
        return Taken(times=seen)
    rows = some(tag.rows, "rows of a test go into the prepare")
    for name, latest in tag.times.items():
        seen[name] = max(latest, seen.get(name, latest))
    ref = replace(tag.segment, inline=0)
    return Taken(ref if ref.rows else None, rows, seen, counted([tag]))


def _rows(item: StageInput, leaves: Mapping[Node, MemoryFrame], clock: int, seen: dict[str, int]) -> pa.RecordBatch:
    """The columns that Spark would hand to the intake; ``seen`` gets the event times that it would observe."""

    def look(frame: MemoryFrame, column: str, names: Mapping[int, str]) -> MemoryFrame:
        times = frame.table.column(column).cast(pa.int64())
        for number, name in names.items():
            mine = times if LEAF not in frame.columns else times.filter(pc.equal(frame.table.column(LEAF), number))
            if item.ahead is not None:
                mine = mine.filter(pc.less_equal(mine, clock + item.ahead))
            latest = pc.max(mine).as_py()
            if latest is not None:
                seen[name] = max(latest, seen.get(name, latest))
        return frame

    if len(item.observed) > 1:
        numbers: dict[Node, int] = {leaf: at for at, (leaf, _) in enumerate(item.observed)}
        leaves = {leaf: frame.with_constant(LEAF, numbers.get(leaf, -1), "int") for leaf, frame in leaves.items()}
    frame = item.evaluated(leaves, look)
    keys = [frame.values(key) for key in item.keys]
    columns = {name: frame.table.column(name).combine_chunks() for name in item.hidden}
    columns |= {f"k{at}": key for at, key in enumerate(keys)}
    columns |= {f"v{at}": frame.values(value) for at, value in enumerate(item.values)}
    if not item.hashed_at_intake:
        hashes = xxhash64(keys, [key.type for key in item.plan.operator.keys])
        columns = {"_h": pa.array(hashes), **columns}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _time(item: StageInput, clock: int) -> EventTime | None:
    if item.time is None:
        return None
    latest = None if item.ahead is None else clock + item.ahead
    return EventTime(item.plan.name, item.time, tuple(name for _, name in item.observed), latest)
