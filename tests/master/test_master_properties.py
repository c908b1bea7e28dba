"""Masters in a world where anything may fail, at any time, in any order; and that this world would notice.

The seed of a failing run is printed by Hypothesis. ``--hypothesis-seed=N`` repeats it.
HOLDFAST_EXAMPLES=5000 looks longer.
"""

from __future__ import annotations

import os
import random
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from master_world import Container, Driver, Job, World

from holdfast.log.records import Fence
from holdfast.master.events import Applied, Batch, Event
from holdfast.master.flight import Flight
from holdfast.master.instructions import Activate, Apply, CutLog, FinishBatch, Instruction, Restore, StoreCommit
from holdfast.master.machine import Master

some = st.integers(0, 1000)


class Masters(RuleBasedStateMachine):
    """Two drivers at most, each with its own containers and its own Spark query on the same checkpoint."""

    master: type[Master] = Master

    ring = False

    @initialize(levels=st.integers(1, 3), sinks=st.integers(0, 2), every=st.integers(1, 3), backups=st.integers(0, 2))
    def begin(self, levels: int, sinks: int, every: int, backups: int) -> None:
        self.world = World(
            self.master,
            levels=levels,
            sinks=sinks,
            checkpoint_every=every,
            backups=0 if self.ring else backups,
            ring=self.ring,
        )
        self.world.start_driver()

    def driver(self, choice: int) -> Driver:
        return self.world.drivers[choice % len(self.world.drivers)]

    def containers(self) -> list[tuple[Driver, Container]]:
        return [(d, c) for d in self.world.drivers for c in d.containers.values() if c.alive]

    def jobs(self) -> list[tuple[Driver, Job]]:
        return [(driver, job) for driver in self.world.drivers for job in driver.jobs]

    def events(self) -> list[tuple[Driver, Event]]:
        return [(driver, event) for driver in self.world.drivers for event in driver.events]

    # Most of the time things go on, or a run would never get far.

    @precondition(lambda self: self.world.drivers)
    @rule(which=some, steps=st.integers(1, 60), seed=some)
    def go_on(self, which: int, steps: int, seed: int) -> None:
        driver, chance = self.driver(which), random.Random(seed)
        for _ in range(steps):
            self.world.anything(driver, chance)

    @rule(seed=some, steps=st.integers(50, 300), rate=st.sampled_from([0.01, 0.05, 0.2]))
    def storm(self, seed: int, steps: int, rate: float) -> None:
        self.world.storm(random.Random(seed), steps, rate)

    @precondition(lambda self: self.jobs())
    @rule(which=some)
    def work(self, which: int) -> None:
        jobs = self.jobs()
        self.world.work(*jobs[which % len(jobs)])

    @precondition(lambda self: self.events())
    @rule(which=some)
    def deliver(self, which: int) -> None:
        events = self.events()
        self.world.deliver(*events[which % len(events)])

    @precondition(lambda self: self.events())
    @rule(which=some)
    def deliver_twice(self, which: int) -> None:
        events = self.events()
        self.world.deliver(*events[which % len(events)], again=True)

    @precondition(lambda self: self.world.drivers)
    @rule(which=some, seed=some)
    def somebody_scales_or_moves(self, which: int, seed: int) -> None:
        self.world.wish(self.driver(which), random.Random(seed))

    # Faults.

    @precondition(lambda self: self.jobs())
    @rule(which=some, when=st.sampled_from(["before", "after"]))
    def a_job_fails(self, which: int, when: str) -> None:
        jobs = self.jobs()
        self.world.work(*jobs[which % len(jobs)], fault=when)

    @precondition(lambda self: any(isinstance(job.instruction, Apply) for _, job in self.jobs()))
    @rule(which=some, slices=st.integers(0, 2))
    def applying_raises(self, which: int, slices: int) -> None:
        jobs = [(driver, job) for driver, job in self.jobs() if isinstance(job.instruction, Apply)]
        self.world.half_apply(*jobs[which % len(jobs)], slices)

    @precondition(lambda self: self.containers())
    @rule(which=some, really=st.booleans(), at_once=st.booleans())
    def a_container_is_lost(self, which: int, really: bool, at_once: bool) -> None:
        containers = self.containers()
        driver, container = containers[which % len(containers)]
        self.world.lose(driver, container, really=really)
        if at_once:
            self.world.deliver(driver, driver.events[-1])

    @precondition(lambda self: self.world.drivers)
    @rule(which=some)
    def a_standby_joins(self, which: int) -> None:
        driver = self.driver(which)
        driver.wanted += 1
        self.world.join(driver)

    @precondition(lambda self: self.world.drivers)
    @rule(which=some)
    def a_driver_crashes(self, which: int) -> None:
        self.world.crash(self.driver(which))

    @precondition(lambda self: len(self.world.drivers) < 2)
    @rule()
    def another_driver_starts(self) -> None:
        self.world.start_driver()

    # Promises.

    @invariant()
    def everything_equals_the_oracle(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()
            self.world.check()


QUICK = settings(
    max_examples=int(os.environ.get("HOLDFAST_EXAMPLES", "120")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestMasters = Masters.TestCase
TestMasters.settings = QUICK


class MastersOnTheRing(Masters):
    """Lost slices come back by themselves: early, late, doubled, in part, where nobody lost them, or never."""

    ring = True

    @precondition(lambda self: self.containers())
    @rule(which=some, slice_=some)
    def the_ring_has_one_ready(self, which: int, slice_: int) -> None:
        containers = self.containers()
        self.world.make_ready(containers[which % len(containers)][1], slice_ % self.world.slices)


TestMastersOnTheRing = MastersOnTheRing.TestCase
TestMastersOnTheRing.settings = QUICK


# ------------------------------------------------------------------------------ the world would notice


class ScansTooEarly(Master):
    def ready(self, slice_: int, epoch: int, level: int) -> bool:
        return self.owner(slice_) is not None


class LevelsTooEarly(Master):
    def _all_applied(self, level: int) -> bool:
        return True


class HealsHalfway(Master):
    """Takes a restored slice for one that has applied the epoch in flight too."""

    def _advance_epoch(self, flight: Flight) -> None:
        start = self._progress.at(self.committed)
        for (_, position), slices in self._progress.between(start, start + len(flight.prepared)).items():
            if self._routing_version > 1 and position == start:
                self._progress.begin(slices, "skip")
                self._progress.finish(slices, "skip", start + len(flight.prepared))
        super()._advance_epoch(flight)


class ForgetsToUndo(Master):
    def _advance_undo(self, flight: Flight) -> None:
        error, flight.failure = flight.failure, None
        self._progress._half.clear()
        self._fail(error or ValueError())


class FinishesBeforeTheCommit(Master):
    def handle(self, event: Event) -> list[Instruction]:
        told = super().handle(event)
        early = [FinishBatch(one.batch, one.fence.epoch) for one in told if isinstance(one, StoreCommit)]
        return [*told, *early]


class CutsTooMuch(Master):
    def handle(self, event: Event) -> list[Instruction]:
        told = super().handle(event)
        newest = self._checkpoints.newest
        return [replace(one, epoch=newest) if isinstance(one, CutLog) else one for one in told]


class BelievesLateAnswers(Master):
    """Knows an answer by its kind, not by the id of what it answers."""

    def _take(self, event: Event) -> None:
        if isinstance(event, Applied) and event.to not in self._asking.pending:
            pending = [one.id for one in self._asking.pending.values() if isinstance(one, Apply)]
            event = Applied(pending[0]) if pending else event
        super()._take(event)


class RestoresTooLittle(Master):
    """Does not see that the epoch was committed while a slice was restored."""

    def _commit(self, ours: StoreCommit, fence: Fence, batch: Batch) -> None:
        super()._commit(ours, fence, batch)
        for id_, one in self._asking.pending.items():
            if isinstance(one, Restore | Activate):
                self._asking.pending[id_] = replace(one, epoch=self.committed)


class TakesReadyForActive(Master):
    """Believes that what the ring has ready needs no one to make it active."""

    def _advance_recovery(self) -> None:
        here = self._progress.at(self.committed)
        for container, slices in self._progress.behind(here).items():
            ready = [slice_ for slice_ in slices if container in self._elastic.copies.held[slice_]]
            self._progress.begin(ready, "skip")
            self._progress.finish(ready, "skip", here)
        super()._advance_recovery()


class WaitsForEver(Master):
    """Never gives up on the ring."""

    def _advance_routing(self) -> None:
        if self._job.by_ring and self._started:
            self._elastic._readies.awaited = lambda orphans, *_: frozenset(orphans)  # type: ignore[method-assign]
        super()._advance_routing()


def find(planted: type[Master], noticed: str, on_ring: bool = False) -> None:
    """Look for a bug until the world notices it, by what it says then."""

    class Planted(MastersOnTheRing if on_ring else Masters):  # type: ignore[misc]
        master = planted

    search = settings(
        QUICK,
        max_examples=500,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
    )
    with pytest.raises((AssertionError, KeyError)) as caught:
        run_state_machine_as_test(Planted, settings=search)
    assert re.search(noticed, repr(caught.value))


@pytest.mark.parametrize(
    ("planted", "noticed"),
    [
        (ScansTooEarly, "found no output|KeyError"),
        (LevelsTooEarly, "too early|before every slice applied"),
        (HealsHalfway, "found no output|slice . at|put away"),
        (ForgetsToUndo, "slice . at"),
        (FinishesBeforeTheCommit, "KeyError"),
        (CutsTooMuch, "cut at the newest checkpoint"),
        (BelievesLateAnswers, "found no output|slice . at|put away|no progress"),
        (RestoresTooLittle, "found no output|slice . at|put away|the epoch is gone"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_bug_is_found(planted: type[Master], noticed: str) -> None:
    find(planted, noticed)


@pytest.mark.parametrize(
    ("planted", "noticed"),
    [(TakesReadyForActive, "KeyError|found no output"), (WaitsForEver, "no progress")],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bug_about_the_ring_is_found(planted: type[Master], noticed: str) -> None:
    find(planted, noticed, on_ring=True)
