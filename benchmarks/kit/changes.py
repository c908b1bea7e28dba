"""One change to a job under load: how long its commits paused, and what was sent for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from kit.contestants import Contestant, Holdfast, Loaded, await_commit
from kit.load import longest_gap, undisturbed

SETTLE_SECONDS = 600.0
MOVES = ("rescaled", "moved")  # kinds of events that tell what was sent while a change was under way


@dataclass(frozen=True)
class Change:
    label: str
    gap: float
    """The longest distance between commits around the change, in seconds."""
    epochs: float
    """The same in undisturbed medians."""
    seconds: float
    """From asking to settled."""
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def watch(made: Holdfast, loaded: Loaded, label: str, change: Callable[[], object], after: float) -> Change:
    """Makes the change and waits until it has settled, then ``after`` more seconds for a backlog to go."""
    start = time.time()
    change()
    if made.run.await_settled(SETTLE_SECONDS) is False:
        raise SystemExit(f"{label} has not settled within {SETTLE_SECONDS:.0f} s.")
    settled = time.time()
    sent = sum(event.bytes for event in made.events(start, *MOVES))
    time.sleep(after)
    return measured(made, loaded, label, start, settled, sent)


def measured(made: Contestant, loaded: Loaded, label: str, start: float, settled: float, sent: int = 0) -> Change:
    # One commit after it is part of the change: it may be the first that had to wait.
    last = await_commit(made, await_commit(made, settled))
    times = made.times()
    gap = longest_gap(times, start, last)
    return Change(label, gap, gap / undisturbed(times, loaded.calm_from, loaded.calm_to), settled - start, sent)
