"""Where containers come from: the protocol, and the launcher whose containers are children of the driver.

A child lives on a pipe: its settings come in on standard input, and when its parent goes the pipe closes and so does
the child. Its last lines of error output are kept in memory, to be shown when it cannot start. An executor starts its
container in the same way (see ``executors``), so that how a container lives and ends is written once.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

from holdfast.container.client import Address
from holdfast.errors import ContainerError

START_SECONDS = 120.0
END_SECONDS = 5.0


@dataclass(frozen=True)
class ContainerSettings:
    token: str
    host: str = "127.0.0.1"
    threads: int = 1
    staging_bytes: int = 256 << 20
    gentle: bool = False
    """Get ready at a low priority: others are at work on this machine."""


class Handle(Protocol):
    """One container as the process that asked for it sees it."""

    container: str

    @property
    def address(self) -> Address | None:
        """Where it listens, once it is ready."""

    @property
    def host(self) -> str:
        """The machine it is on, by the name others know it: backups go to other hosts first."""

    @property
    def pid(self) -> int:
        """On its host; 0 until it has one."""

    @property
    def alive(self) -> bool:
        """Not known to have ended."""

    def await_ready(self) -> Address:
        """Wait until it listens, or raise why it never will."""

    def on_exit(self, call: Callable[[str, str], None]) -> None:
        """Call ``call(container, reason)`` once, when its end is certain."""

    def kill(self) -> None:
        """End it without waiting; the end itself is told to ``on_exit``."""

    def close(self) -> None:
        """End it and give back everything that was held for it."""


class Launcher(Protocol):
    settings: ContainerSettings

    def make_room(self, count: int) -> None:
        """Say that ``count`` more containers are about to be started."""

    def start(self, name: str) -> Handle: ...

    def free_executors(self) -> int:
        """How many executors have no container: places where one more would bring more than company."""

    def close(self) -> None: ...


class ChildLauncher:
    """Containers as children of this process (``local[*]``, and wherever executors can reach the driver's host)."""

    def __init__(self, settings: ContainerSettings, environment: Mapping[str, str] | None = None) -> None:
        self.settings = settings
        self._environment = environment

    def make_room(self, count: int) -> None:
        """There is always room: the driver's host is the only one."""

    def start(self, name: str) -> ContainerProcess:
        return ContainerProcess(name, self.settings, self._environment)

    def free_executors(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing is held between the handles."""


class ContainerProcess:
    """One running child.

    ``bound`` ties it to the calling *thread* as well, by the kernel: then it ends even if it is stopped or stuck and
    cannot see its pipe close. Only for callers whose thread lives as long as they want the child to.
    """

    def __init__(
        self,
        container: str,
        settings: ContainerSettings,
        environment: Mapping[str, str] | None = None,
        bound: bool = False,
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
        line = json.dumps({"container": container, "parent": os.getpid() if bound else 0, **asdict(settings)})
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died already; `await_ready` tells why
        self._settings = settings
        self._drain = threading.Thread(target=self._keep_tail, daemon=True, name=f"tail-{container}")
        self._drain.start()
        self._address: Address | None = None

    @property
    def address(self) -> Address | None:
        return self._address

    @property
    def host(self) -> str:
        return self._settings.host

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
        self._address = Address(self.container, f"grpc://{self._settings.host}:{json.loads(line)['port']}")
        return self._address

    def on_exit(self, call: Callable[[str, str], None]) -> None:
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
        with contextlib.suppress(subprocess.TimeoutExpired):  # in the kernel's hands, on a disk that hangs
            self._process.wait(END_SECONDS)
        self._drain.join(END_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _keep_tail(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._tail.append(line.decode(errors="replace").rstrip())


def is_refused(address: Address, timeout: float) -> bool:
    """A broken call has many causes; a refused connection has one: nobody listens there any more."""
    host, _, port = address.location.removeprefix("grpc://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


def new_name(number: int) -> str:
    """A name no container of any run ever had: a lost one's id is never accepted again."""
    return f"c{number}-{uuid.uuid4().hex[:8]}"
