"""What it costs how processes talk: a door of ours in a process of its own, opened in each of the three ways.

The server and the client are the ones that ship, with their codec and headers; what they carry is made beforehand, so
that no operator is measured along. The three take turns, each in the opposite order every other round.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.driver.security import WORKER, Passes
from holdfast.wire import socket_folder
from holdfast.wire.client import Client
from holdfast.wire.handlers import handler
from holdfast.wire.locations import THIS_MACHINE, is_folder
from holdfast.wire.messages import Address
from holdfast.wire.questions import Ping, Pong, ScanPart, ScanTicket
from holdfast.wire.server import Server

PLAIN, UNIX, TLS = "plain TCP", "Unix sockets", "TLS"
WAYS = (PLAIN, UNIX, TLS)
NAME = "c0"
BATCH_ROWS = 1 << 16
BATCH_BYTES = 2 * 8 * BATCH_ROWS


class Answers:
    """As many batches as the ticket has epochs, of 1 MiB each."""

    def __init__(self) -> None:
        values = np.random.default_rng(1).integers(0, 1 << 60, BATCH_ROWS)
        self._rows = pa.record_batch({"k": values, "v": values[::-1].copy()})

    @handler
    def ping(self, call: Ping) -> Pong:
        return Pong(NAME, 0)

    @handler
    def scan(self, ticket: ScanTicket) -> tuple[pa.Schema, Iterator[tuple[pa.RecordBatch, ScanPart]]]:
        part = ScanPart(ticket.slices, ticket.slices)
        return self._rows.schema, ((self._rows, part) for _ in range(ticket.epoch))


def serve() -> None:
    """Where, and with which pass, as a line on standard input; until that is closed."""
    said = json.loads(sys.stdin.readline())
    server = Server(NAME, said["token"], said["host"], "The bench")
    server.table.add(Answers())
    print(server.address.location, flush=True)
    sys.stdin.read()
    server.shutdown()


@contextlib.contextmanager
def door(way: str) -> Iterator[tuple[Address, str]]:
    """A door that is opened that way, and a pass for it."""
    host = socket_folder.make() if way == UNIX else THIS_MACHINE
    passes = Passes(secure=way == TLS)
    with subprocess.Popen(
        [sys.executable, "-c", "from kit.doors import serve; serve()"],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"token": passes.of(NAME), "host": host}) + "\n")
        process.stdin.flush()
        try:
            yield Address(NAME, process.stdout.readline().strip()), passes.of(WORKER, answers=False)
        finally:
            process.stdin.close()
    if is_folder(host):
        socket_folder.remove(host)


def scanned(address: Address, token: str, mib: int) -> float:
    """Seconds to take so much out, by a connection of its own, as a task of Spark's does."""
    began = time.perf_counter()
    with Client(address, token) as client:
        taken = sum(batch.num_rows for _, batch in client.scan(ScanTicket("rows", mib, "read", (0,))))
    seconds = time.perf_counter() - began
    assert taken == mib * BATCH_ROWS
    return seconds


def called(address: Address, token: str, calls: int) -> float:
    """Seconds a small call on a connection that is there."""
    with Client(address, token) as client:
        client.call(Ping(), 60)
        began = time.perf_counter()
        for _ in range(calls):
            client.call(Ping(), 60)
        return (time.perf_counter() - began) / calls


def connected(address: Address, token: str, times: int) -> float:
    """Seconds to connect and call once."""
    began = time.perf_counter()
    for _ in range(times):
        with Client(address, token) as client:
            client.call(Ping(), 60)
    return (time.perf_counter() - began) / times


def in_turns(measure: Callable[[str], Any], turns: int, ways: Sequence[str] = WAYS) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {way: [] for way in ways}
    for turn in range(turns):
        for way in ways if turn % 2 == 0 else reversed(ways):
            found[way].append(measure(way))
    return found


def costs(mib: int, calls: int, turns: int) -> dict[str, dict[str, list[float]]]:
    """By what was measured and by the way: seconds, one figure a turn."""
    with contextlib.ExitStack() as opened:
        doors = {way: opened.enter_context(door(way)) for way in WAYS}
        for address, token in doors.values():  # neither ports nor caches are cold for whoever comes first
            scanned(address, token, max(1, mib // 10))
        return {
            "scan": in_turns(lambda way: scanned(*doors[way], mib), turns),
            "call": in_turns(lambda way: called(*doors[way], calls), turns),
            "connection": in_turns(lambda way: connected(*doors[way], max(1, calls // 20)), turns),
        }


def ratios(found: dict[str, list[float]]) -> dict[str, float]:
    """Of each way to plain TCP, turn by turn: the median."""
    return {
        way: median(mine / plain for mine, plain in zip(found[way], found[PLAIN], strict=True))
        for way in found
        if way != PLAIN
    }
