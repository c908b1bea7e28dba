"""Continuous eventual checkpoints as the paper has them, row by row: the oracle of what ships.

Sebepou and Magoutis call it CEC: an operator writes no checkpoints, but control rows among its results. *Open* when a
window is born and *check* now and then hold what the window is then; a *result* says that it is over. Recovery reads
the log backwards until it has found as many windows as there were, and replays the input from the oldest of them.

Time is ``n``, how many rows the operator has taken. Beyond the paper: a window that closed has a floor as those that
live have. Without it one that was opened before the oldest footprint and closed after it opens again, half full.

Two operators: windows of so many rows of a key, which open again under the same name, and windows in event time that a
watermark closes, which do not. Both are pure Python; ``planted`` leaves something out, to see that tests find it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Name = tuple[Any, ...]
State = tuple[int, int]
"""How many rows, and their sum."""
Kind = Literal["open", "check", "result"]


@dataclass(frozen=True)
class Row:
    """A row of the input; without a key it is time that moves on."""

    key: int | None
    value: int = 0
    time: int = 0


@dataclass(frozen=True)
class Logged:
    kind: Kind
    window: Name
    n: int
    living: int
    """After this row."""
    state: State


class ByRows:
    """Windows of ``size`` rows of a key, one after the other; a key's name is its window's."""

    def __init__(self, size: int) -> None:
        self.size = size

    def of(self, row: Row, mark: int) -> list[Name]:
        return [] if row.key is None else [(row.key,)]

    def over(self, window: Name, state: State, mark: int) -> bool:
        return state[0] == self.size


class ByTime:
    """Windows of event time, ``size`` long, that begin every ``every``; late rows are in none that is over."""

    def __init__(self, size: int, every: int) -> None:
        self.size, self.every = size, every

    def of(self, row: Row, mark: int) -> list[Name]:
        if row.key is None:
            return []
        last = row.time // self.every * self.every
        starts = range(last, row.time - self.size, -self.every)
        return [(row.key, start) for start in sorted(starts) if start + self.size > mark]

    def over(self, window: Name, state: State, mark: int) -> bool:
        return bool(window[1] + self.size <= mark)


Windows = ByRows | ByTime


@dataclass
class Slice:
    """An operator with its log."""

    windows: Windows
    n: int = 0
    mark: int = 0
    """The watermark: the largest event time so far."""
    state: dict[Name, State] = field(default_factory=dict)
    log: list[Logged] = field(default_factory=list)
    out_mark: dict[Name, int] = field(default_factory=dict)
    in_mark: dict[Name, int] = field(default_factory=dict)

    def take(self, row: Row) -> None:
        self.n += 1
        for window in self.windows.of(row, self.mark):
            known = self.state.get(window)
            count, total = known or (0, 0)
            self.state[window] = (count + 1, total + row.value)
            if known is None:
                self._footprint("open", window)
            if isinstance(self.windows, ByRows):
                self._close(window)
        if isinstance(self.windows, ByTime) and row.time > self.mark:
            self.mark = row.time
            for window in sorted(self.state, key=lambda one: (one[1], one[0])):
                self._close(window)

    def check(self, window: Name) -> None:
        self._footprint("check", window)

    def oldest(self) -> Name | None:
        return min(self.out_mark, key=self.out_mark.__getitem__, default=None)

    @property
    def extent(self) -> int:
        """Rows of the log that recovery reads, as far as the oldest footprint."""
        oldest = self.oldest()
        return 0 if oldest is None else len(self.log) - self.out_mark[oldest] + 1

    @property
    def behind(self) -> int:
        """Rows of the input that it replays."""
        return self.n - min(self.in_mark.values(), default=self.n)

    def steer(self, q: float, u: float, most: int) -> int:
        """Checks of the oldest windows until both are met, ``most`` of them; how many."""
        done = 0
        while done < most and self.state and (self.extent > q or self.behind > u):
            self.check(self.oldest() or ())
            done += 1
        return done

    def _footprint(self, kind: Kind, window: Name) -> None:
        self.log.append(Logged(kind, window, self.n, len(self.state), self.state[window]))
        self.out_mark[window], self.in_mark[window] = len(self.log), self.n

    def _close(self, window: Name) -> None:
        state = self.state[window]
        if self.windows.over(window, state, self.mark):
            del self.state[window], self.out_mark[window], self.in_mark[window]
            self.log.append(Logged("result", window, self.n, len(self.state), state))


@dataclass(frozen=True)
class Found:
    """What the log says: of living windows what they were and when, of others since when they are over."""

    windows: dict[Name, tuple[State, int]]
    closed: dict[Name, int]
    oldest: int
    read: int
    """Rows of the log that were looked at."""


def construct(log: list[Logged]) -> Found:
    """The eventual checkpoint at the end of the log, which is read backwards."""
    if not log:
        return Found({}, {}, 0, 0)
    found: dict[Name, tuple[State, int]] = {}
    closed: dict[Name, int] = {}
    read = 0
    for row in reversed(log):
        if len(found) == log[-1].living:
            break
        read += 1
        if row.window in found or row.window in closed:
            continue
        if row.kind == "result":
            closed[row.window] = row.n
        else:
            found[row.window] = row.state, row.n
    assert len(found) == log[-1].living, "the log is missing windows"
    return Found(found, closed, min((n for _, n in found.values()), default=log[-1].n), read)


@dataclass
class Recovered:
    state: dict[Name, State]
    n: int
    replayed: int
    told: list[str]
    """Windows that opened or closed in the replay of what was logged: there can be none."""


def recover(windows: Windows, log: list[Logged], rows: list[Row], planted: str = "") -> Recovered:
    """The state at the end of ``rows``, all of which the log covers, from the log and the rows above its oldest
    footprint. Where a window has been found it sees no row up to its footprint; where one was over, none up to then."""
    found = construct(log)
    state: dict[Name, State] = {}
    told: list[str] = []
    mark = max((row.time for row in rows[: found.oldest]), default=0) if isinstance(windows, ByTime) else 0
    born = dict(found.windows)
    for n, row in enumerate(rows[found.oldest :], found.oldest + 1):
        for name in [name for name, (_, at) in born.items() if at < n]:
            state[name] = born.pop(name)[0]
        for window in windows.of(row, mark):
            if _skips(n, found.windows.get(window, ((0, 0), 0))[1], planted):
                continue
            if planted != "NoFloors" and n <= found.closed.get(window, 0):
                continue
            if window not in state:
                told.append(f"{window} opens at {n}")
            count, total = state.get(window, (0, 0))
            state[window] = (count + 1, total + row.value)
            if isinstance(windows, ByRows) and windows.over(window, state[window], mark):
                told.append(f"{window} closes at {n}")
                del state[window]
        if isinstance(windows, ByTime) and row.time > mark:
            mark = row.time
            for window in [one for one in state if windows.over(one, state[one], mark)]:
                told.append(f"{window} closes at {n}")
                del state[window]
    state |= {name: one for name, (one, _) in born.items()}
    return Recovered(state, len(rows), len(rows) - found.oldest, told)


def _skips(n: int, footprint: int, planted: str) -> bool:
    return n < footprint if planted == "LessInsteadOfLessEqual" else n <= footprint


def history(draw: Any, rows: int, keys: int, *, timed: bool) -> Iterator[Row]:
    """Keys of unlike weight; in time with disorder, late rows, leaps and moments without rows."""
    now = 0
    for _ in range(rows):
        key = min(int(draw.expovariate(1.5 / keys)), keys - 1)
        if not timed:
            yield Row(key, draw.randint(-9, 9))
            continue
        now += draw.choice((0, 0, 1, 1, 2, 7 if draw.random() < 0.1 else 0))
        if draw.random() < 0.1:
            yield Row(None, 0, now)
        else:
            yield Row(key, draw.randint(-9, 9), max(0, now - draw.choice((0, 0, 0, 1, 3, 12))))
