"""A simulated container: the model's slices behind a network, links to peers and to the store, and time.

It lives and dies as a real one does: on a machine that may stall (then it comes back later and goes on with what it was
asked for, a zombie), held by a driver that may be gone. What it does is done when its time is over, all at once; what
it reads for that (a pinned epoch) it reads when it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.errors import FencedError, FunctionError, HoldfastError, TokenError
from holdfast.invariants import Impossible
from holdfast.master.events import Answer, CopiesSent
from holdfast.master.instructions import (
    Activate,
    Apply,
    Gather,
    Instruction,
    Restore,
    SaveShards,
    SendCopies,
    ToContainer,
    VerifyPacks,
    WriteCheckpoint,
)
from simulator.job_model import Container
from simulator.processes import Process

if TYPE_CHECKING:
    from simulator.job_ring import JobRing
    from simulator.job_world import JobWorld

STORE = "store"
"""The node at the other end of every link to the store."""
SILENCE_SECONDS = 10.0
"""A peer that takes nothing for so long has not taken it (``container.copying``)."""
STAY_SECONDS = 1.0
DRIVER_SILENCE_SECONDS = 30.0
"""How often a container's task asks whether it may stay, and how long nobody may answer (``spark.executors``)."""


@dataclass(frozen=True)
class Call:
    """A request of a driver. ``number`` is its connection's: transport carries a call once, or breaks."""

    number: int
    container: str
    incarnation: int
    instruction: Instruction

    @property
    def brief(self) -> str:
        return f"{type(self.instruction).__name__} {self.instruction.id}"


@dataclass(frozen=True)
class Reply:
    number: int
    answer: Answer | HoldfastError

    @property
    def brief(self) -> str:
        return f"{type(self.answer).__name__}{f' to {self.answer.to}' if isinstance(self.answer, Answer) else ''}"


class ContainerHost(Process):
    """``admit`` is the door: it is here that a stranger's or an old master's request ends."""

    def __init__(
        self, job: JobWorld, model: Container, machine: str, incarnation: int, ring: JobRing | None = None
    ) -> None:
        super().__init__(job.world, model.name)
        self.model = model
        self.machine = machine
        self.incarnation = incarnation
        self.ring = ring
        self.driver = f"d{incarnation}"
        self.slowness = 1.0
        self.asked_to_leave = False
        self._job = job
        self._seen: set[int] = set()
        self._driver_heard = self.world.now
        self.world.at(STAY_SECONDS * self.world.random.random(), self._may_stay)

    # -------------------------------------------------------------------------------------------- life and death

    def work(self, seconds: float, what: Callable[..., None], *arguments: Any) -> None:
        """After so much work, which takes a slow one longer."""
        self.later(seconds * self.slowness, what, *arguments)

    def end(self, why: str) -> None:
        if self.alive:
            self.alive = False
            self.world.note(self.name, f"ends: {why}")
            self._job.ended(self)
            self.model.close()

    def _may_stay(self) -> None:
        driver = self._job.drivers.get(self.driver)
        if self._job.network.connected(self.name, self.driver):
            if driver is None or self.asked_to_leave:
                self.end("it was asked to leave" if driver else "its driver is gone")
                return
            self._driver_heard = self.world.now
        elif self.world.now - self._driver_heard > DRIVER_SILENCE_SECONDS:
            self.end("its driver has been silent")
            return
        self.later(STAY_SECONDS, self._may_stay)

    # -------------------------------------------------------------------------------------------------- requests

    def receive(self, sender: Any, message: Any) -> None:
        if not isinstance(message, Call):
            raise Impossible(f"{message!r} is no Call")
        if message.number not in self._seen:
            self._seen.add(message.number)
            self.work(0.0005, self._begin, message)

    def unreached(self, peer: Any, message: Any) -> None:
        """The answer did not get there: its connection is broken, or its bytes wait for the cut to heal."""
        if not isinstance(message, Reply):
            raise Impossible(f"{message!r} is no Reply")
        if not self._job.network.connected(self.name, peer):
            self.later(0.5, self._send, message)
        elif driver := self._job.drivers.get(self.driver):
            driver.unreachable(message.number)

    def silent(self, peer: Any) -> None:
        raise Impossible("containers send no heartbeats here")

    def admit(self, call: Call) -> None:
        if call.container != self.name:
            raise TokenError(f"This is {self.name}, not {call.container}.")
        if call.incarnation < self.incarnation:
            raise FencedError(f"Master {call.incarnation} has been replaced by {self.incarnation}.")

    def _begin(self, call: Call) -> None:
        try:
            self.admit(call)
            self._start(call)
        except HoldfastError as error:
            self._reply(call, error)

    def _start(self, call: Call) -> None:
        told, chance, costs = call.instruction, self.world.random, self._job.costs
        match told:
            case SendCopies():
                Sending(self._job, self, told, lambda answer: self._reply(call, answer)).start()
            case SaveShards():
                if self.ring is None:
                    raise Impossible("pieces of a job that has none")
                self.ring.save_slices(self, told, lambda answer: self._reply(call, answer))
            case Gather():
                if self.ring is None:
                    raise Impossible("pieces of a job that has none")
                self.ring.healers[self.name].ready(told, lambda answer: self._reply(call, answer))
            case Restore(slices=slices, epoch=epoch, checkpoint=checkpoint):
                nbytes = costs.slice * len(slices) if checkpoint else 0.0
                seconds = costs.replay * (epoch - checkpoint) * len(slices)
                self._job.links.transfer(
                    STORE, self.name, nbytes, lambda: self.work(seconds, self._finish, call), lambda: None
                )
            case Activate(slices=slices, epoch=epoch):
                versions = self.model.versions(slices)
                behind = sum(epoch - version for version in versions.values())
                self.work(0.01 + costs.replay * max(0, behind), self._finish, call)
            case WriteCheckpoint(slices=slices, epoch=epoch):
                name = f"pack/{epoch}.{call.incarnation}.{told.fence.attempt}.{told.label}"
                written = self._written(call, self.model.checkpoint(told, name, chance))
                self._job.links.transfer(self.name, STORE, costs.slice * len(slices), written, lambda: None)
            case VerifyPacks():
                self.work(costs.slice * len(told.packs) / 1e9 + 0.01, self._verify, call)
            case Apply():
                self.work(costs.apply * chance.uniform(0.5, 2.0), self._apply, call)
            case _:
                self.work(0.001 + 0.004 * chance.random(), self._finish, call)

    def _finish(self, call: Call) -> None:
        told = call.instruction
        if not isinstance(told, ToContainer):
            raise Impossible(f"{told!r} is no ToContainer")
        try:
            self._reply(call, self.model.perform(told))
        except HoldfastError as error:
            self._reply(call, error)

    def _apply(self, call: Call) -> None:
        """A user's function may raise in the middle of it."""
        told = call.instruction
        if not isinstance(told, Apply):
            raise Impossible(f"{told!r} is no Apply")
        if self.world.random.random() < self._job.raising:
            some = frozenset(sorted(told.slices)[: self.world.random.randrange(len(told.slices))])
            if some:
                self._job.applies(self, replace(told, slices=some, digests=frozenset()))
            self._reply(call, FunctionError("A function raised.", safe="Nothing of the epoch is visible."))
            return
        try:
            self._reply(call, self._job.applies(self, told))
        except HoldfastError as error:
            self._reply(call, error)

    def _written(self, call: Call, write: Callable[[], Answer]) -> Callable[[], None]:
        def done() -> None:
            try:
                self._reply(call, write())
            except HoldfastError as error:
                self._reply(call, error)

        return lambda: self.work(0.002, done)

    def _verify(self, call: Call) -> None:
        if not isinstance(call.instruction, VerifyPacks):
            raise Impossible(f"{call.instruction!r} is no VerifyPacks")
        try:
            self._reply(call, self.model.verify(call.instruction))
        except HoldfastError as error:
            self._reply(call, error)

    def _reply(self, call: Call, answer: Answer | HoldfastError) -> None:
        self._send(Reply(call.number, answer))

    def _send(self, reply: Reply) -> None:
        self._job.network.send(self.name, self.driver, reply)


