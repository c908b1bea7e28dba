"""Containers as children of the driver (``local[*]``, and any cluster whose executors can reach the driver's host).

A child lives on a pipe: its settings come in on standard input, and when the driver goes the pipe closes and so does
the child. Its last lines of error output are kept in memory, to be shown when it cannot start.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.container.client import Address
from holdfast.errors import ContainerError

START_SECONDS = 120.0


@dataclass(frozen=True)
class ContainerSettings:
    token: str
    host: str = "127.0.0.1"
    threads: int = 1
    staging_bytes: int = 256 << 20


class ContainerProcess:
    """One running child."""

    def __init__(
        self, container: str, settings: ContainerSettings, environment: Mapping[str, str] | None = None
    ) -> None:
        self.container = container
        self._tail: deque[str] = deque(maxlen=40)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.container.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # a Ctrl-C in the terminal is for the driver to handle
        )
        assert self._process.stdin is not None
        line = json.dumps(
            {
                "container": container,
                "token": settings.token,
                "host": settings.host,
                "threads": settings.threads,
                "staging_bytes": settings.staging_bytes,
            }
        )
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died already; `await_ready` tells why
        self._settings = settings
        self._drain = threading.Thread(target=self._keep_tail, daemon=True, name=f"tail-{container}")
        self._drain.start()
        self.address: Address | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def await_ready(self) -> Address:
        assert self._process.stdout is not None
        watchdog = threading.Timer(START_SECONDS, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            self._process.wait()
            self._drain.join(2)
            self.close()
            last = "\n".join(f"    {text}" for text in self._tail) or "    (it said nothing)"
            raise ContainerError(
                f"Container '{self.container}' could not start (exit code {self._process.returncode})."
                f" Its last lines:\n"
                f"{last}",
                safe="The store was not changed by it.",
                todo="Mend what the lines above say, then start the job again.",
            )
        port = json.loads(line)["port"]
        self.address = Address(self.container, f"grpc://{self._settings.host}:{port}")
        return self.address

    def on_exit(self, call: Callable[[str, str], None]) -> None:
        """Call ``call(container, reason)`` once, when the process ends."""

        def watch() -> None:
            code = self._process.wait()
            call(self.container, f"its process ended with code {code}")

        threading.Thread(target=watch, daemon=True, name=f"watch-{self.container}").start()

    def kill(self) -> None:
        if self.alive:
            self._process.kill()

    def close(self) -> None:
        """End the process and give back every pipe and thread."""
        self.kill()
        self._process.wait()
        self._drain.join(5)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _keep_tail(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._tail.append(line.decode(errors="replace").rstrip())


def new_name(number: int) -> str:
    """A name no container of any run ever had: a lost one's id is never accepted again."""
    return f"c{number}-{uuid.uuid4().hex[:8]}"
