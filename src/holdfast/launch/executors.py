"""Containers on Spark's executors: one background job of one never-ending task each.

A job of its own for each container, because one job of N tasks would die as a whole with one task's fourth failure. The
task starts the container as its child, tells the driver's desk where it is, and then does nothing but ask, about once
a second, whether it may stay. The answer is held back until there is something to say, so that a "no" arrives at once
and a dead driver shows as a broken connection. Whatever ends the task ends the child, also ``kill -9`` of the executor.

The task asks for a hundredth of a core, which fits beside ordinary tasks if ``spark.task.cpus`` is just under 1; where
Spark cannot divide a core, for a whole one. No executor is given so many that a task of Spark's has no room beside
them. With dynamic allocation Spark gives a resource profile executors of its own; there a container asks for a whole
one, and gives it back when it ends. See ``docs/clusters.md``.

It is long because the task on the executor and the driver's side of it are two ends of one conversation.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from pyspark import InheritableThread, TaskContext
from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

from holdfast.errors import ContainerError, HoldfastError, from_wire
from holdfast.invariants import invariant, some
from holdfast.launch.local import (
    END_SECONDS,
    START_SECONDS,
    ContainerProcess,
    ContainerSettings,
)
from holdfast.launch.share import share_of
from holdfast.wire.client import Client, Unreachable, is_refused
from holdfast.wire.handlers import handler
from holdfast.wire.messages import Address, Call, Done, Reply
from holdfast.wire.questions import Arrived, FromTask, HasEnded, Listening, MayIStay, Stay, Told

A = TypeVar("A", bound=Reply)

HELD_SECONDS = 1.0  # how long the desk keeps a task waiting for its answer
DRIVER_SILENCE_SECONDS = 30.0  # a driver that neither answers nor refuses may only be busy
ASKED_SECONDS = 1.5  # how long a task that is asked to leave may take before its job is cancelled
SETTLING_SECONDS = 3.0  # after the last executor has come, for the next one
YOUNG_SECONDS = 30.0  # the age of an application up to which executors are still coming


# ---------------------------------------------------------------- on the executor


@dataclass(frozen=True)
class Task:
    """What runs on the executor, for as long as the container shall live."""

    container: str
    settings: ContainerSettings
    desk: Address

    def __call__(self, rows: Iterable[object]) -> Iterator[str]:
        """Yields how it ended: ``elsewhere`` asks the driver to submit it again."""
        deque(rows, maxlen=0)  # Spark keeps a Python worker for the next task only if its input was read to the end
        context = TaskContext.get()
        context = some(context, "it runs inside a Spark task")
        executor, host, cores = where_am_i()
        me = Me(self.container, context.taskAttemptId(), executor, host, cores)
        with Client(self.desk, self.settings.token) as desk:
            try:
                yield self._run(desk, me, host)
            except Unreachable:
                yield "the driver is gone"

    def _run(self, desk: Client, me: Me, host: str) -> str:
        while (told := _ask(desk, Arrived(*me)).do) == "wait":
            time.sleep(HELD_SECONDS)
        if told != "start":
            return told
        # Tasks run in their worker's main thread, so the kernel may tie the child to it.
        child = ContainerProcess(self.container, replace(self.settings, host=host), bound=True)
        try:
            try:
                location = child.await_ready().location
            except ContainerError as error:
                _ask(desk, HasEnded(*me, error.what, error.to_wire()))
                return "it could not start"
            _ask(desk, Listening(*me, location, child.pid))
            told_all = threading.Event()
            child.on_exit(lambda _, reason: self._say_goodbye(HasEnded(*me, reason), told_all))
            while child.alive and self._may_stay(desk, me):
                pass
            child.kill()
            told_all.wait(END_SECONDS)
        finally:
            child.close()
        return "done"

    def _may_stay(self, desk: Client, me: Me) -> bool:
        deadline = time.monotonic() + DRIVER_SILENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                return _ask(desk, MayIStay(*me)).stay
            except Unreachable:
                if is_refused(self.desk, HELD_SECONDS):
                    return False
                time.sleep(0.1)
        return False

    def _say_goodbye(self, news: HasEnded, done: threading.Event) -> None:
        with contextlib.suppress(Unreachable, HoldfastError), Client(self.desk, self.settings.token) as desk:
            _ask(desk, news)
        done.set()


class Me(NamedTuple):
    """Which try of which container it is, and where."""

    container: str
    attempt: int
    executor: str
    host: str
    cores: int


def _ask(desk: Client, question: Call[A]) -> A:
    return desk.call(question, HELD_SECONDS + 4.0)


def where_am_i() -> tuple[str, str, int]:
    """The id and the host name that Spark knows this task's executor by, and its cores (0: it does not say).

    Python tasks are not told. Every cluster manager starts executors with these on the command line, and the executor
    is the parent of our parent, the daemon that forks Python workers.
    """
    executor = _parent(os.getppid())
    words = Path(f"/proc/{executor}/cmdline").read_bytes().decode(errors="replace").split("\0") if executor else []
    said = dict(itertools.pairwise(words))
    try:
        return said["--executor-id"], said["--hostname"], int(said.get("--cores", 0))
    except KeyError:
        raise ContainerError(
            "This task's executor does not say its id and host name.",
            safe="No container was started.",
            todo="Containers on executors need Linux and a cluster (standalone, YARN, Kubernetes); "
            "elsewhere they run beside the driver.",
        ) from None


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


# ---------------------------------------------------------------- on the driver


@dataclass
class _Story:
    """What the driver knows of one container; guarded by the launcher's condition."""

    wanted: bool = True
    attempt: int | None = None
    executor: str = ""
    host: str = ""
    address: Address | None = None
    pid: int = 0
    seen: float = 0.0
    tries: int = 0
    ended: str = ""
    error: HoldfastError | None = None
    calls: list[Callable[[str, str], None]] = field(default_factory=list)


