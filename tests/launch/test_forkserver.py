"""A nursery forks what a new process would have been, and leaves nothing behind, whoever dies first."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import incubator
import psutil
import pytest
from test_container_process import Hosted, rows_of

from holdfast.errors import ContainerError
from holdfast.launch import forkserver as nurseries
from holdfast.launch.forkserver import Child, Nursery
from holdfast.launch.local import ChildLauncher, ContainerProcess, ContainerSettings
from holdfast.wire.client import Client, Unreachable
from holdfast.wire.questions import Ping

pytestmark = pytest.mark.own_nursery
SETTINGS = ContainerSettings("secret")
# What a child of a nursery that loads nothing says of itself.
SELF = """
import json, os, random, sys, threading
import numpy.random as np_random
from holdfast import faults
from holdfast.launch import forkserver as nursery
nursery.tend(lambda: {ready})
import gc
settings = os.read(0, 100).decode()
print("to the tail", file=sys.stderr)
print(json.dumps({{
    "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "folder": os.getcwd(),
    "environment": dict(os.environ), "faults": faults._FOLDER, "settings": settings, "collects": gc.isenabled(),
    "chance": [random.random(), np_random.random()], "fds": sorted(map(int, os.listdir("/proc/self/fd"))),
}}), flush=True)
os.read(0, 1)
sys.exit(7)
"""


NEVER = 120.0
"""Seconds after which something that should have happened will not: no measure, only an end to waiting."""


@pytest.fixture(autouse=True)
def nobody_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is busy with other things nobody is taken for stuck who only waits for a processor."""
    for name in ("BIRTH_SECONDS", "CODE_SECONDS", "END_SECONDS"):
        monkeypatch.setattr(nurseries, name, NEVER)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + NEVER
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """A zombie that nobody reaps is gone, too."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def open_files() -> set[str]:
    """Without those of Arrow and gRPC, which stay for the next client."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return {name for name in found if "anon_inode:[event" not in name}


@pytest.fixture
def no_files_left() -> Iterator[None]:
    before = open_files()
    yield
    until(lambda: open_files() <= before)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, no_files_left: None) -> Iterator[Nursery]:
    """One that has loaded nothing."""
    monkeypatch.setattr(nurseries, "COMMAND", ("-c", SELF.format(ready=None)))
    nursery = Nursery(dict(os.environ))
    yield nursery
    assert nursery.close() == ""
    assert gone(nursery.pid)


@pytest.fixture
def launcher(no_files_left: None) -> Iterator[ChildLauncher]:
    made = ChildLauncher(SETTINGS)
    yield made
    made.close()
    living = [child for child in psutil.Process().children() if not gone(child.pid)]
    nurseries_left = [child.pid for child in living if "nursery" in child.cmdline()]
    assert set(nurseries_left) <= {incubator.pid()}


def nursery_of(launcher: ChildLauncher) -> Nursery:
    assert launcher._nursery is not None
    return launcher._nursery


def fork(nursery: Nursery, environment: dict[str, str] | None = None) -> Child:
    child = nursery.fork(dict(os.environ) if environment is None else environment, NEVER)
    assert child is not None
    return child


def said_by(child: Child) -> dict[str, Any]:
    assert child.await_birth()
    child.stdin.write(b"settings")
    child.stdin.flush()
    said: dict[str, Any] = json.loads(child.stdout.readline())
    assert said["pid"] == child.pid
    return said


def is_forked(process: ContainerProcess, launcher: ChildLauncher) -> bool:
    return psutil.Process(process.pid).ppid() == nursery_of(launcher).pid


def ping(process: ContainerProcess) -> int:
    with Client(process.await_ready() if process.address is None else process.address, "secret") as client:
        return client.call(Ping(), 60).pid


# --- what comes out of it


