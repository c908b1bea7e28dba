"""Sums, means and variances over rows that are replaced, against exact arithmetic (``fractions``).

A history is a key: rows come, are replaced and go, in epochs whose rows stand in any order. After every epoch the
results must be those of the rows that are there, to the last bit those of a slice that never had any other row.
``--heavy`` tries 10,000 histories.
"""

from __future__ import annotations

import decimal
import math
import random
import statistics
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from aggregate_model import bits, decode, plain, stage

from holdfast.errors import FunctionError
from holdfast.operators.aggregate import AggregateOperator, StageSpec
from holdfast.state.types import AtomicType, required
from holdfast.state.warm import warm

LEAST, MOST = -(2**63), 2**63 - 1
ODD = (math.nan, math.inf, -math.inf)
LARGE = (1e300, -1e300, 1.5e154, -1.5e154, 1e308, -1e308)
EDGES = (0.0, -0.0, 5e-324, -1e-310, 1e-200, 1e20, -1e20, 1e16, 1.0, 1e154, -1.3e154, 0.1, -0.1)
Draw = Callable[[random.Random], Any]


def _double(rnd: random.Random) -> float:
    kind = rnd.random()
    if kind < 0.15:
        return rnd.choice(ODD)
    if kind < 0.25:
        return rnd.choice(LARGE)
    if kind < 0.5:
        return rnd.choice(EDGES)
    if kind < 0.75:  # a large mean
        return rnd.choice((1e9, 1.7e15, -3e12)) + rnd.gauss(0, 1)
    return rnd.uniform(-1, 1) * 10.0 ** rnd.randint(-30, 30)


def _float(rnd: random.Random) -> float:
    return rnd.choice((*ODD, 1.5, -2.25, 2.0**100, 2.0**-140, 0.0, -0.0, rnd.randrange(-(2**24), 2**24) / 2**12))


def _tame(rnd: random.Random) -> float:
    return rnd.choice((rnd.gauss(1e9, 1), round(rnd.uniform(0, 1000), 2), 1e20, 1e300))


def _bigint(rnd: random.Random) -> int:
    return rnd.choice((LEAST, MOST, MOST - 1, 2**62, -(2**62), 0, rnd.randrange(LEAST, MOST + 1), rnd.randrange(100)))


def _decimal(precision: int, scale: int) -> Draw:
    most = 10**precision - 1

    def draw(rnd: random.Random) -> Decimal:
        return Decimal(rnd.choice((most, -most, 0, 1, rnd.randrange(-most, most + 1), rnd.randrange(-99, 99)))).scaleb(
            -scale, decimal.Context(prec=60)
        )

    return draw


CASES: dict[str, tuple[str, Draw, float]] = {
    "double": ("double", _double, 0.45),
    "tame": ("double", _tame, 0.2),
    "float": ("float", _float, 0.1),
    "bigint": ("bigint", _bigint, 0.1),
    "int": ("int", lambda rnd: rnd.randrange(-(2**31), 2**31), 0.05),
    "decimal(10,2)": ("decimal(10,2)", _decimal(10, 2), 0.03),
    "decimal(38,0)": ("decimal(38,0)", _decimal(38, 0), 0.04),
    "decimal(35,18)": ("decimal(35,18)", _decimal(35, 18), 0.03),
}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


def _spec(kind: str, **how: Any) -> StageSpec:
    functions = ("sum", "mean", "var", "stddev")
    return stage(["bigint"], [("count",), *((name, "v0", kind) for name in functions)], updating_input=True, **how)


class Histories:
    """Some keys, and the rows that each has; an epoch changes some of them."""

    def __init__(self, rnd: random.Random, draw: Draw, keys: int) -> None:
        self._rnd, self._draw = rnd, draw
        self.rows: dict[int, list[Any]] = {key: [] for key in range(keys)}

    def epoch(self) -> list[Any]:
        rnd, rows = self._rnd, []
        for key, live in self.rows.items():
            if rnd.random() < 0.3:
                continue
            for _ in range(rnd.randint(1, 4)):
                what = rnd.random() if live else 1.0
                if what < 0.6:  # replaced or gone
                    rows.append((-1, (key,), (live.pop(rnd.randrange(len(live))),)))
                if what > 0.2:
                    value = None if rnd.random() < 0.05 else self._draw(rnd)
                    rows.append((1, (key,), (value,)))
                    live.append(value)
        rnd.shuffle(rows)  # one that comes and goes within the epoch may even be taken back before it comes
        return rows


