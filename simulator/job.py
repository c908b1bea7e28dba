"""The scenario "job": a whole job under faults, with the master that ships.

Containers die, stall and come back as zombies, are cut off from the driver or from each other, run slowly; drivers die,
are stopped and go on after a successor has begun; the disk fills, errs and corrupts packs; connections break; functions
raise. Meanwhile people scale, move slices and want checkpoints, and Spark offers batch after batch. Asserted all the
while: what a slice is, what a sink gets and what a reader sees equals the oracle; every batch is committed once and in
order; one owner applies; nobody is asked for what it cannot have. Then the faults stop, and within ``MOST`` virtual
seconds epochs are committed, every lost slice is back, every wish is done and every copy that shall be is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from holdfast.master.events import CheckpointWanted, Event, LoadsSeen, MoveWanted, ScaleWanted
from holdfast.recovery.policies import Auto, Line, Star, Structure, Tree
from holdfast.safety.intervals import Interval
from holdfast.safety.policies import Terms
from holdfast.safety.shards import Cut
from simulator.job_container import ContainerHost
from simulator.job_driver import Driver
from simulator.job_store import DiskStore
from simulator.job_world import Costs, JobWorld
from simulator.links import Speed
from simulator.scenario import Broken, broken
from simulator.world import World

MOST = 300.0
"""Virtual seconds after the faults within which everything must be as it shall be."""
EPOCHS = 3
"""So many more must be committed by then."""


class Job:
    """``planted`` goes to the world: what makes masters, containers and their hosts, for planting bugs."""

    scenario = "job"

    def __init__(self, seed: int, trace: bool = False, **planted: Any) -> None:
        self.world = World(seed, trace)
        self.chance = self.world.random
        self.play(self.drawn_store(), **planted)

    def drawn_store(self) -> DiskStore:
        chance = self.chance
        sinks = ("a", "b")[: chance.randrange(3)]
        return DiskStore(chance.choice([1, 1, 2, 3]), chance.choice([1, 3, 8, 16]), sinks)

    def play(self, store: DiskStore, **planted: Any) -> None:
        chance = self.chance
        self.name, safety, recovery = self.drawn_safety()
        store.source_sinks = ("c", "d")[: chance.choice([0, 0, 1, 2])]
        store.prefetch = 0 if safety.blocking else chance.randrange(2)
        self.job = JobWorld(
            self.world,
            store,
            safety,
            **recovery,
            containers=chance.randrange(1, 6),
            machines=chance.randrange(1, 5),
            costs=Costs(slice=chance.choice([1e5, 2e6, 1e7]), trigger=chance.choice([0.05, 0.5, 2.0])),
            speed=chance.choice([Speed(125e6, 125e6), Speed(12.5e6, 125e6)]),
            **planted,
        )
        self.wishes = 0

    def drawn_safety(self) -> tuple[str, Terms, dict[str, Any]]:
        """One that a job can be started with, and a way back that goes with it."""
        chance = self.chance
        every = chance.choice([Interval(epochs=1), Interval(epochs=3), Interval(seconds=3.0)])
        store_every = chance.choice([Interval(epochs=2), Interval(epochs=7), Interval(seconds=5.0)])
        kind = chance.choice(["chained", "chained", "store", "sync", "none", "ring", "ring"])
        if kind == "ring":
            structures: list[Structure | Auto] = [Star(2), Line(3), Tree(1, 2), Auto(), Auto("figure 7")]
            structure = chance.choice(structures)
            shards = Cut(chance.randrange(1, 5), chance.randrange(1, 4), structure.parts)
            terms = Terms(every=every, store_every=store_every, shards=shards)
            return f"Shards({shards.m}, {shards.n}), {structure}", terms, {"by_ring": structure}
        if kind == "sync":
            return "Sync", Terms(store_every=store_every, blocking=True), {}
        if kind == "none":
            return "no safety", Terms(), {}
        backups = chance.randrange(1, 4)
        terms = Terms(backups, every, store_every)
        return f"Delta({backups}), {kind}", terms, {"from_copies": kind == "chained"}

    def run(self) -> str:
        try:
            self.job.start_driver()
            self.world.run_for(self.chance.choice([0.5, 3.0]))
            mishaps = self.drawn_mishaps()
            for _ in range(self.chance.randrange(10, 60)):
                self.chance.choice(mishaps)()
                self.world.run_for(self.chance.choice([0.01, 0.1, 1.0, 4.0]) * self.chance.random())
                self.somebody_reads()
                self.someone_starts_it_again()
            took = self.settle()
            self.job.check()
        except Broken:
            raise
        except AssertionError as failure:
            self.fail(str(failure))
        store = self.job.store
        return (
            f"{self.name}, {store.slices} slices, {store.levels} levels: {store.committed} epochs, "
            f"{store.owner} drivers, {self.job.started} containers, {self.wishes} wishes, {self.job.reads} reads, "
            f"calm after {took:.1f} s"
        )

    # ------------------------------------------------------------------------------------------------ what happens

    def drawn_mishaps(self) -> list[Callable[[], None]]:
        """Some kinds only: a run in which everything goes wrong gets nowhere, and so sees little."""
        containers = [self.kill, self.stall, self.slow, self.part, self.weather, self.functions, self.births]
        drivers = [self.crash, self.stop, self.second]
        store = [self.fill, self.err, self.corrupt, self.hang]
        kinds = [*containers, *drivers, *store]
        some = self.chance.sample(kinds, self.chance.choice([1, 2, 3, 5, len(kinds)]))
        wishes = [self.scale, self.move, self.heat, self.want]
        return [*some, self.kill, *self.chance.sample(wishes, self.chance.randrange(len(wishes) + 1)) * 2]

    def someone_starts_it_again(self) -> None:
        if not self.job.drivers and not self.job.starting:
            self.job.start_driver()

    def any_container(self) -> ContainerHost | None:
        return self.chance.choice(list(self.job.containers.values())) if self.job.containers else None

    def any_driver(self) -> Driver | None:
        return self.chance.choice(list(self.job.drivers.values())) if self.job.drivers else None

    def kill(self) -> None:
        """One, or two at once."""
        for _ in range(self.chance.choice([1, 1, 2])):
            if host := self.any_container():
                host.end("it is killed")

    def stall(self) -> None:
        """For less than anyone minds, or so long that it counts as lost and comes back."""
        if host := self.any_container():
            host.stand_still(self.chance.choice([0.5, 4.0, 6.0, 15.0]) * self.chance.random())

    def slow(self) -> None:
        if host := self.any_container():
            host.slowness = self.chance.choice([1.0, 5.0, 50.0, 400.0])
            self.world.note(host.name, f"is {host.slowness:g} times slower")

    def part(self) -> None:
        """Some containers, perhaps with a driver, from everybody else; or no cut any more."""
        if self.chance.random() < 0.4:
            self.world.note("all", "the cut heals")
            self.job.network.heal()
            return
        everyone = [*self.job.containers, *self.job.drivers]
        side = self.chance.sample(everyone, self.chance.randrange(len(everyone) + 1))
        self.world.note("all", f"{sorted(side)} are cut off")
        self.job.network.part(side)

    def weather(self) -> None:
        loss, other = self.chance.choice([0.0, 0.0, 0.003, 0.02]), self.chance.choice([0.0, 0.1, 0.5])
        self.job.network.change(loss=loss, doubled=other, late=other)

    def crash(self) -> None:
        if driver := self.any_driver():
            driver.crash("it is killed")

    def stop(self) -> None:
        """SIGSTOP; it goes on later, whatever has happened meanwhile."""
        if driver := self.any_driver():
            driver.stand_still(self.chance.choice([0.5, 3.0, 12.0]) * self.chance.random())

    def second(self) -> None:
        """Somebody starts the job though it runs."""
        if len(self.job.drivers) + self.job.starting < 2:
            self.job.start_driver()

    def fill(self) -> None:
        store = self.job.store
        full = self.chance.random() < 0.5
        self.world.note("store", "is full" if full else "has room")
        store.disk.fill() if full else store.make_room()

    def err(self) -> None:
        self.job.store.flaky = self.chance.choice([0.0, 0.05, 0.3])

    def hang(self) -> None:
        self.job.slow_writes = self.chance.choice([0.0, 0.1, 0.5])

    def corrupt(self) -> None:
        if name := self.job.store.corrupt_pack(self.chance):
            self.world.note("store", f"has corrupted {name}")

    def functions(self) -> None:
        self.job.raising = self.chance.choice([0.0, 0.1, 0.3])

    def births(self) -> None:
        self.job.stillborn = self.chance.choice([0.0, 0.0, 0.3, 0.8])

    # ------------------------------------------------------------------------------------------------ wishes

    def wish(self, event: Event) -> None:
        driver = self.job.newest
        if driver is not None:
            self.wishes += 1
            driver.later(0.0, driver.tell, event)

    def scale(self) -> None:
        self.job.containers_wanted = self.chance.randrange(1, 7)
        self.wish(ScaleWanted(self.job.containers_wanted))

    def move(self) -> None:
        slices = range(self.job.store.slices)
        if host := self.any_container():
            some = frozenset(self.chance.sample(slices, self.chance.randrange(1, len(slices) + 1)))
            self.wish(MoveWanted(some, host.name))

    def heat(self) -> None:
        loads = tuple((slice_, self.chance.choice([0.01, 0.01, 2.0])) for slice_ in range(self.job.store.slices))
        self.wish(LoadsSeen(loads))

    def want(self) -> None:
        self.wish(CheckpointWanted("somebody found a bad segment"))

    def somebody_reads(self) -> None:
        driver = self.job.newest
        if driver is not None and driver.answers:
            self.job.read(driver, self.chance.randrange(self.job.store.slices))

    # ------------------------------------------------------------------------------------------------ calm

    def settle(self) -> float:
        """Faults have stopped: the newest driver gets on. How long it took until all was as it shall be."""
        job = self.job
        job.network.calm()
        job.store.make_room()
        job.store.flaky = job.slow_writes = job.raising = job.stillborn = 0.0
        for host in job.containers.values():
            host.slowness = 1.0
        everyone = [*job.containers.values(), *job.drivers.values()]
        self.world.run(max([self.world.now, *(one.still_until for one in everyone)]))
        self.world.note("all", "the faults are over")
        began, goal = self.world.now, job.store.committed + EPOCHS
        self.wish(ScaleWanted(job.containers_wanted))  # also gives a job whose containers could not start new courage
        while lacking := self.lacking(goal):
            if self.world.now > began + MOST:
                self.fail(f"{MOST:.0f} s after the faults: {lacking}.")
            self.someone_starts_it_again()
            self.world.run_for(0.5)
        return self.world.now - began

    def lacking(self, goal: int) -> str:
        """What is not yet as it shall be."""
        driver = self.job.newest
        if driver is None:
            return "no driver lives"
        if driver.incarnation < self.job.store.owner:
            return f"{driver.name} does not know that the job belongs to d{self.job.store.owner}"
        master = driver.master
        if master.committed < goal:
            return f"{master.committed} of {goal} epochs, {master.phase}"
        undone = [one for one in master.operations if not one.done]
        if undone or not master.settled:
            return f"not settled: {undone}"
        return self.job.lacking(driver)

    def fail(self, what: str) -> NoReturn:
        broken(self.scenario, self.world, what)
