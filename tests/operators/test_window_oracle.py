"""Windows of every kind against the oracle: disorder, late rows, nulls, early results, taken-back rows."""

from __future__ import annotations

from typing import Any

import pytest
from aggregate_model import crc, one_hash
from hypothesis import given, settings
from hypothesis import strategies as st
from window_model import TYPES, Epoch, Event, WindowModel, aggregates, check, columns

from holdfast.operators.window import WindowOperator, WindowSpec
from holdfast.state.slice import NEVER, EpochTime
from holdfast.state.warm import warm

SMALL = settings(max_examples=80, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


def functions(kinds: list[str], *, updating: bool = False) -> list[tuple[Any, ...]]:
    options: list[tuple[Any, ...]] = [("count",)]
    for number, kind in enumerate(kinds):
        column = (f"v{number}", kind)
        options.append(("count", *column))
        if kind != "string" and not (updating and kind == "double"):
            options += [(name, *column) for name in ("sum", "mean")]
            if not updating and kind in ("tinyint", "double"):
                options += [("var", *column), ("stddev", *column)]
        if not updating:
            options += [(name, *column) for name in ("min", "max", "first", "last")]
            options += [(name, *column, ("ignore_nulls", True)) for name in ("first", "last")]
    return options


@st.composite
def specs(draw: st.DrawFn, unit: str, updating: bool = False) -> WindowSpec:
    kinds = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=2))
    every = draw(st.integers(1, 6))
    size = every * draw(st.integers(1, 5)) if draw(st.booleans()) else draw(st.integers(every, 20))
    mode, early = draw(st.sampled_from([("append", 0), ("append", 0), ("update", 0), ("append", 10)]))
    unnumbered = unit == "rows" and every == size and (mode, early) == ("append", 0) and draw(st.booleans())
    return WindowSpec(
        columns(draw(st.lists(st.sampled_from(["int", "string"]), min_size=1, max_size=2)), "key"),
        aggregates(draw(st.lists(st.sampled_from(functions(kinds, updating=updating)), min_size=1, max_size=4))),
        columns([*kinds, "timestamp"], "value"),
        size,
        every,
        unit,
        f"v{len(kinds)}" if unit == "event" else None,
        offset=0 if unit == "rows" else draw(st.integers(-3, 9)),
        mode=mode,
        early=early,
        late=tuple(draw(st.lists(st.integers(0, len(kinds)), unique=True, max_size=2))) if unit != "rows" else (),
        updating_input=updating,
        numbered=not unnumbered,
    )


def key_of(draw: Any, spec: Any) -> list[tuple[Any, ...]]:
    one = {"int": st.none() | st.integers(0, 2), "string": st.sampled_from([None, "", "x", "yy"])}
    return draw(st.lists(st.tuples(*(one[column.type] for column in spec.keys)), min_size=1, max_size=3))


def epochs_of(draw: Any, spec: Any, most: int = 8) -> list[Epoch]:
    """Time goes on by leaps; rows lie around it, some far behind."""
    keys = key_of(draw, spec)
    values = st.tuples(*(st.none() | TYPES[column.type] for column in spec.values[:-1]))
    found, watermark, clock = [], NEVER, 1000
    alive: list[Event] = []
    for _ in range(draw(st.integers(1, most))):
        late = watermark
        clock += draw(st.integers(0, 15))
        if draw(st.booleans()):
            watermark = max(watermark, 0) + draw(st.sampled_from([0, 1, 2, 5, 9, 30]))
        now = max(watermark, 0)
        time = st.none() | st.integers(now - 25, now + 25) | st.integers(now - 3, now + 6)
        rows = draw(st.lists(st.builds(Event, st.just(1), st.sampled_from(keys), time, values), max_size=10))
        if getattr(spec, "updating_input", False):
            gone = draw(st.lists(st.sampled_from(range(len(alive))), unique=True)) if alive else []
            back = [Event(-1, alive[at].key, alive[at].time, alive[at].values) for at in gone]
            alive = [row for at, row in enumerate(alive) if at not in gone] + rows
            rows = back + rows
        found.append(Epoch(rows, EpochTime(late, watermark, clock)))
    return found


@SMALL
@pytest.mark.parametrize("unit", ["event", "clock", "rows"])
@given(data=st.data())
def test_windows_equal_the_oracle(unit: str, data: st.DataObject) -> None:
    spec = data.draw(specs(unit))
    epochs = epochs_of(data.draw, spec)
    check(WindowOperator(spec), WindowModel(spec), epochs, data.draw, data.draw(st.sampled_from([crc, one_hash])))


@SMALL
@given(data=st.data())
def test_windows_over_an_updating_input_equal_the_oracle(data: st.DataObject) -> None:
    spec = data.draw(specs("event", updating=True))
    check(WindowOperator(spec), WindowModel(spec), epochs_of(data.draw, spec), data.draw)
