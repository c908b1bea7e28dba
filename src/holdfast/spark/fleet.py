"""The containers of a run: started, watched, called, ended.

A process that ends is evidence and reported at once. Silence is suspicion: a container that does not answer its pings
is killed after ``silence`` seconds, and its end is then evidence like any other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.container.client import Address, Client, Unreachable
from holdfast.errors import ContainerError, HoldfastError
from holdfast.spark.launcher import ContainerProcess, ContainerSettings, new_name

PING_SECONDS = 1.0
SILENCE_SECONDS = 5.0
UNCONFIRMED_SECONDS = 2.0


class Fleet:
    def __init__(
        self,
        settings: ContainerSettings,
        host: Mapping[str, Any],
        lost: Callable[[str, str], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._host = dict(host)  # what every container is told of the job when it starts
        self._lost = lost
        self._environment = environment
        self._lock = threading.Lock()
        self._processes: dict[str, ContainerProcess] = {}
        self._clients: dict[str, Client] = {}
        self._gone: set[str] = set()
        self._started = 0
        self._closing = threading.Event()
        self._pinger = threading.Thread(target=self._ping_all, daemon=True, name="holdfast-pings")
        self._pinger.start()

    def start(self, count: int) -> list[str]:
        """Start ``count`` containers side by side; the names of those that host the job now."""
        with self._lock:
            if self._closing.is_set():
                return []
            names = [new_name(self._started + at) for at in range(count)]
            self._started += count
            processes = [ContainerProcess(name, self._settings, self._environment) for name in names]
            self._processes.update(zip(names, processes, strict=True))
        ready = []
        for process in processes:
            client = Client(process.await_ready(), self._settings.token)
            with self._lock:
                self._clients[process.container] = client
            process.on_exit(self._ended)
            try:
                client.call("host", self._host)
            except Unreachable:
                process.kill()  # its end is reported like any other
            else:
                ready.append(process.container)
        return ready

    def call(
        self,
        container: str,
        action: str,
        header: Mapping[str, Any],
        *blobs: bytes,
        timeout: float | None = None,
    ) -> tuple[dict[str, Any], list[memoryview]]:
        client = self._clients.get(container)
        if client is None:
            raise Unreachable(f"{container} is gone")
        return client.call(action, {**self._identity(), **header}, *blobs, timeout=timeout)

    def call_all(
        self, action: str, header: Mapping[str, Any], timeout: float | None = 30.0
    ) -> dict[str, dict[str, Any]]:
        """The same call to all that live; those that do not answer are left out."""
        names = self.alive()
        if not names:
            return {}

        def one(name: str) -> tuple[str, dict[str, Any] | None]:
            try:
                return name, self.call(name, action, header, timeout=timeout)[0]
            except (Unreachable, HoldfastError):
                return name, None

        with ThreadPoolExecutor(len(names), thread_name_prefix="holdfast-all") as pool:
            return {name: answer for name, answer in pool.map(one, names) if answer is not None}

    def alive(self) -> list[str]:
        with self._lock:
            return list(self._clients)

    def all(self) -> list[tuple[str, int, bool]]:
        with self._lock:
            return [(name, process.pid, process.alive) for name, process in self._processes.items()]

    def address(self, container: str) -> Address:
        address = self._processes[container].address
        assert address is not None, f"{container} has never listened"
        return address

    def kill(self, container: str) -> None:
        process = self._processes.get(container)
        if process is None or not process.alive:
            raise ContainerError(
                f"There is no living container '{container}'.",
                todo=f"Those alive are: {', '.join(self.alive())}.",
            )
        process.kill()

    def close(self) -> None:
        self._closing.set()
        self._pinger.join(PING_SECONDS * 3)
        with self._lock:
            clients, processes = list(self._clients.values()), list(self._processes.values())
        for process in processes:
            process.close()
        for client in clients:
            client.close()

    def _identity(self) -> dict[str, Any]:
        return {"job": self._host["job"], "incarnation": self._host["incarnation"]}

    def _ended(self, container: str, reason: str) -> None:
        with self._lock:
            first = container not in self._gone
            self._gone.add(container)
            client = self._clients.pop(container, None)
        if client is not None:
            client.close()
        if first and not self._closing.is_set():
            self._lost(container, reason)

    def _ping_all(self) -> None:
        heard: dict[str, float] = {}
        while not self._closing.wait(PING_SECONDS):
            for name in self.alive():
                heard.setdefault(name, time.monotonic())
                try:
                    self.call(name, "ping", {}, timeout=PING_SECONDS)
                    heard[name] = time.monotonic()
                except (Unreachable, HoldfastError):
                    silent = time.monotonic() - heard[name]
                    if silent > SILENCE_SECONDS + UNCONFIRMED_SECONDS:
                        self._ended(name, "it was silent, and its end could not be confirmed")
                    elif silent > SILENCE_SECONDS:
                        self._processes[name].kill()


def group_by_owner(slices: Sequence[int], owner: Callable[[int], str]) -> dict[str, tuple[int, ...]]:
    grouped: dict[str, list[int]] = {}
    for number in slices:
        grouped.setdefault(owner(number), []).append(number)
    return {container: tuple(numbers) for container, numbers in grouped.items()}
