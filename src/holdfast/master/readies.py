"""Slices that the ring brings back by itself: the master waits for them, but not for ever, and plans nothing.

Every living container is asked what it has ready of the lost slices; it answers when its share of the work is done.
A slice that somebody has is as good as a copy there. One that nobody has, once all have answered or patience is over,
comes from the store and the log like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from holdfast.log.records import Fence
from holdfast.master.events import ReadySeen
from holdfast.master.instructions import Gather, TellPeople
from holdfast.master.requests import Asking

PATIENCE_SECONDS = 60.0


class Readies:
    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._since: dict[int, float] = {}
        self._why: dict[int, str] = {}
        self._asked: tuple[frozenset[int], frozenset[str], frozenset[str]] | None = None

    def awaited(
        self, orphans: Iterable[int], living: Iterable[str], lost: Iterable[str], fence: Fence, now: float
    ) -> frozenset[int]:
        """Those orphans that are still worth waiting for. Asks whoever has not been asked about them."""
        wanted, hosts = frozenset(orphans), frozenset(living)
        self._since = {slice_: self._since.get(slice_, now) for slice_ in wanted}
        if not wanted:
            self._why.clear()
            self._asked = None
            return wanted
        facts = (wanted, hosts, frozenset(lost))
        if self._asked is None or not (wanted <= self._asked[0] and facts[1:] == self._asked[1:]):
            self._asked = facts
            for container in sorted(hosts):
                self._asking.ask(Gather(container, fence, wanted, facts[2]))
        open_ = [one.slices for one in self._asking.pending.values() if isinstance(one, Gather)]
        asked = frozenset[int]().union(*open_)
        waiting = frozenset(one for one in wanted & asked if now - self._since[one] < PATIENCE_SECONDS)
        if wanted - waiting:
            self._tell(wanted - waiting)
        return waiting

    def seen(self, answer: ReadySeen) -> None:
        self._why.update(answer.beyond)

    def _tell(self, given_up: Collection[int]) -> None:
        reasons = sorted({self._why[slice_] for slice_ in given_up if slice_ in self._why})
        why = " ".join(reasons) or "Nobody had them ready in time."
        self._asking.ask(
            TellPeople(
                "beyond the ring", f"{len(given_up)} lost slices come back from the store and the log instead: {why}"
            )
        )
