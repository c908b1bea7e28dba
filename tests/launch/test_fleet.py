"""The containers of a run, as children of this process: what is evidence, what is suspicion, what is wanted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from test_container_process import PLAN

from holdfast.container.messages import Host
from holdfast.errors import ContainerError
from holdfast.launch import fleet as fleets
from holdfast.launch.fleet import Fleet, Silence
from holdfast.launch.local import ChildLauncher, ContainerProcess, ContainerSettings
from holdfast.wire.client import Address, Unreachable
from holdfast.wire.questions import Ping

pytestmark = pytest.mark.own_nursery
SETTINGS = ContainerSettings("secret")
PATIENT = Silence(suspect=0.6, kill=120.0, unconfirmed=0.5, ping=0.1)
"""Quick to suspect, but it kills nobody who only waits for a processor."""
QUICK = replace(PATIENT, kill=6.0)
KILLED = ("its process ended with code -9", "its host refuses connections to it")
"""Whichever is noticed first."""
NO_SUCH_HOST = "203.0.113.1"  # an address for documents: nobody can listen there


class Losses:
    """What the fleet has reported."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self._changed = threading.Condition()

    def __call__(self, name: str, reason: str) -> None:
        with self._changed:
            assert name not in self.reasons, "a loss is reported once"
            self.reasons[name] = reason
            self._changed.notify_all()

    def of(self, name: str, seconds: float = 60.0) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: name in self.reasons, seconds), f"{name} was not reported lost"
            return self.reasons[name]


class Breaking(ChildLauncher):
    """Containers with these numbers cannot start."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(SETTINGS)
        self._broken = numbers

    def start(self, name: str) -> ContainerProcess:
        broken = int(name[1:].split("-")[0]) in self._broken
        settings = replace(SETTINGS, host=NO_SUCH_HOST) if broken else SETTINGS
        return ContainerProcess(name, settings, nursery=self._living_nursery())


class Deaf(ContainerProcess):
    """As on a host that is cut off: it can neither be killed nor tell that it ended."""

    def kill(self) -> None:
        pass

    def on_exit(self, call: Callable[[str, str], None]) -> None:
        pass

    def close(self) -> None:
        super().kill()
        super().close()


class CutOff(ChildLauncher):
    def start(self, name: str) -> ContainerProcess:
        return Deaf(name, self.settings)


@contextlib.contextmanager
def fleet_of(path: Path, launcher: ChildLauncher, silence: Silence = PATIENT) -> Iterator[tuple[Fleet, Losses]]:
    losses = Losses()
    fleet = Fleet(launcher, Host("j", (PLAN,), 4, str(path / "store"), "main"), 1, losses, silence)
    try:
        yield fleet, losses
    finally:
        fleet.close()


def pid_of(fleet: Fleet, name: str) -> int:
    return next(member.pid for member in fleet.all() if member.name == name)


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def test_a_kill_is_reported_and_an_end_is_not(tmp_path: Path) -> None:
    with fleet_of(tmp_path, ChildLauncher(SETTINGS)) as (fleet, losses):
        killed, ended, stays = fleet.start(3)
        assert set(fleet.call_all(Ping())) == {killed, ended, stays}
        assert fleet.host_of(stays) == "127.0.0.1"
        fleet.end(ended)
        assert not psutil.pid_exists(pid_of(fleet, ended))
        fleet.kill(killed)
        assert losses.of(killed) in KILLED
        assert fleet.alive() == [stays]
        assert {member.name: member.alive for member in fleet.all()} == {killed: False, ended: False, stays: True}
        with pytest.raises(Unreachable):
            fleet.call(ended, Ping())
        for gone in (killed, ended, "nobody"):
            with pytest.raises(ContainerError, match=f"no living container '{gone}'"):
                fleet.kill(gone)
            with pytest.raises(ContainerError, match=f"no living container '{gone}'"):
                fleet.end(gone)
        time.sleep(3 * PATIENT.ping)
    assert list(losses.reasons) == [killed]  # leaving ends the last one, which is no loss either


def test_one_that_cannot_start_holds_up_no_other(tmp_path: Path) -> None:
    with fleet_of(tmp_path, Breaking(1)) as (fleet, losses):
        names = fleet.start(3)
        assert [name.split("-")[0] for name in names] == ["c0", "c2"]
        assert set(fleet.alive()) == set(names)
        ((name, reason),) = losses.reasons.items()
        assert name.startswith("c1-")
        assert "could not start" in reason
        assert NO_SUCH_HOST in reason or "address" in reason  # its last lines


def test_if_none_can_start_that_is_raised(tmp_path: Path) -> None:
    with fleet_of(tmp_path, Breaking(0, 1)) as (fleet, losses):
        with pytest.raises(ContainerError, match="could not start"):
            fleet.start(2)
        assert (fleet.alive(), losses.reasons) == ([], {})
        assert fleet.start(0) == []


def test_one_that_dies_as_soon_as_it_listens_could_not_start(tmp_path: Path) -> None:
    """Whoever asked for it must hear of it: a start that is silent about it would be waited for for ever."""

    class Dying(ContainerProcess):
        def await_ready(self) -> Address:
            address = super().await_ready()
            os.kill(self.pid, signal.SIGKILL)
            until(lambda: not self.alive)
            return address

    class Launcher(ChildLauncher):
        def start(self, name: str) -> ContainerProcess:
            return Dying(name, SETTINGS, nursery=self._living_nursery())

    with fleet_of(tmp_path, Launcher(SETTINGS)) as (fleet, losses):
        with pytest.raises(ContainerError, match="ended before it could be told of the job"):
            fleet.start(2)
        assert (fleet.alive(), losses.reasons) == ([], {})


def test_silence_is_suspicion_then_a_kill(tmp_path: Path) -> None:
    with fleet_of(tmp_path, ChildLauncher(SETTINGS), QUICK) as (fleet, losses):
        silent, other = fleet.start(2)
        os.kill(pid_of(fleet, silent), signal.SIGSTOP)
        began = time.monotonic()
        until(lambda: silent in fleet.suspects)
        assert losses.of(silent) in KILLED
        assert time.monotonic() - began >= QUICK.kill - 2 * QUICK.ping  # counted from its last answer
        assert fleet.alive() == [other]
        until(lambda: not fleet.suspects)


def test_a_suspect_that_answers_again_is_none(tmp_path: Path) -> None:
    with fleet_of(tmp_path, ChildLauncher(SETTINGS)) as (fleet, losses):
        (name,) = fleet.start(1)
        os.kill(pid_of(fleet, name), signal.SIGSTOP)
        until(lambda: fleet.suspects == {name})
        os.kill(pid_of(fleet, name), signal.SIGCONT)
        until(lambda: not fleet.suspects)
        assert (fleet.alive(), losses.reasons) == ([name], {})


def test_a_driver_that_slept_blames_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop's lid: what time has passed meanwhile is no container's silence, even if it wakes up a little later."""
    slept = 0.0
    monkeypatch.setattr(fleets, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + slept))
    with fleet_of(tmp_path, ChildLauncher(SETTINGS)) as (fleet, losses):
        (name,) = fleet.start(1)
        os.kill(pid_of(fleet, name), signal.SIGSTOP)
        until(lambda: fleet.suspects == {name})
        slept += 3600
        before = fleet._silent[name]
        until(lambda: fleet._silent[name] > before)
        os.kill(pid_of(fleet, name), signal.SIGCONT)
        until(lambda: not fleet.suspects)
        assert (fleet.alive(), losses.reasons) == ([name], {})


