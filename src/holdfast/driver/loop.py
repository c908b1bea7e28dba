"""The thin shell around the pure master: it performs instructions and reports what came of them.

Three kinds of threads. One dispatcher owns the machine: it takes events off a queue, in order, and hands out what the
machine asks for. A pool does what waits on containers and the store. And Spark's own jobs run in the thread in which
Spark called ``foreachBatch``, because that thread carries the query's session and job group. A job whose answer the
machine does not await any more is cancelled by its tag, again with every event and tick of the clock until the thread
has left it: cancelling reaches only what runs at that moment, and a sink may be between two jobs.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from holdfast import faults
from holdfast.driver.counts import Counts
from holdfast.driver.epochs import EpochJobs, counted
from holdfast.driver.handlers import Performer
from holdfast.driver.history import EpochFigures, History
from holdfast.driver.row_times import RowTimes
from holdfast.driver.story import bug
from holdfast.driver.watermarks import Timekeeper
from holdfast.errors import (
    ContainerError,
    CorruptionError,
    EpochGone,
    FencedError,
    FunctionError,
    HoldfastError,
    StoreError,
    from_wire,
)
from holdfast.interpreter import leaving, until_exit
from holdfast.invariants import Impossible, some
from holdfast.launch.fleet import Fleet
from holdfast.log.ledger import Ledger
from holdfast.log.records import Batch
from holdfast.master import events as ev
from holdfast.master import instructions as do
from holdfast.master.feed import BatchOffered, FailBatch, Fed, FinishBatch, RefuseBatch
from holdfast.master.machine import Master
from holdfast.master.readies import PATIENCE_SECONDS
from holdfast.plan.graph import Sink
from holdfast.spark.checkpoint import SparkNotes
from holdfast.spark.quiet import quiet
from holdfast.spark.scan import Groups, group_by_owner
from holdfast.spark.words import spark_failed
from holdfast.wire.causes import named
from holdfast.wire.client import Address, Unreachable

LOG = logging.getLogger("holdfast")
OWNER_SECONDS = 60.0 + PATIENCE_SECONDS  # what the ring does not bring back comes from the store after that
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
)
"""What no epoch waits for."""


class Stopping(Exception):
    """The run is being stopped; the offered batch was not begun, or is given up."""


class Shell:
    def __init__(self, ledger: Ledger, incarnation: int, fleet: Callable[[], Fleet], sinks: Mapping[str, Sink]) -> None:
        self.machine = Master()
        self._fed = Fed(self.machine)
        self.ledger = ledger
        self.incarnation = incarnation
        self.history = History()
        self.rows = 0
        self.last = EpochFigures()
        self.error: HoldfastError | None = None  # the run is over
        self.failure: Exception | None = None  # the last offered batch failed
        self.restore_failure: Exception | None = None  # slices that could not be brought back
        self.on_commit: Callable[[EpochFigures], None] = lambda _: None
        self.on_error: Callable[[], None] = lambda: None  # the run is over
        self.look: Callable[[], HoldfastError | None] = lambda: None  # what has ended the run meanwhile, if anything
        self._fleet = fleet
        self._sinks = sinks
        self._performer = Performer(ledger, incarnation, fleet, self.history)
        self._jobs: EpochJobs | None = None
        self._sizes: dict[str, dict[str, Mapping[str, Any]]] = {}  # container → stage → changed, rows, counts
        self._counting = Counts()
        self._row_times = RowTimes({})
        self.counts = self._counting.total
        self._changed = threading.Condition()
        self._queue: queue.Queue[ev.Event | threading.Event | None] = queue.Queue()
        self._spark: queue.SimpleQueue[do.Instruction] = queue.SimpleQueue()
        self._gate = threading.Lock()  # held while an epoch runs, and by whoever stops the run
        self._offering = 0
        self._running: do.Instruction | None = None  # the job of Spark's that is under way
        self._stopping = False
        self._broken = False  # by a bug of ours: nothing more is done, or written
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="holdfast-shell")
        self._behind = ThreadPoolExecutor(32, thread_name_prefix="holdfast-behind")  # what no epoch waits for
        self._closing = threading.Event()
        self._dispatcher = threading.Thread(target=self._dispatch, daemon=True, name="holdfast-master")
        self._dispatcher.start()
        self._clock = threading.Thread(target=until_exit(self._keep_time), daemon=True, name="holdfast-clock")
        self.due: int | None = None  # µs of the clock at which something happens though no row comes
        self._ticker = threading.Thread(target=until_exit(self._keep_ticking), daemon=True, name="holdfast-ticks")

    # --- from outside -------------------------------------------------------------------------------------

    def begin(
        self,
        started: ev.Started,
        jobs: EpochJobs,
        counters: Mapping[str, int],
        dropped: frozenset[str],
        time: Timekeeper,
        bandwidth: float | None,
    ) -> None:
        self._jobs = jobs
        performer = self._performer
        performer.sinks, performer.counters, performer.time = tuple(self._sinks), dict(counters), time
        performer.dropped, performer.bandwidth, performer.slices = dropped, bandwidth, jobs.slices
        performer.clock.take(time.clock, None)
        self._row_times = RowTimes(jobs.plan.time_columns)
        performer.has_functions = any(stage.operator.calls_users for stage in jobs.plan.stages)
        self.tell(started)
        self._clock.start()
        for stage in jobs.plan.stages:
            if reason := stage.operator.unbounded:
                self.history.note("warning", f"'{stage.name}' {reason}")
        if any(stage.build().clocked for stage in jobs.plan.stages):
            self.due = 0  # a run before this one may have left something
            self._ticker.start()

    def tell(self, event: ev.Event) -> None:
        self._queue.put(event)

    def lost(self, container: str, reason: str) -> None:
        self.history.lost(container, reason)
        self.tell(ev.ContainerLost(container, reason))

    def offer(self, frame: DataFrame, batch: Batch) -> None:
        """``foreachBatch``: returns when the batch is a committed epoch, raises when it is not."""
        with self._gate:
            self._offering = threading.get_ident()
            if self._stopping:
                raise self._failed_with(Stopping("the run is being stopped"))
            if self.error is not None:
                raise self.error
            refusal = self._epoch(frame, batch)
            while refusal is not None:
                with self._changed:
                    tick = self._fed.feed.unfinished_tick
                if tick is None:
                    raise self._failed_with(refusal.error())
                # Begun by us or by a driver before us, it has to be finished first.
                self._epoch(None, tick)
                refusal = self._epoch(frame, batch)

    def _epoch(self, frame: DataFrame | None, batch: Batch) -> RefuseBatch | None:
        """Offer a batch, or a tick, and run its jobs of Spark until it is committed."""
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
                    if isinstance(error, FunctionError) and self._still_ours():
                        self._performer.mark_failed(self.machine.committed + 1, error)
                    raise self._failed_with(error)
                case RefuseBatch():
                    return instruction
                case do.Stop():
                    raise self._failed_with(some(self.error, "stopped without an error"))
                case _:
                    self._run_job(frame, instruction)

    def _keep_ticking(self) -> None:
        """Run an epoch without rows when a timer or the end of a window in processing time asks for one."""
        while not self._closing.wait(TICK_SECONDS):
            if self.due is None or self.now() < self.due or not self._gate.acquire(blocking=False):
                continue  # not yet; or an epoch is running, which will do as well
            try:
                with self._changed:
                    tick = self._fed.feed.unfinished_tick or self._fed.feed.next_tick
                if tick is None or self._stopping or self.error is not None:
                    continue
                self._offering = threading.get_ident()
                self._epoch(None, tick)
            except Stopping:
                return
            except Exception as error:
                if not leaving():
                    self._fatal(named(error, "A tick"))
                return
            finally:
                self._gate.release()

    def scrub(self) -> int:
        """Read the log above the newest checkpoint back; if part is bad, checkpoint while live state is past it."""
        with self._changed:
            committed, table = self.machine.committed, self.machine.routing.table
        container = next((name for name in table if name), None)
        with self._performer.ledger_lock:
            manifests = self.ledger.manifests(self.history.corrupt)
        if container is None:
            return 0
        span = {"first": manifests[-1].epoch + 1 if manifests else 1, "last": committed}
        try:
            return int(self._fleet().call(container, "scrub", span)[0]["segments"])
        except CorruptionError as error:
            self.history.corrupt(error)
            self.tell(ev.CheckpointWanted(error.what))
            raise

    def _failed_with(self, error: Exception) -> Exception:
        """Spark wraps what ``foreachBatch`` raises into text; whoever waits for the query gets the error itself."""
        self.failure = error
        return error

    @property
    def inside(self) -> bool:
        """Whether this thread is the one that runs the epoch in flight: it is in a sink."""
        return self._gate.locked() and self._offering == threading.get_ident()

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
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        self._queue.put(None)
        self._dispatcher.join(10)
        for thread in (self._clock, self._ticker):
            if thread.is_alive():
                thread.join(10)
        for pool in (self._pool, self._behind):
            pool.shutdown(wait=True, cancel_futures=True)

    def wait_for(self, true: Callable[[], bool], seconds: float) -> bool:
        """Wait until that is so, or the run is over; whether one of them is so."""
        with self._changed:
            over = self._closing.is_set
            return self._changed.wait_for(lambda: true() or self.error is not None or over(), seconds)

    def groups(self) -> Groups:
        """Which living container has which slices: all of them. Waits if the last container was lost just now."""
        for_epoch = threading.get_ident() == self._offering
        self.wait_for(
            lambda: None not in self.machine.routing.table or (for_epoch and self._unwanted() is not None),
            OWNER_SECONDS,
        )
        with self._changed:
            owners, unwanted = self.machine.routing.table, self._unwanted()
        if self.error is not None:
            raise self.error
        if for_epoch and unwanted is not None:
            raise _given_up()
        if None in owners:
            raise ContainerError(
                f"No container took over within {OWNER_SECONDS:.0f} s.",
                safe="Everything that was committed; an epoch that is prepared will be finished by the next start.",
                todo="Look at run.status().events for why no container could start.",
            )
        return self._by_owner(owners)

    def _by_owner(self, owners: Sequence[str | None]) -> Groups:
        fleet = self._fleet()
        grouped = group_by_owner(range(len(owners)), lambda number: owners[number] or "")
        return tuple((fleet.address(name), slices) for name, slices in grouped.items() if name)

    def located(self, slices: list[int], epoch: int, level: int, mode: str, seconds: float) -> Groups:
        """Where these slices are, once their owners have what the scan wants of them."""

        def in_vain() -> bool:
            return mode != "read" and not self.machine.in_flight(epoch)

        def ready() -> bool:
            if mode == "read":
                return all(self.machine.owner(number) for number in slices)
            return in_vain() or all(self.machine.ready(number, epoch, level) for number in slices)

        self.wait_for(ready, seconds)
        if self.error is not None:
            raise self.error
        wanted = set(slices)
        with self._changed:
            if in_vain():
                raise _given_up()
            owners = self.machine.routing.table
        return self._by_owner([owner if number in wanted else None for number, owner in enumerate(owners)])

    def collect(self, stage: str, epoch: int, mode: str, port: str) -> list[pa.Table] | None:
        """A small output, straight from all containers at once; None if one of them could not answer."""
        fleet = self._fleet()

        def one(group: tuple[Address, tuple[int, ...]]) -> list[pa.Table]:
            address, slices = group
            header = {"stage": stage, "slices": slices, "epoch": epoch, "mode": mode, "port": port}
            _, blobs = fleet.call(address.container, "collect", header)
            return [pa.ipc.open_stream(blob).read_all() for blob in blobs]

        try:
            return [table for tables in self._pool.map(one, self.groups()) for table in tables]
        except (Unreachable, EpochGone):
            return None

    def size_of(self, stage: str, mode: str) -> int:
        """About how many rows an output of the epoch in flight has; it only decides which way they travel."""
        with self._changed:
            return sum(
                sizes.get(stage, {}).get("rows" if mode == "all" else "changed", 0) for sizes in self._sizes.values()
            )

    @property
    def time(self) -> Timekeeper:
        return self._performer.time

    @property
    def notes(self) -> SparkNotes:
        return self._performer.notes

    def now(self) -> int:
        """The epoch clock as it would be now, µs."""
        return self._performer.now()

    def suspects(self) -> frozenset[str]:
        return self._fleet().suspects

    @contextlib.contextmanager
    def between_epochs(self) -> Iterator[None]:
        """While this is held no epoch runs."""
        with self._gate:
            yield

    def drained(self, seconds: float) -> bool:
        """Wait until the master has heard everything that was told until now."""
        done = threading.Event()
        self._queue.put(done)
        deadline = time.monotonic() + seconds
        while not done.wait(min(CLOCK_SECONDS, max(deadline - time.monotonic(), 0.0))):
            if self._closing.is_set() or time.monotonic() >= deadline:
                return False
        return True

    def push_groups(self) -> Groups:
        """Where rows may be pushed: not to a container that has been silent."""
        suspects = self._fleet().suspects
        return tuple(group for group in self.groups() if group[0].container not in suspects)

    # --- the dispatcher -----------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        while (event := self._queue.get()) is not None:
            if isinstance(event, threading.Event):
                event.set()
                continue
            try:
                with self._changed:
                    instructions = self._fed.handle(event)
                    self.history.epoch = self.machine.committed
                    self.history.follow(self.machine.operations)
                    self._changed.notify_all()
                for instruction in instructions:
                    self._perform(instruction)
                self._cancel_unwanted()
            except BaseException as error:
                if leaving():
                    return
                self._broken = True
                LOG.exception("the master failed")
                self._fatal(bug(error, self.ledger, self.incarnation))

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
                # Gathering waits for peers as long as it takes: what epochs need must not queue up behind it.
                pool = self._behind if isinstance(instruction, (*BEHIND, do.Gather)) else self._pool
                pool.submit(self._background, instruction)

    @property
    def _over(self) -> bool:
        return self._broken or self.error is not None

    def _unwanted(self) -> do.Instruction | None:
        """The job of Spark's under way, if nobody waits for its answer any more."""
        running = self._running
        wanted = running is None or (not self._over and self.machine.awaits(running))
        return None if wanted else running

    def _cancel_unwanted(self) -> None:
        with self._changed:
            job = self._unwanted()
        if job is not None:
            self._pool.submit(self._spark_jobs.cancel, self._tag(job))

    def _tag(self, job: do.Instruction) -> str:
        """What Spark knows a job of ours by, in an application that may run many."""
        return f"holdfast-{self._spark_jobs.job}-{job.id}"

    @property
    def _spark_jobs(self) -> EpochJobs:
        return some(self._jobs, "a job of Spark's before the run began")

    def _fatal(self, error: HoldfastError) -> None:
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()
        self.history.note("failed", str(error).splitlines()[0])
        self._spark.put(do.Stop(reason=str(error), successor=0))
        self.on_error()

    def _keep_time(self) -> None:
        """The master's clock; and now and then it hears how much work each slice is, and whether it was replaced."""
        looked = owner_looked = time.monotonic()
        look: Future[bool] | None = None
        tidied, tidy = looked + TIDY_SECONDS / 6, None  # of the run before; then only now and then
        while not self._closing.wait(CLOCK_SECONDS):
            now = time.monotonic()
            if self._queue.empty():  # else it is behind: it needs no further tick
                self.tell(ev.Clock(now))
            if now - looked > LOADS_SECONDS:
                looked = now
                self._behind.submit(self._look_at_loads)
            if now - owner_looked > LOOK_SECONDS and (look is None or look.done()):
                owner_looked = now
                look = self._behind.submit(self._look_around)
            if now > tidied and (tidy is None or tidy.done()):
                tidied = now + TIDY_SECONDS
                tidy = self._behind.submit(self._tidy)

    def _tidy(self) -> None:
        try:
            if not self._over and self._still_ours():
                self._performer.tidy()
        except HoldfastError as error:  # nothing depends on it, and the next round is due before long
            self.history.failed("tidying up", error)

    def _look_around(self) -> bool:
        if self.error is None and not self._stopping and (error := self.look()) is not None:
            self._fatal(error)
        return self._still_ours()

    def _look_at_loads(self) -> None:
        answers = self._fleet().call_all("loads", {}, timeout=10.0)
        with self._changed:
            owners = self.machine.routing.table
        seen = {
            int(number): (float(rows), float(seconds))
            for container, answer in answers.items()
            for number, (rows, seconds) in answer["loads"].items()
            if owners[int(number)] == container
        }
        all_rows = sum(rows for rows, _ in seen.values()) or 1.0
        all_seconds = sum(seconds for _, seconds in seen.values())
        # Rows and time count alike: time alone is noise where slices are small, rows alone know nothing of their cost.
        scale = all_seconds / all_rows
        loads = tuple((number, (seconds + scale * rows) / 2) for number, (rows, seconds) in seen.items())
        if loads:
            self.tell(ev.LoadsSeen(loads))

    # --- in the pool --------------------------------------------------------------------------------------

    def _background(self, instruction: do.Instruction) -> None:
        if self._over:
            return  # the run is over: nothing more is done, or written, for it
        try:
            if instruction.looks and not self._still_ours():
                return
            answer = self._do(instruction)
        except Unreachable:
            # Evidence is the process's end; if the connection broke and the process lives, end it.
            self._suspect(instruction)
            return
        except Exception as raised:
            if leaving():
                return
            if not isinstance(raised, HoldfastError):
                LOG.exception("instruction %s failed", instruction)
            error = named(raised, "The driver")
            self.history.failed(type(instruction).__name__, error)
            self.tell(ev.Failed(instruction.id, error))
            if isinstance(instruction, do.Restore):
                with self._changed:
                    self.restore_failure = error
                    self._changed.notify_all()
            return
        if answer is not None:
            self.tell(answer)

    def _do(self, instruction: do.Instruction) -> ev.Event | None:
        performer = self._performer
        match instruction:
            case do.NeedContainers(count=count):
                fleet = self._fleet()
                for name in fleet.start(count):
                    self.tell(ev.ContainerJoined(name, fleet.host_of(name)))
                return ev.ContainersStarted(instruction.id)
            case do.EndContainer(container=container):
                with contextlib.suppress(ContainerError):  # it ended by itself meanwhile
                    self._fleet().end(container)
                self.history.note("ended", f"container {container} is not needed any more")
                return None
            case do.StoreRouting():
                return performer.store_routing(instruction)
            case do.Restore():
                return performer.restore(instruction)
            case do.Activate():
                return performer.activate(instruction)
            case do.StorePrepare():
                return performer.store_prepare(instruction, self.machine.routing.version)
            case do.Apply():
                answer, sizes = performer.apply(instruction, self.machine.committed)
                with self._changed:
                    self._sizes.setdefault(instruction.container, {}).update(sizes)
                for stage, figures in sizes.items():
                    self._counting.applied(instruction.fence.epoch, stage, figures["counts"])
                return answer
            case do.Undo():
                return performer.undo(instruction)
            case do.StoreCommit():
                answer = performer.store_commit(instruction)
                self._count(instruction.fence.epoch)
                return answer
            case do.SendCopies():
                return performer.send_copies(instruction)
            case do.SaveShards():
                return performer.save_shards(instruction)
            case do.Gather():
                return performer.gather(instruction)
            case do.Demote():
                return performer.demote(instruction)
            case do.Forget() | do.DropCopies():
                return performer.drop(instruction)
            case do.WriteCheckpoint():
                return performer.write_checkpoint(instruction)
            case do.VerifyPacks():
                return performer.verify_packs(instruction)
            case do.StoreManifest():
                return performer.store_manifest(instruction)
            case do.CutLog(epoch=epoch):
                performer.cut_log(epoch)
                return None
        raise Impossible(f"an instruction the shell does not know: {instruction}")

    def _still_ours(self) -> bool:
        newest = self._performer.newest_owner()
        if newest > self.incarnation:
            self.tell(ev.OwnerSeen(newest))
            return False
        return True

    def _suspect(self, instruction: do.Instruction) -> None:
        if not isinstance(instruction, do.ToContainer | do.VerifyPacks):
            raise Impossible(f"{instruction} is for no container")
        container = instruction.container if isinstance(instruction, do.ToContainer) else instruction.by
        container = some(container, "asked of nobody")
        with contextlib.suppress(HoldfastError):  # its end is already known, or about to be
            self._fleet().kill(container)

    def _count(self, epoch: int) -> None:
        first = self._performer.prepare_of(epoch, 1)
        read = sum(ref.input_rows for ref in first.segments)
        self.rows += read
        jobs = self._spark_jobs
        changed = sum(self.size_of(item.plan.name, "changed") for item in jobs.plan.intake(1))
        jobs.preaggregation.saw(read, sum(ref.rows for ref in first.segments), len(first.segments), changed)
        self.last = EpochFigures(read, self.last.seconds, dict(jobs.seconds))
        for warning in self.time.warnings() if read else ():
            self.history.note("warning", warning)
        with self._changed:
            due = []
            for sizes in self._sizes.values():
                due += [figures["due"] for figures in sizes.values() if figures["due"] is not None]
            self.due = min(due, default=None)
            self._sizes.clear()
        for warning in self._row_times.epoch(self._counting.committed(epoch)):
            self.history.note("warning", warning)

    # --- in Spark's thread --------------------------------------------------------------------------------

    def _run_job(self, frame: DataFrame | None, instruction: do.Instruction) -> None:
        with self._changed:
            self._running = instruction
            if self._unwanted() is not None:  # given up before it began
                self._running = None
                return
        answer: ev.Event | None
        try:
            with self._spark_jobs.cancellable(self._tag(instruction)), quiet():
                answer = self._result_of(frame, instruction)
        except Exception as error:
            answer = ev.Failed(instruction.id, _cause(error, instruction))
        with self._changed:
            if self._unwanted() is not None:
                answer = None  # it was cancelled, or might as well have been
            self._running = None
        if isinstance(answer, ev.Failed):
            self.history.failed(type(instruction).__name__, answer.error)
        if answer is not None:
            self.tell(answer)

    def _result_of(self, frame: DataFrame | None, instruction: do.Instruction) -> ev.Event | None:
        """None if a successor has the job by now."""
        if isinstance(instruction, do.RunSink):
            # Marked first, then looked: a successor owns first and reads marks then, so one of us sees the other.
            self._performer.before_sinks(instruction.fence.epoch)
        if instruction.looks and not self._still_ours():
            return None
        match instruction:
            case do.RunIntake(fence=fence, level=level):
                tags = tuple(self._spark_jobs.intake(frame, fence, level))
                self._counting.taken(fence.epoch, level, counted(tags))
                faults.place("driver", "after-segments", fence.epoch)
                return ev.IntakeDone(instruction.id, tags)
            case do.RunSink(fence=fence, sink=name):
                if name not in self._sinks:
                    raise sink_is_gone([name], fence.epoch)
                counter = self._performer.prepare_of(fence.epoch, 1).sinks[name]
                self._spark_jobs.sink(frame, fence.epoch, self._sinks[name], counter)
                if not instruction.last and self._spark_jobs.sinks[name].forgets:
                    self._performer.note_taken(fence, name)
                return ev.SinkDone(instruction.id)
        raise Impossible(f"not a job of Spark's: {instruction}")


