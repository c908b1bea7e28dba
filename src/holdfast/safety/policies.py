"""The safety policies that a job can be started with, and what the master needs to know of each.

``Delta`` is ChronoStream's (§III-B): the rows that changed go to peers behind the epochs, the store gets everything
now and then. ``Shards`` is SR3's (§3.3): pieces of a slice on the ring instead of copies of it. ``Sync`` is what every
paper compares with: stop, write everything, go on. ``Eventual`` is CEC's: units of the state go into the log itself.
Without any the log alone is the safety: it is never cut, and all of it is replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import PlanError
from holdfast.safety.intervals import Interval, seconds_of
from holdfast.safety.shards import Cut

EVERY_EPOCH = Interval(epochs=1)


@dataclass(frozen=True)
class Checks:
    """How units of state are written into the log again: ``extent`` and ``behind`` are what they shall bound, ``spend``
    of every ``every`` seconds is for them, and no footprint is to be older than ``age`` seconds."""

    extent: float
    behind: int
    spend: float
    every: float
    age: float


@dataclass(frozen=True)
class Terms:
    """A policy in the master's words."""

    backups: int = 0
    """How many peers shall hold a copy of each slice."""
    every: Interval = EVERY_EPOCH
    """How often the copies are brought up to date."""
    store_every: Interval | None = None
    """How often everything goes to the store; the log is cut by that. None: never."""
    blocking: bool = False
    """No epoch runs while the store gets it."""
    shards: Cut | None = None
    """Instead of backups: how slices are cut into pieces, and how often each is kept, every ``every``."""
    checks: Checks | None = None
    """Instead of copies and checkpoints: units of the state are in the log itself."""


@dataclass(frozen=True)
class Delta:
    """Behind the epochs: changed rows to ``backups`` peers every ``every``, everything to the store now and then.

    Both take a number of epochs (``10``) or a time (``"3 s"``). With fewer peers than backups there are as many copies
    as peers.
    """

    backups: int = 1
    every: int | str = "3 s"
    store_every: int | str = "60 s"

    def terms(self) -> Terms:
        if self.backups < 0:
            raise PlanError(f"backups must be at least 0, not {self.backups}.", safe="Nothing was started.")
        return Terms(
            self.backups, Interval.of(self.every, "every"), Interval.of(self.store_every, "store_every"), blocking=False
        )


@dataclass(frozen=True)
class Shards:
    """Behind the epochs: each slice as ``m`` shards on ``n`` containers each, everything to the store now and then.

    The containers are neighbours on the ring of the slice's key, never its owner. Of every shard ``n - 1`` holders may
    be lost with the owner. ``every`` and ``store_every`` take a number of epochs (``10``) or a time (``"3 s"``).
    """

    m: int = 8
    n: int = 2
    every: int | str = "3 s"
    store_every: int | str = "60 s"

    def terms(self) -> Terms:
        for name, value in (("m", self.m), ("n", self.n)):
            if value < 1:
                raise PlanError(f"{name} must be at least 1, not {value}.", safe="Nothing was started.")
        return Terms(
            every=Interval.of(self.every, "every"),
            store_every=Interval.of(self.store_every, "store_every"),
            shards=Cut(self.m, self.n),
        )


@dataclass(frozen=True)
class Sync:
    """Every ``every``: no epoch runs until all of the state is in the store and verified. The baseline."""

    every: int | str = "60 s"

    def terms(self) -> Terms:
        return Terms(store_every=Interval.of(self.every, "every"), blocking=True)


@dataclass(frozen=True)
class Eventual:
    """Units of the state (a key, or a key's window) are written into the log as they open, and again now and then; no
    copies, no checkpoints. A slice comes back by reading its log backwards.

    ``Q``: how much of that log recovery reads, as a multiple of the units that live; ``U``: how many rows of a stage's
    input it replays. Both are aims: ``CI`` of every ``CP`` of a container's time goes into them at most. ``age``: after
    that a unit is written again in any case. For jobs with no memory to spare on peers, with one container, or whose
    epochs may not jump; best where state closes.
    """

    Q: float = 2.0
    U: int = 1_000_000
    CI: str = "5 ms"
    CP: str = "100 ms"
    age: str = "10 min"

    def terms(self) -> Terms:
        spend, every, age = (seconds_of(one) for one in (self.CI, self.CP, self.age))
        for name, wrong, what in (
            ("Q", self.Q < 1, "at least 1: every unit that lives is in the log once"),
            ("U", self.U < 1, "at least 1"),
            ("CI", not 0 < spend < every, "more than nothing and less than CP"),
            ("age", age <= 0, "more than nothing"),
        ):
            if wrong:
                raise PlanError(f"{name} must be {what}, not {getattr(self, name)!r}.", safe="Nothing was started.")
        return Terms(checks=Checks(self.Q, self.U, spend, every, age))


Safety = Delta | Shards | Sync | Eventual


def terms_of(safety: Safety | None) -> Terms:
    return safety.terms() if safety is not None else Terms()