def test_an_end_that_cannot_be_confirmed_is_taken_for_granted(tmp_path: Path) -> None:
    with fleet_of(tmp_path, CutOff(SETTINGS), QUICK) as (fleet, losses):
        (name,) = fleet.start(1)
        os.kill(pid_of(fleet, name), signal.SIGSTOP)
        assert losses.of(name) == "it was silent, and its end could not be confirmed"
        assert fleet.alive() == []


def test_a_refused_connection_is_evidence(tmp_path: Path) -> None:
    with fleet_of(tmp_path, CutOff(SETTINGS), Silence()) as (fleet, losses):
        (name,) = fleet.start(1)
        os.kill(pid_of(fleet, name), signal.SIGKILL)
        assert losses.of(name, Silence().suspect) == "its host refuses connections to it"


def test_a_bound_child_ends_with_its_parent_even_if_it_is_stopped() -> None:
    """It cannot see its pipe close then; the kernel ends it."""
    code = (
        "import time; from holdfast.launch.local import *\n"
        "child = ContainerProcess('c0', ContainerSettings('secret'), bound=True); child.await_ready()\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        child.suspend()
        parent.kill()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_newcomers_are_greeted_behind_their_start_and_no_more_when_that_is_said(tmp_path: Path) -> None:
    with fleet_of(tmp_path, ChildLauncher(SETTINGS)) as (fleet, _):
        (first,) = fleet.start(1)
        greeted: list[str] = []
        begun, held = threading.Event(), threading.Event()

        def greeting(name: str) -> None:
            assert fleet.call(name, Ping()).container == name
            begun.set()
            held.wait(60)
            greeted.append(name)

        fleet.greet(greeting)
        (second,) = fleet.start(1)  # returns though the greeting is not over
        assert begun.wait(60)
        assert greeted == []
        held.set()
        fleet.greet_no_more(greeting)
        assert greeted == [second], "not the one that was there, and it waits for what is under way"
        (third,) = fleet.start(1)
        fleet.greet_no_more(greeting)  # again: nothing
        assert greeted == [second]
        assert set(fleet.alive()) == {first, second, third}
        assert not fleet.on_ring
    fleet.greet_no_more(greeting)
