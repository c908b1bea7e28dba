"""A simulated driver: the shipped master, and around it what its shell and its fleet make of calls, silence and errors.

``spark/shell.py`` and ``spark/fleet.py`` are threads, sockets and processes; this is the same in virtual time, rule by
rule. A call has no time limit: it ends with an answer, with an error (``Failed``), or because its connection breaks,
and then the container is killed. A container's end is told by whoever started it. Silence is counted by pings: after a
while it is killed, and if nobody can confirm that, given up (``ContainerLost``) although it may live on. A driver that
was stopped and goes on finds its own past waiting: what it looked at before may not be true any more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.errors import ContainerError, StoreError
from holdfast.invariants import Impossible, invariant
from holdfast.launch.fleet import Silence
from holdfast.master.events import (
    Answer,
    Clock,
    ContainerJoined,
    ContainerLost,
    ContainersStarted,
    Event,
    Failed,
    ManifestStored,
    OwnerSeen,
    PacksVerified,
    RoutingStored,
    Started,
)
from holdfast.master.fed import Fed
from holdfast.master.feed import (
    BeginBatch,
    FailBatch,
    FindBlock,
    FinishBatch,
    RefuseBatch,
    RunSourceSink,
    StoreBlock,
    TakeIn,
)
from holdfast.master.instructions import (
    CutLog,
    EndContainer,
    EndRun,
    Instruction,
    NeedContainers,
    RunIntake,
    RunSink,
    SendCopies,
    Stop,
    StoreCommit,
    StoreManifest,
    StorePrepare,
    StoreRouting,
    TellPeople,
    ToContainer,
    VerifyPacks,
)
from holdfast.master.pump import DecideFailed, EndEpochs, PumpLet
from holdfast.wire.messages import Address
from simulator.job_container import Call, ContainerHost, Reply
from simulator.job_spark import Spark
from simulator.network import text
from simulator.processes import Process

if TYPE_CHECKING:
    from simulator.job_world import JobWorld

CLOCK_SECONDS = 0.25
"""As the shell's."""


