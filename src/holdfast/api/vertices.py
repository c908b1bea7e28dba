"""An application of vertices on the containers of a run, as the driver has it: ask it, tell it something, stop it.

It is the user's own program beside the job, outside the log (``holdfast.ring.vertex``): the driver starts a vertex on
every container, and on each that comes later, and takes no further part in what they say to each other.
"""

from __future__ import annotations

import logging
import pickle
import time
import uuid
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from holdfast.errors import ContainerError, HoldfastError, PlanError, VertexError
from holdfast.ring.place import MOST_ON_RING, MOST_SENT, first_line
from holdfast.ring.standing import Standing, is_whole
from holdfast.ring.vertex import Vertex
from holdfast.ring.vertex_messages import (
    AppName,
    AskVertex,
    AskVertexStatus,
    FindRoot,
    StartVertices,
    StopVertices,
    VertexCast,
    VertexLetter,
    VertexStatus,
)
from holdfast.wire.client import Unreachable

if TYPE_CHECKING:
    from holdfast.api.run import Run

START_SECONDS = 60.0
STOP_SECONDS = 5.0
LOOK_SECONDS = 0.05
LOG = logging.getLogger("holdfast")


class Vertices:
    """What ``run.vertices`` returns. Also a context manager: leaving it stops the application."""

    def __init__(self, run: Run, application: AppName, program: bytes) -> None:
        self._run, self._fleet = run, run._fleet
        self._application = application
        self._start = StartVertices(application, uuid.uuid4().hex, program)
        self._stopped = False
        self._told: set[tuple[str, str, str]] = set()
        """Container, callback and error of what is in the run's events: what raises again and again is there once."""

    @property
    def name(self) -> str:
        return self._application.name

    @property
    def creator(self) -> str:
        return self._application.creator

    # --- ask and tell -------------------------------------------------------------------------------------

    def ask(self, message: object, timeout: float = 10.0) -> Any:
        """What the root's ``deliver(None, message)`` returns. It is asked once: whether a root that dies meanwhile has
        heard it is not known, and ``VertexError`` says so."""
        self._refuse_stopped()
        body = _packed(message, MOST_SENT)
        root = self._root(timeout)
        try:
            answer = self._fleet.call(root, AskVertex(self._application, body, timeout), timeout + START_SECONDS)
        except Unreachable as error:
            raise self._gone(root) from error
        return pickle.loads(answer.body)

    def multicast(self, message: object, tree: str | None = None) -> None:
        """To all vertices that have subscribed to the tree; without a name the application's own."""
        self._refuse_stopped()
        body = _packed(message, MOST_ON_RING)
        cast = VertexCast(self._application, self.name if tree is None else tree, body)
        try:
            self._fleet.call(root := self._root(START_SECONDS), cast, START_SECONDS)
        except Unreachable as error:  # another one could publish it a second time
            raise self._gone(root) from error

    def send_to(self, container: str, message: object) -> None:
        """To one vertex, whose ``on_recv`` finds None as its sender."""
        self._refuse_stopped()
        body = _packed(message, MOST_SENT)
        if container not in self._fleet.alive():
            raise VertexError(
                f"There is no living container '{container}'.",
                safe="Nothing was sent.",
                todo=f"Those alive are: {', '.join(self._fleet.alive())}.",
            )
        try:
            self._fleet.call(container, VertexLetter(self._application, None, body), START_SECONDS)
        except Unreachable as error:
            raise self._gone(container) from error

    def status(self) -> dict[str, VertexStatus]:
        """Container → how its vertex is: its place in the application's own tree, what waits, and what has raised."""
        self._refuse_stopped()
        answers = self._fleet.call_all(AskVertexStatus(self._application), timeout=10.0)
        for container, one in answers.items():
            for failure in one.failures:
                last = failure.text.strip().splitlines()[-1]
                known = container, failure.callback, last.partition(":")[0]
                if known not in self._told:
                    self._told.add(known)
                    self._note(f"{failure.callback} on {container} raised {last}")
        return answers

    def await_tree(self, timeout: float = 60.0) -> bool:
        """Wait until every living container has a vertex, and those that have subscribed to the application's own tree
        are one whole tree, so that a multicast reaches all of them; whether it is so."""
        deadline = time.monotonic() + timeout
        while True:
            told = self.status()
            standings = {
                name: Standing(one.root, one.parent, one.children)
                for name, one in told.items()
                if self.name in one.trees or one.root or one.children
            }
            if told.keys() == set(self._fleet.alive()) and is_whole(standings):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_SECONDS)

    # --- the end ------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let every vertex end the callback that it is in, and call its ``on_stop``; nothing of it is left then. A
        second time does nothing, nor does it after the run was stopped, which ends containers and vertices at once."""
        if self._stopped:
            return
        if not self._run.stopped:
            self.status()  # what has raised is in the run's events
        self._stopped = True
        self._fleet.greet_no_more(self._begin_on)
        stop = StopVertices(self._application, self._start.serial, STOP_SECONDS)
        answers = self._fleet.ask_all(stop, STOP_SECONDS + START_SECONDS)
        self._run._applications.pop(self._application, None)
        for error in answers.values():
            if isinstance(error, HoldfastError):
                raise error

    def __enter__(self) -> Vertices:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.stop()
        except HoldfastError as further:
            if error is None:
                raise
            LOG.warning("while %s was stopped because of another error: %s", self._application, further)

    # --- within -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """On all containers, or on none."""
        self._fleet.greet(self._begin_on)
        answers = self._fleet.ask_all(self._start, START_SECONDS)
        errors = [error for error in answers.values() if isinstance(error, HoldfastError)]
        if errors:
            self._stopped = True
            self._fleet.greet_no_more(self._begin_on)
            self._fleet.ask_all(StopVertices(self._application, self._start.serial, STOP_SECONDS), START_SECONDS)
            raise errors[0]

    def _begin_on(self, container: str) -> None:
        """A container that has come while the application runs."""
        try:
            self._fleet.call(container, self._start, START_SECONDS)
        except Unreachable:
            return  # it is gone again
        except HoldfastError as error:
            self._note(f"{container} has no vertex: {error.what}")

    def _root(self, timeout: float) -> str:
        """As the first container that answers sees it."""
        for container in self._fleet.alive():
            try:
                return self._fleet.call(container, FindRoot(self._application), timeout).container
            except Unreachable:
                continue
        raise ContainerError("No container answers.", safe="Nothing was sent.", todo="See run.status().events.")

    def _note(self, text: str) -> None:
        self._run._shell.history.note("vertices", f"application {self._application}: {text}")

    def _gone(self, container: str) -> VertexError:
        return VertexError(
            f"Container {container} did not answer.",
            safe="Its vertex may have got the message, or not; it is not sent again.",
            todo="Try again: if it has ended, the ring knows within some ticks, and another vertex is root.",
        )

    def _refuse_stopped(self) -> None:
        self._run._live.refuse_stopped()
        if self._stopped:
            raise VertexError(f"Application {self._application} is stopped.", safe="Nothing was sent.")


def start(run: Run, vertex: type[Vertex], name: str, creator: str, arguments: dict[str, Any]) -> Vertices:
    run._live.refuse_stopped()
    if not isinstance(vertex, type) or not issubclass(vertex, Vertex):
        raise PlanError(
            f"run.vertices takes a class below hf.ring.Vertex, not {vertex!r}.",
            safe="Nothing was started.",
            todo="class MyVertex(hf.ring.Vertex): …",
        )
    if not isinstance(name, str) or not name or not isinstance(creator, str):
        raise PlanError(
            "An application has a text for its name, and one for its creator's.", safe="Nothing was started."
        )
    if not run._fleet.on_ring:
        raise PlanError(
            f"Job '{run.job.name}' has no ring for its containers.",
            safe="Nothing was started; the job goes on.",
            todo="Start it with job.start(ring=True); a hub always has one, and so has a job with safety=hf.Shards(…).",
        )
    application = AppName(name, creator)
    made = Vertices(run, application, _packed((vertex, arguments), MOST_SENT, vertex.__qualname__))
    if run._applications.setdefault(application, made) is not made:
        raise VertexError(
            f"Application {application} runs already.",
            safe="It goes on undisturbed.",
            todo="Stop it first, or start this one under another name.",
        )
    try:
        made._begin()
    except BaseException:
        run._applications.pop(application, None)
        raise
    return made


def _packed(message: object, most: int, what: str = "") -> bytes:
    """By value where the class is of a script or a notebook: containers have none of it."""
    what = what or f"A {type(message).__name__}"
    try:
        body: bytes = cloudpickle.dumps(message)  # type: ignore[no-untyped-call]
    except PlanError:
        raise
    except Exception as error:
        raise PlanError(
            f"{what} cannot be sent to containers: {first_line(error)}",
            safe="Nothing was sent.",
            todo="Let it refer to nothing that only the driver has: a session, DataFrames, the job, open files, locks.",
        ) from error
    if len(body) > most:
        raise VertexError(
            f"{what} of {len(body):,} bytes is too large: {most:,} is the most here.",
            safe="Nothing was sent.",
            todo=f"send_to takes {MOST_SENT:,} bytes, multicast {MOST_ON_RING:,}; send less, or in parts.",
        )
    return body
