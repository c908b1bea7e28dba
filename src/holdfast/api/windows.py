"""Windows: ``hf.tumbling``, ``hf.sliding``, ``hf.cumulative`` and ``hf.session``, in time or by counting rows."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import PlanError
from holdfast.invariants import some
from holdfast.operators.cumulative import CumulativeSpec
from holdfast.operators.session import SessionSpec
from holdfast.operators.window import WindowSpec
from holdfast.safety.intervals import seconds_of


@dataclass(frozen=True)
class Window:
    """What ``KeyedStream.window`` takes; times in microseconds."""

    kind: str  # time | rows | cumulative | session
    size: int
    every: int
    offset: int = 0
    spec: type[WindowSpec | SessionSpec] = WindowSpec
    """What a stage is that keeps aggregates of them."""
    numbered: bool = True

    @property
    def verb(self) -> str:
        """What made it, in the names of stages."""
        if self.kind not in ("time", "rows"):
            return self.kind
        return "tumbling" if self.size == self.every else "sliding"


def tumbling(size: str | None = None, *, rows: int | None = None, offset: str = "0 s", numbered: bool = True) -> Window:
    """Windows one after the other: ``tumbling("10 s")``, or every so many rows of a key: ``tumbling(rows=100)``.

    ``numbered=False``, for windows of rows: results do not say which rows of their key they are of. Then nothing is
    kept of a key between its windows; else how many rows it had, for ever.
    """
    if (size is None) == (rows is None):
        raise PlanError("A tumbling window needs a size in time or a number of rows.", todo="hf.tumbling('10 s')")
    if rows is not None:
        return Window("rows", _rows(rows), _rows(rows), numbered=numbered)
    if not numbered:
        raise PlanError("Only windows of rows have numbers.", todo="hf.tumbling(rows=100, numbered=False)")
    size = some(size, "asked above")
    return Window("time", span(size), span(size), span(offset, least=0))


def sliding(
    size: str | None = None, every: str | int | None = None, *, rows: int | None = None, offset: str = "0 s"
) -> Window:
    """Windows that overlap: ``sliding("300 s", every="30 s")``, or ``sliding(rows=1000, every=100)``: every 100 rows of
    a key, over its last 1000 or as many as there are.
    """
    if (size is None) == (rows is None) or every is None:
        raise PlanError(
            "A sliding window needs a size and how often it moves.",
            todo="hf.sliding('300 s', every='30 s'), or hf.sliding(rows=1000, every=100)",
        )
    if rows is not None:
        if not isinstance(every, int):
            raise PlanError("A window of rows moves by rows.", todo="hf.sliding(rows=1000, every=100)")
        found = Window("rows", _rows(rows), _rows(every))
    else:
        size = some(size, "asked above")
        found = Window("time", span(size), span(str(every)), span(offset, least=0))
    if found.every > found.size:
        raise PlanError("A sliding window cannot move by more than its size: rows between would be in none.")
    return found


def cumulative(size: str, every: str, *, offset: str = "0 s") -> Window:
    """Windows that grow: ``cumulative("1 day", every="1 hour")`` is the day's first hour, its first two, … and all of
    it; ``every`` divides the size.
    """
    found = Window("cumulative", span(size), span(every), span(offset, least=0), CumulativeSpec)
    if found.size % found.every:
        raise PlanError(
            f"A cumulative window of {size!r} does not grow to its size by steps of {every!r}.",
            todo="Give steps that divide the size: hf.cumulative('1 day', every='1 hour').",
        )
    return found


def session(gap: str) -> Window:
    """Rows of a key of which each comes no more than ``gap`` after the one before."""
    return Window("session", span(gap), span(gap), spec=SessionSpec)


def span(text: str, least: int = 1) -> int:
    """The microseconds of ``"10 s"``."""
    found = round(seconds_of(text) * 1_000_000) if isinstance(text, str) else -1
    zero = isinstance(text, str) and text.strip().startswith("0")
    if found < least or (found == 0 and not zero):
        raise PlanError(f"{text!r} is no span of time.", todo="Write '10 s', '5 minutes', '1 hour', '250 ms'.")
    return found


def _rows(count: int) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise PlanError(f"A window cannot have {count!r} rows.", todo="Give a number from 1 on.")
    return count
