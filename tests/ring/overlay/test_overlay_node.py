from __future__ import annotations

import pytest
from overlay_kit import Table, at

from holdfast.ring.overlay.core import Core, Seen
from holdfast.ring.overlay.events import Join, Leave, Lookup, Received, Silent, Tick, Unreached
from holdfast.ring.overlay.instructions import Arrived, Beat, Deliver, Joined, Lost, NeedContact, Send
from holdfast.ring.overlay.messages import Hello, Leaves, Refused, Route, Seek, Welcome, mentions, wire_bytes
from holdfast.ring.overlay.node import Node
from holdfast.ring.overlay.settings import Settings

ROUND = [at(digit) for digit in (0x1, 0x3, 0x5, 0x7, 0x9, 0xB, 0xD, 0xF)]


def ring(**settings: int) -> Table:
    table = Table(Settings(**{"leaves": 4, **settings}))
    table.seat(*ROUND)
    table.ticks(10)
    return table


def test_everyone_joins_and_knows_its_neighbours() -> None:
    table = ring()
    assert len(table.of(Joined)) == len(ROUND)
    for place, own in enumerate(ROUND):
        assert set(table.nodes[own].leaves) == {ROUND[(place + step) % 8] for step in (-2, -1, 1, 2)}


@pytest.mark.parametrize("start", ROUND)
def test_a_message_goes_to_the_nearest(start: int) -> None:
    table = ring()
    table.give(start, Lookup(at(0x6, 1), "found"))
    [(own, delivered)] = table.of(Deliver)
    assert isinstance(delivered, Deliver)
    assert own == at(0x7)
    assert delivered.payload == "found"


def test_a_leaf_is_lost_after_several_silent_ticks_in_a_row_and_not_before() -> None:
    node = ring().nodes[at(0x5)]
    for silent in (True, True, False, True, True):  # never three in a row
        node.handle(Tick())
        assert not any(isinstance(one, Lost) for one in (node.handle(Silent(at(0x7))) if silent else []))
    node.handle(Silent(at(0x7)))  # the same tick again does not count
    assert at(0x7) in node.leaves
    node.handle(Tick())
    assert Lost(at(0x7)) in node.handle(Silent(at(0x7)))
    assert at(0x7) not in node.leaves


def test_hearing_from_a_suspect_clears_it() -> None:
    node = ring().nodes[at(0x5)]
    for _ in range(2):
        node.handle(Tick())
        node.handle(Silent(at(0x7)))
    node.handle(Received(at(0x7), Hello(answer=False)))
    node.handle(Tick())
    node.handle(Silent(at(0x7)))
    assert at(0x7) in node.leaves


def test_the_ring_closes_over_a_dead_node_and_takes_it_back() -> None:
    table = ring()
    dead = table.nodes.pop(at(0x7))
    for _ in range(6):
        for own, node in table.nodes.items():
            table.give(own, Tick())
            if dead.id in node.leaves:
                table.give(own, Silent(dead.id))
    assert set(table.nodes[at(0x5)].leaves) == {at(0x1), at(0x3), at(0x9), at(0xB)}
    table.nodes[dead.id] = dead  # it was only cut off
    table.ticks(table.settings.probe_gap + 2)
    assert set(table.nodes[at(0x5)].leaves) == {at(0x1), at(0x3), at(0x7), at(0x9)}


def test_someone_who_leaves_is_missed_at_once() -> None:
    table = ring()
    table.give(at(0x7), Leave())
    del table.nodes[at(0x7)]
    assert all(at(0x7) not in node.leaves for node in table.nodes.values())
    assert {own for own, one in table.of(Lost) if one == Lost(at(0x7), left=True)} >= {at(0x5), at(0x9)}
    table.ticks(2)
    assert set(table.nodes[at(0x5)].leaves) == {at(0x1), at(0x3), at(0x9), at(0xB)}


def test_a_hop_that_fails_is_replaced_and_the_message_arrives() -> None:
    table = ring(patience=1)
    del table.nodes[at(0x7)]
    for start in table.nodes:
        table.give(start, Lookup(at(0x7) - 5, start))
    places = {one.payload: own for own, one in table.of(Deliver) if isinstance(one, Deliver)}
    assert places == dict.fromkeys(table.nodes, at(0x5))


