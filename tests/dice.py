"""A search that finds the same things whatever else changes: a state machine's rules, drawn by a seed.

Hypothesis looks for what nobody thought of, and makes it small. But its examples are others as soon as any source file
is: it collects the numbers that stand in them. So a bug that is *known*, planted to see that it would be noticed, is
looked for here: by the same rules, in histories that only a seed and the rules themselves decide. A history that has
shown a bug shows it again, on any machine and in any process.
"""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis.stateful import RuleBasedStateMachine

Player = type[RuleBasedStateMachine]
HISTORIES = 1000
"""Fifty times as many as the rarest of the planted bugs needs (the median of different seeds is 17)."""


def find(machine: Player, noticed: str, histories: int = HISTORIES) -> int:
    """The first history in which a bug is noticed by those words; it may be noticed otherwise before."""
    otherwise: dict[str, int] = {}
    for seed in range(1, histories + 1):
        try:
            play(machine, seed)
        except (AssertionError, KeyError) as error:
            said = repr(error)
            if re.search(noticed, said):
                return seed
            otherwise[said] = seed
    pytest.fail(f"Nobody noticed, in {histories} histories. What was said instead, and in which: {otherwise}")


def play(machine: Player, seed: int, steps: int = 40) -> None:
    """One history. As in a search by Hypothesis some rules do not apply in it, so that others come more often."""
    chance = random.Random(seed)
    state, parts = machine(), machine.setup_state()
    rules = sorted(parts.rules, key=lambda rule: rule.function.__name__)
    mostly = chance.random()
    left_out = {rule.function.__name__ for rule in rules if chance.random() > mostly}
    for rule in parts.initializers:
        apply(state, rule, chance)
    check(state, parts)
    for _ in range(steps):
        possible = [rule for rule in rules if all(true(state) for true in rule.preconditions)]
        preferred = [rule for rule in possible if rule.function.__name__ not in left_out]
        apply(state, chance.choice(preferred or possible), chance)
        check(state, parts)
    state.teardown()


def apply(state: RuleBasedStateMachine, rule: Any, chance: random.Random) -> None:
    rule.function(state, **{name: drawn(chance, rule.arguments[name]) for name in sorted(rule.arguments)})


def check(state: RuleBasedStateMachine, parts: Any) -> None:
    for one in parts.invariants:
        if all(true(state) for true in one.preconditions):
            one.function(state)


def drawn(chance: random.Random, strategy: Any) -> Any:
    """Of the strategies that our rules have."""
    plain = strategy.wrapped_strategy if hasattr(strategy, "wrapped_strategy") else strategy
    match type(plain).__name__:
        case "IntegersStrategy":
            return chance.randint(plain.start, plain.end)
        case "SampledFromStrategy":
            return chance.choice(plain.elements)
        case "BooleansStrategy":
            return chance.random() < 0.5
    raise TypeError(f"No value is drawn from {strategy!r} here.")