def _cause(error: Exception, instruction: do.Instruction) -> Exception:
    """Ours, which reaches us as text if a task raised it; else what Spark, or a function that it runs, says."""
    if (known := from_wire(str(error))) is not None:
        return known
    if not isinstance(instruction, do.RunIntake):
        return error
    if isinstance(error, PySparkException | Py4JError):
        return spark_failed(error, f"the rows of epoch {instruction.fence.epoch} were read")
    return named(error, "The driver")


def sink_is_gone(names: Sequence[str], epoch: int) -> StoreError:
    """An epoch was prepared for sinks that the job does not draw any more."""
    which = ", ".join(f"'{name}'" for name in names)
    return StoreError(
        f"Epoch {epoch} was prepared for the sink {which}, which the job does not have any more, and is not committed.",
        safe="Nothing was written. The epoch is prepared; whichever start finishes it, its rows are the same.",
        todo="Start once more with that sink, so that it gets the epoch, then without it; or say that it shall not "
        f"have it: job.start(drop_sinks={list(names)!r}).",
    )


def _given_up() -> EpochGone:
    return EpochGone(
        "The epoch was given up: nobody will have its outputs.",
        safe="Every committed epoch; one that is prepared is finished by the next start of the job.",
        todo="Look at why the batch failed.",
    )
