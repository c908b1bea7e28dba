"""How much work each slice is, from what the containers have measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def shares(
    told: Mapping[str, Mapping[int, tuple[float, float]]], owners: Sequence[str | None]
) -> tuple[tuple[int, float], ...]:
    """(slice, load): container → slice → rows and seconds an epoch, of the slices that are its own.

    Rows and time count alike: time alone is noise where slices are small, rows alone know nothing of their cost.

    >>> shares({"a": {0: (100.0, 0.5), 1: (300.0, 0.5)}}, ["a", "b"])
    ((0, 0.5),)
    """
    seen = {
        number: measured
        for container, slices in told.items()
        for number, measured in slices.items()
        if owners[number] == container
    }
    all_rows = sum(rows for rows, _ in seen.values()) or 1.0
    scale = sum(seconds for _, seconds in seen.values()) / all_rows
    return tuple((number, (seconds + scale * rows) / 2) for number, (rows, seconds) in seen.items())
