"""The time window a user's function may keep: values by event time, those that are over forgotten by themselves."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from holdfast.state.values import micros, moment


class TimeWindow:
    """The values of the last ``span`` microseconds, in order of their times; equal times in order of arrival.

    The present is the later of the newest value and the watermark; a value is within as long as it is younger than
    ``span``. What comes too late for that is not taken.
    """

    __slots__ = ("_present", "_span", "times", "values")

    def __init__(self, span: int, present: int, times: list[int], values: list[Any]) -> None:
        self._span = span
        self._present = max(present, times[-1]) if times else present
        self.times = times
        self.values = values
        self._forget()

    def append(self, value: Any, at: dt.datetime | int) -> bool:
        """Take a value of that time; False if it is over already."""
        time = micros(at)
        if time <= self._present - self._span:
            return False
        place = bisect_right(self.times, time)
        self.times.insert(place, time)
        self.values.insert(place, value)
        if time > self._present:
            self._present = time
            self._forget()
        return True

    def items(self) -> list[tuple[dt.datetime, Any]]:
        """(time, value) of all values."""
        return [(moment(time), value) for time, value in zip(self.times, self.values, strict=True)]

    def clear(self) -> None:
        self.times.clear()
        self.values.clear()

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __getitem__(self, at: Any) -> Any:
        return self.values[at]

    def __repr__(self) -> str:
        return f"TimeWindow({self.values!r})"

    def _forget(self) -> None:
        over = bisect_right(self.times, self._present - self._span)
        if over:
            del self.times[:over], self.values[:over]
