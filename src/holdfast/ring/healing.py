"""A container's part when another one is lost: without the master, from the neighbours' heartbeats to a slice that is
ready (SR3 §3.4; DESIGN, "Ring recovery").

Which slices the lost one had, and who holds which pieces of them, one asks for all: the live container nearest to the
lost one, whom the others ask for its report; if it does not answer, each asks everyone. With the report each deals the
slices out by the same rule and gathers its own share. What was gathered is brought to the last committed epoch by the
log and kept as a backup of that epoch: **ready**, and nobody's, until the master's routing table names its owner. The
master may be asleep meanwhile. Once awake it asks everyone, and what nobody has is restored from the store.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import NamedTuple

from holdfast.container.former_graphs import FormerGraphs
from holdfast.container.restore import Revived
from holdfast.errors import ContainerError, HoldfastError
from holdfast.ids import distance, id_of
from holdfast.log.ledger import Ledger
from holdfast.recovery.choice import Speeds
from holdfast.recovery.gathering import Answered
from holdfast.recovery.heirs import at_home, deal
from holdfast.ring.gathering import Gathered, Gatherer, answer_of
from holdfast.ring.job import RingedJob
from holdfast.ring.messages import AskOwned, AskReport, Owned, Policy
from holdfast.ring.meters import known
from holdfast.wire.client import Unreachable
from holdfast.wire.messages import Address, Gather, GatherFigures, ReadySeen

ASK_SECONDS = 2.0
FRESH_SECONDS = 0.5
"""So long a report serves for others that hear of the same loss."""
DRILL_SECONDS = 60.0


class View(NamedTuple):
    """Who is around, and who of all that were is dead."""

    around: dict[str, Address]
    dead: frozenset[str]


@dataclass(frozen=True)
class Share:
    """What a container takes upon itself after a look around, and what it was told there."""

    slices: list[int]
    view: View
    replacing: frozenset[str]
    told: Answers

    @property
    def complete(self) -> bool:
        return self.told.keys() == self.view.around.keys()


Answers = dict[str, Owned]
"""Container → what it says of the dead ones' slices (``Healing.owned``)."""


