"""One application in one container: its vertex, the thread that calls it, and what waits for that.

Callbacks run one after the other on a thread of the application's own. What comes for it waits in a bounded inbox: one
that is full refuses, and whoever has brought the message says so to its sender, or, if nobody waits for that, counts it
as dropped. Blocking the one who brings it would stop the ring, or a thread of the container's door for each sender.

A callback that raises is remembered and told, and the next one is called: a message is lost by that, no container.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

from holdfast.errors import FunctionError, VertexError
from holdfast.ring.place import ContainerPlace, packed
from holdfast.ring.standing import Standing
from holdfast.ring.vertex import Vertex
from holdfast.ring.vertex_messages import AppName, VertexFailure, VertexStatus

MOST_WAITING = 1024
MOST_BYTES = 64 << 20
"""That wait together; a message that finds nothing waiting is always taken."""
FAILURES_KEPT = 20
FAILURE_LETTERS = 4000
START_SECONDS = 30.0
"""For a vertex to be made, and to have started."""


@dataclass(frozen=True)
class Item:
    """A message for a callback; ``answer`` is for what that returns."""

    callback: str
    about: str | None
    body: bytes
    answer: Future[bytes] | None = None


class Timer:
    """When ``on_timer`` is due. Whoever is late by more than a whole period does not make up for it."""

    def __init__(self, now: float) -> None:
        self._last = now

    def left(self, every: float | None, now: float) -> float | None:
        """Seconds until then, 0 if it is due; None: never."""
        return None if every is None else max(0.0, self._last + every - now)

    def fired(self, every: float, now: float) -> None:
        self._last = self._last + every if now < self._last + 2 * every else now


def period(vertex: Vertex) -> float | None:
    every = vertex.every
    if every is None:
        return None
    if type(every) not in (int, float) or not 0 < every < math.inf:
        raise VertexError(
            f"{type(vertex).__qualname__}.every is {every!r}.",
            safe="Its other callbacks are called.",
            todo="Give a positive number of seconds, or None for no timer.",
        )
    return every


class Application:
    def __init__(self, name: AppName, serial: str, program: bytes, place: ContainerPlace) -> None:
        self.name, self.serial, self.place = name, serial, place
        self._program = program
        self._inbox: queue.Queue[Item | None] = queue.Queue(MOST_WAITING)
        self._lock = threading.Lock()
        self._calls = self._dropped = self._failed = 0
        self._bytes = 0  # that wait
        self._untimed = False
        self._failures: deque[VertexFailure] = deque(maxlen=FAILURES_KEPT)
        self._stopping = place.stopping
        self._started: Future[None] = Future()
        self._within = "__init__"
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"holdfast-vertex-{name.name}")

    # --- from outside -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when the vertex has started; raises what kept it from that."""
        self._thread.start()
        try:
            self._started.result(START_SECONDS)
        except TimeoutError:
            self._stopping.set()
            raise VertexError(
                f"Application {self.name} is still in its {self._within} after {START_SECONDS:.0f} s.",
                safe="The job, and all other applications.",
                todo="Do what takes long in a callback that comes later, such as on_timer.",
            ) from None

    def offer(self, item: Item) -> bool:
        """Have it received, unless too much is waiting, or the application is about to end."""
        with self._lock:
            try:
                fits = not self._bytes or self._bytes + len(item.body) <= MOST_BYTES
                if fits and not self._stopping.is_set():
                    self._inbox.put_nowait(item)
                    self._bytes += len(item.body)
                    return True
            except queue.Full:
                pass
            self._dropped += 1
        return False

    def stop(self, seconds: float) -> bool:
        """Whether its thread has ended in time; a callback under way is not interrupted."""
        self._stopping.set()
        with contextlib.suppress(queue.Full):  # whatever it takes next, it looks whether it shall stop
            self._inbox.put_nowait(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def within(self) -> str:
        """The callback under way."""
        return self._within

    def status(self, container: str, standing: Standing) -> VertexStatus:
        with self._lock:
            counts, failures = (self._calls, self._dropped, self._failed), tuple(self._failures)
        calls, dropped, failed = counts
        trees, waiting = self.place.trees, self._inbox.qsize()
        return VertexStatus(container, *standing, trees, calls, waiting, dropped, failed, failures)

    # --- its own thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            vertex = self._begin()
        except BaseException as error:  # also what a program raises to end itself
            self.place.close()
            self._tell(self._started, error)
            return
        self._started.set_result(None)
        try:
            self._serve(vertex)
            self._call("on_stop", lambda: vertex.on_stop())  # what a class has for an attribute may raise too
        finally:
            self.place.close()
            self._refuse_rest()

    def _begin(self) -> Vertex:
        try:
            kind, arguments = pickle.loads(self._program)
        except Exception as error:
            raise VertexError(
                f"Application {self.name} cannot be read by a container: {type(error).__name__}: {error}",
                safe="Nothing of it runs there.",
                todo="Containers import modules by their names; of what they do not have, send the code: "
                "pyspark.cloudpickle.register_pickle_by_value(module).",
            ) from error
        vertex: Vertex = kind(**arguments)
        period(vertex)
        vertex._place = self.place
        self._within = "on_start"
        vertex.on_start()
        self._within = ""
        return vertex

    def _serve(self, vertex: Vertex) -> None:
        timer = Timer(time.monotonic())
        while not self._stopping.is_set():
            every = self._period(vertex)
            left = timer.left(every, time.monotonic())
            if every is not None and left == 0.0:
                self._call("on_timer", lambda: vertex.on_timer())
                timer.fired(every, time.monotonic())
                left = timer.left(every, time.monotonic())
            # One message after each: neither a quick timer nor a full inbox keeps the other from its turn.
            item = self._next(left)
            if item is not None and not self._stopping.is_set():
                self._receive(vertex, item)
            elif item is not None:
                _refuse(item, self.name)

    def _next(self, left: float | None) -> Item | None:
        try:
            item = self._inbox.get_nowait() if left == 0.0 else self._inbox.get(timeout=left)
        except queue.Empty:
            return None
        if item is not None:
            with self._lock:
                self._bytes -= len(item.body)
        return item

    def _period(self, vertex: Vertex) -> float | None:
        """A program may change it; what is none is told once, and there is no timer until it is one again."""
        try:
            found = period(vertex)
        except Exception as error:
            if not self._untimed:
                self._note("on_timer", error)
            self._untimed = True
            return None
        self._untimed = False
        return found

    def _receive(self, vertex: Vertex, item: Item) -> None:
        def run() -> bytes:
            returned = getattr(vertex, item.callback)(item.about, pickle.loads(item.body))
            return b"" if item.answer is None else packed(returned)

        self._call(item.callback, run, item.answer)

    def _call(self, name: str, run: Callable[[], Any], answer: Future[bytes] | None = None) -> None:
        self._within = name
        try:
            returned = run()
        except BaseException as error:
            self._note(name, error)
            if answer is not None:
                self._tell(answer, error)
        else:
            if answer is not None:
                _settle(lambda: answer.set_result(returned))
        self._within = ""
        with self._lock:
            self._calls += 1

    def _note(self, callback: str, error: BaseException) -> None:
        told = "".join(traceback.format_exception(error))
        with self._lock:
            self._failed += 1
            self._failures.append(VertexFailure(callback, told[-FAILURE_LETTERS:], time.time()))

    def _tell(self, answer: Future[Any], error: BaseException) -> None:
        where = self._within
        if not isinstance(error, VertexError):
            last = traceback.extract_tb(error.__traceback__)[-1]
            told = traceback.format_exception_only(error)[-1].strip()  # which survives what cannot even be shown
            error = FunctionError(
                f"Application {self.name}: {where} raised {told} ({last.filename}, line {last.lineno})",
                safe="The job, its state, and all other applications.",
                todo="Mend it, stop the application if it runs, and start it again.",
            )
        _settle(lambda: answer.set_exception(error))

    def _refuse_rest(self) -> None:
        while True:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                _refuse(item, self.name)


def _refuse(item: Item, name: AppName) -> None:
    answer = item.answer
    if answer is not None:
        _settle(lambda: answer.set_exception(VertexError(f"Application {name} was stopped before it answered.")))


def _settle(settle: Callable[[], None]) -> None:
    with contextlib.suppress(InvalidStateError):  # whoever asked waits no more
        settle()
