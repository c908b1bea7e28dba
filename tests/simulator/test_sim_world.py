from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import FullDiskError
from simulator.disks import Disk
from simulator.links import Links, Speed
from simulator.network import Network, Weather, name, text
from simulator.world import World


class Ear:
    """A host that writes down what reaches it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.got: list[tuple[float, str, Any, Any]] = []

    def receive(self, sender: Any, message: Any) -> None:
        self.got.append((self.world.now, "receive", sender, message))

    def unreached(self, peer: Any, message: Any) -> None:
        self.got.append((self.world.now, "unreached", peer, message))

    def silent(self, peer: Any) -> None:
        self.got.append((self.world.now, "silent", peer, None))

    def kinds(self) -> list[str]:
        return [kind for _, kind, _, _ in self.got]


def pair(**weather: float) -> tuple[Network, Ear, Ear]:
    network = Network(World(1), Weather(**weather))
    a, b = Ear(network.world), Ear(network.world)
    network.hosts = {"a": a, "b": b}
    return network, a, b


# ------------------------------------------------------------------------------------------------------- time


def test_things_happen_in_order_of_time_then_of_asking() -> None:
    world, seen = World(1), list[str]()
    world.at(2.0, seen.append, "late")
    world.at(1.0, seen.append, "first")
    world.at(1.0, seen.append, "second")
    world.run(1.5)
    assert seen == ["first", "second"]
    assert world.now == 1.5
    world.run(2.0)
    assert seen == ["first", "second", "late"]


# ---------------------------------------------------------------------------------------------------- network


def test_a_fair_network_delivers_once_within_its_delay() -> None:
    network, _, b = pair(delay=0.1, jitter=0.1)
    network.send("a", "b", "hello")
    network.world.run(1.0)
    [(at, kind, sender, message)] = b.got
    assert (kind, sender, message) == ("receive", "a", "hello")
    assert 0.1 <= at <= 0.2


def test_what_is_lost_or_finds_nobody_is_reported_to_its_sender() -> None:
    network, a, b = pair(loss=1.0, timeout=0.5)
    network.send("a", "b", 1)
    network.world.run(1.0)
    assert (a.kinds(), b.got) == (["unreached"], [])
    assert a.got[0][0] == 0.5
    network.calm()
    network.send("a", "nobody", 2)
    network.world.run(2.0)
    assert a.kinds() == ["unreached", "unreached"]


def test_over_many_messages_all_kinds_of_faults_show() -> None:
    network, a, b = pair(loss=0.2, doubled=0.2, late=0.2, delay=0.01, jitter=0.01, timeout=0.3)
    for number in range(1000):
        network.world.at(0.001 * number, network.send, "a", "b", number)
    network.world.run(60.0)
    arrived = [message for _, _, _, message in b.got]
    reported = {message for _, _, _, message in a.got}
    assert len(set(arrived)) < 1000, "some are lost"
    assert len(arrived) > len(set(arrived)), "some come twice"
    assert arrived != sorted(arrived), "some overtake others"
    assert set(range(1000)) - set(arrived) <= reported, "what did not arrive is reported"
    assert set(arrived) & reported, "and some that did arrive, too"


def test_a_cut_stops_messages_and_heartbeats_until_it_heals() -> None:
    network, a, b = pair(timeout=0.3)
    network.part(["a"])
    network.send("a", "b", 1)
    network.beat("a", ("b",))
    network.world.run(1.0)
    assert sorted(a.kinds()) == ["silent", "unreached"]
    network.heal()
    network.send("a", "b", 2)
    network.beat("a", ("b",))
    network.world.run(2.0)
    assert len(a.got) == 2
    assert [message for _, _, _, message in b.got] == [2]


def test_heartbeats_of_the_dead_are_missed() -> None:
    network, a, _ = pair()
    network.beat("a", ("b", "gone"))
    network.world.run(1.0)
    assert [peer for _, _, peer, _ in a.got] == ["gone"]
    assert network.heartbeats == 2


def test_a_slow_host_takes_one_message_after_the_other() -> None:
    network, a, b = pair(delay=0.0, jitter=0.0, timeout=0.45)
    network.slow = {"b": 0.2}
    for number in range(4):
        network.send("a", "b", number)
    network.world.run(5.0)
    assert [round(at, 3) for at, _, _, _ in b.got] == [0.2, 0.4, 0.6, 0.8]
    assert [message for _, _, _, message in a.got] == [2, 3], "whose callers gave up"


def test_bytes_are_counted_by_sender_when_asked_for() -> None:
    network, _, _ = pair()
    network.sizes = len
    network.send("a", "b", "12345")
    network.beat("b", ("a",))
    assert network.bytes == {"a": 5, "b": network.heartbeat_bytes}


def test_traces_are_short() -> None:
    assert name(0xAB << 120) == "ab000000"
    assert text((1 << 120, (1, 2, 3, 4, 5))) == "(01000000, <5>)"


# ------------------------------------------------------------------------------------------------------ links


def finished(links: Links, *transfers: tuple[str, str, float]) -> list[float]:
    """When each of these, begun together, has arrived."""
    times = [0.0] * len(transfers)

    def done(number: int) -> None:
        times[number] = links.world.now

    for number, (sender, to, size) in enumerate(transfers):
        links.transfer(sender, to, size, lambda number=number: done(number))  # type: ignore[misc]
    links.world.run(1e9)
    return times


def test_one_transfer_takes_as_long_as_the_slower_side_needs() -> None:
    links = Links(World(1), Speed(up=10.0, down=100.0))
    assert finished(links, ("a", "b", 50.0)) == pytest.approx([5.0])


def test_transfers_share_a_link_and_the_rest_speeds_up_when_one_ends() -> None:
    links = Links(World(1), Speed(up=100.0, down=10.0))
    assert finished(links, ("a", "z", 10.0), ("b", "z", 20.0)) == pytest.approx([2.0, 3.0])


def test_what_a_slow_sender_leaves_goes_to_the_others() -> None:
    links = Links(World(1), Speed(up=100.0, down=100.0))
    links.speeds["slow"] = Speed(up=10.0, down=100.0)
    assert finished(links, ("slow", "z", 10.0), ("b", "z", 90.0)) == pytest.approx([1.0, 1.0])


def test_a_node_that_dies_takes_its_transfers_with_it() -> None:
    world = World(1)
    links, told = Links(world, Speed(10.0, 10.0)), list[str]()
    links.transfer("a", "z", 100.0, lambda: told.append("done"), lambda: told.append("failed"))
    links.transfer("b", "z", 50.0, lambda: told.append(f"b at {world.now:g}"))
    world.at(2.0, links.die, "a")
    world.run(100.0)
    assert told == ["failed", "b at 6"]  # 10 bytes in the first two seconds, then the whole link


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(5, 9), st.integers(1, 1000)), min_size=1, max_size=15))
def test_no_link_carries_more_than_it_can_and_every_byte_arrives(transfers: list[tuple[int, int, int]]) -> None:
    chance = random.Random(str(transfers))
    links = Links(World(1), Speed(7.0, 11.0))
    links.speeds = {node: Speed(chance.uniform(1, 20), chance.uniform(1, 20)) for node in range(0, 10, 2)}
    left = len(transfers)

    def done() -> None:
        nonlocal left
        left -= 1

    for sender, to, size in transfers:
        links.world.at(chance.random() * 50, links.transfer, sender, to, float(size), done)
    while left:
        links.world.run_for(5.0)
        for node in range(10):
            speed = links.speeds.get(node, links.default)
            assert links.rate((node, "up")) <= speed.up * (1 + 1e-9)
            assert links.rate((node, "down")) <= speed.down * (1 + 1e-9)
    for node in range(10):
        assert links.carried.get((node, "up"), 0.0) == pytest.approx(sum(s for a, _, s in transfers if a == node))
        assert links.carried.get((node, "down"), 0.0) == pytest.approx(sum(s for _, b, s in transfers if b == node))


# ------------------------------------------------------------------------------------------------------ disks


def test_a_full_disk_refuses_and_keeps_what_it_has() -> None:
    disk = Disk(capacity=10, bytes_per_second=100)
    assert disk.put("a", b"12345") == pytest.approx(0.05)
    with pytest.raises(FullDiskError, match="No room for the 6 bytes of b"):
        disk.put("b", b"123456")
    disk.put("a", b"1234567890")  # in place of the old one it fits
    assert (disk.names(), disk.get("a")) == (["a"], b"1234567890")
    disk.delete("a")
    disk.fill()
    with pytest.raises(FullDiskError):
        disk.put("b", b"1")
    with pytest.raises(FileNotFoundError):
        disk.get("a")


def test_corruption_is_silent_and_one_bit() -> None:
    disk = Disk(capacity=1000)
    disk.put("a", bytes(100))
    disk.corrupt("a", random.Random(1))
    assert sum(byte.bit_count() for byte in disk.get("a")) == 1


def test_a_crash_spares_what_was_synced_and_not_all_of_the_rest() -> None:
    disk = Disk(capacity=10_000)
    for number in range(30):
        disk.put(f"synced-{number}", b"x" * 10)
        disk.put(f"hoped-{number}", b"x" * 10, sync=False)
    disk.crash(random.Random(1))
    left = [disk.get(file) for file in disk.names() if file.startswith("hoped")]
    assert sum(file.startswith("synced") for file in disk.names()) == 30
    assert len(left) < 30
    assert {len(one) for one in left} > {10}
    assert bytes(10) in left, "as long as it should be, and nothing in it"
    assert b"x" * 10 in left


def test_what_was_deleted_may_be_back_after_a_crash_and_is_what_it_was() -> None:
    disk = Disk(capacity=10_000)
    for number in range(30):
        disk.put(f"{number}", str(number).encode())
        disk.put(f"hoped-{number}", b"x", sync=False)
    for file in disk.names():
        disk.delete(file)
    disk.put("7", b"another")
    disk.crash(random.Random(1))
    assert disk.get("7") == b"another"
    back = set(disk.names()) - {"7"}
    assert 0 < len(back) < 29, "what was synced once, in part"
    assert all(disk.get(file) == file.encode() for file in back)
