"""The paper's API, call by call, on a ring that is a dictionary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast.errors import ContainerError, PlanError
from holdfast.ids import distance, id_of
from holdfast.recovery.policies import FromStore, Line, Star, Structure, Tree
from holdfast.recovery.sr3_api import (
    Replica,
    line_define,
    recover,
    save,
    selection,
    star_define,
    state_split,
    tree_define,
)
from holdfast.recovery.structures import Branch
from holdfast.safety.shards import Held, PieceName, Version

ROWS = {(number * 0x9E3779B97F4A7C15 % 2**64) - 2**63: f"row {number}" for number in range(200)}


class Ring:
    """Containers with their pieces, seen from one of them."""

    def __init__(self, here: str, count: int = 8) -> None:
        self.here = here
        self.held: dict[str, dict[tuple[PieceName, Version], Mapping[int, Any]]] = {f"c{n}": {} for n in range(count)}

    def leaves(self, key: int) -> dict[str, str]:
        return {name: name for name in sorted(self.held, key=lambda name: distance(id_of(name), key))}

    def put(self, container: str, replica: Replica) -> bool:
        self.held[container][replica.piece, replica.version] = replica.rows
        return True

    def inventory(self, container: str, state: str) -> Sequence[Held] | None:
        held = self.held.get(container)
        return None if held is None else [Held(piece, version, len(rows)) for (piece, version), rows in held.items()]

    def pull(self, state: str, branch: Branch, version: Version) -> dict[PieceName, Mapping[int, Any]] | None:
        if branch.at not in self.held:
            return None
        found = {piece: self.held[branch.at][piece, version] for piece in branch.pieces}
        for below in branch.branches:
            found |= self.pull(state, below, version) or {}
        return found


@pytest.fixture
def ring() -> Ring:
    ring = Ring("c0")
    assert all(save(state_split("counts", ROWS, 4, 2, Version(3), parts=2), ring))
    return ring


@pytest.mark.parametrize("mechanism", [Star(3), Line(3), Tree(1, 2)])
def test_what_was_split_and_saved_is_recovered(ring: Ring, mechanism: Structure) -> None:
    assert not ring.held["c0"], "never at its owner"
    del ring.held["c0"]
    lost = next(name for name, held in ring.held.items() if held)
    del ring.held[lost]
    ring.here = "c1" if lost != "c1" else "c2"
    version, shards = recover("counts", ring, mechanism, number_of_shards=4, parts=2)
    assert version == Version(3)
    assert {hash_: row for rows in shards.values() for hash_, row in rows.items()} == ROWS


def test_too_much_lost_is_said(ring: Ring) -> None:
    ring.held = {"c0": {}}
    with pytest.raises(ContainerError, match="cannot be recovered") as lost:
        recover("counts", ring, Star(), number_of_shards=4, parts=2)
    assert "checkpoint" in lost.value.todo


def test_copies_without_a_container_are_not_saved() -> None:
    replicas = state_split("counts", ROWS, 2, 3, Version(1))
    assert save(replicas, Ring("c0", count=3)) == [True, True, False] * 2
    assert save([], Ring("c0")) == []


def test_every_row_is_in_one_shard_and_its_copies() -> None:
    replicas = state_split("counts", ROWS, 5, 2, Version(1))
    for copy in range(2):
        shards = [one.rows for one in replicas if one.copy == copy]
        assert sum(map(len, shards)) == len(ROWS)
        assert {hash_ for rows in shards for hash_ in rows} == set(ROWS)


def test_selection_takes_what_the_application_has_defined() -> None:
    large, ample, little = 512 << 20, 125e6, 12.5e6
    assert selection("app", "latency-sensitive", 8 << 20, ample) == Star()
    assert star_define("app", 3)
    assert not star_define("app", 3), "nothing new"
    assert line_define("app", 7)
    assert tree_define("app", 1, 4)
    assert selection("app", "latency-sensitive", 8 << 20, ample) == Star(3)
    assert selection("app", "latency-sensitive", large, ample) == Line(7)
    assert selection("app", "latency-sensitive", large, little) == Tree(1, 4)
    assert selection("app", "latency-insensitive", large, little) == Line(7)
    assert selection("another", "latency-sensitive", large, little) == Tree()
    assert selection("app", "checkpoint", large, little) == FromStore()
    assert selection("app", "stateless", large, little) is None
    with pytest.raises(PlanError, match="no requirement"):
        selection("app", "soon", large, little)  # type: ignore[arg-type]
