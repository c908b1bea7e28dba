"""What owner and destination of a slice are compared by, in real containers; and that a wrong row is seen."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from container_kit import ALL, World, inputs, job_at

from holdfast.container import digests
from holdfast.state.table_slice import TableSlice
from holdfast.wire.messages import Activate, Applied, DigestsTaken, TakeDigests, Undo


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def states(world: World, epoch: int) -> list[dict[int, int]]:
    found: list[DigestsTaken] = [world.tell(name, TakeDigests, epoch) for name in ("c0", "c1")]
    assert found[0].graph == found[1].graph
    return [dict(one.digests) for one in found]


def moved(world: World, epochs: int = 4) -> None:
    """c1 has the slices of c0 from a copy that was brought on by the log."""
    world.own("c0")
    chance = random.Random(11)
    for epoch in range(1, epochs + 1):
        world.random_epoch(epoch, chance)
        world.apply("c0", epoch)
        if epoch == epochs - 1:
            world.copy("c0", epoch, world.to("c1"))
    world.tell("c1", Activate, epochs)


def spoil(table: TableSlice) -> None:
    """One number of one row of a table is another."""
    column = table.tables[0].columns[0]
    column[table.tables[0].rows - 1] += 1


def forget_a_row(table: TableSlice) -> None:
    table.tables[0].rows -= 1


def quiet(world: World, epoch: int) -> list[Applied]:
    world.log(epoch, [])
    return [world.apply(name, epoch, digests=ALL) for name in ("c0", "c1")]


def test_a_slice_and_its_copy_have_one_digest_while_epochs_go_on(world: World) -> None:
    moved(world)
    ours, theirs = states(world, 4)
    assert ours == theirs
    assert sorted(ours) == ALL
    assert len(set(ours.values())) == len(ALL)
    world.random_epoch(5, random.Random(5))
    world.apply("c0", 5)
    assert states(world, 4) == [ours, ours], "of the epoch that was asked for, whatever one of them has applied since"
    assert states(world, 5)[1] == {}, "it is not there yet"
    world.apply("c1", 5)
    newer, others = states(world, 5)
    assert newer == others
    assert all(newer[number] != ours[number] for number in ALL)
    for name in ("c0", "c1"):
        world.tell(name, Undo, 5)
    assert states(world, 4) == [ours, ours], "what was taken back has left nothing"


@pytest.mark.parametrize("bug", [spoil, forget_a_row])
@pytest.mark.parametrize("stage", ["counts", "texts"])
def test_a_wrong_row_is_seen_though_no_row_comes(world: World, bug: Callable[[Any], None], stage: str) -> None:
    """As long as an epoch without rows proved something, such a move was carried out."""
    moved(world)
    bug(job_at(world.services[1]).stages[stage].slices[2].state)
    ours, theirs = quiet(world, 5)
    assert ours.digests == theirs.digests == tuple((number, digests.NOTHING) for number in ALL)
    mine, other = states(world, 5)
    assert [number for number in ALL if mine[number] != other[number]] == [2]


def test_rows_that_differ_are_seen_by_what_they_put_out(world: World) -> None:
    moved(world)
    spoil(job_at(world.services[1]).stages["counts"].slices[2].state)  # type: ignore[arg-type]
    table = job_at(world.services[1]).stages["counts"].slices[2].state.tables[0]  # type: ignore[attr-defined]
    key = int(table.words[table.rows - 1, 0])
    world.log(5, inputs([key], [1]))
    ours, theirs = (dict(world.apply(name, 5, digests=ALL).digests) for name in ("c0", "c1"))
    assert [number for number in ALL if ours[number] != theirs[number]] == [2]
    assert {number for number in ALL if ours[number] != digests.NOTHING} >= {2}


def test_an_epoch_does_not_fail_where_what_it_put_out_cannot_be_said_any_more(world: World) -> None:
    moved(world)
    job = job_at(world.services[0])
    assert [number for number, _ in job.digests(1, 4, ALL)] == ALL
    job.commit(4)
    assert job.digests(1, 4, ALL) == ()
    world.log(5, [])
    assert world.apply("c0", 5, digests=ALL).digests == tuple((number, digests.NOTHING) for number in ALL)


def test_a_slice_that_is_not_there_says_nothing(world: World) -> None:
    world.own("c0", [0, 1])
    world.log(1, inputs([1, 2, 3], [1, 2, 3]))
    world.apply("c0", 1, [0, 1])
    assert [sorted(one) for one in states(world, 1)] == [[0, 1], []]
