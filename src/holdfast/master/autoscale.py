"""How many containers a job should have: a pure judge of epochs, that says in words what it would do and why.

What counts is how much of the trigger interval an epoch takes. Too much of it, several epochs in a row, or too many
rows waiting: more containers. Too little for longer: fewer. Growing is quick and shrinking slow, because too few
containers cost results and too many only money.

It never flaps, whatever the job's response to more containers looks like: after growing it shrinks only when the load
itself has fallen, judged by epochs of this very number of containers, not by a model. So a constant load is answered by
some steps down, then some up, then rest. The price: an overshoot stays until the load falls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.errors import PlanError


@dataclass(frozen=True)
class Autoscale:
    """When to grow and shrink, and how far."""

    least: int = 1
    most: int = 16
    target: float = 0.7  # epoch time ÷ trigger interval to aim for
    hysteresis: float = 0.2  # within target × (1 ± this) all is well
    up_after: int = 3  # epochs in a row
    down_after: int = 10
    cool_down: float = 60.0  # seconds after a change in which nothing is judged
    backlog: float = 2.0  # epochs' worth of waiting rows that counts as overload

    def __post_init__(self) -> None:
        wrong = [
            text
            for text, holds in (
                (f"least={self.least} and most={self.most}", 1 <= self.least <= self.most),
                (f"target={self.target}", 0 < self.target <= 1),
                (f"hysteresis={self.hysteresis}", 0 < self.hysteresis < 1),
                (
                    f"up_after={self.up_after} and down_after={self.down_after}",
                    min(self.up_after, self.down_after) >= 1,
                ),
                (f"cool_down={self.cool_down}", self.cool_down >= 0),
                (f"backlog={self.backlog}", self.backlog > 0),
            )
            if not holds
        ]
        if wrong:
            raise PlanError(
                f"This autoscaling policy makes no sense: {'; '.join(wrong)}.",
                safe="Nothing was started.",
                todo="Have 1 <= least <= most, target in (0, 1], hysteresis in (0, 1), at least one epoch in a row, "
                "no negative cool-down and a backlog above zero.",
            )


@dataclass(frozen=True)
class PerExecutor:
    """One container for every executor: new executors get one, lost ones take theirs along."""

    settle: float = 5.0  # seconds for which the number of executors must stand: a lost one mostly comes again at once

    def __post_init__(self) -> None:
        if self.settle < 0:
            raise PlanError(f"settle must not be negative, but is {self.settle}.", safe="Nothing was started.")


@dataclass(frozen=True)
class Advice:
    containers: int
    reason: str


@dataclass(frozen=True)
class _Epoch:
    use: float  # of the interval
    rows: int
    overloaded: bool
    waiting: float  # epochs' worth of rows


class Autoscaler:
    """Sees every committed epoch and says how many containers there should be; following it is another's work."""

    def __init__(self, policy: Autoscale) -> None:
        self.policy = policy
        self._seen: list[_Epoch] = []  # since the last change, as many as a judgement takes
        self._containers: int | None = None
        self._changed_at = -math.inf
        self._fewest = self._most = 0  # advised since the last change: advice may be followed late or by halves
        self._grown = False  # the last change that we advised was up
        self._calm: _Epoch | None = (
            None  # how epochs look, at most, since then: the load that must fall before shrinking
        )

    def saw(
        self, at: float, containers: int, epoch_seconds: float, interval: float, rows: int, backlog: int | None
    ) -> Advice:
        """An epoch of ``rows`` took ``epoch_seconds``; ``backlog`` rows wait (None: nobody knows).

        An ``interval`` of zero means as often as possible: then only the backlog says whether that is enough.
        """
        policy = self.policy
        self._notice(at, containers)
        within = min(policy.most, max(policy.least, containers))
        if within != containers:
            return self._advise(within, f"{containers} is not within {policy.least} to {policy.most} containers")
        wait = self._changed_at + policy.cool_down - at
        if wait > 0:
            return Advice(containers, f"cooling down for {wait:.0f} s more after the last change")
        epoch = self._judged(epoch_seconds, interval, rows, backlog)
        self._seen = [*self._seen, epoch][-max(policy.up_after, policy.down_after) :]
        if epoch.overloaded:
            return self._overloaded(containers)
        return self._at_ease(containers)

    # --- judging ------------------------------------------------------------------------------------------

    def _judged(self, epoch_seconds: float, interval: float, rows: int, backlog: int | None) -> _Epoch:
        policy = self.policy
        use = epoch_seconds / interval if interval > 0 else policy.target
        waiting = (backlog or 0) / max(rows, 1)
        return _Epoch(use, rows, use > policy.target * (1 + policy.hysteresis) or waiting > policy.backlog, waiting)

    def _overloaded(self, containers: int) -> Advice:
        policy = self.policy
        recent = self._seen[-policy.up_after :]
        row = _trailing([epoch.overloaded for epoch in recent])
        use = sum(epoch.use for epoch in recent[-row:]) / row
        what = f"epochs take {use:.0%} of the interval, aimed at are {policy.target:.0%}"
        if recent[-1].waiting > policy.backlog:
            what = f"{recent[-1].waiting:.1f} epochs' worth of rows wait, {what}"
        if containers == policy.most:
            return Advice(containers, f"{what}, but {containers} containers are the most allowed")
        if row < policy.up_after:
            return Advice(containers, f"{what}: {row} of {policy.up_after} epochs before growing")
        # Twice as many at most: what an overloaded job would need is a guess, and the next step comes soon.
        wanted = min(policy.most, 2 * containers, max(containers + 1, self._enough(containers, use)))
        return self._advise(wanted, f"{what}, {row} epochs in a row: from {containers} to {wanted} containers")

    def _at_ease(self, containers: int) -> Advice:
        policy = self.policy
        recent = self._seen[-policy.down_after :]
        row = _trailing([not epoch.overloaded for epoch in recent])
        if self._grown and self._calm is None and row == policy.down_after:
            self._calm = _Epoch(_mean([e.use for e in recent]), round(_mean([e.rows for e in recent])), False, 0.0)
        low = policy.target * (1 - policy.hysteresis)
        what = f"epochs take {recent[-1].use:.0%} of the interval, aimed at are {policy.target:.0%}"
        under = _trailing([not epoch.overloaded and epoch.use < low for epoch in recent])
        if not under:
            return Advice(containers, f"{what}: as it should be")
        if containers == policy.least:
            return Advice(containers, f"{what}, but {containers} containers are the fewest allowed")
        if under < policy.down_after:
            return Advice(containers, f"{what}: {under} of {policy.down_after} epochs before shrinking")
        if self._grown and not self._fallen(recent):
            return Advice(containers, f"{what}, but the load for which containers were added has not fallen")
        use = max(epoch.use for epoch in recent)
        wanted = max(policy.least, math.ceil(containers / 2), self._enough(containers, use))
        if wanted >= containers:
            return Advice(containers, f"{what}, but with fewer containers they would take more than that")
        return self._advise(wanted, f"{what}, {under} epochs in a row: from {containers} to {wanted} containers")

    def _enough(self, containers: int, use: float) -> int:
        """How many would reach the target if twice as many were twice as quick."""
        return math.ceil(containers * use / self.policy.target - 1e-9)  # what rounding adds is no container

    def _fallen(self, recent: list[_Epoch]) -> bool:
        """Whether every epoch is clearly below what epochs of this number of containers looked like."""
        if self._calm is None:
            return False
        share = 1 - self.policy.hysteresis
        calm = self._calm
        return all(epoch.use < calm.use * share or epoch.rows < calm.rows * share for epoch in recent)

    # --- remembering --------------------------------------------------------------------------------------

    def _notice(self, at: float, containers: int) -> None:
        """Containers have come or gone: as advised, on the way there, or by somebody else, who starts us afresh."""
        before, self._containers = self._containers, containers
        if before == containers:
            return
        ours = before is not None and self._fewest <= containers <= self._most
        self._grown = ours and before is not None and containers > before
        if not ours or self._grown:
            self._fewest = containers
        if not self._grown:
            self._most = containers
        self._seen = []
        self._calm = None
        if before is not None:
            self._changed_at = at

    def _advise(self, containers: int, reason: str) -> Advice:
        self._fewest = min(self._fewest, containers)
        self._most = max(self._most, containers)
        return Advice(containers, reason)


class Follower:
    """Sees at every committed epoch how many executors there are."""

    def __init__(self, policy: PerExecutor) -> None:
        self._settle = policy.settle
        self._executors = 0
        self._since = 0.0

    def saw(self, at: float, containers: int, executors: int) -> Advice:
        if executors != self._executors:
            self._executors, self._since = executors, at
        what = f"{executors} executors, {containers} containers"
        if not executors:
            return Advice(containers, "no executors are there")
        if executors == containers:
            return Advice(containers, f"{what}: one each")
        wait = self._since + self._settle - at
        if wait > 0:
            return Advice(containers, f"{what}: wait {wait:.0f} s more whether it stays so")
        return Advice(executors, f"{what}: from {containers} to {executors} containers")


def _trailing(holds: list[bool]) -> int:
    """How many at the end hold.

    >>> _trailing([True, False, True, True])
    2
    """
    return next((at for at, held in enumerate(reversed(holds)) if not held), len(holds))


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values)
