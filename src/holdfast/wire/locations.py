"""Where a process of a run listens, written as Flight writes it.

Whoever opens a door says at which *host*: the name or address of a machine, or, as PostgreSQL has it, the path of a
folder. In a folder it listens on a Unix socket that has its own name, and the folder's permissions say who may knock.
"""

from __future__ import annotations

import socket

UNIX = "grpc+unix://"
PLAIN = "grpc://"
TLS = "grpc+tls://"
THIS_MACHINE = "127.0.0.1"
MASTER = "master"
"""Who the driver of a job is at its own door."""


def is_folder(host: str) -> bool:
    return host.startswith("/")


def machine(host: str) -> str:
    """By the name that others know it by."""
    return THIS_MACHINE if is_folder(host) else host


def is_unix(location: str) -> bool:
    return location.startswith(UNIX)


def is_secure(location: str) -> bool:
    return location.startswith(TLS)


def opening(host: str, name: str, *, secure: bool = False) -> str:
    """What Flight is told to listen at: its own socket in a folder, any free port of a machine."""
    if is_folder(host):
        return f"{UNIX}{host}/{name}"
    return f"{TLS if secure else PLAIN}{host}:0"


def opened(asked: str, port: int) -> str:
    """Where it listens then."""
    return asked if is_unix(asked) else f"{asked.removesuffix(':0')}:{port}"


def host_of(location: str) -> str:
    """The machine of a location."""
    if is_unix(location):
        return THIS_MACHINE
    return location.partition("://")[2].rpartition(":")[0]


def refuses(location: str, timeout: float) -> bool:
    """A broken call has many causes; a refused connection has one: nobody listens there any more.

    A Unix socket that has no file has the same: whoever closes one in order removes it.
    """
    try:
        with _connection(location, timeout):
            return False
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except OSError:
        return False


def words(location: str) -> str:
    """How whoever speaks to it does."""
    if is_unix(location):
        return "Unix sockets"
    return "TLS" if is_secure(location) else "plain TCP"


def _connection(location: str, timeout: float) -> socket.socket:
    """A bare one, on which nothing was said yet."""
    if is_unix(location):
        made = socket.socket(socket.AF_UNIX)
        try:
            made.settimeout(timeout)
            made.connect(location.removeprefix(UNIX))
        except BaseException:
            made.close()
            raise
        return made
    host, _, port = location.partition("://")[2].rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout)
