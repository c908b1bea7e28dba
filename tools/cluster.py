"""A standalone Spark cluster on this machine, from the pip package alone: for trying out, for tests, for benchmarks.

One master and N workers, each worker on a loopback address of its own (127.0.0.1, 127.0.0.2, …), so that Spark and
Holdfast take them for different hosts. Everything the cluster starts carries its id in its environment, so that what
belongs to it can be told from anything else on the machine, and is ended by process id, never by name.

``python -m tools.cluster up --workers 2`` leaves one running until ``down``; ``Cluster`` is the same as a context
manager. Linux only: other systems have neither /proc nor all of 127.0.0.0/8.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyspark

from holdfast.errors import HoldfastError
from holdfast.invariants import invariant
from holdfast.java import find_java
from holdfast.spark.compat import cores_divide

MARK = "HOLDFAST_CLUSTER"  # in the environment of everything the cluster starts
START_SECONDS = 180.0
_DIVIDES = cores_divide()
TASK_CPUS = "0.95" if _DIVIDES else "1"  # just under a core: what is left is the place of a container's task
CORES_FOR_CONTAINERS = 0 if _DIVIDES else 4  # of each worker: containers take whole ones
_HOME = Path(pyspark.__file__).parent
_DEPLOY = "org.apache.spark.deploy"


class Cluster:
    """A running cluster. Leaving the context ends all of it, executors and containers included.

    ``cores`` of each worker are for tasks. Where Spark cannot divide a core its containers have some of their own.
    """

    def __init__(self, workers: int = 2, cores: int = 1, memory: str = "600m", folder: Path | None = None) -> None:
        invariant(workers >= 1, "a cluster has at least one worker")
        self.id = uuid.uuid4().hex
        self.cores = cores + CORES_FOR_CONTAINERS
        self.memory = memory
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="holdfast-cluster-"))
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self.url = ""
        self.master = 0
        self.workers: list[int] = []
        try:
            self._start_master()
            for _ in range(workers):
                self.add_worker()
            self._await_workers()
        except BaseException:
            self.close()
            raise

    @property
    def settings(self) -> dict[str, str]:
        """What a session needs to run on this cluster, with room for containers beside its tasks."""
        return {
            "spark.master": self.url,
            "spark.executor.cores": str(self.cores),
            "spark.executor.memory": self.memory,
            "spark.task.cpus": TASK_CPUS,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }

    def add_worker(self) -> int:
        """Start one more worker, on the next address; its number."""
        number = len(self.workers)
        host = f"127.0.0.{number + 1}"
        work = ["--cores", str(self.cores), "--memory", self.memory, "--work-dir", str(self.folder / f"work-{number}")]
        self.workers.append(self._launch(f"worker-{number}", "worker.Worker", "--host", host, *work, self.url))
        return number

    def kill_worker(self, number: int) -> None:
        """``kill -9``; Spark ends the executors of a dead worker."""
        os.kill(self.workers[number], signal.SIGKILL)

    def executors(self) -> list[int]:
        """The process ids of the executors that live, those of killed workers included."""
        return [pid for pid in self.processes() if b"CoarseGrainedExecutorBackend" in _command(pid)]

    def processes(self) -> list[int]:
        """Everything of this cluster that lives: daemons, executors, their Python workers, containers."""
        return marked(self.id)

    def close(self) -> None:
        end(self.id, [self.master, *self.workers])
        for process in self._started.values():
            process.wait()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_master(self) -> None:
        # Two may be told the same free port: the one that loses it says so and another is tried.
        for _ in range(5):
            port = _free_port()
            self.master = self._launch(
                "master", "master.Master", "--host", "127.0.0.1", "--port", str(port), environment=_STAY_ON_PORT
            )
            master = self._started[self.master]
            if _until(partial(_settled, master, port)) and master.poll() is None:
                self.url = f"spark://127.0.0.1:{port}"
                return
        raise self._not_up("master")

    def _await_workers(self) -> None:
        logs = [self.folder / f"worker-{number}.log" for number in range(len(self.workers))]
        if not _until(lambda: all("Successfully registered with master" in log.read_text() for log in logs)):
            raise self._not_up("worker-0")

    def _launch(self, name: str, main: str, *arguments: str, environment: dict[str, str] | None = None) -> int:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
        inherited |= {key: os.environ[key] for key in _FOR_DAEMONS if key in os.environ}
        settings = {
            "SPARK_HOME": str(_HOME),
            "JAVA_HOME": str(find_java()),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            MARK: self.id,
        }
        command = [str(_HOME / "bin" / "spark-class"), f"{_DEPLOY}.{main}", "--webui-port", "0", *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env=inherited | settings | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        self._started[process.pid] = process
        return process.pid

    def _not_up(self, name: str) -> HoldfastError:
        log = self.folder / f"{name}.log"
        last = "\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-15:])
        return HoldfastError(f"The cluster's {name} did not come up. Its last lines:\n{last}")


_FOR_DAEMONS = ("SPARK_DAEMON_JAVA_OPTS", "SPARK_LAUNCHER_OPTS")
# Spark's daemons take the next port when theirs is taken; the master must be where its URL says. Its REST server, which
# has one port for all masters of a machine, would then end the second of two clusters.
_STAY_ON_PORT = {"SPARK_MASTER_OPTS": "-Dspark.port.maxRetries=0 -Dspark.master.rest.enabled=false"}


def marked(cluster: str) -> list[int]:
    """Every living process that carries this cluster's id."""
    wanted = f"{MARK}={cluster}".encode()
    return [pid for pid in _pids() if wanted in _environment(pid) and _is_alive(pid)]


