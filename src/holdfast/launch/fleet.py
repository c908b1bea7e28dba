"""The containers of a run: started, watched, called, ended, whoever launched them.

A process that ends is evidence, and so is a port that refuses or that somebody else answers on: reported at once.
Silence is only suspicion: such a container is first a suspect, then killed by the launcher that started it, and its
end is evidence like any other. Only an end that cannot be confirmed is taken for granted, a little later.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from holdfast.container.messages import Host
from holdfast.errors import ContainerError, HoldfastError, TokenError
from holdfast.interpreter import until_exit
from holdfast.invariants import some
from holdfast.launch.local import Handle, Launcher, new_name
from holdfast.ring.messages import JoinRing, Meet
from holdfast.wire.client import Client, Unreachable, is_refused
from holdfast.wire.codec import Sender
from holdfast.wire.messages import Address, Call, Reply
from holdfast.wire.questions import Ping

A = TypeVar("A", bound=Reply)
MOST_AT_ONCE = 64
GONE_KEPT = 100
HOST_SECONDS = 60.0


@dataclass(frozen=True)
class Silence:
    """How long a container may be silent before what is done about it, in seconds."""

    suspect: float = 1.0  # it gets no more pushes
    kill: float = 5.0
    unconfirmed: float = 2.0  # from the kill on: then it counts as lost anyway
    ping: float = 0.5  # between pings, and what one may take


class Member(NamedTuple):
    name: str
    pid: int
    alive: bool
    host: str


class Fleet:
    """``host`` is what every container is told of the job when it starts, and ``ring`` if it has one."""

    def __init__(
        self,
        launcher: Launcher,
        host: Host,
        incarnation: int,
        lost: Callable[[str, str], None],
        silence: Silence | None = None,
        ring: JoinRing | None = None,
    ) -> None:
        self.launcher = launcher
        self.silence = silence or Silence()
        self._host, self._ring = host, ring
        self._sender = Sender(host.job, incarnation)
        self._lost = lost
        self._lock = threading.Lock()
        self._reporting = threading.Condition(self._lock)
        self._handles: dict[str, Handle] = {}
        self._clients: dict[str, Client] = {}
        self._hosting_now: set[str] = set()  # those whose end is worth a report, until it was made
        self._doomed: set[str] = set()
        self._gone: set[str] = set()
        self._silent: dict[str, float] = {}
        self._started = 0
        self._greetings: list[Callable[[str], None]] = []
        self._greeter = ThreadPoolExecutor(1, thread_name_prefix="holdfast-greets")
        self._closing = threading.Event()
        self._pinger = threading.Thread(target=until_exit(self._ping_all), daemon=True, name="holdfast-pings")
        self._pinger.start()

    def rehost(self, host: Host) -> None:
        """What containers that start from now on are told of the job."""
        self._host = host

    def start(self, count: int) -> list[str]:
        """Start ``count`` containers; the names of those that host the job now.

        One that cannot start is reported as lost, with its reason, and holds up no other. If none can, that raises.
        """
        if count < 1 or self._closing.is_set():
            return []
        with self._lock:
            names = [new_name(self._started + at) for at in range(count)]
            self._started += count
        errors: list[tuple[str, Exception]] = []

        def one(name: str) -> bool:
            try:
                return self._start_one(name)
            except Exception as error:  # whatever it is, the others go on
                errors.append((name, error))
                return False

        self.launcher.make_room(count)
        # Others are at work already: the newcomers' imports and kernels must not take the cores from their epochs.
        self.launcher.settings = replace(self.launcher.settings, gentle=bool(self.alive()))
        with ThreadPoolExecutor(min(count, MOST_AT_ONCE), thread_name_prefix="holdfast-start") as pool:
            begun = [name for name, did in zip(names, pool.map(one, names), strict=True) if did]
        if self._closing.is_set():
            return []
        if len(errors) == count:
            raise errors[-1][1]
        for name, error in errors:
            self._ended(name, f"it could not start: {error.what if isinstance(error, HoldfastError) else error}")
        if self._ring is not None:  # those who came up side by side do not know each other yet
            self.call_all(Meet(self._contacts()))
        with self._lock:
            return [name for name in begun if name in self._clients]

    def call(self, container: str, message: Call[A], timeout: float | None = None) -> A:
        client = self._clients.get(container)
        if client is None:
            raise Unreachable(f"{container} is gone")
        return client.call(message, timeout)

    def call_all(self, message: Call[A], timeout: float | None = 30.0) -> dict[str, A]:
        """The same call to all that live; those that do not answer are left out."""
        answers = self.ask_all(message, timeout)
        return {name: answer for name, answer in answers.items() if not isinstance(answer, Exception)}

    def ask_all(self, message: Call[A], timeout: float | None) -> dict[str, A | Unreachable | HoldfastError]:
        """The same call to all that live, and what each answers or raises."""
        names = self.alive()
        if not names:
            return {}

        def one(name: str) -> tuple[str, A | Unreachable | HoldfastError]:
            try:
                return name, self.call(name, message, timeout)
            except (Unreachable, HoldfastError) as error:
                return name, error

        with ThreadPoolExecutor(min(len(names), MOST_AT_ONCE), thread_name_prefix="holdfast-all") as pool:
            return dict(pool.map(one, names))

    @property
    def on_ring(self) -> bool:
        return self._ring is not None

    def greet(self, greeting: Callable[[str], None]) -> None:
        """Call it with the name of each container that comes from now on; one that is coming up now may be among those
        alive as well. Behind the start of the container, which does not wait for it."""
        with self._lock:
            self._greetings.append(greeting)

    def greet_no_more(self, greeting: Callable[[str], None]) -> None:
        """When this returns it is not called any more, nor is a call of it under way."""
        with self._lock:
            if greeting in self._greetings:
                self._greetings.remove(greeting)
        with contextlib.suppress(RuntimeError, CancelledError):  # the fleet is closed, and nobody is greeted
            self._greeter.submit(lambda: None).result()

    def _greet(self, container: str) -> None:
        with self._lock:
            greetings = list(self._greetings)
        for greeting in greetings:
            greeting(container)

    @property
    def suspects(self) -> frozenset[str]:
        """Those that have been silent for longer than a moment: send them nothing that can be sent to others."""
        with self._lock:
            return frozenset(name for name, seconds in self._silent.items() if seconds >= self.silence.suspect)

    def alive(self) -> list[str]:
        with self._lock:
            return list(self._clients)

    def all(self) -> list[Member]:
        """The containers that live, and the last ones that do not."""
        with self._lock:
            handles = list(self._handles.items())
            gone = set(self._gone)
        return [Member(name, handle.pid, name not in gone and handle.alive, handle.host) for name, handle in handles]

    def address(self, container: str) -> Address:
        return some(self._handles[container].address, f"{container} has never listened")

    def find(self, container: str) -> Address | None:
        """Where it is, if it lives."""
        with self._lock:
            client = self._clients.get(container)
        return client.address if client is not None else None

    def host_of(self, container: str) -> str:
        return self._handles[container].host

    def kill(self, container: str) -> None:
        """As if it had crashed: its end is reported like any other."""
        handle = self._living(container)
        with self._lock:
            self._doomed.add(container)
        handle.kill()

    def await_reports(self, seconds: float) -> bool:
        """Wait until every end that has come by now, or was brought about by ``kill``, has been reported."""
        with self._reporting:
            ends = {
                name
                for name in self._hosting_now
                if name in self._doomed or name in self._gone or not self._handles[name].alive
            }
            return self._reporting.wait_for(
                lambda: self._closing.is_set() or self._hosting_now.isdisjoint(ends), timeout=seconds
            )

    def end(self, container: str) -> None:
        """An end that is wanted, so that Spark may have the executor back: not reported as a loss."""
        handle = self._living(container)
        with self._lock:
            self._gone.add(container)
            self._forget_oldest()
        self._part_with(container)
        self._reported(container)
        handle.close()

    def close(self) -> None:
        with self._reporting:
            self._closing.set()
            self._reporting.notify_all()
        self._pinger.join()
        with self._lock:
            clients, handles = list(self._clients.values()), list(self._handles.values())
        if handles:
            with ThreadPoolExecutor(min(len(handles), MOST_AT_ONCE), thread_name_prefix="holdfast-close") as pool:
                list(pool.map(lambda handle: handle.close(), handles))
        for client in clients:
            client.close()
        self._greeter.shutdown(wait=True, cancel_futures=True)
        self.launcher.close()

    # --- starting and ending ------------------------------------------------------------------------------

    def _start_one(self, name: str) -> bool:
        with self._lock:
            if self._closing.is_set():
                return False
            handle = self.launcher.start(name)
            self._handles[name] = handle
        client = None
        try:
            client = Client(handle.await_ready(), self.launcher.settings.token, self._sender)
            client.call(self._host, HOST_SECONDS)
            if self._ring is not None:
                client.call(replace(self._ring, contacts=self._contacts()), HOST_SECONDS)
        except BaseException as error:
            if client is not None:
                client.close()
            handle.close()
            if isinstance(error, Unreachable):  # nobody's fault but its own: there is no call to be given up for it
                raise ContainerError(f"Container {name} ended before it could be told of the job.") from error
            raise
        with self._lock:
            self._clients[name] = client
            self._silent[name] = 0.0
            self._hosting_now.add(name)
            if self._greetings and not self._closing.is_set():
                self._greeter.submit(self._greet, name)
        handle.on_exit(self._exited)
        return True

    def _contacts(self) -> tuple[Address, ...]:
        return tuple(self.address(name) for name in self.alive())

    def _living(self, container: str) -> Handle:
        with self._lock:
            handle = self._handles.get(container)
            if handle is not None and container not in self._gone and handle.alive:
                return handle
        raise ContainerError(
            f"There is no living container '{container}'.",
            todo=f"Those alive are: {', '.join(self.alive())}.",
        )

    def _exited(self, container: str, reason: str) -> None:
        self._ended(container, reason)
        handle = self._handles.get(container)
        if handle is not None and not self._closing.is_set():
            handle.close()

    def _ended(self, container: str, reason: str) -> None:
        with self._lock:
            first = container not in self._gone
            self._gone.add(container)
            handle = self._handles.get(container)
            self._forget_oldest()
        self._part_with(container)
        if not first or self._closing.is_set():
            return
        if handle is not None:
            handle.kill()  # nothing may be left of one that was only taken for dead
        self._lost(container, reason)
        self._reported(container)

    def _reported(self, container: str) -> None:
        with self._reporting:
            self._hosting_now.discard(container)
            self._reporting.notify_all()

    def _forget_oldest(self) -> None:
        """Of those that are gone only so many are shown; that they are, is remembered of all."""
        for name in [name for name in self._handles if name in self._gone][:-GONE_KEPT]:
            del self._handles[name]

    def _part_with(self, container: str) -> None:
        with self._lock:
            client = self._clients.pop(container, None)
            self._silent.pop(container, None)
        if client is not None:
            client.close()

    # --- watching -----------------------------------------------------------------------------------------

    def _ping_all(self) -> None:
        last = time.monotonic()
        killed: set[str] = set()
        with ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="holdfast-ping") as pool:
            while not self._closing.wait(self.silence.ping):
                names = self.alive()
                answers = list(pool.map(self._ping, names))
                # If it was the driver that slept (a laptop's lid, a stopped process), the containers were not silent.
                step = min(time.monotonic() - last, 3 * self.silence.ping)
                last = time.monotonic()
                for name, evidence in zip(names, answers, strict=True):
                    if evidence:
                        self._ended(name, evidence)
                    elif evidence is None:
                        self._more_silence(name, step, killed)
                    else:
                        self._heard(name)

    def _ping(self, name: str) -> str | None:
        """What proves its end; "" if it answers, None if it is silent."""
        try:
            self.call(name, Ping(), self.silence.ping)
        except TokenError:
            return "another process listens on its port"
        except Unreachable:
            return "its host refuses connections to it" if is_refused(self.address(name), self.silence.ping) else None
        except HoldfastError:
            pass  # an answer is an answer
        return ""

    def _heard(self, name: str) -> None:
        with self._lock:
            if name in self._silent:
                self._silent[name] = 0.0

    def _more_silence(self, name: str, step: float, killed: set[str]) -> None:
        with self._lock:
            if name not in self._silent:
                return
            self._silent[name] += step
            silent = self._silent[name]
            handle = self._handles[name]
        if silent >= self.silence.kill + self.silence.unconfirmed:
            self._ended(name, "it was silent, and its end could not be confirmed")
        elif silent >= self.silence.kill and name not in killed:
            killed.add(name)
            handle.kill()
