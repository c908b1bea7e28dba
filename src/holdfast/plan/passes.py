"""Rows of one source that several read: they cross once, and everybody takes his share of them.

A pass has every column that any reader wants, once, and a bit for every filter that any reader has. What a reader takes
is the rows with his bit and his columns by the names that he knows them by. Bits come in words of 64.

Where many filters each want one value of the same column, that column itself crosses instead of their bits: which
reader a row is for is then one look-up, however many they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.plan.tagging import Tagging

WORD = 64


def word_of(bit: int) -> str:
    """The column that has it."""
    return f"_w{bit // WORD}"


def mask_of(bit: int) -> int:
    """The bit within its word, as a bigint has it: the last one is the sign."""
    place = bit % WORD
    return 1 << place if place < WORD - 1 else -(1 << place)


@dataclass(frozen=True)
class Share:
    """What one reader takes of a pass: its own name of each column with the column's name there, and its bit, or the
    value that a column has for it; neither: it takes every row."""

    columns: tuple[tuple[str, str], ...]
    bit: int | None = None
    case: tuple[str, int | str] | None = None

    def of(self, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        names, places = zip(*self.columns, strict=True)
        return pa.RecordBatch.from_arrays([columns[place] for place in places], names=names)


Shares = tuple[tuple[int, Share | None], ...]
"""Who takes of rows that come together: inputs, with what each takes."""


class Cases:
    """The readers that each want one value of a column."""

    def __init__(self, wanted: Iterable[tuple[int | str, int, Share]]) -> None:
        takers: dict[int | str, list[tuple[int, Share]]] = {}
        for value, input, share in wanted:
            takers.setdefault(value, []).append((input, share))
        self._values = list(takers)
        self._takers = list(takers.values())

    def split(self, column: pa.Array, columns: Mapping[str, pa.Array]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Each reader's rows, in the order they have; who has none costs nothing."""
        if pa.types.is_date(column.type):
            column = column.cast(pa.int32())
        found = pc.index_in(column, value_set=pa.array(self._values, column.type))
        which = found.fill_null(len(self._values)).to_numpy()
        counts = np.bincount(which, minlength=len(self._values) + 1)
        small = which.astype(np.int16 if len(self._values) < 1 << 15 else np.int32)  # which sorts in linear time
        order, ends = np.argsort(small, kind="stable"), np.cumsum(counts)
        for case in np.flatnonzero(counts[:-1]).tolist():
            mine = pa.array(order[ends[case] - counts[case] : ends[case]])
            for input, share in self._takers[case]:
                yield input, share.of(columns).take(mine)


@dataclass(frozen=True)
class Crossing:
    """How the rows of all inputs of a level come in one frame.

    Of each branch ``shares`` has the inputs that take of it; one that has a branch for itself takes it as it is.
    """

    tagging: Tagging | None
    shares: tuple[Shares, ...]

    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each input, with the columns that it knows."""
        for branch, mine in ((0, rows),) if self.tagging is None else self.tagging.split(rows):
            (first, share), *_ = self.shares[branch]
            if share is None:
                yield first, mine
            else:
                yield from _taken(mine, *self._takers[branch])

    @cached_property
    def _takers(self) -> tuple[tuple[dict[str, Cases], list[tuple[int, Share]]], ...]:
        return tuple(map(_sorted_out, self.shares))


def _taken(
    rows: pa.RecordBatch, cases: Mapping[str, Cases], others: Iterable[tuple[int, Share]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    words = {name: column.to_numpy() for name, column in columns.items() if name.startswith("_w")}
    there = {name: int(np.bitwise_or.reduce(word)) for name, word in words.items()}
    for place, wanted in cases.items():
        yield from wanted.split(columns[place], columns)
    # A filter of many: who has none of these rows must not cost a look at each of them.
    for input, share in others:
        which: pa.Array | None = None
        if share.bit is not None:
            word, mask = word_of(share.bit), mask_of(share.bit)
            if not there[word] & mask:
                continue
            mine = (words[word] & mask) != 0
            which = None if mine.all() else pa.array(mine)
        batch = share.of(columns)
        yield input, batch if which is None else batch.filter(which)


def _sorted_out(shares: Shares) -> tuple[dict[str, Cases], list[tuple[int, Share]]]:
    """Those that want a value, by its column, and all others."""
    mine = [(input, share) for input, share in shares if share is not None]
    wanted: dict[str, list[tuple[int | str, int, Share]]] = {}
    for input, share in mine:
        if share.case is not None:
            place, value = share.case
            wanted.setdefault(place, []).append((value, input, share))
    return {place: Cases(some) for place, some in wanted.items()}, [one for one in mine if one[1].case is None]
