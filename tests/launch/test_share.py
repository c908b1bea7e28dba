"""What containers ask of executors, where Spark divides cores and where it does not."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import ContainerError
from holdfast.launch.executors import ExecutorLauncher, _Story
from holdfast.launch.local import ContainerSettings
from holdfast.launch.share import Share, share_of
from holdfast.wire.questions import Arrived


def on(
    cores: str, cpus: str = "1", master: str = "spark://somewhere", *, divides: bool, dynamic: bool = False
) -> Share:
    settings = {"spark.executor.cores": cores, "spark.task.cpus": cpus}
    return share_of(lambda key, other: settings[key] or other, master, dynamic=dynamic, divides=divides)


def test_executors_without_room_for_a_task_are_refused() -> None:
    """Such a job would wait for ever: the container's hundredth of the only core leaves less than a task wants."""
    with pytest.raises(ContainerError, match="no room for a task") as refused:
        on("1", divides=True)
    assert "spark.task.cpus=0.95" in refused.value.todo
    with pytest.raises(ContainerError, match="no room for a task"):
        on("", master="yarn", divides=True)  # one core is what executors have there by default


def test_a_container_that_takes_a_core_is_told_of_a_second_one() -> None:
    with pytest.raises(ContainerError, match="which takes a whole core") as refused:
        on("1", divides=False)
    assert "at least 2 cores" in refused.value.todo
    with pytest.raises(ContainerError, match="no room for a task") as refused:
        on("2", "2", divides=False)
    assert "at least 3 cores" in refused.value.todo


def test_one_task_always_fits_beside_the_containers_of_an_executor() -> None:
    assert on("1", "0.95", divides=True).room(1) == 5
    assert on("2", divides=True).room(2) == 100
    for cores in range(2, 9):
        share = on(str(cores), divides=False)
        assert share.cpus == 1.0
        assert share.room(cores) == cores - 1


def test_an_executor_that_does_not_say_its_cores_takes_all_that_come() -> None:
    assert on("", divides=False).room(0) == math.inf
    assert on("", divides=False).room(1) == 0  # and one that says that it has one core none


@pytest.mark.parametrize("divides", [True, False])
def test_with_dynamic_allocation_a_container_has_a_whole_executor(divides: bool) -> None:
    share = on("4", divides=divides, dynamic=True)
    assert (share.cpus, share.room(4)) == (4.0, math.inf)
    assert on("", divides=divides, dynamic=True).cpus == 1.0


def launcher(*, divides: bool, **settings: str) -> ExecutorLauncher:
    """One that has a session's settings and no Spark behind them."""
    conf = {f"spark.{key.replace('_', '.')}": value for key, value in settings.items()}
    context = SimpleNamespace(getConf=lambda: conf, master="spark://somewhere", _jsc=None)
    session: Any = SimpleNamespace(sparkContext=context)
    return ExecutorLauncher(session, ContainerSettings("secret"), lambda: pytest.fail("nobody asks"), divides=divides)


def arrive(made: ExecutorLauncher, container: str, executor: str, cores: int) -> str:
    made.stories.setdefault(container, _Story(tries=1000))  # it has tried all others, and will not be spread any more
    me = Arrived(container=container, attempt=len(made.stories), executor=executor, host="h", cores=cores)
    return made._arrived(me).do


def test_an_executor_takes_no_container_that_would_leave_its_tasks_no_room() -> None:
    made = launcher(divides=False, executor_cores="3")
    assert [arrive(made, f"c{number}", "0", 3) for number in range(3)] == ["start", "start", "elsewhere"]
    assert arrive(made, "c2", "1", 3) == "start"
    assert arrive(made, "c3", "2", 1) == "elsewhere"  # a worker with fewer cores than the others


def test_a_hundredth_of_a_core_is_all_that_a_container_takes_where_spark_divides_cores() -> None:
    made = launcher(divides=True, executor_cores="1", task_cpus="0.95")
    asked = [arrive(made, f"c{number}", "0", 1) for number in range(6)]
    assert asked == [*["start"] * 5, "elsewhere"]
    assert made.warning is None


def test_whoever_starts_a_job_is_told_what_containers_take() -> None:
    assert "takes a whole one" in str(launcher(divides=False, executor_cores="2").warning)
    alone = {"executor_cores": "2", "dynamicAllocation_enabled": "true"}
    assert launcher(divides=False, **alone).warning is None
