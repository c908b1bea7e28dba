"""Waiting for Spark's query in such a way that a Ctrl-C ends the waiting at once, and nothing else.

What waits in the JVM is a thread of ours. Whoever waits for it waits in Python, where a signal is heard: a call into
the JVM that is interrupted leaves its connection broken, and PySpark's handler of SIGINT, which cancels every job of
the application, would end the epoch in flight before anybody has decided so.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from pyspark.sql import SparkSession


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises ``KeyboardInterrupt`` here, and cancels nothing. A handler that the program has set stays."""
    before = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not str(getattr(before, "__module__", "")).startswith("pyspark."):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Waiter:
    """One call that waits in the JVM, in a thread of its own; it ends by itself when the query does."""

    def __init__(self, call: Callable[[], object], name: str) -> None:
        self.error: Exception | None = None
        """What the call raised."""
        self._call = call
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is over."""
        with interruptible():
            return self._done.wait(None if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX))

    @property
    def over(self) -> bool:
        return self._done.is_set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._call()
        except Exception as error:
            self.error = error
        finally:
            self._done.set()


def is_gone(spark: SparkSession) -> bool:
    """The session was stopped, or its JVM is no more."""
    context = spark.sparkContext._jsc
    if context is None:
        return True
    try:
        return bool(context.sc().isStopped())
    except Exception:
        return True
