"""Aggregate functions by their names: which accumulator each has, of which types, and why there is none.

Result types are Spark's. Implicit casts are not (Spark sums a string as a double, which hides mistakes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.errors import PlanError
from holdfast.invariants import invariant
from holdfast.operators.aggregates.accumulator import Accumulator, Accumulators, Inputs, Overflow
from holdfast.operators.aggregates.chosen import Distinct, Extreme, Pick
from holdfast.operators.aggregates.count_distinct import CountDistinct
from holdfast.operators.aggregates.exact import ExactMoments, ExactSum
from holdfast.operators.aggregates.numbers import Count, Mean, Moments, Sum
from holdfast.operators.spec import AggregateSpec
from holdfast.state import sketch
from holdfast.state.types import AtomicType, required

_Made = Callable[[AggregateSpec, Overflow, AtomicType], Accumulator]
_NUMERIC: dict[str, _Made] = {"sum": Sum, "mean": Mean, "var": Moments, "stddev": Moments}
_TAKEN_BACK: dict[str, _Made] = {"sum": ExactSum, "mean": ExactSum, "var": ExactMoments, "stddev": ExactMoments}
_CHOSEN: dict[str, _Made] = {
    "min": Extreme,
    "max": Extreme,
    "first": Pick,
    "last": Pick,
}
FUNCTIONS = ("count", *_NUMERIC, *_CHOSEN, "approx_distinct", "count_distinct")
_REFUSED = "nothing was started or written."


@dataclass(frozen=True)
class Terms:
    """What the aggregates of a stage have in common: whether rows are taken back, and what an overflow is."""

    updating: bool = False
    ansi: bool = True
    overflow: str = ""

    @property
    def of_overflow(self) -> Overflow:
        if self.overflow:
            invariant(self.overflow in ("fail", "null"), f"unknown overflow {self.overflow!r}")
            return "fail" if self.overflow == "fail" else "null"
        return "fail" if self.ansi else "wrap"


def accumulator_of(spec: AggregateSpec, terms: Terms) -> Accumulator:
    """The accumulator of one aggregate, or the reason why there is none."""
    what, overflow = f"{spec.function} '{spec.name}'", terms.of_overflow
    if spec.function == "count":
        return Count(spec, overflow)
    if spec.function not in FUNCTIONS:
        known = ", ".join(FUNCTIONS)
        raise PlanError(f"{what}: there is no such aggregate.", safe=_REFUSED, todo=f"use one of {known}.")
    if spec.input is None or spec.input_type is None:
        raise PlanError(f"{what} needs a column.", safe=_REFUSED, todo="name the column to aggregate.")
    kind = required(spec.input_type, f"the column of {what}")
    if spec.function in _NUMERIC and not kind.is_numeric:
        raise PlanError(
            f"{what} cannot take type {kind.name}: it is not a number.",
            safe=_REFUSED,
            todo="cast the column to a number first: cast(x as double).",
        )
    if spec.function == "count_distinct":
        return CountDistinct(spec, overflow, kind)
    if terms.updating and spec.function not in _NUMERIC:
        raise PlanError(
            f"{what} is over an updating input: a value taken back cannot be taken out of a {spec.function}.",
            safe=_REFUSED,
            todo="use count, count_distinct, sum, mean, var or stddev, or make the input final by an append window.",
        )
    if spec.function == "approx_distinct":
        return Distinct(spec, overflow, _sketch_precision(spec))
    if spec.function in _CHOSEN:
        return _CHOSEN[spec.function](spec, overflow, kind)
    # Sums of integers and of decimals lose nothing anyway, and nor does the mean of decimals.
    lossy = kind.kind == "float" or spec.function in ("var", "stddev") or (spec.function, kind.kind) == ("mean", "int")
    return (_TAKEN_BACK if terms.updating and lossy else _NUMERIC)[spec.function](spec, overflow, kind)


def accumulators(members: Sequence[Accumulator], inputs: Inputs, first: int) -> Accumulators:
    """They side by side, in columns from ``first`` on; ``inputs`` gets what they read."""
    numbers = [[inputs.number(one) for one in member.inputs] for member in members]
    partials = []
    for at, member in enumerate(members):
        named = [(f"p{at}_{part}", kind) for part, kind in enumerate(member.partials or ())]
        partials.append([inputs.number((name, kind, kind.kind), partial=True) for name, kind in named])
    return Accumulators(members, numbers, partials, first)


def _sketch_precision(spec: AggregateSpec) -> int:
    rsd = float(spec.option("rsd", 0.05))
    bits = sketch.precision(rsd) if rsd > 0 else sketch.MOST_PRECISION + 1
    if not sketch.LEAST_PRECISION <= bits <= sketch.MOST_PRECISION:
        raise PlanError(
            f"approx_distinct '{spec.name}' asks for a relative deviation of {rsd}.",
            safe=_REFUSED,
            todo="ask for one between 0.005 and 0.39; 0.05 is the default and takes 512 bytes a key.",
        )
    return bits
