"""What the driver does with containers. An instruction to one is sent as it is, and what it answers is what the master
hears; a method stands here only where something has to be looked up or done before."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from holdfast import faults
from holdfast.driver.brain import Brain
from holdfast.driver.counts import Counts
from holdfast.driver.history import History
from holdfast.driver.news import tell_people
from holdfast.driver.sizes import Sizes
from holdfast.driver.store import StoreHandlers
from holdfast.errors import ContainerError, HoldfastError
from holdfast.invariants import Impossible
from holdfast.launch.fleet import Fleet
from holdfast.log.pack import Pack
from holdfast.master import events as ev
from holdfast.master import instructions as do
from holdfast.wire.handlers import handler
from holdfast.wire.messages import Call


class ContainerHandlers:
    def __init__(self, brain: Brain, fleet: Fleet, store: StoreHandlers, sizes: Sizes, counts: Counts) -> None:
        self._brain, self._fleet, self._store = brain, fleet, store
        self._sizes, self._counts = sizes, counts
        self._history: History = brain.history

    def send(self, instruction: do.Instruction) -> ev.Event:
        """The call is the instruction, and the answer is the event."""
        container = do.performer(instruction)
        if container is None or not isinstance(instruction, Call):
            raise Impossible(f"an instruction that nobody knows: {instruction}")
        began = time.monotonic()
        answer = self._fleet.call(container, instruction)
        if not isinstance(answer, ev.Answer):
            raise Impossible(f"{answer} is no answer to {instruction}")
        tell_people(self._history, instruction, answer, time.monotonic() - began)
        return answer

    @handler
    def need(self, instruction: do.NeedContainers) -> ev.ContainersStarted:
        for name in self._fleet.start(instruction.count):
            self._brain.tell(ev.ContainerJoined(name, self._fleet.host_of(name)))
        return ev.ContainersStarted(instruction.id)

    @handler
    def end(self, instruction: do.EndContainer) -> None:
        with contextlib.suppress(ContainerError):  # it ended by itself meanwhile
            self._fleet.end(instruction.container)
        self._history.note("ended", f"container {instruction.container} is not needed any more")

    @handler
    def apply(self, instruction: do.Apply) -> ev.Applied:
        """With the prepare, which is at hand here: a container need not read it in the store."""
        epoch = instruction.fence.epoch
        prepare = self._store.prepare_of(epoch, instruction.level)
        answer = self._fleet.call(instruction.container, replace(instruction, prepare=prepare.to_bytes()))
        faults.place("driver", "mid-apply", epoch)
        self._store.written.take(epoch, instruction.container, answer.entries)
        self._sizes.applied(instruction.container, epoch, answer.stages)
        for stage, figures in answer.stages.items():
            self._counts.applied(epoch, stage, figures.counts)
        return answer

    @handler
    def send_copies(self, instruction: do.SendCopies) -> ev.CopiesSent:
        """With the peers' addresses, of those that have one."""
        found = (self._fleet.find(peer) for peer, _ in instruction.to)
        answer = self.send(replace(instruction, addresses=tuple(one for one in found if one is not None)))
        if not isinstance(answer, ev.CopiesSent):
            raise Impossible(f"{answer} is no answer to {instruction}")
        return answer

    @handler
    def verify_packs(self, instruction: do.VerifyPacks) -> ev.PacksVerified:
        if instruction.by is not None:
            return self._fleet.call(instruction.by, instruction)
        for pack in instruction.packs:
            Pack.open(self._store.ledger.section, str(pack.file)).verify()
        return ev.PacksVerified(instruction.id)

    def suspect(self, instruction: do.Instruction) -> None:
        """Evidence is the process's end; if the connection broke and the process lives, end it."""
        container = do.performer(instruction)
        if container is None:
            raise Impossible(f"{instruction} is for no container")
        with contextlib.suppress(HoldfastError):  # its end is already known, or about to be
            self._fleet.kill(container)
