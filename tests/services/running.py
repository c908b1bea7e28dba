"""A Kafka broker and a Postgres server on loopback, for as long as a test session lasts."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from fetching import Missing, jars

SECONDS = 90.0


@contextlib.contextmanager
def kafka(partitions: int = 1) -> Iterator[str]:
    """A broker that is its own controller, with so many partitions in a new topic; its address."""
    broker, controller = free_port(), free_port()
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else Path("java")
    command = [str(java), "-Xmx384m", "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(map(str, jars("broker")))]
    with tempfile.TemporaryDirectory(prefix="holdfast-kafka-") as folder:
        settings = Path(folder, "server.properties")
        settings.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{broker}\nlog.dirs={folder}/log\n"
            "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
            f"transaction.state.log.min.isr=1\nnum.partitions={partitions}\ngroup.initial.rebalance.delay.ms=0\n"
        )
        identity = uuid.uuid4().hex[:22]
        formatted = [*command, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(settings)]
        subprocess.run(formatted, check=True, capture_output=True, timeout=SECONDS)
        with _process(
            [*command, "kafka.Kafka", str(settings)], Path(folder, "out"), signal.SIGTERM, lambda: answers(broker)
        ):
            yield f"127.0.0.1:{broker}"


@contextlib.contextmanager
def postgres() -> Iterator[int]:
    """A server with a user ``holdfast`` and the database that every server has, without passwords; its port."""
    programs, port, user = _postgres_programs(), free_port(), _other_than_root()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        subprocess.run(
            [programs / "initdb", "-D", folder / "data", "-A", "trust", "-U", "holdfast", "--no-sync"],
            check=True,
            capture_output=True,
            timeout=SECONDS,
            cwd="/",
            user=user,
        )
        server = [str(programs / "postgres"), "-D", str(folder / "data"), "-p", str(port), "-k", str(folder)]
        server += ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        with _process(server, folder / "out", signal.SIGINT, lambda: answers(port), user):
            yield port
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def _process(
    command: list[str], output: Path, end: signal.Signals, ready: Callable[[], bool], user: str | None = None
) -> Iterator[None]:
    """A server that is up while this lasts, and gone afterwards."""
    with output.open("wb") as out:
        server = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd="/", user=user, preexec_fn=_end_with_the_tests
        )
    try:
        deadline = time.monotonic() + SECONDS
        while not ready():
            assert server.poll() is None, f"it ended: {output.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"it does not answer: {output.read_text()[-2000:]}"
            time.sleep(0.1)
        yield
    finally:
        server.send_signal(end)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _end_with_the_tests() -> None:
    """Also if they are killed. (Behind the change of user, which would forget it.)"""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _postgres_programs() -> Path:
    """Debian keeps them off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [Path(shutil.which("initdb") or "")]
    if not found[-1].is_file():
        raise Missing("Postgres is missing (apt-get install postgresql)")
    return found[-1].parent


def _other_than_root() -> str | None:
    """Postgres refuses to be root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
