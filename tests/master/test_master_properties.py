"""Masters in a world where anything may fail, at any time, in any order; and that this world would notice.

The seed of a failing run is printed by Hypothesis. ``--hypothesis-seed=N`` repeats it.
HOLDFAST_EXAMPLES=5000 looks longer.
"""

from __future__ import annotations

import os
import random

import dice
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from master_kit import Play, success, taking
from master_world import Container, Driver, Job, World
from planted_masters import (
    BelievesLateAnswers,
    CutsTooMuch,
    FinishesBeforeTheCommit,
    ForgetsToUndo,
    HealsHalfway,
    LevelsTooEarly,
    RestoresTooLittle,
    ScansTooEarly,
    TakesReadyForActive,
    WaitsForEver,
)

from holdfast.errors import StoreError
from holdfast.master.events import ContainerLost, Event, Failed
from holdfast.master.instructions import Apply, Gather, Restore, StoreManifest
from holdfast.master.machine import Master

some = st.integers(0, 1000)


class Masters(RuleBasedStateMachine):
    """Two drivers at most, each with its own containers and its own Spark query on the same checkpoint."""

    master: type[Master] = Master

    ring = False
    loops = False

    @initialize(
        levels=st.integers(1, 3),
        sinks=st.integers(0, 3),
        every=st.integers(1, 3),
        backups=st.integers(0, 2),
        source_sinks=st.integers(0, 2),
        prefetch=st.integers(0, 1),
    )
    def begin(
        self, levels: int, sinks: int, every: int, backups: int, source_sinks: int = 0, prefetch: int = 0
    ) -> None:
        self.world = World(
            self.master,
            levels=levels,
            sinks=sinks,
            checkpoint_every=every,
            backups=0 if self.ring else backups,
            ring=self.ring,
            source_sinks=source_sinks,
            prefetch=prefetch,
            loops=self.loops and sinks > 0,
            settle=backups > 0,
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
    @rule(forgotten=st.integers(0, 2))
    def another_driver_starts(self, forgotten: int) -> None:
        self.world.start_driver(forgotten)

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


class MastersWithLoops(Masters):
    """What the first sink has comes round again in the next epoch, until it runs dry."""

    loops = True


TestMastersWithLoops = MastersWithLoops.TestCase
TestMastersWithLoops.settings = QUICK
TestMastersWithLoops.pytestmark = [pytest.mark.heavy]  # type: ignore[attr-defined]  # one a seed: ``test_loops``


def test_of_two_jobs_of_equal_words_each_is_answered() -> None:
    """Found by the search: two gatherings of one container, of which one took the other's place and was never heard."""
    world = World(ring=True)
    world.start_driver()
    driver = world.newest
    driver.containers["c"] = Container("c", world.store)
    jobs = [Job(Gather("c", driver.master.fence, frozenset({0}), frozenset())) for _ in range(2)]
    driver.jobs += jobs
    world.work(driver, jobs[1])
    assert [job for job in driver.jobs if job in jobs] == [jobs[0]]
    assert driver.jobs[-1] is jobs[0], "the other one is still to be done"


def test_a_restore_that_fails_after_its_checkpoint_was_overtaken() -> None:
    """Found by the search: the log below the older of two checkpoints is cut, so only the newer one is a way back."""
    play = Play(committed=7, ranges=taking(6), checkpoint=4, checkpoint_before=2, incarnation=2, checkpoint_every=1)
    play.join("a", "b").run().offer(7).run(until=StoreManifest)
    manifest = play.take(StoreManifest)
    play.tell(ContainerLost("b"))
    restore = play.take(Restore)
    assert restore.checkpoint == 7
    play.tell(success(manifest))
    again = [one for one in play.tell(Failed(restore.id, StoreError("torn"))) if isinstance(one, Restore)]
    assert [one.checkpoint for one in again] == [8], "and not 4: the log above that is gone"


def test_a_restore_from_the_other_checkpoint_that_fails_because_a_third_was_completed_begins_with_that() -> None:
    """Found by the search: while the older of two was tried, the log between them was cut."""
    play = Play(committed=7, ranges=taking(6), checkpoint=4, checkpoint_before=2, incarnation=2, checkpoint_every=1)
    play.join("a", "b").run().offer(7).run(until=StoreManifest)
    manifest = play.take(StoreManifest)
    play.tell(ContainerLost("b"))
    for checkpoint in (7, 4):
        restore = play.take(Restore)
        assert restore.checkpoint == checkpoint
        if checkpoint == 4:
            play.tell(success(manifest))
        play.tell(Failed(restore.id, StoreError(f"{checkpoint} is torn")))
    last = play.take(Restore)
    assert last.checkpoint == 8
    play.tell(Failed(last.id, StoreError("8 is torn")))
    assert not [one for one in play.open if isinstance(one, Restore)], "there is nothing else"
    assert str(play.master.unrestored).startswith("7 is torn"), "what was wrong with the first one counts"


# ------------------------------------------------------------------------------ the world would notice


def test_a_batch_that_comes_when_an_epoch_without_rows_has_failed_is_not_waited_for_in_vain() -> None:
    """Found by the search: nobody had waited for that epoch, so nobody decided to try it again."""
    state = MastersOnTheRing()
    state.begin(levels=1, sinks=0, every=1, backups=0, source_sinks=0, prefetch=0)
    state.storm(rate=0.2, seed=492, steps=59)
    for _ in range(3):
        state.a_standby_joins(which=0)
    state.a_container_is_lost(at_once=True, really=False, which=0)
    state.storm(rate=0.01, seed=295, steps=188)
    state.teardown()


def find(planted: type[Master], noticed: str, on_ring: bool = False) -> None:
    """Look for a bug until the world notices it, by what it says then: in histories that a seed alone decides."""

    class Planted(MastersOnTheRing if on_ring else Masters):  # type: ignore[misc]
        master = planted

    dice.find(Planted, noticed)


@pytest.mark.parametrize(
    ("planted", "noticed"),
    [
        (ScansTooEarly, "found no output|KeyError"),
        (LevelsTooEarly, "too early|before every slice applied"),
        (HealsHalfway, "found no output|slice . at|put away"),
        (ForgetsToUndo, "slice . at"),
        (FinishesBeforeTheCommit, "finished without a commit|KeyError"),
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
    [(TakesReadyForActive, r"which is not on|found no output|slice \d+ at"), (WaitsForEver, "no progress")],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bug_about_the_ring_is_found(planted: type[Master], noticed: str) -> None:
    find(planted, noticed, on_ring=True)
