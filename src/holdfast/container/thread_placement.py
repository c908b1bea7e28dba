"""Which thread a key shall belong to, by the seconds expected of each: pure functions, for the thread table."""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Hashable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def place(table: Mapping[K, int], expected: Mapping[K, float], threads: int) -> dict[K, int]:
    """A thread for every key of ``expected``: who has one keeps it, the others go, longest first, to the least loaded.

    >>> place({"a": 0, "b": 1}, {"a": 3.0, "b": 1.0, "c": 1.0, "d": 2.0}, 2)
    {'a': 0, 'b': 1, 'd': 1, 'c': 0}
    """
    placed = {key: table[key] for key in expected if table.get(key, threads) < threads}
    loads = [0.0] * threads
    for key, thread in placed.items():
        loads[thread] += expected[key]
    least = [(load, thread) for thread, load in enumerate(loads)]
    heapq.heapify(least)
    for key in sorted((key for key in expected if key not in placed), key=lambda key: -expected[key]):
        load, thread = least[0]
        heapq.heapreplace(least, (load + expected[key], thread))
        placed[key] = thread
    return placed


def spread(table: Mapping[K, int], expected: Mapping[K, float], threads: int) -> dict[K, int]:
    """``place``, then levelled: the key that fits best goes from the most to the least loaded thread while that helps.

    >>> spread({"a": 0, "b": 0, "c": 0, "d": 1}, dict.fromkeys("abcd", 1.0), 2)
    {'a': 0, 'b': 0, 'c': 1, 'd': 1}
    """
    wanted = place(table, expected, threads)
    keys = list(wanted)
    held: list[list[tuple[float, int]]] = [[] for _ in range(threads)]
    for at, key in enumerate(keys):
        held[wanted[key]].append((expected[key], at))
    for having in held:
        having.sort()
    loads = [sum(seconds for seconds, _ in having) for having in held]
    moves = 4 * len(keys)  # every move lowers the sum of squares, but rounding could make that go on for ever
    for _ in range(moves):
        most, least = max(range(threads), key=loads.__getitem__), min(range(threads), key=loads.__getitem__)
        gap = loads[most] - loads[least]
        # Half the gap is best; a larger key only helps if it leaves the receiver below where the giver was.
        fitting = max(0, bisect_right(held[most], (gap / 2, len(keys))) - 1)
        if gap <= 0 or not held[most] or not 0 < held[most][fitting][0] < gap * (1 - 1e-9):
            break
        seconds, at = held[most].pop(fitting)
        insort(held[least], (seconds, at))
        loads[most] -= seconds
        loads[least] += seconds
        wanted[keys[at]] = least
    return wanted
