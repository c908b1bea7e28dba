"""A process that has imported everything and loaded every kernel, and forks a container in milliseconds.

A fresh container computes for a second before it serves, just when the cores are wanted for epochs: at a rescale or a
recovery. The nursery pays that once. Forking is safe only with one thread, and it checks that it has no other: nothing
in it serves, and libraries that would start threads when they are loaded are told not to (``QUIET``).

It hangs on one end of a socket pair and ends when the driver's end goes, also by ``kill -9``. With each request come
the container's standard streams, its folder, and a *line*: a socket for this one container, on which the nursery tells
its pid, with a pidfd, and in the end its exit code. So the driver waits for a process and signals it, never a number
that may be another's by now. A nursery that dies takes no container with it: the pidfd still tells of an end, and only
the code stays unknown. Whenever it cannot be used, containers start the long way (see ``spark.launcher``).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from typing import IO, NoReturn

from holdfast import faults
from holdfast.invariants import invariant
from holdfast.wire.locations import is_folder
from holdfast.wire.socket_folder import clear

POSSIBLE = sys.platform.startswith("linux") and hasattr(os, "pidfd_open")
COMMAND = ("-m", "holdfast.launch.process", "nursery")
BIRTH_SECONDS = 10.0  # one that is ready answers at once, even on a busy machine
CODE_SECONDS = 1.0
END_SECONDS = 5.0
DYING_SECONDS = 10.0  # a driver that was killed, from the first of its files that the kernel closes to the last
GOODBYE = b"goodbye"
MOST_BYTES = 1 << 17  # of a request: names and values of what has changed in the environment
# OpenBLAS, NumPy's, starts threads when it is loaded; so does Arrow's jemalloc, which is not even its default pool.
QUIET = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
# Read once, when an interpreter starts or a library is loaded: for changes of these it is too late in a nursery.
READ_EARLY = ("ARROW_", "GLIBC_", "JE_", "LANG", "LC_", "LD_", "MALLOC_", "MIMALLOC_", "NUMBA_", "OMP_", "OPENBLAS_",
              "PYTHON", "TZ")  # fmt: skip


# ---------------------------------------------------------------- in the driver


class Nursery:
    """The driver's hold on one."""

    def __init__(self, environment: Mapping[str, str], gentle: bool = False, host: str = "") -> None:
        """Returns at once; requests wait until it is ready. ``gentle``: others are at work on this machine. ``host`` is
        where its containers will listen: a folder of sockets that it removes when the driver is killed."""
        self._environment = dict(environment)
        self._ready = False
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as we live
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *COMMAND, *(["gentle"] if gentle else []), host],
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env={**environment, **QUIET},
                start_new_session=True,
            )
        except BaseException:
            self._socket.close()
            self._said.close()
            raise
        finally:
            its.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether it is, or was before it died."""
        for _ in range(2):  # the first may only tell that it died with requests unread
            if not self._ready:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    self._ready = bool(self._socket.recv(16, socket.MSG_PEEK))
        return self._ready

    def fork(self, environment: Mapping[str, str], patience: float) -> Child | None:
        """Ask for a container with this environment; None if a new process has to be started for it.

        ``patience`` is for a nursery that is not ready yet.
        """
        changes = _changes({**self._environment, **QUIET}, environment)
        if any(name.startswith(READ_EARLY) for name in changes.keys() - QUIET.keys()):
            return None
        if any(self._environment.get(name) != environment.get(name) for name in QUIET):
            return None
        request = json.dumps(changes).encode()
        if len(request) > MOST_BYTES:
            return None
        with contextlib.ExitStack() as theirs:
            stdin, tie = os.pipe()
            ready, stdout = os.pipe()
            tail, stderr = os.pipe()
            line, its_line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.enter_context(its_line)
            child = Child(self, tie, ready, tail, line, BIRTH_SECONDS if self.is_ready else patience)
            for end in (stdin, stdout, stderr):
                theirs.callback(os.close, end)
            try:
                folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
                theirs.callback(os.close, folder)
                socket.send_fds(self._socket, [request], [stdin, stdout, stderr, folder, its_line.fileno()])
            except OSError:  # it is dead, or too many wait for it already
                child.close()
                return None
            return child

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> str:
        """End it, and give back everything; returns what it has complained of."""
        with contextlib.suppress(OSError):  # it is dead, or stuck
            self._socket.send(GOODBYE)
        self._socket.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._said:
            self._said.seek(0)
            return self._said.read().decode(errors="replace").strip()


class Child:
    """A container that a nursery was asked for, for its keeper: what it needs of ``Popen``, and ``await_birth``."""

    def __init__(self, nursery: Nursery, tie: int, ready: int, tail: int, line: socket.socket, patience: float) -> None:
        self.stdin: IO[bytes] = open(tie, "wb")  # noqa: SIM115 - closed by `close`, like the next two
        self.stdout: IO[bytes] = open(ready, "rb")  # noqa: SIM115
        self.stderr: IO[bytes] = open(tail, "rb")  # noqa: SIM115
        self.pid = 0
        self._nursery = nursery
        self._line = line
        self._line.settimeout(patience)
        self._lock = threading.Lock()
        self._pidfd = -1
        self._ended = False
        self._code: int | None = None

    def await_birth(self) -> bool:
        """False if there will be none: it was killed before, or its nursery is dead or stuck, or cannot fork.

        Even then it may exist, if the nursery died before it could tell. Such a one ends when its input is closed.
        """
        try:
            told, fds = _receive(self._line, 64, 1)
        except TimeoutError:
            self._nursery.kill()
            return False
        except OSError:
            return False
        with self._lock:
            if told and not self._ended:
                self.pid, self._pidfd = int(told), fds[0]
                return True
        for fd in fds:  # killed while it was being born
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)
        return False

    def kill(self) -> None:
        with self._lock:
            if self._pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            elif not self._ended:
                self._ended = True
                with contextlib.suppress(OSError):
                    self._line.shutdown(socket.SHUT_RDWR)  # wakes who waits for its birth, and tells the nursery

    def wait(self, timeout: float | None = None) -> int | None:
        """The code of its end, minus the signal if it was killed; None if its nursery was not there to see it.

        Raises ``subprocess.TimeoutExpired`` if it lives on, or is not born yet.
        """
        with self._lock:
            if self._ended:
                return self._code
            if self._pidfd < 0:
                raise subprocess.TimeoutExpired(COMMAND, timeout or 0)
            pidfd = os.dup(self._pidfd)  # ours may be closed while we wait
        try:
            if not _readable(pidfd, timeout):
                raise subprocess.TimeoutExpired(COMMAND, timeout or 0)
        finally:
            os.close(pidfd)
        with self._lock:
            if not self._ended:
                self._line.settimeout(CODE_SECONDS)
                with contextlib.suppress(OSError, ValueError):  # ValueError: it hung up
                    self._code = int(self._line.recv(64))
                self._ended = True
            return self._code

    def close(self) -> None:
        """Give back what was held for it. Whatever still lives of it ends now, because its input does."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        with self._lock:
            self._ended = True
            self._line.close()
            if self._pidfd >= 0:
                os.close(self._pidfd)
                self._pidfd = -1


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """What to set, and, as None, what to remove."""
    names = before.keys() | after.keys()
    return {name: after.get(name) for name in names if before.get(name) != after.get(name)}


