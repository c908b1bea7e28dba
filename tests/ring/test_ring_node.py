"""The ring between real containers: who is there, who is lost, and that nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from container_kit import TOKEN, World, ring_at, until
from ring_kit import neighbours, settled, terms

from holdfast.errors import ContainerError, TokenError
from holdfast.ids import id_of
from holdfast.ring.messages import AskLeaves, AskPieces, Letter
from holdfast.ring.overlay.events import Unreached
from holdfast.ring.overlay.messages import Hello, Leaves, Message, Publication, Refused, Route, Seek
from holdfast.ring.post import LETTER, Post
from holdfast.wire.client import Address, Client
from holdfast.wire.codec import MessageError, from_plain, pack, unpack


def test_containers_find_each_other_and_notice_who_is_gone(tmp_path: Path) -> None:
    world = World(tmp_path, 5, processes=True, ring=terms())
    try:
        names = [f"c{number}" for number in range(5)]
        settled(world, *names)
        world.kill("c1")
        living = [name for name in names if name != "c1"]
        settled(world, *living)
        world.kill("c3")
        settled(world, "c0", "c2", "c4")
    finally:
        world.close()


def test_a_stopped_container_is_suspected_and_found_again(tmp_path: Path) -> None:
    patient = terms(patience=5)
    world = World(tmp_path, 3, processes=True, ring=patient)
    try:
        settled(world, "c0", "c1", "c2")
        os.kill(world.processes["c2"].pid, signal.SIGSTOP)
        until(lambda: "c2" not in neighbours(world, "c0") | neighbours(world, "c1"))
        os.kill(world.processes["c2"].pid, signal.SIGCONT)
        settled(world, "c0", "c1", "c2")
    finally:
        world.close()


def test_a_small_leaf_set_finds_the_containers_around_a_key(tmp_path: Path) -> None:
    """Seven containers that know four others each: who is near a key is found by a lookup."""
    from holdfast.ids import distance, id_of

    small = terms(leaves=4, bits=1)
    world = World(tmp_path, 7, ring=small)
    try:
        rings = {service.container: ring_at(service)._ring for service in world.services}
        until(lambda: all(len(neighbours(world, name)) == 5 for name in rings))
        for word in ("a", "b", "c"):
            key = id_of(word)
            nearest = sorted(rings, key=lambda name: distance(key, id_of(name)))
            for ring in rings.values():
                assert ring is not None
                until(lambda ring=ring, key=key, home=nearest[0]: ring.leaf(key)[0].container == home)
                assert len(ring.leaf(key)) == 4
    finally:
        world.close()


def test_only_the_containers_of_a_ring_are_heard(tmp_path: Path) -> None:
    world = World(tmp_path, 2, ring=terms())
    try:
        settled(world, "c0", "c1")
        letter = Letter(Address("c1", "nowhere"))
        address = world.clients["c0"].address
        with Client(address, "wrong") as stranger, pytest.raises(TokenError):
            stranger.call(letter)
        with Client(Address("c9", address.location), TOKEN) as mistaken, pytest.raises(TokenError):
            mistaken.call(letter)
    finally:
        world.close()


def test_a_ring_outlives_what_it_cannot_take(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An event that no machine understands, and an address that is none: said, and survived."""
    world = World(tmp_path, 2, ring=terms())
    try:
        settled(world, "c0", "c1")
        ring = ring_at(world.services[0])._ring
        assert ring is not None
        ring._events.put(object())
        ring.meet([Address("c8", "nowhere")])
        ring._post.send(id_of("c8"), Hello(answer=True))
        ring._post.send(id_of("c8"), Hello(answer=True))
        said: list[str] = []
        for word in ("KeyError", "nowhere"):
            until(lambda word=word: said.append(capfd.readouterr().err) or word in "".join(said))
        until(lambda: ring._post._waiting.get(id_of("c8")) is None)
        assert ring._thread.is_alive()
        world.services.pop(1).close()
        settled(world, "c0")
    finally:
        world.close()


