"""Reading as of one committed epoch: pinned on every container, read, let go; begun again if it has gone meanwhile."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import ContainerError, EpochGone
from holdfast.wire.client import Unreachable
from holdfast.wire.questions import Pin, Unpin

if TYPE_CHECKING:
    from holdfast.api.run import Run

READ_SECONDS = 60.0
T = TypeVar("T")


def as_of_one_epoch(run: Run, what: str, read: Callable[[int, str], T], *, pinned: bool = True) -> tuple[int, T]:
    """What ``read(epoch, reader)`` finds, and the epoch; ``what`` is read, for the error.

    Whoever reads with one call needs no pin (``pinned``): it is answered as of that epoch, or told that it is gone.
    """
    deadline = time.monotonic() + READ_SECONDS
    while True:
        run._live.refuse_stale()
        epoch = run._shell.machine.committed
        try:
            if not pinned:
                return epoch, read(epoch, "")
            with _pinned(run, epoch) as reader:
                return epoch, read(epoch, reader)
        except (EpochGone, Unreachable) as error:
            run._live.refuse_stale()
            if time.monotonic() > deadline:
                raise ContainerError(
                    f"No committed epoch of {what} could be read for {READ_SECONDS:.0f} s: {error}",
                    safe="Reading changes nothing.",
                    todo="Look at run.status() for what its containers do, then read again.",
                ) from error
            time.sleep(0.02)


@contextmanager
def _pinned(run: Run, epoch: int) -> Iterator[str]:
    reader = uuid.uuid4().hex
    run._fleet.call_all(Pin(reader, epoch))
    try:
        yield reader
    finally:
        run._fleet.call_all(Unpin(reader))
