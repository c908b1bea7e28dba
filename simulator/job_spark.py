"""Spark as a driver sees it: one batch at a time, offered again if it failed; jobs that scan containers.

Everything happens in the one thread in which Spark called ``foreachBatch``: an instruction waits until the job before
it has ended, whatever has become of its epoch meanwhile. Only sinks run beside each other.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from holdfast.errors import ContainerError, StoreError
from holdfast.invariants import invariant, some
from holdfast.log.records import FEED, Batch
from holdfast.master.events import Failed, IntakeDone, SinkDone
from holdfast.master.feed import BatchOffered, FailBatch, FinishBatch, RefuseBatch
from holdfast.master.instructions import Instruction, RunIntake, RunSink
from simulator.job_model import spark_batch

if TYPE_CHECKING:
    from simulator.job_driver import Driver
    from simulator.job_world import JobWorld

POLL_SECONDS = 0.05
GIVE_UP_SECONDS = 180.0
"""How long a scan looks for a slice's owner (``spark.scan``)."""


class Spark:
    def __init__(self, job: JobWorld, driver: Driver) -> None:
        self.next_batch = 0
        """A query reads its checkpoint when it starts and then counts on by itself."""
        self._job = job
        self._driver = driver
        self._offered: Batch | None = None
        self._told: deque[Instruction] = deque()
        self._working = False
        self._sinks = 0
        """That are under way."""

    def offer(self) -> None:
        """The next batch, or an epoch without rows; one that was prepared goes first, whoever asks."""
        driver = self._driver
        if self._offered is None and not driver.deposed:
            wants_tick = self._job.world.random.random() < 0.15
            tick = driver.feed.unfinished_tick or (driver.feed.next_tick if wants_tick else None)
            self._offered = tick or spark_batch(self.next_batch)
            driver.tell(BatchOffered(self._offered))

    def take(self, told: Instruction) -> None:
        self._told.append(told)
        self._next()

    def _next(self) -> None:
        while self._told and not self._working and (not self._sinks or isinstance(self._told[0], RunSink)):
            self._obey(self._told.popleft())

    def _over(self, told: RunIntake | RunSink) -> None:
        if isinstance(told, RunSink):
            self._sinks -= 1
        else:
            self._working = False
        self._next()

    def _obey(self, told: Instruction) -> None:
        driver, chance = self._driver, self._job.world.random
        match told:
            case RunIntake():
                self._working = True
                driver.later(self._job.costs.intake * chance.uniform(0.5, 2.0), self._run, told)
            case RunSink():
                self._sinks += 1
                driver.later(0.01 + 0.02 * chance.random(), self._run, told)
            case FinishBatch() | FailBatch() | RefuseBatch() if told.batch != self._offered:
                pass  # about an earlier offer, which has its answer
            case FinishBatch(batch=batch, epoch=epoch):
                invariant(batch.done_by(self._job.store.commits[epoch][1][FEED]), "finished without a commit")
                self._offered = None
                if not batch.tick:
                    self.next_batch = batch.batch_id + 1
                    self._job.store.spark_committed = max(self._job.store.spark_committed, batch.batch_id)
                driver.later(self._job.costs.trigger * chance.random(), self.offer)
            case FailBatch():
                self._offered = None
                if chance.random() < 0.3:  # the query ends with the error, and somebody starts the job again
                    driver.later(0.5, driver.crash, "its query failed")
                else:
                    driver.later(0.5 + chance.random(), self.offer)
            case RefuseBatch(batch=batch):
                # An older driver may have prepared something else meanwhile: that is finished first.
                invariant(batch.tick or driver.feed.unfinished_tick, f"refused: {told.error()}")
                self._offered = None
                driver.later(0.05, self.offer)

    # ---------------------------------------------------------------------------------------------------- jobs

    def _run(self, told: RunIntake | RunSink) -> None:
        """What looks at ``owner/`` does so before it begins."""
        if told.looks and not self._driver.still_ours():
            self._over(told)
            return
        level = told.level - 1 if isinstance(told, RunIntake) else self._job.store.levels
        self._scan(told, level, [], self._job.world.now)

    def _scan(self, told: RunIntake | RunSink, level: int, rows: list[int], since: float) -> None:
        """The outputs of a level, slice by slice, each where it is when its turn comes."""
        wanted = self._job.store.slices if level else 0
        while len(rows) < wanted:
            found = self._output(len(rows), told.fence.epoch, level)
            if found is None:
                if self._job.world.now - since > GIVE_UP_SECONDS:
                    self._driver.tell(Failed(told.id, ContainerError(f"Slice {len(rows)} was nowhere to be found.")))
                    self._over(told)
                else:
                    self._driver.later(POLL_SECONDS, self._scan, told, level, rows, since)
                return
            rows.append(found)
        self._driver.later(0.005, self._ended, told, tuple(rows))

    def _output(self, slice_: int, epoch: int, level: int) -> int | None:
        master = self._driver.master
        if not master.ready(slice_, epoch, level):
            return None
        owner = str(master.owner(slice_))
        host = self._job.containers.get(owner)
        if host is None or not host.answers:
            return None
        position = (epoch - 1) * self._job.store.levels + level
        found = host.model.output(slice_, position)
        return some(found, f"a scan of slice {slice_} on {owner} found no output of {epoch}.{level}")

    def _ended(self, told: RunIntake | RunSink, rows: tuple[int, ...]) -> None:
        if isinstance(told, RunIntake):
            try:
                tag = self._job.store.tag(told.ranges[FEED], told.fence, told.level, rows)
            except StoreError as error:
                self._driver.tell(Failed(told.id, error))
            else:
                self._driver.tell(IntakeDone(told.id, (tag,)))
        else:
            self._job.store.put_sink(told.sink, told.fence.epoch, rows, note=not told.last)
            self._driver.tell(SinkDone(told.id))
        self._over(told)
