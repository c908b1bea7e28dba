"""What a node asks its shell to do, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.ring.overlay.messages import Message, MessageId


@dataclass(frozen=True, slots=True)
class Instruction:
    """Something to be done."""


@dataclass(frozen=True, slots=True)
class Send(Instruction):
    """Deliver, or report ``Unreached``. Never to the node itself."""

    to: int
    message: Message


@dataclass(frozen=True, slots=True)
class Beat(Instruction):
    """Send a heartbeat to each of these; report each that does not answer before the next tick as ``Silent``."""

    peers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NeedContact(Instruction):
    """Tell of some live node by ``Join``: all that this one knows may be dead, or cut off together with it."""


@dataclass(frozen=True, slots=True)
class Joined(Instruction):
    """This node is part of the ring."""


@dataclass(frozen=True, slots=True)
class Found(Instruction):
    """A node has become a leaf."""

    peer: int


@dataclass(frozen=True, slots=True)
class Lost(Instruction):
    """A leaf has been silent for too long (or has left, if it ``left``). What it held is for others to recover."""

    peer: int
    left: bool = False


@dataclass(frozen=True, slots=True)
class Deliver(Instruction):
    """This node is the nearest to the key: the message is for it."""

    id: MessageId
    key: int
    payload: Any
    hops: int


@dataclass(frozen=True, slots=True)
class Arrived(Instruction):
    """A ``Lookup`` with receipt was delivered, there and in so many hops."""

    id: MessageId
    payload: Any
    at: int
    hops: int


@dataclass(frozen=True, slots=True)
class Hear(Instruction):
    """A publication, for this node as a member."""

    group: int
    id: MessageId
    payload: Any


@dataclass(frozen=True, slots=True)
class Answer(Instruction):
    """A question to this node as a member; ``Answered`` with the same id brings the answer."""

    group: int
    id: MessageId
    question: Any


@dataclass(frozen=True, slots=True)
class Gathered(Instruction):
    """The combined answers to a ``Collect`` of this node. ``value`` is None if nobody answered."""

    id: MessageId
    group: int
    question: Any
    value: Any
    members: int
    whole: bool