def _receive(source: socket.socket, size: int, most: int) -> tuple[bytes, array[int]]:
    """A message and the descriptors in it, closed to programs we start: ``socket.recv_fds`` leaves them open (3.11)."""
    fds = array("i")
    told, extra, _, _ = source.recvmsg(size, socket.CMSG_LEN(most * fds.itemsize), socket.MSG_CMSG_CLOEXEC)
    for _, _, data in extra:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return told, fds


def _readable(fd: int, timeout: float | None) -> bool:
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(None if timeout is None else timeout * 1000))


# ---------------------------------------------------------------- in the nursery


def tend(get_ready: Callable[[], None], host: str = "") -> None:
    """The life of a nursery, its driver at the other end of standard input. Returns in each child, as that child."""
    os.close(os.pidfd_open(os.getpid()))  # where that is forbidden, better now than later
    driver = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    gc.disable()
    _be_ready(get_ready, driver, host)
    gc.freeze()  # no collection touches what is shared, so no page of it is copied for that
    driver.send(b"ready")
    wards: dict[int, tuple[int, socket.socket]] = {}  # by pidfd: the pid and the line
    waiting = select.poll()
    waiting.register(driver, select.POLLIN)
    while True:
        for fd, event in waiting.poll():
            if fd in wards:
                waiting.unregister(fd)
                _bury(fd, *wards.pop(fd))
            elif event & ~select.POLLIN:
                _end(driver, host)  # what it has asked for before, nobody waits for
            else:
                born = _fork(driver, wards, host)
                if born == 0:
                    return
                if born is not None:
                    waiting.register(born, select.POLLIN)


