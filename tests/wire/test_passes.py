"""Who gets in under TLS, and who does not: at a container's door and at the driver's, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import psutil
import pyarrow.flight as flight
import pytest

from holdfast.driver.endpoint import Desk
from holdfast.driver.security import WORKER, Passes, open_spark
from holdfast.errors import HoldfastError, TokenError
from holdfast.launch.local import ChildLauncher, ContainerSettings
from holdfast.launch.process import assembled
from holdfast.wire.authority import Authority
from holdfast.wire.client import Client, Unreachable
from holdfast.wire.locations import MASTER
from holdfast.wire.messages import Address
from holdfast.wire.passes import Papers, Pass
from holdfast.wire.questions import MayIStay, Ping, Pong
from holdfast.wire.server import Doorkeeper, Server

TOKEN = "token"
OURS = Authority()
YESTERDAY = datetime.now(UTC) - timedelta(days=1)


def of(name: str, authority: Authority = OURS, **more: object) -> str:
    return Pass(TOKEN, authority.papers(name, **more)).text  # type: ignore[arg-type]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The headers of every call that came as far as a doorkeeper."""
    calls: list[object] = []
    before = Doorkeeper.start_call

    def noting(self: Doorkeeper, info: object, headers: object) -> None:
        calls.append(headers)
        return before(self, info, headers)  # type: ignore[arg-type]

    monkeypatch.setattr(Doorkeeper, "start_call", noting)
    return calls


@pytest.fixture(params=["c0", MASTER])
def door(request: pytest.FixtureRequest, heard: list[object]) -> Iterator[Server]:
    """A container's, as all of them are put together, and the driver's."""
    name = request.param
    made = Desk("127.0.0.1", of(MASTER)) if name == MASTER else assembled(name, of(name), "127.0.0.1", 1, 1 << 20)
    yield made
    made.close()


def knock(door: Server, token: str) -> None:
    """A call that the door has an answer to, or at least a refusal of its own."""
    with Client(door.address, token) as client:
        if door.address.container == MASTER:
            with pytest.raises(HoldfastError, match="The master does not take 'MayIStay'"):
                client.call(MayIStay("c0", 1, "1", "here", 1), 60)
        else:
            assert client.call(Ping(), 60).container == "c0"


def test_those_of_the_run_get_in(door: Server, heard: list[object]) -> None:
    for name in (MASTER, "c1", WORKER):
        knock(door, of(name, answers=name != WORKER))
    assert len(heard) == 3


def test_the_token_is_asked_for_as_well(door: Server) -> None:
    stolen = Pass("guess", OURS.papers("c1")).text
    with Client(door.address, stolen) as client, pytest.raises(TokenError, match="no valid token"):
        client.call(Ping(), 60)


