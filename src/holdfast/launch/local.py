"""Where containers come from: the protocol, and the launcher whose containers live beside the driver.

A nursery forks them where that is possible (see ``container.nursery``); elsewhere each is a new process. Either way a
container lives on a pipe: its settings come in on standard input, and when the driver goes the pipe closes and so does
the container. Its last lines of error output are kept in memory, to be shown when it cannot start. An executor starts
its container in the same way (see ``executors``), so that how a container lives and ends is written once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

from holdfast.errors import ContainerError
from holdfast.invariants import Impossible, invariant, some
from holdfast.launch.forkserver import POSSIBLE, Child, Nursery
from holdfast.wire.locations import THIS_MACHINE, machine
from holdfast.wire.messages import Address

LOG = logging.getLogger("holdfast")
START_SECONDS = 120.0
END_SECONDS = 5.0


@dataclass(frozen=True)
class ContainerSettings:
    token: str = field(repr=False)
    host: str = THIS_MACHINE
    """Where it listens: a machine, or a folder of Unix sockets."""
    threads: int = 1
    staging_bytes: int = 256 << 20
    gentle: bool = False
    """Get ready at a low priority: others are at work on this machine."""
    hash_seed: int = 0
    """One for all containers of a job: a function over a set must see the same order wherever an epoch is applied."""

    def of(self, container: str, passes: Callable[[str], str] | None) -> ContainerSettings:
        """With the pass of one container, where each has its own."""
        return self if passes is None else replace(self, token=passes(container))

    def environment(self, changes: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**os.environ, **(changes or {}), "PYTHONHASHSEED": str(self.hash_seed)}


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

    def executors(self) -> int:
        """How many executors containers can share with Spark's tasks."""

    def close(self) -> None: ...


class ChildLauncher:
    """Containers as children of this process (``local[*]``, and wherever executors can reach the driver's host).

    Or of its nursery, which is started with the first of them. One that dies is replaced when the next container is
    wanted; after one that never got ready, containers start the long way. ``passes`` gives each container a pass of its
    own; without it all have that of the settings.
    """

    def __init__(
        self,
        settings: ContainerSettings,
        environment: Mapping[str, str] | None = None,
        passes: Callable[[str], str] | None = None,
    ) -> None:
        self.settings = settings
        self._environment = environment
        self._passes = passes
        self._lock = threading.Lock()
        self._nursery: Nursery | None = None
        self._may_nurse = POSSIBLE

    def make_room(self, count: int) -> None:
        """There is always room: the driver's host is the only one."""

    def start(self, name: str) -> ContainerProcess:
        settings = self.settings.of(name, self._passes)
        return ContainerProcess(name, settings, self._environment, nursery=self._living_nursery())

    def executors(self) -> int:
        return 0

    def close(self) -> None:
        with self._lock:
            self._may_nurse = False
            if self._nursery is not None:
                self._nursery.close()
                self._nursery = None

    def _living_nursery(self) -> Nursery | None:
        with self._lock:
            if self._nursery is not None and not self._nursery.alive:
                self._may_nurse = self._nursery.is_ready
                said = self._nursery.close()
                LOG.warning("the nursery of containers died%s", f":\n{said}" if said else "")
                self._nursery = None
            if self._nursery is None and self._may_nurse:
                try:
                    self._nursery = Nursery(
                        self.settings.environment(self._environment), self.settings.gentle, self.settings.host
                    )
                except OSError:
                    self._may_nurse = False  # a container will say why
            return self._nursery


class ContainerProcess:
    """One running child, of this process or of its nursery.

    ``bound`` ties it to the calling *thread* as well, by the kernel: then it ends even if it is stopped or stuck and
    cannot see its pipe close. Only for callers whose thread lives as long as they want the child to, and not for one
    of a nursery.
    """

    def __init__(
        self,
        container: str,
        settings: ContainerSettings,
        environment: Mapping[str, str] | None = None,
        bound: bool = False,
        nursery: Nursery | None = None,
    ) -> None:
        invariant(not (bound and nursery), "the kernel ties a child to its parent, which is the nursery")
        self.container = container
        self._settings = settings
        self._environment = settings.environment(environment)
        self._bound = bound
        self._tail: deque[str] = deque(maxlen=40)
        self._drain: threading.Thread | None = None
        self._address: Address | None = None
        self._lock = threading.Lock()  # for the choice between a child of the nursery and one of our own
        self._unwanted = False
        child = nursery.fork(self._environment, START_SECONDS) if nursery else None
        self._process: subprocess.Popen[bytes] | Child = child or self._begin()
        self._tell_settings()
        if child is None:
            self._keep_tail()

    @property
    def address(self) -> Address | None:
        return self._address

    @property
    def host(self) -> str:
        return machine(self._settings.host)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        try:
            self._process.wait(0)
        except subprocess.TimeoutExpired:
            return True
        return False

    def await_ready(self) -> Address:
        if isinstance(self._process, Child):
            self._await_birth(self._process)
        if self._process.stdout is None:
            raise Impossible("its streams are pipes")
        watchdog = threading.Timer(START_SECONDS, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            code = self._process.wait()
            if self._drain is not None:
                self._drain.join(2)
            self.close()
            raise self._could_not_start("its code is unknown" if code is None else f"exit code {code}")
        self._address = Address(self.container, json.loads(line)["location"])
        return self._address

    def on_exit(self, call: Callable[[str, str], None]) -> None:
        def watch() -> None:
            code = self._process.wait()
            call(self.container, "its process ended" if code is None else f"its process ended with code {code}")

        threading.Thread(target=watch, daemon=True, name=f"watch-{self.container}").start()

    def kill(self) -> None:
        with self._lock:
            self._unwanted = True
            self._process.kill()

    def close(self) -> None:
        """End the process and give back every pipe and thread."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # in the kernel's hands, on a disk that hangs
            self._process.wait(END_SECONDS)
        if self._drain is not None:
            self._drain.join(END_SECONDS)
        if isinstance(self._process, Child):
            self._process.close()
            return
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            pipe = some(pipe, "its streams are pipes")
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast.launch.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,  # a Ctrl-C in the terminal is for the driver to handle
        )

    def _await_birth(self, child: Child) -> None:
        """If the nursery is no more, start one of our own."""
        born = child.await_birth()
        with self._lock:
            if not born and self._unwanted:
                child.close()
                raise self._could_not_start("it was ended before it began")
            if not born:
                child.close()
                self._process = self._begin()
                self._tell_settings()
            self._keep_tail()

    def _tell_settings(self) -> None:
        if self._process.stdin is None:
            raise Impossible("its streams are pipes")
        parent = os.getpid() if self._bound else 0
        line = json.dumps({"container": self.container, "parent": parent, **asdict(self._settings)})
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died already; `await_ready` tells why

    def _could_not_start(self, how: str) -> ContainerError:
        last = "\n".join(f"    {text}" for text in self._tail) or "    (it said nothing)"
        return ContainerError(
            f"Container '{self.container}' could not start ({how}). Its last lines:\n{last}",
            safe="The store was not changed by it.",
            todo="Mend what the lines above say, then start the job again.",
        )

    def _keep_tail(self) -> None:
        lines = self._process.stderr
        lines = some(lines, "its streams are pipes")

        def keep() -> None:
            for line in lines:
                self._tail.append(line.decode(errors="replace").rstrip())

        self._drain = threading.Thread(target=keep, daemon=True, name=f"tail-{self.container}")
        self._drain.start()


def new_name(number: int) -> str:
    """A name no container of any run ever had: a lost one's id is never accepted again."""
    return f"c{number}-{uuid.uuid4().hex[:8]}"