class ExecutorLauncher:
    """Starts containers on the executors of a session, spread as evenly as there are executors.

    ``desk`` is where its tasks ask: what they do is answered here. ``divides``: this Spark lets a task ask for less
    than a core. ``passes`` gives each container, and the task that it is the child of, a pass of its own.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: ContainerSettings,
        desk: Address,
        *,
        divides: bool,
        passes: Callable[[str], str] | None = None,
    ) -> None:
        self.settings = settings
        self.passes = passes
        self.spark = spark.sparkContext
        self.desk = desk
        self.changed = threading.Condition()
        self.stories: dict[str, _Story] = {}
        conf = self.spark.getConf()
        self._dynamic = conf.get("spark.dynamicAllocation.enabled", "false") == "true"
        self._divides = divides
        self.share = share_of(conf.get, str(self.spark.master), dynamic=self._dynamic, divides=divides)
        self._executors: frozenset[str] = frozenset()

    def make_room(self, count: int) -> None:
        """A young application's executors are still coming: wait for them, or all containers crowd on the first."""
        if self._dynamic:
            return  # Spark starts an executor for every container that waits for one
        settled = time.monotonic() + SETTLING_SECONDS
        known = self.look()
        while time.time() - self.spark.startTime / 1000 < YOUNG_SECONDS and time.monotonic() < settled:
            if self.free_executors() >= count:
                return
            if self._executors != known:
                known, settled = self._executors, time.monotonic() + SETTLING_SECONDS
            time.sleep(0.05)

    @cached_property
    def profile(self) -> ResourceProfile:
        cpus = self.share.cpus if self._divides else int(self.share.cpus)
        return ResourceProfileBuilder().require(TaskResourceRequests().cpus(cpus)).build

    @property
    def warning(self) -> str | None:
        """What whoever starts a job should know."""
        if self._dynamic or self.share.cpus < 1:
            return None
        return (
            "this Spark cannot divide a core: each container takes a whole one from the tasks of its executor "
            "(from Spark 4.3 on a hundredth)"
        )

    def start(self, name: str) -> ExecutorContainer:
        invariant(name not in self.stories, "a name is given once")
        with self.changed:
            self.stories[name] = _Story()
        return ExecutorContainer(name, self)

    def executors(self) -> int:
        """With dynamic allocation those that containers have are theirs alone, and come and go with them: none."""
        return 0 if self._dynamic else len(self.look())

    def free_executors(self) -> int:
        executors = self.look()
        with self.changed:
            occupied = self._containers_of()
            return sum(not occupied[executor] for executor in executors)

    def look(self) -> frozenset[str]:
        """Ask Spark which executors there are."""
        jsc = self.spark._jsc
        if jsc is not None:
            found = str(jsc.sc().getExecutorIds().mkString(","))
            self._executors = frozenset(found.split(",")) - {"", "driver"}
        return self._executors

    def close(self) -> None:
        with self.changed:
            for story in self.stories.values():
                story.wanted = False
            self.changed.notify_all()

    def finish(self, name: str, reason: str, error: HoldfastError | None = None) -> None:
        """The end of a container is certain; only the first word on it counts."""
        with self.changed:
            story = self.stories[name]
            if story.ended:
                return
            story.ended, story.error = reason, error
            story.wanted = False
            calls, story.calls = story.calls, []
            self.changed.notify_all()
        for call in calls:  # not in this thread: it may be the one that the task waits for
            threading.Thread(target=call, args=(name, reason), daemon=True, name=f"watch-{name}").start()

    def _containers_of(self) -> Counter[str]:
        return Counter(story.executor for story in self.stories.values() if story.executor and not story.ended)

    # --- what tasks ask -----------------------------------------------------------------------------------

    @handler
    def _arrived(self, call: Arrived) -> Told:
        with self.changed:
            story = self.stories.get(call.container)
            if story is None or not story.wanted:
                return Told("leave")
            if story.attempt is None:
                counts = self._containers_of()
                fewest = min((counts[other] for other in self._executors), default=0)
                crowded = counts[call.executor] > fewest and story.tries < self._most_tries()
                if crowded or counts[call.executor] >= self.share.room(call.cores):
                    return Told("elsewhere")
                story.attempt, story.executor, story.host = call.attempt, call.executor, call.host
                return Told("start")
            # Spark runs the task again: the first attempt's executor is lost, unless this one is only speculative.
            if story.address is not None and time.monotonic() - story.seen < 3 * HELD_SECONDS:
                return Told("wait")
        self.finish(call.container, "its executor was lost")
        return Told("leave")

    @handler
    def _listening(self, call: Listening) -> Done:
        with self.changed:
            story = self._story(call)
            if story is not None:
                story.address, story.pid = call.address, call.pid
                story.seen = time.monotonic()
                self.changed.notify_all()
        return Done()

    @handler
    def _may_i_stay(self, call: MayIStay) -> Stay:
        with self.changed:
            story = self._story(call)
            if story is None:
                return Stay(False)
            story.seen = time.monotonic()
            return Stay(not self.changed.wait_for(lambda: not story.wanted, HELD_SECONDS))

    @handler
    def _ended(self, call: HasEnded) -> Done:
        with self.changed:
            story = self._story(call)
        if story is not None:
            self.finish(call.container, call.reason, from_wire(call.error))
        return Done()

    def _story(self, call: FromTask) -> _Story | None:
        story = self.stories.get(call.container)
        return story if story is not None and story.attempt == call.attempt else None

    def pause(self, story: _Story) -> None:
        """Where no executor has room the next try is no better than the last, unless it comes later."""
        if story.tries > self._most_tries():
            with self.changed:
                self.changed.wait_for(lambda: not story.wanted, HELD_SECONDS)

    def _most_tries(self) -> int:
        """Spark offers executors in random order, so this many misses in a row mean that the best one has no room."""
        return 20 + 5 * len(self._executors)


