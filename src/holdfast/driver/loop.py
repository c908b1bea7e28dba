"""The thin shell around the pure master: it performs instructions and reports what came of them.

Three kinds of threads. One dispatcher owns the machine: it takes events off a queue, in order, and hands out what the
machine asks for. A pool does what waits on containers and the store. And Spark's own jobs run in the thread in which
Spark called ``foreachBatch``, or beside it (``spark_jobs``).

Who carries an instruction out is found by its type, in three tables: ``containers``, ``store`` and ``epochs`` (Spark).
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
from holdfast.master.feed import BatchOffered, FailBatch, FinishBatch, RefuseBatch
from holdfast.master.machine import Master
from holdfast.wire.causes import named
from holdfast.wire.client import Unreachable
from holdfast.wire.handlers import Table

LOG = logging.getLogger("holdfast")
CLOCK_SECONDS = 0.25
TICK_SECONDS = 0.05
LOADS_SECONDS = 20.0
TIDY_SECONDS = 60.0
LOOK_SECONDS = 5.0  # a driver that is in a long sink, or has nothing to do, learns so late that it was replaced
BEHIND = (
    do.NeedContainers,
    do.EndContainer,
    do.SendCopies,
    do.SaveShards,
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
        self.counts = counts.total
        self.failure: Exception | None = None  # the last offered batch failed
        self.due: int | None = None  # µs of the clock at which something happens though no row comes
        self.on_commit: Callable[[EpochFigures], None] = lambda _: None
        self.on_error: Callable[[], None] = lambda: None  # the run is over
        self.look: Callable[[], HoldfastError | None] = lambda: None  # what has ended the run meanwhile, if anything
        self.go_on_without: Callable[[int, FunctionError], bool] = lambda *_: False  # whose job raised in that epoch
        self._containers = ContainerHandlers(brain, fleet, store, sizes, counts)
        self._upkeep = Upkeep(brain, fleet, store)
        self._table = Table(self._containers, store)
        self._spark_jobs = SparkJobs(brain, jobs, store, self._upkeep, sinks_at_once)
        self._row_times = RowTimes(jobs.plan.time_columns)
        self._spark: queue.SimpleQueue[do.Instruction] = queue.SimpleQueue()
        self._gate = threading.Lock()  # held while an epoch runs, and by whoever stops the run
        self._stopping = False
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="holdfast-shell")
        self._behind = ThreadPoolExecutor(32, thread_name_prefix="holdfast-behind")  # what no epoch waits for
        self._dispatcher = threading.Thread(target=self._dispatch, daemon=True, name="holdfast-master")
        self._clock = threading.Thread(target=until_exit(self._keep_time), daemon=True, name="holdfast-clock")
        self._ticker = threading.Thread(target=until_exit(self._keep_ticking), daemon=True, name="holdfast-ticks")

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

    def begin(self, started: ev.Started) -> None:
        self.tell(started)
        self._dispatcher.start()
        self._clock.start()
        stages = self._jobs.plan.stages
        for stage in stages:
            if reason := stage.operator.unbounded:
                self.history.note("warning", f"'{stage.name}' {reason}")
        if any(stage.build().clocked for stage in stages):
            self.due = 0  # a run before this one may have left something
            self._ticker.start()

    def follow(self, changed: ev.GraphChanged) -> None:
        """The job has another graph from the next epoch on, which comes soon even if no row does. Between epochs."""
        self._row_times = RowTimes(self._jobs.plan.time_columns)
        self.tell(changed)
        self.hurry()

    def hurry(self) -> None:
        """Have an epoch soon, if need be without rows: one that was begun, or else the next."""
        self.due = 0
        if not self._ticker.is_alive():
            self._ticker.start()

    def offer(self, frame: DataFrame, batch: Batch) -> None:
        """``foreachBatch``: returns when the batch is a committed epoch, raises when it is not."""
        with self._gate:
            self._brain.offering = threading.get_ident()
            if self._stopping:
                raise self._failed_with(Stopping("the run is being stopped"))
            if self.error is not None:
                raise self.error
            refusal = self._epoch(frame, batch)
            while refusal is not None:
                tick = self._brain.unfinished_tick()
                if tick is None:
                    raise self._failed_with(refusal.error())
                self._epoch(None, tick)
                refusal = self._epoch(frame, batch)

    def _epoch(self, frame: DataFrame | None, batch: Batch) -> RefuseBatch | None:
        """Offer a batch, or a tick, and run its jobs of Spark until it is committed. If it raises in a job of a hub, it
        is run once more without that one."""
        while True:
            try:
                with self._spark_jobs.ended():
                    return self._run_epoch(frame, batch)
            except FunctionError as error:
                if not (self._upkeep.still_ours() and self.go_on_without(self.machine.committed + 1, error)):
                    raise self._failed_with(error) from error.__cause__

    def _run_epoch(self, frame: DataFrame | None, batch: Batch) -> RefuseBatch | None:
        began = time.perf_counter()
        self.tell(BatchOffered(batch))
        while True:
            instruction = self._spark.get()
            match instruction:
                case FinishBatch() | FailBatch() | RefuseBatch() if instruction.batch != batch:
                    continue  # about an earlier offer, which has its answer
                case FinishBatch():
                    if not batch.tick:
                        self.last = replace(self.last, seconds=time.perf_counter() - began)
                        self.on_commit(self.last)
                    return None
                case FailBatch(error=error):
                    if isinstance(error, FunctionError):
                        if self._upkeep.still_ours():
                            self._store.mark_failed(self.machine.committed + 1, error)
                        raise error
                    raise self._failed_with(error)
                case RefuseBatch():
                    return instruction
                case do.Stop():
                    raise self._failed_with(some(self.error, "stopped without an error"))
                case _:
                    self._spark_jobs.run(frame, instruction)

    def _keep_ticking(self) -> None:
        """Run an epoch without rows when a timer or the end of a window in processing time asks for one."""
        while not self._brain.closing.wait(TICK_SECONDS):
            if self.due is None or self._store.clock.now() < self.due or not self._gate.acquire(blocking=False):
                continue  # not yet; or an epoch is running, which will do as well
            try:
                tick = self._brain.next_tick()
                if tick is None or self._stopping or self.error is not None:
                    continue
                self._brain.offering = threading.get_ident()
                self._epoch(None, tick)
            except Stopping:
                return
            except Exception as error:
                if not leaving():
                    self._fatal(named(error, "A tick"))
                return
            finally:
                self._gate.release()

    def _failed_with(self, error: Exception) -> Exception:
        """Spark wraps what ``foreachBatch`` raises into text; whoever waits for the query gets the error itself."""
        self.failure = error
        return error

    @property
    def inside(self) -> bool:
        """Whether this thread is one that runs the epoch in flight: it is in a sink."""
        thread = threading.get_ident()
        return self._gate.locked() and (self._brain.offering == thread or thread in self._brain.running)

    def begin_no_other(self) -> None:
        """The epoch in flight, if there is one, is the last of this run."""
        self._stopping = True

    def stop(self, patience: float) -> None:
        """Let the epoch in flight end, if it does so within these seconds, and let no other begin."""
        self.begin_no_other()
        patience = min(max(patience, 0.0), threading.TIMEOUT_MAX)
        while not self._gate.acquire(timeout=patience):
            # Told more than once: a batch may have been on its way to the master when it heard it first.
            self.tell(ev.EpochUnwanted(Stopping("the run is being stopped")))
            patience = CLOCK_SECONDS
        self._gate.release()

    def close(self) -> None:
        self._brain.close()
        for thread in (self._dispatcher, self._clock, self._ticker):
            if thread.is_alive():
                thread.join(10)
        for pool in (self._pool, self._behind):
            pool.shutdown(wait=True, cancel_futures=True)
        self._spark_jobs.close()

    @contextlib.contextmanager
    def between_epochs(self) -> Iterator[None]:
        """While this is held no epoch runs."""
        with self._gate:
            yield

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
            case do.RunIntake() | do.RunSink() | FinishBatch() | FailBatch() | RefuseBatch():
                self._spark.put(instruction)
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
        self._spark.put(do.Stop(reason=str(error), successor=0))
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
        read = sum(ref.input_rows for ref in first.segments)
        self.rows += read
        changed = sum(self._sizes.of(item.plan.name, "changed") for item in jobs.plan.intake(1))
        jobs.preaggregation.saw(read, sum(ref.rows for ref in first.segments), len(first.segments), changed)
        self.last = EpochFigures(read, self.last.seconds, dict(jobs.seconds))
        for warning in self._store.time.warnings() if read else ():
            self.history.note("warning", warning)
        self.due = self._sizes.over()
        for warning in self._row_times.epoch(self._counting.committed(epoch)):
            self.history.note("warning", warning)
