"""What somebody without a token can do to a container: stand there for a while, and no more."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import incubator
import psutil
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from holdfast.errors import EpochGone, TokenError
from holdfast.launch.local import ContainerProcess, ContainerSettings
from holdfast.wire import threshold
from holdfast.wire.client import Client, Unreachable
from holdfast.wire.codec import Sender
from holdfast.wire.handlers import handler
from holdfast.wire.messages import Address
from holdfast.wire.questions import Get, Got, Ping
from holdfast.wire.server import Server

MIB = 1 << 20
GROWTH = 64 * MIB
TOKEN = "secret"


class Growth:
    """The most that a process has grown while this is watched."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._first = self.most = self._process.memory_info().rss
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            self.most = max(self.most, self._process.memory_info().rss)

    def __enter__(self) -> Growth:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def bytes(self) -> int:
        return self.most - self._first


@pytest.fixture
def container() -> Iterator[tuple[ContainerProcess, Address, Client]]:
    process = ContainerProcess("c0", ContainerSettings(TOKEN), nursery=incubator.nursery())
    address = process.await_ready()
    with Client(address, TOKEN, Sender("j", 1)) as owner:
        yield process, address, owner
    process.close()


def connections(pid: int, address: Address) -> int:
    port = int(address.location.rpartition(":")[2])
    return sum(
        one.status == psutil.CONN_ESTABLISHED and one.laddr.port == port
        for one in psutil.Process(pid).net_connections("tcp")
    )


def at_once(attack: Callable[[], None], times: int) -> None:
    threads = [threading.Thread(target=attack) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_large_body_without_a_token_makes_nobody_grow(container: tuple[ContainerProcess, Address, Client]) -> None:
    process, address, owner = container
    body, refused = b"x" * (400 * MIB), []

    def ask() -> None:
        with (
            contextlib.closing(flight.FlightClient(address.location)) as stranger,
            pytest.raises((flight.FlightError, pa.ArrowException)) as error,
        ):
            list(stranger.do_action(flight.Action("Ping", body)))
        refused.append(error.value)

    def take() -> None:
        with (
            contextlib.closing(flight.FlightClient(address.location)) as stranger,
            pytest.raises((flight.FlightError, pa.ArrowException)) as error,
        ):
            next(iter(stranger.do_get(flight.Ticket(body))))
        refused.append(error.value)

    with Growth(process.pid) as growth:
        ask()
        take()
        at_once(ask, 2)
        assert owner.call(Ping(), 30).container == "c0"
    assert len(refused) == 4
    assert growth.bytes <= GROWTH


def test_streams_without_a_token_are_not_read(container: tuple[ContainerProcess, Address, Client]) -> None:
    process, address, owner = container
    rows = pa.record_batch({"a": [b"x" * (32 * MIB)]})

    def push() -> None:
        # It is told, or finds its socket shut down, whichever comes first; and any of the calls may hear of it.
        told = r"no valid token|unavailable|[Cc]losed|reset"
        refused = pytest.raises((flight.FlightError, pa.ArrowException), match=told)
        with contextlib.closing(flight.FlightClient(address.location)) as stranger, refused:
            writer, _ = stranger.do_put(flight.FlightDescriptor.for_command(b"x"), rows.schema)
            with contextlib.suppress(flight.FlightError, pa.ArrowException):
                for _ in range(8):
                    writer.write_batch(rows)
            writer.close()

    with Growth(process.pid) as growth:
        at_once(push, 3)
        assert owner.call(Ping(), 30).container == "c0"
    assert growth.bytes <= GROWTH


def test_headers_are_bounded(container: tuple[ContainerProcess, Address, Client]) -> None:
    process, address, owner = container
    long = flight.FlightCallOptions(headers=[(b"x-anything", b"y" * (32 << 10))])
    with Growth(process.pid) as growth:
        for _ in range(8):
            with (
                contextlib.closing(flight.FlightClient(address.location)) as stranger,
                pytest.raises(pa.ArrowException, match="metadata size exceeds"),
            ):
                list(stranger.do_action(flight.Action("Ping", b""), long))
    assert owner.call(Ping(), 30).container == "c0"
    assert growth.bytes <= GROWTH


def test_connections_without_a_token_are_bounded_in_number(container: tuple[ContainerProcess, Address, Client]) -> None:
    process, address, owner = container
    assert owner.call(Ping(), 30).container == "c0"
    host, _, port = address.location.removeprefix("grpc://").rpartition(":")
    with contextlib.ExitStack() as opened:
        for _ in range(3 * threshold.STRANGERS):
            opened.enter_context(socket.create_connection((host, int(port))))
        deadline = time.monotonic() + 60
        while connections(process.pid, address) > threshold.STRANGERS + 1:
            assert time.monotonic() < deadline, "they all still stand there"
            time.sleep(0.02)
        assert owner.call(Ping(), 30).container == "c0", "the owner's was not among those that went"
    with Client(address, TOKEN) as another:
        assert another.call(Ping(), 30).container == "c0"


class Keys:
    @handler
    def get(self, call: Get) -> Got:
        if call.stage == "gone":
            raise EpochGone("It is gone.", todo="Read again.")
        return Got(len(call.keys), b"")


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server("c0", TOKEN, "127.0.0.1", "A container")
    made.table.add(Keys())
    yield made
    made.shutdown()


def test_whoever_says_nothing_is_shown_out_in_time_and_whoever_was_let_in_stays(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    monkeypatch.setattr(threshold, "STRANGER_SECONDS", 0.3)
    with Client(server.address, TOKEN) as owner, socket.create_connection(("127.0.0.1", server.port)) as stranger:
        assert owner.call(Get("s", 0, 1, b"abc"), 30).epoch == 3
        began = time.monotonic()
        stranger.settimeout(60)
        while stranger.recv(4096):  # gRPC greets whoever comes
            pass
        assert time.monotonic() - began >= 0.2
        before = connections(psutil.Process().pid, server.address)
        time.sleep(0.5)
        assert before == connections(psutil.Process().pid, server.address) == 1, "it is still the same connection"
        assert owner.call(Get("s", 0, 1, b""), 30).epoch == 0


def test_a_large_call_with_a_token_may_be_the_first_of_its_connection(server: Server) -> None:
    with Client(server.address, TOKEN) as owner:
        assert owner.call(Get("s", 0, 1, b"x" * (48 * MIB)), 60).epoch == 48 * MIB
        with pytest.raises(EpochGone, match="It is gone") as told:
            owner.call(Get("gone", 0, 1, b"x" * MIB), 60)
        assert told.value.todo == "Read again."
    with Client(server.address, "guess") as stranger, pytest.raises(TokenError, match="no valid token"):
        stranger.call(Get("s", 0, 1, b"x" * MIB), 60)
    server.shutdown()
    with Client(server.address, TOKEN) as late, pytest.raises(Unreachable):
        late.call(Get("s", 0, 1, b"x" * MIB), 60)


def test_one_address_has_one_name() -> None:
    assert threshold._named("ipv4:10.0.0.1:4711") == threshold.Peer("10.0.0.1", 4711)
    assert threshold._named("ipv6:%5B::1%5D:4711") == threshold.Peer("::1", 4711)
    assert threshold._named("ipv6:[fe80::1%25eth0]:4711") == threshold.Peer("fe80::1", 4711)
    assert threshold._plain("::ffff:10.0.0.1") == "10.0.0.1"
    assert threshold._named("unix:/run/x") == threshold.Peer("", 0)
