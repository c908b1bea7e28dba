"""Threads that are there when something has to be done at once, and wait for the next time afterwards.

To start a thread costs more than most calls to a peer, and a recovery needs many, side by side, at the one moment when
every core is busy. There is no upper bound: who waits for another's work never takes its place. They are daemons, since
a call without a first answer cannot be cancelled, and must not keep the process alive.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

A = TypeVar("A")
T = TypeVar("T")


class Crew:
    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = self._idle = 0
        self._closed = False

    def submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        done: Future[T] = Future()
        job = partial(_do, done, work, arguments)
        with self._lock:
            if self._closed:  # the others leave, and would leave it undone: what is under way may still wait for it
                life: Callable[[], None] = job
            else:
                life = self._live
                self._jobs.put(job)
                if self._idle:
                    self._idle -= 1
                    return done
            self._threads += 1
            number = self._threads
        threading.Thread(target=life, daemon=True, name=f"{self._name}-{number}").start()
        return done

    def map(self, work: Callable[[A], T], arguments: Sequence[A]) -> list[T]:
        """All of them at once, one of them by whoever calls; raises what the first one raised."""
        if not arguments:
            return []
        coming = [self.submit(work, one) for one in arguments[1:]]
        return [work(arguments[0]), *(done.result() for done in coming)]

    def close(self) -> None:
        """What is under way goes on to its end, with all that it submits."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(self._threads):
                self._jobs.put(None)

    def _live(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it may hold a whole branch
            with self._lock:
                self._idle += 1


def _do(done: Future[T], work: Callable[..., T], arguments: tuple[Any, ...]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(work(*arguments))
    except BaseException as error:  # it is for whoever asks
        done.set_exception(error)