def _rounded(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _within_an_ulp(found: float, exact: Fraction) -> bool:
    nearest = _rounded(exact)
    if math.isinf(nearest):
        return found == nearest
    return abs(Fraction(found) - exact) <= Fraction(math.ulp(nearest))


def _as_spark(values: list[float]) -> float:
    """Spark's var_samp over these rows."""
    n = mean = squares = 0.0
    for value in values:
        n += 1
        delta = value - mean
        step = delta / n
        mean += step
        squares += delta * (delta - step)
    return squares / (n - 1)


def _check_floats(
    values: list[float], total: float, mean: float, spread: float | None, deviation: float | None
) -> None:
    if not all(map(math.isfinite, values)):
        up, down = math.inf in values, -math.inf in values
        wanted = math.nan if any(map(math.isnan, values)) or (up and down) else math.inf if up else -math.inf
        assert (repr(total), repr(mean)) == (repr(wanted),) * 2
        assert (spread is None) if len(values) < 2 else math.isnan(spread or 0.0)
        return
    exact = sum(map(Fraction, values), Fraction(0))
    assert _within_an_ulp(total, exact), (total, values)
    assert _within_an_ulp(mean, exact / len(values)), (mean, values)
    assert math.copysign(1, total) > 0 or total < 0, "0 has no sign"
    _check_spread(values, spread, deviation)


def _check_spread(values: list[float], spread: float | None, deviation: float | None) -> None:
    if len(values) < 2:
        assert (spread, deviation) == (None, None)
        return
    assert spread is not None
    if all(math.isfinite(value * value) for value in values):
        wanted = _rounded(statistics.variance(map(Fraction, values)))
    elif math.isinf(max(values) - min(values)):
        wanted = math.inf  # Spark's is NaN if it comes upon such a difference, which depends on the order of the rows
    else:
        wanted = _as_spark(values)
    # What is below a double's smallest has no nine digits.
    assert math.isclose(spread, wanted, rel_tol=1e-9, abs_tol=1e-320), (spread, wanted, values)
    assert deviation == pytest.approx(math.sqrt(spread), rel=1e-15)


def _check(kind: AtomicType, live: list[Any], found: tuple[Any, ...]) -> None:
    count, total, mean, spread, deviation = found
    values = [value for value in live if value is not None]
    assert count == len(live)
    if not values:
        assert (total, mean, spread, deviation) == (None,) * 4
    elif kind.kind == "float":
        _check_floats(values, total, mean, spread, deviation)
    elif kind.kind == "int":
        assert total == (sum(values) if LEAST <= sum(values) <= MOST else None)
        assert _within_an_ulp(mean, Fraction(sum(values), len(values)))
        _check_spread(list(map(float, values)), spread, deviation)
    else:
        with decimal.localcontext(prec=120):
            exact = sum(values, Decimal(0))
            fits = abs(exact) < Decimal(10) ** (min(38, kind.precision + 10) - kind.scale)
            assert total == (exact if fits else None)
            step = Decimal(1).scaleb(-min(38, kind.scale + 4))
            wanted = (exact / len(values)).quantize(step, rounding=decimal.ROUND_HALF_UP)
            precision = min(38, kind.precision + 4)
            assert mean == (wanted if fits and abs(wanted) < step * 10**precision else None), (mean, wanted)
        _check_spread(list(map(float, values)), spread, deviation)


def _try(name: str, keys: int, seed: str) -> None:
    kind, draw, _ = CASES[name]
    rnd = random.Random(seed)
    spec = _spec(kind, overflow="null")
    operator, histories = AggregateOperator(spec), Histories(rnd, draw, keys)
    state = operator.new_slice()
    for epoch in range(1, rnd.randint(3, 9)):
        decoded = decode(operator, [kind], histories.epoch())
        if rnd.random() < 0.2:
            before = bits(state.delta(0, epoch - 1))
            state.apply(epoch, decoded)
            state.undo()
            assert bits(state.delta(0, epoch - 1)) == before
        state.apply(epoch, decoded)
        if rnd.random() < 0.2:
            copy = state.delta(0, epoch)
            state = operator.new_slice()
            state.load([copy], epoch)
        found = {row[0]: row[1:] for row in plain(state.read(epoch))}
        assert found.keys() == {key for key, live in histories.rows.items() if live}
        for key, row in found.items():
            _check(required(kind, "value"), histories.rows[key], row)
    never = operator.new_slice()
    left = [(1, (key,), (value,)) for key, live in histories.rows.items() for value in live]
    rnd.shuffle(left)
    never.apply(1, decode(operator, [kind], left))
    results = [sorted(map(repr, plain(one.read(one.epoch)))) for one in (state, never)]
    assert results[0] == results[1]


@pytest.mark.parametrize("name", CASES)
def test_a_history_of_rows_that_are_replaced_is_that_of_those_that_are_left(name: str, drill_seed: int) -> None:
    for number in range(3 * (drill_seed - 1), 3 * drill_seed):
        _try(name, 25, f"{name}/{number}")


@pytest.mark.heavy
@pytest.mark.parametrize("name", CASES)
def test_ten_thousand_histories(name: str) -> None:
    for number in range(round(100 * CASES[name][2])):
        _try(name, 100, f"heavy/{name}/{number}")


def test_an_epoch_fails_only_if_a_sum_is_too_large_at_its_end() -> None:
    rnd = random.Random(11)
    operator = AggregateOperator(_spec("bigint"))
    failed = applied = 0
    for _ in range(60):
        histories, state = Histories(rnd, _bigint, 1), operator.new_slice()
        for epoch in range(1, 6):
            rows = histories.epoch()
            values = [value for value in histories.rows[0] if value is not None]
            decoded = decode(operator, ["bigint"], rows)
            if rows and not LEAST <= sum(values) <= MOST:
                before = bits(state.delta(0, epoch - 1))
                with pytest.raises(FunctionError, match=r"sum 'out1' overflowed bigint.*\n.*\n.*on_overflow=\"null\""):
                    state.apply(epoch, decoded)
                assert bits(state.delta(0, epoch - 1)) == before
                failed += 1
                break
            state.apply(epoch, decoded)
            applied += 1
    assert failed > 10
    assert applied > 30
