"""A container's door: calls find their handler by their type, and the job that they are about.

What happens is in ``handlers``, and in whatever else is added: the ring has handlers of its own, which whoever puts a
container together adds (``holdfast.launch.process``), so that this room knows nothing of that one.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.container.handlers import Handlers, Jobs
from holdfast.container.job import HostedJob
from holdfast.container.thread_table import ThreadTable
from holdfast.wire.codec import Sender
from holdfast.wire.server import Server


class Room(Protocol):
    """Has handlers, and is closed before the service stops."""

    def close(self) -> None: ...


class ContainerService(Server):
    def __init__(self, container: str, token: str, host: str, threads: int, staging_bytes: int) -> None:
        super().__init__(container, token, host, "A container")
        self.container = container
        self._threads = ThreadTable(threads)
        self.jobs = Jobs(container)
        self._rooms: list[Room] = []
        self.table.add(Handlers(container, token, self.jobs, self._threads, staging_bytes))

    def add(self, room: Room) -> None:
        """Its handlers too."""
        self._rooms.append(room)
        self.table.add(room)

    def about(self, sender: Sender, leads: bool) -> HostedJob:
        return self.jobs.of(sender, leads)

    def close(self) -> None:
        for room in reversed(self._rooms):  # each stands on those before it
            room.close()
        self.shutdown()
        self._threads.close()
        self.jobs.close()
