"""A vertex: a program of the user's own on every container of a job, as in ELF (2.4, Tables 1 and 2).

Vertices of one application find each other by the ring: whoever subscribes to a tree hears what is multicast on it,
sends to its parent, and is sent to by its children. The root of the application's own tree is its master. All of it
stands outside the log: a message comes at most once, and what a vertex knows dies with its container.

What the methods come to is the business of its ``Place``: a container has one (``ring.place``), a simulation another.
"""

from __future__ import annotations

import operator
from typing import Any, Protocol

from holdfast.errors import VertexError
from holdfast.ring.buffers import BufferTree
from holdfast.ring.standing import Standing


class Place(Protocol):
    """Where a vertex is."""

    @property
    def container(self) -> str: ...

    @property
    def application(self) -> str: ...

    @property
    def creator(self) -> str: ...

    def subscribe(self, tree: str) -> None: ...

    def unsubscribe(self, tree: str) -> None: ...

    def standing(self, tree: str) -> Standing: ...

    def send(self, to: str, message: object) -> None: ...

    def multicast(self, tree: str, message: object) -> None: ...

    def route(self, application: str, creator: str, message: object) -> None: ...


class Vertex:
    """Subclass it, and run it with ``run.vertices(…)``: one on each container, those that come later too.

    Its callbacks are called one after the other, by a thread that this application has for itself in this container;
    they may take their time, and nothing but this vertex waits for them. One that raises is told of in
    ``vertices.status()``, and the vertex goes on with the next. A tree is named by a text; without a name it is the
    application's own.
    """

    every: float | None = None
    """Seconds between two calls of ``on_timer``; None: it is not called."""
    _place: Place | None = None
    _buffers: dict[str, BufferTree] | None = None

    # --- callbacks ----------------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Called first. Subscribes to the application's own tree; a class that has its own says what it wants."""
        self.subscribe()

    def on_stop(self) -> None:
        """Called last, when the application is stopped; not when its container dies."""

    def on_timer(self) -> None:
        """Called every ``every`` seconds. A vertex that was busy meanwhile does not make up for it."""

    def on_recv(self, sender: str | None, message: Any) -> None:
        """``sender``, a container, or None for the driver, has sent this vertex a message."""
        raise NotImplementedError(f"{type(self).__qualname__} has no on_recv(sender, message)")

    def on_multicast(self, tree: str, message: Any) -> None:
        """Something was multicast on a tree that this vertex has subscribed to."""
        raise NotImplementedError(f"{type(self).__qualname__} has no on_multicast(tree, message)")

    def deliver(self, application: str | None, message: Any) -> Any:
        """Another application, or None for the driver, has routed a message to this one, and this is its root.

        What it returns is the answer to ``vertices.ask(…)``; another application is answered by ``route``.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no deliver(application, message)")

    # --- what it can do -----------------------------------------------------------------------------------

    def subscribe(self, tree: str | None = None) -> None:
        """Be part of a tree: of this application's own, of another's, by its name, or of any that there is need for."""
        self._at.subscribe(self._named(tree))

    def unsubscribe(self, tree: str | None = None) -> None:
        self._at.unsubscribe(self._named(tree))

    def send_to(self, container: str | None, message: object) -> None:
        """Send to this application's vertex there. Returns when it is among what waits there to be received; raises
        ``VertexError`` if it is too large, or the vertex is gone or has too much waiting. It is never sent twice."""
        if container is None:
            raise VertexError(
                "send_to was given no container.",
                safe="Nothing was sent.",
                todo="The root has no parent, nor has a vertex between two: look whether self.parent() is None.",
            )
        self._at.send(container, message)

    def multicast(self, message: object, tree: str | None = None) -> None:
        """To all that have subscribed to the tree, this vertex too if it has: by way of the root."""
        self._at.multicast(self._named(tree), message)

    def route(self, application: str, message: object, *, creator: str | None = None) -> None:
        """To the root of another application, whose ``deliver`` is called; by its name, and its creator's if that is
        another."""
        self._at.route(application, self._at.creator if creator is None else creator, message)

    def is_root(self, tree: str | None = None) -> bool:
        """Whether this vertex is the root of the tree, which is the application's master if the tree is its own."""
        return self._at.standing(self._named(tree)).root

    def parent(self, tree: str | None = None) -> str | None:
        """The container above this one; None for the root, and for a moment while the tree is mended."""
        return self._at.standing(self._named(tree)).parent

    def children(self, tree: str | None = None) -> tuple[str, ...]:
        """The containers below this one."""
        return self._at.standing(self._named(tree)).children

    def buffer(self, tree: str | None = None) -> BufferTree:
        """This vertex's own buffer of keys and values for the tree: ``insert``, ``flush`` and ``empty`` it."""
        buffers = self._buffers = {} if self._buffers is None else self._buffers
        name = self._named(tree)
        if name not in buffers:
            buffers[name] = BufferTree(self.combine)
        return buffers[name]

    combine = staticmethod(operator.add)
    """Makes one of two values of a key, in ``buffer()``."""

    @property
    def container(self) -> str:
        """The name of the container it is on, which is also its own."""
        return self._at.container

    @property
    def application(self) -> str:
        return self._at.application

    @property
    def creator(self) -> str:
        return self._at.creator

    def _named(self, tree: str | None) -> str:
        return self._at.application if tree is None else tree

    @property
    def _at(self) -> Place:
        if self._place is None:
            raise VertexError(
                f"{type(self).__qualname__} is on no container yet.",
                safe="Nothing was sent.",
                todo="Do it in on_start, not in __init__; and only in a class that run.vertices(…) has started.",
            )
        return self._place
