"""The world of one job: drivers, containers on machines, a store, links between all of them; and who watches them.

Several drivers may live at once: only the newest owns the job, but an older one may not know it yet. Every container
belongs to the driver that started it. A port that a dead container leaves may be given to the next one on its machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.invariants import Impossible, invariant, some
from holdfast.master.events import Applied, Routing
from holdfast.master.feed import Feed
from holdfast.master.instructions import Apply
from holdfast.master.machine import Master
from holdfast.master.pump import Pump
from holdfast.recovery.policies import Auto, Structure
from holdfast.safety.policies import Terms
from simulator.job_container import STORE, ContainerHost
from simulator.job_driver import Driver
from simulator.job_model import Container
from simulator.job_ring import JobRing
from simulator.job_store import DiskStore
from simulator.links import Links, Speed
from simulator.network import Network, Weather
from simulator.world import World

FAST = Speed(125e6, 125e6)


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes."""

    apply: float = 0.03
    intake: float = 0.1
    replay: float = 0.002
    """One slice, one epoch."""
    slice: float = 5e6
    """Bytes of a slice's state."""
    trigger: float = 0.5
    """At most that long between two batches."""


class JobWorld:
    """``make_…`` and ``looking`` are for planting bugs."""

    def __init__(
        self,
        world: World,
        store: DiskStore,
        safety: Terms,
        *,
        from_copies: bool = True,
        by_ring: Structure | Auto | None = None,
        containers: int = 3,
        machines: int = 3,
        costs: Costs | None = None,
        speed: Speed = FAST,
        make_master: Callable[[], Master] = Master,
        make_feed: Callable[[], Feed] = Feed,
        make_pump: Callable[[], Pump] = Pump,
        make_container: Callable[..., Container] = Container,
        make_host: Callable[..., ContainerHost] = ContainerHost,
        looking: bool = True,
    ) -> None:
        self.world = world
        self.store = store
        self.safety = safety
        self.from_copies, self.by_ring = from_copies, by_ring is not None
        self._structure = by_ring
        self.containers_wanted = containers
        self.costs = costs or Costs()
        self.network = Network(world, Weather(timeout=3.0))
        self.links = Links(world, speed)
        self.links.speeds[STORE] = Speed(4 * speed.up, 4 * speed.down)
        self.drivers: dict[str, Driver] = {}
        """Those that live."""
        self.containers: dict[str, ContainerHost] = {}
        """Those that live, whoever believes it."""
        self.routing: Routing | None = None
        self.stillborn = 0.0
        """The share of containers that cannot start."""
        self.raising = 0.0
        """The share of applies in which a function raises."""
        self.slow_writes = 0.0
        """The share of writes to the store that take seconds."""
        self.starting = 0
        self.reads = 0
        self.make_master, self.make_feed, self.make_pump = make_master, make_feed, make_pump
        self.looking = looking
        """Drivers look at ``owner/`` before they act."""
        self._make_container, self._make_host = make_container, make_host
        self._machines = [f"h{number}" for number in range(machines)]
        self._free_ports: dict[str, str] = {}
        """Machine → the last dead container that listened there."""
        self._names = 0
        self._numbers = 0
        self._checked = 0
        self._appliers: dict[tuple[int, int], str] = {}
        """Slice and position → the container that brought it there as its owner."""

    @property
    def started(self) -> int:
        """Containers so far."""
        return self._names

    @property
    def newest(self) -> Driver | None:
        return max(self.drivers.values(), key=lambda driver: driver.incarnation, default=None)

    # ---------------------------------------------------------------------------------------- coming and going

    def start_driver(self) -> None:
        """Takes ``owner/<n>``, and reads the rest a moment later: an older one may still write in between."""
        self.store.owner += 1
        self.starting += 1
        incarnation = self.store.owner
        self.world.note(f"d{incarnation}", "starts")
        self.world.at(0.2 * self.world.random.random(), self._begin, incarnation)

    def _begin(self, incarnation: int) -> None:
        self.starting -= 1
        driver = Driver(self, incarnation)
        self.drivers[driver.name] = self.network.hosts[driver.name] = driver
        driver.begin()

    def driver_ended(self, driver: Driver) -> None:
        del self.drivers[driver.name], self.network.hosts[driver.name]

    def start_container(self, driver: Driver) -> ContainerHost:
        name = self.next_name()
        machine = self.world.random.choice(self._machines)
        self.store.hosting = driver.incarnation
        model = self._make_container(name, self.store)
        host = self._make_host(self, model, machine, driver.incarnation, driver.ring)
        self.containers[name] = self.network.hosts[name] = host
        self.world.note(name, f"starts on {machine} for {driver.name}")
        if driver.ring:
            driver.ring.join(host)
        before = self._free_ports.pop(machine, None)
        if before is not None:
            self.world.note(name, f"listens where {before} did")
            self.network.hosts[before] = host
        return host

    def ended(self, host: ContainerHost) -> None:
        for name in [name for name, there in self.network.hosts.items() if there is host]:
            del self.network.hosts[name]
        del self.containers[host.name]
        self.links.die(host.name)
        if host.ring:
            host.ring.die(host.name)
        self._free_ports[host.machine] = host.name
        driver = self.drivers.get(host.driver)
        if driver is not None and self.network.connected(host.name, host.driver):
            driver.later(0.01 + 0.3 * self.world.random.random(), driver.exited, host.name, "its process ended")

    def make_ring(self) -> JobRing | None:
        if self._structure is None or self.safety.shards is None:
            return None
        return JobRing(self, self.safety.shards, self._structure)

    def next_name(self) -> str:
        self._names += 1
        return f"c{self._names}"

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # ---------------------------------------------------------------------------------------------- the store

    def write_seconds(self) -> float:
        chance = self.world.random
        return 3.0 * chance.random() if chance.random() < self.slow_writes else 0.002 + 0.006 * chance.random()

    def store_routing(self, routing: Routing) -> None:
        if self.routing is None or self.routing.version < routing.version:
            self.routing = routing

    # ------------------------------------------------------------------------------------------------ watching

    def applies(self, host: ContainerHost, told: Apply) -> Applied:
        """An epoch's level is applied by one owner only, unless that one is lost and another takes over."""
        answer = host.model.perform(told)
        if not isinstance(answer, Applied):
            raise Impossible(f"{answer!r} is no Applied")
        position = (told.fence.epoch - 1) * self.store.levels + told.level
        driver = self.drivers.get(host.driver)
        for slice_ in sorted(told.slices):
            self.store.check_state(slice_, position, host.model.held[slice_][position], host.name)
            if driver is self.newest and driver is not None and driver.master.owner(slice_) == host.name:
                before = self._appliers.setdefault((slice_, position), host.name)
                still = before in driver.fleet and before != host.name
                invariant(not still, f"{before} and {host.name} both applied {position} to slice {slice_} as owners")
                self._appliers[slice_, position] = host.name
        return answer

    def watch(self, driver: Driver) -> None:
        """After everything a master does."""
        store = self.store
        invariant(driver.master.committed <= store.committed, f"{driver.name} believes in a commit that is not there")
        if store.committed > self._checked:
            store.check(self._checked)
            self._checked = store.committed
            self._appliers.clear()

    def read(self, driver: Driver, slice_: int) -> None:
        """A reader at the committed epoch, where the routing table says."""
        master, owner = driver.master, str(driver.master.owner(slice_))
        host = self.containers.get(owner)
        if master.whole and host is not None and host.answers:
            state = host.model.state(slice_, master.committed)
            state = some(state, f"{owner} cannot read slice {slice_} at {master.committed}")
            self.store.check_state(slice_, master.committed * self.store.levels, state, f"a read on {owner}")
            self.reads += 1

    def lacking(self, driver: Driver) -> str:
        """What is not yet as it must be once nothing goes wrong any more: one active copy a slice, all the backups."""
        live = {name: host.model for name, host in self.containers.items() if name in driver.fleet}
        if len(live) != self.containers_wanted:
            return f"{len(live)} containers, not {self.containers_wanted}"
        wanted = min(self.safety.backups, len(live) - 1)
        for slice_ in range(self.store.slices):
            owner = driver.master.owner(slice_)
            active = [name for name, model in live.items() if slice_ in model.held]
            if active != [owner]:
                return f"slice {slice_} is active on {active}, and {owner} owns it"
            copies = [name for name, model in live.items() if slice_ in model.copies and name != owner]
            if len(copies) < wanted:
                return f"slice {slice_} has copies on {copies}: {wanted} are due"
            self.read(driver, slice_)
        return driver.ring.lacking(range(self.store.slices)) if driver.ring else ""

    def check(self) -> None:
        """What holds at any time, looked at all at once."""
        self.store.check()
        for epoch in self.store.manifests:
            self.store.check_checkpoint(epoch)
        for host in self.containers.values():
            host.model.check()
