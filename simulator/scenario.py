"""A scenario: one seed, one run, invariants. Others are added by a class and a line in ``SCENARIOS``.

``Scenario(seed).run()`` returns what there is to tell, or raises ``Broken``, whose text names the seed. The same seed
gives the same run, to the last line of the trace.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NoReturn, Protocol

from simulator.world import World


class Broken(AssertionError):
    """An invariant does not hold. Its text says which, where, and how to see it again."""


class Scenario(Protocol):
    """What ``python -m simulator`` runs."""

    world: World

    def __init__(self, seed: int, trace: bool = False) -> None: ...

    def run(self) -> str:
        """Raises if an invariant breaks; else one line about what happened."""


SCENARIOS = {
    "changes": "simulator.changing:ChangingJob",
    "eventual": "simulator.eventual:EventualJob",
    "job": "simulator.job:Job",
    "recovering": "simulator.recovering:Recovering",
    "ring": "simulator.ring:Ring",
}
"""Name → module and class. By text, so that no scenario is imported for another one's sake."""
IN_TURN = ("job", "recovering", "ring")
"""Those that take their turns where none is named: quick ones, with models of what ships."""


SHIPPED = "simulator.shipped:ShippedJob"
"""The scenario "job" once more, with the containers and the ledger that ship: it sees what no model can."""


def scenario(name: str) -> type[Scenario]:
    found: type[Scenario] = loaded(SCENARIOS[name])
    return found


def loaded(place: str) -> Any:
    """What ``module:name`` says."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def broken(name: str, world: World, what: str) -> NoReturn:
    raise Broken(
        f"{what}\n  seed {world.seed}, {world.now:.3f} virtual seconds in. "
        f"To see it: ./dev sim --scenario {name} --seed {world.seed} --trace"
    )
