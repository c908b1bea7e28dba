"""Which containers there are, are coming and are leaving, and how many there shall be."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.invariants import invariant
from holdfast.master.instructions import NeedContainers
from holdfast.master.requests import Asking

FAILED_STARTS = 3
"""So many containers in a row could not start, and no more are asked for until somebody scales again."""


class Membership:
    def __init__(self, wanted: int, asking: Asking) -> None:
        self.wanted = wanted
        self.hosts: dict[str, str] = {}
        """The containers that live, and where."""
        self.lost: set[str] = set()
        self.leaving: set[str] = set()
        self.coming = 0
        self.gathered = False
        """As many containers as wanted came together, and one of them still lives."""
        self._had_any = False
        self._failed_starts = 0  # in a row
        self._asking = asking

    @property
    def staying(self) -> dict[str, str]:
        return {container: host for container, host in self.hosts.items() if container not in self.leaving}

    @property
    def short(self) -> bool:
        """There are fewer than wanted, and it is worth waiting for more."""
        return len(self.staying) < self.wanted and self._failed_starts < FAILED_STARTS

    def scale(self, wanted: int) -> None:
        invariant(wanted >= 1, "a job needs a container")
        self.wanted, self._failed_starts = wanted, 0

    def join(self, container: str, host: str) -> bool:
        if container in self.lost or container in self.hosts:
            return False
        self.hosts[container] = host
        self.coming = max(0, self.coming - 1)
        self._had_any, self._failed_starts = True, 0
        return True

    def lose(self, container: str) -> bool:
        """Whether it lived until now."""
        lived = container in self.hosts
        if not lived and container not in self.lost:  # it died before it joined
            self.coming = max(0, self.coming - 1)
            self._failed_starts += 1
        self.lost.add(container)
        self.hosts.pop(container, None)
        self.leaving.discard(container)
        return lived

    def could_not_start(self, count: int) -> bool:
        """None of so many could; whether there is no way to go on.

        At first that is so. Later the job goes on with the containers it has; with none, it tries a few times.
        """
        self.coming = max(0, self.coming - count)
        self._failed_starts += 1
        return not self.gathered and (not self._had_any or self._failed_starts >= FAILED_STARTS)

    def gather(self, held: Mapping[str, frozenset[int]], *, whole: bool, calm: bool) -> bool:
        """Have as many as wanted; whether some have to leave now: those that hold least.

        A lost container is replaced when its slices are back (``whole``) and nothing else is going on (``calm``).
        """
        self.gathered = (self.gathered and bool(self.hosts)) or len(self.hosts) >= self.wanted
        if not self.hosts:
            self.leaving.clear()
        missing = self.wanted - len(self.staying)
        back = sorted(self.leaving)[: max(0, missing)]
        self.leaving -= set(back)
        missing -= len(back) + self.coming
        if missing > 0 and (not self.gathered or (whole and calm and self._failed_starts < FAILED_STARTS)):
            self.coming += missing
            self._asking.ask(NeedContainers(missing))
        surplus = len(self.staying) - self.wanted
        if surplus <= 0 or not (self.gathered and whole) or self.coming:
            return False
        order = sorted(self.staying, key=lambda container: (len(held.get(container, ())), container))
        self.leaving |= set(order[:surplus])
        return True
