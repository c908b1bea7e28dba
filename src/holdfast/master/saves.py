"""When an owner's slices are due to be saved to the ring, and how safe the last savings left them."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.invariants import Impossible
from holdfast.master.events import ShardsSaved
from holdfast.master.instructions import SaveShards
from holdfast.safety.policies import Terms

AGAIN_SECONDS = 3.0


class Last(NamedTuple):
    """Of one owner: the epoch, when it was, and what made it as good as it can be."""

    epoch: int
    at: float
    facts: tuple[frozenset[int], frozenset[str]] | None = None


class Saving:
    def __init__(self, safety: Terms) -> None:
        self._safety = safety
        self._last: dict[str, Last] = {}
        self._copies: dict[int, int] = {}
        """slice → on how many containers its pieces are, at least."""

    @property
    def copies(self) -> int:
        """Of all slices together."""
        return sum(self._copies.values())

    def begin(self, owner: str, slices: frozenset[int], hosts: frozenset[str], committed: int, now: float) -> bool:
        """Whether it is due now; by that it counts as begun."""
        if self._safety.shards is None:
            return False
        last = self._last.setdefault(owner, Last(0, now))
        facts = (slices, hosts)
        if committed > last.epoch:
            due = self._safety.every.passed(committed - last.epoch, now - last.at)
        else:
            due = facts != last.facts and now - last.at >= max(AGAIN_SECONDS, self._safety.every.seconds)
        if not due:
            return False
        self._last[owner] = Last(committed, now, facts)
        return True

    def saved(self, done: SaveShards, answer: ShardsSaved) -> None:
        if self._safety.shards is None:
            raise Impossible("pieces of a job that has none")
        self._copies.update(answer.copies)
        last = self._last.get(done.container)
        peers = len(last.facts[1]) - 1 if last is not None and last.facts is not None else 0
        if any(copies < min(self._safety.shards.n, peers) for _, copies in answer.copies):
            self.failed(done)

    def failed(self, done: SaveShards) -> None:
        """It is tried again after an interval, though no epoch may have come by then."""
        last = self._last.get(done.container)
        if last is not None:
            self._last[done.container] = last._replace(facts=None)

    def lose(self, container: str) -> None:
        """Everybody's pieces may have been there."""
        self._last.pop(container, None)
        self._copies.clear()
