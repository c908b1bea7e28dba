"""The thin shell around the pure machines: it performs instructions and reports what came of them.

Four kinds of threads. One dispatcher owns the machines: it takes events off a queue, in order, and hands out what they
ask for. A pool does what waits on containers and the store. Spark's own jobs of a batch run in the thread in which
Spark called ``foreachBatch``, those of an epoch in the pump's, or beside these (``spark_jobs``).

Who carries an instruction out is found by its type, in tables: ``containers``, ``store``, ``intake`` (what the feed
does in the store) and ``epochs`` (Spark).

It is long because its threads, what each waits for and how all of them end, stand in one place.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from pyspark.sql import DataFrame

from holdfast.driver.brain import Brain
from holdfast.driver.containers import ContainerHandlers
from holdfast.driver.counts import Counts
from holdfast.driver.epochs import EpochJobs
from holdfast.driver.history import EpochFigures
from holdfast.driver.row_times import RowTimes
from holdfast.driver.sizes import Sizes
from holdfast.driver.spark_jobs import SparkJobs
from holdfast.driver.store import StoreHandlers
from holdfast.driver.story import bug
from holdfast.driver.upkeep import Upkeep
from holdfast.driver.watermarks import Timekeeper
from holdfast.errors import FencedError, FunctionError, HoldfastError
from holdfast.interpreter import leaving, until_exit
from holdfast.invariants import some
from holdfast.launch.fleet import Fleet
from holdfast.log.records import Batch
from holdfast.master import events as ev
from holdfast.master import instructions as do
from holdfast.master.feed import (
    BatchOffered,
    FailBatch,
    FeedStarted,
    FinishBatch,
    OfferUnwanted,
    RefuseBatch,
    RunSourceSink,
    SinksChanged,
    TakeIn,
)
from holdfast.master.machine import Master
from holdfast.master.pump import DecideFailed, EndEpochs, EpochsOver, PumpHeld, PumpLet, TickWanted
from holdfast.wire.causes import named
from holdfast.wire.client import Unreachable
from holdfast.wire.handlers import Table

LOG = logging.getLogger("holdfast")
CLOCK_SECONDS = 0.25
WEEK_SECONDS = 604_800.0
TICK_SECONDS = 0.05
LOADS_SECONDS = 20.0
TIDY_SECONDS = 60.0
LOOK_SECONDS = 5.0  # a driver that is in a long sink, or has nothing to do, learns so late that it was replaced
BEHIND = (
    do.NeedContainers,
    do.EndContainer,
    do.SendCopies,
    do.SaveShards,
    do.TakeDigests,
    do.DropCopies,
    do.WriteCheckpoint,
    do.VerifyPacks,
    do.StoreManifest,
    do.CutLog,
    do.Gather,  # it waits for peers as long as it takes: what epochs need must not queue up behind it
)
"""What no epoch waits for."""


class Stopping(Exception):
    """The run is being stopped; the offered batch was not begun, or is given up."""


class Shell:
    def __init__(
        self,
        brain: Brain,
        fleet: Fleet,
        store: StoreHandlers,
        jobs: EpochJobs,
        sizes: Sizes,
        counts: Counts,
        sinks_at_once: int = 1,
    ) -> None:
        self._brain, self._fleet, self._store, self._jobs = brain, fleet, store, jobs
        self._sizes, self._counting = sizes, counts
        self.history = brain.history
        self.incarnation = store.incarnation
        self.rows = 0
        self.last = EpochFigures()
        self.counts, self.units = counts.total, sizes.units
        self.failure: Exception | None = None  # the last offered batch failed, or the last epoch
        self.epochs_failed: Exception | None = None  # so that none comes any more, and no batch waited for it
        self.due: int | None = None  # µs of the clock at which something happens though no row comes
        self.on_commit: Callable[[EpochFigures], None] = lambda _: None
        self.on_error: Callable[[], None] = lambda: None  # the run is over
        self.look: Callable[[], HoldfastError | None] = lambda: None  # what has ended the run meanwhile, if anything
        self.go_on_without: Callable[[int, FunctionError], bool] = lambda *_: False  # whose job raised in that epoch
        self._containers = ContainerHandlers(brain, fleet, store, sizes, counts)
        self._upkeep = Upkeep(brain, fleet, store)
        self._table = Table(self._containers, store, jobs.blocks)
        self._feed_jobs = SparkJobs(brain, jobs, store, self._upkeep, sinks_at_once)
        self._epoch_jobs = SparkJobs(brain, jobs, store, self._upkeep, sinks_at_once)
        self._row_times = RowTimes(jobs.plan.time_columns)
        self._for_feed: queue.SimpleQueue[do.Instruction] = queue.SimpleQueue()
        self._for_pump: queue.SimpleQueue[do.Instruction] = queue.SimpleQueue()
        self._gate = threading.Lock()  # held while Spark waits for a batch, and by whoever keeps it from offering one
        self._epochs = threading.Lock()  # held while the pump's thread runs a job, and decides about one that failed
        self._offering = 0  # the thread in which Spark waits
        self._stopping = False
        self._ticks = False
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="holdfast-shell")
        self._behind = ThreadPoolExecutor(32, thread_name_prefix="holdfast-behind")  # what no epoch waits for
        self._dispatcher = threading.Thread(target=self._dispatch, daemon=True, name="holdfast-master")
        self._clock = threading.Thread(target=until_exit(self._keep_time), daemon=True, name="holdfast-clock")
        pumping = until_exit(jobs.beside(self._keep_pumping))
        self._pump = threading.Thread(target=pumping, daemon=True, name="holdfast-pump")

    # --- from outside -------------------------------------------------------------------------------------

    @property
    def machine(self) -> Master:
        return self._brain.machine

    @property
    def error(self) -> HoldfastError | None:
        """The run is over."""
        return self._brain.error

    @property
    def time(self) -> Timekeeper:
        return self._store.time

    def suspects(self) -> frozenset[str]:
        return self._fleet.suspects

    def scrub(self) -> int:
        return self._upkeep.scrub()

    def tell(self, event: ev.Event) -> None:
        self._brain.tell(event)

    def wait_for(self, true: Callable[[], bool], seconds: float) -> bool:
        return self._brain.wait_for(true, seconds)

    def drained(self, seconds: float) -> bool:
        return self._brain.drained(seconds)

    def begin(self, feed: FeedStarted, started: ev.Started) -> None:
        self.tell(feed)
        self.tell(started)
        self._dispatcher.start()
        self._clock.start()
        self._pump.start()
        stages = self._jobs.plan.stages
        for stage in stages:
            if reason := stage.operator.unbounded:
                self.history.note("warning", f"'{stage.name}' {reason}")
        if any(stage.build().clocked for stage in stages):
            self.due = 0  # a run before this one may have left something
            self._ticks = True

    def let_epochs(self) -> None:
        """All that is needed is there: epochs may begin."""
        self.tell(PumpLet())

    def follow(self, changed: ev.GraphChanged, sinks: SinksChanged) -> None:
        """The job has another graph from the next epoch on, which comes soon even if no row does. Between epochs."""
        self._row_times = RowTimes(self._jobs.plan.time_columns)
        self.tell(changed)
        self.tell(sinks)
        self.hurry()

    def hurry(self) -> None:
        """Have an epoch soon, if need be without rows: one that was begun, or else the next."""
        self.due = 0
        self._ticks = True

    # --- batches ------------------------------------------------------------------------------------------

    def offer(self, frame: DataFrame, batch: Batch) -> None:
        """``foreachBatch``: returns when the batch has a block, and without prefetch when that is a committed epoch;
        raises when it is not."""
        with self._gate:
            self._offering = threading.get_ident()
            try:
                if self._stopping:
                    raise self._failed_with(Stopping("the run is being stopped"))
                if self.error is not None:
                    raise self.error
                if self.failure is not None:  # no epoch comes any more
                    raise self.failure
                with self._feed_jobs.ended():
                    self._take(frame, batch)
            finally:
                self._offering = 0

    def _take(self, frame: DataFrame, batch: Batch) -> None:
        began = time.perf_counter()
        self.tell(BatchOffered(batch))
        while True:
            instruction = self._for_feed.get()
            match instruction:
                case FinishBatch() | FailBatch() | RefuseBatch() if instruction.batch != batch:
                    continue  # about an earlier offer, which has its answer
                case FinishBatch():
                    self.last = replace(self.last, seconds=time.perf_counter() - began)
                    self.on_commit(self.last)
                    return
                case FailBatch(error=error):
                    raise self._failed_with(error) from error.__cause__
                case RefuseBatch():
                    raise self._failed_with(instruction.error())
                case do.Stop():
                    raise self._failed_with(some(self.error, "stopped without an error"))
                case _:
                    self._feed_jobs.run(frame, instruction)

    # --- epochs -------------------------------------------------------------------------------------------

    def _keep_pumping(self) -> None:
        """Run what epochs need of Spark; and ask for one without rows when a timer or the end of a window in processing
        time does."""
        while not self._brain.closing.is_set():
            try:
                instruction = self._for_pump.get(timeout=TICK_SECONDS)
            except queue.Empty:
                if self._ticks and self.due is not None and self._store.clock.now() >= self.due and self._may_go_on:
                    self.tell(TickWanted())
                continue
            if isinstance(instruction, do.Stop):
                return
            try:
                with self._epochs:
                    self._pumped(instruction)
            except Exception as error:  # nobody would hear of it, and whoever waits for epochs would wait for ever
                if not leaving():
                    self._fatal(named(error, "An epoch"))

    def _pumped(self, instruction: do.Instruction) -> None:
        match instruction:
            case DecideFailed(error=error):
                self._decide(error)
            case EndEpochs(error=error):
                self._end_epochs(error)
            case _:
                self._epoch_jobs.run(None, instruction)

    @property
    def _may_go_on(self) -> bool:
        return not self._stopping and self.error is None and self.failure is None

    def _decide(self, error: Exception) -> None:
        """About an epoch that failed. If it raised in a job of a hub, it is run once more without that one."""
        with self._epoch_jobs.ended():
            pass
        if isinstance(error, FunctionError) and self._upkeep.still_ours():
            epoch = self.machine.committed + 1
            try:
                if self.go_on_without(epoch, error):
                    self.tell(ev.GoOn())
                    return
                self._store.mark_failed(epoch, error)
            except HoldfastError as further:
                error = further
        self.tell(EpochsOver(error))

    def _end_epochs(self, error: Exception) -> None:
        """Nobody waits for the epoch that failed: whoever waits for the run hears of it."""
        if not isinstance(error, Stopping) and not self._stopping and self.error is None:
            named_error = named(error, "An epoch")
            self.failure = self.epochs_failed = named_error
            self.history.note("failed", str(named_error).splitlines()[0])
            with self._brain.changed:
                self._brain.changed.notify_all()
            self.on_error()

    def _failed_with(self, error: Exception) -> Exception:
        """Spark wraps what ``foreachBatch`` raises into text; whoever waits for the query gets the error itself."""
        self.failure = error
        return error

    @property
    def inside(self) -> bool:
        """Whether this thread is one that runs a batch or an epoch: it is in a sink."""
        thread = threading.get_ident()
        return thread in (self._offering, self._pump.ident) or thread in self._brain.running

    @property
    def ending(self) -> bool:
        """No batch and no epoch begins any more but of what is taken in."""
        return self._stopping

    def begin_no_other(self) -> None:
        """The batch under way, if there is one, is the last of this run, and what is taken in is read."""
        self._stopping = True

    def stop(self, patience: float) -> None:
        """Let the batch under way end, and the epochs of what is taken in, if they do so within these seconds; and let
        no other begin."""
        self.begin_no_other()
        deadline = time.monotonic() + min(max(patience, 0.0), WEEK_SECONDS)
        while not self._gate.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            # Told more than once: a batch may have been on its way to the feed when it heard it first.
            self._give_up()
            deadline = time.monotonic() + CLOCK_SECONDS
        try:
            self.wait_for(lambda: self._drained, max(deadline - time.monotonic(), 0.0))
            self.tell(PumpHeld())
            self.drained(CLOCK_SECONDS)
            while not self.wait_for(lambda: self._brain.pump.at_rest, max(deadline - time.monotonic(), 0.0)):
                self._give_up()
                deadline = time.monotonic() + CLOCK_SECONDS
            with self._epochs:
                pass  # whatever still runs for an epoch has left its thread
        finally:
            self._gate.release()

    def _give_up(self) -> None:
        stopping = Stopping("the run is being stopped")
        self.tell(OfferUnwanted(stopping))
        self.tell(ev.EpochUnwanted(stopping))

    @property
    def _drained(self) -> bool:
        """Nothing is left that epochs have to read, or no epoch comes any more. What goes round waits for the next
        start."""
        pump = self._brain.pump
        return pump.at_rest or not pump.unread or (pump.idle and pump.stuck)

    def close(self) -> None:
        self._brain.close()
        self._for_pump.put(do.Stop(reason="closed", successor=0))
        for thread in (self._dispatcher, self._clock, self._pump):
            if thread.is_alive():
                thread.join(10)
        for pool in (self._pool, self._behind):
            pool.shutdown(wait=True, cancel_futures=True)
        self._feed_jobs.close()
        self._epoch_jobs.close()

    @contextlib.contextmanager
    def between_batches(self) -> Iterator[None]:
        """While this is held Spark waits for no batch."""
        with self._gate:
            yield

    @contextlib.contextmanager
    def between_epochs(self) -> Iterator[None]:
        """While this is held no epoch runs, and none begins."""
        self.tell(PumpHeld())
        try:
            self.drained(WEEK_SECONDS)  # it may not have heard yet what was told before
            self.wait_for(lambda: self._brain.pump.at_rest, WEEK_SECONDS)
            with self._epochs:
                yield
        finally:
            self.tell(PumpLet())

    def drained_in(self, seconds: float, number: int | None = None) -> bool:
        """Wait until everything up to this block is read, or without a number all that is taken in, or the run is over;
        whether one of them is so. A run that is being stopped may read it yet."""
        pump = self._brain.pump

        def read() -> bool:
            return pump.dry if number is None else pump.through(number)

        return self.wait_for(lambda: self.epochs_failed is not None or read(), seconds)

    @property
    def taken_in(self) -> int:
        """The number of the newest block."""
        return self._brain.feed.last

    @property
    def unread(self) -> int:
        """Blocks that wait for an epoch, or are in the one under way."""
        return self._brain.pump.unread

    def rounds_of(self, loop: str) -> tuple[int, int]:
        """How often rows have gone round a loop since there were others, and how many wait for the next epoch."""
        pump = self._brain.pump
        return pump.rounds.get(loop, 0), pump.waiting.get(loop, 0)

    # --- the dispatcher -----------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        while (event := self._brain.next()) is not None:
            try:
                for instruction in self._brain.handle(event):
                    self._perform(instruction)
                self._cancel_unwanted()
            except BaseException as error:
                if leaving():
                    return
                self._brain.broken = True
                LOG.exception("the master failed")
                self._fatal(bug(error, self._store.ledger, self.incarnation))

    def _perform(self, instruction: do.Instruction) -> None:
        match instruction:
            case TakeIn() | RunSourceSink() | FinishBatch() | FailBatch() | RefuseBatch():
                self._for_feed.put(instruction)
            case do.RunIntake() | do.RunSink() | DecideFailed() | EndEpochs():
                self._for_pump.put(instruction)
            case do.TellPeople(kind=kind, text=text):
                self.history.note(kind, text)
            case do.EndRun(error=error):
                self._fatal(named(error, "The driver"))
            case do.Stop():
                self._fatal(
                    FencedError(
                        f"This driver is no longer the master of the job: {instruction.reason}.",
                        safe="The state and every committed epoch; the newer master goes on with them.",
                        todo="Stop this driver. If it should run the job, stop the other one and start this one again.",
                    )
                )
            case _:
                pool = self._behind if isinstance(instruction, BEHIND) else self._pool
                pool.submit(self._background, instruction)

    def _cancel_unwanted(self) -> None:
        with self._brain.changed:
            jobs = self._brain.unwanted()
        for job in jobs:
            self._pool.submit(self._jobs.cancel, job)

    def _fatal(self, error: HoldfastError) -> None:
        self._brain.end(error)
        self.history.note("failed", str(error).splitlines()[0])
        self._for_feed.put(do.Stop(reason=str(error), successor=0))
        self.on_error()

    def _keep_time(self) -> None:
        """The master's clock; and now and then it hears how much work each slice is, and whether it was replaced."""
        looked = owner_looked = time.monotonic()
        look: Future[bool] | None = None
        tidied, tidy = looked + TIDY_SECONDS / 6, None  # of the run before; then only now and then
        while not self._brain.closing.wait(CLOCK_SECONDS):
            now = time.monotonic()
            if not self._brain.behind:  # else it needs no further tick
                self.tell(ev.Clock(now))
            if now - looked > LOADS_SECONDS:
                looked = now
                self._behind.submit(self._upkeep.look_at_loads)
            if now - owner_looked > LOOK_SECONDS and (look is None or look.done()):
                owner_looked = now
                look = self._behind.submit(self._look_around)
            if now > tidied and (tidy is None or tidy.done()):
                tidied = now + TIDY_SECONDS
                tidy = self._behind.submit(self._upkeep.tidy)

    def _look_around(self) -> bool:
        if self.error is None and not self._stopping and (error := self.look()) is not None:
            self._fatal(error)
        return self._upkeep.still_ours()

    # --- in the pool --------------------------------------------------------------------------------------

    def _background(self, instruction: do.Instruction) -> None:
        if self._brain.over:
            return  # the run is over: nothing more is done, or written, for it
        try:
            if instruction.looks and not self._upkeep.still_ours():
                return
            answer = self._do(instruction)
        except Unreachable:
            self._containers.suspect(instruction)
            return
        except Exception as raised:
            if leaving():
                return
            if not isinstance(raised, HoldfastError):
                LOG.exception("instruction %s failed", instruction)
            error = named(raised, "The driver")
            self.history.failed(type(instruction).__name__, error)
            self.tell(ev.Failed(instruction.id, error))
            return
        if answer is not None:
            self.tell(answer)

    def _do(self, instruction: do.Instruction) -> ev.Event | None:
        found = self._table.find(type(instruction))
        answer: ev.Event | None = self._containers.send(instruction) if found is None else found.run(instruction)
        if isinstance(instruction, do.StoreCommit):
            self._count(instruction.fence.epoch)
        return answer

    def _count(self, epoch: int) -> None:
        first, jobs = self._store.prepare_of(epoch, 1), self._jobs
        segments = [ref for ref in first.segments if ref.input_rows]  # of sources, and not what goes round
        read = sum(ref.input_rows for ref in segments)
        self.rows += read
        changed = sum(self._sizes.of(item.plan.name, "changed") for item in jobs.plan.intake(1))
        jobs.preaggregation.saw(read, sum(ref.rows for ref in segments), len(segments), changed)
        self.last = EpochFigures(read, self.last.seconds, dict(jobs.seconds))
        for warning in self._store.time.warnings() if read else ():
            self.history.note("warning", warning)
        self.due = self._sizes.over()
        for warning in self._row_times.epoch(self._counting.committed(epoch)):
            self.history.note("warning", warning)