class Healing:
    """``store``: bytes a second that come from the store, for all who read at once; 0 if nobody knows."""

    def __init__(self, ringed: RingedJob, store: float = 0.0) -> None:
        self._ringed = ringed
        self._store = store
        self._lock = threading.Condition()
        self._dead: set[str] = set()
        self._busy: set[int] = set()
        """Slices that are being gathered here."""
        self._beyond: dict[int, str] = {}
        self._made: set[int] = set()
        """Slices that are, or were, ready here."""
        self._rounds = 0
        """Threads at work."""
        self._closed = False
        self._gatherers: list[Gatherer] = []
        self._figures: list[GatherFigures] = []
        self._reports: dict[frozenset[str], tuple[float, Future[Answers]]] = {}
        """Of each loss: since when it is being asked for, and what came of it."""

    # --- from the ring, from the master -------------------------------------------------------------------

    def lost(self, containers: Iterable[str]) -> None:
        """These are no more. Returns at once."""
        with self._lock:
            new = set(containers) - self._dead
            if not new or self._closed:
                return
            self._dead |= new
            self._beyond.clear()  # of losses before this one
            self._rounds += 1
            dead, gatherers = frozenset(self._dead), list(self._gatherers)
        for gatherer in gatherers:
            for container in new:
                gatherer.lost(container)
        self._ringed.crew.submit(self._heal, dead)

    def found(self, container: str) -> None:
        """It is a neighbour again: if it is lost once more, that is a loss of its own. A round that runs goes on."""
        with self._lock:
            self._dead.discard(container)
            self._reports.clear()

    def ready(self, call: Gather) -> ReadySeen:
        """What is ready here of these slices, once this container's share is done; what is beyond the ring, and why."""
        self.lost(call.lost)
        deadline = time.monotonic() + call.seconds
        with self._lock:
            self._lock.wait_for(lambda: not self._rounds or self._closed, max(0.0, deadline - time.monotonic()))
            beyond = tuple((number, reason) for number, reason in self._beyond.items() if number in call.slices)
            figures, self._figures = self._figures, []
        ready = self._ringed.job.backups.versions(call.slices)
        return ReadySeen(call.id, tuple(ready.items()), beyond, tuple(figures))

    def overtaken(self, owner: str, slices: Iterable[int]) -> None:
        """Their owner lives, and saves them: what was made ready here for its loss is of no use."""
        with self._lock:
            self._dead.discard(owner)
            self._reports.clear()
            stale = self._made.intersection(slices)
            self._made -= stale
        if stale:
            self._ringed.job.backups.drop(stale)

    def drill(self, policy: Policy, slices: Collection[int], lost: Iterable[str]) -> None:
        """Forget that these were brought back, so that it can be done once more, and differently."""
        ringed = self._ringed
        with self._lock:
            if not self._lock.wait_for(lambda: not self._rounds, DRILL_SECONDS):
                raise ContainerError(
                    f"What was lost before is still being brought back after {DRILL_SECONDS:g} s.",
                    safe="Nothing was forgotten.",
                    todo="Ask again later.",
                )
            self._dead.difference_update(lost)
            self._reports.clear()
            ringed.terms = replace(ringed.terms, policy=policy)
        ringed.job.forget(slices)
        ringed.job.backups.drop(slices)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            self._lock.wait_for(lambda: not self._rounds, 10.0)

    # --- in a thread of its own ---------------------------------------------------------------------------

    def _heal(self, told: frozenset[str]) -> None:
        try:
            tried: set[int] = set()
            while not self._closed:
                began = time.monotonic()
                share = self._share(tried, told)
                if not share.slices:
                    return
                self._gather(share, began)
                tried.update(share.slices)
                if share.complete and share.view == self._view(told):
                    return  # else look again: others may have been lost meanwhile, or answer now
        except Exception:
            traceback.print_exc(file=sys.stderr)  # the master restores what nobody has ready
        finally:
            with self._lock:
                self._rounds -= 1
                self._lock.notify_all()

    def _view(self, told: Collection[str]) -> View:
        with self._lock:
            dead = frozenset(self._dead.union(told))
        return View({name: address for name, address in self._ringed.around().items() if name not in dead}, dead)

    def _share(self, tried: Collection[int], told: Collection[str]) -> Share:
        """The slices that this container shall bring back now, and takes upon itself by that."""
        ringed, view = self._ringed, self._view(told)
        answers = self._ask(view) if tried or ringed.ring.beyond else self._reported(view)
        orphans = {number for answer in answers.values() for number in answer.slices}
        there = {number for answer in answers.values() for number in answer.here}
        rule = at_home if ringed.ring.beyond else deal
        dealt = rule(ringed.job.job, orphans, view.around)
        with self._lock:
            wanted = [number for number, name in dealt.items() if name == ringed.me]
            done = there | self._busy | self._beyond.keys() | set(tried)
            mine = [number for number in wanted if number not in done]
            self._busy.update(mine)
        return Share(mine, view, frozenset(dealt.values()) - {ringed.me}, answers)

    def _reported(self, view: View) -> Answers:
        ringed, lost = self._ringed, [id_of(name) for name in view.dead]
        near = min(view.around, key=lambda name: (min(distance(id_of(name), one) for one in lost), name))
        if near == ringed.me:
            return self.report(view.dead)
        try:
            answer = ringed.client(view.around[near]).call(AskReport(view.dead), timeout=2 * ASK_SECONDS)
        except (Unreachable, HoldfastError):
            return self._ask(view)
        return {name: told for name, told in answer.told.items() if name in view.around}

    def report(self, dead: Collection[str]) -> Answers:
        """What everyone around says of these dead ones' slices, asked once for all who want to know it now."""
        key, now = frozenset(dead), time.monotonic()
        with self._lock:
            self._reports = {
                one: (since, coming) for one, (since, coming) in self._reports.items() if now - since < FRESH_SECONDS
            }
            first = key not in self._reports
            _, coming = self._reports.setdefault(key, (now, Future()))
        if first:
            try:
                coming.set_result(self._ask(self._view(key)))
            except BaseException as error:
                coming.set_exception(error)
        return coming.result()

    def _ask(self, view: View) -> Answers:
        """What everyone around says of the dead ones' slices; those that do not answer are left out."""
        ringed = self._ringed

        def one(peer: Address) -> Owned | None:
            if peer.container == ringed.me:
                return self.owned(view.dead)
            try:
                return ringed.client(peer).call(AskOwned(view.dead), timeout=ASK_SECONDS)
            except (Unreachable, HoldfastError):
                return None

        answers = zip(view.around, ringed.crew.map(one, list(view.around.values())), strict=True)
        return {name: answer for name, answer in answers if answer is not None}

    def owned(self, owners: Collection[str]) -> Owned:
        """The answer: slices whose newest pieces here are of these owners, those pieces, and slices that live here."""
        job, slices = self._ringed.job, self._ringed.pieces.owned_by(owners)
        active = set.intersection(*(set(stage.slices) for stage in list(job.stages.values())))
        here = sorted(active | job.backups.versions(slices).keys())
        return Owned(tuple(sorted(slices)), tuple(here), self._ringed.holding(slices))

    @property
    def _speeds(self) -> Speeds:
        """What is known of them by now: limits that were given, what was measured; and defaults for the rest."""
        ringed, usual = self._ringed, Speeds()
        meters = ringed.meters
        return Speeds(
            known(ringed.upload.rate, meters.upload.value) or usual.upload,
            known(ringed.download.rate, meters.download.value) or usual.download,
            meters.merge.value or usual.merge,
            meters.build.value or usual.build,
            meters.loose.value or usual.loose,
            store=self._store,
        )

    def _gather(self, share: Share, began: float) -> None:
        mine, asked = share.slices, time.monotonic()
        self._ringed.job.adopt(max(answer.holding.graph for answer in share.told.values()))
        told: list[Answered] = [answer_of(name, answer.holding, set(mine)) for name, answer in share.told.items()]
        everyone = {number: list(share.view.around) for number in mine}
        gatherer = Gatherer(self._ringed, everyone, share.view.around, share.replacing, self._speeds, told)
        with self._lock:
            self._gatherers.append(gatherer)
        beyond: dict[int, str] = {}
        try:
            gathered = gatherer.run()
            for number, reason in self._torn(gatherer, gathered).items():
                del gathered.slices[number]
                gathered.beyond[number] = reason
            between = time.monotonic()
            beyond = gathered.beyond
            replayed = self._replay(gathered)
            figures = GatherFigures(
                slices=tuple(sorted(gathered.slices)),
                nbytes=gathered.nbytes,
                replayed=replayed,
                structure=gathered.structure,
                asked=asked - began,
                gathered=between - began,
                seconds=time.monotonic() - began,
            )
            with self._lock:
                self._made.update(gathered.slices)
                self._figures.append(figures)
        except HoldfastError as error:
            beyond = dict.fromkeys(mine, error.what)
        finally:
            with self._lock:
                self._gatherers.remove(gatherer)
                self._busy.difference_update(mine)
                self._beyond.update(beyond)

    def _torn(self, gatherer: Gatherer, gathered: Gathered) -> dict[int, str]:
        """Slices that came without a stage which they had: the job was changed while they were gathered, and what has
        not come must not be taken for nothing."""
        if gatherer.newest > gatherer.graph:
            return dict.fromkeys(gathered.slices, "the job has been changed meanwhile")
        job, found = self._ringed.job, dict[int, str]()
        stages = dict(job.stages)
        former = FormerGraphs(job.log.ledger.graphs(), job.graph, stages)
        for number, (version, loaders) in gathered.slices.items():
            lacking = {name for name, stage in stages.items() if not loaders.keys() >= set(stage.tables)}
            if lacking and not lacking <= {*former.stages_of(job.log.prepare(version.epoch, 1)).unborn}:
                found[number] = f"its pieces have nothing of stage '{min(lacking)}'"
        return found

    def _replay(self, gathered: Gathered) -> int:
        """To the last epoch that the store says is committed; then it rests as a backup of that epoch."""
        if not gathered.slices:
            return 0
        job = self._ringed.job
        ledger = Ledger(job.log.ledger.store, job.log.ledger.section_name)  # a fresh look at what is there
        commit = ledger.last_committed()
        versions = {number: version.epoch for number, (version, _) in gathered.slices.items()}
        epoch = max([commit.fence.epoch if commit else 0, *versions.values()])
        behind = {}
        for number, (_, loaders) in gathered.slices.items():
            if versions[number] == epoch:  # nothing to replay: whoever makes it active pays for its index
                job.keep_backup(number, epoch, loaders)
            else:
                behind[number] = (versions[number], loaders)
        if not behind:
            return 0
        revived = Revived(job)
        revived.load(behind)
        replayed = revived.replay(epoch)
        revived.give_back()
        return replayed
