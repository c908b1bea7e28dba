"""The calling side of a process, for the master, Spark's tasks, containers and readers.

A connection that breaks raises ``Unreachable``; an answer that is an error raises that error. The difference
matters: the first is about the container, the second about the request.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from holdfast.errors import TokenError, from_wire
from holdfast.wire import locations
from holdfast.wire.codec import NOBODY, Sender, Tagged, pack, unpack
from holdfast.wire.messages import Address, Call, Push, Reply, Ticket
from holdfast.wire.passes import Pass

ANOTHER = re.compile(
    "is not in peer certificate|wrong version number"
    "|certificate verify failed: (?!certificate has expired|certificate is not yet valid)"
)
"""What gRPC says of somebody else on a port: one of the same run, one without TLS, one of another run. Without these
words it is a connection that fails, and its owner is only silent."""
TOKEN_HEADER = "authorization"
TARGET_HEADER = "x-holdfast-target"
A = TypeVar("A", bound=Reply)
P = TypeVar("P", bound=Tagged)


ALONG = 64 << 10
"""So many bytes of a call go along with its token. Those of a larger one follow when the token was let in."""


class Unreachable(Exception):
    """The container did not answer: it is gone, going, or silent."""


class Client:
    """Speaks to one process, on behalf of ``sender`` unless a call says otherwise.

    Whoever hears of a container's end closes its client while others may be calling: Flight's own client ends the whole
    process by a segmentation fault if it is closed under a call. So the last call that is under way closes it.
    """

    def __init__(self, address: Address, token: str, sender: Sender = NOBODY) -> None:
        self.address = address
        mine = Pass.read(token)
        self._token = mine.token
        self._sender = sender
        self._flight = flight.FlightClient(
            address.location, generic_options=[("grpc.max_reconnect_backoff_ms", 200)], **mine.calling(address)
        )
        self._lock = threading.Lock()
        self._under_way = 0
        self._closed = False

    def call(self, message: Call[A], timeout: float | None = None, sender: Sender | None = None) -> A:
        kind, body = type(message).__name__, pack(message, sender or self._sender)
        try:
            with self._flying() as native:
                asked = _asked if len(body) <= ALONG else _asked_at_length
                told = asked(native, kind, body, self._options(timeout))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._explained(error) from error
        answer: A = unpack(told, message.answer)  # type: ignore[assignment]  # as the class says
        return answer

    def scan(self, ticket: Ticket[P]) -> Iterator[tuple[P, pa.RecordBatch]]:
        """The batches of a DoGet, each with its part."""
        yield from self.read(ticket, self.open(ticket))

    def open(self, ticket: Ticket[P]) -> flight.FlightStreamReader:
        """Begin a DoGet; what is opened can be cancelled from another thread than the one that reads it."""
        try:
            with self._flying() as native:
                return native.do_get(flight.Ticket(pack(ticket, self._sender)), self._options(None))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._explained(error) from error

    def read(self, ticket: Ticket[P], opened: flight.FlightStreamReader) -> Iterator[tuple[P, pa.RecordBatch]]:
        try:
            for chunk in opened:
                part: P = unpack(chunk.app_metadata.to_pybytes(), ticket.part)  # type: ignore[assignment]
                yield part, chunk.data
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._explained(error) from error

    def push(self, header: Push, schema: pa.Schema, timeout: float) -> flight.FlightStreamWriter:
        descriptor = flight.FlightDescriptor.for_command(pack(header, self._sender))
        with self._flying() as native:
            writer, _ = native.do_put(descriptor, schema, self._options(timeout))
        return writer

    def close(self) -> None:
        """No call begins from now on; those under way end as they would."""
        with self._lock:
            now = not self._closed and not self._under_way
            self._closed = True
        if now:
            self._flight.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _flying(self) -> Iterator[flight.FlightClient]:
        """Flight's client, for as long as it is held; a stream that was begun needs it no more."""
        with self._lock:
            if self._closed:
                raise Unreachable(f"{self.address.container}: it is gone, or of no more use here")
            self._under_way += 1
        try:
            yield self._flight
        finally:
            self._landed()

    def _landed(self) -> None:
        with self._lock:
            self._under_way -= 1
            last = self._closed and not self._under_way
        if last:
            self._flight.close()

    def _options(self, timeout: float | None) -> flight.FlightCallOptions:
        headers = [
            (TOKEN_HEADER.encode(), f"Bearer {self._token}".encode()),
            (TARGET_HEADER.encode(), self.address.container.encode()),
        ]
        return flight.FlightCallOptions(headers=headers, timeout=timeout)

    def _explained(self, error: Exception) -> Exception:
        """The Holdfast error inside a Flight error; or it is the connection that failed."""
        if (ours := from_wire(str(error))) is not None:
            return ours
        if locations.is_secure(self.address.location) and ANOTHER.search(str(error)):
            return TokenError(
                f"Who listens at {self.address.location} is not '{self.address.container}'.",
                safe="Nothing was read or changed, and no token was sent.",
                todo="Ask the master for the slice's present owner.",
            )
        return Unreachable(f"{self.address.container}: {error}")


def _asked(native: flight.FlightClient, kind: str, body: bytes, options: flight.FlightCallOptions) -> bytes:
    (result,) = native.do_action(flight.Action(kind, body), options)
    return bytes(result.body.to_pybytes())


def _asked_at_length(native: flight.FlightClient, kind: str, body: bytes, options: flight.FlightCallOptions) -> bytes:
    """As a stream: whoever it is for decides by the headers whether to read it."""
    writer, reader = native.do_exchange(flight.FlightDescriptor.for_command(kind.encode()), options)
    with writer:
        writer.write_metadata(body)
        writer.done_writing()
        return bytes(reader.read_chunk().app_metadata.to_pybytes())


def is_refused(address: Address, timeout: float) -> bool:
    """Nobody listens there any more."""
    return locations.refuses(address.location, timeout)
