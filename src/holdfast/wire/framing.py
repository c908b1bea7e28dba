"""How requests look on the wire: a small JSON header, then bytes as they are.

Flight already frames, streams and bounds messages; what is left to agree on is who speaks to whom. Every call
carries two gRPC headers, the token and the id of the container that is meant, so that a stranger gets nothing and
nobody ever talks to a newcomer on an old port. Everything else (job, stage, fence) is in the JSON header.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Any

import pyarrow.flight as flight

from holdfast.errors import HoldfastError, TokenError, from_wire

TOKEN_HEADER = "authorization"
TARGET_HEADER = "x-holdfast-target"


def pack(header: Mapping[str, Any], *blobs: bytes) -> bytes:
    head = json.dumps({**header, "_blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join([len(head).to_bytes(4, "little"), head, *blobs])


def unpack(body: bytes | memoryview) -> tuple[dict[str, Any], list[memoryview]]:
    view = memoryview(body)
    end = 4 + int.from_bytes(view[:4], "little")
    header: dict[str, Any] = json.loads(bytes(view[4:end]))
    blobs = []
    for length in header.pop("_blobs"):
        blobs.append(view[end : end + length])
        end += length
    return header, blobs


def call_options(token: str, target: str, timeout: float | None = None) -> flight.FlightCallOptions:
    headers = [
        (TOKEN_HEADER.encode(), f"Bearer {token}".encode()),
        (TARGET_HEADER.encode(), target.encode()),
    ]
    return flight.FlightCallOptions(headers=headers, timeout=timeout)


class Doorkeeper(flight.ServerMiddlewareFactory):
    """Lets a call in only if it has the token and means this process."""

    def __init__(self, token: str, me: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()
        self._me = me

    def start_call(self, info: object, headers: Mapping[str, list[str]]) -> None:
        lowered = {name.lower(): values[0] for name, values in headers.items() if values}
        given = lowered.get(TOKEN_HEADER, "")
        if not hmac.compare_digest(str(given).encode(), self._expected):
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


def reveal(error: BaseException) -> HoldfastError | None:
    """The Holdfast error inside a Flight error, or None if it is the connection that failed."""
    return from_wire(str(error))
