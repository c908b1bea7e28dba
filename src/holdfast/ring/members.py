"""Which applications of a container are members of which groups: the ring knows the container as one member."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.ring.vertex_messages import AppName


class Members:
    """A container joins a group with the first of its applications that does, and leaves it with the last.

    ``join`` and ``leave`` are called while nobody else can: two applications that come and go at once must not tell the
    ring the one after the other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[int, set[AppName]] = {}

    def add(self, group: int, name: AppName, join: Callable[[int], None]) -> None:
        with self._lock:
            members = self._of.setdefault(group, set())
            if not members:
                join(group)
            members.add(name)

    def discard(self, group: int, name: AppName, leave: Callable[[int], None]) -> None:
        with self._lock:
            members = self._of.get(group, set())
            if members == {name}:
                leave(group)
                del self._of[group]
            members.discard(name)

    def of(self, group: int) -> tuple[AppName, ...]:
        with self._lock:
            return tuple(sorted(self._of.get(group, ())))