def test_a_child_is_what_a_new_process_would_be(bare: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folder and environment are those of the moment; only what is nobody else's is open."""
    monkeypatch.setenv("HOLDFAST_FAULTS", "/some/folder")
    monkeypatch.setenv("NEW", "caf\u00e9 \udcff")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    children = [fork(bare), fork(bare)]
    first, second = (said_by(child) for child in children)
    assert first["environment"] == dict(os.environ)
    assert first["faults"] == "/some/folder"
    assert first["folder"] == str(tmp_path)
    assert first["settings"] == "settings"
    assert (first["parent"], first["session"]) == (bare.pid, first["pid"])
    assert first["collects"]
    assert [len(one["fds"]) for one in (first, second)] == [4, 4]  # the streams, and the folder that is listed
    assert not set(first["chance"]) & set(second["chance"])
    for child in children:
        child.stdin.write(b".")
        child.stdin.flush()
        assert child.wait(60) == 7
        assert gone(child.pid)
        assert child.stderr.read() == b"to the tail\n"
        child.close()


def test_codes_are_told_and_a_kill_is_seen(bare: Nursery) -> None:
    child = fork(bare)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0)  # not born
    said_by(child)
    assert not os.get_inheritable(child._pidfd)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert not psutil.pid_exists(child.pid), "it is reaped when its code is known"
    child.kill()
    child.close()
    child.close()
    assert child.wait() == -signal.SIGKILL


def test_a_child_outlives_its_nursery(bare: Nursery) -> None:
    child = fork(bare)
    said_by(child)
    bare.kill()
    until(lambda: not bare.alive)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.1)
    assert bare.fork(dict(os.environ), 1) is None
    child.kill()
    assert child.wait(60) is None, "nobody saw its code"
    child.close()


def test_what_libraries_read_when_they_load_needs_a_new_process(bare: Nursery) -> None:
    assert bare.fork({**os.environ, "NUMBA_NUM_THREADS": "1"}, 1) is None
    assert bare.fork({**os.environ, "PYTHONPATH": "/elsewhere"}, 1) is None
    assert bare.fork({**os.environ, **nurseries.QUIET}, 1) is None
    assert bare.fork({**os.environ, "LARGE": "x" * nurseries.MOST_BYTES}, 1) is None


def test_one_that_is_not_wanted_any_more_is_not_born(bare: Nursery) -> None:
    until(lambda: bare.is_ready)
    os.kill(bare.pid, signal.SIGSTOP)
    child, other = fork(bare), fork(bare)
    child.kill()
    assert not child.await_birth()
    assert child.wait() is None
    os.kill(bare.pid, signal.SIGCONT)
    assert said_by(other)
    assert [born.pid for born in psutil.Process(bare.pid).children()] == [other.pid]
    child.close()
    other.kill()
    other.wait()
    other.close()


def test_it_does_not_fork_with_two_threads(monkeypatch: pytest.MonkeyPatch, no_files_left: None) -> None:
    thread = "threading.Thread(target=lambda: os.read(os.pipe()[0], 1), daemon=True).start()"
    monkeypatch.setattr(nurseries, "COMMAND", ("-c", SELF.format(ready=thread)))
    nursery = Nursery(dict(os.environ))
    child = fork(nursery)
    assert not child.await_birth()
    child.close()
    assert not nursery.is_ready
    assert "Only a process of one thread" in nursery.close()


# --- containers


def test_containers_come_from_one_nursery_of_one_thread(launcher: ChildLauncher) -> None:
    first = launcher.start("c0")
    assert (first.pid, first.alive) == (0, True)
    assert ping(first) == first.pid
    second = launcher.start("c1")
    assert ping(second) == second.pid
    assert is_forked(first, launcher)
    assert is_forked(second, launcher)
    assert psutil.Process(nursery_of(launcher).pid).num_threads() == 1
    for process in (first, second):
        process.close()
        assert not psutil.pid_exists(process.pid)


