"""What a container makes of the parts it is sent: whole copies or nothing, merged when it suits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from container_kit import ALL, COUNTS, TEXTS, World, inputs, until
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.container import backups as module
from holdfast.container.backups import Backups
from holdfast.errors import CorruptionError, EpochGone
from holdfast.operators.aggregate import AggregateOperator
from holdfast.state import copies
from holdfast.state.slice import SliceState
from holdfast.wire.messages import Activate

OPERATORS: dict[str, AggregateOperator] = {plan.name: plan.build() for plan in (COUNTS, TEXTS)}
Part = tuple[str, copies.Header, pa.RecordBatch]


class Owner:
    """Slice 7 of two stages."""

    def __init__(self, epochs: int) -> None:
        self.states: dict[str, SliceState] = {name: operator.new_slice() for name, operator in OPERATORS.items()}
        rng = random.Random(epochs)
        for epoch in range(1, epochs + 1):
            keys = [rng.randrange(60) for _ in range(30)]
            for (name, operator), rows in zip(OPERATORS.items(), inputs(keys, keys), strict=True):
                self.states[name].apply(epoch, operator.decode(rows))

    def parts(self, base: int, epoch: int, count: int = 16) -> list[Part]:
        found: list[Part] = []
        for name, state in self.states.items():
            start, last = 0, False
            while not last:
                part = state.delta(base, epoch, start, count)
                header = copies.header_of(part)
                start, last = header.stop, header.last
                found.append((name, header, part.replace_schema_metadata(None)))
        return found

    def full(self, epoch: int) -> list[bytes]:
        return [bytes(state.delta(0, epoch).serialize()) for state in self.states.values()]


def send(backups: Backups, copy: str, parts: list[Part]) -> list[bool]:
    return [backups.receive(copy, stage, 7, header, part) for stage, header, part in parts]


def taken(backups: Backups) -> tuple[int, list[bytes]]:
    found = backups.take(7)
    assert found is not None
    version, loaders = found
    states = {name: operator.new_slice() for name, operator in OPERATORS.items()}
    for name, state in states.items():
        state.activate([loaders[name]])
    return version, [bytes(state.delta(0, version).serialize()) for state in states.values()]


@pytest.fixture
def backups() -> Iterator[Backups]:
    made = Backups(OPERATORS)
    yield made
    made.close()


def test_nothing_is_there_until_all_of_it_is(backups: Backups) -> None:
    owner = Owner(3)
    parts = owner.parts(0, 2)
    assert len(parts) > 4
    for part in parts[:-1]:
        assert send(backups, "a", [part]) == [True]
        assert backups.versions([7]) == {}
    assert backups.count == 0
    assert backups.nbytes > 0, "what is on its way is memory too"
    send(backups, "a", parts[-1:])
    assert backups.versions([7, 8]) == {7: 2}
    assert taken(backups) == (2, owner.full(2))
    assert (backups.versions([7]), backups.nbytes, backups.take(7)) == ({}, 0, None)


def test_a_torn_stream_leaves_what_was_there(backups: Backups) -> None:
    owner = Owner(3)
    send(backups, "a", owner.parts(0, 1))
    torn = owner.parts(1, 2)
    counts = [part for part in torn if part[0] == "counts"]
    send(backups, "b", torn[: len(counts) + 1])
    backups.end("b", "counts")  # this one was whole
    backups.end("b", "texts")  # this one was not
    assert backups.versions([7]) == {7: 1}
    assert not any(send(backups, "b", torn[len(counts) + 1 :])), "what comes late belongs to nothing"
    assert all(send(backups, "c", owner.parts(1, 3)))
    assert taken(backups) == (3, owner.full(3))


def test_a_delta_of_another_base_is_refused(backups: Backups) -> None:
    owner = Owner(4)
    assert not any(send(backups, "a", owner.parts(1, 2))), "there is nothing to go on from"
    send(backups, "b", owner.parts(0, 2))
    for base, epoch in ((1, 3), (3, 4)):
        assert not any(send(backups, f"c{base}", owner.parts(base, epoch)))
    assert not any(send(backups, "d", owner.parts(0, 1))), "older than what is here"
    assert not any(send(backups, "e", owner.parts(0, 2))), "not newer than what is here"
    assert backups.versions([7]) == {7: 2}
    assert all(send(backups, "f", owner.parts(2, 4)))
    assert taken(backups) == (4, owner.full(4))


def test_a_newer_copy_overtakes_an_older_one(backups: Backups, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(4)
    old, new = owner.parts(0, 2), owner.parts(0, 3)
    send(backups, "old", old[:2])
    assert send(backups, "new", new[:1]) == [True]
    assert not any(send(backups, "old", old[2:]))
    assert not any(send(backups, "old again", old))
    backups.end("old", "counts")
    send(backups, "new", new[1:])
    assert backups.versions([7]) == {7: 3}
    send(backups, "stuck", owner.parts(3, 4)[:1])
    assert not any(send(backups, "retry", owner.parts(3, 4)))
    monkeypatch.setattr(module, "STALE_SECONDS", 0.0)
    assert all(send(backups, "retry", owner.parts(3, 4))), "a copy that nobody goes on with is in nobody's way"
    assert taken(backups) == (4, owner.full(4))


def test_of_a_whole_copy_a_table_that_does_not_come_is_empty_and_of_a_delta_as_it_was(backups: Backups) -> None:
    owner = Owner(4)

    def only_counts(base: int, epoch: int) -> list[Part]:
        return [part for part in owner.parts(base, epoch) if part[0] == "counts"]

    def sent(copy: str, parts: list[Part], tables: int) -> bool:
        return all(backups.receive(copy, stage, 7, header, part, tables) for stage, header, part in parts)

    send(backups, "a", owner.parts(0, 1))
    assert sent("b", only_counts(1, 2), 1)
    version, loaders = backups.take(7) or (0, {})
    state = OPERATORS["texts"].new_slice()
    state.activate([loaders["texts"]])
    assert (version, state.read(2).num_rows) == (2, owner.states["texts"].read(1).num_rows)
    send(backups, "a", owner.parts(0, 1))
    assert sent("c", only_counts(0, 2), 1)
    version, loaders = backups.take(7) or (0, {})
    assert (version, set(loaders)) == (2, {"counts"})
    assert sent("d", only_counts(0, 2), 1)
    keys = pa.record_batch({"_h": pa.array([1], pa.int64()), "k0": pa.array(["1"])})
    assert backups.read("texts", 7, keys)[1].num_rows == 0
    assert not owner.states["texts"].empty
    assert OPERATORS["texts"].new_slice().empty


def test_merging_every_few_deltas_and_full_copies_at_once() -> None:
    owner, backups = Owner(9), Backups(OPERATORS, merge_every=3)
    waiting = backups._held

    def merged(epoch: int) -> bool:
        """What is merged is not sealed any more, but it is only there when whoever merges has let go of it."""
        with waiting[7].lock:
            return {loader.epoch for loader in waiting[7].loaders.values()} == {epoch}

    try:
        send(backups, "full", owner.parts(0, 1))
        until(lambda: merged(1))
        for epoch in (2, 3):
            send(backups, f"{epoch}", owner.parts(epoch - 1, epoch))
        assert len(waiting[7].sealed) == 2
        assert merged(1)
        send(backups, "4", owner.parts(3, 4))
        until(lambda: merged(4))
        send(backups, "5", owner.parts(4, 5))
        assert taken(backups) == (5, owner.full(5))
    finally:
        backups.close()


def test_reading_a_key_merges_first(backups: Backups) -> None:
    owner = Owner(5)
    send(backups, "a", owner.parts(0, 1))
    send(backups, "b", owner.parts(1, 4))
    asked = inputs([3, 1000, 17], [0, 0, 0])[1].select(["_h", "k0"])
    truth = owner.states["texts"].read(4, OPERATORS["texts"].decode_keys(asked))
    assert backups.read("texts", 7, asked) == (4, truth)
    with pytest.raises(EpochGone, match="Slice 8 has no backup here"):
        backups.read("texts", 8, asked)


def test_tables_that_are_as_they_were_need_not_come(backups: Backups) -> None:
    owner = Owner(3)
    send(backups, "a", owner.parts(0, 1))
    (first, *_), rest = owner.parts(1, 2)[:1], owner.parts(1, 2)
    mine = [part for part in rest if part[0] == first[0]]
    others = {name: state for name, state in owner.states.items() if name != first[0]}
    before = {name: bytes(state.delta(0, 1).serialize()) for name, state in others.items()}
    for stage, header, part in mine:
        assert backups.receive("b", stage, 7, header, part, tables=1)
    assert backups.versions([7]) == {7: 2}
    found = backups.take(7)
    assert found is not None
    version, loaders = found
    assert (version, {loader.epoch for loader in loaders.values()}) == (2, {2})
    for name in others:
        fresh = OPERATORS[name].new_slice()
        fresh.activate([loaders[name]])
        kept = pa.ipc.read_record_batch(pa.py_buffer(before[name]), fresh.delta(0, 2).schema)
        assert fresh.delta(0, 2).equals(kept)


def test_a_change_of_some_tables_does_not_go_on_from_another_version(backups: Backups) -> None:
    owner = Owner(3)
    changed = [part for part in owner.parts(2, 3) if part[0] == owner.parts(2, 3)[0][0]]
    for stage, header, part in changed[:1]:
        assert not backups.receive("a", stage, 7, header, part, tables=1), "nothing is here"
    send(backups, "b", owner.parts(0, 1))
    for stage, header, part in changed[:1]:
        assert not backups.receive("c", stage, 7, header, part, tables=1), "what is here is older"
        whole = replace(header, full=True)
        assert not backups.receive("d", stage, 7, whole, part, tables=1), "whole in itself, but it is alone"
    assert backups.versions([7]) == {7: 1}


def test_other_columns_are_refused(backups: Backups) -> None:
    owner = Owner(1)
    (_, header, part), *_ = owner.parts(0, 1)
    with pytest.raises(CorruptionError, match="other columns"):
        backups.receive("a", "texts", 7, header, part)


def test_drop_forgets_also_what_is_on_its_way(backups: Backups) -> None:
    owner = Owner(2)
    send(backups, "a", owner.parts(0, 1))
    send(backups, "b", owner.parts(1, 2)[:1])
    backups.drop([7, 9])
    assert (backups.count, backups.nbytes, backups.versions([7])) == (0, 0, {})


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 8), st.integers(1, 8), st.integers(0, 40), st.sampled_from(["end", "leave", "read"])),
        max_size=12,
    )
)
def test_whatever_comes_a_backup_is_of_one_epoch(steps: list[tuple[int, int, int, Any]]) -> None:
    """Copies of any base and epoch, cut off anywhere: what is held is always exactly what its version says."""
    owner, backups = Owner(8), Backups(OPERATORS, merge_every=2)
    asked = inputs(list(range(60)), [0] * 60)[0].select(["_h", "k0"])
    keys = OPERATORS["counts"].decode_keys(asked)
    try:
        known = 0
        for number, (base, epoch, cut, then) in enumerate(steps):
            if base > epoch:
                continue
            send(backups, f"{number}", owner.parts(base, epoch)[:cut])
            if then == "end":
                for stage in OPERATORS:
                    backups.end(f"{number}", stage)
            version = backups.versions([7]).get(7, 0)
            assert version >= known, "versions never go back"
            known = version
            if version and then == "read":
                assert backups.read("counts", 7, asked) == (version, owner.states["counts"].read(version, keys))
        if known:
            assert taken(backups) == (known, owner.full(known))
    finally:
        backups.close()


def test_a_failed_activation_gives_the_backup_back(tmp_path: Path) -> None:
    """The log cannot be read: the slices are backups again, as new as they got."""
    world = World(tmp_path, 2)
    try:
        world.own("c0")
        rng = random.Random(1)
        for epoch in range(1, 5):
            world.random_epoch(epoch, rng)
            world.apply("c0", epoch)
            if epoch == 1:
                world.copy("c0", 1, world.to("c1"))
        missing = world.prepares[3].segments[0].name
        kept = world.ledger.section.read(missing)
        at = kept.rindex(b"key ")  # among the rows of the second stage: the first one gets through epoch 3
        damaged = kept[:at] + b"?" + kept[at + 1 :]
        for broken in (None, damaged):
            world.ledger.section.delete([missing])
            if broken is not None:
                world.ledger.section.write(missing, [broken])
            with pytest.raises(CorruptionError, match=r"epoch 3 .* cannot be read"):
                world.tell("c1", Activate, 4)
            assert world.versions("c1") == dict.fromkeys(ALL, 2)
        world.ledger.section.delete([missing])
        world.ledger.section.write(missing, [kept])
        world.tell("c1", Activate, 4)
        assert world.state("c1", 4) == world.state("c0", 4)
    finally:
        world.close()
