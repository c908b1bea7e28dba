"""Work that nobody waits for, at a low priority, so that epochs on the same machine do not feel it.

On Linux a priority is a thread's own, and lowering it needs no privilege; raising it again would. So such work has a
thread of its own, and ends with it. Elsewhere it just runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

LOW = 10
T = TypeVar("T")


def step_back() -> None:
    """This thread gives way to others from now on. For the life of it: only in a thread that is made for this work."""
    if sys.platform.startswith("linux"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW)


def step_back_together(by: int) -> None:
    """All of this session's processes, where the kernel shares the cores by session: a thread's own priority counts
    only among those of its session then. A container is a session of its own. 0 takes it back.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(by))


def gently(work: Callable[[], T]) -> T:
    """Do it in a thread that gives way; returns, or raises, what it did."""
    done: Future[T] = Future()

    def run() -> None:
        step_back()
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, daemon=True, name="holdfast-gently")
    thread.start()
    thread.join()
    return done.result()