def end(cluster: str, daemons: Sequence[int], patience: float = 15.0) -> None:
    """End a cluster: its daemons first, then what of it does not follow by itself. Only what carries its id."""
    ours = set(marked(cluster))
    for pid in daemons:
        if pid in ours:
            _signal(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while left := marked(cluster):
        if time.monotonic() > deadline:
            for pid in left:
                _signal(pid, signal.SIGKILL)
        time.sleep(0.05)


# ---------------------------------------------------------------- processes


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())


def _environment(pid: int) -> list[bytes]:
    return _proc(pid, "environ").split(b"\0")


def _command(pid: int) -> bytes:
    return _proc(pid, "cmdline")


def _is_alive(pid: int) -> bool:
    """Not a zombie: those have ended, and only wait to be asked."""
    return not _proc(pid, "stat").rpartition(b")")[2].lstrip().startswith((b"Z", b"X"))


def _proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it is gone, or another user's
        return b""


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _settled(master: subprocess.Popen[bytes], port: int) -> bool:
    """It listens where it was told to, or has ended."""
    return _listening(port) or master.poll() is not None


def _until(true: Callable[[], bool], seconds: float = START_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


# ---------------------------------------------------------------- the command


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"holdfast-cluster-of-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise HoldfastError(
            f"The folder {folder} is open to others.",
            safe="Nothing was started or ended.",
            todo=f"Remove it, or run: chmod 700 {folder}",
        )
    return folder


def _up(workers: int, cores: int, memory: str) -> None:
    folder = _folder()
    noted = _noted(folder)
    if noted and marked(noted["id"]):
        raise HoldfastError(
            f"A cluster is up already: {noted['settings']['spark.master']}",
            todo="Use it (`status` shows its settings), or end it by `down`.",
        )
    cluster = Cluster(workers, cores, memory, folder)
    note = {
        "id": cluster.id,
        "master": cluster.master,
        "workers": cluster.workers,
        "settings": {**cluster.settings, "spark.pyspark.python": sys.executable},
    }
    try:
        _note_file(folder).write_text(json.dumps(note))
    except BaseException:
        cluster.close()
        raise
    _status()


def _down() -> None:
    folder = _folder()
    noted = _noted(folder)
    if noted is None:
        print("No cluster is up.")
        return
    end(noted["id"], [noted["master"], *noted["workers"]])
    shutil.rmtree(folder)
    print("The cluster is down.")


def _status() -> None:
    noted = _noted(_folder())
    running = marked(noted["id"]) if noted else []
    if noted is None or not running:
        print("No cluster is up.")
        return
    executors = sum(b"CoarseGrainedExecutorBackend" in _command(pid) for pid in running)
    containers = sum(b"holdfast.launch.process" in _command(pid) for pid in running)
    workers = sum(pid in running for pid in noted["workers"])
    print(f"{noted['settings']['spark.master']}   {'up' if noted['master'] in running else 'its master is dead'}")
    print(f"{workers} of {len(noted['workers'])} workers, {executors} executors, {containers} containers")
    print("A session on it needs:")
    for key, value in noted["settings"].items():
        print(f'    .config("{key}", "{value}")')


def _note_file(folder: Path) -> Path:
    return folder / "cluster.json"


def _noted(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(_note_file(folder).read_text())
    except FileNotFoundError:
        return None
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tools.cluster", description="A standalone Spark cluster on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start one")
    up.add_argument("--workers", type=int, default=2, help="each on a loopback address of its own (default 2)")
    up.add_argument("--cores", type=int, default=1, help="of each worker, for tasks (default 1)")
    up.add_argument("--memory", default="1g", help="of each worker, all of it for its executor (default 1g)")
    commands.add_parser("down", help="end it and everything it runs")
    commands.add_parser("status", help="what runs, and the settings a session needs")
    wanted = parser.parse_args(arguments)
    try:
        if wanted.command == "up":
            _up(wanted.workers, wanted.cores, wanted.memory)
        elif wanted.command == "down":
            _down()
        else:
            _status()
    except HoldfastError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
