"""The folder of a run's sockets: who may enter it, where it is made, and who takes it away."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.errors import ContainerError
from holdfast.wire import socket_folder
from holdfast.wire.client import Client, Unreachable, is_refused
from holdfast.wire.handlers import handler
from holdfast.wire.locations import MASTER
from holdfast.wire.questions import Ping, Pong
from holdfast.wire.server import Server


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


class Answers:
    @handler
    def ping(self, call: Ping) -> Pong:
        return Pong("c0", 1)


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files with nothing in it, whose path is short enough."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


def test_only_its_user_may_enter_and_a_server_answers_in_it(base: Path) -> None:
    folder = socket_folder.make()
    assert Path(folder).parent == base
    assert os.stat(folder).st_mode & 0o777 == 0o700
    server = Server("c0", "secret", folder, "A container")
    server.table.add(Answers())
    assert server.address.location == f"grpc+unix://{folder}/c0"
    with Client(server.address, "secret") as client:
        assert client.call(Ping(), 60) == Pong("c0", 1)
        assert not is_refused(server.address, 5)
        server.shutdown()
        with pytest.raises(Unreachable):
            client.call(Ping(), 60)
    assert is_refused(server.address, 5)  # its file went with it
    socket_folder.remove(folder)
    assert not list(base.iterdir())
    socket_folder.remove(folder)  # whoever comes second


@pytest.mark.parametrize("name", ["n" * 90, "with a space", "and 100%"])
def test_where_no_socket_can_be_it_is_made_elsewhere(name: str, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfit = base / name
    unfit.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(unfit))
    folder = socket_folder.make()
    try:
        assert Path(folder).parent != unfit
        server = Server("c12345-12345678", "secret", folder, "A container")  # as long as names are
        server.shutdown()
    finally:
        socket_folder.remove(folder)


def test_without_any_place_the_start_says_what_to_do(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(base / "not-there"))
    monkeypatch.setattr(socket_folder, "OTHERS", ("/" + "n" * 90,))
    with pytest.raises(ContainerError, match="There is no folder for the sockets") as refused:
        socket_folder.make()
    assert "not-there (No such file or directory)" in refused.value.what
    assert "listen='127.0.0.1'" in refused.value.todo


def test_a_start_removes_what_killed_runs_left_behind_and_nothing_else(base: Path) -> None:
    left, young, living, theirs = (base / f"{socket_folder.PREFIX}{name}" for name in ("a", "b", "c", "d"))
    doors = []
    for folder in (left, young, living, theirs):
        folder.mkdir(mode=0o700)
        with (folder / "c0").open("w"):
            pass
        if folder != theirs:  # no master was ever in it: whoever made it, it is not ours to know
            doors.append(socket.socket(socket.AF_UNIX))
            doors[-1].bind(str(folder / MASTER))
            if folder != young:
                os.utime(folder / MASTER, (1, 1))
    doors[2].listen()
    socket_folder.make()
    assert not left.exists()
    assert young.exists()
    assert living.exists()
    assert theirs.exists()
    for door in doors:
        door.close()


@pytest.mark.own_nursery
@pytest.mark.parametrize("nursery", ["there", "killed with it"])
def test_it_goes_with_a_killed_driver(nursery: str, base: Path) -> None:
    """With containers in it. Where the nursery dies in the same moment, the next start finds it."""
    program = """
        import time
        from holdfast.driver.endpoint import Desk
        from holdfast.launch.local import ChildLauncher, ContainerSettings
        from holdfast.wire import socket_folder

        folder = socket_folder.make()
        desk = Desk(folder, "secret")
        launcher = ChildLauncher(ContainerSettings("secret", host=folder))
        children = [launcher.start("c0"), launcher.start("c1")]
        for child in children:
            child.await_ready()
        print(folder, launcher._nursery.pid, *(child.pid for child in children), flush=True)
        time.sleep(300)
    """
    environment = {**os.environ, "TMPDIR": str(base)}
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, env=environment
    ) as driver:
        assert driver.stdout is not None
        folder, *pids = driver.stdout.readline().split()
        assert {path.name for path in Path(folder).iterdir()} == {MASTER, "c0", "c1"}
        processes = [psutil.Process(int(pid)) for pid in pids]
        if nursery == "killed with it":
            for process in processes:  # nobody is left who could
                process.suspend()
            driver.kill()
            driver.wait()
            for process in processes:
                process.kill()
        else:
            driver.kill()
            driver.wait()
            until(lambda: not Path(folder).exists())
    until(lambda: not any(process.is_running() for process in processes))
    if nursery == "killed with it":
        assert Path(folder).exists()
        os.utime(Path(folder, MASTER), (1, 1))
        shutil.rmtree(socket_folder.make())
    assert not Path(folder).exists()
