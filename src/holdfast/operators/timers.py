"""Timers of a user's function: a table keyed by (key, kind, time, name), and the order in which an epoch fires them.

A timer is due in the epoch whose watermark (``event``) or clock (``clock``) reaches its time. Due timers fire after the
epoch's rows, event timers first, each kind in order of (time, slot); one that a function sets for a time already
reached joins them in its place. The table is looked through once an epoch, which costs about a nanosecond a timer: an
order kept beside the table would have to be undone, copied and purged with it.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from hashlib import blake2b
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.invariants import invariant, some
from holdfast.state import arrow
from holdfast.state.columns import FLAG, NO_BYTES, NO_INTS, SPANS, Ints
from holdfast.state.keys import KeyCodec
from holdfast.state.payload import append
from holdfast.state.slice import EpochTime, Work
from holdfast.state.table import Layout, Table

KINDS = ("event", "clock")
MOST_FIRINGS = 10_000
"""Of one key in one epoch. A timer that sets itself again for the past would otherwise never let the epoch end."""
TABLE, _ALIVE, _NAME = 1, 0, 1
_WORDS = 3
_AFTER_ALL_SLOTS = 1 << 40


class Timer(NamedTuple):
    """One timer of the key with that place in the epoch; ``time`` in microseconds."""

    at: int
    kind: int
    time: int
    name: str


class Due(NamedTuple):
    """Timers that an epoch reaches, in order: their slots, their keys' slots, and the rest of what they are."""

    slots: Ints
    keys: Ints
    kinds: Ints
    times: Ints
    names: list[str]


NONE_DUE = Due(NO_INTS, NO_INTS, NO_INTS, NO_INTS, [])


def layout(codec: KeyCodec) -> Layout:
    columns = (FLAG.named("(alive)"), SPANS.named("(name)"))
    return Layout(codec.words + _WORDS, codec.tail, columns, _ALIVE, "timers")


def next_clock(table: Table) -> int | None:
    """When the earliest timer by the clock is due."""
    words = table.words[: table.rows]
    waiting = (words[:, -3] == KINDS.index("clock")) & (table.columns[_ALIVE][: table.rows] != 0)
    return int(words[waiting, -2].min()) if waiting.any() else None


def due(work: Work) -> Due:
    table = work.tables[TABLE]
    if not table.rows:
        return NONE_DUE
    kinds, times = table.words[: table.rows, -3], table.words[: table.rows, -2]
    reached = times <= np.where(kinds == 0, work.time.watermark, work.time.clock)
    slots = np.flatnonzero(reached & (table.columns[_ALIVE][: table.rows] != 0))
    if not len(slots):
        return NONE_DUE
    slots = slots[np.lexsort((times[slots], kinds[slots]))]
    arena = table.arenas[_NAME]
    arena = some(arena, "names are bytes")
    names = arrow.of_spans(pa.string(), table.columns[_NAME][slots], arena.data, NO_BYTES).to_pylist()
    keys = work.tables[0].find(table.keys(slots).shortened(_WORDS))
    invariant((keys >= 0).all(), "a key with a timer is in the table")
    return Due(slots, keys, kinds[slots], times[slots], names)


class Agenda:
    """What becomes of timers in one epoch."""

    def __init__(self, time: EpochTime, found: Due, ats: Ints) -> None:
        self._limits = (time.watermark, time.clock)
        columns = (ats.tolist(), found.kinds.tolist(), found.times.tolist(), found.names)
        timers = [Timer(*one) for one in zip(*columns, strict=True)]
        # Sorted as they are, they are a heap.
        self._heap = [(timer.kind, timer.time, slot, timer) for timer, slot in zip(timers, found.slots, strict=True)]
        self._live = set(timers)
        self._next = _AFTER_ALL_SLOTS
        self._fired: Counter[int] = Counter()
        # True: it is to be in the table; False: it is not. Dictionaries keep the order in which it was said.
        self._wanted: dict[Timer, bool] = {}

    def set(self, timer: Timer) -> None:
        self._wanted[timer] = True
        if timer.time <= self._limits[timer.kind] and timer not in self._live:
            self._live.add(timer)
            self._next += 1
            heappush(self._heap, (timer.kind, timer.time, self._next, timer))

    def clear(self, timer: Timer) -> None:
        self._wanted[timer] = False
        self._live.discard(timer)

    def fire(self) -> Timer | None:
        """The next timer that is due; it is over with that."""
        while self._heap:
            timer = heappop(self._heap)[-1]
            if timer in self._live:
                self.clear(timer)
                self._fired[timer.at] += 1
                return timer
        return None

    def endless(self, at: int) -> bool:
        return self._fired[at] > MOST_FIRINGS

    def write(self, work: Work, slots: Ints, counts: int) -> None:
        """Bring the table to what was said; ``slots`` are the keys' own, column ``counts`` has how many each has."""
        for wanted in (False, True):
            timers = [timer for timer, said in self._wanted.items() if said is wanted]
            if timers:
                self._write(work, slots, counts, timers, wanted)

    def _write(self, work: Work, slots: Ints, counts: int, timers: list[Timer], wanted: bool) -> None:
        table, owners = work.tables[TABLE], slots[[timer.at for timer in timers]]
        words = np.array([(timer.kind, timer.time, _id(timer.name)) for timer in timers], np.int64)
        keys = work.tables[0].keys(owners).extended(*(column.copy() for column in words.T))
        if not wanted:
            found = table.find(keys)
            there = np.flatnonzero((found >= 0) & (table.columns[_ALIVE][found] != 0))
            work.bury(found[there], TABLE)
            np.subtract.at(work.tables[0].columns[counts], owners[there], 1)
            return
        found = work.place(keys, TABLE)
        new = np.flatnonzero(table.columns[_ALIVE][found] == 0)
        arena = table.arenas[_NAME]
        arena = some(arena, "names are bytes")
        names = pa.array([timers[at].name for at in new.tolist()], pa.string())
        table.columns[_NAME][found[new]] = append(arena, *arrow.spans(names))
        table.columns[_ALIVE][found[new]] = 1
        np.add.at(work.tables[0].columns[counts], owners[new], 1)


@lru_cache(4096)
def _id(name: str) -> int:
    """A word for a name: of two names of one word (one chance in 2^64) only one could be set for one time."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little", signed=True) if name else 0
