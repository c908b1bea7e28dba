"""Containers on the executors of a real standalone cluster: where they land, how they end, and what is left of them.

The driver is a process of its own (this file as a program), since a process has one Spark and drivers must be killable.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.launch import executors
from tools.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.drivers]
PATIENCE = 10.0  # a task that is asked to leave does so at once, unless the machine is busy
# Its launcher sees its end, and whoever calls it does: one of them is first.
EITHER_NOTICES = ("its process ended with code -9", "its host refuses connections to it")


class Driver:
    """A driver with a fleet on executors, told what to do line by line."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)}
        with (folder / "driver.log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(cluster.settings), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def __call__(self, command: str, *arguments: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self.process.stdin.flush()
        answer, error = json.loads(self.process.stdout.readline())
        assert not error, error
        return answer

    @contextlib.contextmanager
    def containers(self, count: int) -> Iterator[dict[str, dict[str, Any]]]:
        """As many new ones, by name; those that still live are ended afterwards."""
        until(lambda: self("executors") == len(self.cluster.workers))
        names = self("start", count)
        try:
            assert len(names) == count
            known = {one["name"]: one for one in self("all")}
            yield {name: known[name] for name in names}
        finally:
            if self.process.poll() is None:
                for name in set(names) & set(self("alive")):
                    self("end", name)

    def lost(self, name: str) -> str:
        """Why it was lost, once it is reported."""
        until(lambda: name in self("lost"))
        return str(self("lost")[name])

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate(timeout=120)
        self.process.wait()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with Cluster(workers=2, cores=1, memory="600m") as cluster:
        driver = Driver(cluster, tmp_path_factory.mktemp("driver"))
        try:
            yield driver
        finally:
            driver.close()


def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def gone(*pids: int) -> bool:
    return not any(_lives(pid) for pid in pids)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it may go at any moment, also while one looks
        return False


def executor_above(pid: int) -> int:
    """The executor's process: container, Python worker, daemon, executor."""
    return psutil.Process(pid).parents()[2].pid


def family(container: int) -> list[int]:
    """A container and what Spark keeps running for it on its executor."""
    return [container, *(process.pid for process in psutil.Process(container).parents()[:3])]


def test_each_lands_on_an_executor_of_its_own_beside_ordinary_tasks(driver: Driver) -> None:
    with driver.containers(2) as found:
        assert {one["host"] for one in found.values()} == {"127.0.0.1", "127.0.0.2"}
        executors = {executor_above(one["pid"]) for one in found.values()}
        assert executors == set(driver.cluster.executors())
        assert driver("free") == 0
        assert driver("sum", 1000) == 499500  # one core for tasks, and yet there is room for one
        for one in found.values():
            command = " ".join(psutil.Process(one["pid"]).cmdline())
            assert driver("token") not in command
            environment = " ".join(psutil.Process(one["pid"]).environ().values())
            assert not any(secret in environment for secret in (driver("token"), "PRIVATE KEY"))
            assert f"grpc+tls://{one['host']}:" in one["location"]
    assert driver("lost") == {}


def test_spark_writes_no_key_down(driver: Driver) -> None:
    """Containers' keys are in tasks of Spark's: neither its event log nor what it printed has them."""
    with driver.containers(1) as found:
        (name,) = found
        secrets = [driver("token").encode(), b"PRIVATE KEY"]  # a pass begins with the token
        written = [path for path in driver.folder.rglob("*") if path.is_file()]
        events = b"".join(path.read_bytes() for path in written)
        assert f"holdfast container {name}".encode() in events, "its job is in the event log"
        assert not any(secret in events for secret in secrets)
    assert driver("lost") == {}


@pytest.mark.heavy
def test_more_than_executors_are_spread_evenly(driver: Driver) -> None:
    with driver.containers(2), driver.containers(2) as found:
        assert {one["host"] for one in found.values()} == {"127.0.0.1", "127.0.0.2"}


@pytest.mark.heavy
def test_an_end_gives_the_executor_back(driver: Driver) -> None:
    with driver.containers(2) as found:
        (name, one), _other = found.items()
        executor = executor_above(one["pid"])
        began = time.monotonic()
        driver("end", name)
        assert time.monotonic() - began < PATIENCE  # its task left when asked, and had not to be cancelled
        assert gone(one["pid"])
        assert not gone(executor)
        assert driver("free") == 1
        assert driver("jobs") == 1  # Spark sees no task on that executor any more
        with driver.containers(1) as again:
            assert [new["host"] for new in again.values()] == [one["host"]]
    assert driver("lost") == {}


def test_a_kill_is_reported_at_once(driver: Driver) -> None:
    with driver.containers(1) as found:
        ((name, one),) = found.items()
        driver("kill", name)
        assert driver.lost(name) in EITHER_NOTICES
        assert gone(one["pid"])


def test_a_crash_is_reported_at_once(driver: Driver) -> None:
    with driver.containers(1) as found:
        ((name, one),) = found.items()
        os.kill(one["pid"], signal.SIGKILL)
        assert driver.lost(name) in EITHER_NOTICES


def test_a_silent_one_is_killed_by_its_executor(driver: Driver) -> None:
    with driver.containers(1) as found:
        ((name, one),) = found.items()
        os.kill(one["pid"], signal.SIGSTOP)
        until(lambda: driver("suspects") == [name])
        assert driver.lost(name) in EITHER_NOTICES
        assert gone(one["pid"])


@pytest.mark.heavy  # test_executor_loss kills some under a job
def test_a_lost_executor_leaves_no_process_and_a_new_one_is_free(driver: Driver) -> None:
    with driver.containers(2) as found:
        (name, one), (other, _) = found.items()
        members = family(one["pid"])
        os.kill(executor_above(one["pid"]), signal.SIGKILL)
        driver.lost(name)
        until(lambda: gone(*members))
        assert driver("alive") == [other]
        until(lambda: driver("free") == 1)  # the cluster has started another
        with driver.containers(1) as again:
            assert [new["host"] for new in again.values()] == [one["host"]]
        assert name not in driver("alive")  # Spark ran its task again; it was sent away


@pytest.mark.heavy
def test_a_lost_worker_takes_its_container_along(driver: Driver) -> None:
    cluster = driver.cluster
    with driver.containers(2) as found:
        by_host = {one["host"]: one for one in found.values()}
        one, other = by_host["127.0.0.2"], by_host["127.0.0.1"]
        members = family(one["pid"])
        cluster.kill_worker(1)
        driver.lost(one["name"])
        until(lambda: gone(*members))
        assert driver("alive") == [other["name"]]
    cluster.workers.pop()  # one is left from here on


def test_a_killed_driver_leaves_nothing(driver: Driver) -> None:
    """The last one: there is no driver afterwards."""
    with driver.containers(2) as found:
        members = [one["pid"] for one in found.values()]
        driver.process.kill()
        until(lambda: gone(*members))
    daemons = {driver.cluster.master, *driver.cluster.workers}
    until(lambda: set(driver.cluster.processes()) <= daemons)


# ---------------------------------------------------------------- the driver


def drive(settings: dict[str, str], folder: str) -> None:
    from pyspark.sql import SparkSession

    tests = Path(__file__).parents[1]
    sys.path[:0] = [str(tests), str(tests / "container")]
    from test_container_process import PLAN

    from holdfast.container.messages import Host
    from holdfast.driver.endpoint import Desk
    from holdfast.driver.security import Passes
    from holdfast.launch.executors import ExecutorLauncher
    from holdfast.launch.fleet import Fleet, Silence
    from holdfast.launch.local import ContainerSettings
    from holdfast.spark.compat import cores_divide
    from holdfast.wire.locations import MASTER
    from holdfast.wire.passes import Pass

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed goes to the log
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.compress", "false")
    builder = builder.config("spark.eventLog.dir", f"file://{folder}")
    builder = builder.config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
    for key, value in settings.items():
        builder = builder.config(key, value)
    executors.ASKED_SECONDS = PATIENCE
    spark = builder.getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    lost: dict[str, str] = {}
    passes = Passes(secure=True)
    mine = passes.of(MASTER)
    desk = Desk("127.0.0.1", mine)
    settings, divides = ContainerSettings(mine), cores_divide(spark)
    launcher = ExecutorLauncher(spark, settings, desk.address, divides=divides, passes=passes.of)
    desk.table.add(launcher)
    fleet = Fleet(
        launcher, Host("j", (PLAN,), 4, f"{folder}/store", "main"), 1, lost.__setitem__, Silence(suspect=0.8, kill=2.0)
    )

    def everyone() -> list[dict[str, Any]]:
        return [one._asdict() | {"location": fleet.address(one.name).location} for one in fleet.all()]

    commands: dict[str, Callable[..., Any]] = {
        "start": fleet.start,
        "end": fleet.end,
        "kill": fleet.kill,
        "alive": fleet.alive,
        "all": everyone,
        "lost": lambda: dict(lost),
        "suspects": lambda: sorted(fleet.suspects),
        "free": launcher.free_executors,
        "executors": lambda: len(launcher.look()),
        "jobs": lambda: len(spark.sparkContext.statusTracker().getActiveJobsIds()),
        "token": lambda: Pass.read(mine).token,
        "sum": lambda rows: spark.sparkContext.parallelize(range(rows), 2).sum(),
    }
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            said = [commands[command](*arguments), None]
        except Exception as error:
            said = [None, repr(error)]
        print(json.dumps(said), file=answers, flush=True)
    fleet.close()
    desk.close()
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")]
    assert not left, left
    spark.stop()


if __name__ == "__main__":
    drive(json.loads(sys.argv[1]), sys.argv[2])
