"""Threads that end in silence with the interpreter.

When a program ends without having stopped its run (it raised, most likely), Python closes every pool of threads before
our threads end: what they meet then is no error of anybody, and must not bury the program's own under tracebacks. The
run ends as if the driver had been killed, which is safe at any moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


def leaving() -> bool:
    """Whether the interpreter is on its way out."""
    return not threading.main_thread().is_alive()


def until_exit(run: Callable[[], None]) -> Callable[[], None]:
    """A thread's target that says nothing of what it meets at the end."""

    def target() -> None:
        try:
            run()
        except BaseException:
            if not leaving():
                raise

    return target
