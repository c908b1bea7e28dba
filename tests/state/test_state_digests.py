"""Checksums of a slice's content: equal for equal content, wherever it lies; unlike for any bit of it that differs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from holdfast.state import digests
from holdfast.state.columns import FLOAT, INT, QUADS, SPANS
from holdfast.state.copies import Picked
from holdfast.state.table import Layout

LAYOUT = Layout(2, True, (INT, FLOAT, SPANS, QUADS))
Row = dict[str, Any]
ROW: Row = {"key": (1, 2), "tail": b"key", "nulls": 0, "n": 7, "x": 0.5, "text": b"some text", "four": (1.0, 2.0, 3, 4)}


def part(rows: list[Row], chance: random.Random | None = None) -> Picked:
    """As a table would give them: bytes anywhere in their arena, slots and changes of their own."""
    chance = chance or random.Random(0)

    def spread(name: str) -> tuple[Any, Any]:
        before = bytes(chance.randrange(256) for _ in range(chance.randrange(9)))
        lengths = [len(row[name]) for row in rows]
        offsets = np.cumsum([len(before), *lengths]).astype(np.int64)
        return offsets, np.frombuffer(before + b"".join(row[name] for row in rows) + b"behind", np.uint8)

    columns = [
        np.array([chance.randrange(100) for _ in rows], np.int32),
        np.array([chance.randrange(100) for _ in rows], np.int32),
        np.array([hash(row["key"]) for row in rows], np.int64),
        np.array([row["nulls"] for row in rows], np.int32),
        np.array([row["key"] for row in rows], np.int64).reshape(len(rows), 2),
        spread("tail"),
        np.array([row["n"] for row in rows], np.int64),
        np.array([row["x"] for row in rows], np.float64),
        spread("text"),
        np.array([row["four"] for row in rows], np.float64).reshape(len(rows), 4),
    ]
    return Picked(LAYOUT, len(rows), columns)


def many(chance: random.Random) -> list[Row]:
    return [
        ROW | {"key": (at, 1), "n": chance.randrange(5), "text": bytes(chance.randrange(9))}
        for at in range(chance.randrange(60))
    ]


@pytest.mark.parametrize("seed", range(20))
def test_order_parts_slots_and_arenas_play_no_part(seed: int) -> None:
    chance = random.Random(seed)
    rows = many(chance)
    whole, cut = digests.of_part(part(rows)), chance.randrange(len(rows) + 1)
    chance.shuffle(rows)
    parts = [digests.of_part(part(some, chance)) for some in (rows[:cut], rows[cut:])]
    assert sum(parts) % 2**64 == whole


@pytest.mark.parametrize(
    "change",
    [
        {"n": 8},
        {"x": -0.5},
        {"x": float("nan")},
        {"nulls": 1},
        {"key": (2, 1)},
        {"tail": b"kez"},
        {"tail": b"ke", "text": b"ysome text"},
        {"text": b"some texu"},
        {"text": b""},
        {"four": (1.0, 2.0, 4, 3)},
        {"n": 0x3FE0000000000000, "x": 3.5e-323},
    ],
    ids=str,
)
def test_any_other_bit_is_another_content(change: Row) -> None:
    others = many(random.Random(3))
    assert digests.of_part(part([*others, ROW])) != digests.of_part(part([*others, ROW | change]))


def test_bits_are_what_counts() -> None:
    def of(value: float) -> int:
        return digests.of_part(part([ROW | {"x": value}]))

    assert of(float("nan")) == of(float("nan"))
    assert of(0.0) != of(-0.0)


def test_rows_count_as_often_as_they_are_there() -> None:
    once, twice = (digests.of_part(part([ROW] * times)) for times in (1, 2))
    assert len({0, once, twice}) == 3
    assert digests.of_part(part([])) == 0


def test_rows_that_have_died_count_for_nothing() -> None:
    """One container may have left them behind already, and another not yet."""
    layout = Layout(2, True, LAYOUT.columns, 0)
    columns = [part([ROW, ROW | {"key": (3, 4), "n": 0}]).columns, part([ROW]).columns]
    both, one = (digests.of_part(Picked(layout, len(some[0]), some)) for some in columns)
    assert both == one != 0


def test_tables_have_an_order() -> None:
    assert len({digests.together(tables) for tables in ([], [0], [1], [1, 2], [2, 1], [1, 2, 0])}) == 6
