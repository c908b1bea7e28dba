"""Small differences on a noisy machine: interleaved pairs, the median of their ratios, and how far those scatter.

The contestants take turns within a round, in the opposite order every other round, and each is compared only with
the base of its own round. What makes the machine slower for a minute then makes both sides of a pair slower.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pairs:
    """Rates of a contestant and of the base, round by round."""

    base: tuple[float, ...]
    rates: tuple[float, ...]

    @property
    def costs(self) -> list[float]:
        """The part of the base's rate that is lost, in each round."""
        return [1 - rate / base for base, rate in zip(self.base, self.rates, strict=True)]

    @property
    def cost(self) -> float:
        return statistics.median(self.costs)

    @property
    def spread(self) -> str:
        """The middle half of the rounds, and all of them."""
        costs = self.costs
        if len(costs) < 4:
            return f"{min(costs):+.1%} … {max(costs):+.1%}"
        lower, _, upper = statistics.quantiles(costs, n=4)
        return f"{lower:+.1%} … {upper:+.1%} (all {min(costs):+.1%} … {max(costs):+.1%})"


def pairs(measure: Callable[[str], float], base: str, others: Sequence[str], rounds: int) -> dict[str, Pairs]:
    """Measures everybody's rate ``rounds`` times, interleaved; what each costs against ``base``."""
    rates: dict[str, list[float]] = {name: [] for name in (base, *others)}
    for number in range(rounds):
        turn = list(rates)
        for name in turn if number % 2 == 0 else reversed(turn):
            rates[name].append(measure(name))
    return {name: Pairs(tuple(rates[base]), tuple(rates[name])) for name in others}
