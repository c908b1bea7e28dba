"""What people are told of a run: events as they happen, and recoveries and rescales while they are under way."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.errors import HoldfastError
from holdfast.master.operations import Operation

LOG = logging.getLogger("holdfast")
EVENTS_KEPT = 500
ROUTINE = frozenset({"copied", "sent", "written", "activated", "checkpoint"})
DONE = {"recovery": "healed", "rescale": "rescaled", "move": "moved", "balance": "balanced"}


@dataclass(frozen=True)
class RunEvent:
    """Something worth telling a person: a loss, a recovery, a rescale, a checkpoint, a failure."""

    kind: str
    text: str
    at: float
    seconds: float = 0.0
    epoch: int = 0
    slices: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        took = f" ({self.seconds:.3f} s)" if self.seconds else ""
        return (
            f"{time.strftime('%H:%M:%S', time.localtime(self.at))}  epoch {self.epoch}  {self.kind}: {self.text}{took}"
        )


@dataclass(frozen=True)
class Ongoing:
    """A recovery, rescale or move that is not over. ``left`` estimates the seconds that remain, if anything does."""

    kind: str
    text: str
    phase: str
    slices: int
    done: int
    bytes: int
    seconds: float
    left: float | None

    def __str__(self) -> str:
        left = f", about {self.left:.1f} s left" if self.left else ""
        return (
            f"{self.kind} {self.text}: {self.phase}; {self.done} of {self.slices} slices, "
            f"{self.bytes / 1e6:,.1f} MB, {self.seconds:.1f} s{left}"
        )


@dataclass
class EpochFigures:
    """What the last epoch was like."""

    rows: int = 0
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)


@dataclass
class _Followed:
    began: float
    bytes_before: int


class History:
    def __init__(self) -> None:
        self._events: deque[RunEvent] = deque(maxlen=EVENTS_KEPT)
        self._routine: deque[RunEvent] = deque(maxlen=EVENTS_KEPT)
        self.epoch = 0
        self._lock = threading.Lock()
        self._moved = 0
        self._lost_at: float | None = None
        self._followed: dict[int, _Followed] = {}
        self._operations: Sequence[Operation] = ()

    @property
    def events(self) -> tuple[RunEvent, ...]:
        """The oldest first. What happens all the time is kept apart, so that it does not crowd out the rest."""
        return tuple(sorted([*self._events, *self._routine], key=lambda event: event.at))

    def note(self, kind: str, text: str, seconds: float = 0.0, slices: int = 0, nbytes: int = 0) -> None:
        if kind in ("sent", "restored"):
            with self._lock:
                self._moved += nbytes
        kept = self._routine if kind in ROUTINE else self._events
        kept.append(RunEvent(kind, text, time.time(), seconds, self.epoch, slices, nbytes))
        LOG.info("%s: %s", kind, text)

    def lost(self, container: str, reason: str) -> None:
        with self._lock:
            self._lost_at = self._lost_at or time.monotonic()
        self.note("lost", f"container {container} is lost: {reason}")

    def failed(self, what: str, error: BaseException) -> None:
        self.note("failed", f"{what}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")

    def corrupt(self, error: HoldfastError) -> None:
        self.note("corrupt", str(error).splitlines()[0])

    def follow(self, operations: Sequence[Operation]) -> None:
        """Note what began and what ended since the last time."""
        ended = []
        now = time.monotonic()
        with self._lock:
            self._operations = operations
            known = {one.number for one in operations}
            if len(self._followed) > 2 * len(known) + 1:
                newest = max(self._followed)
                self._followed = {at: one for at, one in self._followed.items() if at in known or at == newest}
            for one in operations:
                followed = self._followed.get(one.number)
                if followed is None and not (one.done and one.number < max(self._followed, default=0)):
                    # A recovery began with the loss, not when somebody looked.
                    began = self._lost_at if one.kind == "recovery" and self._lost_at else now
                    followed = self._followed[one.number] = _Followed(began, self._moved)
                if followed is not None and one.done and followed.began >= 0:
                    ended.append((one, now - followed.began, self._moved - followed.bytes_before))
                    followed.began = -1.0
                    if one.kind == "recovery":
                        self._lost_at = None
        for one, seconds, nbytes in ended:
            self._events.append(
                RunEvent(DONE[one.kind], one.reason, time.time(), seconds, self.epoch, one.slices, nbytes)
            )
            LOG.info("%s in %.3f s: %s", DONE[one.kind], seconds, one.reason)

    def ongoing(self) -> tuple[Ongoing, ...]:
        now = time.monotonic()
        with self._lock:
            found = []
            for one in self._operations:
                followed = self._followed.get(one.number)
                if one.done or followed is None:
                    continue
                seconds, done = now - followed.began, one.slices - len(one.left)
                left = seconds / done * len(one.left) if done else None
                moved = self._moved - followed.bytes_before
                found.append(Ongoing(one.kind, one.reason, one.phase, one.slices, done, moved, seconds, left))
            return tuple(found)
