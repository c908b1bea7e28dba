"""Where a vertex is: what its methods come to in a container.

Two ways to others. What is multicast and routed goes by the ring, which knows who is root and who is below: small, and
no more of it a second than leaves the ring's own messages room, since a ring that is late takes its nodes for lost.
What is sent to one other goes straight to its container and never through the ring's thread; the sender waits until it
is there, so that it hears at once of what does not arrive.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from holdfast.container.throttle import Bucket
from holdfast.errors import TokenError, VertexError
from holdfast.ring.members import Members
from holdfast.ring.node import Ring
from holdfast.ring.standing import Standing
from holdfast.ring.vertex_messages import AppName, Multicast, Routed, VertexLetter
from holdfast.state.codec import pickled_bytes
from holdfast.wire.client import Client, Unreachable

MOST_SENT = 16 << 20
MOST_ON_RING = 64 << 10
"""Bytes of a message."""
SEND_SECONDS = 10.0
PACE = 512 << 10
"""Bytes a second that the vertices of a container may give to the ring, all together."""
COST = 8 << 10
"""What a message counts beside its bytes: 64 small ones a second."""
FEW = 8
"""Containers. With more, each gives less: one root may have to send what all of them say to all of them."""


def first_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[0].splitlines()[0]


def packed(message: object, most: int = MOST_SENT) -> bytes:
    try:
        body = pickled_bytes(message)
    except Exception as error:
        raise VertexError(
            f"A {type(message).__name__} cannot be sent: {first_line(error)}",
            safe="Nothing was sent.",
            todo="Send what pickle can carry: no open files, locks or connections.",
        ) from error
    if len(body) > most:
        raise VertexError(
            f"A message of {len(body):,} bytes is too large: {most:,} is the most here.",
            safe="Nothing was sent.",
            todo=f"send_to takes {MOST_SENT:,} bytes, multicast and route {MOST_ON_RING:,}; send less, or in parts.",
        )
    return body


class ContainerPlace:
    """``itself`` takes what this vertex sends to itself."""

    def __init__(
        self,
        name: AppName,
        ring: Ring,
        members: Members,
        pace: Bucket,
        token: str,
        itself: Callable[[VertexLetter], object],
    ) -> None:
        self._name, self._ring, self._members, self._pace, self._token = name, ring, members, pace, token
        self._itself = itself
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}
        self._trees: dict[str, None] = {}
        self._closed = False

    @property
    def container(self) -> str:
        return self._ring.me.container

    @property
    def application(self) -> str:
        return self._name.name

    @property
    def creator(self) -> str:
        return self._name.creator

    @property
    def trees(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._trees)

    def subscribe(self, tree: str) -> None:
        group = self._tree(tree).key
        with self._lock:
            self._refuse_closed()
            if tree in self._trees:
                return
            self._trees[tree] = None
            self._members.add(group, self._name, self._ring.subscribe)

    def unsubscribe(self, tree: str) -> None:
        with self._lock:
            if tree in self._trees:
                del self._trees[tree]
                self._leave(tree)

    def standing(self, tree: str) -> Standing:
        return self._ring.standing(self._tree(tree).key)

    def multicast(self, tree: str, message: object) -> None:
        self.publish(tree, packed(message, MOST_ON_RING))

    def publish(self, tree: str, body: bytes) -> None:
        self._pay(body)
        self._ring.publish(self._tree(tree).key, Multicast(tree, body))

    def route(self, application: str, creator: str, message: object) -> None:
        if not isinstance(application, str) or not isinstance(creator, str):
            raise VertexError(f"There is no application {application!r} of {creator!r}.", safe="Nothing was sent.")
        body, to = packed(message, MOST_ON_RING), AppName(application, creator)
        self._pay(body)
        self._ring.route(to.key, Routed(to, self.application, body))

    def send(self, to: str, message: object) -> None:
        letter = VertexLetter(self._name, self.container, packed(message))
        if to == self.container:
            self._itself(letter)
            return
        client = self._client(to)
        try:
            client.call(letter, timeout=SEND_SECONDS)
        except (Unreachable, TokenError) as error:  # or a stranger answers on its port
            self._forget(to)
            raise VertexError(
                f"Container {to} does not answer: {error}",
                safe="It may have the message, or not; it is not sent again.",
                todo="If it is gone, the trees are mended within some ticks, and self.parent() is another.",
            ) from error

    def close(self) -> None:
        """Leaves all trees."""
        with self._lock:
            self._closed = True
            trees, self._trees = list(self._trees), {}
            clients, self._clients = list(self._clients.values()), {}
            for tree in trees:
                self._leave(tree)
        for client in clients:
            client.close()

    def _tree(self, name: str) -> AppName:
        if not isinstance(name, str) or not name:
            raise VertexError(f"A tree has a text for its name, not {name!r}.", safe="Nothing was changed or sent.")
        return AppName(name, self.creator)

    def _leave(self, tree: str) -> None:
        self._members.discard(self._tree(tree).key, self._name, self._ring.unsubscribe)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise VertexError(f"Application {self._name} is stopped.", safe="Nothing was sent.")

    def _pay(self, body: bytes) -> None:
        self._refuse_closed()
        crowd = max(1.0, (1 + len(self._ring.neighbours)) / FEW)
        self._pace.take(int((len(body) + COST) * crowd * crowd), self._refuse_stopping)

    def _refuse_stopping(self) -> None:
        if self.stopping.is_set():
            raise VertexError(f"Application {self._name} is being stopped.", safe="Nothing was sent.")

    def _client(self, to: str) -> Client:
        with self._lock:
            self._refuse_closed()
            client = self._clients.get(to)
            if client is None:
                address = self._ring.find(to)
                if address is None:
                    raise VertexError(
                        f"There is no container '{to}' on the ring.",
                        safe="Nothing was sent.",
                        todo="Send to self.parent(), to one of self.children(), or to one that has sent you something.",
                    )
                client = self._clients[to] = Client(address, self._token)
            return client

    def _forget(self, to: str) -> None:
        with self._lock:
            client = self._clients.pop(to, None)
        if client is not None:
            client.close()
