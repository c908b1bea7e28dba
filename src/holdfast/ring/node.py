"""The shell of one node of the ring in a container: a thread, a clock, and the post.

The machine (``holdfast.ring.overlay``) knows ids only; here is the book of addresses, which travel with every letter
for all ids that it mentions. Whoever listens is called in the ring's own thread and must not stay there.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ContainerError, HoldfastError
from holdfast.ids import distance, id_of
from holdfast.ring.messages import AskLeaves, Letter, RingTerms
from holdfast.ring.overlay import events as ev
from holdfast.ring.overlay import instructions as do
from holdfast.ring.overlay.node import Node
from holdfast.ring.post import Post
from holdfast.ring.standing import NOWHERE, Standing
from holdfast.wire.client import Client, Unreachable
from holdfast.wire.messages import Address

LOOKUP_SECONDS = 3.0
SPARE = 8
"""Peers at once that are no leaves: of the routing table, or on their way in."""
MOST_EVENTS = 4096
"""That wait to be read; whoever writes more is told to write again later."""


@dataclass(frozen=True)
class Asked(ev.Event):
    """Where does this node stand in the group's tree? For the ring's own thread, which alone knows."""

    group: int
    answer: queue.SimpleQueue[Standing]


def _nobody(_: int, __: Any) -> None:
    """Hears it."""


class Ring:
    """``lost`` is told the container that is no leaf any more, ``found`` the one that has become a leaf."""

    def __init__(
        self,
        me: Address,
        token: str,
        terms: RingTerms,
        lost: Callable[[str], None],
        found: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.me = me
        self._token, self._terms = token, terms
        self._lost, self._found = lost, found
        self._node = Node(id_of(me.container), terms.settings)
        self._lock = threading.Lock()
        self._book: dict[int, Address] = {self._node.id: me}
        self._neighbours: tuple[Address, ...] = ()
        self._full = False
        self._homes: dict[int, queue.SimpleQueue[int]] = {}  # key → where a lookup says it was delivered
        self._heard: Callable[[int, Any], None] = _nobody
        self._delivered: Callable[[int, Any], None] = _nobody
        self._contact = 0
        self._unheard: set[int] = set()
        """Peers that have not answered the last heartbeat yet."""
        self._events: queue.SimpleQueue[ev.Event | None] = queue.SimpleQueue()
        timeout, at_once = max(1.0, 2 * terms.tick), terms.leaves + SPARE
        self._post = Post(me, token, timeout, at_once, self._address, self._events.put, self._unheard.discard)
        self._thread = threading.Thread(target=self._run, daemon=True, name="holdfast-ring")
        self._thread.start()

    # --- from outside -------------------------------------------------------------------------------------

    def meet(self, contacts: Iterable[Address]) -> None:
        """Join the ring of these; without any, begin one. Rings that hear of each other become one."""
        others = [contact for contact in contacts if contact.container != self.me.container]
        self._note(others)
        for other in others:
            self._events.put(ev.Join(id_of(other.container)))
        if not others:
            self._events.put(ev.Join())

    def receive(self, letter: Letter) -> None:
        if self._events.qsize() + len(letter.messages) > MOST_EVENTS:
            raise ContainerError(
                f"{self.me.container} has {self._events.qsize()} messages to read already.",
                safe="Nothing of the letter was read.",
                todo="Whoever sent it takes it for unreached, as if the line were bad, and the ring sends again.",
            )
        self._note([letter.sender, *letter.addresses])
        peer = id_of(letter.sender.container)
        self._unheard.discard(peer)  # whoever writes is there
        for message in letter.messages:
            self._events.put(ev.Received(peer, message))

    def ended(self, container: str) -> None:
        """Somebody who knows for certain says that this one is no more."""
        self._events.put(ev.Ended(id_of(container)))

    @property
    def neighbours(self) -> tuple[Address, ...]:
        """The leaves, as of the last change."""
        return self._neighbours

    @property
    def beyond(self) -> bool:
        """There may be containers that are no leaves of this one."""
        return self._full

    def leaf(self, key: int) -> tuple[Address, ...]:
        """The containers around a key, the nearest first: leaf(key), this one included where it is one of them."""
        around: Sequence[Address] = (self.me, *self._neighbours)
        if self._full:  # there may be others: whoever is nearest to the key knows
            home = self._home(key)
            if home is not None and home.container != self.me.container:
                around = (home, *self._leaves_of(home))
        return tuple(sorted(around, key=lambda one: distance(key, id_of(one.container))))[: self._terms.leaves]

    def find(self, container: str) -> Address | None:
        """Where it is, if it was ever heard of and is not known to have ended."""
        return self._address(id_of(container))

    # --- groups -------------------------------------------------------------------------------------------

    def listen(self, heard: Callable[[int, Any], None], delivered: Callable[[int, Any], None]) -> None:
        """``heard`` is told what is published for a group of which this container is a member, ``delivered`` what is
        routed to a key that this container is the nearest to."""
        self._heard, self._delivered = heard, delivered

    def subscribe(self, group: int) -> None:
        self._events.put(ev.Subscribe(group))

    def unsubscribe(self, group: int) -> None:
        self._events.put(ev.Unsubscribe(group))

    def publish(self, group: int, payload: Any) -> None:
        """To all members of a group, once to each, or not at all."""
        self._refuse_outside()
        self._events.put(ev.Publish(group, payload))

    def route(self, key: int, payload: Any) -> None:
        """To the nearest to a key; it is lost with whoever has it in hands."""
        self._refuse_outside()
        self._events.put(ev.Lookup(key, payload))

    def standing(self, group: int) -> Standing:
        """Where this container stands in the group's tree at this moment, as of all that was asked for before."""
        answer: queue.SimpleQueue[Standing] = queue.SimpleQueue()
        self._events.put(Asked(group, answer))
        try:
            return answer.get(timeout=LOOKUP_SECONDS)
        except queue.Empty:
            raise ContainerError(
                f"The ring does not say where {self.me.container} stands.",
                safe="Nothing was changed.",
                todo="The container is too busy, or about to end: ask again a little later.",
            ) from None

    def _refuse_outside(self) -> None:
        if not self._node.joined:
            raise ContainerError(
                f"{self.me.container} is not part of the ring yet.",
                safe="Nothing was sent.",
                todo="Try again a little later: a container takes part some ticks after its start.",
            )

    def close(self) -> None:
        self._events.put(None)
        self._thread.join()
        self._post.close()

    # --- the ring's own thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        due = time.monotonic() + self._terms.tick
        while True:
            try:
                event = self._events.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                event = ev.Tick()
                # A process that slept does not make up for its ticks: its peers were not silent meanwhile.
                due = time.monotonic() + self._terms.tick
            if event is None:
                return
            try:
                self._take(event)
            except Exception:  # a defect: one event less, but a ring that goes on
                traceback.print_exc(file=sys.stderr)

    def _take(self, event: ev.Event) -> None:
        if isinstance(event, Asked):
            event.answer.put(self._standing(event.group))
            return
        if isinstance(event, ev.Lookup) and not self._node.joined:
            return
        for instruction in self._node.handle(event):
            self._perform(instruction)
        if isinstance(event, ev.Ended):
            with self._lock:
                self._book.pop(event.peer, None)

    def _perform(self, instruction: do.Instruction) -> None:
        match instruction:
            case do.Send(to, message):
                self._post.send(to, message)
            case do.Beat(peers):
                for peer in peers:
                    if peer in self._unheard:
                        self._events.put(ev.Silent(peer))
                    self._unheard.add(peer)
                    self._post.send(peer, None)
            case do.NeedContact():
                self._try_another()
            case do.Arrived(payload=key, at=at):
                waiting = self._homes.get(key)
                if waiting is not None:
                    waiting.put(at)
            case do.Hear(group=group, payload=payload):
                self._heard(group, payload)
            case do.Deliver(key=key, payload=payload):
                self._delivered(key, payload)
            case do.Joined():
                self._look()
            case do.Found(peer):
                self._look()
                here = self._address(peer)
                if here is not None:
                    self._found(here.container)
            case do.Lost(peer):
                gone = self._address(peer)
                self._look()
                if gone is not None:
                    self._lost(gone.container)

    def _look(self) -> None:
        with self._lock:
            self._full = self._node.view.leaves.full
            self._neighbours = tuple(self._book[peer] for peer in self._node.leaves if peer in self._book)

    def _standing(self, group: int) -> Standing:
        if not self._node.joined:
            return NOWHERE
        hop, _ = self._node.view.next_hop(group)
        tree = self._node.groups.trees.get(group)
        if tree is None:
            return Standing(hop is None, None, ())
        with self._lock:
            named = {one: self._book[one].container for one in (tree.parent, *tree.children) if one in self._book}
        parent = None if tree.parent is None else named.get(tree.parent)
        return Standing(hop is None, parent, tuple(sorted(named[one] for one in tree.children if one in named)))

    def _try_another(self) -> None:
        """All that are known may be dead, or cut off together with us: one after the other of all we ever heard of."""
        with self._lock:
            others = [one for one in self._book if one != self._node.id and one not in self._node.leaves]
        if others:
            self._contact += 1
            self._events.put(ev.Join(others[self._contact % len(others)]))

    # --- addresses and lookups ----------------------------------------------------------------------------

    def _note(self, addresses: Iterable[Address]) -> None:
        with self._lock:
            for address in addresses:
                self._book.setdefault(id_of(address.container), address)

    def _address(self, peer: int) -> Address | None:
        with self._lock:
            return self._book.get(peer)

    def _home(self, key: int) -> Address | None:
        """Who is nearest to the key, by a lookup through the ring; None if nobody says so in time."""
        answers = self._homes.setdefault(key, queue.SimpleQueue())
        self._events.put(ev.Lookup(key, key, receipt=True))
        try:
            return self._address(answers.get(timeout=LOOKUP_SECONDS))
        except queue.Empty:
            return None
        finally:
            self._homes.pop(key, None)

    def _leaves_of(self, home: Address) -> tuple[Address, ...]:
        try:
            with Client(home, self._token) as client:
                found = client.call(AskLeaves(), timeout=LOOKUP_SECONDS).leaves
        except (Unreachable, HoldfastError):
            return ()
        self._note(found)
        return found
