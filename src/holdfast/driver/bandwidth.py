"""How fast something may go, as people write it."""

from __future__ import annotations

import re

from holdfast.errors import PlanError

_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?)(bit|b|byte|bytes)\s*(?:/\s*s|ps)\s*", re.IGNORECASE)
_SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def bytes_a_second(limit: float | str | None, what: str) -> float | None:
    """``"100 Mbit/s"``, ``"12.5 MB/s"``, or a number of bytes a second; None is no limit.

    >>> bytes_a_second("100 Mbit/s", "upload_limit")
    12500000.0
    >>> bytes_a_second("1 Gb/s", "upload_limit")
    125000000.0
    >>> bytes_a_second("12.5 MB/s", "upload_limit")
    12500000.0
    """
    if limit is None:
        return None
    if isinstance(limit, str):
        found = _RATE.fullmatch(limit)
        if found:
            bits = found[3] == "b" or found[3].lower() == "bit"
            rate = float(found[1]) * _SCALE[found[2].lower()] / (8 if bits else 1)
        else:
            rate = 0.0
    else:
        rate = 0.0 if isinstance(limit, bool) else float(limit)
    if not 0 < rate < float("inf"):
        raise PlanError(
            f"{what} cannot be {limit!r}.",
            safe="Nothing was started.",
            todo="Give bits or bytes a second ('100 Mbit/s', '12.5 MB/s', 12.5e6), or None for no limit.",
        )
    return rate
