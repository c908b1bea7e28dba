"""What a node is told: what others say, what the shell sees, and what its own process wants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.ring.overlay.messages import Message, MessageId


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""


# ------------------------------------------------------------------------------------- from the shell's senses


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passes. Heartbeats, repair and refreshing hang on it."""


@dataclass(frozen=True, slots=True)
class Received(Event):
    sender: int
    message: Message


@dataclass(frozen=True, slots=True)
class Unreached(Event):
    """Sending failed. The message may have arrived all the same."""

    peer: int
    message: Message


@dataclass(frozen=True, slots=True)
class Silent(Event):
    """The peer did not answer the last heartbeat."""

    peer: int


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """The peer's process is no more, and that is certain: nothing of it will be heard again."""

    peer: int


# --------------------------------------------------------------------------------- from the node's own process


@dataclass(frozen=True, slots=True)
class Join(Event):
    """Become part of the ring of ``contact``; of a new one without. More contacts may follow while it lasts."""

    contact: int | None = None


@dataclass(frozen=True, slots=True)
class Leave(Event):
    """Say good-bye. The node does nothing after this."""


@dataclass(frozen=True, slots=True)
class Lookup(Event):
    """Carry ``payload`` to the live node nearest to ``key``.

    With ``receipt`` it is sent until somebody has confirmed it: at least once, whoever dies on the way. Without, it
    is lost if the node that holds it dies.
    """

    key: int
    payload: Any = None
    receipt: bool = False


@dataclass(frozen=True, slots=True)
class Subscribe(Event):
    group: int


@dataclass(frozen=True, slots=True)
class Unsubscribe(Event):
    group: int


@dataclass(frozen=True, slots=True)
class Publish(Event):
    """To all members of a group. The publisher need not be one."""

    group: int
    payload: Any


@dataclass(frozen=True, slots=True)
class Collect(Event):
    """Ask all members of a group; ``Gathered`` brings the combined answer."""

    group: int
    question: Any


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """The answer to ``Answer``."""

    id: MessageId
    value: Any
