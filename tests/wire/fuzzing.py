"""Calls that nobody sensible would make, drawn by a seed: of every type, mutated, cut, replayed, in any order.

Half of them have a valid token and half have not. What is drawn follows the annotations of the messages, as the codec
does: so most are well-formed and reach their handler, and what is in them is wild. The rest are broken on the way.
"""

from __future__ import annotations

import json
import random
import types
import typing
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import pyarrow as pa
import pyarrow.flight as flight

from holdfast.errors import BugError, HoldfastError, TokenError, from_wire
from holdfast.wire.client import TARGET_HEADER, TOKEN_HEADER
from holdfast.wire.codec import MessageError, Sender, pack
from holdfast.wire.kinds import Tagged, Within, hints_of, is_abstract_mapping, is_named_tuple
from holdfast.wire.messages import Address, Call, Push, Ticket
from holdfast.wire.tokens import ROLES, token_for

SECONDS = 20.0
"""A call that has no answer by then has none."""
REPLAYS = 200
WORDS = ("", "x", "counts", "c0", "c1", "j", "main", "k", "n", "..", "../../x", "/etc/passwd", "é\0", "x" * 300)
NUMBERS = (0, 1, 2, 3, 3, 2, 1, 0, 4, 7, -1, 255, 65_536, 2**31, 2**32 + 1, 2**63, -(2**63) - 1, 10**30)
REALS = (0.0, 0.001, 0.01, -1.0, float("nan"), 1e-300)
DEEP = 4


class Refused(Exception):
    """Something could not be drawn or packed: another is."""


def stream() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"k0": pa.int64()})) as out:
        out.write_batch(pa.record_batch({"k0": pa.array([1, 2, 3], pa.int64())}))
    return bytes(sink.getvalue())


class Draw:
    """Values by their annotation. ``given``: classes that are taken from a few, being of no use when made up."""

    def __init__(self, dice: random.Random, given: dict[type, Sequence[Any]], words: Sequence[str] = ()) -> None:
        self.dice, self.given = dice, given
        self.words = (*WORDS, *words, *words, *words)
        self._scalars: dict[Any, Callable[[], Any]] = {
            int: lambda: dice.choice(NUMBERS),
            float: lambda: dice.choice(REALS),
            str: lambda: dice.choice(self.words),
            bool: lambda: dice.random() < 0.5,
            bytes: self.some_bytes,
            type(None): lambda: None,
            Any: lambda: dice.choice((None, 1, "x", {"is": "Ping"}, [1, [2]], {"a": {}})),
            object: lambda: dice.choice((None, 1, "x")),
        }

    def some_bytes(self) -> bytes:
        dice = self.dice
        whole = stream()
        cut = whole[: dice.randrange(len(whole))]
        wild = dice.randbytes(dice.choice((0, 1, 7, 64, 5000)))
        return dice.choice((b"", whole, cut, self.flipped(whole), wild, pack(Sender("x", 1)), b"\x80\x05K\x01."))

    def flipped(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.dice.choice((1, 1, 2, 8))):
            if changed:
                changed[self.dice.randrange(len(changed))] = self.dice.randrange(256)
        return bytes(changed)

    def value(self, hint: Any, deep: int = 0) -> Any:
        if hint in self._scalars:
            return self._scalars[hint]()
        origin, inner = get_origin(hint), get_args(hint)
        if origin is Annotated:
            bounds = [one for one in inner[1:] if isinstance(one, Within)]
            return (
                min(max(self.value(inner[0]), bounds[0].least), bounds[0].end - 1) if bounds else self.value(inner[0])
            )
        if origin is Literal:
            return self.dice.choice(inner)
        if origin in (typing.Union, types.UnionType):
            return self.value(self.dice.choice(inner), deep)
        several = 0 if deep > DEEP else self.dice.choice((0, 1, 1, 2, 4))
        if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(self.value(inner[0], deep + 1) for _ in range(several))
        if origin is frozenset:
            return frozenset(self.value(inner[0], deep + 1) for _ in range(several))
        if origin is tuple:
            return tuple(self.value(one, deep + 1) for one in inner)
        if is_abstract_mapping(origin):
            return {self.value(inner[0]): self.value(inner[1], deep + 1) for _ in range(several)}
        if is_named_tuple(hint):
            return hint(*(self.value(one, deep + 1) for one in hints_of(hint).values()))
        if isinstance(hint, type) and is_dataclass(hint):
            return self.message(hint, deep)
        raise Refused(f"nothing is drawn for {hint!r}")

    def message(self, kind: type[Any], deep: int = 0) -> Any:
        if some := self.given.get(kind):
            return self.dice.choice(some)
        below = [one for one in ours(kind) if one is not kind] if issubclass(kind, Tagged) else []
        if below:
            return self.message(self.dice.choice(below), deep)
        hints = hints_of(kind)
        try:
            return kind(**{one.name: self.value(hints[one.name], deep + 1) for one in fields(kind) if one.init})
        except (HoldfastError, ValueError, TypeError) as error:
            raise Refused(str(error)) from None


