"""The oracle of ``top_k``: every row of every group in a list, sorted from scratch in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cmp_to_key
from typing import Any

from holdfast.operators.top_k import TopKSpec

Row = tuple[int, tuple[Any, ...], tuple[Any, ...]]  # sign, key, values
Group = list[tuple[int, tuple[Any, ...]]]  # (rank, values)


def compare(left: Any, right: Any) -> int:
    """Spark's ascending order: nulls, then values, then NaN; strings by bytes."""
    if left is None or right is None:
        return (left is not None) - (right is not None)
    if isinstance(left, float) and (math.isnan(left) or math.isnan(right)):
        return math.isnan(left) - math.isnan(right)
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    return int(left > right) - int(left < right)


class Model:
    def __init__(self, spec: TopKSpec) -> None:
        self.spec = spec
        self.rows: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        self.shown: dict[tuple[Any, ...], Group] = {}

    def by_order(self, left: tuple[Any, ...], right: tuple[Any, ...]) -> int:
        for number, descending in self.spec.order:
            found = compare(left[number], right[number])
            if found:
                return -found if descending else found
        return 0

    def by_all(self, left: tuple[Any, ...], right: tuple[Any, ...]) -> int:
        return self.by_order(left, right) or next((found for found in map(compare, left, right) if found), 0)

    def first(self, rows: list[tuple[Any, ...]]) -> Group:
        ranked: Group = []
        for position, row in enumerate(sorted(rows, key=cmp_to_key(self.by_all))):
            tie = position and self.spec.ties == "all" and self.by_order(ranked[-1][1], row) == 0
            ranked.append((ranked[-1][0] if tie else position + 1, row))
        return [entry for entry in ranked if entry[0] <= self.spec.k]

    def apply(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """What the epoch puts out, each row with its sign at the end; groups as its rows name them."""
        named: dict[tuple[Any, ...], None] = {}
        for sign, key, values in sorted(rows, key=lambda row: -row[0]):  # a row may come and go in one epoch
            group = self.rows.setdefault(key, [])
            if sign > 0:
                group.append(values)
            else:
                group.remove(next(row for row in group if repr(row) == repr(values)))
        for _, key, _ in rows:
            named[key] = None
        minus, plus = [], []
        for key in named:
            old, new = self.shown.get(key, []), self.first(self.rows[key])
            if repr(old) != repr(new):
                minus += [(*key, rank, *values, -1) for rank, values in old]
                plus += [(*key, rank, *values, 1) for rank, values in new]
                self.shown[key] = new
        return minus + plus

    def state(self) -> list[tuple[Any, ...]]:
        return [(*key, rank, *values) for key, group in self.shown.items() for rank, values in group]
