"""Rows in order within their groups: the sort behind ``top_k``.

Rows come in parts (those that are held, those that came), and a part's columns are only brought together where the
order asks for them: the columns that break ties are looked at only for rows that tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.invariants import Impossible
from holdfast.state.columns import NO_BYTES, Array, Ints, packed, spans_of
from holdfast.state.payload import ordered
from holdfast.state.rows import Values
from holdfast.state.types import AtomicType


@dataclass(frozen=True)
class Order:
    """By these columns (number, descending), the first above all; then by the others, ascending; then by arrival."""

    types: tuple[AtomicType, ...]
    columns: tuple[tuple[int, bool], ...]

    @property
    def rest(self) -> tuple[tuple[int, bool], ...]:
        named = {number for number, _ in self.columns}
        return tuple((number, False) for number in range(len(self.types)) if number not in named)


class Pool:
    """Rows of several parts, one after the other. A part is its columns, each as long as the part."""

    def __init__(self, parts: Sequence[tuple[Sequence[Values], int]]) -> None:
        self._parts = [part for part in parts if part[1]]
        self.starts = np.cumsum([0, *(length for _, length in parts)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def column(self, number: int) -> Values:
        pieces = [(columns[number], length) for columns, length in self._parts]
        if len(pieces) == 1:
            return pieces[0][0]
        valid = NO_BYTES
        if any(len(piece.valid) for piece, _ in pieces):
            flags = [piece.valid if len(piece.valid) else np.ones(length, np.uint8) for piece, length in pieces]
            valid = np.concatenate(flags)
        if pieces[0][0].data is None:
            return Values(np.concatenate([piece.values for piece, _ in pieces]), valid)
        offsets, data = [np.zeros(1, np.int64)], []
        for piece, _ in pieces:
            if piece.data is None:
                raise Impossible("bytes without their data")
            ends, found = packed(piece.values, piece.data)
            offsets.append(ends[1:] + offsets[-1][-1])
            data.append(found)
        return Values(spans_of(np.concatenate(offsets)), valid, np.concatenate(data))

    def keys(self, order: Order, columns: Sequence[tuple[int, bool]], at: Ints) -> list[Array]:
        """Sort keys of rows ``at``, least significant first."""
        found: list[Array] = []
        for number, descending in reversed(columns):
            column = taken(self.column(number), at)
            for key in ordered(column, order.types[number], descending=descending):
                if len(key) and (key != key[0]).any():  # what all rows share sorts nothing
                    found.append(key)
        return found


@dataclass(frozen=True)
class Ranked:
    """Rows by group, then in order: which row, its group, its position there from 0 on, and its rank from 1 on."""

    rows: Ints
    groups: Ints
    positions: Ints
    ranks: Ints

    def take(self, at: Ints) -> Ranked:
        return Ranked(self.rows[at], self.groups[at], self.positions[at], self.ranks[at])


def ranked(pool: Pool, order: Order, rows: Ints, groups: Ints, *, ties: bool, deep: int | None = None) -> Ranked:
    """Rank ``rows`` of the pool within ``groups``, numbers from 0 on. With ``ties``, equal rows share a rank.

    Ties that begin at position ``deep`` or below are left as they are: nobody will see them.
    """
    counts = np.bincount(groups) if len(groups) else np.zeros(0, np.int64)
    starts = np.cumsum(counts) - counts
    result = np.empty(len(rows), np.int64)
    alone = counts[groups] == 1
    result[starts[groups[alone]]] = np.flatnonzero(alone)
    several = np.flatnonzero(~alone)
    tied = np.zeros(len(rows), bool)
    if len(several):
        keys = pool.keys(order, order.columns, rows[several])
        sub = np.lexsort((*keys, groups[several]))
        members = several[sub]
        crowd = np.where(counts > 1, counts, 0)
        where = starts[groups[members]] + np.arange(len(sub)) - (np.cumsum(crowd) - crowd)[groups[members]]
        equal = np.ones(len(sub) - 1, bool)
        for key in (groups[several], *keys):
            equal &= key[sub[1:]] == key[sub[:-1]]
        follows = np.concatenate([[False], equal])
        if follows.any():
            members = _untied(pool, order, rows, members, follows, where - starts[groups[members]], deep)
        result[where] = members
        tied[where] = follows
    places = np.arange(len(rows)) - starts[groups[result]]
    ranks = places + 1
    if ties and tied.any():
        ranks = ranks[np.maximum.accumulate(np.where(tied, 0, np.arange(len(rows))))]
    return Ranked(rows[result], groups[result], places, ranks)


def _untied(
    pool: Pool, order: Order, rows: Ints, members: Ints, follows: Array, places: Ints, deep: int | None
) -> Ints:
    """The same rows with those that tie in the order of the other columns."""
    first = np.flatnonzero(~follows)
    run = np.cumsum(~follows) - 1
    shown = np.ones(len(first), bool) if deep is None else places[first] < deep
    at = np.flatnonzero((np.bincount(run) > 1)[run] & shown[run])
    keys = pool.keys(order, order.rest, rows[members[at]])
    # The rows of a run stand in the order they came, and the sort is stable.
    by = np.lexsort((*keys, run[at]))
    untied = members.copy()
    untied[at] = members[at[by]]
    return untied


def taken(values: Values, at: Array) -> Values:
    """Those rows of a column."""
    return Values(values.values[at], values.valid[at] if len(values.valid) else values.valid, values.data)
