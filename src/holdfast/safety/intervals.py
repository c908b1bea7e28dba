"""How often something is done: every so many epochs, or after so much time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.errors import PlanError

_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "millisecond": 0.001, "s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0}
_SECONDS |= {"m": 60.0, "h": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0}


@dataclass(frozen=True)
class Interval:
    """Exactly one of the two is not 0."""

    epochs: int = 0
    seconds: float = 0.0

    def passed(self, epochs: int, seconds: float) -> bool:
        return epochs >= self.epochs if self.epochs else seconds >= self.seconds

    @staticmethod
    def of(every: int | str, what: str) -> Interval:
        """``10`` is ten epochs, ``"3 s"`` three seconds.

        >>> Interval.of("2 minutes", "every").seconds
        120.0
        """
        if isinstance(every, int) and not isinstance(every, bool) and every >= 1:
            return Interval(epochs=every)
        if isinstance(every, str) and (seconds := seconds_of(every)):
            return Interval(seconds=seconds)
        raise PlanError(
            f"{what} cannot be {every!r}.",
            safe="Nothing was started.",
            todo="Give a number of epochs (10), or a time ('3 s', '500 ms', '2 minutes').",
        )


def seconds_of(span: str) -> float:
    """The seconds in ``"3 s"``; 0 if it is no span of time."""
    found = _SPAN.fullmatch(span)
    unit = found[2].lower() if found else ""
    scale = _SECONDS.get(unit) or _SECONDS.get(unit.removesuffix("s")) or 0.0
    return float(found[1]) * scale if found else 0.0