def test_the_silent_do_not_keep_the_post_from_the_living(tmp_path: Path) -> None:
    """More peers that take a call and never answer than there are workers: a letter gets through between them."""
    world = World(tmp_path, 1, ring=terms())
    deaf = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
    book = {7: world.clients["c0"].address}
    book |= {
        number: Address(f"d{number}", f"grpc://127.0.0.1:{one.getsockname()[1]}")
        for number, one in enumerate(deaf, start=100)
    }
    told: list[Unreached] = []
    heard: list[int] = []
    post = Post(Address("me", "grpc://127.0.0.1:1"), TOKEN, 1.0, 2, book.get, told.append, heard.append)
    try:
        for peer in book:
            if peer != 7:
                for _ in range(LETTER * 3):
                    post.send(peer, Hello(answer=True))
        until(lambda: post.send(7, None) or heard)
        assert len(told) < 2 * len(deaf) * LETTER, "about one letter to each, not all that wait for it"
    finally:
        post.close()
        for one in deaf:
            one.close()
        world.close()


def test_a_letter_is_a_sign_of_life(tmp_path: Path) -> None:
    world = World(tmp_path, 1, ring=terms())
    try:
        ring = ring_at(world.services[0])._ring
        assert ring is not None
        ring._unheard.add(id_of("c5"))
        world.call("c0", Letter(Address("c5", "grpc://127.0.0.1:1")))
        assert id_of("c5") not in ring._unheard
    finally:
        world.close()


def test_a_job_without_shards_has_no_ring(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    try:
        with pytest.raises(ContainerError, match="not part of a ring"):
            world.call("c0", AskLeaves())
        with pytest.raises(ContainerError, match="keeps nothing on the ring"):
            world.call("c0", AskPieces(frozenset([0])))
    finally:
        world.close()


@pytest.mark.parametrize(
    "message",
    [
        Hello(answer=True),
        Seek(1 << 127, rows=True, hops=3),
        Leaves((1, 2, 1 << 100)),
        Route((5, 0, 9), 7, {"what": (1, "two")}, receipt=True),
        Refused(Route((5, 0, 9), 7, Publication(3, ("a", 1)))),
    ],
)
def test_messages_survive_the_wire(message: Message) -> None:
    letter = Letter(Address("c1", "nowhere"), (message, message))
    assert unpack(pack(letter), Letter) == letter


ROUTE = {"is": "Route", "id": [1, 0, 2], "key": 3, "payload": None}


ADDRESS = {"container": "c1", "location": "nowhere"}


@pytest.mark.parametrize(
    "letter",
    [
        {"sender": [1, 2]},
        {"sender": {"container": "c1"}},
        {"sender": ADDRESS, "addresses": [{"container": "c1", "location": None}]},
        {"sender": ADDRESS, "addresses": ["c1"]},
        {"sender": ADDRESS, "messages": [{"is": "Path", "pathsegments": []}]},
        {"sender": ADDRESS, "messages": [{"is": "Letter", "sender": ADDRESS}]},
    ],
)
def test_strange_letters_are_refused(letter: dict[str, object]) -> None:
    with pytest.raises(MessageError, match="is none"):
        from_plain(Letter, {"is": "Letter", **letter})


@pytest.mark.parametrize(
    "plain",
    [
        7,
        [],
        {"is": "os"},
        {"is": "Seek"},
        {"is": "Hello", "answer": True, "more": 2},
        {"is": "Hello", "answer": 1},
        {"is": "Seek", "origin": "7", "rows": True},
        {"is": "Seek", "origin": True, "rows": True},
        {"is": "Seek", "origin": -1, "rows": True},
        {"is": "Seek", "origin": 1 << 128, "rows": True},
        {"is": "Leaves", "leaves": 7},
        {"is": "Leaves", "leaves": [1, None]},
        {"is": "Leaves", "leaves": [[1]]},
        ROUTE | {"id": [1, 0]},
        ROUTE | {"id": [1, 0, 2.0]},
        ROUTE | {"payload": {"is": "Publication", "group": "g", "payload": 1}},
        {"is": "Refused", "message": 7},
        {"is": "Refused", "message": {"is": "Publication", "group": 1, "payload": 1}},
    ],
)
def test_anything_else_is_refused(plain: object) -> None:
    with pytest.raises(MessageError, match="is none"):
        from_plain(Message, plain)
