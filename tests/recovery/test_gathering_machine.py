"""The replacing node's machine, one event at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pytest

from holdfast.recovery.choice import Speeds
from holdfast.recovery.gathering import (
    Answered,
    Ask,
    Begin,
    Beyond,
    Came,
    Cancel,
    Done,
    Drop,
    Ended,
    Event,
    Failed,
    Gathering,
    Instruction,
    Keep,
    Lost,
    Pull,
    Waited,
)
from holdfast.recovery.policies import Auto, FromStore, Line, Star, Structure, Tree
from holdfast.safety.shards import Cut, Held, PieceName, Version

CUT = Cut(3, 2)
P = CUT.pieces(0)
OLD, NEW = Version(4), Version(6)
Kind = TypeVar("Kind", bound=Instruction)


def machine(policy: Structure | Auto | None = None, peers: str = "abc", slices: int = 1, **more: object) -> Gathering:
    return Gathering("here", CUT, dict.fromkeys(range(slices), tuple(peers)), policy or Star(), **more)  # type: ignore[arg-type]


def has(peer: str, *pieces: PieceName, version: Version = NEW) -> Answered:
    return Answered(peer, tuple(Held(piece, version, 100) for piece in pieces))


def give(gathering: Gathering, *events: Event) -> list[Instruction]:
    return [one for event in events for one in gathering.handle(event)]


def only(kind: type[Kind], told: list[Instruction]) -> list[Kind]:
    return [one for one in told if isinstance(one, kind)]


def begun(gathering: Gathering, *answers: Answered) -> dict[str, Pull]:
    """By who is pulled."""
    pulls = only(Pull, give(gathering, Begin(), *answers))
    return {pull.branch.at: pull for pull in pulls}


def test_it_asks_everyone_once_for_all_slices_and_pulls_when_all_have_answered() -> None:
    gathering = machine(slices=2)
    assert give(gathering, Begin()) == [Ask(peer, (0, 1)) for peer in "abc"]
    every = (*P, *CUT.pieces(1))
    assert give(gathering, has("a", *every), has("b", *every)) == []
    pulls = only(Pull, give(gathering, has("c", *every)))
    assert sorted(piece for pull in pulls for piece in pull.branch.all_pieces()) == sorted(every)
    assert all(set(pull.versions) <= {(0, NEW), (1, NEW)} for pull in pulls)


def test_what_was_told_at_the_beginning_is_not_asked_for() -> None:
    told = give(machine(), Begin((has("a", P[0], P[1]), has("b", P[2]))))
    assert only(Ask, told) == []
    assert {pull.branch.at: pull.branch.pieces for pull in only(Pull, told)} == {"a": P[:2], "b": P[2:]}


def test_it_asks_for_slices_of_which_it_was_told_too_little_and_pulls_the_others() -> None:
    gathering = machine(slices=2)
    told = give(gathering, Begin((has("a", *P, CUT.pieces(1)[0]),)))
    assert only(Ask, told) == [Ask(peer, (0, 1)) for peer in "abc"]
    assert [pull.branch.pieces for pull in only(Pull, told)] == [P]
    assert give(gathering, has("a", *P, CUT.pieces(1)[0]), has("b", *CUT.pieces(1))) == []
    pulls = only(Pull, give(gathering, Lost("c")))
    assert sorted(piece for pull in pulls for piece in pull.branch.pieces) == list(CUT.pieces(1))


def test_before_it_gives_up_it_asks_once_whatever_it_was_told() -> None:
    gathering = machine()
    (pull,) = only(Pull, give(gathering, Begin((has("a", *P),))))
    told = give(gathering, Failed(pull.number))
    assert told == [Drop(0, NEW), *(Ask(peer, (0,)) for peer in "bc")], "a is lost"
    (again,) = only(Pull, give(gathering, has("b", *P, version=OLD), has("c")))
    assert dict(again.versions) == {0: OLD}
    assert only(Beyond, give(gathering, Failed(again.number)))
    assert gathering.over


def test_uploads_that_are_about_the_same_count_as_the_same() -> None:
    nearly = [replace(has("a", *P), upload=100e6), replace(has("b", *P), upload=55e6), replace(has("c"), upload=1.0)]
    shares = [len(pull.branch.pieces) for pull in only(Pull, give(machine(), Begin(tuple(nearly))))]
    assert sorted(shares) == [1, 2]


def test_it_is_done_when_every_piece_has_come() -> None:
    gathering = machine()
    pulls = begun(gathering, has("a", P[0]), has("b", P[1]), has("c", P[2]))
    assert give(gathering, Came(pulls["a"].number, P[:1]), Ended(pulls["a"].number)) == [Keep(pulls["a"].number, P[:1])]
    assert not gathering.over
    give(gathering, Came(pulls["b"].number, P[1:2]))
    assert give(gathering, Came(pulls["c"].number, P[2:])) == [Keep(pulls["c"].number, P[2:]), Done(0, NEW)]
    assert gathering.over
    after = give(gathering, Ended(pulls["b"].number), Ended(pulls["c"].number), Lost("a"))
    assert all(isinstance(one, Cancel) for one in after), "nothing more is wanted"


def test_nothing_is_kept_twice() -> None:
    gathering = machine()
    pulls = begun(gathering, has("a", *P), has("b"), has("c"))
    came = Came(pulls["a"].number, P[:2])
    assert give(gathering, came, came) == [Keep(pulls["a"].number, P[:2])]


def test_a_star_pulls_so_many_at_a_time() -> None:
    gathering = machine(Star(2))
    first = begun(gathering, has("a", P[0]), has("b", P[1]), has("c", P[2]))
    assert len(first) == 2
    one = next(iter(first.values()))
    after = give(gathering, Came(one.number, one.branch.pieces), Ended(one.number))
    assert len(only(Pull, after)) == 1
    assert only(Pull, after)[0].branch.at not in first


def test_what_is_here_does_not_count_as_a_transfer() -> None:
    gathering = Gathering("a", CUT, {0: tuple("abc")}, Star(1))
    pulls = begun(gathering, has("a", P[0]), has("b", P[1], P[2]), has("c"))
    assert set(pulls) == {"a", "b"}


def test_a_lost_provider_is_replaced_for_what_is_missing_only() -> None:
    gathering = machine()
    pulls = begun(gathering, has("a", P[0], P[1]), has("b", P[0], P[1]), has("c", P[2]))
    assert set(pulls) == {"a", "b", "c"}
    (first,) = pulls["a"].branch.pieces
    give(gathering, Came(pulls["a"].number, (first,)))
    told = give(gathering, Lost("b"))
    assert Cancel(pulls["b"].number) in told
    (again,) = only(Pull, told)
    assert again.branch.at == "a"
    assert again.branch.pieces == pulls["b"].branch.pieces, "neither what came nor what is on its way"
    assert give(gathering, Came(pulls["b"].number, pulls["b"].branch.pieces)) == [], "a cancelled pull says nothing"


def test_a_loss_inside_a_branch_breaks_the_whole_branch() -> None:
    gathering = machine(Line(3))
    (pull,) = begun(gathering, has("a", P[0], P[1]), has("b", P[1], P[0]), has("c", P[2])).values()
    assert pull.branch.depth == 3
    (again,) = only(Pull, give(gathering, Failed(pull.number, ("b",), "reset")))
    assert "b" not in again.branch.nodes()
    assert set(again.branch.all_pieces()) == set(P)


@pytest.mark.parametrize("named", [(), ("z",)])
def test_a_failure_without_a_culprit_is_the_pulled_ones(named: tuple[str, ...]) -> None:
    gathering = machine()
    pulls = begun(gathering, has("a", *P), has("b"), has("c"))
    told = give(gathering, Failed(pulls["a"].number, named))
    assert [one.slice for one in only(Beyond, told)] == [0]
    assert gathering.over


def test_a_provider_without_what_it_claimed_is_not_asked_for_it_again() -> None:
    gathering = machine()
    pulls = begun(gathering, has("a", P[0], P[1]), has("b", P[1]), has("c", P[2]))
    assert pulls["b"].branch.pieces == (P[1],)
    (again,) = only(Pull, give(gathering, Ended(pulls["b"].number)))
    assert (again.branch.at, again.branch.pieces) == ("a", (P[1],))
    assert only(Beyond, give(gathering, Ended(again.number))), "nobody else claims it"


def test_a_version_that_cannot_be_completed_is_dropped_for_the_newest_that_can() -> None:
    gathering = machine()
    old = tuple(Held(piece, OLD, 100) for piece in P)
    new = has("a", P[0])
    pulls = begun(gathering, Answered("a", new.held + old), has("b", P[1], P[2]), has("c"))
    assert dict(pulls["b"].versions) == {0: NEW}
    give(gathering, Came(pulls["a"].number, P[:1]))
    told = give(gathering, Lost("b"))
    assert Drop(0, NEW) in told
    (again,) = only(Pull, told)
    assert dict(again.versions) == {0: OLD}
    assert set(again.branch.pieces) == set(P), "what came was of another version"
    assert only(Keep, give(gathering, Came(pulls["a"].number, P[:1]))) == []
    assert Done(0, OLD) in give(gathering, Came(again.number, P))


def test_without_a_whole_version_it_is_beyond() -> None:
    gathering = machine()
    told = give(gathering, Begin(), has("a", P[0]), has("b", P[1]), has("c", P[2], version=OLD))
    assert [one.slice for one in only(Beyond, told)] == [0]
    assert only(Pull, told) == []
    assert gathering.over


def test_each_slice_has_its_own_version_and_its_own_fate() -> None:
    gathering = machine(slices=2)
    pulls = begun(gathering, has("a", *P), has("b", *CUT.pieces(1), version=OLD), has("c"))
    assert dict(pulls["a"].versions) == {0: NEW}
    assert dict(pulls["b"].versions) == {1: OLD}
    told = give(gathering, Failed(pulls["b"].number))
    assert [one.slice for one in only(Beyond, told)] == [1]
    assert Done(0, NEW) in give(gathering, Came(pulls["a"].number, P))


def test_those_who_do_not_answer_are_done_without() -> None:
    gathering = machine()
    assert only(Pull, give(gathering, Begin(), has("a", *P), Lost("b"))) == []
    pulls = only(Pull, give(gathering, Waited()))
    assert {pull.branch.at for pull in pulls} == {"a"}
    late = give(gathering, has("c", *P))
    assert only(Pull, late) == [], "it is on its way already"
    again = only(Pull, give(gathering, Lost("a")))
    assert {pull.branch.at for pull in again} == {"c"}, "and who answers late is of use"


def test_nobody_to_ask_is_beyond_at_once() -> None:
    assert only(Beyond, give(Gathering("here", CUT, {0: ()}, Star()), Begin()))


def test_auto_may_say_that_the_store_is_quicker() -> None:
    gathering = machine(Auto(), speeds=Speeds(upload=1.0, store=1e9))
    told = give(gathering, Begin(), has("a", *P), has("b"), has("c"))
    assert gathering.structure == FromStore()
    assert "store" in only(Beyond, told)[0].reason


def test_auto_keeps_to_its_choice() -> None:
    gathering = machine(Auto("figure 7"), speeds=Speeds(upload=1e6))
    big = tuple(Held(piece, NEW, 50 << 20) for piece in P)
    give(gathering, Begin(), Answered("a", big), Answered("b", big), Answered("c", ()))
    assert gathering.structure == Tree()
    give(gathering, Lost("a"))
    assert gathering.structure == Tree()
