"""``key_by(...).distinct(...)`` on a slice: the first row of every key, and none after it.

Exactly: a table of the keys seen, each until the watermark has passed its first time by ``within``. Or by Bloom filter,
which forgets what the keys were: a key that was let through within that time is never let through again, and a new one
is dropped by mistake with at most the stated probability, as long as no more keys come than were announced (in all, or
per ``within``). A filter is rows of a table, one a block, so that an epoch's delta is the blocks that it changed. Bits
cannot be taken out; where keys are to be forgotten there is one filter for every ``within`` of event time, a key looks
into its own and both beside it, and a filter goes as a whole when all of its keys may.

Rows are put out in the order they came.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from holdfast.errors import PlanError
from holdfast.invariants import Impossible
from holdfast.operators.bounds import Bound, Columns, Reading
from holdfast.operators.draft import Draft, Given, all_columns, refuse_updating
from holdfast.operators.keyed import Fields, KeyedOperator, refuse_doubles, schema_of
from holdfast.operators.late import past
from holdfast.operators.spec import Column, Difference, Spec, unlike
from holdfast.state import bloom
from holdfast.state.columns import FLAG, INT, NO_BYTES, NO_SPANS, Arena, Array, ColumnSpec, Ints
from holdfast.state.content import same
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows
from holdfast.state.slice import MAIN, NEVER, Work
from holdfast.state.table import Layout, Table
from holdfast.state.types import BIGINT

_REFUSED = "nothing was started or written."
_FILTER = ColumnSpec("int64", bloom.WORDS)
_BESIDE = (-1, 0, 1)


@dataclass(frozen=True)
class DistinctSpec(Spec):
    """The first row of every key; ``time`` is the number of the value column with the event time, ``within``
    microseconds, ``bloom`` how many keys are expected over all ``slices`` (per ``within``, if that is said) and the
    error allowed.
    """

    kind = "distinct"
    free = frozenset({"values", "time"})

    keys: tuple[Column, ...]
    values: tuple[Column, ...]
    time: int | None
    within: int | None
    bloom: tuple[int, float] | None = None
    slices: int = 128

    @classmethod
    def drafted(
        cls, draft: Draft, *, time: Given | None, within: int | None, bloom: tuple[int, float] | None
    ) -> DistinctSpec:
        refuse_updating(draft, "distinct")
        item = draft.inputs[0]
        number = draft.take_time(time)
        all_columns(item)
        return cls(item.keys, tuple(item.values.plain), number, within, bloom)

    def build(self) -> DistinctOperator:
        return DistinctOperator(self)

    @property
    def undivided(self) -> str | None:
        if self.bloom is not None:
            return "a Bloom filter does not know which bits are whose: use distinct(time=…, within=…), or hf.Delta"
        return None

    @property
    def unbounded(self) -> str | None:
        if self.within is None and self.bloom is None:
            return "remembers every key for ever: distinct(time=…, within='1 day'), or distinct(error=0.01, expected=…)"
        return None

    def bounds(self, name: str, inputs: Sequence[Reading], ports: Mapping[str, Sequence[str]]) -> Mapping[str, Columns]:
        """A row comes out in the epoch in which it comes in."""
        return {MAIN: {**inputs[0].columns, **dict.fromkeys(inputs[0].times, (Bound(name),))}}

    def sized(self, slices: int) -> DistinctSpec:
        """A Bloom filter is as large as a slice's share of the keys asks for."""
        return self if self.bloom is None else replace(self, slices=slices)

    def difference(self, asked: DistinctSpec) -> Difference:
        found = super().difference(asked)
        return replace(
            found, refused=(*found.refused, *unlike("type of the event time", self._time_type, asked._time_type))
        )

    @property
    def _time_type(self) -> str | None:
        return None if self.time is None else self.values[self.time].type


