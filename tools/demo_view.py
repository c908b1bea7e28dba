"""What the demo shows: a live picture on a terminal, a plain line now and then anywhere else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.driver.history import ROUTINE

if TYPE_CHECKING:
    from holdfast.api.status import Status

Product = tuple[str, int, int]  # name, clicks, cents
_PLAIN_EVERY = 3.0
_RATE_OVER = 5.0


class View:
    def __init__(self, console: Console, rows: int) -> None:
        self._console = console
        self._rows = rows
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._started = time.monotonic()
        self._seen: deque[tuple[float, int]] = deque()
        self._told = 0  # events of the run that have been shown
        self._next_line = 0.0
        self._notes: list[str] = []

    def __enter__(self) -> View:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        if self._live:
            self._notes.append(f"{self._elapsed():5.1f} s  {text}")
        else:
            self._console.print(f"[{self._elapsed():5.1f} s] {text}", markup=False, highlight=False, soft_wrap=True)

    def show(self, status: Status, top: Sequence[Product]) -> None:
        rate = self._rate(status.rows)
        news = [event for event in status.events if event.kind not in ROUTINE]
        if status.epoch == 0:
            self._told = len(news)  # how the containers came up: nothing to heal yet
        for event in news[self._told :]:
            took = f" ({event.seconds * 1000:,.0f} ms)" if event.seconds else ""
            self.say(f"{event.kind}: {event.text}{took}")
        self._told = len(news)
        if self._live:
            self._live.update(self._picture(status, rate, top), refresh=True)
        elif self._elapsed() >= self._next_line:
            self._next_line = self._elapsed() + _PLAIN_EVERY
            alive = [f"{one.name}:{one.slices}" for one in status.containers if one.alive]
            leader = f"; top: {top[0][0]} ({top[0][1]:,} clicks)" if top else ""
            for one in status.ongoing:
                self.say(str(one))
            self.say(
                f"epoch {status.epoch}, {status.rows:,} of {self._rows:,} rows, {rate:,.0f} rows/s, "
                f"{_milliseconds(status)}; slices {' '.join(alive)}{leader}"
            )

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _rate(self, rows: int) -> float:
        """Rows a second over the last few seconds."""
        now = self._elapsed()
        self._seen.append((now, rows))
        while len(self._seen) > 2 and self._seen[0][0] < now - _RATE_OVER:
            self._seen.popleft()
        (then, before), (now, after) = self._seen[0], self._seen[-1]
        return (after - before) / (now - then) if now > then else 0.0

    def _picture(self, status: Status, rate: float, top: Sequence[Product]) -> RenderableType:
        figures = Text.assemble(
            ("Holdfast  ", "bold cyan"),
            f"epoch {status.epoch} ({_milliseconds(status)})  {status.rows:,} of {self._rows:,} rows  ",
            (f"{rate:,.0f} rows/s  ", "bold"),
            f"{self._elapsed():.0f} s",
        )
        bar = Table.grid()  # gives the bar a line of its own
        bar.add_row(ProgressBar(total=self._rows, completed=min(status.rows, self._rows), width=76))
        tables = Table.grid(padding=(0, 2))
        tables.add_row(_products(top), _containers(status))
        ongoing = [Text(str(one), "bold magenta", no_wrap=True, overflow="ellipsis") for one in status.ongoing]
        notes = [Text(note, "yellow", no_wrap=True, overflow="ellipsis") for note in self._notes[-8:]]
        return Group(figures, bar, tables, *ongoing, *notes)


def _milliseconds(status: Status) -> str:
    return f"{status.epoch_seconds * 1000:,.0f} ms" if status.epoch_seconds else "– ms"


def _products(top: Sequence[Product]) -> Table:
    table = Table(box=None, padding=(0, 1))
    table.add_column("top products, live", min_width=19)
    table.add_column("clicks", justify="right", min_width=9)
    table.add_column("revenue", justify="right", min_width=14)
    for name, clicks, cents in top:
        table.add_row(name, f"{clicks:,}", f"{cents / 100:,.2f}")
    return table


def _containers(status: Status) -> Table:
    table = Table(box=None, padding=(0, 1))
    table.add_column("container")
    table.add_column("slices", justify="right")
    table.add_column("copies", justify="right")
    table.add_column("")
    for one in status.containers:
        state = Text("alive", style="green") if one.alive else Text("gone", style="red")
        table.add_row(one.name, str(one.slices), str(one.backups), state)
    return table