class ExecutorContainer:
    """The handle of a container on an executor."""

    def __init__(self, container: str, launcher: ExecutorLauncher) -> None:
        self.container = container
        self._launcher = launcher
        self._story = launcher.stories[container]
        self._changed = launcher.changed
        self._group = f"holdfast-container-{container}"
        self._thread = InheritableThread(target=self._run_job, daemon=True, name=f"holdfast-job-{container}")
        self._thread.start()

    @property
    def address(self) -> Address | None:
        return self._story.address

    @property
    def host(self) -> str:
        return self._story.host

    @property
    def pid(self) -> int:
        return self._story.pid

    @property
    def executor(self) -> str:
        """The id of its executor, as Spark gives it."""
        return self._story.executor

    @property
    def alive(self) -> bool:
        return not self._story.ended

    def await_ready(self) -> Address:
        story = self._story
        with self._changed:
            self._changed.wait_for(lambda: story.address is not None or story.ended != "", START_SECONDS)
            address, ended, error = story.address, story.ended, story.error
        if address is not None and not ended:
            return address
        self.close()
        if error is not None:
            raise error
        raise ContainerError(
            f"Container '{self.container}' could not start on an executor: "
            f"{ended or f'no executor had room for it within {START_SECONDS:.0f} s'}.",
            safe="The store was not changed by it.",
            todo="Look at the executors' logs, and whether they have room: each container takes "
            f"{self._launcher.share.text}, and a task must fit beside them (docs/clusters.md).",
        )

    def on_exit(self, call: Callable[[str, str], None]) -> None:
        with self._changed:
            ended = self._story.ended
            if not ended:
                self._story.calls.append(call)
        if ended:
            call(self.container, ended)

    def kill(self) -> None:
        self._ask_to_leave()
        if self._thread.is_alive():
            threading.Thread(target=self._see_off, daemon=True, name=f"holdfast-end-{self.container}").start()

    def close(self) -> None:
        self._ask_to_leave()
        self._see_off()

    def _ask_to_leave(self) -> None:
        with self._changed:
            self._story.wanted = False
            self._changed.notify_all()

    def _see_off(self) -> None:
        """Wait for the job's end, and help it along: a cancelled Python task may go on for seconds."""
        if self._thread is threading.current_thread():
            return
        self._thread.join(ASKED_SECONDS)
        if self._thread.is_alive():
            with contextlib.suppress(Exception):  # Spark is stopping, and the job with it
                self._launcher.spark.cancelJobGroup(self._group)
            self._thread.join(2 * END_SECONDS)

    def _run_job(self) -> None:
        launcher, story = self._launcher, self._story
        reason = "its Spark job ended"
        try:
            launcher.spark.setJobGroup(self._group, f"holdfast container {self.container}", interruptOnCancel=True)
            task = Task(self.container, launcher.settings.of(self.container, launcher.passes), launcher.desk)
            while story.wanted:
                launcher.look()
                once = launcher.spark.parallelize([0], 1).mapPartitions(task).withResources(launcher.profile)
                (told,) = once.collect()
                if told != "elsewhere":
                    break
                story.tries += 1
                launcher.pause(story)
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            reason = f"its Spark job failed: {lines[0]}"
        finally:
            launcher.finish(self.container, reason)