class DistinctOperator(KeyedOperator):
    """The first row of every key."""

    def __init__(self, spec: DistinctSpec) -> None:
        _check(spec)
        super().__init__(spec.keys, (spec.values,))
        self.spec = spec
        self.outputs = {MAIN: (*self.keys, *self.values[0])}
        self._schema = schema_of(self.outputs[MAIN])
        refuse_doubles([name for name, _ in self.outputs[MAIN]])
        self._plan: bloom.Plan | None = None
        self.state: Fields
        self.layouts: tuple[Layout, ...]
        if spec.bloom is not None:
            self._plan = _plan(spec)
            self.layouts = (Layout(2, False, (FLAG, _FILTER), alive=0),)
            self.state = (("generation", BIGINT), ("block", BIGINT), ("bits", BIGINT))
        else:
            timed = spec.within is not None and spec.time is not None
            self.layouts = (Layout(self.codec.words, self.codec.tail, (FLAG, *((INT,) if timed else ())), alive=0),)
            self.state = (*self.keys, *((self.values[0][spec.time],) if timed and spec.time is not None else ()))
        self._state_schema = schema_of(self.state)

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.RecordBatch:
        if self._plan is not None:
            found = [pa.array(values) for values in (*keys.words.T, bloom.bits_set(columns[1]))]
        else:
            found = self.codec.encode(keys)
            if len(columns) > 1:
                found.append(pa.array(columns[1]).cast(self._state_schema.types[-1]))
        return pa.RecordBatch.from_arrays(found, schema=self._state_schema)

    def find(self, table: Table, keys: KeyRows) -> Ints:
        if self._plan is not None:
            return np.full(len(keys), -1, np.int64)  # a filter does not know its keys
        return table.find(keys)

    def apply(self, work: Work, *inputs: Rows | None) -> None:
        (rows,) = inputs
        came = rows is not None and len(rows) > 0
        if rows is not None and came:
            at = self._in_time(work, rows)
            times = None if self.spec.time is None else rows.values[self.spec.time].values[at]
            keys = rows.keys if len(at) == len(rows) else rows.keys.take(at)
            fresh = self._exact(work, keys, times) if self._plan is None else self._filter(work, keys, times)
            work.count("duplicate", len(at) - len(fresh))
            if len(fresh):
                self._emit(work, rows, at[fresh])
        if self.spec.within is not None and (came or work.time.watermark > work.time.late):
            self._forget(work, self.spec.within)

    def _emit(self, work: Work, rows: Rows, at: Ints) -> None:
        arrays = [*self.codec.encode(rows.keys.take(at)), *self.payloads[0].arrays(rows.values, at)]
        work.emit(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _in_time(self, work: Work, rows: Rows) -> Ints:
        if self.spec.time is None:
            return np.arange(len(rows))
        times = rows.values[self.spec.time]
        fit = ~past(work, times.values)
        if len(times.valid):
            absent = times.valid == 0
            work.count("null time", int(np.count_nonzero(absent)))
            work.count("late", int(np.count_nonzero(~fit & ~absent)))
            fit = fit & ~absent
        else:
            work.count("late", len(rows) - int(np.count_nonzero(fit)))
        return np.flatnonzero(fit)

    def _exact(self, work: Work, keys: KeyRows, times: Ints | None) -> Ints:
        """Which rows are the first of their keys; they are known from now on."""
        table = work.tables[0]
        slots = table.find(keys)
        unknown = np.flatnonzero((slots < 0) | (table.columns[0][slots] == 0))
        if not len(unknown):
            return unknown
        first = _firsts(keys, unknown)
        slots = work.place(keys.take(first))
        work.tables[0].columns[0][slots] = 1
        if times is not None and len(work.tables[0].columns) > 1:
            work.tables[0].columns[1][slots] = times[first]
        return first

    def _filter(self, work: Work, keys: KeyRows, times: Ints | None) -> Ints:
        if self._plan is None:
            raise Impossible("no filter was asked for")
        table, within = work.tables[0], self.spec.within
        blocks = bloom.blocks_of(keys.hash, self._plan.blocks)
        forever = times is None or within is None
        own = np.zeros(len(keys), np.int64) if times is None or within is None else times // within
        known = np.zeros(len(keys), np.uint8)
        for beside in (0,) if forever else _BESIDE:
            slots = table.find(_block_keys(own + beside, blocks))
            bloom.seen(self._plan.probes, keys.hash, slots, table.columns[1], known)
        fresh = np.flatnonzero(known == 0)
        if not len(fresh):
            return fresh
        # Of the rows of one key in this epoch the first stays, whatever filter each would be noted in.
        first = _firsts(keys, fresh)
        slots = work.place(_block_keys(own[first], blocks[first]))
        work.tables[0].columns[0][slots] = 1
        known = np.zeros(len(first), np.uint8)
        bloom.add(self._plan.probes, keys.hash[first], slots, work.tables[0].columns[1], known)
        passed: Ints = first[known == 0]
        return passed

    def _forget(self, work: Work, within: int) -> None:
        """What is remembered for no longer than up to the watermark goes."""
        table, watermark = work.tables[0], work.time.watermark
        if watermark == NEVER:
            return
        if self._plan is None:
            last = table.columns[1][: table.rows]
        else:  # the last moment of a generation
            last = table.words[: table.rows, 0] * within + (within - 1)
        gone = np.flatnonzero((last < watermark - within) & (table.columns[0][: table.rows] > 0))
        if len(gone):
            work.bury(gone)


def _firsts(keys: KeyRows, at: Ints) -> Ints:
    """Of rows ``at`` the first of every key, in order."""
    numbers, _ = same(keys.take(at))
    first = np.empty(int(numbers.max()) + 1, np.int64)
    first[numbers[::-1]] = at[::-1]  # numbers are given in order of first appearance; the first one is written last
    return first


def _block_keys(generations: Ints, blocks: Ints) -> KeyRows:
    """Blocks as keys of the table. Their hash need only spread."""
    count = len(blocks)
    bare = KeyRows(blocks, np.zeros(count, np.int32), np.empty((count, 0), np.int64), NO_SPANS, NO_BYTES)
    return bare.extended(generations, blocks)


def _plan(spec: DistinctSpec) -> bloom.Plan:
    if spec.bloom is None:
        raise Impossible("no filter was asked for")
    keys, error = spec.bloom
    mean = keys / spec.slices
    # Slices are not equally full; and where a key looks into three filters, each has a third of the error.
    return bloom.plan(mean + 4 * math.sqrt(mean), error if spec.within is None else error / len(_BESIDE))


def _check(spec: DistinctSpec) -> None:
    if spec.within is not None and spec.time is None:
        raise PlanError(
            "distinct within a time needs to know the event time.",
            safe=_REFUSED,
            todo="name the column with the event time, or remember keys for ever.",
        )
    if spec.within is not None and spec.within < 1:
        raise PlanError(
            f"distinct within {spec.within} µs would remember nothing.", safe=_REFUSED, todo="give a longer time."
        )
    if spec.time is not None and spec.values[spec.time].type not in ("timestamp", "timestamp_ntz"):
        column = spec.values[spec.time]
        raise PlanError(
            f"the event time of distinct, '{column.name}', has type {column.type}.",
            safe=_REFUSED,
            todo="name a column of type timestamp.",
        )
    if spec.bloom is not None and not (spec.bloom[0] > 0 and 1e-6 <= spec.bloom[1] <= 0.5):
        raise PlanError(
            f"a Bloom filter for {spec.bloom[0]} keys with an error of {spec.bloom[1]} cannot be made.",
            safe=_REFUSED,
            todo="expect at least one key, and allow an error between 0.000001 and 0.5.",
        )
