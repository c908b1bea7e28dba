"""Messages of the ring on their way to peers: one letter at a time to each, all peers at once.

Whoever is silent costs a worker until the call gives up; after each letter a peer queues up again behind the others, so
that silent ones never keep heartbeats from those who live. A letter is one Flight action with all messages that wait
for that peer, so a call that succeeds is also the answer to a heartbeat. A refused connection, or a stranger on the
peer's port, is evidence that it has ended; anything else that fails is silence.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from holdfast.errors import HoldfastError, TokenError
from holdfast.ring.messages import Letter
from holdfast.ring.overlay.events import Ended, Event, Unreached
from holdfast.ring.overlay.messages import Message, mentions
from holdfast.wire.client import Client, Unreachable, is_refused
from holdfast.wire.messages import Address

MOST_WAITING = 256
LETTER = 64
"""Messages in one letter at most."""
Entry = Message | None
"""None is a heartbeat."""


class Post:
    def __init__(
        self,
        me: Address,
        token: str,
        timeout: float,
        at_once: int,
        book: Callable[[int], Address | None],
        tell: Callable[[Event], None],
        heard: Callable[[int], None],
    ) -> None:
        self._me, self._token, self._timeout = me, token, timeout
        self._book, self._tell, self._heard = book, tell, heard
        self._lock = threading.Lock()
        self._waiting: dict[int, deque[Entry]] = {}
        self._clients: dict[int, Client] = {}
        self._closed = False
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="holdfast-ring-post")

    def send(self, peer: int, entry: Entry) -> None:
        with self._lock:
            if self._closed:
                return
            waiting = self._waiting.get(peer)
            if waiting is not None:  # somebody is at it
                full = len(waiting) >= MOST_WAITING
                if not full and not (entry is None and None in waiting):
                    waiting.append(entry)
                if not full:
                    return
            else:
                self._waiting[peer] = deque([entry])
                self._pool.submit(self._serve, peer)
                return
        self._failed(peer, [entry])

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._waiting.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    def _serve(self, peer: int) -> None:
        """One letter; if more is waiting by then, another one in its turn."""
        with self._lock:
            waiting = self._waiting.get(peer, ())
            entries = [waiting.popleft() for _ in range(min(LETTER, len(waiting)))] if waiting else []
        if entries:
            try:
                self._deliver(peer, entries)
            except Exception:  # a defect, or an address that is none: about this letter only
                traceback.print_exc(file=sys.stderr)
                self._failed(peer, entries)
        with self._lock:
            if self._closed:
                return
            if self._waiting.get(peer):
                self._pool.submit(self._serve, peer)
            else:
                self._waiting.pop(peer, None)

    def _deliver(self, peer: int, entries: list[Entry]) -> None:
        address = self._book(peer)
        if address is None:
            self._failed(peer, entries)
            return
        try:
            self._client(peer, address).call(self._letter(entries), timeout=self._timeout)
            self._heard(peer)
        except TokenError:  # a stranger listens on its port
            self._ended(peer, entries)
        except Unreachable:
            if is_refused(address, self._timeout):
                self._ended(peer, entries)
            else:
                self._failed(peer, entries)
        except HoldfastError:
            self._failed(peer, entries)

    def _letter(self, entries: list[Entry]) -> Letter:
        messages = tuple(entry for entry in entries if entry is not None)
        named = {one: self._book(one) for message in messages for one in mentions(message)}
        return Letter(self._me, messages, tuple(one for one in named.values() if one is not None))

    def _client(self, peer: int, address: Address) -> Client:
        with self._lock:
            client = self._clients.get(peer)
            if client is None:
                client = self._clients[peer] = Client(address, self._token)
            return client

    def _failed(self, peer: int, entries: list[Entry]) -> None:
        for entry in entries:
            if entry is not None:  # a heartbeat that nobody answers is missed by whoever waits for it
                self._tell(Unreached(peer, entry))

    def _ended(self, peer: int, entries: list[Entry]) -> None:
        self._tell(Ended(peer))
        with self._lock:
            client = self._clients.pop(peer, None)
        if client is not None:
            client.close()
        self._failed(peer, entries)
