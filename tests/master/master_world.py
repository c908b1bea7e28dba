"""A small world for masters: a store with put-if-absent, containers, Spark, and several drivers at once.

Everything a master asks for becomes a job; everything that comes of it becomes an event. Somebody else
decides which job goes on and which event is delivered next, so delays, reordering and doubling are just
choices. The world watches: states and sink rows are compared with an oracle that folds the stored prepares.

Store and containers are the simulator's (``simulator.job_model``). Time, networks and disks are its business; here
any order of anything is as likely as any other. An intake's rows carry its fence, as those of a plan that is not
deterministic would.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from master_kit import success

from holdfast.errors import HoldfastError, StoreError
from holdfast.log.blocks import unreadable
from holdfast.log.records import FEED, Batch
from holdfast.master.events import (
    Clock,
    ContainerJoined,
    ContainerLost,
    CopiesSent,
    EpochUnwanted,
    Event,
    Failed,
    GoOn,
    IntakeDone,
    MoveWanted,
    OwnerSeen,
    ReadySeen,
    ScaleWanted,
    SinkDone,
    Started,
)
from holdfast.master.fed import Fed
from holdfast.master.feed import (
    BatchOffered,
    BeginBatch,
    FailBatch,
    Feed,
    FindBlock,
    FinishBatch,
    OfferUnwanted,
    RefuseBatch,
    RunSourceSink,
    StoreBlock,
    TakeIn,
)
from holdfast.master.instructions import (
    Apply,
    CutLog,
    EndContainer,
    Gather,
    Instruction,
    NeedContainers,
    Restore,
    RunIntake,
    RunSink,
    SaveShards,
    SendCopies,
    Stop,
    StoreCommit,
    StoreManifest,
    StorePrepare,
    TellPeople,
    ToContainer,
    VerifyPacks,
)
from holdfast.master.machine import Master
from holdfast.master.pump import DecideFailed, EndEpochs, EpochsOver, Pump, PumpLet, TickWanted
from holdfast.safety.intervals import Interval
from holdfast.safety.policies import Terms
from holdfast.safety.shards import Cut
from simulator import job_model
from simulator.job_model import Store, spark_batch

FAULT = StoreError("a fault of this test")


@dataclass
class Container(job_model.Container):
    alive: bool = True


@dataclass(eq=False)
class Job:
    """An instruction being performed, perhaps in several steps. One is not another, though both be of equal words."""

    instruction: Instruction
    looked: bool = False
    scanned: list[int] = field(default_factory=list)


@dataclass
class Driver:
    fed: Fed
    incarnation: int
    layout: str = ""
    containers: dict[str, Container] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    wanted: int = 0
    next_batch: int = 0
    """Where Spark is: a query reads its checkpoint when it starts and then counts on by itself."""
    offered: Batch | None = None
    stopped: bool = False
    around: dict[int, tuple[object, ...]] = field(default_factory=dict)
    """Epoch → what its commit shall have for the next one."""

    @property
    def master(self) -> Master:
        return self.fed.master


class World:
    def __init__(
        self,
        master: Callable[[], Master] = Master,
        *,
        levels: int = 1,
        sinks: int = 1,
        slices: int = 3,
        checkpoint_every: int = 2,
        backups: int = 0,
        ring: bool = False,
        source_sinks: int = 0,
        prefetch: int = 0,
        loops: bool = False,
        settle: bool = False,
        feed: Callable[[], Feed] = Feed,
        pump: Callable[[], Pump] = Pump,
        store: type[Store] = Store,
        unreadable: Callable[[Mapping[int, str], str], list[int]] = unreadable,
    ) -> None:
        self.levels, self.slices = levels, slices
        self.ring = ring
        shards = Cut(2, 2) if ring else None
        self.safety = Terms(backups, Interval(epochs=2), Interval(epochs=checkpoint_every), shards=shards)
        self.now = 0.0
        self.layout = "first"
        """Of the job as it is drawn now: whoever starts takes blocks in for that."""
        self.layouts: dict[int, str] = {}
        self.unreadable = unreadable
        self.store = store(levels, slices, tuple(f"sink {number}" for number in range(sinks)))
        self.store.source_sinks = tuple(f"source sink {number}" for number in range(source_sinks))
        self.store.prefetch = prefetch
        self.store.loops, self.settles = loops, settle
        self.new_master, self.new_feed, self.new_pump = master, feed, pump
        self.drivers: list[Driver] = []
        self.names = 0

    @property
    def newest(self) -> Driver:
        return self.drivers[-1]

    # ---------------------------------------------------------------------------------------- things to do

    def start_driver(self, forgotten: int = 0) -> None:
        """Spark syncs none of its files: it may have ``forgotten`` its last batches."""
        store = self.store
        unread = {number: self.layouts[number] for number in store.blocks if number > store.position}
        if self.unreadable(unread, self.layout):
            self.layout = next(iter(unread.values()))  # somebody starts it as it was, until they are read
        store.owner += 1
        fed = Fed(self.new_master(), self.new_feed(), self.new_pump())
        driver = Driver(fed, store.owner, layout=self.layout, next_batch=max(store.spark_committed + 1 - forgotten, 0))
        self.drivers.append(driver)
        self.tell(driver, store.feed_started(store.owner))
        started = Started(
            incarnation=store.owner,
            levels=self.levels,
            sinks=store.sinks,
            slices=self.slices,
            containers=2,
            safety=self.safety,
            by_ring=self.ring,
            committed=store.committed,
            ranges=store.ranges,
            prepared=store.prepared(),
            sinks_done=store.noted(),
            checkpoint=max(store.manifests, default=0),
            checkpoint_before=sorted([0, 0, *store.manifests])[-2],
            sinks_at_once=2,
            sinks_after={"sink 1": "sink 0"} if len(store.sinks) == 3 else {},
            waiting=store.rounds(),
            settle=self.settles,
        )
        self.tell(driver, started)
        self.tell(driver, PumpLet())

    def crash(self, driver: Driver) -> None:
        self.drivers.remove(driver)

    def join(self, driver: Driver) -> None:
        if driver.wanted:
            driver.wanted -= 1
            self.names += 1
            name = f"c{self.names}"
            driver.containers[name] = Container(name, self.store)
            driver.events.append(ContainerJoined(name))

    def lose(self, driver: Driver, container: Container, *, really: bool) -> None:
        """A container dies, or is only believed to: then it goes on with what it was asked for."""
        container.alive = not really
        driver.events.append(ContainerLost(container.name))

    def offer(self, driver: Driver) -> None:
        """Spark's next batch."""
        if driver.offered is None and not driver.stopped:
            driver.offered = spark_batch(driver.next_batch)
            driver.events.append(BatchOffered(driver.offered))

    def deliver(self, driver: Driver, event: Event, *, again: bool = False) -> None:
        if not again:
            driver.events.remove(event)
        self.tell(driver, event)

    def tell(self, driver: Driver, event: Event) -> None:
        for instruction in driver.fed.handle(event):
            self.obey(driver, instruction)

    def obey(self, driver: Driver, instruction: Instruction) -> None:
        store = self.store
        match instruction:
            case NeedContainers(count):
                driver.wanted += count
            case EndContainer(container):
                assert container not in driver.master.routing.table, "an owner was ended"
                driver.containers[container].alive = False
            case TellPeople(text=text):
                assert "put out" not in text, f"dual mode saw unlike outputs: {text}"
            case FinishBatch(batch):
                store.check_finished(instruction)
                if driver.offered == batch:
                    driver.offered = None
                    driver.next_batch = batch.batch_id + 1
            case FailBatch(batch):
                if driver.offered == batch:
                    driver.offered = None
            case RefuseBatch():
                raise AssertionError(f"refused: {instruction.error()}")
            case DecideFailed(error):
                driver.events.append(EpochsOver(error))
            case EndEpochs():
                driver.events.append(GoOn())  # a person starts the job again, so to say
            case Stop(successor=successor):
                assert store.owner >= successor > driver.incarnation
                driver.stopped, driver.offered = True, None
            case _:
                driver.jobs.append(Job(instruction))

    # ---------------------------------------------------------------------------------------- performing

    def work(self, driver: Driver, job: Job, *, fault: str = "") -> None:
        """One step of a job. A fault comes ``before`` anything was done, or ``after`` all of it."""
        instruction = job.instruction
        if instruction.looks and not job.looked:
            if self.store.owner > driver.incarnation:
                driver.jobs.remove(job)
                driver.events.append(OwnerSeen(self.store.owner))
            job.looked = True
            return
        if isinstance(instruction, ToContainer) or (isinstance(instruction, VerifyPacks) and instruction.by):
            name = instruction.container if isinstance(instruction, ToContainer) else instruction.by
            if not driver.containers[str(name)].alive:
                driver.jobs.remove(job)
                return
        if fault == "before" and instruction.answered:
            driver.jobs.remove(job)
            driver.events.append(Failed(instruction.id, FAULT))
            return
        answer = self.perform(driver, job)
        if answer is None:
            return
        driver.jobs.remove(job)
        if instruction.answered:
            driver.events.append(Failed(instruction.id, FAULT) if fault == "after" else answer)

    def perform(self, driver: Driver, job: Job) -> Event | None:
        """The job's answer; None if it has to wait, or has more to do."""
        store, instruction, to = self.store, job.instruction, job.instruction.id
        match instruction:
            case TakeIn(fence=fence, batch=batch):
                return IntakeDone(to, ((batch.offsets, fence),))
            case BeginBatch():
                return store.begin(instruction)
            case RunSourceSink():
                store.give(instruction)
                return SinkDone(to)
            case StoreBlock():
                self.layouts.setdefault(instruction.fence.epoch, driver.layout)
                return store.put_block(instruction)
            case FindBlock():
                return store.find_block(instruction)
            case RunIntake(level=1, ranges=ranges):
                tags = (*store.waiting.get(instruction.fence.epoch - 1, ()), *store.tags_of(ranges))
                assert not (self.settles and ranges[FEED] and store.waiting.get(instruction.fence.epoch - 1)), (
                    "a block before the loop is dry"
                )
                assert {self.layouts[number] for number in ranges[FEED].numbers} <= {driver.layout}, "another layout"
                return IntakeDone(to, tags)
            case RunIntake(fence=fence, level=level, ranges=ranges):
                if not self.scan(driver, job, fence.epoch, level - 1):
                    return None
                return IntakeDone(to, ((ranges[FEED], tuple(job.scanned), fence),))
            case StorePrepare():
                return store.put_prepare(instruction)
            case RunSink(fence=fence, sink=sink):
                if not self.scan(driver, job, fence.epoch, self.levels):
                    return None
                outputs = tuple(job.scanned)
                if store.loops and sink == store.sinks[0]:  # one that knows nothing of an epoch before has it again
                    driver.around[fence.epoch] = store.around(fence.epoch, outputs)
                    store.put_sink(sink, fence.epoch, outputs)
                else:
                    store.put_sink(sink, fence.epoch, outputs, note=not instruction.last)
            case StoreCommit():
                return store.put_commit(instruction, driver.around.get(instruction.fence.epoch, ()))
            case StoreManifest(epoch=epoch, packs=packs):
                store.put_manifest(epoch, packs)
            case CutLog(epoch=epoch):
                store.cut_log(epoch)
                return OwnerSeen(0)
            case ToContainer():
                return self.in_container(driver, instruction)
        return success(instruction)

    def in_container(self, driver: Driver, instruction: ToContainer) -> Event:
        container = driver.containers[instruction.container]
        try:
            match instruction:
                case Gather():
                    return self.gather(instruction.id, container, instruction.slices)
                case SendCopies(epoch=epoch, to=to):
                    return self.send_copies(driver, instruction.id, container, epoch, to)
                case SaveShards():
                    return success(instruction)
                case _:
                    return container.perform(instruction)
        except HoldfastError as error:
            # What was overtaken by a cut while it was asked for is not there any more: another one has to do.
            there = isinstance(instruction, Restore) and instruction.checkpoint >= self.store.cut
            if there and driver is self.newest:
                raise AssertionError(f"there is no way back for {instruction}") from error
            return Failed(instruction.id, error)

    def gather(self, id_: str, container: Container, slices: frozenset[int]) -> Event:
        """The ring brings some back, cannot bring others, and has not heard of the rest: by chance, but repeatably."""
        beyond = []
        for slice_ in sorted(slices):
            match zlib.crc32(f"{id_} {slice_}".encode()) % 4:
                case 0 | 1:
                    self.make_ready(container, slice_)
                case 2:
                    beyond.append((slice_, "too much was lost"))
        ready = [(slice_, container.copies[slice_][0]) for slice_ in sorted(slices & container.copies.keys())]
        return ReadySeen(id_, tuple(ready), tuple(beyond))

    def make_ready(self, container: Container, slice_: int) -> None:
        """At the newest epoch that the store knows, which may be news to the master."""
        epoch = self.store.committed
        if epoch and slice_ not in container.held:
            container.copies[slice_] = (epoch, self.store.oracle(slice_, epoch * self.levels))

    def send_copies(
        self,
        driver: Driver,
        id_: str,
        owner: Container,
        epoch: int,
        to: tuple[tuple[str, frozenset[int]], ...],
    ) -> Event:
        held = []
        for peer, slices in to:
            there = driver.containers[peer]
            if there.alive:
                for slice_ in sorted(slices):
                    state = owner.state(slice_, epoch)
                    if state is not None:
                        there.take_copy(slice_, epoch, state)
                held += [(peer, slice_, version) for slice_, version in there.versions(slices).items()]
        failed = {peer: "it is gone" for peer, _ in to if not driver.containers[peer].alive}
        return CopiesSent(id_, tuple(held), failed)

    def half_apply(self, driver: Driver, job: Job, some: int) -> None:
        """A user's function raises after some of the slices."""
        instruction = job.instruction
        assert isinstance(instruction, Apply)
        driver.jobs.remove(job)
        if driver.containers[instruction.container].alive:
            slices = sorted(instruction.slices)[:some]
            self.in_container(
                driver, Apply(instruction.container, instruction.fence, frozenset(slices), instruction.level)
            )
            driver.events.append(Failed(instruction.id, FAULT))

    def scan(self, driver: Driver, job: Job, epoch: int, level: int) -> bool:
        """Read the next slice's output, if it is ready; whether all are read."""
        slice_ = len(job.scanned)
        if slice_ < self.slices and driver.master.ready(slice_, epoch, level):
            container = driver.containers[str(driver.master.owner(slice_))]
            if container.alive:
                position = (epoch - 1) * self.levels + level
                assert position in container.held[slice_], f"a scan of slice {slice_} found no output of {epoch}"
                job.scanned.append(container.held[slice_][position])
        return len(job.scanned) == self.slices

    # ---------------------------------------------------------------------------------------- by chance

    def anything(self, driver: Driver, chance: random.Random) -> None:
        """One step without a fault, in any order."""
        kinds = ["join"] * bool(driver.wanted) + ["offer"] * (driver.offered is None)
        kinds += ["time"] + ["event"] * 4 * bool(driver.events) + ["job"] * 4 * bool(driver.jobs)
        match chance.choice(kinds or ["none"]):
            case "join":
                self.join(driver)
            case "offer":
                if chance.random() < 0.3:
                    driver.events.append(TickWanted())
                self.offer(driver)
            case "time":
                self.pass_time(driver)
            case "event":
                self.deliver(driver, chance.choice(driver.events))
            case "job":
                self.work(driver, chance.choice(driver.jobs))

    def pass_time(self, driver: Driver) -> None:
        self.now += 1.0
        self.tell(driver, Clock(self.now))

    def wish(self, driver: Driver, chance: random.Random) -> None:
        """A person scales or moves."""
        if chance.random() < 0.5:
            self.tell(driver, ScaleWanted(chance.randint(1, 4)))
        elif driver.containers:
            slices = frozenset(chance.sample(range(self.slices), chance.randint(1, self.slices)))
            self.tell(driver, MoveWanted(slices, chance.choice(list(driver.containers))))

    def trouble(self, driver: Driver, chance: random.Random) -> None:
        """One fault of any kind."""
        containers = [container for container in driver.containers.values() if container.alive]
        applies = [job for job in driver.jobs if isinstance(job.instruction, Apply)]
        match chance.choice(
            ["twice"] * 4
            + ["fail"] * 2
            + ["raise", "lose", "lose", "wish", "wish", "standby", "crash", "takeover", "unwanted"]
            + ["ready"] * 2 * self.ring
        ):
            case "twice" if driver.events:
                self.deliver(driver, chance.choice(driver.events), again=True)
            case "fail" if driver.jobs:
                self.work(driver, chance.choice(driver.jobs), fault=chance.choice(["before", "after"]))
            case "raise" if applies:
                self.half_apply(driver, chance.choice(applies), chance.randrange(self.slices))
            case "lose" if containers:
                self.lose(driver, chance.choice(containers), really=chance.random() < 0.7)
            case "unwanted":
                self.tell(driver, EpochUnwanted(FAULT) if chance.random() < 0.5 else OfferUnwanted(FAULT))
            case "wish":
                self.wish(driver, chance)
            case "standby":
                driver.wanted += 1
            case "crash":
                self.crash(driver)
            case "takeover" if len(self.drivers) < 2:
                self.start_driver(chance.randrange(3))
            case "ready" if containers:  # the ring suspects somebody, rightly or not, before the master does
                self.make_ready(chance.choice(containers), chance.randrange(self.slices))

    def storm(self, chance: random.Random, steps: int, rate: float) -> None:
        """So many steps of any driver, some of them faults."""
        for _ in range(steps):
            if not self.drivers:
                self.start_driver()
            driver = chance.choice(self.drivers)
            if chance.random() < rate:
                self.trouble(driver, chance)
            else:
                self.anything(driver, chance)

    def step_all(self, driver: Driver, *, offering: bool = True) -> None:
        """Whatever it has to do, once."""
        self.pass_time(driver)
        self.join(driver)
        if offering:
            self.offer(driver)
        for event in list(driver.events):
            self.deliver(driver, event)
        for job in list(driver.jobs):
            self.work(driver, job)

    def settle(self, epochs: int = 2, steps: int = 3000) -> None:
        """Faults have stopped: the newest driver gets on."""
        if not self.drivers or self.newest.incarnation < self.store.owner:
            self.start_driver()
        driver, goal = self.newest, self.store.committed + epochs
        for _ in range(steps):
            done = self.store.committed >= goal and driver.master.committed >= goal and driver.master.settled
            if done and self.dry:
                break
            # With further rows of sources some would go round for ever; without any, loops run dry by themselves.
            self.step_all(driver, offering=epochs > 0 and not (done and self.store.loops))
        else:
            moves = driver.master._elastic.moves.of
            raise AssertionError(f"no progress: {driver.master.phase}, {driver.jobs}, {driver.events}, {moves}")

    # ---------------------------------------------------------------------------------------- watching

    @property
    def dry(self) -> bool:
        """Nothing waits in a loop."""
        return not self.store.rounds()

    def check(self) -> None:
        self.store.check()
        for epoch in self.store.manifests:
            self.store.check_checkpoint(epoch)
        for driver in self.drivers:
            assert driver.master.committed <= self.store.committed
            for container in driver.containers.values():
                container.check()
