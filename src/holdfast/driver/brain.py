"""The pure master under a lock: what it is told comes in order, and others may wait until it knows something.

One thread, the shell's dispatcher, hands it events; any thread may look. Who looks and who performs is elsewhere, so
that neither needs the other: ``routes`` asks it where slices are, ``epochs`` whether its job is still wanted.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from holdfast.driver.history import History
from holdfast.errors import HoldfastError
from holdfast.master import events as ev
from holdfast.master import instructions as do
from holdfast.master.fed import Fed
from holdfast.master.machine import Master

LOOK_SECONDS = 0.25


class Brain:
    def __init__(self, history: History) -> None:
        self.machine = Master()
        self.history = history
        self.error: HoldfastError | None = None  # the run is over
        self.broken = False  # by a bug of ours: nothing more is done, or written
        self.changed = threading.Condition()
        self.closing = threading.Event()
        self.running: dict[int, do.Instruction] = {}
        """The jobs of Spark's that are under way, by the thread that each runs in."""
        self._fed = Fed(self.machine)
        self.feed, self.pump = self._fed.feed, self._fed.pump
        self._queue: queue.Queue[ev.Event | threading.Event | None] = queue.Queue()

    # --- what it is told ----------------------------------------------------------------------------------

    def tell(self, event: ev.Event) -> None:
        self._queue.put(event)

    def lost(self, container: str, reason: str) -> None:
        self.history.lost(container, reason)
        self.tell(ev.ContainerLost(container, reason))

    @property
    def behind(self) -> bool:
        """It has not heard everything yet."""
        return not self._queue.empty()

    def next(self) -> ev.Event | None:
        """Of what it was told, waiting for it; None: there is nothing more to come."""
        while isinstance(event := self._queue.get(), threading.Event):
            event.set()
        return event

    def handle(self, event: ev.Event) -> Sequence[do.Instruction]:
        with self.changed:
            instructions = self._fed.handle(event)
            self.history.epoch = self.machine.committed
            self.history.follow(self.machine.operations)
            self.changed.notify_all()
        return instructions

    def end(self, error: HoldfastError) -> None:
        """The run is over; the first reason counts."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closing.set()
            self.changed.notify_all()
        self._queue.put(None)

    # --- what others may know -----------------------------------------------------------------------------

    def wait_for(self, true: Callable[[], bool], seconds: float) -> bool:
        """Wait until that is so, or the run is over; whether one of them is so."""
        with self.changed:
            over = self.closing.is_set
            return self.changed.wait_for(lambda: true() or self.error is not None or over(), seconds)

    def drained(self, seconds: float) -> bool:
        """Wait until it has heard everything that was told until now."""
        done = threading.Event()
        self._queue.put(done)
        deadline = time.monotonic() + seconds
        while not done.wait(min(LOOK_SECONDS, max(deadline - time.monotonic(), 0.0))):
            if self.closing.is_set() or time.monotonic() >= deadline:
                return False
        return True

    @property
    def over(self) -> bool:
        return self.broken or self.error is not None

    def unwanted(self) -> list[do.Instruction]:
        """The jobs of Spark's under way that nobody waits for any more."""
        return [job for job in self.running.values() if self.over or not self._fed.awaits(job)]

    def given_up(self) -> bool:
        """Whether this thread runs such a job."""
        job = self.running.get(threading.get_ident())
        return job is not None and (self.over or not self._fed.awaits(job))
