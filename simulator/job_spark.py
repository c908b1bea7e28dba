"""Spark as a driver sees it: one batch at a time, offered again if it failed; jobs that scan containers.

What is done for a batch happens in the one thread in which Spark called ``foreachBatch``, what is done for an epoch in
the pump's: an instruction waits until the job before it has ended there, whatever has become of its epoch meanwhile.
Only sinks run beside each other. Spark syncs none of its files, so a query may begin a few batches too early.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from holdfast.errors import ContainerError, StoreError
from holdfast.invariants import invariant, some
from holdfast.log.records import FEED, Batch
from holdfast.master.events import Failed, GoOn, IntakeDone, SinkDone
from holdfast.master.feed import BatchOffered, FailBatch, FinishBatch, RefuseBatch, RunSourceSink, TakeIn
from holdfast.master.instructions import Instruction, RunIntake, RunSink
from holdfast.master.pump import DecideFailed, EndEpochs, EpochsOver, TickWanted
from simulator.job_model import spark_batch

if TYPE_CHECKING:
    from simulator.job_driver import Driver
    from simulator.job_world import JobWorld

POLL_SECONDS = 0.05
GIVE_UP_SECONDS = 180.0
"""How long a scan looks for a slice's owner (``spark.scan``)."""
Task = RunIntake | RunSink | TakeIn | RunSourceSink


class Thread:
    """One thing after the other; only sinks side by side."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self._told: deque[Instruction] = deque()
        self._working = False
        self._sinks = 0
        """That are under way."""

    def take(self, told: Instruction) -> None:
        self._told.append(told)
        self.next()

    def next(self) -> None:
        while self._told and not self._working and (not self._sinks or _is_sink(self._told[0])):
            told = self._told.popleft()
            if _is_sink(told):
                self._sinks += 1
            elif isinstance(told, TakeIn | RunIntake):
                self._working = True
            self._spark.obey(told)

    def over(self, told: Task) -> None:
        if _is_sink(told):
            self._sinks -= 1
        else:
            self._working = False
        self.next()


def _is_sink(told: Instruction) -> bool:
    return isinstance(told, RunSink | RunSourceSink)


class Spark:
    def __init__(self, job: JobWorld, driver: Driver) -> None:
        self.next_batch = 0
        """A query reads its checkpoint when it starts and then counts on by itself."""
        self._job = job
        self._driver = driver
        self.held = 0
        """By so many no batch is offered for now."""
        self.failed = False
        """A batch has, or an epoch: a real driver's query ends by that, and until then it is not changed."""
        self._offered: Batch | None = None
        self._feed, self._pump = Thread(self), Thread(self)

    def begin(self, batch: int) -> None:
        self.next_batch = max(batch - self._job.world.random.choice([0, 0, 0, 1, 2]), 0)

    def offer(self) -> None:
        """The next batch; and now and then it is time for an epoch without rows."""
        driver = self._driver
        if self.held:
            driver.later(0.02, self.offer)
        elif self._offered is None and not driver.deposed:
            if self._job.world.random.random() < 0.15:
                driver.tell(TickWanted())
            self._offered = spark_batch(self.next_batch)
            driver.tell(BatchOffered(self._offered))

    def take(self, told: Instruction) -> None:
        self._feed.take(told)

    def pump(self, told: Instruction) -> None:
        self._pump.take(told)

    def _over(self, told: Task) -> None:
        (self._feed if isinstance(told, TakeIn | RunSourceSink) else self._pump).over(told)

    def obey(self, told: Instruction) -> None:
        driver, chance = self._driver, self._job.world.random
        match told:
            case RunIntake() | TakeIn():
                driver.later(self._job.costs.intake * chance.uniform(0.5, 2.0), self._run, told)
            case RunSink() | RunSourceSink():
                driver.later(0.01 + 0.02 * chance.random(), self._run, told)
            case DecideFailed(error=error):
                driver.later(0.01, driver.tell, GoOn() if chance.random() < 0.2 else EpochsOver(error))
            case EndEpochs():
                self.failed = True
                if chance.random() < 0.3:
                    driver.later(0.5, driver.crash, "its epochs failed")
                else:
                    driver.later(0.5 + chance.random(), driver.tell, GoOn())
            case FinishBatch() | FailBatch() | RefuseBatch() if told.batch != self._offered:
                pass  # about an earlier offer, which has its answer
            case FinishBatch(batch=batch):
                self._job.store.check_finished(told)
                self._offered = None
                self.next_batch = batch.batch_id + 1
                driver.later(self._job.costs.trigger * chance.random(), self.offer)
            case FailBatch():
                self._offered, self.failed = None, True
                if chance.random() < 0.3:  # the query ends with the error, and somebody starts the job again
                    driver.later(0.5, driver.crash, "its query failed")
                else:
                    driver.later(0.5 + chance.random(), self.offer)
            case RefuseBatch():
                invariant(False, f"refused: {told.error()}")

    # ---------------------------------------------------------------------------------------------------- jobs

    def _run(self, told: Task) -> None:
        """What looks at ``owner/`` does so before it begins."""
        if told.looks and not self._driver.still_ours():
            self._over(told)
            return
        if isinstance(told, TakeIn | RunSourceSink) or (isinstance(told, RunIntake) and told.level == 1):
            self._driver.later(0.005, self._ended, told, ())
            return
        level = told.level - 1 if isinstance(told, RunIntake) else self._job.store.levels
        self._scan(told, level, [], self._job.world.now)

    def _scan(self, told: RunIntake | RunSink, level: int, rows: list[int], since: float) -> None:
        """The outputs of a level, slice by slice, each where it is when its turn comes."""
        while len(rows) < self._job.store.slices:
            found = self._output(len(rows), told.fence.epoch, level)
            if found is None:
                if not self._driver.wants(told):
                    self._over(told)  # cancelled
                elif self._job.world.now - since > GIVE_UP_SECONDS:
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

    def _ended(self, told: Task, rows: tuple[int, ...]) -> None:
        store, tell = self._job.store, self._driver.tell
        try:
            match told:
                case TakeIn(fence=fence, batch=batch):
                    tell(IntakeDone(told.id, (store.tag(batch, fence, 0, rows),)))
                case RunSourceSink():
                    store.give(told)
                    tell(SinkDone(told.id))
                case RunIntake(level=1, ranges=ranges):
                    tell(IntakeDone(told.id, store.tags_of(ranges)))
                case RunIntake(fence=fence, level=level, ranges=ranges):
                    tell(IntakeDone(told.id, (store.tag(ranges[FEED], fence, level, rows),)))
                case RunSink(fence=fence, sink=sink):
                    store.put_sink(sink, fence.epoch, rows, note=not told.last)
                    tell(SinkDone(told.id))
        except StoreError as error:
            tell(Failed(told.id, error))
        self._over(told)
