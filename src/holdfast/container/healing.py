"""A container's part when another one is lost: without the master, from the neighbours' heartbeats to a slice that is
ready (SR3 §3.4; DESIGN, "Ring recovery").

Everyone who hears of the loss asks its neighbours which slices the lost one had, deals them out by the same rule as
all others do, and gathers its own share. What was gathered is brought to the last committed epoch by the log and kept
as a backup of that epoch: **ready**, and nobody's, until the master's routing table names its owner. The master may be
asleep meanwhile. Once awake it asks everyone, and what nobody has is restored from the store.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from holdfast.container.client import Address, Unreachable
from holdfast.container.gathering import Gathered, Gatherer
from holdfast.container.reviving import Revived
from holdfast.container.ringed import RingedJob
from holdfast.errors import ContainerError, HoldfastError
from holdfast.log.ledger import Ledger
from holdfast.recovery.choosing import Speeds
from holdfast.recovery.dealing import deal
from holdfast.recovery.policies import Auto, Structure

ASK_SECONDS = 2.0
DRILL_SECONDS = 60.0


class Healing:
    def __init__(self, ringed: RingedJob, speeds: Speeds | None = None) -> None:
        self._ringed = ringed
        self._speeds = speeds or Speeds()
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
        self._figures: list[dict[str, Any]] = []

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
        threading.Thread(target=self._heal, args=(dead,), daemon=True, name="holdfast-heal").start()

    def found(self, container: str) -> None:
        """It is a neighbour again: if it is lost once more, that is a loss of its own. A round that runs goes on."""
        with self._lock:
            self._dead.discard(container)

    def ready(self, slices: Collection[int], lost: Iterable[str], seconds: float) -> dict[str, Any]:
        """What is ready here of these slices, once this container's share is done; what is beyond the ring, and why."""
        self.lost(lost)
        deadline = time.monotonic() + seconds
        with self._lock:
            self._lock.wait_for(lambda: not self._rounds or self._closed, max(0.0, deadline - time.monotonic()))
            beyond = {number: reason for number, reason in self._beyond.items() if number in slices}
            figures, self._figures = self._figures, []
        return {"ready": self._ringed.job.backups.versions(slices), "beyond": beyond, "figures": figures}

    def overtaken(self, owner: str, slices: Iterable[int]) -> None:
        """Their owner lives, and saves them: what was made ready here for its loss is of no use."""
        with self._lock:
            self._dead.discard(owner)
            stale = self._made.intersection(slices)
            self._made -= stale
        if stale:
            self._ringed.job.backups.drop(stale)

    def drill(self, policy: Structure | Auto, slices: Collection[int], lost: Iterable[str]) -> None:
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
            ringed.terms = replace(ringed.terms, policy=policy)
            self._speeds = replace(
                self._speeds,
                upload=ringed.upload.rate or Speeds.upload,
                download=ringed.download.rate or Speeds.download,
            )
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
                mine, addresses, replacing = self._share(tried, told)
                if not mine:
                    return
                self._gather(mine, addresses, replacing)
                tried.update(mine)  # and look again: others may have been lost meanwhile
        except Exception:
            traceback.print_exc(file=sys.stderr)  # the master restores what nobody has ready
        finally:
            with self._lock:
                self._rounds -= 1
                self._lock.notify_all()

    def _share(self, tried: Collection[int], told: Collection[str]) -> tuple[list[int], dict[str, Address], set[str]]:
        """The slices that this container shall bring back now, and takes upon itself by that."""
        ringed = self._ringed
        with self._lock:
            dead = self._dead.union(told)
        around = {name: address for name, address in ringed.around().items() if name not in dead}
        orphans, there = self._orphans(around, dead)
        dealt = deal(ringed.job.job, orphans, around)
        with self._lock:
            wanted = [number for number, name in dealt.items() if name == ringed.me]
            done = there | self._busy | self._beyond.keys() | set(tried)
            mine = [number for number in wanted if number not in done]
            self._busy.update(mine)
        return mine, around, set(dealt.values()) - {ringed.me}

    def _orphans(self, around: dict[str, Address], dead: Collection[str]) -> tuple[set[int], set[int]]:
        """Slices whose newest pieces came from the dead; and slices that are active or ready somewhere."""
        ringed = self._ringed

        def one(peer: Address) -> dict[str, Any] | None:
            if peer.container == ringed.me:
                return self.owned(dead)
            try:
                header = {**ringed.header, "owners": sorted(dead)}
                return ringed.client(peer).call("owned", header, timeout=ASK_SECONDS)[0]
            except (Unreachable, HoldfastError):
                return None

        with ThreadPoolExecutor(max(1, len(around)), thread_name_prefix="holdfast-ask") as pool:
            answers = [answer for answer in pool.map(one, around.values()) if answer is not None]
        orphans = {number for answer in answers for number in answer["slices"]}
        return orphans, {number for answer in answers for number in answer["here"]}

    def owned(self, owners: Iterable[str]) -> dict[str, Any]:
        """The answer: slices of these owners by their newest pieces here, and slices that live here."""
        job, pieces = self._ringed.job, self._ringed.pieces
        slices = sorted({number for owner in owners for number in pieces.owned_by(owner)})
        active = set.intersection(*(set(stage.slices) for stage in job.stages.values()))
        return {"slices": slices, "here": sorted(active | job.backups.versions(slices).keys())}

    def _gather(self, mine: list[int], addresses: dict[str, Address], replacing: set[str]) -> None:
        began = time.monotonic()
        gatherer = Gatherer(
            self._ringed, {number: list(addresses) for number in mine}, addresses, replacing, self._speeds
        )
        with self._lock:
            self._gatherers.append(gatherer)
        beyond: dict[int, str] = {}
        try:
            gathered = gatherer.run()
            between = time.monotonic()
            beyond = gathered.beyond
            replayed = self._replay(gathered)
            figures = {
                "slices": sorted(gathered.slices),
                "bytes": gathered.nbytes,
                "replayed": replayed,
                "structure": gathered.structure,
                "gathered": between - began,
                "seconds": time.monotonic() - began,
            }
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
