"""What containers have been told to drop, to put away or to use up, until that is done.

Nothing new of such a slice may come to that container before: it could be dropped in its place.
"""

from __future__ import annotations

from holdfast.master.instructions import Activate, Demote, DropCopies, Forget
from holdfast.master.requests import Asking

AGAIN_SECONDS = 1.0


class Drops:
    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._failed: list[tuple[float, Forget | DropCopies]] = []
        """What could not be dropped, and when."""

    def failed(self, instruction: Forget | DropCopies, now: float) -> None:
        self._failed.append((now, instruction))

    def advance(self, now: float) -> None:
        for at, instruction in list(self._failed):
            if now - at >= AGAIN_SECONDS:
                self._failed.remove((at, instruction))
                self._asking.ask(instruction)

    def unsettled(self, container: str) -> set[int]:
        """Slices of which this container is just dropping, putting away or using a copy: no other may come there."""
        waiting = [instruction for _, instruction in self._failed]
        return {
            slice_
            for one in [*self._asking.pending.values(), *waiting]
            if isinstance(one, Forget | DropCopies | Demote | Activate) and one.container == container
            for slice_ in one.slices
        }

    def lose(self, container: str) -> None:
        self._failed = [(at, one) for at, one in self._failed if one.container != container]
