"""How much of an executor a container asks for, and how many of them one takes.

Where Spark divides cores a container's task is a hundredth of one; else it is a whole one, which Spark's own tasks have
no more. An executor that containers fill to the brim would run no task at all, and a job whose tasks never run looks
like one that waits for rows: so one task must always fit beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import ContainerError

TASK_CPUS = 0.01
_SMALL = 1e-9  # the cores of one are told in parts that floats have not


@dataclass(frozen=True)
class Share:
    """Of the cores of an executor."""

    cpus: float
    """A container's."""
    task: float
    """An ordinary task's."""
    alone: bool = False
    """A container has an executor of its own."""

    def room(self, cores: int) -> float:
        """So many containers fit on an executor of so many cores (0: nobody knows), with a task beside them."""
        if self.alone or not cores:
            return math.inf
        return max(0, math.floor((cores - self.task) / self.cpus + _SMALL))

    @property
    def text(self) -> str:
        return "a whole core" if self.cpus >= 1 else f"{self.cpus:g} of a core"


def share_of(conf: Callable[[str, str], str | None], master: str, *, dynamic: bool, divides: bool) -> Share:
    """What the session's settings make of it. ``divides``: this Spark lets a task ask for less than a core."""
    fallback = "1" if master.startswith(("yarn", "k8s")) or dynamic else "0"
    cores = int(conf("spark.executor.cores", fallback) or 0)
    task = float(conf("spark.task.cpus", "1") or 1)
    if dynamic:
        return Share(float(max(cores, 1)), task, alone=True)
    share = Share(TASK_CPUS if divides else 1.0, task)
    if not share.room(cores):
        small = "Start the session with spark.task.cpus=0.95, or with more cores an executor."
        whole = f"Start the session with at least {math.ceil(task) + 1} cores an executor (spark.executor.cores)."
        raise ContainerError(
            f"Executors of {cores} cores have no room for a task beside a container, which takes {share.text} "
            f"(spark.task.cpus = {task:g}).",
            safe="Nothing was started.",
            todo=small if divides else f"{whole} From Spark 4.3 on a container takes {TASK_CPUS:g} of a core.",
        )
    return share