class Sending:
    """An owner brings copies on its peers up to date, all of them side by side, from an epoch that it pins."""

    def __init__(
        self, job: JobWorld, owner: ContainerHost, told: SendCopies, done: Callable[[Answer | HoldfastError], None]
    ) -> None:
        self._job, self._owner, self._told, self._done = job, owner, told, done
        self._open = [peer for peer, _ in told.to]
        self._held: list[tuple[str, int, int]] = []
        self._failed: dict[str, str] = {}
        self._pinned = owner.model.pinned(told)

    def start(self) -> None:
        if not self._open:
            self._end()
        known = {one.container for one in self._told.addresses}
        for peer, slices in self._told.to:
            there, here = self._job.containers.get(peer), self._owner.name
            if peer not in known or there is None or not there.alive:
                self._owner.later(0.01, self._ended, peer, None)
            elif not self._reaches(there):
                self._owner.later(SILENCE_SECONDS, self._ended, peer, None)
            else:
                size = sum(self._size(there, slice_) for slice_ in slices & self._pinned.keys())
                self._job.links.transfer(
                    here, peer, size, lambda there=there, slices=slices: self._arrived(there, slices),  # type: ignore[misc]
                    lambda peer=peer: self._owner.later(0.0, self._ended, peer, None),  # type: ignore[misc]
                )  # fmt: skip

    def _size(self, there: ContainerHost, slice_: int) -> float:
        behind = self._told.epoch - there.model.copies.get(slice_, (-1, 0))[0]
        return self._job.costs.slice * min(1.0, 0.1 * max(0, behind))

    def _reaches(self, there: ContainerHost) -> bool:
        return there.answers and self._job.network.connected(self._owner.name, there.name)

    def _arrived(self, there: ContainerHost, slices: frozenset[int]) -> None:
        if not self._reaches(there):
            self._owner.later(SILENCE_SECONDS, self._ended, there.name, None)
            return
        for slice_ in sorted(slices & self._pinned.keys()):
            if slice_ in self._owner.model.held:  # else it has moved on meanwhile
                there.model.take_copy(slice_, self._told.epoch, self._pinned[slice_])
        lost = self._job.world.random.random() < self._job.network.weather.loss  # the question what is there now
        self._owner.later(0.001, self._ended, there.name, None if lost else there.model.versions(slices))

    def _ended(self, peer: str, versions: Mapping[int, int] | None) -> None:
        self._open.remove(peer)
        if versions is None:
            self._failed[peer] = "it could not be reached"
        else:
            self._held += [(peer, slice_, version) for slice_, version in versions.items()]
        if not self._open:
            self._end()

    def _end(self) -> None:
        self._owner.model.unpin(self._told)
        self._done(CopiesSent(self._told.id, tuple(self._held), dict(self._failed)))