def test_a_receipt_that_does_not_come_makes_the_message_go_again_and_it_is_delivered_once() -> None:
    table = ring()
    source, goal = table.nodes[at(0x1)], at(0x9)
    sent = [one for one in source.handle(Lookup(goal, "x", receipt=True)) if isinstance(one, Send)]
    assert len(sent) == 1  # and this one gets lost without anybody noticing: its holder dies
    table.ticks(table.settings.retry_every + 1)
    assert [one.at for _, one in table.of(Arrived) if isinstance(one, Arrived)] == [goal]
    assert isinstance(sent[0].message, Route)
    table.give(sent[0].to, Received(source.id, sent[0].message))  # the first one after all, late
    assert len(table.of(Deliver)) == 1


def test_outside_the_ring_messages_are_refused_and_contacts_asked_for() -> None:
    node = Node(at(0x2), Settings(patience=2))
    assert node.handle(Join(at(0x9))) == [Send(at(0x9), Seek(at(0x2), rows=True))]
    route = Route((at(0x9), 0, 1), at(0x2), None)
    assert node.handle(Received(at(0x9), route)) == [Send(at(0x9), Refused(route))]
    asked = [one for _ in range(4) for one in node.handle(Tick())]
    assert asked.count(NeedContact()) == 2
    assert asked.count(Send(at(0x9), Seek(at(0x2), rows=True))) == 4
    assert Joined() in node.handle(Received(at(0x9), Welcome(())))
    assert node.leaves == (at(0x9),)


def test_a_refused_message_takes_another_way() -> None:
    table = ring()
    node = table.nodes[at(0x5)]
    [sent] = [one for one in node.handle(Lookup(at(0xD), "x")) if isinstance(one, Send)]
    again = [one for one in node.handle(Received(sent.to, Refused(sent.message))) if isinstance(one, Send)]
    assert any(isinstance(one.message, Route) and one.to != sent.to for one in again)


def test_a_restarted_node_finds_its_place_although_others_think_it_never_left() -> None:
    table = ring()
    table.nodes[at(0x7)] = Node(at(0x7), table.settings, incarnation=1)
    table.give(at(0x7), Join(at(0xF)))
    table.ticks(2)
    assert set(table.nodes[at(0x7)].leaves) == {at(0x3), at(0x5), at(0x9), at(0xB)}
    table.give(at(0x7), Lookup(at(0x1), "after"))
    assert len(table.of(Deliver)) == 1


def test_rumours_become_leaves_only_when_they_answer() -> None:
    table = ring()
    ghost = at(0x6)
    table.give(at(0x5), Received(at(0x7), Leaves((ghost,))))
    assert (at(0x5), ghost, Hello(answer=True)) in table.carried
    assert ghost not in table.nodes[at(0x5)].leaves


def test_heartbeats_go_to_the_leaves_and_nothing_is_ever_sent_to_oneself() -> None:
    table = ring()
    node = table.nodes[at(0x5)]
    assert Beat(node.leaves) in node.handle(Tick())
    assert all(sender != receiver for sender, receiver, _ in table.carried)


def test_the_same_events_give_the_same_instructions() -> None:
    first, second = ring(), ring()
    assert first.carried == second.carried
    assert first.told == second.told


def test_ids_of_messages_are_remembered_for_a_while_and_not_for_ever() -> None:
    core = Core(1, Settings(remember=10), 0, lambda one, other: one)
    seen = Seen(core)
    assert seen.first((1, 0, 1))
    core.tick = 11
    assert seen.first((1, 0, 2))
    assert not seen.first((1, 0, 1))
    for core.tick in (22, 33):
        seen.first((1, 0, core.tick))
    assert seen.first((1, 0, 1))


def test_messages_tell_whose_addresses_their_reader_needs() -> None:
    assert set(mentions(Welcome((3, 4)))) == {3, 4}
    assert set(mentions(Refused(Seek(7, rows=True)))) == {7}
    assert wire_bytes(Welcome((3, 4))) > wire_bytes(Welcome((3,))) > wire_bytes(Hello(answer=True))


def test_a_lookup_before_joining_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="not part of a ring"):
        Node(at(1)).handle(Lookup(at(2)))


def test_unreached_nodes_of_the_table_are_replaced_from_the_same_row() -> None:
    table = ring()
    node = table.nodes[at(0x1)]
    stranger = next(one for one in node.view.table.peers if one not in node.leaves)
    asked = node.handle(Unreached(stranger, Hello(answer=False)))
    assert stranger not in node.view.table.peers
    assert any(type(one) is Send and type(one.message).__name__ == "AskRow" for one in asked)
