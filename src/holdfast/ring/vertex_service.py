"""What a container does for applications of vertices: starts, stops and asks them, and brings them what is for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from holdfast.container.job import HostedJob
from holdfast.container.throttle import Bucket
from holdfast.errors import VertexError
from holdfast.ring.application import Application, Item
from holdfast.ring.members import Members
from holdfast.ring.node import Ring
from holdfast.ring.place import PACE, ContainerPlace
from holdfast.ring.vertex_messages import (
    AppName,
    AskVertex,
    AskVertexStatus,
    FindRoot,
    Multicast,
    Root,
    Routed,
    StartVertices,
    StopVertices,
    VertexAnswer,
    VertexCast,
    VertexLetter,
    VertexStatus,
)
from holdfast.wire.handlers import handler
from holdfast.wire.messages import Done

CLOSE_SECONDS = 5.0


class VertexHandlers:
    """``ring`` is this container's, or raises if it has none."""

    def __init__(self, ring: Callable[[], Ring], token: str) -> None:
        self._ring, self._token = ring, token
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._applications: dict[AppName, Application] = {}
        self._members = Members()
        self._pace = Bucket(PACE, burst_seconds=1.0)

    def close(self) -> None:
        """Before the ring ends."""
        with self._lock:
            applications = list(self._applications.values())
            self._applications.clear()
        for application in applications:
            application.stop(0.0)
        for application in applications:
            application.stop(CLOSE_SECONDS)

    # --- from the driver ----------------------------------------------------------------------------------

    @handler
    def start(self, job: HostedJob, call: StartVertices) -> Done:
        ring = self._ring()
        with self._starting:  # asked twice, the second one waits for the first
            known = self._applications.get(call.application)
            if known is not None and known.serial == call.serial:
                return Done()
            if known is not None:
                raise VertexError(
                    f"Application {call.application} runs already.",
                    safe="It goes on undisturbed.",
                    todo="Stop it first, or start this one under another name.",
                )
            ring.listen(self._heard, self._delivered)
            place = ContainerPlace(call.application, ring, self._members, self._pace, self._token, self.receive)
            made = Application(call.application, call.serial, call.program, place)
            with self._lock:
                self._applications[call.application] = made
            try:
                made.start()
            except BaseException:
                self._forget(made)
                place.close()
                raise
        return Done()

    @handler
    def stop(self, job: HostedJob, call: StopVertices) -> Done:
        with self._lock:
            known = self._applications.get(call.application)
        if known is None or known.serial != call.serial:
            return Done()
        ended = known.stop(call.seconds)
        self._forget(known)
        if not ended:
            known.place.close()
            raise VertexError(
                f"Application {call.application} is still in its {known.within} after {call.seconds:.0f} s.",
                safe="It hears and sends nothing any more; the job goes on.",
                todo="A function cannot be interrupted from outside: its thread ends with it, or with the container.",
            )
        return Done()

    @handler
    def status(self, job: HostedJob, call: AskVertexStatus) -> VertexStatus:
        ring = self._ring()
        return self._of(call.application).status(ring.me.container, ring.standing(call.application.key))

    @handler
    def find_root(self, job: HostedJob, call: FindRoot) -> Root:
        return Root(self._ring().leaf(call.application.key)[0].container)

    @handler
    def ask(self, job: HostedJob, call: AskVertex) -> VertexAnswer:
        answer: Future[bytes] = Future()
        self._offer(call.application, Item("deliver", None, call.body, answer))
        try:
            return VertexAnswer(answer.result(call.seconds))
        except TimeoutError:
            answer.cancel()
            raise VertexError(
                f"The root of application {call.application} has not answered within {call.seconds:.0f} s.",
                safe="It may answer yet, to nobody; nothing else was changed.",
                todo="Give it more time, or look at vertices.status() for what it is at.",
            ) from None

    @handler
    def cast(self, job: HostedJob, call: VertexCast) -> Done:
        self._of(call.application).place.publish(call.tree, call.body)
        return Done()

    # --- from other vertices ------------------------------------------------------------------------------

    @handler
    def receive(self, call: VertexLetter) -> Done:
        self._offer(call.application, Item("on_recv", call.sender, call.body))
        return Done()

    def _heard(self, group: int, payload: Any) -> None:
        """In the ring's own thread: what finds no room is dropped."""
        if isinstance(payload, Multicast):
            for name in self._members.of(group):
                self._bring(name, Item("on_multicast", payload.tree, payload.body))

    def _delivered(self, _: int, payload: Any) -> None:
        if isinstance(payload, Routed):
            self._bring(payload.application, Item("deliver", payload.sender, payload.body))

    def _bring(self, name: AppName, item: Item) -> None:
        with self._lock:
            known = self._applications.get(name)
        if known is not None:
            known.offer(item)

    def _offer(self, name: AppName, item: Item) -> None:
        if not self._of(name).offer(item):
            raise VertexError(
                f"The vertex of application {name} on {self._ring().me.container} takes nothing now: too much is "
                "waiting for it, or it is being stopped.",
                safe="Nothing of the message was read.",
                todo="Send it again later, or less of it; vertices.status() says what waits.",
            )

    # --- within -------------------------------------------------------------------------------------------

    def _of(self, name: AppName) -> Application:
        with self._lock:
            known = self._applications.get(name)
        if known is None:
            raise VertexError(
                f"Application {name} has no vertex on {self._ring().me.container}.",
                safe="Nothing was read or changed.",
                todo="Start it with run.vertices(…); on a container that has just come it is there a little later.",
            )
        return known

    def _forget(self, application: Application) -> None:
        with self._lock:
            if self._applications.get(application.name) is application:
                del self._applications[application.name]
