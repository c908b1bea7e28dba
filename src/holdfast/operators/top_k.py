"""``key_by(...).top_k(k, ...)`` on a slice: the first k rows of every group, as a changelog of whole groups.

The rows that are shown are in the first table under (group, position). Over an append-only input nothing else is
kept, for what falls out never comes back. Over an updating one a second table counts all rows by their content, so
that the next best can move up; it is only searched when so many of the rows shown are gone that one it alone knows
might be among the first.

Ties: rows that are equal in the columns of the order are told apart by their other columns, ascending, so that which of
them are shown does not depend on when and how they came. (Nulls come before values, and after them in descending
order; NaN is above all numbers; strings are compared by their bytes.) With ``ties="all"`` they share their rank and
all of those that reach the k-th are kept.

The order of what is put out: old rows of all groups that changed with -1, then the new ones with +1; groups in the
order in which the epoch's rows name them, rows by rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from holdfast.errors import FunctionError, PlanError
from holdfast.operators.ahead import Cut, ordered
from holdfast.operators.bounds import Columns, Reading
from holdfast.operators.draft import Draft, Given, order_of
from holdfast.operators.keyed import Fields, KeyedOperator, refuse_doubles, schema_of
from holdfast.operators.spec import Column, Spec
from holdfast.state.columns import INT, Arena, Array, ColumnSpec, Ints
from holdfast.state.content import content, keys_of, nth, same, settled, tailed, values_of, words
from holdfast.state.keys import KeyRows
from holdfast.state.multimap import SIZE, runs
from holdfast.state.ranking import Order, Pool, Ranked, ranked, taken
from holdfast.state.rows import Rows, Values
from holdfast.state.slice import MAIN, Work
from holdfast.state.table import Layout, Table
from holdfast.state.types import BIGINT

_REFUSED = "nothing was started or written."
_RANK = ColumnSpec("int64")
_FIRST = 2  # of the columns with values; before them the group's size (1 below position 0) and the rank


@dataclass(frozen=True)
class TopKSpec(Spec):
    """The first ``k`` rows of each group by ``order``: (number of the value column, descending), the first above all.

    With ``final_input`` all rows of a group come in one epoch and never again, and nothing is kept. ``hidden_keys``:
    the key is not put out (a global ``top_k`` has a constant one).
    """

    kind = "top_k"
    free = frozenset({"rank", "hidden_keys"})
    undivided = None

    keys: tuple[Column, ...]
    values: tuple[Column, ...]
    order: tuple[tuple[int, bool], ...]
    k: int
    ties: str = "cut"
    rank: str = "rank"
    updating_input: bool = False
    final_input: bool = False
    hidden_keys: bool = False

    @classmethod
    def drafted(
        cls,
        draft: Draft,
        *,
        k: int,
        by: Sequence[tuple[Given, bool]],
        ties: str,
        rank: str,
        final: bool,
        hidden_keys: bool,
    ) -> TopKSpec:
        item = draft.inputs[0]
        order = order_of(item, by, keys=hidden_keys)
        return cls(
            keys=item.keys,
            values=tuple(item.values.plain),
            order=order,
            k=k,
            ties=ties,
            rank=rank,
            updating_input=draft.updating,
            final_input=final,
            hidden_keys=hidden_keys,
        )

    def build(self) -> TopKOperator:
        return TopKOperator(self)

    @property
    def label(self) -> str:
        return f"top {self.k}"

    @property
    def takes_back(self) -> bool:
        return self.updating_input

    @property
    def updates(self) -> bool:
        return not self.final_input

    @property
    def complete(self) -> bool:
        return not self.final_input

    @property
    def windowed(self) -> bool:
        return self.final_input

    @property
    def limit(self) -> int:
        return self.k

    def limited(self, limit: int) -> TopKSpec:
        return replace(self, k=limit)

    @property
    def empties(self) -> bool:
        return not self.updating_input

    def cut(self) -> Cut | None:
        """What is behind the k-th never comes back, unless what is before it can be taken back."""
        return None if self.updating_input else Cut(self.k, ordered(self.order))

    def bounds(self, name: str, inputs: Sequence[Reading], ports: Mapping[str, Sequence[str]]) -> Mapping[str, Columns]:
        return {MAIN: inputs[0].columns if self.final_input else inputs[0].bounded_keys}


@dataclass(frozen=True)
class _Groups:
    """The groups an epoch names, and what is held of them: rows by group and position."""

    keys: KeyRows
    sizes: Array
    owners: Ints
    slots: Ints

    @property
    def starts(self) -> Ints:
        found: Ints = np.cumsum(self.sizes) - self.sizes
        return found


class TopKOperator(KeyedOperator):
    """The first k of every group."""

    def __init__(self, spec: TopKSpec) -> None:
        _check(spec)
        super().__init__(spec.keys, (spec.values,), signed=spec.updating_input)
        self.spec = spec
        self._payload = self.payloads[0]
        self._order = Order(self._payload.types, spec.order)
        self._all_ties = spec.ties == "all"
        self.stands = not spec.final_input
        shown = Layout(self.codec.words + 1, self.codec.tail, (SIZE, _RANK, *self._payload.columns), alive=0)
        self.layouts: tuple[Layout, ...] = (shown,)
        if spec.updating_input:
            types = self._payload.types
            tail = self.codec.tail or tailed(types)
            self.layouts = (shown, Layout(self.codec.words + words(types), tail, (INT,), alive=0))
        keys = () if spec.hidden_keys else self.keys
        self.state: Fields = (*keys, (spec.rank, BIGINT), *self.values[0])
        self.outputs = {MAIN: self.state}
        self._schema = schema_of(self.state)
        refuse_doubles([name for name, _ in self.state])

    def finish(self, keys: KeyRows, columns: Sequence[Array], arenas: Sequence[Arena | None]) -> pa.RecordBatch:
        values = self._payload.read(columns[_FIRST:], arenas[_FIRST:])
        return self._batch(keys.shortened(1), columns[1], values)

    def find(self, table: Table, keys: KeyRows) -> Ints:
        return self.find_extended(table, keys, 1)

    def apply(self, work: Work, *inputs: Rows | None) -> None:
        (rows,) = inputs
        if rows is None or not len(rows):
            return
        if self.spec.final_input:
            self._at_once(work, rows)
        elif self.spec.updating_input:
            self._update(work, rows)
        else:
            self._append(work, rows)

    def cut_down(self, work: Work) -> None:
        table = work.tables[0]
        living = np.flatnonzero(table.columns[0][: table.rows])
        gone = living[table.columns[1][living] > self.spec.k]
        if not len(gone):
            return
        self._take_back(work, gone)
        heads = table.find(table.keys(gone).shortened(1).extended(np.zeros(len(gone), np.int64)))
        work.touch(np.unique(heads))
        np.subtract.at(table.columns[0], heads, 1)
        work.bury(gone)

    # -- inputs of the three kinds

    def _at_once(self, work: Work, rows: Rows) -> None:
        """Everything there will ever be of these groups is here."""
        ids, _ = same(rows.keys)
        first = self._cut(self._rank(Pool([(rows.values, len(rows))]), np.arange(len(rows)), ids, self.spec.k))
        work.emit(self._batch(rows.keys.take(first.rows), first.ranks, self._payload.arrays(rows.values, first.rows)))

    def _append(self, work: Work, rows: Rows) -> None:
        ids, known = same(rows.keys)
        groups = self._held(work.tables[0], known)
        old = len(groups.slots)
        pool = Pool([(self._columns(work.tables[0], groups.slots), old), (rows.values, len(rows))])
        first = self._cut(self._rank(pool, np.arange(len(pool)), np.concatenate([groups.owners, ids]), self.spec.k))
        changed = np.zeros(known.rows, bool)
        changed[first.groups[first.rows >= old]] = True
        self._replace(work, groups, pool, first, changed, [rows.values])

    def _update(self, work: Work, rows: Rows) -> None:
        types = self._payload.types
        numbers, _ = same(content(rows.keys, rows.values, types))
        stays = np.flatnonzero(settled(numbers, rows.sign))
        if not len(stays):
            return
        sign, values = rows.sign[stays], [taken(value, stays) for value in rows.values]
        contents = content(rows.keys.take(stays), values, types)
        counts = self._recount(work, contents, sign)
        ids, known = same(rows.keys.take(stays))
        groups = self._held(work.tables[0], known)
        old, up = len(groups.slots), np.flatnonzero(sign > 0)

        # Of equal rows shown, only as many stay as there are left of them.
        shown = self._columns(work.tables[0], groups.slots)
        numbers, finder = same(contents)
        remaining = np.zeros(finder.rows, np.int64)
        remaining[numbers] = counts
        equal = finder.find(content(groups.keys.take(groups.owners), shown, types))
        lost = np.zeros(old, bool)
        hit = np.flatnonzero(equal >= 0)
        lost[hit] = nth(equal[hit]) >= remaining[equal[hit]]
        changed = np.zeros(known.rows, bool)
        changed[groups.owners[lost]] = True

        parts = [(shown, old), ([taken(value, up) for value in values], len(up))]
        pool = Pool(parts)
        candidates, owners = np.arange(len(pool)), np.concatenate([groups.owners, ids[up]])
        if lost.any():  # then the ranks below the cut matter too
            short = self._short(self._rank(pool, candidates, owners, None), groups, lost)
            if short.any():
                values, length, of = self._search(work.tables[1], known, short)
                parts.append((values, length))
                pool = Pool(parts)
                candidates, owners = np.arange(len(pool)), np.concatenate([owners, of])
            kept = np.concatenate([~lost, np.ones(len(pool) - old, bool)])
            kept[: old + len(up)] &= ~short[owners[: old + len(up)]]
            candidates, owners = candidates[kept], owners[kept]
        first = self._cut(self._rank(pool, candidates, owners, self.spec.k))
        changed[first.groups[first.rows >= old]] = True
        self._replace(work, groups, pool, first, changed, [part[0] for part in parts[1:]])

    def _recount(self, work: Work, contents: KeyRows, sign: Ints) -> Ints:
        """Bring the second table up to date; how many there are now of each of these rows."""
        slots = work.place(contents, 1)
        counts = work.tables[1].columns[0]
        np.add.at(counts, slots, sign)
        found: Ints = counts[slots]
        if (found < 0).any():
            raise FunctionError(
                f"{int((found < 0).sum())} rows of a top_k were taken back more often than it ever got them.",
                safe="the slice is as it was before this epoch.",
                todo="check that the updating input sends every row with +1 before it takes it back with -1.",
            )
        work.bury(np.unique(slots[found == 0]), 1)
        return found

    def _short(self, order: Ranked, groups: _Groups, lost: Array) -> Array:
        """Of which groups a row that is not shown may be among the first: no k are left up to the last one shown."""
        old = len(lost)
        is_old = order.rows < old
        last = np.full(len(groups.sizes), -1)
        np.maximum.at(last, order.groups[is_old], order.positions[is_old])
        stays = order.positions <= last[order.groups]
        stays[is_old] &= ~lost[order.rows[is_old]]
        left = np.bincount(order.groups[stays], minlength=len(groups.sizes))
        return (groups.sizes >= self.spec.k) & (left < self.spec.k)

    def _search(self, table: Table, known: Table, wanted: Array) -> tuple[list[Values], int, Ints]:
        """All rows of those groups, from all that there are."""
        slots = np.flatnonzero(table.columns[0][: table.rows])
        rows, types = table.keys(slots), self._payload.types
        owners = known.find(keys_of(rows, types, tail=self.codec.tail))
        mine = np.flatnonzero((owners >= 0) & wanted[owners])
        which, _ = runs(table.columns[0][slots[mine]])
        at = mine[which]
        return values_of(rows.take(at), types), len(at), owners[at]

    # -- groups

    def _held(self, table: Table, known: Table) -> _Groups:
        keys = known.keys(np.arange(known.rows))
        heads = table.find(keys.extended(np.zeros(len(keys), np.int64)))
        sizes = np.where(heads >= 0, table.columns[0][heads], 0)
        owners, numbers = runs(sizes)
        slots = heads[owners]
        more = np.flatnonzero(numbers)
        if len(more):
            slots[more] = table.find(keys.take(owners[more]).extended(numbers[more]))
        return _Groups(keys, sizes, owners, slots)

    def _columns(self, table: Table, slots: Ints) -> list[Values]:
        found = []
        for number in range(_FIRST, len(table.columns), 2):
            arena = table.arenas[number]
            values, valid = table.columns[number][slots], table.columns[number + 1][slots]
            found.append(Values(values, valid, None if arena is None else arena.data))
        return found

    def _rank(self, pool: Pool, rows: Ints, owners: Ints, deep: int | None) -> Ranked:
        return ranked(pool, self._order, rows, owners, ties=self._all_ties, deep=deep)

    def _cut(self, order: Ranked) -> Ranked:
        return order.take(np.flatnonzero(order.ranks <= self.spec.k))

    def _replace(
        self,
        work: Work,
        groups: _Groups,
        pool: Pool,
        first: Ranked,
        changed: Array,
        sources: Sequence[Sequence[Values]],
    ) -> None:
        """Groups that changed become their first rows: from those that are held, or from one of ``sources``."""
        if not changed.any():
            return
        table, old = work.tables[0], len(groups.slots)
        gone = changed[groups.owners]
        self._take_back(work, groups.slots[gone])
        mine = first.take(np.flatnonzero(changed[first.groups]))
        rows, owners, positions, ranks = mine.rows, mine.groups, mine.positions, mine.ranks
        sizes = np.bincount(owners, minlength=len(changed))

        # Positions that the group had keep their slots; the others get new ones.
        had = positions < groups.sizes[owners]
        slots = np.full(len(rows), -1)
        slots[had] = groups.slots[groups.starts[owners[had]] + positions[had]]
        moved = np.ones(len(rows), bool)
        stays = np.flatnonzero(rows < old)
        moved[stays] = (groups.slots[rows[stays]] != slots[stays]) | (table.columns[1][slots[stays]] != ranks[stays])
        resized = had & (positions == 0) & (sizes[owners] != groups.sizes[owners])
        carried = np.flatnonzero(moved & (rows < old))
        images = [column[groups.slots[rows[carried]]] for column in table.columns[_FIRST:]]
        work.touch(slots[had & (moved | resized)])
        fresh = np.flatnonzero(~had)
        slots[fresh] = work.place(groups.keys.take(owners[fresh]).extended(positions[fresh]))

        columns, arenas = table.columns, table.arenas
        for column, image in zip(columns[_FIRST:], images, strict=True):
            column[slots[carried]] = image
        for number, source in enumerate(sources):
            start, stop = pool.starts[number + 1], pool.starts[number + 2]
            at = np.flatnonzero((rows >= start) & (rows < stop))
            self._payload.write(columns[_FIRST:], arenas[_FIRST:], slots[at], source, rows[at] - start)
        columns[1][slots[moved]] = ranks[moved]
        columns[0][slots[fresh]] = 1
        heads = np.flatnonzero((positions == 0) & (resized | ~had))
        columns[0][slots[heads]] = sizes[owners[heads]]
        numbers = np.arange(old) - groups.starts[groups.owners]
        buried = groups.slots[gone & (numbers >= sizes[groups.owners])]
        if len(buried):
            work.bury(buried)
        self._emit(work, slots)

    def _take_back(self, work: Work, slots: Ints) -> None:
        work.take_back(self.finish, slots)

    def _emit(self, work: Work, slots: Ints) -> None:
        table = work.tables[0]
        if len(slots):
            work.emit(self.finish(table.keys(slots), [column[slots] for column in table.columns], table.arenas))

    def _batch(self, keys: KeyRows, ranks: Ints, values: list[pa.Array]) -> pa.RecordBatch:
        own = [] if self.spec.hidden_keys else self.codec.encode(keys)
        return pa.RecordBatch.from_arrays([*own, pa.array(ranks, pa.int64()), *values], schema=self._schema)


def _check(spec: TopKSpec) -> None:
    if spec.k < 1:
        raise PlanError(f"top_k of {spec.k} rows shows nothing.", safe=_REFUSED, todo="ask for one row or more.")
    if spec.ties not in ("cut", "all"):
        raise PlanError(f"top_k knows no ties='{spec.ties}'.", safe=_REFUSED, todo="use 'cut' or 'all'.")
    if not spec.order:
        raise PlanError("top_k without an order has no first rows.", safe=_REFUSED, todo="name columns to order by.")
    if spec.updating_input and spec.final_input:
        raise PlanError(
            "an input that takes rows back is not final.", safe=_REFUSED, todo="say only one of the two of it."
        )
