"""What all tests share: one Spark session, and the rule that nothing may be left behind."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

# Every driver here lives for seconds: optimising its code costs more than that gains.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
ROOT = Path(__file__).parents[1]
MOST_WORKERS = 6
for _folder in ("end_to_end", "container", "master", "testing"):
    sys.path.insert(0, str(Path(__file__).parent / _folder))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=1, help="rounds of the randomised drills (default 1)")
    parser.addoption("--heavy", action="store_true", help="also the tests that take a minute each to show one thing")
    parser.addoption("--cuts", type=int, default=3, help="moments at which the power goes (default 3)")
    parser.addoption("--first-seed", type=int, default=1, help="seed of the first round")


def pytest_configure(config: pytest.Config) -> None:
    """What runs with every change tries the same examples each time; ``--heavy`` looks for new ones.

    How long an example takes says how busy the machine is, and decides nothing.
    """
    slow = [HealthCheck.too_slow]
    settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=slow)
    settings.register_profile("searching", deadline=None, suppress_health_check=slow)
    settings.load_profile("searching" if config.getoption("--heavy") else "steady")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Processes side by side under ``-n auto``: one more than there are cores, since a test on Spark mostly waits.

    None for files that were named one by one: what is looked at closely should not be far away.
    """
    named = [argument for argument in config.args if ".py" in argument]
    return 0 if named and len(named) == len(config.args) else min(MOST_WORKERS, (os.cpu_count() or 1) + 1)


@pytest.hookimpl(tryfirst=True)  # before the worker writes groups into names
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Heavy tests are left out unless asked for: what runs with every change must end within 12 minutes."""
    if not config.getoption("--heavy"):
        heavy = [item for item in items if item.get_closest_marker("heavy")]
        if heavy:
            config.hook.pytest_deselected(items=heavy)
            items[:] = [item for item in items if not item.get_closest_marker("heavy")]
    if config.getoption("dist") == "loadgroup" or hasattr(config, "workerinput"):
        _deal(items)


def _deal(items: list[pytest.Item]) -> None:
    """What goes to a worker at once, and in which order.

    Tests on Spark go one by one, so that none waits behind another while a worker is idle; all others, and those that
    share what their module sets up, by file. Long ones first: the end is made of what takes no time.
    """
    for item in items:
        alone = item.get_closest_marker("spark") and not _shares_with_its_module(item)
        if not alone and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(ROOT))))
    items.sort(key=lambda item: (not item.get_closest_marker("long"), not item.get_closest_marker("spark")))


def _shares_with_its_module(item: pytest.Item) -> bool:
    found = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    return any(fixture.scope == "module" for fixtures in found.values() for fixture in fixtures)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "drill_seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--first-seed")
        rounds = metafunc.config.getoption("--rounds")
        metafunc.parametrize("drill_seed", range(first, first + rounds))


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
    deadline = time.monotonic() + 3
    while True:
        threads = [
            thread.name
            for thread in threading.enumerate()
            if thread.ident not in before and thread.name.startswith(("holdfast", "slices", "tail-", "watch-"))
        ]
        containers = [process.pid for process in psutil.Process().children(recursive=True) if _is_container(process)]
        if not threads and not containers:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: threads {threads}, containers {containers}")
        time.sleep(0.05)


def _is_container(process: psutil.Process) -> bool:
    try:
        return "holdfast.container.process" in process.cmdline()
    except psutil.NoSuchProcess:
        return False
