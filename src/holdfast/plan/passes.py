"""Rows of one source that several read: they cross once, and everybody takes his share of them.

A pass has every column that any reader wants, once, and a bit for every filter that any reader has. What a reader takes
is the rows with his bit and his columns by the names that he knows them by. Bits come in words of 64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

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
    """What one reader takes of a pass: its own name of each column with the column's name there, and its bit; None: it
    takes every row."""

    columns: tuple[tuple[str, str], ...]
    bit: int | None = None


@dataclass(frozen=True)
class Crossing:
    """How the rows of all inputs of a level come in one frame.

    Of each branch ``shares`` has the inputs that take of it; one that has a branch for itself takes it as it is.
    """

    tagging: Tagging | None
    shares: tuple[tuple[tuple[int, Share | None], ...], ...]

    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each input, with the columns that it knows."""
        for branch, mine in ((0, rows),) if self.tagging is None else self.tagging.split(rows):
            (first, share), *_ = shares = self.shares[branch]
            if share is None:
                yield first, mine
            else:
                yield from _taken(mine, shares)


def _taken(rows: pa.RecordBatch, shares: tuple[tuple[int, Share | None], ...]) -> Iterator[tuple[int, pa.RecordBatch]]:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    words = {name: column.to_numpy() for name, column in columns.items() if name.startswith("_w")}
    there = {name: int(np.bitwise_or.reduce(word)) for name, word in words.items()}
    # A filter of many: who has none of these rows must not cost a look at each of them.
    for input, share in ((input, share) for input, share in shares if share is not None):
        which: pa.Array | None = None
        if share.bit is not None:
            word, mask = word_of(share.bit), mask_of(share.bit)
            if not there[word] & mask:
                continue
            mine = (words[word] & mask) != 0
            which = None if mine.all() else pa.array(mine)
        names, places = zip(*share.columns, strict=True)
        batch = pa.RecordBatch.from_arrays([columns[place] for place in places], names=names)
        yield input, batch if which is None else batch.filter(which)
