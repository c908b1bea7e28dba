"""The thread table: which thread of a container runs which slices (ChronoStream III-D, vertical elasticity).

Every key (a slice of a job) belongs to one long-lived thread. Its pieces wait in its own lane, and a lane is always in
one place: idle, in the queue of one thread, or in that thread's hands. So a key never runs on two threads at once and
keeps its order, whatever happens to the table meanwhile.

The optimistic latch: threads never lock the table to read it. A thread works on for ``LATCH`` chunks, then compares one
attribute, the version; only if that has changed it takes the lock, hands over what is no longer its own and acks. The
writer pays instead: ``resize`` publishes the wanted table and waits until every thread has acked, at most the chunks
they hold the latch for. A thread that gains a key does not wait for it: the lane arrives when its old thread releases
it, and there is other work until then. Refused: a lock per chunk, which makes threads meet that share nothing; and
stopping all threads for a change, which makes every slice pay for the few that move.

What must be atomic without a lock is one call in C: ``deque.append``, ``deque.popleft``, ``next(count)`` and a lock's
``acquire(blocking=False)``, which nobody ever waits for.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from holdfast.container.thread_placement import place, spread
from holdfast.errors import ContainerError, PlanError

T = TypeVar("T")

MOST = 1024  # threads: more than any machine has use for, and fewer than end a process
LATCH = 4  # chunks between two looks at the version
WEIGHT = 0.2  # of the newest chunk in a key's expected seconds


class Call:
    """One ``each``: how many of its pieces have ended, and what they raised."""

    __slots__ = ("bell", "ended", "errors", "last", "run")

    def __init__(self, pieces: int, run: Callable[[Any], None]) -> None:
        self.run = run
        self.last = pieces - 1
        self.ended = itertools.count()
        self.errors: list[tuple[Any, BaseException]] = []
        self.bell = threading.Lock()
        self.bell.acquire()


class Lane:
    """A key's pieces in their order. Who has ``latch`` has the lane in a queue or in hand; a free one has no pieces."""

    __slots__ = ("key", "latch", "owner", "pieces", "seconds")

    def __init__(self, key: Hashable, owner: Worker) -> None:
        self.key = key
        self.owner = owner
        self.seconds: float | None = None  # expected of its next chunk; None until one was measured
        self.pieces: deque[tuple[Call, Any]] = deque()
        self.latch = threading.Lock()


class Worker:
    """One thread, with the queue of its lanes that have pieces."""

    def __init__(self, number: int, table: ThreadTable) -> None:
        self.number = number
        self.queue: deque[Lane] = deque()
        self.seen = 0  # the wanted table it has acked
        self.idle = False
        self.ending = False
        self._table = table
        self._bell = threading.Lock()
        self._bell.acquire()
        self.thread = threading.Thread(target=self._live, name=f"slices-{number}", daemon=True)

    def ring(self) -> None:
        """Wake it, or keep it from falling asleep."""
        with suppress(RuntimeError):  # it has been rung before and has not heard it yet
            self._bell.release()

    def _live(self) -> None:
        """One lane after the other, each until it has no pieces or is another thread's."""
        table, queue, clock = self._table, self.queue, time.perf_counter
        budget = LATCH
        start = clock()
        while True:
            try:
                lane = queue.popleft()
            except IndexError:
                found = self._run_dry()
                if found is None:
                    return
                lane, budget, start = found, LATCH, clock()
            pieces = lane.pieces
            mine = True
            while mine:
                while pieces:
                    call, piece = pieces.popleft()
                    try:
                        call.run(piece)
                    except BaseException as error:  # the caller gets it; this thread has other keys to serve
                        call.errors.append((piece, error))
                    end = clock()
                    known = lane.seconds
                    lane.seconds = end - start if known is None else known + WEIGHT * (end - start - known)
                    start = end
                    if next(call.ended) == call.last:
                        call.bell.release()
                    del call, piece  # an idle thread keeps nothing of a call alive
                    budget -= 1
                    if not budget:
                        budget = LATCH
                        if table.wanted != self.seen:
                            mine = not table.catch_up(self, lane)
                            start = clock()
                            if not mine:
                                break
                else:
                    lane.latch.release()
                    # Who adds a piece while the latch is taken leaves the lane to us: so look again after letting go.
                    mine = bool(pieces) and lane.latch.acquire(blocking=False)

    def _run_dry(self) -> Lane | None:
        """Nothing queued: wait for a lane of its own or take one over; None when this thread has to end."""
        lane = self._wait()
        self.idle = False
        if self.queue:  # who left them alone while we slept may have them now
            self._table.call_helpers(self, len(self.queue))
        return lane

    def _wait(self) -> Lane | None:
        table = self._table
        while True:
            ending = self.ending  # looked at before catching up: what is published only then is not acked by it
            if ending or table.wanted != self.seen:
                table.catch_up(self)
                if ending and not self.queue:
                    return None
            lane = table.take_over(self)
            if lane is not None:
                return lane
            if table.wanted == self.seen and not self.ending:
                self._bell.acquire()


