"""Autoscaling as it runs: every committed epoch is shown to a judge, and its advice followed if that is wished for.

Without a policy the default one still judges, so that ``run.status()`` can say what it would do and why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.driver.history import EpochFigures
from holdfast.driver.loop import Shell
from holdfast.master import events as ev
from holdfast.master.autoscale import Advice, Autoscale, Autoscaler, Follower, PerExecutor
from holdfast.safety.intervals import seconds_of


class Scaling:
    def __init__(
        self,
        policy: Autoscale | PerExecutor | None,
        trigger: Mapping[str, Any],
        progress: Callable[[], Any],
        executors: Callable[[], int],
        shell: Shell,
    ) -> None:
        self.advice: Advice | None = None
        self._follows = policy is not None
        self._judge = Follower(policy) if isinstance(policy, PerExecutor) else Autoscaler(policy or Autoscale())
        self._interval = seconds_of(str(trigger.get("processingTime", "")))
        self._progress = progress
        self._executors = executors
        self._shell = shell
        shell.on_commit = self._saw

    def _saw(self, last: EpochFigures) -> None:
        shell = self._shell
        wanted = shell.machine.containers
        advice = self._judged(wanted, last)
        if advice is None:
            return
        self.advice = advice
        if self._follows and advice.containers != wanted:
            shell.history.note("autoscale", advice.reason)
            shell.tell(ev.ScaleWanted(advice.containers))

    def _judged(self, wanted: int, last: EpochFigures) -> Advice | None:
        now = time.monotonic()
        if isinstance(self._judge, Follower):
            return self._judge.saw(now, wanted, self._executors())
        if not self._interval:  # without a pace there is nothing to keep up with
            return None
        return self._judge.saw(now, wanted, last.seconds, self._interval, last.rows, _waiting(self._progress()))


def _waiting(progress: Any) -> int | None:
    """Rows that the sources have and the query has not read, where they tell (Kafka does)."""
    found = None
    for source in getattr(progress, "sources", None) or ():
        behind = (source.metrics or {}).get("avgOffsetsBehindLatest")
        if behind is not None:
            found = (found or 0) + int(float(behind))
    return found