def test_faults_reach_a_forked_container(
    launcher: ChildLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted when the nursery has long been there."""
    launcher.start("c0").close()
    monkeypatch.setenv("HOLDFAST_FAULTS", str(tmp_path))
    (tmp_path / "container@mid-apply@1").touch()
    hosted = Hosted(tmp_path, process=launcher.start("c1"))
    assert is_forked(hosted.process, launcher)
    *_, prepare = hosted.log(1, rows_of([1, 2], [1, 2]))
    with pytest.raises(Unreachable):
        hosted.apply(prepare)
    until(lambda: not hosted.process.alive)
    assert not (tmp_path / "container@mid-apply@1").exists()
    hosted.close()


def test_one_that_cannot_start_says_why(launcher: ChildLauncher) -> None:
    launcher.settings = ContainerSettings("secret", host="203.0.113.1")
    with pytest.raises(ContainerError, match=r"(?s)exit code 1\).*203\.0\.113\.1"):
        launcher.start("c0").await_ready()


# --- who dies first


def test_a_nursery_that_is_killed_is_replaced(launcher: ChildLauncher) -> None:
    ended: list[str] = []
    first = launcher.start("c0")
    ping(first)
    first.on_exit(lambda _, reason: ended.append(reason))
    killed = nursery_of(launcher)
    os.kill(killed.pid, signal.SIGKILL)
    until(lambda: not killed.alive)
    assert ping(first) == first.pid
    second = launcher.start("c1")
    assert ping(second) == second.pid
    assert nursery_of(launcher).pid != killed.pid
    assert is_forked(second, launcher)
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: ended == ["its process ended"])
    for process in (first, second):
        process.close()
        assert gone(process.pid)


def test_a_container_whose_nursery_dies_before_its_birth_starts_the_long_way(launcher: ChildLauncher) -> None:
    launcher.start("c0").close()
    nursery = nursery_of(launcher)
    until(lambda: nursery.is_ready)
    os.kill(nursery.pid, signal.SIGSTOP)
    process = launcher.start("c1")
    os.kill(nursery.pid, signal.SIGKILL)
    assert ping(process) == process.pid
    assert psutil.Process(process.pid).ppid() == os.getpid()
    process.close()


def test_a_stuck_nursery_is_killed(launcher: ChildLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nurseries, "BIRTH_SECONDS", 0.2)
    launcher.start("c0").close()
    nursery = nursery_of(launcher)
    until(lambda: nursery.is_ready)
    os.kill(nursery.pid, signal.SIGSTOP)
    process = launcher.start("c1")
    assert ping(process) == process.pid
    assert not nursery.alive
    process.close()


def test_a_nursery_that_cannot_live_is_not_tried_again(
    launcher: ChildLauncher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(nurseries, "COMMAND", ("-c", "raise SystemExit('no nursery here')"))
    for name in ("c0", "c1"):
        process = launcher.start(name)
        assert ping(process) == process.pid
        assert psutil.Process(process.pid).ppid() == os.getpid()
        process.close()
    assert launcher._nursery is None
    assert "no nursery here" in caplog.text


def test_closing_while_containers_wait_for_their_birth(
    launcher: ChildLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for none: this nursery never gets ready."""
    monkeypatch.setattr(nurseries, "COMMAND", ("-c", SELF.format(ready="threading.Event().wait()")))
    waiting = [launcher.start("c0"), launcher.start("c1")]
    nursery = nursery_of(launcher)
    for process in waiting:
        process.close()
    launcher.close()
    assert nursery._process.returncode == 0, "it ended by itself, and had not to be killed"
    assert gone(nursery.pid)
    with pytest.raises(ContainerError, match="ended before it began"):
        waiting[0].await_ready()


@pytest.mark.parametrize("ready", [True, False])
def test_everything_ends_with_the_driver(ready: bool) -> None:
    """Also when it gets no chance to say so, and also while the nursery is still getting ready (or would for ever)."""
    never = SELF.format(ready="threading.Event().wait()")
    code = (
        "import time; from holdfast.launch.local import *; from holdfast.launch import forkserver\n"
        f"if not {ready}: forkserver.COMMAND = ('-c', {never!r})\n"
        "launcher = ChildLauncher(ContainerSettings('secret'))\n"
        "children = [launcher.start('c0'), launcher.start('c1')]\n"
        f"if {ready}: [child.await_ready() for child in children]\n"
        "print(launcher._nursery.pid, *(child.pid for child in children), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split() if pid != "0"]
        assert len(pids) == (3 if ready else 1)
        assert not any(gone(pid) for pid in pids)
        driver.kill()
    until(lambda: all(gone(pid) for pid in pids))