class ThreadTable:
    """Runs pieces on the threads that their keys belong to; the number of threads may change at any time."""

    def __init__(self, threads: int) -> None:
        self.version = 0
        self.wanted = 0  # the version that the last resize published; every thread acks it
        self._workers: list[Worker] = []
        self._lanes: dict[Hashable, Lane] = {}
        self._closed = False
        self._resizing = threading.Lock()  # one change at a time
        self._lock = threading.Lock()  # the table and the way into queues; never held while a piece runs
        self._acked = threading.Condition(self._lock)
        self.resize(threads)

    # --- for those who have work --------------------------------------------------------------------------

    @property
    def threads(self) -> int:
        return len(self._workers)

    def snapshot(self) -> dict[Hashable, int]:
        """Which thread each key belongs to."""
        with self._lock:
            return {key: lane.owner.number for key, lane in self._lanes.items()}

    def each(self, work: Sequence[T], key: Callable[[T], Hashable], run: Callable[[T], None]) -> None:
        """Run every piece on its key's thread, those of one key in their order, and return when all have run.

        A piece that raises does not keep the others from running: the error that is first in the order of ``work`` is
        raised, and only when nothing of this call runs any more.
        """
        self._refuse_own_threads("each")
        if not work:
            return
        keys = list(map(key, work))
        call = Call(len(work), run)
        with self._lock:
            self._refuse_when_closed()
            try:
                lanes = [self._lanes[key_] for key_ in keys]
            except KeyError:
                lanes = self._admitted(keys)
            given: Counter[Worker] = Counter()
            for lane, piece in zip(lanes, work, strict=True):
                lane.pieces.append((call, piece))
                if lane.latch.acquire(False):
                    owner = lane.owner
                    owner.queue.append(lane)
                    given[owner] += 1
        self._wake(given)
        call.bell.acquire()
        if call.errors:
            raised = {id(piece): error for piece, error in reversed(call.errors)}
            raise next(raised[id(piece)] for piece in work if id(piece) in raised)

    def forget(self, keys: Iterable[Hashable]) -> None:
        """These keys are not here any more: they no longer count when work is levelled. One at work stays."""
        with self._lock:
            for key in keys:
                lane = self._lanes.get(key)
                if lane is not None and lane.latch.acquire(blocking=False):
                    if lane.pieces:  # its thread is between letting go and looking again: it shall find the latch taken
                        lane.owner.queue.append(lane)
                        lane.owner.ring()
                    else:
                        del self._lanes[key]

    # --- for those who change the table -------------------------------------------------------------------

    def resize(self, threads: int) -> float:
        """Have this many threads; returns, when every thread goes by the new table, the seconds that took.

        Work goes on meanwhile. Only keys of threads that end move, and as many others as levelling takes.
        """
        self._refuse_own_threads("resize")
        if not 1 <= threads <= MOST:
            raise PlanError(
                f"A container cannot run its slices on {threads} threads.",
                safe="The thread table is as it was.",
                todo=f"Ask for at least one thread, and for {MOST:,} at most.",
            )
        start = time.perf_counter()
        with self._resizing:
            with self._lock:
                self._refuse_when_closed()
            before = self._workers
            workers = before[:threads] + self._started(range(len(before), threads))
            with self._lock:
                table = {key: lane.owner.number for key, lane in self._lanes.items()}
                for key, number in spread(table, self._expected(), threads).items():
                    self._lanes[key].owner = workers[number]
                for worker in before[threads:]:
                    worker.ending = True
                self._workers = workers
                self.version += 1
                self.wanted = self.version
            concerned = [*workers, *before[threads:]]
            for worker in concerned:
                worker.ring()
            with self._lock:
                self._acked.wait_for(lambda: all(worker.seen == self.wanted for worker in concerned))
            for worker in before[threads:]:
                worker.thread.join()
        return time.perf_counter() - start

    def close(self) -> None:
        """Let what was begun end, then end all threads."""
        self._refuse_own_threads("close")
        with self._resizing:
            with self._lock:
                self._closed = True
            self._end(self._workers)

    # --- for the threads ----------------------------------------------------------------------------------

    def catch_up(self, worker: Worker, held: Lane | None = None) -> bool:
        """Hand over what is not this thread's any more, and ack; whether ``held`` was handed over."""
        gaining: Counter[Worker] = Counter()
        with self._lock:
            leaving = [worker.queue.popleft() for _ in range(len(worker.queue))]
            lost = held is not None and held.owner is not worker
            if held is not None and lost:
                leaving.append(held)
            for lane in leaving:
                lane.owner.queue.append(lane)
                gaining[lane.owner] += lane.owner is not worker
            worker.seen = self.wanted
            self._acked.notify_all()
        self._wake(+gaining)
        return lost

    def take_over(self, worker: Worker) -> Lane | None:
        """For a thread that ran dry: the key that would wait longest in the longest queue is its own from now on.

        Who has only been rung and is not awake yet is left alone: it would lose its keys to whoever woke first.
        """
        with self._lock:
            worker.idle = True  # before looking at the others: one that wakes now sees this and rings
            if worker.queue:
                return worker.queue.popleft()
            if worker.number >= len(self._workers) or worker.ending:
                return None
            longest = max(self._workers, key=lambda other: 0 if other.idle else len(other.queue))
            if longest.idle:
                return None
            try:
                lane = longest.queue.pop()
            except IndexError:
                return None
            lane.owner = worker
            self.version += 1
            return lane

    def call_helpers(self, busy: Worker, lanes: int) -> None:
        """This many lanes wait for a thread that is at work: ring those who could take them over."""
        for worker in [other for other in self._workers if other.idle and other is not busy][:lanes]:
            worker.ring()

    def _wake(self, given: Counter[Worker]) -> None:
        for worker, lanes in given.items():
            worker.ring()
            if not worker.idle:
                self.call_helpers(worker, lanes)

    # --- inside, under the lock ---------------------------------------------------------------------------

    def _admitted(self, keys: Sequence[Hashable]) -> list[Lane]:
        """The lanes of these keys; unknown ones get the thread with least expected work."""
        table = {key: lane.owner.number for key, lane in self._lanes.items()}
        expected = self._expected()
        usual = sum(expected.values()) / len(expected) if expected else 1.0
        placed = place(table, dict.fromkeys(keys, usual) | expected, len(self._workers))
        for key in keys:
            if key not in self._lanes:
                self._lanes[key] = Lane(key, self._workers[placed[key]])
        return [self._lanes[key] for key in keys]

    def _expected(self) -> dict[Hashable, float]:
        """Seconds by key; a key that has not run yet counts as a usual one."""
        known = [lane.seconds for lane in self._lanes.values() if lane.seconds is not None]
        usual = sum(known) / len(known) if known else 1.0
        return {key: usual if lane.seconds is None else lane.seconds for key, lane in self._lanes.items()}

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise ContainerError(
                "This container has ended its threads: it takes no more work.", safe="Nothing was run."
            )

    def _refuse_own_threads(self, action: str) -> None:
        if threading.current_thread() in [worker.thread for worker in self._workers]:
            raise ContainerError(
                f"A thread of the table called {action}, which waits for the threads of the table, itself included.",
                safe="Nothing was done.",
                todo=f"Call {action} from another thread.",
            )

    # --- threads themselves -------------------------------------------------------------------------------

    def _started(self, numbers: Iterable[int]) -> list[Worker]:
        started: list[Worker] = []
        for number in numbers:
            worker = Worker(number, self)
            try:
                worker.thread.start()
            except RuntimeError as error:
                self._end(started)
                raise ContainerError(
                    f"The system starts no thread more: {error}.",
                    safe="The thread table is as it was.",
                    todo="Raise the limit of processes (ulimit -u) or ask for fewer threads.",
                ) from error
            started.append(worker)
        return started

    def _end(self, workers: Iterable[Worker]) -> None:
        for worker in workers:
            with self._lock:
                worker.ending = True
            worker.ring()
        for worker in workers:
            worker.thread.join()
