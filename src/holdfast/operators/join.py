"""``left.join(right, ...)`` on a slice: rows of both inputs wait for each other, for as long as their times allow.

Each input has a table of the rows that may still find a partner, under (key, time bucket, number). A bucket is as wide
as the span of times a row can match, so that a probe looks into two of them at most. In an epoch the left rows meet the
right ones of the epochs before, and then the right rows meet all left ones: every pair is found once.

The order of what is put out: pairs that are taken back, for the left and then for the right rows of the epoch; for the
left and then for the right rows those whose key is null (outer joins) and new pairs, by the row that came and then by
bucket and number of the row it met; at last the rows that go unmatched, left before right, in slot order.

Equal rows with +1 and -1 in one epoch cancel out before they are looked at. What the watermark has let go is final: a
-1 for a row that is not held any more is counted as late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.errors import FunctionError, PlanError
from holdfast.operators.bounds import Bound, Bounds, Columns, Reading, together
from holdfast.operators.draft import Draft, Given, all_columns, refuse_unlike_keys
from holdfast.operators.join_side import JoinSide
from holdfast.operators.keyed import Fields, KeyedOperator, refuse_doubles, schema_of
from holdfast.operators.late import past
from holdfast.operators.spec import Column, Spec
from holdfast.state import multimap
from holdfast.state.columns import Arena, Array, Ints
from holdfast.state.content import content, nth, same, settled
from holdfast.state.keys import KeyRows
from holdfast.state.rows import Rows, Values
from holdfast.state.slice import MAIN, NEVER, Work
from holdfast.state.table import Layout, Table

_REFUSED = "nothing was started or written."
_TIMES = ("timestamp", "timestamp_ntz")


@dataclass(frozen=True)
class JoinSpec(Spec):
    """Rows of two inputs with equal keys and, if bounded, left_time - before <= right_time <= left_time + after.

    ``left`` and ``right`` are the value columns of the inputs, ``left_out`` and ``right_out`` the numbers of those that
    are put out, ``left_time`` and ``right_time`` of those that hold the event time; ``before`` and ``after`` are
    microseconds, None for no bound. An ``updating`` input carries ``_d`` and may take rows back.
    """

    kind = "join"
    undivided = None

    keys: tuple[Column, ...]
    left: tuple[Column, ...]
    right: tuple[Column, ...]
    left_out: tuple[int, ...]
    right_out: tuple[int, ...]
    how: str
    left_time: int | None
    right_time: int | None
    before: int | None
    after: int | None
    updating: tuple[bool, bool] = (False, False)
    ansi: bool = True

    @classmethod
    def drafted(
        cls,
        draft: Draft,
        *,
        how: str,
        times: tuple[Given | None, Given | None],
        before: int | None,
        after: int | None,
    ) -> JoinSpec:
        left, right = draft.inputs
        refuse_unlike_keys(left.keys, right.keys, f"the two sides of '{draft.name}'")
        numbers = []
        for port, item in enumerate(draft.inputs):
            draft.take_time(times[port], port)
            numbers.append(all_columns(item))
        return cls(
            keys=left.keys,
            left=tuple(left.values.plain),
            right=tuple(right.values.plain),
            left_out=numbers[0],
            right_out=numbers[1],
            how=how,
            left_time=left.time,
            right_time=right.time,
            before=before,
            after=after,
            updating=(left.updating, right.updating),
            ansi=draft.ansi,
        )

    def build(self) -> JoinOperator:
        return JoinOperator(self)

    @property
    def label(self) -> str:
        return f"{self.how} join"

    @property
    def unbounded(self) -> str | None:
        if None in (self.before, self.after):
            return (
                "joins without a time bound, so every row of both sides is kept for ever: "
                "join(…, time=…, within='1 hour')"
            )
        return None

    @property
    def takes_back(self) -> bool:
        return any(self.updating)

    @property
    def updates(self) -> bool:
        return any(self.updating)

    def bounds(self, name: str, inputs: Sequence[Reading], ports: Mapping[str, Sequence[str]]) -> Mapping[str, Columns]:
        """One of a pair comes with its epoch, the other is as far from it as the bound lets it be."""
        left, right = inputs
        found: dict[str, Bounds] = {}
        if self.before is not None and self.after is not None:
            found |= dict.fromkeys(left.times, (Bound(name, self.after),))
            found |= dict.fromkeys(right.times, (Bound(name, self.before),))
        if self.how == "inner":
            for one, other in zip(left.keys, right.keys, strict=True):
                if one is not None and other is not None and one in left.columns and other in right.columns:
                    found.setdefault(one, together(left.columns[one], right.columns[other]))
        return {MAIN: found}


class JoinOperator(KeyedOperator):
    """Two streams, joined by key and time."""

    def __init__(self, spec: JoinSpec) -> None:
        _check(spec)
        super().__init__(spec.keys, (spec.left, spec.right), signed=any(spec.updating))
        self.spec = spec
        left, right = self.values
        back, ahead = spec.before, spec.after
        self._sides = (
            JoinSide(0, left, spec.left_out, spec.left_time, (back, ahead), spec.how in ("left", "full")),
            JoinSide(1, right, spec.right_out, spec.right_time, (ahead, back), spec.how in ("right", "full")),
        )
        self._width = None if back is None or ahead is None else max(1, back + ahead)
        words = self.codec.words + multimap.WORDS
        self.layouts = tuple(Layout(words, self.codec.tail, side.columns, alive=0) for side in self._sides)
        self.outputs = {MAIN: (*self.keys, *self._sides[0].fields, *self._sides[1].fields)}
        self.state: Fields = (*self.keys, *self._sides[0].fields)
        self._schema, self._state_schema = schema_of(self.outputs[MAIN]), schema_of(self.state)
        refuse_doubles([name for name, _ in self.outputs[MAIN]])

    def apply(self, work: Work, *inputs: Rows | None) -> None:
        came = [(side, rows) for side, rows in zip(self._sides, inputs, strict=True) if rows is not None and len(rows)]
        # What goes, goes on both sides before anything comes: a new row never meets one that leaves.
        fits = [self._settled(work, side, rows) for side, rows in came]
        for (side, rows), fit in zip(came, fits, strict=True):
            self._take(work, side, rows, fit)
        if came or work.time.watermark > work.time.late:
            for side in self._sides:
                self._expire(work, side)

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.RecordBatch:
        arrays = self.codec.encode(keys.shortened(multimap.WORDS))
        return pa.RecordBatch.from_arrays(
            [*arrays, *self._sides[0].from_columns(columns, arenas)], schema=self._state_schema
        )

    def find(self, table: Table, keys: KeyRows) -> Ints:
        return self.find_extended(table, keys, multimap.WORDS)

    # -- an epoch

    def _settled(self, work: Work, side: JoinSide, rows: Rows) -> Array:
        """Which rows of one input come; those that go are gone after this."""
        fit = np.ones(len(rows), bool)
        times = None if side.time is None else rows.values[side.time]
        if times is not None and len(times.valid):
            fit = times.valid != 0
            work.count("null time", len(rows) - int(np.count_nonzero(fit)))
        return self._settle(work, side, rows, fit) if self.spec.updating[side.number] else fit

    def _take(self, work: Work, side: JoinSide, rows: Rows, fit: Array) -> None:
        """The rows of one input meet what is held of the other, and are held themselves."""
        times = None if side.time is None else rows.values[side.time]
        if times is not None:
            late = fit & past(work, times.values)
            work.count("late", int(np.count_nonzero(late)))
            fit &= ~late
        absent = rows.keys.nulls != 0
        if absent.any():
            if side.outer:
                self._unmatched(work, side, rows, np.flatnonzero(fit & absent))
            fit &= ~absent
        at = np.flatnonzero(fit)
        if len(at):
            self._add(work, side, rows, at)

    def _settle(self, work: Work, side: JoinSide, rows: Rows, fit: Array) -> Array:
        """Take back what the epoch takes back in the end; which rows it adds in the end."""
        at = np.flatnonzero(fit & (rows.keys.nulls == 0))
        numbers, known = same(self._content(side, rows.keys.take(at), rows.values, at))
        sign = rows.sign[at]
        stays = settled(numbers, sign)
        down = stays & (sign < 0)
        if down.any():
            self._take_back(work, side, rows, at[down], numbers[down], known)
        added = np.zeros(len(rows), bool)
        added[at[stays & (sign > 0)]] = True
        return added

    def _add(self, work: Work, side: JoinSide, rows: Rows, at: Ints) -> None:
        keys = rows.keys if len(at) == len(rows) else rows.keys.take(at)
        times = None if side.time is None else rows.values[side.time].values[at]
        met, partners = self._partners(work, side, keys, times)
        self._pairs(work, side, rows, at[met], partners, 1)
        other = self._sides[1 - side.number]
        if other.outer:
            flags = work.tables[other.number].columns[other.matched]
            first = np.unique(partners[flags[partners] == 0])
            work.touch(first, other.number)
            flags[first] = 1
        slots = multimap.add(work, keys, self._buckets(times, len(at)), side.number)
        table = work.tables[side.number]
        side.payload.write(
            table.columns[side.first :],
            table.arenas[side.first :],
            slots,
            side.wanted(rows.values),
            None if len(at) == len(rows) else at,
        )
        if side.outer:
            table.columns[side.matched][slots[met]] = 1

    def _take_back(self, work: Work, side: JoinSide, rows: Rows, at: Ints, numbers: Ints, known: Table) -> None:
        """Rows ``at``, whose contents ``known`` has under ``numbers``, leave; so do their pairs."""
        keys = rows.keys.take(at)
        times = None if side.time is None else rows.values[side.time].values[at]
        table = work.tables[side.number]
        buckets = self._buckets(times, len(at))
        once = np.unique(same(keys.extended(buckets))[0], return_index=True)[1]
        _, slots = multimap.look(table, keys.take(once), buckets[once])
        held = content(table.keys(slots).shortened(multimap.WORDS), side.held(table, slots), side.payload.types)
        found = known.find(held)
        slots, found = slots[found >= 0], found[found >= 0]
        # The first of equal rows that are taken back takes the first that is held, and so on.
        places = np.lexsort((nth(found), found))
        ordered = found[places]
        place = np.searchsorted(ordered, numbers) + nth(numbers)
        hit = place < np.searchsorted(ordered, numbers, side="right")
        missing = len(at) - int(np.count_nonzero(hit))
        if missing and side.lives is None and side.time is None:
            raise FunctionError(
                f"{missing} rows of the {'right' if side.number else 'left'} input of a join were taken back that it"
                " never got.",
                safe="the slice is as it was before this epoch.",
                todo="check that the updating input sends every row with +1 before it takes it back with -1.",
            )
        work.count("late", missing)
        at, keys = at[hit], keys.take(hit)
        met, partners = self._partners(work, side, keys, None if times is None else times[hit])
        self._pairs(work, side, rows, at[met], partners, -1)
        multimap.remove(work, slots[places[place[hit]]], side.number)

    def _partners(self, work: Work, side: JoinSide, keys: KeyRows, times: Ints | None) -> tuple[Ints, Ints]:
        """The rows held of the other input that each of these rows matches: whose they are, and their slots."""
        other = self._sides[1 - side.number]
        table = work.tables[other.number]
        if not table.rows:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        back, ahead = side.reach
        if self._width is None or times is None or back is None or ahead is None:
            met, slots = multimap.look(table, keys, np.zeros(len(keys), np.int64))
        else:
            low, high = (times - back) // self._width, (times + ahead) // self._width
            asked, more = multimap.runs(high - low + 1)
            of, slots = multimap.look(table, keys.take(asked), low[asked] + more)
            met = asked[of]
        if times is None or (back is None and ahead is None):
            return met, slots
        apart = table.columns[other.time_column][slots] - times[met]
        fit = np.ones(len(met), bool)
        if back is not None:
            fit &= apart >= -back
        if ahead is not None:
            fit &= apart <= ahead
        return met[fit], slots[fit]

    def _pairs(self, work: Work, side: JoinSide, rows: Rows, at: Ints, partners: Ints, sign: int) -> None:
        if not len(at):
            return
        other = self._sides[1 - side.number]
        own, met = side.from_input(rows.values, at), other.from_slots(work.tables[other.number], partners)
        self._emit(work, rows.keys.take(at), *((met, own) if side.number else (own, met)), sign=sign)

    def _unmatched(self, work: Work, side: JoinSide, rows: Rows, at: Ints) -> None:
        self._alone(work, side, rows.keys.take(at), side.from_input(rows.values, at))

    def _alone(self, work: Work, side: JoinSide, keys: KeyRows, own: list[pa.Array]) -> None:
        if not len(keys):
            return
        nothing = self._sides[1 - side.number].output.nulls(len(keys))
        self._emit(work, keys, *((nothing, own) if side.number else (own, nothing)))

    def _emit(self, work: Work, keys: KeyRows, left: list[pa.Array], right: list[pa.Array], sign: int = 1) -> None:
        batch = pa.RecordBatch.from_arrays([*self.codec.encode(keys), *left, *right], schema=self._schema)
        work.emit(batch, None if sign > 0 else np.full(len(keys), sign, np.int8))

    def _expire(self, work: Work, side: JoinSide) -> None:
        """Rows that nothing can match any more go; in an outer join those that never matched are put out."""
        if side.lives is None or work.time.watermark == NEVER:
            return
        table = work.tables[side.number]
        times = table.columns[side.time_column][: table.rows]
        gone = np.flatnonzero((times < work.time.watermark - side.lives) & (table.columns[0][: table.rows] > 0))
        if not len(gone):
            return
        if side.outer:
            alone = gone[table.columns[side.matched][gone] == 0]
            keys = table.keys(alone).shortened(multimap.WORDS)
            self._alone(work, side, keys, side.from_slots(table, alone))
        multimap.remove(work, gone, side.number)

    def _buckets(self, times: Ints | None, count: int) -> Ints:
        return np.zeros(count, np.int64) if self._width is None or times is None else times // self._width

    def _content(self, side: JoinSide, keys: KeyRows, values: Sequence[Values], at: Ints) -> KeyRows:
        taken = [
            Values(value.values[at], value.valid[at] if len(value.valid) else value.valid, value.data)
            for value in side.wanted(values)
        ]
        return content(keys, taken, side.payload.types)


def _check(spec: JoinSpec) -> None:
    """Refuse what cannot be done, or would never be freed."""
    outer_left, outer_right = spec.how in ("left", "full"), spec.how in ("right", "full")
    if spec.how not in ("inner", "left", "right", "full"):
        raise _refusal(f"'{spec.how}' is no kind of join.", "use inner, left, right or full.")
    for columns, number, name in ((spec.left, spec.left_time, "left"), (spec.right, spec.right_time, "right")):
        if number is not None and columns[number].type not in _TIMES:
            raise _refusal(
                f"the event time of the {name} input, '{columns[number].name}', has type {columns[number].type}.",
                "name a column of type timestamp.",
            )
    bounded = spec.before is not None or spec.after is not None
    if bounded and (spec.left_time is None or spec.right_time is None):
        raise _refusal("a join within a time bound needs the event times of both inputs.", "name both time columns.")
    if spec.before is not None and spec.after is not None and spec.before + spec.after < 0:
        raise _refusal("the time bound of a join lets nothing match: it ends before it begins.", "check its sides.")
    if (outer_left and spec.after is None) or (outer_right and spec.before is None):
        raise _refusal(
            f"a {spec.how} outer join without a time bound can never know that a row has no partner.",
            "bound the time on both sides (within=…), or use an inner join.",
        )
    if (outer_left or outer_right) and any(spec.updating):
        raise _refusal(
            f"a {spec.how} outer join over an updating input is not supported.",
            "use an inner join, or make the input final first with an append window.",
        )


def _refusal(what: str, todo: str) -> PlanError:
    return PlanError(what, safe=_REFUSED, todo=todo)
