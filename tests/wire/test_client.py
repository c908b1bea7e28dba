"""The calling side: what happens to calls under way when somebody else closes the client."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest

from holdfast.wire.client import Client, Unreachable
from holdfast.wire.codec import Sender
from holdfast.wire.handlers import handler
from holdfast.wire.questions import Ping, Pong
from holdfast.wire.server import Server


class Slow:
    """Answers when it is let."""

    def __init__(self) -> None:
        self.asked, self.let = threading.Semaphore(0), threading.Event()

    @handler
    def ping(self, call: Ping) -> Pong:
        self.asked.release()
        assert self.let.wait(60)
        return Pong("c0", 1)


@pytest.fixture
def slow() -> Iterator[tuple[Slow, Server]]:
    server, answers = Server("c0", "secret", "127.0.0.1", "A container"), Slow()
    server.table.add(answers)
    yield answers, server
    answers.let.set()
    server.shutdown()


def test_calls_under_way_end_as_they_would_and_no_other_begins(slow: tuple[Slow, Server]) -> None:
    answers, server = slow
    client = Client(server.address, "secret", Sender("job", 1))
    got: list[Pong] = []
    calling = [threading.Thread(target=lambda: got.append(client.call(Ping(), 60))) for _ in range(3)]
    for thread in calling:
        thread.start()
        assert answers.asked.acquire(timeout=60)
    client.close()
    client.close()
    with pytest.raises(Unreachable, match="c0"):
        client.call(Ping(), 60)
    answers.let.set()
    for thread in calling:
        thread.join(60)
    assert got == [Pong("c0", 1)] * 3


def test_a_client_closed_under_calls_does_not_end_the_process() -> None:
    """Calls to a port where nobody listens, and a close among them: a segmentation fault once."""
    program = """
        import socket, threading
        from holdfast.wire.client import Address, Client, Unreachable
        from holdfast.wire.codec import Sender
        from holdfast.wire.questions import Ping

        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            nobody = Address("c0", f"grpc://127.0.0.1:{reserved.getsockname()[1]}")
            for _ in range(400):
                client = Client(nobody, "secret", Sender("job", 1))

                def call():
                    try:
                        while True:
                            client.call(Ping(), 0.5)
                    except Unreachable:
                        return

                calling = [threading.Thread(target=call) for _ in range(3)]
                for thread in calling:
                    thread.start()
                client.close()
                for thread in calling:
                    thread.join()
        print("all there")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "all there"), done.stderr[-2000:]
