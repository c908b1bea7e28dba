"""What must not be lost to one bad connection is sent again at the next tick, a few times.

For messages up and down a group's tree, which are not routed: nobody else would do. They are remembered by their
ids; a peer that is not reached as often as a leaf may be silent is given up.
"""

from __future__ import annotations

from holdfast.ring.overlay.core import Core
from holdfast.ring.overlay.messages import Ask, Cast, MessageId, Part, Result

Tracked = Cast | Ask | Part | Result


class Retries:
    __slots__ = ("_again", "_core", "_tries")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._again: list[tuple[int, Tracked]] = []
        self._tries: dict[tuple[int, type[Tracked], MessageId], tuple[int, int]] = {}
        """How often it failed, and at which tick last."""

    def later(self, peer: int, message: Tracked) -> bool:
        """It was not delivered. True: it will be sent again; False: it has failed too often."""
        key = peer, type(message), message.id
        tries = self._tries.get(key, (0, 0))[0] + 1
        if tries > self._core.settings.patience:
            self._tries.pop(key, None)
            return False
        self._tries[key] = tries, self._core.tick
        self._again.append((peer, message))
        return True

    def tick(self) -> None:
        if not self._tries:
            return
        oldest = self._core.tick - 4 * self._core.settings.patience
        self._tries = {key: entry for key, entry in self._tries.items() if entry[1] >= oldest}
        for peer, message in self._again:
            self._core.send(peer, message)
        self._again.clear()
