"""Spans of time as SQL writes them, and conditions that bound how far two event times are apart."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from holdfast.api.sql.text import Node, Text, span

_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 7 * 86_400_000_000,
}
_PART = re.compile(r"\s*'?\s*([+-]?\d+(?:\.\d+)?)\s*'?\s*([a-z]+)", re.IGNORECASE)


def microseconds(said: str) -> int | None:
    """
    >>> microseconds("INTERVAL '1' HOUR"), microseconds("5 minutes 30 seconds"), microseconds("1 month")
    (3600000000, 330000000, None)
    """
    rest = re.sub(r"^\s*interval\b", "", said, flags=re.IGNORECASE).strip().strip("'").strip()
    total, at = 0.0, 0
    while at < len(rest):
        found = _PART.match(rest, at)
        unit = _UNITS.get(found[2].lower().removesuffix("s")) if found else None
        if found is None or unit is None:
            return None
        total, at = total + float(found[1]) * unit, found.end()
    return round(total) if rest else None


def as_span(micros: int) -> str:
    """As the verbs take it.

    >>> as_span(1_500_000)
    '1.500000 s'
    """
    seconds, rest = divmod(micros, 1_000_000)
    return f"{seconds}.{rest:06d} s" if rest else f"{seconds} s"


@dataclass
class Apart:
    """What conditions say of the right time less the left one: ``low <= right - left <= high``, in microseconds."""

    low: int | None = None
    high: int | None = None

    def narrow(self, low: int | None, high: int | None) -> None:
        if low is not None:
            self.low = low if self.low is None else max(low, self.low)
        if high is not None:
            self.high = high if self.high is None else min(high, self.high)


def take_bound(text: Text, condition: Node, side: Callable[[exp.Column], int | None], apart: Apart) -> bool:
    """Whether a condition bounds the two times, which ``side`` knows (0: the left one, 1: the right one); if so,
    ``apart`` has it."""
    match condition:
        case exp.Paren():
            return take_bound(text, condition.this, side, apart)
        case exp.Between():
            return all(
                [
                    _compared(text, condition.this, condition.args["low"], side, apart, "ge"),
                    _compared(text, condition.this, condition.args["high"], side, apart, "le"),
                ]
            )
        case exp.GTE() | exp.GT() | exp.LTE() | exp.LT() | exp.EQ():
            kind = {exp.GTE: "ge", exp.GT: "gt", exp.LTE: "le", exp.LT: "lt", exp.EQ: "eq"}[type(condition)]
            return _compared(text, condition.this, condition.expression, side, apart, kind)
    return False


def _compared(
    text: Text,
    one: Node,
    other: Node,
    side: Callable[[exp.Column], int | None],
    apart: Apart,
    kind: str,
) -> bool:
    first, second = _linear(text, one, side), _linear(text, other, side)
    if first is None or second is None:
        return False
    left, right, rest = (mine - theirs for mine, theirs in zip(first, second, strict=True))
    if (left, right) not in ((-1, 1), (1, -1)):
        return False
    # right·(T_right - T_left) + rest  ⟨kind⟩  0
    low, high = kind in ("ge", "gt", "eq"), kind in ("le", "lt", "eq")
    strict = int(kind in ("gt", "lt"))
    if right < 0:
        low, high = high, low
    edge = -rest * right
    apart.narrow(edge + strict if low else None, edge - strict if high else None)
    return True


def _linear(text: Text, node: Node, side: Callable[[exp.Column], int | None]) -> tuple[int, int, int] | None:
    """How often the left time, the right time, and microseconds are in it."""
    match node:
        case exp.Paren():
            return _linear(text, node.this, side)
        case exp.Column():
            found = side(node)
            return None if found is None else (int(found == 0), int(found == 1), 0)
        case exp.Interval():
            micros = microseconds(text.cut(node)) if span(node) else None
            return None if micros is None else (0, 0, micros)
        case exp.Add() | exp.Sub():
            one, other = _linear(text, node.this, side), _linear(text, node.expression, side)
            if one is None or other is None:
                return None
            sign = 1 if isinstance(node, exp.Add) else -1
            return one[0] + sign * other[0], one[1] + sign * other[1], one[2] + sign * other[2]
    return None
