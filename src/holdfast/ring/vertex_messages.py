"""What is said of vertices: by the driver to containers, from one vertex to another, and on the ring.

What users' programs say to each other is bytes here, and is unpickled by the application that it is for, nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from holdfast.ids import id_of
from holdfast.wire.codec import Tagged
from holdfast.wire.messages import Call, Done, Reply


class AppName(NamedTuple):
    """An application is known by its name and its creator's; so is a tree, whose key is that of the application that
    has its name."""

    name: str
    creator: str = ""

    @property
    def key(self) -> int:
        """Its root is the container nearest to this (ELF 2.3: the hash of name and creator)."""
        return id_of(*self)

    def __str__(self) -> str:
        return f"'{self.name}' of {self.creator}" if self.creator else f"'{self.name}'"


# ---------------------------------------------------------------------------------------------------- from the driver


@dataclass(frozen=True)
class StartVertices(Call[Done]):
    """Have a vertex of this application. ``serial`` tells one start of it from another; the same again is nothing."""

    application: AppName
    serial: str
    program: bytes
    """Pickled: the class, and what it is called with."""


@dataclass(frozen=True)
class StopVertices(Call[Done]):
    """Have it no more. Answered when its thread has ended."""

    application: AppName
    serial: str
    seconds: float


@dataclass(frozen=True)
class Root(Reply):
    container: str


@dataclass(frozen=True)
class FindRoot(Call[Root]):
    application: AppName


@dataclass(frozen=True)
class VertexAnswer(Reply):
    body: bytes


@dataclass(frozen=True)
class AskVertex(Call[VertexAnswer]):
    """What does the root's ``deliver`` say to this?"""

    application: AppName
    body: bytes
    seconds: float


@dataclass(frozen=True)
class VertexCast(Call[Done]):
    """Multicast it from here."""

    application: AppName
    tree: str
    body: bytes


@dataclass(frozen=True)
class VertexFailure:
    """A callback that raised."""

    callback: str
    text: str
    """Its traceback."""
    at: float


@dataclass(frozen=True)
class VertexStatus(Reply):
    """How one vertex is."""

    container: str
    root: bool
    """Whether it is the root of the application's own tree."""
    parent: str | None
    children: tuple[str, ...]
    trees: tuple[str, ...]
    """What it has subscribed to."""
    calls: int
    """Callbacks that have ended."""
    waiting: int
    dropped: int
    """Messages that found too many waiting: the ring's are lost, a ``send_to`` raised at its sender."""
    failed: int
    """Callbacks that raised; the last of them are ``failures``."""
    failures: tuple[VertexFailure, ...]


@dataclass(frozen=True)
class AskVertexStatus(Call[VertexStatus]):
    application: AppName


# ------------------------------------------------------------------------------------------------- among vertices


@dataclass(frozen=True)
class VertexLetter(Call[Done]):
    """For the vertex here. Done: it is among what waits for it."""

    application: AppName
    sender: str | None
    """A container; None: the driver."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Multicast(Tagged):
    """The payload of a publication on the ring."""

    tree: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Routed(Tagged):
    """The payload of a route on the ring, to the root of an application."""

    application: AppName
    sender: str
    """The application that it comes from."""
    body: bytes
