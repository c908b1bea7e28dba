"""What nodes say to each other. All are frozen, and carry ids and payloads only.

Sending is a call that can fail: the shell delivers a message, or tells the sender that it ``Unreached`` the peer, and
then the message may have arrived all the same. So nothing here is an acknowledgement of a hop, and everything may
come twice, late and out of order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from holdfast.ids import RING
from holdfast.wire.codec import Tagged, Within

Natural = Annotated[int, Within(0, RING)]
"""An id, or a count: what a peer says is checked before the machine hears it."""
MessageId = tuple[Natural, Natural, Natural]
"""Who made it, in which incarnation, and its number there."""


@dataclass(frozen=True, slots=True)
class Message(Tagged):
    """Anything one node says to another."""


# ------------------------------------------------------------------------------------------------- the ring


@dataclass(frozen=True, slots=True)
class Seek(Message):
    """Who is next to ``origin``? Routed towards it, but never to it. The last one answers ``Welcome``.

    With ``rows``, everyone on the way also sends ``origin`` the rows of its table that fit (a join).
    """

    origin: Natural
    rows: bool
    hops: Natural = 0
    near: bool = False


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """Your neighbours, as I see them, and I am one of them."""

    leaves: tuple[Natural, ...]


@dataclass(frozen=True, slots=True)
class Rows(Message):
    """Nodes for your routing table."""

    peers: tuple[Natural, ...]


@dataclass(frozen=True, slots=True)
class AskRow(Message):
    """Which nodes have you in this row? These are mine."""

    row: Natural
    peers: tuple[Natural, ...] = ()


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """I am here. With ``answer``: are you?"""

    answer: bool


@dataclass(frozen=True, slots=True)
class Here(Message):
    """I am. ``leaves`` only for someone who is a next neighbour, or takes itself for one and is not."""

    leaves: tuple[Natural, ...] = ()


@dataclass(frozen=True, slots=True)
class Leaves(Message):
    """My leaf set, for a next neighbour."""

    leaves: tuple[Natural, ...]


@dataclass(frozen=True, slots=True)
class Leaving(Message):
    """Do without me."""


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """I am not part of the ring (any more, or again): take this message as not delivered."""

    message: Message


# --------------------------------------------------------------------------------------------------- routes


@dataclass(frozen=True, slots=True)
class Route(Message):
    """For the live node nearest to ``key``.

    Every hop is strictly closer by one order: first by whether the route is ``near`` its end, where only distance on
    the ring counts, then by shared digits, then by distance. An order has no loops, whatever the tables say.
    """

    id: MessageId
    key: Natural
    payload: Any
    hops: Natural = 0
    near: bool = False
    receipt: bool = False


@dataclass(frozen=True, slots=True)
class Receipt(Message):
    """The message has been delivered here."""

    id: MessageId
    hops: Natural


# --------------------------------------------------------------------------------------------------- groups


@dataclass(frozen=True, slots=True)
class Attach(Message):
    """I am your child in this group's tree. Said again and again: a silent child is forgotten."""

    group: Natural


@dataclass(frozen=True, slots=True)
class Detach(Message):
    """I am not."""

    group: Natural


@dataclass(frozen=True, slots=True)
class Publication(Tagged):
    """The payload of a route to a group's root: for all members."""

    group: Natural
    payload: Any


@dataclass(frozen=True, slots=True)
class Collection(Tagged):
    """The payload of a route to a group's root: a question to all members, whose answers ``origin`` wants."""

    group: Natural
    question: Any


@dataclass(frozen=True, slots=True)
class Cast(Message):
    """Down the tree, once to each member."""

    group: Natural
    id: MessageId
    payload: Any


@dataclass(frozen=True, slots=True)
class Ask(Message):
    """Down the tree: answer, together with all below you."""

    group: Natural
    id: MessageId
    question: Any


@dataclass(frozen=True, slots=True)
class Part(Message):
    """Up the tree: what ``members`` members below answered, combined. Not ``whole``: somebody was lost."""

    id: MessageId
    value: Any
    members: Natural
    whole: bool


@dataclass(frozen=True, slots=True)
class Result(Message):
    """From the root to the one who asked."""

    id: MessageId
    value: Any
    members: Natural
    whole: bool


# ------------------------------------------------------------------------------------------------ on the wire

HEADER = 48
"""Bytes of a frame without content: addresses, type, length, checksum."""
PER_ID = 22
"""An id of 16 bytes with an IPv4 address and a port."""


def mentions(message: Message) -> Iterable[int]:
    """The ids in a message whose addresses its reader may need."""
    match message:
        case Seek(origin=origin):
            return (origin,)
        case Welcome(leaves) | Here(leaves) | Leaves(leaves):
            return leaves
        case Rows(peers) | AskRow(peers=peers):
            return peers
        case Route(id=(origin, _, _)) | Ask(id=(origin, _, _)):
            return (origin,)
        case Refused(inner):
            return mentions(inner)
        case _:
            return ()


def wire_bytes(message: Message) -> int:
    """About what a message takes on the wire, its payload apart."""
    return HEADER + PER_ID * sum(1 for _ in mentions(message))
