"""Where jobs of Spark run: those of a batch in the thread in which Spark called ``foreachBatch``, because that thread
carries the query's session and job group; those of an epoch in the pump's; the sinks of a job that has several in
threads beside it, which get the same.

No thread goes on to what comes next before all of these are done. A job whose answer the machine does not await any
more is cancelled by its tag, again with every event and tick of the clock until its thread has left it: cancelling
reaches only what runs at that moment, and a sink may be between two jobs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor

from pyspark.sql import DataFrame

from holdfast.driver.brain import Brain
from holdfast.driver.epochs import EpochJobs
from holdfast.driver.store import StoreHandlers
from holdfast.driver.upkeep import Upkeep
from holdfast.invariants import Impossible
from holdfast.master import events as ev
from holdfast.master import instructions as do
from holdfast.master.feed import RunSourceSink
from holdfast.spark.quiet import quiet
from holdfast.wire.handlers import Table


class SparkJobs:
    def __init__(self, brain: Brain, jobs: EpochJobs, store: StoreHandlers, upkeep: Upkeep, sinks_at_once: int) -> None:
        self._brain, self._jobs, self._store, self._upkeep = brain, jobs, store, upkeep
        self._table = Table(jobs)
        self._at_once = sinks_at_once
        self._pool: ThreadPoolExecutor | None = None
        self._beside: list[Future[None]] = []

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """Whatever comes afterwards, for Spark or for us, does not meet a sink of the epoch that was run in it."""
        try:
            yield
        finally:
            futures.wait(self._beside)
            self._beside.clear()

    def run(self, frame: DataFrame | None, instruction: do.Instruction) -> None:
        """To its end; or, if it is one of several sinks, beside this thread."""
        sink = isinstance(instruction, do.RunSink | RunSourceSink)
        if sink and self._at_once > 1 and len(self._jobs.plan.sinks) > 1:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._at_once, thread_name_prefix="holdfast-sink")
            self._beside.append(self._pool.submit(self._jobs.beside(self._run), frame, instruction))
        else:
            self._run(frame, instruction)

    def _run(self, frame: DataFrame | None, instruction: do.Instruction) -> None:
        brain, thread = self._brain, threading.get_ident()
        with brain.changed:
            brain.running[thread] = instruction
            if brain.given_up():  # before it began
                del brain.running[thread]
                return
        answer: ev.Event | None
        try:
            with self._jobs.cancellable(instruction), quiet():
                answer = self._result_of(frame, instruction)
        except Exception as error:
            answer = ev.Failed(instruction.id, self._jobs.cause(error, instruction))
        with brain.changed:
            if brain.given_up():
                answer = None  # it was cancelled, or might as well have been
            del brain.running[thread]
        if isinstance(answer, ev.Failed):
            brain.history.failed(type(instruction).__name__, answer.error)
        if answer is not None:
            brain.tell(answer)

    def _result_of(self, frame: DataFrame | None, instruction: do.Instruction) -> ev.Event | None:
        """None if a successor has the job by now."""
        if isinstance(instruction, do.RunSink):
            # Marked first, then looked: a successor owns first and reads marks then, so one of us sees the other.
            self._store.before_sinks(instruction.fence.epoch)
        if instruction.looks and not self._upkeep.still_ours():
            return None
        found = self._table.find(type(instruction))
        if found is None:
            raise Impossible(f"not a job of Spark's: {instruction}")
        answer: ev.Event = found.run(frame, instruction)
        return answer
