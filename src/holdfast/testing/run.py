"""A job that runs in the process of its test, one epoch when the test says so.

An epoch is what it is in production: intake, ``prepare``, apply, level by level, then commit. Nothing runs by itself;
the clock stands still until it is moved.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import ByteType, StructField, StructType

from holdfast.api.keyed import StageStream
from holdfast.api.keys import key_rows
from holdfast.api.stream import Stream
from holdfast.api.windows import span
from holdfast.driver.counts import CAME
from holdfast.driver.row_times import RowTimes
from holdfast.driver.watermarks import Timekeeper
from holdfast.errors import PlanError
from holdfast.invariants import invariant
from holdfast.log.records import FEED, Fence, Prepare, Range
from holdfast.master.pump import endless
from holdfast.plan.compile import Plan
from holdfast.plan.graph import DIFF, Node, Output, Sink, Source, evaluate, leaves, loops, outputs, updating
from holdfast.state.feedback import packed
from holdfast.state.values import micros, moment
from holdfast.testing.frame import MemoryFrame, positive
from holdfast.testing.intake import Taken, take_in
from holdfast.testing.loops import Around
from holdfast.testing.recovery import Plane, checked_place
from holdfast.testing.values import Given, Row, by_columns, in_order, to_rows, to_table

if TYPE_CHECKING:
    from holdfast.testing.job import Job

Leaf = tuple[str, str | None]
"""A source by its name, or a stage and one of its outputs."""
Rows = Mapping[Leaf, MemoryFrame]
"""Of one epoch: the rows of sources, and those of stages with their signs."""


class Run:
    """Made by ``job.start``. ``epoch`` and ``advance`` move it; ``rows``, ``last`` and ``state`` look at it."""

    def __init__(self, job: Job, plan: Plan, slices: int, clock: dt.datetime) -> None:
        self.job = job
        self._plan = plan
        self._sources = {source.name: source for source in job._sources}
        self._plane = Plane(plan.stages, {one.plan.name: tuple(one.outputs) for one in plan.planned}, slices)
        self._time = Timekeeper(plan.stages)
        self._clock = micros(clock) // 1000  # ms, as prepares have it
        self._committed = 0
        self._planted: str | None = None
        self._crashes = 0
        self._counts: dict[str, Counter[str]] = {stage.name: Counter() for stage in plan.stages}
        self._epochs: list[Rows] = []
        self._written = [sink for sink in plan.sinks if not sink.feeds and not sink.closes]
        self._sinks: dict[str, list[list[Row]]] = {sink.name: [] for sink in self._written}
        self._around = Around(plan, slices)
        self._fed = dict.fromkeys(plan.feeding, b"")
        """What the last epoch has fed back: a store has it in the commit."""
        self._row_times = RowTimes(plan.time_columns)
        self.warnings: list[str] = []
        """What ``run.status().events`` would warn of."""
        self._over = False

    # --- what makes it go on ------------------------------------------------------------------------------

    def epoch(
        self, rows: Given | Mapping[str, Given] | None = None, /, *, crash: str | None = None, **named: Given
    ) -> int:
        """Run one epoch with these rows, by the names of their sources; its number.

        ``run.epoch(clicks=[…], orders=[…])``; a job with one source takes its rows as they are: ``run.epoch([…])``; a
        dict is for names that Python cannot have. ``crash`` names a place to lose slices at: they are rebuilt from
        copies and the log, and what the run shows must not change. If applying raises, the epoch never was.
        """
        place = None if crash is None else checked_place(crash)
        return self._epoch(self._tables(rows, named), place)

    def advance(self, time: str) -> int:
        """Move the clock, with an epoch of its own at each moment at which a timer or a window asks for one; how many
        there were.
        """
        goal, ticks, before = self._clock + span(time, least=0) // 1000, 0, -1
        while (due := self._plane.due) is not None:
            # An operator that asks for a moment again though it has just had it waits for the next one.
            wanted = max(-(-due // 1000), self._clock, before + 1)
            if wanted > goal:
                break
            self._clock = before = wanted
            self._epoch({}, None, tick=True)
            ticks += 1
        self._clock = goal
        return ticks

    def settle(self) -> int:
        """Run epochs without rows of sources until the job's loops are dry; how many there were."""
        most = [sink.max_rounds for sink in self._plan.closing if sink.max_rounds is not None]
        rounds = 0
        while self._around.waiting:
            if rounds >= min(most, default=1 << 62):
                raise endless(*self._around.first, rounds)
            self._epoch({}, None, tick=True)
            rounds += 1
        return rounds

    def crash(self, place: str) -> None:
        """Lose slices now ("after-commit", or all of them: "all"), or in the middle of the next epoch."""
        self._refuse_when_over()
        if checked_place(place) in ("after-commit", "all"):
            self._crash(place, self._committed, 0)
        else:
            self._planted = place

    def stop(self) -> None:
        self._over = True

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- what it shows ------------------------------------------------------------------------------------

    def rows(self, stream: Stream) -> list[Row]:
        """What the stream has put out so far and not taken back.

        Rows that stay come in the order of their epochs, within one by key. A stream that changes its rows (running
        aggregates, ``top_k``) is a table: its rows as they are now, by their columns from the left.
        """
        node = self._own(stream)
        if not updating(node):
            return [row for rows in self._epochs for row in self._unsigned(node, rows)]
        present: dict[str, list[Row]] = {}
        for rows in self._epochs:
            for row in to_rows(self._evaluated(node, rows, signed=True)):
                sign = row.pop(DIFF)
                alike = present.setdefault(repr(row), [])
                if sign > 0:
                    alike.append(row)
                else:
                    invariant(alike, f"a row is taken back that never was: {row}")
                    alike.pop()
        return in_order([row for alike in present.values() for row in alike])

    def last(self, stream: Stream) -> list[Row]:
        """What the last epoch has put out: the rows that a sink gets, new and changed ones alike."""
        node = self._own(stream)
        return self._unsigned(node, self._epochs[-1]) if self._epochs else []

    def state(self, stage: Stream) -> list[Row]:
        """What a stage holds, as ``run.state(stage)`` shows it in production, by key."""
        return in_order(to_rows(self._plane.read(self._stage(stage), self._committed)))

    def get(self, stage: Stream, *key: object) -> Row | None:
        """What a stage holds for one key, as ``run.state(stage).get(…)`` in production; None if it has no such key."""
        name = self._stage(stage)
        wanted = key_rows(name, self._plan.stage(name).plan.operator.keys, key, "UTC")
        rows = to_rows(self._plane.get(name, wanted, self._committed))
        return rows[0] if rows else None

    def counts(self, stage: Stream) -> dict[str, int]:
        """What befell a stage's rows besides being taken: ``late``, ``null time``, ``future``, ``duplicate`` …"""
        return dict(self._counts[self._stage(stage)])

    def watermark(self, stage: Stream) -> dt.datetime | None:
        """How far event time is for a stage; None before any row."""
        reached = self._time.watermarks.get(self._stage(stage))
        return None if reached is None else moment(reached)

    def sink(self, name: str) -> list[list[Row]]:
        """What each epoch has given to a sink of ``write`` or ``for_each_batch``; none is written or called."""
        if name not in self._sinks:
            known = ", ".join(f"'{one}'" for one in self._sinks) or "none"
            raise PlanError(f"There is no sink '{name}'.", todo=f"The job's sinks: {known}.")
        return self._sinks[name]

    @property
    def clock(self) -> dt.datetime:
        return moment(1000 * self._clock)

    # --- one epoch ----------------------------------------------------------------------------------------

    def _epoch(self, given: Mapping[str, pa.Table], crash: str | None, *, tick: bool = False) -> int:
        self._refuse_when_over()
        place, self._planted = crash or self._planted, None
        epoch = self._committed + 1
        counts: list[Mapping[str, Counter[str]]] = []
        frames: dict[Node, MemoryFrame] = {
            source: MemoryFrame(source.frame.schema, given.get(name)) for name, source in self._sources.items()
        }
        try:
            for level in range(1, self._plan.levels + 1):
                counts += self._level(epoch, level, frames, given, place, tick)
            around = self._around.closed(epoch, 1000 * self._clock, self._read)
            rows = {(source.name, None): frames[source] for source in self._sources.values()} | self._put_out(epoch)
            fed = {
                sink.feeds: packed(sink.feeds, epoch, self._of_sink(sink, epoch, rows))
                for sink in self._plan.sinks
                if sink.feeds
            }
        except Exception:
            self._plane.undo(epoch)
            self._time = self._time_of_the_log()
            raise
        self._epochs.append(rows)
        for sink in self._written:
            given_to = to_rows(self._of_sink(sink, epoch, rows))
            self._sinks[sink.name].append(in_order(given_to) if sink.mode == "complete" else given_to)
        told: dict[str, Counter[str]] = {stage.name: Counter() for stage in self._plan.stages}
        for found in counts:
            for stage, counted in found.items():
                told[stage].update(counted)
        for stage, counted in told.items():
            self._counts[stage].update({why: rows for why, rows in counted.items() if why != CAME})
        self.warnings += self._row_times.epoch(told)
        if any(table.num_rows for table in given.values()):
            self.warnings += self._time.warnings()
        self._plane.commit(epoch)
        self._committed, self._fed, self._around.waiting = epoch, fed, around
        if place == "after-commit":
            self._crash(place, epoch, 0)
        return epoch

    def _level(
        self,
        epoch: int,
        level: int,
        frames: Mapping[Node, MemoryFrame],
        given: Mapping[str, pa.Table],
        place: str | None,
        tick: bool,
    ) -> Iterable[Mapping[str, Counter[str]]]:
        inputs = self._plan.intake(level)
        read = [self._read(item.node, epoch, item.updating) if level > 1 else frames for item in inputs]
        fence = Fence(1, epoch, 1)
        taken = take_in(inputs, read, fence, self._plane.slices, 1000 * self._clock) if inputs else Taken()
        times, before, after = self._time.advance(level, [taken.times], self._plane.oldest)
        segments, attached = self._around.with_waiting(level, taken)
        prepare = Prepare(
            fence=fence,
            level=level,
            ranges={FEED: Range(epoch + tick, epoch)},
            segments=segments,
            clock=max(self._time.clock, self._clock),
            times=times,
            watermark_before=before,
            watermark_after=after,
            feedback=self._fed,
            attachments=attached,
        )
        stored = self._plane.log.put(prepare)
        self._time.take(stored)
        if place == "after-prepare":
            self._crash(place, epoch - 1, level - 1)
        elif place in ("mid-apply", "all"):
            self._plane.apply(stored, range(0, self._plane.slices, 2))
            self._crash(place, epoch - 1, level - 1)
        self._plane.apply(stored)
        return self._plane.counts(level), taken.counts

    def _crash(self, place: str, committed: int, level: int) -> None:
        """``level`` is the highest that has been applied of the epoch in flight."""
        every = range(self._plane.slices)
        self._crashes += 1
        if place == "all":
            self._time = self._time_of_the_log()
            self._plane.crash(every, committed, level, restart=True)
        else:  # one of two containers: now the one whose slices had applied first, now the other
            self._plane.crash(
                [number for number in every if number % 2 == self._crashes % 2] or every, committed, level
            )

    def _time_of_the_log(self) -> Timekeeper:
        """Time as a driver that has just started finds it."""
        found = Timekeeper(self._plan.stages)
        for epoch in (self._committed, self._committed + 1):
            for level in range(1, self._plan.levels + 1):
                prepare = self._plane.log.get_prepare(epoch, level)
                if prepare is not None:
                    found.take(prepare)
        return found

    # --- rows ---------------------------------------------------------------------------------------------

    def _tables(self, rows: Given | Mapping[str, Given] | None, named: Mapping[str, Given]) -> dict[str, pa.Table]:
        given = dict(named)
        if isinstance(rows, Mapping):
            given |= rows
        elif rows is not None:
            if len(self._sources) > 1:
                names = ", ".join(self._sources)
                raise PlanError(f"The job has several sources ({names}).", todo="Name them: run.epoch(clicks=[…]).")
            given |= dict.fromkeys(self._sources, rows)
        unknown = [name for name in given if name not in self._sources]
        if unknown:
            known = ", ".join(f"'{name}'" for name in self._sources)
            raise PlanError(f"The job has no source '{unknown[0]}'.", todo=f"Its sources: {known}.")
        return {name: to_table(given[name], self._sources[name].frame.schema, name) for name in given}

    def _read(self, node: Node, epoch: int, signed: bool) -> dict[Node, MemoryFrame]:
        """The leaves of an input above the first level, as the stages below have just put them out."""
        found: dict[Node, MemoryFrame] = {}
        for leaf in outputs(node):
            table = self._plane.outputs(leaf.stage.name, leaf.port, epoch, "changelog" if signed else "changed")
            schema = self._plan.stage(leaf.stage.name).outputs[leaf.port]
            found[leaf] = MemoryFrame(_signed(schema) if signed else schema, table)
        return found

    def _put_out(self, epoch: int) -> dict[Leaf, MemoryFrame]:
        """Every output of the epoch with signs. No order between slices is promised, so rows are put in the keys'."""
        found: dict[Leaf, MemoryFrame] = {}
        for planned in self._plan.planned:
            for port, schema in planned.outputs.items():
                table = self._plane.outputs(planned.plan.name, port, epoch, "changelog")
                table = by_columns(table, [key.name for key in planned.plan.operator.keys])
                found[planned.plan.name, port] = MemoryFrame(_signed(schema), table)
        return found

    def _evaluated(self, node: Node, rows: Rows, *, signed: bool) -> pa.Table:
        frames: dict[Node, MemoryFrame] = {}
        for leaf in leaves(node):
            if isinstance(leaf, Source):
                frames[leaf] = rows[leaf.name, None]
            elif isinstance(leaf, Output):
                frame = rows[leaf.stage.name, leaf.port]
                plain = MemoryFrame(StructType(frame.schema.fields[:-1]), positive(frame.table))
                frames[leaf] = frame if signed else plain
        return evaluate(node, frames, (DIFF,) if signed else ()).table

    def _unsigned(self, node: Node, rows: Rows) -> list[Row]:
        return to_rows(self._evaluated(node, rows, signed=False))

    def _of_sink(self, sink: Sink, epoch: int, rows: Rows) -> pa.Table:
        if sink.mode != "complete":
            return self._evaluated(sink.node, rows, signed=False)
        frames: dict[Node, MemoryFrame] = {}
        for leaf in outputs(sink.node):
            schema = self._plan.stage(leaf.stage.name).outputs[leaf.port]
            frames[leaf] = MemoryFrame(schema, self._plane.outputs(leaf.stage.name, leaf.port, epoch, "all"))
        return evaluate(sink.node, frames).table

    def _own(self, stream: Stream) -> Node:
        if not isinstance(stream, Stream) or stream._job is not self.job:
            raise PlanError("This is no stream of the job that runs.", todo="Ask for a stream that its verbs returned.")
        if looped := loops(stream._node):
            raise PlanError(
                f"The rows of loop '{looped[0].name}' are those of the stream that closes it, an epoch later.",
                todo="Ask for that one.",
            )
        return stream._node

    def _stage(self, stream: Stream) -> str:
        self._own(stream)
        if not isinstance(stream, StageStream):
            raise PlanError("Only a stage has state.", todo="Ask for what agg, join, top_k and their like returned.")
        return stream.name

    def _refuse_when_over(self) -> None:
        if self._over:
            raise PlanError("The run is over.", todo="Move it inside its 'with' block, or start another.")


def _signed(schema: StructType) -> StructType:
    return StructType([*schema.fields, StructField(DIFF, ByteType())])
