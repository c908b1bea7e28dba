"""The scenario "recovering": slices saved in pieces, owners lost, and holders that die while others gather.

Saving is interrupted at any point, so that there are whole versions, half ones, and ones of which a piece or two are
missing. Then owners die, each of their slices is gathered by one of several replacing nodes with a policy drawn by lot,
and more containers die or fall silent meanwhile. Asserted: every gathering ends; what is done is exactly one whole
version, each piece kept once and never asked for again; and if every piece of the newest whole version keeps a holder
throughout, that version is what comes back.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from holdfast.recovery.gathering import Gathering
from holdfast.recovery.policies import Auto, FromStore, Line, Star, Structure, Tree
from holdfast.safety.shards import Cut, Held, PieceName, Version, choose
from simulator.recovering_world import Gatherer, RecoveringWorld
from simulator.scenario import broken

MOST = 600.0
"""Virtual seconds in which every recovery must have ended."""


class Recovering:
    """``make`` is for planting bugs: it makes the machines."""

    def __init__(self, seed: int, trace: bool = False, make: Callable[..., Gathering] = Gathering) -> None:
        size = random.Random(seed)
        nodes = size.randrange(4, 34)
        self.ring = RecoveringWorld(
            seed, nodes, hosts=size.randrange(1, nodes), leaves=2 * size.randrange(4, 13), trace=trace, make=make
        )
        self.world = self.ring.world
        chance = self.chance = self.world.random
        self.cut = Cut(chance.randrange(1, 7), chance.randrange(1, 4), chance.randrange(1, 4))
        self.owners = chance.sample(sorted(self.ring.hosts), min(nodes - 3, chance.randrange(1, 4)))
        self.slices = {number: chance.choice(self.owners) for number in range(chance.randrange(1, 7))}
        self.policy = self.drawn_policy()
        self.places: dict[int, dict[PieceName, tuple[str, ...]]] = {}
        self.deaths: set[str] = set()
        """Of containers other than the owners, since the last saving."""

    def drawn_policy(self) -> Structure | Auto:
        number = self.chance.randrange(1, 5)
        depth = self.chance.randrange(1, 4)
        drawn: list[Structure | Auto] = [Star(number), Line(number), Tree(1 + number % 2, depth)]
        return self.chance.choice([*drawn, Auto(), Auto("figure 7")])

    def run(self) -> str:
        for number in self.slices:
            self.save(number)
        newest = {number: self.newest(number) for number in self.slices}
        for owner in self.owners:
            self.ring.kill(owner)
        gatherers = self.begin()
        self.storm(gatherers)
        self.world.run_for(MOST)
        self.check(gatherers, newest)
        done = sum(isinstance(fate, Version) for one in gatherers for fate in one.fates.values())
        return (
            f"{len(self.ring.hosts)} nodes, {self.cut}, {self.policy}: {len(self.slices)} slices, {done} came back, "
            f"{sum(one.pulled for one in gatherers)} pulls, {len(self.deaths)} holders lost"
        )

    # ------------------------------------------------------------------------------------------------ what happens

    def save(self, number: int) -> None:
        """Some versions, each whole or broken off; what changed place between them is kept at the old one."""
        kept: dict[PieceName, tuple[str, ...]] = {}
        for epoch in range(1, self.chance.randrange(2, 5)):
            where = self.ring.placed("job", number, self.slices[number], self.cut, kept)
            sent = self.chance.choice([1.0, 1.0, 0.9, 0.5])
            there = {
                piece: tuple(name for name in names if self.chance.random() < sent) for piece, names in where.items()
            }
            self.ring.put(there, Version(epoch), self.chance.randrange(len(where), 20 << 20))
            self.places[number] = kept = where

    def begin(self) -> list[Gatherer]:
        live = sorted(self.ring.held)
        replacing = self.chance.sample(live, min(len(live), self.chance.randrange(1, 4)))
        dealt: dict[str, list[int]] = {name: [] for name in replacing}
        for number in self.slices:
            dealt[self.chance.choice(replacing)].append(number)
        return [
            self.ring.recover(here, numbers, self.cut, self.policy, replacing=replacing)
            for here, numbers in dealt.items()
            if numbers
        ]

    def storm(self, gatherers: list[Gatherer]) -> None:
        """Some die, some fall silent, at moments when something is under way."""
        spared = {one.here for one in gatherers}
        for _ in range(self.chance.choice([0, 0, 1, 1, 2, 3, 6])):
            self.world.run_for(self.chance.choice([0.0004, 0.003, 0.02, 0.1, 1.0]) * self.chance.random())
            others = [name for name in self.ring.held if name not in spared]
            if len(others) > 1:
                name = self.chance.choice(others)
                if self.chance.random() < 0.1:
                    self.ring.mute.add(name)
                else:
                    self.ring.kill(name)
                self.deaths.add(name)

    # --------------------------------------------------------------------------------------------------- promises

    def newest(self, number: int, without: frozenset[str] = frozenset()) -> Version | None:
        inventory = {
            name: [Held(piece, version, size) for (piece, version), size in held.items()]
            for name, held in self.ring.held.items()
            if name not in without and name not in self.owners
        }
        return choose(self.cut.pieces(number), inventory)

    def check(self, gatherers: list[Gatherer], newest: dict[int, Version | None]) -> None:
        for one in gatherers:
            if one.wrong:
                self.fail(one.wrong[0])
            if one.ended is None:
                self.fail(f"{one.here} still gathers after {MOST:.0f} s: {one.fates} so far.")
            if one.machine.structure == FromStore():
                continue  # so Figure 7 has it, however much is there
            for number, fate in one.fates.items():
                self.check_fate(number, fate, newest[number])

    def check_fate(self, number: int, fate: Version | str, newest: Version | None) -> None:
        if newest is None:
            if isinstance(fate, Version):
                self.fail(f"Slice {number} came back as {fate}, of which there never was a whole one.")
            return
        if isinstance(fate, Version) and fate > newest:
            self.fail(f"Slice {number} came back as {fate}, but {newest} was the newest whole one.")
        survivor = self.newest(number, frozenset(self.deaths))
        if survivor == newest and fate != newest:
            self.fail(f"Slice {number} ended as {fate}, but every piece of {newest} was there all the time.")
        if survivor is not None and not isinstance(fate, Version):
            self.fail(f"Slice {number} was given up ({fate}), but every piece of {survivor} was there all the time.")

    def fail(self, what: str) -> None:
        broken("recovering", self.world, what)
