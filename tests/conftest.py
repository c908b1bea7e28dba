"""What all tests share: one Spark session, and the rule that nothing may be left behind."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dealing
import incubator
import jvm
import psutil
import pytest
from hypothesis import HealthCheck, Phase, settings
from pyspark.sql import SparkSession

from holdfast.spark import compat

PATIENCE = 30.0
"""Seconds for what ends by itself at once, unless the machine is busy."""
FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Spark's usual one starts a program for every file that it looks at, forty an epoch. Drivers of drills have that."""
for _folder in ("end_to_end", "container", "launch", "master", "ring", "testing"):
    sys.path.insert(0, str(Path(__file__).parent / _folder))
jvm.set_environment()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=1, help="rounds of the randomised drills (default 1)")
    parser.addoption("--heavy", action="store_true", help="also the tests that take a minute each to show one thing")
    parser.addoption("--drivers", action="store_true", help="only those with drivers or clusters of their own")
    parser.addoption("--cuts", type=int, default=2, help="moments at which the power goes (default 2)")
    parser.addoption("--services", action="store_true", help="also the tests that start a Kafka broker and Postgres")
    parser.addoption("--first-seed", type=int, default=1, help="seed of the first round")
    parser.addoption("--search", type=int, help="only what is random and needs no Spark, from this seed (./dev search)")
    parser.addoption("--shrink", action="store_true", help="with --search: make what Hypothesis finds small")


def pytest_configure(config: pytest.Config) -> None:
    """What runs with every change tries the same examples each time; ``--heavy`` and ``--search`` look for new ones.

    How long an example takes says how busy the machine is, and decides nothing. A search has little time: it only
    finds, and whoever repeats it makes that small. What it finds is to follow from its seed alone.
    """
    if compat.refuse_unknown() < (4, 2):  # whoever collects leaves a socket to the garbage collector: Spark's own
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    slow, every = [HealthCheck.too_slow, HealthCheck.data_too_large], list(HealthCheck)
    settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=slow)
    settings.register_profile("heavy", deadline=None, suppress_health_check=slow)
    found = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain) or config.getoption("--shrink")]
    settings.register_profile(
        "search", deadline=None, suppress_health_check=every, phases=found, database=None, print_blob=True
    )
    searches = config.getoption("--search") is not None
    settings.load_profile("search" if searches else "heavy" if config.getoption("--heavy") else "steady")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return dealing.workers(config.args)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> dealing.Dealing:
    config.option.loadscopereorder = False
    return dealing.Dealing(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What runs with every change must end within 12 minutes. The rest is asked for: ``--drivers``, ``--heavy``."""
    heavy, drivers = config.getoption("--heavy"), config.getoption("--drivers")
    searches = config.getoption("--search") is not None

    def wanted(item: pytest.Item) -> bool:
        if searches and not _random(item):
            return False
        if item.get_closest_marker("heavy") and not heavy:
            return False
        has_drivers = item.get_closest_marker("drivers") is not None
        return has_drivers if drivers else heavy or not has_drivers

    if left_out := [item for item in items if not wanted(item)]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if wanted(item)]
    if hasattr(config, "workerinput"):
        items[:] = dealing.in_order(items)


def _random(item: pytest.Item) -> bool:
    """Whether a seed decides what it does, and Spark has no part in it."""
    fixtures: list[str] = getattr(item, "fixturenames", [])
    drawn = "drill_seed" in fixtures or getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return bool(drawn) and "spark" not in fixtures and item.get_closest_marker("drivers") is None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "drill_seed" in metafunc.fixturenames:
        search = metafunc.config.getoption("--search")
        first = metafunc.config.getoption("--first-seed") if search is None else search
        rounds = metafunc.config.getoption("--rounds")
        metafunc.parametrize("drill_seed", range(first, first + rounds))


@pytest.fixture(scope="session", autouse=True)
def _one_nursery() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        incubator.share(patch)
        incubator.let_silence_last(patch)
        yield
    incubator.close()


@pytest.fixture(autouse=True)
def _own_nursery(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("own_nursery"):
            incubator.share_not(patch)
        yield


@pytest.fixture(scope="session")
def task_faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which deaths of Spark's Python workers are planted; workers inherit it from the JVM."""
    return tmp_path_factory.mktemp("task-faults")


@pytest.fixture(scope="session")
def spark(task_faults: Path) -> Iterator[SparkSession]:
    """``local[2,4]``: two cores, and four attempts for a task, as on a cluster."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need the packages we have
    os.environ["HOLDFAST_FAULTS"] = str(task_faults)
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("holdfast-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.files.maxPartitionBytes", "60000")
        .config("spark.sql.files.openCostInBytes", "0")
        .config("spark.sql.streaming.checkpointFileManagerClass", FILES)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    os.environ.pop("HOLDFAST_FAULTS")
    yield session
    session.stop()


@pytest.fixture
def days_are_utc_days(spark: SparkSession) -> Iterator[None]:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield
    spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """A test that leaves a container or one of our threads running has failed."""
    before = {thread.ident for thread in threading.enumerate()}
    yield
    deadline = time.monotonic() + PATIENCE
    while True:
        threads = [
            thread.name
            for thread in threading.enumerate()
            if thread.ident not in before and thread.name.startswith(("holdfast", "slices", "tail-", "watch-"))
        ]
        children = psutil.Process().children(recursive=True)
        containers = [one.pid for one in children if one.pid != incubator.pid() and _is_container(one)]
        if not threads and not containers:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: threads {threads}, containers {containers}")
        time.sleep(0.05)


def _is_container(process: psutil.Process) -> bool:
    try:
        return "holdfast.launch.process" in process.cmdline()
    except psutil.NoSuchProcess:
        return False
