"""Who stands at the door and has not shown a token yet: bounded in number, in time and in bytes.

Flight reads a call's whole message before anything of ours is asked, and has no setting for how much that may be. So a
stranger's 400 MB were in memory before his token was found to be wrong. Streams are different: there the doorkeeper is
asked first, and until somebody reads, flow control keeps all but 64 KiB at the sender's. Hence two rules. Our own calls
put nothing large into a message that is read ahead of the token (``wire.client``). And a connection over which no call
has been let in is a *stranger*, who is shown out when he has brought more than anybody needs for a first call, has
stood there too long, or when too many do: his socket is shut down. gRPC notices that as it does any peer's end.

gRPC does not give its sockets away either. So we look, forty times a second, which ones this process has open on its
port; the kernel counts their bytes. What runs over them is not touched. The alternative was a relay in front of the
port, which copies every byte once more. What was given up for that: the bound on bytes is soft, what a network brings
between two looks comes on top.

Where sockets are files in a private folder nobody but their user comes this far, and nothing is watched. Nor is it
where there is no ``/proc`` (anything but Linux).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from holdfast.wire.locations import UNIX

STRANGERS = 128
"""So many may stand there at once; of more those who have stood there longest go."""
STRANGER_SECONDS = 30.0
"""Whoever connects has something to say. A machine that stood still may need seconds to hear it."""
STRANGER_BYTES = 1 << 20
"""Some calls of several threads, each below ``client.ALONG`` and with its headers."""
LOOK_SECONDS = 0.025
_OPEN = "/proc/self/fd"
_RECEIVED = 128
"""Where Linux has the bytes received in its ``tcp_info``, since 4.1."""


class Peer(NamedTuple):
    host: str
    port: int


class Socket(NamedTuple):
    """One of gRPC's. Descriptors are given to others when they are closed, inodes are not."""

    descriptor: int
    inode: int


class Stranger(NamedTuple):
    socket: Socket
    since: float


class Threshold:
    """Of the place where a server of this process listens; watched if that is a TCP port."""

    def __init__(self, location: str, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._known: dict[int, Peer | None] = {}
        """Sockets that have been looked at, by their inode; None: not of our port."""
        self._strangers: dict[Peer, Stranger] = {}
        self._admitted: dict[Peer, float] = {}
        """When a call of theirs was let in last."""
        self._looked = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if not location.startswith(UNIX) and os.path.isdir(_OPEN):
            self._thread = threading.Thread(target=self._watch, daemon=True, name=f"threshold-{port}")
            self._thread.start()

    def admit(self, peer: str) -> None:
        """A call has shown a token; ``peer`` is how gRPC calls whoever made it."""
        who = _named(peer)
        self._admitted[who] = time.monotonic()
        if who in self._strangers:
            with self._lock:
                self._strangers.pop(who, None)

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        """Whoever has come since the last look is a stranger; those who are strangers for too long go."""
        sockets = _sockets()
        with self._lock:
            self._known = {inode: peer for inode, peer in self._known.items() if inode in sockets}
            for inode, descriptor in sockets.items():
                if inode not in self._known:
                    self._meet(Socket(descriptor, inode), now)
            here = set(self._known.values())
            self._strangers = {who: one for who, one in self._strangers.items() if who in here}
            for who in [who for who, at in self._admitted.items() if who not in here and at < now]:
                del self._admitted[who]
            self._looked = now
            newest_first = sorted(self._strangers.items(), key=lambda item: -item[1].since)
            for place, (who, stranger) in enumerate(newest_first):
                too_many, too_long = place >= STRANGERS, stranger.since < now - STRANGER_SECONDS
                if too_many or too_long or _brought(stranger.socket) > STRANGER_BYTES:
                    _show_out(stranger.socket)
                    del self._strangers[who]

    def _meet(self, found: Socket, now: float) -> None:
        peer = None
        with _held(found) as sock, contextlib.suppress(OSError):
            if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
                mine, its = sock.getsockname(), sock.getpeername()  # one that listens has no peer, and is none
                peer = Peer(_plain(its[0]), its[1]) if mine[1] == self._port else None
        self._known[found.inode] = peer
        if peer is None:
            return
        self._strangers[peer] = Stranger(found, now)
        # Its first call may have been quicker than this look. An older one was of another connection from that port.
        if self._admitted.get(peer, -1.0) >= self._looked:
            del self._strangers[peer]


def _sockets() -> dict[int, int]:
    """What this process has open: inode → descriptor."""
    found: dict[int, int] = {}
    for name in os.listdir(_OPEN):
        with contextlib.suppress(OSError):  # gone meanwhile
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[status.st_ino] = int(name)
    return found


@contextlib.contextmanager
def _held(wanted: Socket) -> Iterator[socket.socket | None]:
    """The socket itself, by a descriptor of our own; None if it is gone, whoever has its number now."""
    try:
        descriptor = os.dup(wanted.descriptor)
    except OSError:
        yield None
        return
    if os.fstat(descriptor).st_ino != wanted.inode:
        os.close(descriptor)
        yield None
        return
    with socket.socket(fileno=descriptor) as held:
        yield held


def _brought(stranger: Socket) -> int:
    with _held(stranger) as held, contextlib.suppress(OSError):
        if held is not None:
            told = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED + 8)
            if len(told) == _RECEIVED + 8:
                return int(struct.unpack_from("=Q", told, _RECEIVED)[0])
    return 0


def _show_out(stranger: Socket) -> None:
    with _held(stranger) as held, contextlib.suppress(OSError):
        if held is not None:
            held.shutdown(socket.SHUT_RDWR)


@lru_cache(maxsize=1024)
def _named(peer: str) -> Peer:
    """Of gRPC's ``ipv4:10.0.0.1:4711`` and ``ipv6:%5B::1%5D:4711``."""
    host, _, port = peer.partition(":")[2].rpartition(":")
    host = host.replace("%5B", "").replace("%5D", "").strip("[]")
    return Peer(_plain(host), int(port) if port.isdecimal() else 0)


def _plain(host: str) -> str:
    """One name for an address, however it is written."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