def _end(driver: socket.socket, host: str) -> NoReturn:
    """The driver is gone. If it was killed it has left its sockets behind."""
    driver.setblocking(False)
    said = b""
    for _ in range(2):  # the first may only tell that the driver ended with something unread
        with contextlib.suppress(OSError):
            while more := driver.recv(MOST_BYTES):
                said = more
    if is_folder(host) and said != GOODBYE:
        clear(host, DYING_SECONDS)
    os._exit(0)


def _be_ready(get_ready: Callable[[], None], driver: socket.socket, host: str) -> None:
    """In a thread, which may be gentle for good, and which does not keep us from ending with the driver."""
    told, tell = os.pipe()
    done = threading.Event()

    def run() -> None:
        try:
            get_ready()
            done.set()
        finally:
            os.close(tell)

    thread = threading.Thread(target=run, daemon=True, name="getting-ready")
    thread.start()
    waiting = select.poll()
    waiting.register(told, select.POLLIN)
    waiting.register(driver, 0)  # its end only: requests can wait
    if any(fd != told for fd, _ in waiting.poll()):
        _end(driver, host)
    os.close(told)
    thread.join()
    if not done.is_set():
        raise SystemExit("The nursery could not get ready.")
    deadline = time.monotonic() + 1.0
    while len(others := _threads()) > 1:  # the kernel takes a moment to see that one off
        if time.monotonic() > deadline:
            raise SystemExit(f"Only a process of one thread can be a nursery; this one has {', '.join(others)}.")
        time.sleep(0.001)


def _threads() -> list[str]:
    return os.listdir("/proc/self/task")


def _fork(driver: socket.socket, wards: dict[int, tuple[int, socket.socket]], host: str) -> int | None:
    """The pidfd of the newborn; 0 in the newborn; None if there is none: the driver sees that from its line."""
    request, fds = _receive(driver, MOST_BYTES, 5)
    if request == GOODBYE:
        os._exit(0)
    if not request:
        _end(driver, host)
    *given, line_fd = fds
    line = socket.socket(fileno=line_fd)
    invariant(len(_threads()) == 1, "the locks of another thread would stay locked in the child for ever")
    try:
        pid = -1 if _hung_up(line) else os.fork()
    except OSError:  # no more processes, or no memory for one
        pid = -1
    if pid == 0:
        for held in (driver, line, *(line for _, line in wards.values())):
            held.close()
        _become(json.loads(request), *given)
        for fd in (*given, *wards):
            os.close(fd)
        return 0
    for fd in given:
        os.close(fd)
    if pid < 0:
        line.close()
        return None
    pidfd = os.pidfd_open(pid)  # only we can reap it, so the pid is still its own
    wards[pidfd] = pid, line
    with contextlib.suppress(OSError):
        socket.send_fds(line, [str(pid).encode()], [pidfd])
    return pidfd


def _hung_up(line: socket.socket) -> bool:
    waiting = select.poll()
    waiting.register(line, 0)
    return bool(waiting.poll(0))


def _become(changes: Mapping[str, str | None], stdin: int, stdout: int, stderr: int, folder: int) -> None:
    """Make of this copy what a new process would be: a session, streams, environment and chance of its own."""
    gc.enable()
    os.setsid()
    for fd, at in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(fd, at)
    os.fchdir(folder)
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    importlib.reload(faults)  # it has read the nursery's environment
    import numpy as np

    np.random.seed()  # Python's own is seeded again by itself


def _bury(pidfd: int, pid: int, line: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    os.close(pidfd)
    with line, contextlib.suppress(OSError):
        line.send(str(os.waitstatus_to_exitcode(status)).encode())
