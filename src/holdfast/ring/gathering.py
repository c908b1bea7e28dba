"""The replacing node at work: the shell of ``holdfast.recovery.gathering``, which asks, pulls and loads.

Rows go into their table as they come, from many branches at once. They may: rows of one version are the same whoever
sends them, so what a broken branch has brought is not lost, and what comes twice is skipped. A slice counts when the
machine says that all its pieces of one version have come, and its tables agree that no row is missing.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from holdfast.errors import HoldfastError
from holdfast.recovery import gathering as machine
from holdfast.recovery.choice import Speeds
from holdfast.ring.branches import Chunk, Outcome, Pull, stream
from holdfast.ring.job import RingedJob
from holdfast.ring.messages import AskPieces, Holding
from holdfast.ring.meters import Rate, working
from holdfast.safety.shards import PieceName, Version
from holdfast.state import copies
from holdfast.wire.client import Unreachable
from holdfast.wire.messages import Address

ASK_SECONDS = 2.0
"""Whoever has not said by then what it holds is done without."""


@dataclass
class Gathered:
    """What came of it."""

    slices: dict[int, tuple[Version, dict[str, copies.Loader]]] = field(default_factory=dict)
    beyond: dict[int, str] = field(default_factory=dict)
    structure: str = ""
    nbytes: int = 0


class Gatherer:
    """Brings these slices together here; ``asked`` names for each who may hold pieces of it.

    ``told`` is what some of them have said already: if that is enough, nobody is asked again.
    """

    def __init__(
        self,
        ringed: RingedJob,
        asked: Mapping[int, Collection[str]],
        addresses: Mapping[str, Address],
        replacing: Collection[str],
        speeds: Speeds,
        told: Sequence[machine.Answered] = (),
    ) -> None:
        self._ringed = ringed
        self.graph, self._layouts = ringed.job.graph, ringed.layouts
        """That it is in terms of, whatever becomes of the job meanwhile."""
        self.newest = self.graph
        """Of those that the pieces are in terms of, as far as is known."""
        self._addresses = addresses
        self._machine = machine.Gathering(ringed.me, ringed.terms.cut, asked, ringed.terms.policy, speeds, replacing)
        self._events: queue.SimpleQueue[machine.Event] = queue.SimpleQueue()
        self._events.put(machine.Begin(tuple(told)))
        self._lock = threading.Lock()
        self._assemblies: dict[tuple[int, Version, str], copies.Assembly] = {}
        self._filling: dict[tuple[int, Version, str], threading.Lock] = {}
        self._pulls: dict[int, list[Pull]] = {}
        self._cancelled: set[int] = set()
        self._over = False
        self._gathered = Gathered()

    def lost(self, container: str) -> None:
        """From any thread."""
        self._events.put(machine.Lost(container))

    def run(self) -> Gathered:
        """Returns when every slice is here, or known to be beyond what the ring can do."""
        waiting = time.monotonic() + ASK_SECONDS
        try:
            while not self._machine.over:
                try:
                    event = self._events.get(timeout=max(0.01, waiting - time.monotonic()))
                except queue.Empty:
                    event, waiting = machine.Waited(), time.monotonic() + ASK_SECONDS
                for instruction in self._machine.handle(event):
                    self._perform(instruction)
        finally:
            with self._lock:
                self._over, numbers = True, list(self._pulls)
            # What is still asking or pulling is of no use any more: slices that are whole do not wait for it.
            for number in numbers:
                self._cancel(number)
        self._gathered.structure = str(self._machine.structure)
        return self._gathered

    def _perform(self, instruction: machine.Instruction) -> None:
        match instruction:
            case machine.Ask(peer, slices):
                self._ringed.crew.submit(self._ask, peer, slices)
            case machine.Pull():
                self._ringed.crew.submit(self._pull, instruction)
            case machine.Cancel(number):
                self._cancel(number)
            case machine.Drop(slice_, version):
                self._forget(slice_, version)
            case machine.Done(slice_, version):
                self._gathered.slices[slice_] = version, self._loaders(slice_, version)
            case machine.Beyond(slice_, reason):
                self._gathered.beyond[slice_] = reason
            case machine.Keep():
                pass  # its rows are where they belong already

    def _ask(self, peer: str, slices: tuple[int, ...]) -> None:
        ringed = self._ringed
        if peer == ringed.me:
            self._events.put(answer_of(peer, ringed.holding(slices), slices))
            return
        try:
            client = ringed.client(self._addresses[peer])
            answer = client.call(AskPieces(frozenset(slices)), timeout=2 * ASK_SECONDS)
            self.newest = max(self.newest, answer.graph)
            self._events.put(answer_of(peer, answer, slices))
        except (Unreachable, HoldfastError):
            self._events.put(machine.Lost(peer))

    # --- pulling ------------------------------------------------------------------------------------------

    def _pull(self, told: machine.Pull) -> None:
        try:
            outcomes = self._ringed.crew.map(partial(self._pull_table, told), list(self._layouts))
        except Exception as error:  # a defect too is no reason to wait for ever
            self._cancel(told.number)  # its other tables
            self._events.put(machine.Failed(told.number, (), f"{type(error).__name__}: {error}"))
            if not isinstance(error, Unreachable | HoldfastError):
                traceback.print_exc(file=sys.stderr)
            return
        pieces = tuple(sorted(set[PieceName].intersection(*(one.pieces for one in outcomes))))
        lost = tuple(sorted(set[str]().union(*(one.lost for one in outcomes))))
        self._events.put(machine.Came(told.number, pieces))
        self._events.put(machine.Failed(told.number, lost) if lost else machine.Ended(told.number))

    def _pull_table(self, told: machine.Pull, table: str) -> Outcome:
        ringed, branch, versions = self._ringed, told.branch, dict(told.versions)
        addresses = {name: address.location for name, address in self._addresses.items()}
        if branch.at == ringed.me:
            outcome = Outcome()
            for chunk in stream(ringed, branch, versions, table, addresses, outcome, ordered=False):
                self._fill(chunk, versions[chunk.slice], table, ringed.meters.loose)
            return outcome
        client, ordered = ringed.client(self._addresses[branch.at]), bool(branch.branches)
        pull = Pull(ringed, client, branch, versions, table, addresses, ordered)
        with self._lock:
            self._pulls.setdefault(told.number, []).append(pull)
            cancelled = self._over or told.number in self._cancelled
        if cancelled:
            raise Unreachable(f"{branch.at}: given up")
        rate = ringed.meters.build if ordered else ringed.meters.loose
        for chunk in pull.chunks():
            self._gathered.nbytes += chunk.nbytes
            self._fill(chunk, versions[chunk.slice], table, rate)
        return pull.outcome

    def _cancel(self, number: int) -> None:
        with self._lock:
            self._cancelled.add(number)
            pulls = self._pulls.pop(number, [])
        for pull in pulls:
            pull.cancel()

    # --- loading ------------------------------------------------------------------------------------------

    def _fill(self, chunk: Chunk, version: Version, table: str, rate: Rate) -> None:
        key = (chunk.slice, version, table)
        with self._lock:
            if key not in self._assemblies:
                self._assemblies[key] = copies.Assembly(self._layouts[table], version.epoch, *chunk.shape)
                self._filling[key] = threading.Lock()
            assembly, lock = self._assemblies[key], self._filling[key]
        with lock, working(rate, chunk.nbytes):
            assembly.add(chunk.rows)

    def _forget(self, slice_: int, version: Version) -> None:
        with self._lock:
            for key in [key for key in self._assemblies if key[:2] == (slice_, version)]:
                del self._assemblies[key], self._filling[key]

    def _loaders(self, slice_: int, version: Version) -> dict[str, copies.Loader]:
        with self._lock:
            came = [table for table in self._layouts if (slice_, version, table) in self._assemblies]
            return {table: self._assemblies.pop((slice_, version, table)).loader() for table in came}


def answer_of(peer: str, told: Holding, slices: Collection[int]) -> machine.Answered:
    """What a container has told about itself, as far as it is about these slices."""
    held = tuple(one for one in told.held if one.piece.slice in slices)
    return machine.Answered(peer, held, upload=told.upload, merge=told.merge)