class Driver(Process):
    def __init__(self, job: JobWorld, incarnation: int) -> None:
        super().__init__(job.world, f"d{incarnation}")
        self.incarnation = incarnation
        self.master = job.make_master()
        self._fed = Fed(self.master, job.make_feed(), job.make_pump())
        self.feed, self.pump = self._fed.feed, self._fed.pump
        self.deposed = False
        self.fleet: dict[str, ContainerHost] = {}
        """Those it has a connection to."""
        self.spark = Spark(job, self)
        self.ring = job.make_ring()
        """That of its containers, if the job has one."""
        self._job = job
        self._silence: dict[str, float] = {}
        self._limits = Silence()
        self._killed: set[str] = set()
        self._calls: dict[int, Instruction] = {}

    def begin(self) -> None:
        """``owner/`` is taken; now it reads what is there."""
        job, store = self._job, self._job.store
        store.reopened()
        self.spark.begin(store.spark_committed + 1)
        self.tell(store.feed_started(self.incarnation))
        self.tell(
            Started(
                incarnation=self.incarnation,
                levels=store.levels,
                sinks=store.sinks,
                slices=store.slices,
                containers=job.containers_wanted,
                safety=job.safety,
                from_copies=job.from_copies,
                by_ring=job.by_ring,
                committed=store.committed,
                ranges=store.ranges,
                prepared=store.prepared(),
                sinks_done=store.noted(),
                routing=job.routing,
                checkpoint=max(store.manifests, default=0),
                checkpoint_before=sorted([0, 0, *store.manifests])[-2],
                sinks_at_once=2,
            )
        )
        self.tell(PumpLet())
        self.later(CLOCK_SECONDS, self._tick)
        self.later(self._limits.ping, self._ping)
        self.later(0.1, self.spark.offer)

    # ------------------------------------------------------------------------------------------------- its life

    def crash(self, why: str) -> None:
        if self.alive:
            self.alive = False
            self.world.note(self.name, f"ends: {why}")
            self._job.driver_ended(self)

    def wants(self, told: Instruction) -> bool:
        return self._fed.awaits(told)

    def _tick(self) -> None:
        self.tell(Clock(self.world.now))
        self.later(CLOCK_SECONDS, self._tick)

    def tell(self, event: Event) -> None:
        if not self.alive:
            return
        if self.world.tracing and not isinstance(event, Clock):
            self.world.note(self.name, f"→ {text(event)}")
        for instruction in self._fed.handle(event):
            if self.world.tracing:
                self.world.note(self.name, f"← {text(instruction)}")
            self._perform(instruction)
        self._job.watch(self)

    # ------------------------------------------------------------------------------------------- instructions

    def _perform(self, told: Instruction) -> None:
        chance = self.world.random
        match told:
            case TakeIn() | RunSourceSink() | FinishBatch() | FailBatch() | RefuseBatch():
                self.spark.take(told)
            case RunIntake() | RunSink() | DecideFailed() | EndEpochs():
                self.spark.pump(told)
            case TellPeople(text=said):
                invariant("put out" not in said, f"dual mode saw unlike outputs: {said}")
            case Stop(successor=successor):
                invariant(self._job.store.owner >= successor > self.incarnation, "deposed by nobody")
                self.deposed = True
                self.later(1.0 + chance.random(), self.crash, "it was deposed")
            case NeedContainers():
                self.later(0.3 + chance.random(), self._start, told)
            case EndRun():
                self.crash("no container can start")
            case EndContainer(container):
                invariant(container not in self.master.routing.table, "an owner was ended")
                if host := self._part_with(container):
                    host.asked_to_leave = True
                    self.later(0.02, host.end, "nobody needs it")
            case SendCopies():
                self._send_copies(told)
            case ToContainer(container=container):
                self._call(container, told)
            case VerifyPacks(by=by) if by is not None:
                self._call(by, told)
            case VerifyPacks():
                self.later(0.05, self._verify, told)
            case _:
                self.later(0.001 + 0.004 * chance.random(), self._look, told)

    def _look(self, told: Instruction) -> None:
        """At ``owner/``, right before it acts."""
        if self.still_ours():
            self.later(self._job.write_seconds(), self._store, told)

    def still_ours(self) -> bool:
        newest = self._job.store.owner
        if newest > self.incarnation and self._job.looking:
            self.tell(OwnerSeen(newest))
            return False
        return True

    def _store(self, told: Instruction) -> None:
        store, chance = self._job.store, self.world.random
        try:
            match told:
                case StoreRouting(routing=routing):
                    error = store.write(f"routing/{routing.version}", chance)
                    self._job.store_routing(routing)
                    answer: Answer = RoutingStored(told.id)
                case StorePrepare(fence=fence, level=level):
                    error = store.write(f"prepare/{fence.epoch}.{level}", chance)
                    answer = store.put_prepare(told)
                case BeginBatch(fence=fence):
                    error = store.write(f"block/{fence.epoch}.begun", chance)
                    answer = store.begin(told)
                case StoreBlock(fence=fence):
                    error = store.write(f"block/{fence.epoch}", chance)
                    answer = store.put_block(told)
                case FindBlock():
                    error, answer = None, store.find_block(told)
                case StoreCommit(fence=fence):
                    error = store.write(f"commit/{fence.epoch}", chance)
                    answer = store.put_commit(told)
                case StoreManifest(epoch=epoch, packs=packs):
                    error = store.write(f"manifest/{epoch}", chance)
                    store.put_manifest(epoch, packs)
                    answer = ManifestStored(told.id)
                case CutLog(epoch=epoch):
                    store.cut_log(epoch)
                    return
                case _:
                    raise Impossible(f"not for the store: {told}")
        except StoreError as failure:
            error, answer = failure, Answer(told.id)
        self.tell(Failed(told.id, error) if error else answer)

    def _verify(self, told: VerifyPacks) -> None:
        try:
            for pack in told.packs:
                self._job.store.unpacked(pack.file)
        except StoreError as error:
            self.tell(Failed(told.id, error))
        else:
            self.tell(PacksVerified(told.id))

    # -------------------------------------------------------------------------------------------------- calls

    def _call(self, container: str, told: Instruction) -> int:
        """If there is no connection any more nothing comes of it: the loss is known, or about to be."""
        number = self._job.next_number()
        if container in self.fleet:
            self._calls[number] = told
            self._job.network.send(self.name, container, Call(number, container, self.incarnation, told))
        return number

    def _send_copies(self, told: SendCopies) -> None:
        """With the addresses of those that have one, as the driver does."""
        addresses = tuple(Address(peer, "") for peer, _ in told.to if peer in self.fleet)
        self._call(told.container, replace(told, addresses=addresses))

    def receive(self, sender: Any, message: Any) -> None:
        if not isinstance(message, Reply):
            raise Impossible(f"{message!r} is no Reply")
        self.later(0.0, self._answered, message)

    def _answered(self, reply: Reply) -> None:
        told = self._calls.pop(reply.number, None)
        if isinstance(reply.answer, Answer):  # the master knows by itself whether it is doubled
            self.tell(reply.answer)
        elif told is not None:
            self.tell(Failed(told.id, reply.answer))

    def unreached(self, peer: Any, message: Any) -> None:
        """Bytes on a cut line wait, as TCP's do; any other failure is a broken connection."""
        if not isinstance(message, Call):
            raise Impossible(f"{message!r} is no Call")
        if self._job.network.connected(self.name, peer):
            self.unreachable(message.number)
        elif message.container in self.fleet and message.number in self._calls:
            self.later(0.5, self._job.network.send, self.name, peer, message)

    def unreachable(self, number: int) -> None:
        """Evidence is the process's end; if the connection broke and the process lives, end it."""
        told = self._calls.pop(number, None)
        if told is not None:
            container = told.by if isinstance(told, VerifyPacks) else getattr(told, "container", None)
            if container in self.fleet:
                self.later(0.0, self._kill, container)

    def silent(self, peer: Any) -> None:
        raise Impossible("pings are played here, one by one")

    # -------------------------------------------------------------------------------------------------- the fleet

    def _start(self, told: NeedContainers) -> None:
        """One that cannot start is lost at once."""
        chance = self.world.random
        born = [chance.random() >= self._job.stillborn for _ in range(told.count)]
        if not any(born):
            self.tell(Failed(told.id, ContainerError("None could start.")))
            return
        for lives in born:
            if not lives:
                self.tell(ContainerLost(self._job.next_name(), "it could not start"))
                continue
            host = self._job.start_container(self)
            self.fleet[host.name] = host
            self._silence[host.name] = 0.0
            self.tell(ContainerJoined(host.name, host.machine))
        self.tell(ContainersStarted(told.id))

    def _kill(self, container: str) -> None:
        """By the process that started it; on a machine that stalls or cannot be reached, when that is over."""
        host = self.fleet.get(container)
        if host is None:
            return
        host.asked_to_leave = True
        if self._job.network.connected(self.name, container) and host.answers:
            self.later(0.05, host.end, "it was killed")

    def exited(self, container: str, why: str) -> None:
        """Whoever started it saw its process end, or its end is taken for granted."""
        if host := self._part_with(container):
            host.asked_to_leave = True  # nothing may be left of one that was only taken for dead
            self.tell(ContainerLost(container, why))

    def _part_with(self, container: str) -> ContainerHost | None:
        self._silence.pop(container, None)
        return self.fleet.pop(container, None)

    def _ping(self) -> None:
        limits = self._limits
        for container, host in list(self.fleet.items()):
            network = self._job.network
            there = network.hosts.get(container) if network.connected(self.name, container) else None
            if there is not None and there is not host:
                self.exited(container, "another process listens on its port")
            elif there is not None and host.answers and 0.002 * host.slowness < limits.ping:
                self._silence[container] = 0.0
            else:
                self._more_silence(container)
        self.later(limits.ping, self._ping)

    def _more_silence(self, container: str) -> None:
        limits = self._limits
        self._silence[container] += limits.ping
        if self._silence[container] >= limits.kill + limits.unconfirmed:
            self.exited(container, "it was silent, and its end could not be confirmed")
        elif self._silence[container] >= limits.kill and container not in self._killed:
            self._killed.add(container)
            self._kill(container)
