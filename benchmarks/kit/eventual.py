"""Continuous eventual checkpoints over windows of so many rows, on columns: the reference of ``tests/eventual`` at the
paper's sizes.

The same rules, row by row; the windows' order by footprint is a queue of marks of which those are passed over that a
later one has overtaken. The clock is simulated: a row, a row of the log and a check cost so much of the operator's
time, which is what the paper's figures are about. What a row costs is taken from its Figure 8: without checks a window
of 10 rows is open for 16.5 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

OPENS, RESULTS, CHECKS, EXTENT, BEHIND, CLOCK, OPEN_SECONDS, EXTENT_SUM, OPEN_SUM, SAMPLES = range(10)


@dataclass(frozen=True)
class Costs:
    """Seconds of the operator's one thread."""

    row: float = 16.5 / 9 / 100_000
    check: float = 4e-6


@dataclass(frozen=True)
class Figures:
    opens: int
    results: int
    checks: int
    extent: float
    """Rows of the log that recovery would read, on average over the second half."""
    behind: int
    """Rows of the input that it would replay, at the end."""
    seconds: float
    open_seconds: float
    """From a window's first row to its last, on average over the second half."""
    living: float


def run(
    ids: np.ndarray, keys: int, size: int, q: float, u: float, ci: float, cp: float, costs: Costs | None = None
) -> Figures:
    """``q`` is the extent, as a multiple of the open windows, above which the oldest is written again; ``u`` the rows
    to replay; 0 for ``ci``: there are no checks."""
    costs = costs or Costs()
    found = _run(ids, keys, size, q, u, ci, cp, costs.row, costs.check)
    samples = max(found[SAMPLES], 1)
    return Figures(
        int(found[OPENS]),
        int(found[RESULTS]),
        int(found[CHECKS]),
        float(found[EXTENT_SUM] / samples),
        int(found[BEHIND]),
        float(found[CLOCK]),
        float(found[OPEN_SECONDS]),
        float(found[OPEN_SUM] / samples),
    )


@njit(cache=True)
def _run(ids, keys, size, q, u, ci, cp, row_cost, check_cost):  # type: ignore[no-untyped-def]
    count = np.zeros(keys, np.int64)
    out_mark, in_mark = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
    began = np.zeros(keys, np.float64)
    # The order by footprint: a ring of (key, mark); one whose mark is not the key's any more was overtaken.
    room = 1 << 24
    ring_key, ring_mark = np.empty(room, np.int64), np.empty(room, np.int64)
    head, tail = 0, 0
    logged, living, opens, results, checks = 0, 0, 0, 0, 0
    clock, following = 0.0, cp
    open_seconds, closed = 0.0, 0
    extent_sum, open_sum, samples = 0.0, 0.0, 0
    extent, behind = 0, 0
    rows = len(ids)
    for at in range(rows):
        key, n = ids[at], at + 1
        clock += row_cost
        if count[key] == 0:
            living += 1
            opens += 1
            logged += 1
            out_mark[key], in_mark[key], began[key] = logged, n, clock
            ring_key[tail % room], ring_mark[tail % room] = key, logged
            tail += 1
        count[key] += 1
        if count[key] == size:
            living -= 1
            results += 1
            logged += 1
            count[key], out_mark[key] = 0, 0
            if 2 * at >= rows:
                open_seconds += clock - began[key]
                closed += 1
        turn = ci > 0.0 and clock >= following
        last = at == rows - 1
        if turn or last or (2 * at >= rows and at % 1000 == 0):
            spent = 0.0
            start = clock
            while True:
                while head < tail and out_mark[ring_key[head % room]] != ring_mark[head % room]:
                    head += 1
                extent = logged - ring_mark[head % room] + 1 if head < tail else 0
                behind = n - in_mark[ring_key[head % room]] if head < tail else 0
                if not turn or spent >= ci or head == tail or (extent <= q * living and behind <= u):
                    break
                oldest = ring_key[head % room]
                head += 1
                logged += 1
                checks += 1
                out_mark[oldest], in_mark[oldest] = logged, n
                ring_key[tail % room], ring_mark[tail % room] = oldest, logged
                tail += 1
                spent += check_cost
            clock += spent
            if turn:
                following = start + cp
            if 2 * at >= rows:
                extent_sum += extent
                open_sum += living
                samples += 1
    mean = open_seconds / closed if closed else 0.0
    return np.array([opens, results, checks, extent, behind, clock, mean, extent_sum, open_sum, samples], np.float64)


def ids(rows: int, keys: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, keys, rows)


@njit(cache=True)
def fast(ids, keys, size, log, opens):  # type: ignore[no-untyped-def]
    """Only what a row and a row of the log cost: windows of ``size`` rows whose results, and opens if they are wanted,
    go into ``log``, which is written over when it is full. How many rows it got."""
    count, total = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
    logged, room = 0, log.shape[0]
    living = 0
    for at in range(len(ids)):
        key = ids[at]
        if count[key] == 0:
            living += 1
        count[key] += 1
        total[key] += at
        if count[key] == 1 and opens:
            _put(log[logged % room], 0, key, at, living, total[key])
            logged += 1
        if count[key] == size:
            living -= 1
            _put(log[logged % room], 1, key, at, living, total[key])
            logged += 1
            count[key] = total[key] = 0
    return logged


@njit(cache=True)
def _put(row, kind, key, n, living, state):  # type: ignore[no-untyped-def]
    row[0], row[1], row[2], row[3], row[4] = kind, key, n, living, state


def spread(figures: Figures, **more: Any) -> dict[str, Any]:
    return {
        "checks": figures.checks,
        "extent": round(figures.extent),
        "behind": figures.behind,
        "living": round(figures.living),
        "seconds": round(figures.seconds, 3),
        "open_seconds": round(figures.open_seconds, 3),
        **more,
    }