def ours(base: type[Any]) -> list[type[Any]]:
    """The classes of messages that ship below ``base``, in one order."""
    named = sorted(Tagged.kinds.items())
    return [kind for _, kind in named if issubclass(kind, base) and kind.__module__.startswith("holdfast.")]


@dataclass
class Told:
    """What came of it all."""

    calls: int = 0
    without: int = 0
    """A valid token."""
    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By the name of the error."""
    hung: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    bugs: list[str] = field(default_factory=list)
    """What was met by an error that nobody has thought of."""


class Fuzzer:
    """Against one door. ``senders`` are those that may do what they like; ``sacred`` is who must notice nothing."""

    def __init__(
        self,
        address: Address,
        token: str,
        kinds: Sequence[type[Any]],
        draw: Draw,
        senders: Sequence[Sender],
        sacred: Sequence[Sender],
    ) -> None:
        self.address, self.token, self.kinds, self.draw, self.dice = address, token, kinds, draw, draw.dice
        self.senders, self.sacred = senders, sacred
        self.told = Told()
        self._replays: list[tuple[type[Any], bytes]] = []
        self._at = 0
        self._flight = flight.FlightClient(address.location)

    def close(self) -> None:
        self._flight.close()

    def __enter__(self) -> Fuzzer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def one(self) -> None:
        """A call, with a token or without."""
        valid = self.told.calls % 2 == 0
        self.told.calls += 1
        self.told.without += not valid
        kind, body = self._body(valid)
        token = self.token if valid else self._wrong(kind)
        headers = self._headers(valid, token)
        way = self._way(kind)
        try:
            way(body, flight.FlightCallOptions(headers=headers, timeout=SECONDS))
        except flight.FlightTimedOutError:
            self.told.hung.append(kind.__name__)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            known = from_wire(str(error))
            self.told.refused[type(known).__name__ if known is not None else type(error).__name__] += 1
            if known is None and not _of_grpc(str(error)):
                self.told.unclear.append(f"{kind.__name__}: {type(error).__name__}: {error!s:.300}")
            if isinstance(known, BugError):
                self.told.bugs.append(f"{kind.__name__}: {known.what:.300}")
            if not valid and known is not None and not isinstance(known, (TokenError, *self._may_be(token))):
                self.told.unclear.append(f"{kind.__name__} without a token: {known!s:.300}")
        else:
            self.told.answered += 1
            if not valid:
                self.told.unclear.append(f"{kind.__name__} was answered without a token")

    def _may_be(self, token: str) -> tuple[type[HoldfastError], ...]:
        """Who may ask for something else is told that what he sent is nothing."""
        less = [token_for(role, self.token) for role in ROLES]
        return (MessageError,) if token in less else ()

    # --- what is sent -------------------------------------------------------------------------------------

    def _body(self, valid: bool) -> tuple[type[Any], bytes]:
        dice = self.dice
        if self._replays and dice.random() < 0.1:  # again, and out of order
            kind, body = dice.choice(self._replays)
        else:
            kind, body = self._drawn(valid)
        if dice.random() < 0.3:
            broken = self._broken(body)
            if not (valid and self._replaces(broken)):
                body = broken
        return kind, body

    def _replaces(self, body: bytes) -> bool:
        """Whoever has the token may take a master's place: what is refused to that one afterwards is no fault."""
        try:
            job, incarnation = json.loads(body[4 : 4 + int.from_bytes(body[:4], "little")])["sender"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        known = [one.incarnation for one in self.sacred if one.job == job]
        known = [min(known)] if known else [one.incarnation for one in self.senders if one.job == job]
        return bool(known) and isinstance(incarnation, int) and incarnation > max(known)

    def _drawn(self, valid: bool) -> tuple[type[Any], bytes]:
        """The kinds take turns, each with a token and without, so that none is forgotten."""
        kind = self.kinds[self._at // 2 % len(self.kinds)]
        self._at += 1
        sender = self.dice.choice(self.senders if valid else (*self.senders, *self.sacred))
        while True:
            try:
                body = pack(self.draw.message(kind), sender)
                break
            except (Refused, MessageError, TypeError, ValueError, OverflowError):
                continue
        if sender in self.senders:
            self._replays.append((kind, body))
            if len(self._replays) > REPLAYS:
                self._replays.pop(self.dice.randrange(REPLAYS))
        return kind, body

    def _broken(self, body: bytes) -> bytes:
        dice = self.dice
        match dice.randrange(6):
            case 0:
                return body[: dice.randrange(len(body) + 1)]
            case 1:
                return self.draw.flipped(body)
            case 2:  # a header that is longer than all there is
                return dice.choice((2**32 - 1, 2**31, len(body) + 1, 0)).to_bytes(4, "little") + body[4:]
            case 3:
                return body + dice.randbytes(dice.choice((1, 100)))
            case 4:
                return dice.randbytes(dice.choice((0, 3, 100)))
        end = 4 + int.from_bytes(body[:4], "little")
        try:
            head = json.loads(body[4:end])
        except ValueError:
            return b""
        wild = (None, -1, 2**63, 1e308, True, "", [], {}, [[]], {"is": "Ping"}, {"is": ["x"]}, [2**40] * 3, "x" * 5000)
        self._change(head, wild)
        text = json.dumps(head).encode()
        return len(text).to_bytes(4, "little") + text + body[end:]

    def _change(self, node: Any, wild: Sequence[Any]) -> None:
        """Something in it is another."""
        while True:
            if isinstance(node, dict) and node:
                at: Any = self.dice.choice(sorted(node))
            elif isinstance(node, list) and node:
                at = self.dice.randrange(len(node))
            else:
                return
            if not isinstance(node[at], dict | list) or not node[at] or self.dice.random() < 0.3:
                break
            node = node[at]
        if self.dice.random() < 0.2:
            del node[at]
        else:
            node[at] = self.dice.choice(wild)

    def _wrong(self, kind: type[Any]) -> str:
        """Not the right one, though it may be right for something else."""
        token, dice = self.token, self.dice
        less = [role for role in ROLES if role not in kind.roles]
        options = ["", "x", token[:-1], token + "x", token.swapcase(), dice.randbytes(16).hex(), "é"]
        return dice.choice([*options, *(token_for(role, token) for role in less)])

    def _headers(self, valid: bool, token: str) -> list[tuple[bytes, bytes]]:
        dice = self.dice
        right = [(TOKEN_HEADER.encode(), f"Bearer {token}".encode()), (TARGET_HEADER.encode(), self._target(valid))]
        more: list[tuple[bytes, bytes]] = []
        if dice.random() < 0.2:
            more = [(b"x-some-bin", dice.randbytes(50)), (b"x-empty", b""), (b"x-long", b"y" * dice.choice((10, 4000)))]
        if valid:
            return right + more
        match dice.randrange(1000):
            case 0:  # gRPC takes its time to say that it is too much
                return [(b"x-long", b"y" * 20_000), *right]
            case number if number < 100:
                return more
            case number if number < 200:
                return [(TOKEN_HEADER.encode() + b"-bin", dice.randbytes(20)), right[1], *more]
            case number if number < 300:
                return [right[1], (TOKEN_HEADER.encode(), b""), *more]
        return right + more

    def _target(self, valid: bool) -> bytes:
        return self.address.container.encode() if valid or self.dice.random() < 0.8 else b"somebody"

    # --- how it is sent -----------------------------------------------------------------------------------

    def _way(self, kind: type[Any]) -> Callable[[bytes, flight.FlightCallOptions], None]:
        if self.dice.random() < 0.03:
            return self.dice.choice((self._listed, self._asked, self._taken, self._brought, self._exchanged))
        if issubclass(kind, Ticket):
            return self._taken
        if issubclass(kind, Push):
            return self._brought
        return self._asked if self.dice.random() < 0.7 else self._exchanged

    def _listed(self, body: bytes, options: flight.FlightCallOptions) -> None:
        match self.dice.randrange(3):
            case 0:
                list(self._flight.list_actions(options))
            case 1:
                self._flight.get_flight_info(flight.FlightDescriptor.for_command(body), options)
            case _:
                list(self._flight.list_flights(body, options))

    def _asked(self, body: bytes, options: flight.FlightCallOptions) -> None:
        list(self._flight.do_action(flight.Action(self.dice.choice(self.draw.words[1:5]), body), options))

    def _taken(self, body: bytes, options: flight.FlightCallOptions) -> None:
        for chunk in self._flight.do_get(flight.Ticket(body), options):
            del chunk

    def _exchanged(self, body: bytes, options: flight.FlightCallOptions) -> None:
        writer, reader = self._flight.do_exchange(flight.FlightDescriptor.for_command(b"x"), options)
        with writer:
            match self.dice.randrange(8):
                case 0:
                    pass
                case 1:
                    writer.begin(pa.schema({"a": pa.int64()}))
                    writer.write_batch(pa.record_batch({"a": pa.array([1], pa.int64())}))
                case 2:
                    writer.begin(pa.schema({"a": pa.int64()}))
                    writer.write_metadata(body)
                case _:
                    writer.write_metadata(body)
            writer.done_writing()
            reader.read_chunk()

    def _brought(self, body: bytes, options: flight.FlightCallOptions) -> None:
        batches = [self._batch() for _ in range(self.dice.choice((0, 1, 1, 2)))]
        schema = batches[0].schema if batches else pa.schema({"a": pa.int64()})
        writer, _ = self._flight.do_put(flight.FlightDescriptor.for_command(body), schema, options)
        with writer:
            for batch in batches:
                if batch.schema == schema:
                    writer.write_with_metadata(batch, self._part())
                else:
                    writer.write_metadata(self._part())

    def _part(self) -> bytes:
        while True:
            try:
                part = pack(self.draw.message(self.dice.choice(PARTS)))
                return self._broken(part) if self.dice.random() < 0.3 else part
            except (Refused, MessageError, TypeError, ValueError, OverflowError):
                continue

    def _batch(self) -> pa.RecordBatch:
        numbers = pa.array([1, 2, 3], pa.int64())
        match self.dice.randrange(4):
            case 0:
                return pa.record_batch({"_h": numbers, "k0": numbers, "v0": numbers})
            case 1:
                return pa.record_batch({"_h": numbers, "k0": pa.array(["a", "b", None]), "v0": numbers})
            case 2:  # offsets that point anywhere
                offsets = pa.array([0, 2**30, 5, 3], pa.int32()).buffers()[1]
                wild = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"abc")])
                return pa.RecordBatch.from_arrays([numbers, wild], names=["_h", "k0"])
        return pa.record_batch({"a": pa.array([b"x" * 100])})


PARTS: list[type[Any]] = []
"""What goes with the batches of a push, filled by who knows them."""


def _of_grpc(said: str) -> bool:
    """What Flight and gRPC say themselves about calls that never reach us."""
    known = ("metadata size exceeds", "not implemented", "NotImplementedError", "Invalid metadata")
    return any(one in said for one in known)


def calls_to(kinds: Sequence[type[Any]]) -> list[type[Any]]:
    return [kind for kind in kinds if issubclass(kind, Call | Ticket | Push)]