STRANGERS: dict[str, Callable[[], Papers]] = {
    "of another run": lambda: Authority().papers("c1"),
    "expired": lambda: OURS.papers("c1", until=YESTERDAY),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_fails_before_a_byte_is_read(stranger: str, door: Server, heard: list[object]) -> None:
    """Also with the right token, and though he knows whom he talks to."""
    papers = STRANGERS[stranger]()
    shown = Papers(papers.certificate, papers.key, OURS.certificate)
    with Client(door.address, Pass(TOKEN, shown).text) as client, pytest.raises(Unreachable):
        client.call(Ping(), 60)
    assert not heard
    knock(door, of("c1"))
    assert len(heard) == 1, "so it is seen who gets that far"


@pytest.mark.parametrize("scheme", ["grpc+tls", "grpc"])
def test_nobody_gets_in_without_a_certificate(scheme: str, door: Server, heard: list[object]) -> None:
    location = door.address.location.replace("grpc+tls", scheme)
    roots = {"tls_root_certs": OURS.certificate, "override_hostname": door.address.container}
    headers = flight.FlightCallOptions(
        headers=[(b"authorization", f"Bearer {TOKEN}".encode()), (b"x-holdfast-target", b"c0")], timeout=60
    )
    with (
        flight.FlightClient(location, **(roots if scheme == "grpc+tls" else {})) as bare,
        pytest.raises(flight.FlightUnavailableError),
    ):
        list(bare.do_action(flight.Action("Ping", b""), headers))
    assert not heard
    with pytest.raises(TokenError, match="there is none with this token") as refused:
        Client(door.address, TOKEN)
    assert refused.value.safe == "Nothing was sent."


ANSWERS: dict[str, Callable[[], str]] = {
    "another container of the run": lambda: of("c1"),
    "a container of another run, by the same name": lambda: of("c0", Authority()),
    "a task of the run, by a name that is not its own": lambda: of("c0", answers=False),
    "one without TLS": lambda: TOKEN,
}


@pytest.mark.parametrize("who", ANSWERS)
def test_whoever_listens_on_a_dead_containers_port_hears_no_token(who: str, heard: list[object]) -> None:
    """And the caller knows that it is somebody else, as it does from a refused connection: no silence is waited for."""
    server = Server("c0", ANSWERS[who](), "127.0.0.1", "A container")
    address = Address("c0", server.address.location.replace("grpc://", "grpc+tls://"))
    try:
        with Client(address, of(MASTER)) as client, pytest.raises(TokenError, match="is not 'c0'") as refused:
            client.call(Ping(), 60)
        assert "no token was sent" in refused.value.safe
        assert not heard
    finally:
        server.shutdown()


def test_a_token_under_tls_is_never_sent_in_plain() -> None:
    """Whoever can write an owner's address cannot have it that way."""
    with pytest.raises(TokenError, match="where anybody could listen") as refused:
        Client(Address(MASTER, "grpc://127.0.0.1:1"), of(WORKER))
    assert refused.value.safe == "Nothing was sent."


def test_a_pass_keeps_its_secrets_to_itself() -> None:
    given = Pass(TOKEN, OURS.papers("c0"))
    assert Pass.read(given.text) == given
    assert Pass.read(TOKEN) == Pass(TOKEN)
    assert given.papers is not None
    for shown in (repr(given), repr(ContainerSettings(given.text))):
        assert TOKEN + "'" not in shown
        assert given.papers.key not in shown
        assert "PRIVATE" not in shown
    for garbage in ("a.b", "a.WzFd", "a.eyJhIjogMX0="):
        with pytest.raises(TokenError, match="What was given as a token is none"):
            Pass.read(garbage)


def test_containers_have_papers_of_their_own() -> None:
    """Children that talk to nobody without, with nothing of it on a command line or in an environment."""
    passes = Passes(secure=True)
    mine = Pass.read(passes.of(MASTER))
    launcher = ChildLauncher(ContainerSettings(mine.text), passes=passes.of)
    children = [launcher.start(name) for name in ("c0", "c1")]
    try:
        one, other = (child.await_ready() for child in children)
        assert one.location.startswith("grpc+tls://127.0.0.1:")
        with Client(one, mine.text) as client:
            assert client.call(Ping(), 60) == Pong("c0", children[0].pid)
        with Client(Address("c0", other.location), mine.text) as client, pytest.raises(TokenError, match="is not 'c0'"):
            client.call(Ping(), 60)
        for child in children:
            process = psutil.Process(child.pid)
            shown = " ".join([*process.cmdline(), *process.environ().values()])
            assert mine.token not in shown
            assert "PRIVATE KEY" not in shown
    finally:
        for child in children:
            child.close()
        launcher.close()


def test_many_are_signed_at_once() -> None:
    made: list[Papers] = []
    threads = [threading.Thread(target=lambda: made.append(OURS.papers("c0"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({papers.key for papers in made}) == len({papers.certificate for papers in made}) == 8


@pytest.mark.parametrize(
    ("on", "missing"),
    [
        ((), "(spark.authenticate, spark.network.crypto.enabled)"),
        (("spark.authenticate",), "(spark.network.crypto.enabled)"),
        (("spark.authenticate", "spark.network.crypto.enabled"), None),
        (("spark.authenticate", "spark.ssl.rpc.enabled"), None),
    ],
)
def test_an_open_spark_is_told_of(on: tuple[str, ...], missing: str | None) -> None:
    warning = open_spark(lambda name, default: "true" if name in on else default)
    assert (missing in warning) if warning and missing else (warning is None and missing is None)
