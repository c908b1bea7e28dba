"""The door of a process: who may come in, what is asked by its type, and errors that cross whole.

Flight already frames, streams and bounds messages; what is left to agree on is who speaks to whom. Every call
carries two gRPC headers, the token and the id of the process that is meant, so that a stranger gets nothing and
nobody ever talks to a newcomer on an old port.
"""

from __future__ import annotations

import hmac
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from holdfast.errors import HoldfastError, TokenError
from holdfast.wire import locations
from holdfast.wire.causes import named
from holdfast.wire.client import TARGET_HEADER, TOKEN_HEADER
from holdfast.wire.codec import MessageError, Sender, Tagged, pack, unpack_from
from holdfast.wire.handlers import Table
from holdfast.wire.messages import Address, Call, Push, Ticket
from holdfast.wire.passes import Pass
from holdfast.wire.threshold import Threshold
from holdfast.wire.tokens import ROLES, Role, token_for

T = TypeVar("T")
DOOR = "door"
Rows = tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, Tagged]]]
"""What a ticket's handler answers: batches, each with its part."""


class Server(flight.FlightServerBase):
    """DoAction is a call, DoGet takes rows out, DoPut brings rows in: no call moves bulk data both ways, so none can
    fill both directions and stick. ``host`` is where it listens, a machine or a folder (see ``locations``), ``token``
    what it shows there and asks for (see ``passes``); ``who`` is how errors speak of it."""

    def __init__(self, name: str, token: str, host: str, who: str) -> None:
        mine = Pass.read(token)
        asked, papers = mine.opening(host, name)
        super().__init__(asked, middleware={DOOR: Doorkeeper(mine.token, name)}, **papers)
        self.address = Address(name, locations.opened(asked, self.port))
        self.table = Table()
        self._who = who
        self._threshold = Threshold(asked, self.port)

    def about(self, sender: Sender, leads: bool) -> Any:
        """What handlers are given that ask for more than the call. Who ``leads`` speaks for a master, and may replace
        another."""
        raise NotImplementedError

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        return iter([flight.Result(self._answer(self._let_in(context), action.body.to_pybytes()))])

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """A call that is large: nothing of it is read before its token was found right."""
        visitor = self._let_in(context)
        with self._crossing():
            try:
                body = reader.read_chunk().app_metadata
            except StopIteration:  # it ended before it began
                body = None
            writer.write_metadata(self._answer(visitor, body.to_pybytes() if body is not None else b""))

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        visitor = self._let_in(context)
        with self._crossing():
            schema, rows = self._handle(visitor, *unpack_from(ticket.ticket, Ticket))
        return flight.GeneratorStream(schema, self._parts(rows))

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        visitor = self._let_in(context)
        with self._crossing():
            self._handle(visitor, *unpack_from(descriptor.command, Push), reader)

    def shutdown(self) -> None:
        self._threshold.close()
        super().shutdown()

    def _let_in(self, context: flight.ServerCallContext) -> Visitor:
        """The doorkeeper has, or nobody had called us."""
        self._threshold.admit(context.peer())
        visitor: Visitor = context.get_middleware(DOOR)
        return visitor

    def _answer(self, visitor: Visitor, body: bytes) -> bytes:
        with self._crossing():
            call, sender = unpack_from(body, Call)
            return pack(self._handle(visitor, call, sender), sender)

    def _handle(self, visitor: Visitor, message: Call[Any] | Ticket[Any] | Push, sender: Sender, *more: Any) -> Any:
        if visitor.role is not None and visitor.role not in message.roles:
            raise TokenError(
                f"Who only {visitor.role} may not ask for '{type(message).__name__}'.",
                safe="Nothing was read or changed.",
                todo="Leave what changes a job to the process that runs it.",
            )
        found = self.table.find(type(message))
        if found is None:
            raise MessageError(
                f"{self._who} does not take '{type(message).__name__}'.", safe="Nothing was read or changed."
            )
        return found.run(*((self.about(sender, visitor.role is None),) if found.about else ()), message, *more)

    def _parts(self, rows: Iterator[tuple[pa.RecordBatch, Tagged]]) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        with self._crossing():
            for batch, part in rows:
                yield batch, pack(part)

    def _crossing(self) -> _Crossing:
        return _Crossing(self._who)


class _Crossing:
    """Turns our errors into Flight errors that carry them whole, and any other into one that says where it was."""

    def __init__(self, who: str) -> None:
        self._who = who

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, flight.FlightError | GeneratorExit):
            return
        if not isinstance(error, HoldfastError):
            traceback.print_exception(error, file=sys.stderr)
        raise flight.FlightServerError(named(error, self._who).to_wire()) from error


class Visitor(flight.ServerMiddleware):
    """Whoever was let in; without a ``role`` it is one of the run's own processes."""

    def __init__(self, role: Role | None) -> None:
        super().__init__()
        self.role = role


class Doorkeeper(flight.ServerMiddlewareFactory):
    """Lets a call in only if it has a token of the run and means this process."""

    def __init__(self, token: str, me: str) -> None:
        super().__init__()
        tokens: list[tuple[str, Role | None]] = [(token, None), *((token_for(role, token), role) for role in ROLES)]
        self._visitors = [(f"Bearer {one}".encode(), Visitor(role)) for one, role in tokens]
        self._me = me

    def start_call(self, info: object, headers: Mapping[str, list[str]]) -> Visitor:
        lowered = {name.lower(): values[0] for name, values in headers.items() if values}
        given = str(lowered.get(TOKEN_HEADER, "")).encode(errors="replace")
        known = [visitor for token, visitor in self._visitors if hmac.compare_digest(given, token)]
        if not known:
            raise flight.FlightUnauthenticatedError(
                TokenError(
                    "The request has no valid token for this job.",
                    safe="Nothing was read or changed.",
                    todo="Connect through run.state() or format('holdfast') as the user who started the job.",
                ).to_wire()
            )
        target = str(lowered.get(TARGET_HEADER, ""))
        if target != self._me:
            raise flight.FlightUnauthorizedError(
                TokenError(
                    f"The request is for '{target}', but '{self._me}' listens on this port now.",
                    safe="Nothing was read or changed.",
                    todo="Ask the master for the slice's present owner.",
                ).to_wire()
            )
        return known[0]
