from __future__ import annotations

import random

import pytest
from overlay_kit import Table, at

from holdfast.ring.overlay.events import Collect, Publish, Received, Silent, Subscribe, Tick, Unreached, Unsubscribe
from holdfast.ring.overlay.instructions import Gathered, Hear, Send
from holdfast.ring.overlay.messages import Ask, Attach, Cast, Part
from holdfast.ring.overlay.node import Node
from holdfast.ring.overlay.settings import Settings

ROUND = [at(digit, rest) for digit in range(16) for rest in (1 << 100, 1 << 123)]
GROUP = at(0x8, 1 << 101)
MEMBERS = ROUND[1::3]


@pytest.fixture
def table() -> Table:
    made = Table(Settings(bits=1, leaves=4))
    made.seat(*random.Random(1).sample(ROUND, len(ROUND)))  # in order, the root would be everybody's first choice
    made.ticks(40)
    for member in MEMBERS:
        made.give(member, Subscribe(GROUP))
    made.told.clear()
    return made


def hearers(table: Table, payload: object) -> list[int]:
    return sorted(own for own, one in table.of(Hear) if isinstance(one, Hear) and one.payload == payload)


def gathered(table: Table) -> Gathered:
    [(_, one)] = table.of(Gathered)
    assert isinstance(one, Gathered)
    return one


def inner(table: Table) -> int:
    """A node between the root and members."""
    for own, node in table.nodes.items():
        tree = node.groups.trees.get(GROUP)
        if tree and tree.parent is not None and tree.children:
            return own
    raise AssertionError("the tree has no inner node")


def die(table: Table, dead: int) -> None:
    del table.nodes[dead]
    for _ in range(6):
        for own, node in table.nodes.items():
            table.give(own, Tick())
            if dead in node.leaves:
                table.give(own, Silent(dead))


def test_everyone_in_the_tree_hangs_on_one_root(table: Table) -> None:
    trees = {own: node.groups.trees[GROUP] for own, node in table.nodes.items() if GROUP in node.groups.trees}
    assert [own for own, tree in trees.items() if tree.parent is None] == [at(0x8, 1 << 100)]
    for own, tree in trees.items():
        assert tree.parent is None or own in trees[tree.parent].children
    assert set(MEMBERS) <= trees.keys()
    assert len(trees) < len(ROUND), "not everybody has to forward"


def test_a_publication_reaches_every_member_once_from_anywhere(table: Table) -> None:
    for source in (ROUND[0], MEMBERS[0], at(0x8, 1 << 100)):
        table.give(source, Publish(GROUP, source))
        assert hearers(table, source) == MEMBERS


def test_a_gather_counts_every_member_once(table: Table) -> None:
    table.give(ROUND[0], Collect(GROUP, "who?"))
    found = gathered(table)
    assert sorted(found.value) == MEMBERS
    assert found.members == len(MEMBERS)
    assert found.whole
    assert found.question == "who?"


def test_a_group_without_members_gives_an_empty_answer() -> None:
    table = Table()
    table.seat(*ROUND[:6])
    table.give(ROUND[0], Collect(GROUP, "who?"))
    found = gathered(table)
    assert (found.value, found.members, found.whole) == (None, 0, True)


def test_when_an_inner_node_dies_its_children_find_another_parent(table: Table) -> None:
    dead = inner(table)
    die(table, dead)
    left = [member for member in MEMBERS if member != dead]
    table.give(ROUND[0], Publish(GROUP, "after"))
    assert hearers(table, "after") == left
    table.give(ROUND[0], Collect(GROUP, "who?"))
    assert sorted(gathered(table).value) == left


def test_when_the_root_dies_another_takes_its_place(table: Table) -> None:
    die(table, at(0x8, 1 << 100))
    members = [one for one in MEMBERS if one in table.nodes]
    table.give(ROUND[0], Publish(GROUP, "after"))
    assert hearers(table, "after") == members


def test_who_unsubscribes_hears_no_more_and_nobody_forwards_for_nothing(table: Table) -> None:
    for member in MEMBERS[1:]:
        table.give(member, Unsubscribe(GROUP))
    table.give(ROUND[0], Publish(GROUP, "few"))
    assert hearers(table, "few") == MEMBERS[:1]
    table.give(MEMBERS[0], Unsubscribe(GROUP))
    table.ticks(12)
    assert not any(node.groups.trees for node in table.nodes.values())


def test_a_doubled_publication_is_heard_once() -> None:
    table = Table()
    table.seat(*ROUND[:3])
    table.give(ROUND[1], Subscribe(GROUP))
    cast = Cast(GROUP, (ROUND[0], 0, 99), "twice")
    for sender in (ROUND[0], ROUND[2]):
        table.give(ROUND[1], Received(sender, cast))
    assert hearers(table, "twice") == [ROUND[1]]


def lonely_parent() -> tuple[Node, int, int]:
    """A root with two children that it can talk to only through this test."""
    table = Table()
    table.seat(*ROUND[:3])
    root = table.nodes[ROUND[0]]
    group = ROUND[0]
    for child in ROUND[1:3]:
        table.give(child, Subscribe(group))
    return root, ROUND[1], ROUND[2]


def test_a_child_that_is_lost_makes_the_gather_end_without_it_and_say_so() -> None:
    root, one, other = lonely_parent()
    asks = [send for send in root.handle(Collect(root.id, "q")) if isinstance(send, Send)]
    assert {send.to for send in asks if isinstance(send.message, Ask)} == {one, other}
    ask = asks[-1].message
    assert isinstance(ask, Ask)
    root.handle(Received(one, Part(ask.id, ("one",), 1, whole=True)))
    assert root.handle(Received(one, Part(ask.id, ("one",), 1, whole=True))) == [], "doubled"
    done = []
    for _ in range(4):
        root.handle(Tick())
        done += root.handle(Silent(other))
    assert Gathered(ask.id, root.id, "q", ("one",), 1, whole=False) in done


def test_who_is_asked_by_two_parents_counts_under_the_first() -> None:
    table = Table()
    table.seat(*ROUND[:3])
    child = table.nodes[ROUND[1]]
    table.give(child.id, Subscribe(GROUP))
    ask = Ask(GROUP, (ROUND[0], 0, 7), "q")
    table.carried.clear()
    table.give(child.id, Received(ROUND[0], ask))
    table.give(child.id, Received(ROUND[2], ask))
    parts = [(to, message) for _, to, message in table.carried if isinstance(message, Part)]
    assert parts == [(ROUND[0], Part(ask.id, (child.id,), 1, True)), (ROUND[2], Part(ask.id, None, 0, True))]


def test_a_gather_ends_even_if_a_child_never_answers() -> None:
    root, one, other = lonely_parent()
    root.handle(Collect(root.id, "q"))
    done = [told for _ in range(41) for child in (one, other) for told in keep_alive(root, child)]
    [found] = [told for told in done if isinstance(told, Gathered)]
    assert not found.whole


def keep_alive(root: Node, child: int) -> list[object]:
    return [*root.handle(Received(child, Attach(root.id))), *root.handle(Tick())]


def test_a_publication_that_does_not_reach_a_child_goes_again_a_few_times() -> None:
    root, one, _ = lonely_parent()
    [cast] = [send.message for send in root.handle(Publish(root.id, "x")) if isinstance(send, Send) and send.to == one]
    tries = 1
    for _ in range(10):
        root.handle(Unreached(one, cast))
        again = [told for told in root.handle(Tick()) if told == Send(one, cast)]
        if not again:
            break
        tries += len(again)
    assert tries == 1 + root._core.settings.patience
    assert one not in root.groups.trees[root.id].children
