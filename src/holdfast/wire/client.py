"""The calling side of a container, for the master, Spark's tasks and readers.

A connection that breaks raises ``Unreachable``; an answer that is an error raises that error. The difference
matters: the first is about the container, the second about the request.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from holdfast.wire import framing as wire


class Unreachable(Exception):
    """The container did not answer: it is gone, going, or silent."""


MASTER = "master"
"""Who the driver of a job is at its own door."""


@dataclass(frozen=True)
class Address:
    """Where a process of the state plane is, and who it must be."""

    container: str
    location: str


class Client:
    def __init__(self, address: Address, token: str) -> None:
        self.address = address
        self._token = token
        self._flight = flight.FlightClient(address.location, generic_options=[("grpc.max_reconnect_backoff_ms", 200)])

    def call(
        self,
        action: str,
        header: Mapping[str, Any] | None = None,
        *blobs: bytes,
        timeout: float | None = None,
    ) -> tuple[dict[str, Any], list[memoryview]]:
        request = flight.Action(action, wire.pack(header or {}, *blobs))
        try:
            results = list(self._flight.do_action(request, self._options(timeout)))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._explained(error) from error
        return wire.unpack(results[0].body.to_pybytes()) if results else ({}, [])

    def scan(self, ticket: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], pa.RecordBatch]]:
        """The batches of a DoGet, each with its header (slice and first row number)."""
        yield from self.read(self.open(ticket))

    def open(self, ticket: Mapping[str, Any]) -> flight.FlightStreamReader:
        """Begin a DoGet; what is opened can be cancelled from another thread than the one that reads it."""
        try:
            return self._flight.do_get(flight.Ticket(wire.pack(ticket)), self._options(None))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._explained(error) from error

    def read(self, opened: flight.FlightStreamReader) -> Iterator[tuple[dict[str, Any], pa.RecordBatch]]:
        try:
            for chunk in opened:
                yield wire.unpack(chunk.app_metadata.to_pybytes())[0], chunk.data
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self._explained(error) from error

    def push(self, header: Mapping[str, Any], schema: pa.Schema, timeout: float) -> flight.FlightStreamWriter:
        descriptor = flight.FlightDescriptor.for_command(wire.pack(header))
        writer, _ = self._flight.do_put(descriptor, schema, self._options(timeout))
        return writer

    def close(self) -> None:
        self._flight.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _options(self, timeout: float | None) -> flight.FlightCallOptions:
        return wire.call_options(self._token, self.address.container, timeout)

    def _explained(self, error: Exception) -> Exception:
        return wire.reveal(error) or Unreachable(f"{self.address.container}: {error}")


def is_refused(address: Address, timeout: float) -> bool:
    """A broken call has many causes; a refused connection has one: nobody listens there any more."""
    host, _, port = address.location.removeprefix("grpc://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
