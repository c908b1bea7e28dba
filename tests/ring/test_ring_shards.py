"""Slices in pieces on real containers: saved, lost with their owner, and gathered again by every structure."""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from container_kit import ALL, World, inputs, job_at, ring_at, until
from ring_kit import STRUCTURES, commit, gather, neighbours, ready, save, settled, terms

from holdfast.container.throttle import Bucket
from holdfast.errors import ContainerError, HoldfastError
from holdfast.invariants import some
from holdfast.recovery.heirs import at_home
from holdfast.recovery.policies import Auto, Line, Star, Structure, Tree
from holdfast.recovery.structures import Branch
from holdfast.ring import saving
from holdfast.ring.branches import Pull
from holdfast.ring.messages import AskOwned, AskPieces, AskReport, DropPieces
from holdfast.safety.shards import PieceName, Version
from holdfast.wire.client import Address, Unreachable
from holdfast.wire.messages import Activate, ShardsSaved
from holdfast.wire.questions import SetLimits

pytestmark = pytest.mark.long


class Ring:
    """Containers of which ``c0`` owns everything, some epochs into their life; ``truth`` is its state."""

    def __init__(self, path: Path, policy: Structure | Auto, containers: int = 5, **more: Any) -> None:
        processes = more.pop("processes", False)
        faults = path / "faults"
        faults.mkdir()
        environment = {"HOLDFAST_FAULTS": str(faults)}
        self.faults = faults
        self.world = World(path, containers, processes=processes, environment=environment, ring=terms(policy, **more))
        self.names = list(self.world.clients)
        self.others = self.names[1:]
        self.rng = random.Random(7)
        self.epoch = 0
        settled(self.world, *self.names)
        self.world.own("c0")

    def advance(self, epochs: int = 1, owner: str = "c0") -> None:
        for _ in range(epochs):
            self.epoch += 1
            self.world.random_epoch(self.epoch, self.rng)
            self.world.apply(owner, self.epoch)
            commit(self.world, self.epoch)

    def save(self, epoch: int | None = None) -> ShardsSaved:
        return save(self.world, "c0", epoch or self.epoch, ALL)

    def truth(self) -> list[Any]:
        return self.world.state("c0", self.epoch)

    def end(self, name: str) -> None:
        if self.world.processes:
            self.world.kill(name)
        else:
            next(one for one in self.world.services if one.container == name).close()
            self.world.services = [one for one in self.world.services if one.container != name]

    def activate(self, found: dict[int, str]) -> list[Any]:
        """What those who have slices ready make of them, in the order of slices."""
        for number, name in found.items():
            self.world.tell(name, Activate, self.epoch, slices=[number])
        rows = [row for number in sorted(found) for row in self.world.state(found[number], self.epoch, [number])]
        return sorted(rows, key=lambda row: [plan.name for plan in self.world.plans].index(row[0]))

    def close(self) -> None:
        self.world.close()


@pytest.mark.parametrize(
    "policy",
    [pytest.param(one, marks=() if isinstance(one, Auto) else pytest.mark.heavy) for one in STRUCTURES],
    ids=str,
)
def test_what_an_owner_saved_comes_back_without_it(tmp_path: Path, policy: Structure | Auto) -> None:
    """Each structure by itself is also where a provider dies (below)."""
    ring = Ring(tmp_path, policy)
    try:
        for _ in range(6):  # more savings than layers are kept
            ring.advance(2)
            done = ring.save()
            assert dict(done.copies) == dict.fromkeys(ALL, 2)
            assert done.failed == {}
        ring.advance(2)
        truth = ring.truth()
        ring.end("c0")
        found = ready(ring.world, ring.others, ALL, ["c0"])
        assert sorted(found) == ALL
        assert len(set(found.values())) == 4, "every container brings back its share"
        assert ring.activate(found) == truth
        ring.epoch += 1
        ring.world.random_epoch(ring.epoch, ring.rng)
        for number, name in found.items():  # and goes on from there
            ring.world.apply(name, ring.epoch, [number])
    finally:
        ring.close()


def test_slices_of_many_parts_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.container.reads.PART_SLOTS", 7)
    ring = Ring(tmp_path, Tree(fanout_bits=1, depth=2), containers=4)
    try:
        for _ in range(3):
            ring.advance(2)
            assert dict(ring.save().copies) == dict.fromkeys(ALL, 2)
        truth = ring.truth()
        ring.end("c0")
        assert ring.activate(ready(ring.world, ring.others, ALL, ["c0"])) == truth
    finally:
        ring.close()


def test_the_ring_heals_though_nobody_tells_it_to(tmp_path: Path) -> None:
    """No master at all: the neighbours notice, gather, and replay up to what the store says is committed."""
    ring = Ring(tmp_path, Tree(fanout_bits=1, depth=2))
    try:
        ring.advance(3)
        ring.save()
        ring.advance(2)
        truth = ring.truth()
        ring.end("c0")
        found: dict[int, str] = {}

        def all_ready() -> bool:
            for name in ring.others:
                versions = ring.world.versions(name)
                assert set(versions.values()) <= {5}, "at the last committed epoch, not before"
                found.update(dict.fromkeys(versions, name))
            return sorted(found) == ALL

        until(all_ready)
        assert ring.activate(found) == truth
    finally:
        ring.close()


def test_an_owner_that_was_only_silent_goes_on(tmp_path: Path) -> None:
    """The ring takes it for lost and makes its slices ready; its next saving shows that it lives."""
    ring = Ring(tmp_path, Star(), containers=3)
    try:
        ring.advance(2)
        ring.save()
        assert sorted(ready(ring.world, ["c1", "c2"], ALL, ["c0"])) == ALL
        ring.advance()
        settled(ring.world, *ring.names)  # it is heard again
        healings = [ring_at(service)._jobs["j"][1] for service in ring.world.services]
        until(lambda: not any(healing._dead for healing in healings))
        assert dict(ring.save().copies) == dict.fromkeys(ALL, 2)
        assert [ring.world.versions(name) for name in ("c1", "c2")] == [{}, {}], "nothing is kept for its loss"
        truth = ring.truth()
        ring.end("c0")
        until(lambda: "c0" not in neighbours(ring.world, "c1") | neighbours(ring.world, "c2"))
        assert ring.activate(ready(ring.world, ["c1", "c2"], ALL, ["c0"])) == truth, "and then it is really lost"
    finally:
        ring.close()


def test_in_a_ring_larger_than_a_leaf_set_slices_come_back_where_their_keys_are_at_home(tmp_path: Path) -> None:
    """Eight containers that know four others each: nobody sees all, and told of the loss they find every slice."""
    small = terms(Tree(fanout_bits=1, depth=3), leaves=4, bits=1)
    world = World(tmp_path, 8, ring=small)
    try:
        names = list(world.clients)
        until(lambda: all(len(neighbours(world, name)) == 5 for name in names))
        world.own("c0")
        for epoch in (1, 2):
            world.random_epoch(epoch, random.Random(epoch))
            world.apply("c0", epoch)
            commit(world, epoch)
        assert dict(save(world, "c0", 1, ALL).copies) == dict.fromkeys(ALL, 2)
        truth = [world.state("c0", 2, [number]) for number in ALL]
        world.services.pop(0).close()
        found = ready(world, names[1:], ALL, ["c0"])
        homes = at_home("j", ALL, names[1:])
        assert found == homes
        for number, name in found.items():
            world.tell(name, Activate, 2, slices=[number])
            assert world.state(name, 2, [number]) == truth[number]
    finally:
        world.close()


def test_nobody_is_asked_twice_about_one_loss(tmp_path: Path) -> None:
    ring = Ring(tmp_path, Tree(fanout_bits=1, depth=2), containers=4)
    try:
        ring.advance(2)
        ring.save()
        asked = Counter[str]()
        for service in ring.world.services:
            for kind in (AskOwned, AskReport, AskPieces):
                found = some(service.table.find(kind), "it is handled")
                service.table._found[kind] = found._replace(run=_counted(asked, kind.__name__, found.run))
        ring.end("c0")
        assert sorted(ready(ring.world, ring.others, ALL, ["c0"])) == ALL
        assert asked["AskPieces"] == 0
        assert asked["AskReport"] == 2, "two ask the third"
        assert asked["AskOwned"] in (2, 4, 6), "which asks those two, and again only for who comes much later"
    finally:
        ring.close()


def test_whoever_gets_no_report_asks_for_itself(tmp_path: Path) -> None:
    ring = Ring(tmp_path, Star(), containers=5)
    try:
        ring.advance(3)
        ring.save()
        truth = ring.truth()
        for service in ring.world.services:
            service.table._found[AskReport] = some(service.table.find(AskReport), "it is handled")._replace(run=_fails)
        ring.end("c0")
        assert ring.activate(ready(ring.world, ring.others, ALL, ["c0"])) == truth
    finally:
        ring.close()


def _fails(*_: Any) -> Any:
    raise ContainerError("It cannot say.")


def _counted(asked: Counter[str], name: str, action: Any) -> Any:
    def counting(*arguments: Any) -> Any:
        asked[name] += 1
        return action(*arguments)

    return counting


def test_speeds_are_measured_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.ring.meters.ENOUGH", 1)
    ring = Ring(tmp_path, Line(length=3), containers=4)
    try:
        ring.advance(3)
        assert ring.world.call("c0", AskPieces(frozenset(ALL))).upload == 0
        ring.save()
        assert ring.world.call("c0", AskPieces(frozenset(ALL))).upload > 0, "it has saved"
        ring.world.call("c0", SetLimits({"upload": 7}))
        assert ring.world.call("c0", AskPieces(frozenset(ALL))).upload == 7
        ring.end("c0")
        heirs = set(ready(ring.world, ring.others, ALL, ["c0"]).values())
        jobs = [ring_at(service)._jobs["j"] for service in ring.world.services]
        assert any(ringed.holding(ALL).merge > 0 for ringed, _ in jobs), "inner nodes have merged"
        for ringed, healing in [one for one in jobs if one[0].me in heirs]:
            assert (ringed.meters.build.value or ringed.meters.loose.value) > 0
            assert healing._speeds.download == ringed.meters.download.value > 0
    finally:
        ring.close()


def test_only_what_changed_is_sent_again(tmp_path: Path) -> None:
    ring = Ring(tmp_path, Star(), m=4, n=2, parts=1)
    try:
        world = ring.world
        many = list(range(4000))
        world.log(1, inputs(many, many))
        world.apply("c0", 1)
        assert save(world, "c0", 1, ALL).rows == 2 * 2 * 4000, "two tables, two copies"
        world.log(2, inputs([1, 2, 3], [5, 6, 7]))
        world.apply("c0", 2)
        assert save(world, "c0", 2, ALL).rows == 2 * 2 * 3
        again = save(world, "c0", 2, ALL)
        assert (again.rows, dict(again.copies)) == (0, dict.fromkeys(ALL, 2))
        held = [world.call(name, AskPieces(frozenset(ALL))).held for name in ring.names]
        assert held[0] == (), "never on the owner itself"
        pieces = [tuple(one[0]) for some in held for one in some]
        assert len(set(pieces)) == 4 * 4
        assert len(pieces) == 2 * 2 * 4 * 4, "two copies of two versions"
        counts = [len(some) for some in held[1:]]
        assert max(counts) - min(counts) <= 4, "spread evenly"
    finally:
        ring.close()


def test_pieces_follow_when_a_holder_is_lost(tmp_path: Path) -> None:
    """n - 1 holders of every piece go, one after the other, with savings in between; then the owner."""
    ring = Ring(tmp_path, Tree(fanout_bits=1, depth=2), containers=5)
    try:
        ring.advance(2)
        ring.save()
        for gone in ("c3", "c4"):
            ring.end(gone)
            settled(ring.world, *(name for name in ring.names if name in ring.world.clients and _lives(ring, name)))
            ring.advance()
            assert dict(ring.save().copies) == dict.fromkeys(ALL, 2)
        truth = ring.truth()
        ring.end("c0")
        assert ring.activate(ready(ring.world, ["c1", "c2"], ALL, ["c0"])) == truth
    finally:
        ring.close()


def test_a_lost_copy_is_made_again_without_a_new_epoch(tmp_path: Path) -> None:
    ring = Ring(tmp_path, Star(), containers=4)
    try:
        ring.advance(2)
        ring.save()
        ring.end("c3")
        settled(ring.world, "c0", "c1", "c2")
        done = ring.save()
        assert dict(done.copies) == dict.fromkeys(ALL, 2)
        assert done.rows > 0, "c3 had pieces"
        assert ring.save().rows == 0
        ring.end("c2")
        settled(ring.world, "c0", "c1")
        assert dict(ring.save().copies) == dict.fromkeys(ALL, 1), "what there is, not what there should be"
        truth = ring.truth()
        ring.end("c0")
        assert ring.activate(ready(ring.world, ["c1"], ALL, ["c0"])) == truth
    finally:
        ring.close()


def test_epochs_go_on_while_holders_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch to save is pinned before anything takes time, and is let go in the end."""
    ring = Ring(tmp_path, Star(), containers=3)
    try:
        ring.advance(2)

        def slowly(*asked: Any) -> saving.Inventory:
            if ring.epoch < 6:
                ring.advance(4)
            return ask(*asked)

        ask = saving.ask
        monkeypatch.setattr(saving, "ask", slowly)
        assert dict(ring.save(2).copies) == dict.fromkeys(ALL, 2)
        assert ring.epoch == 6
        assert not job_at(ring.world.services[0]).reading._pins
    finally:
        ring.close()


def test_the_end_of_a_saving_does_not_wait_for_a_stuck_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    class Stuck(saving.Sender):
        def run(self) -> None:
            over.wait()

    monkeypatch.setattr(saving, "SILENCE_SECONDS", 0.1)
    sender = Stuck(cast(Any, None), "s", Version(1), Address("c9", "nowhere"), Bucket(None))
    sender.start()
    try:
        sender._waiting.maxsize = 1
        sender.put("one", {}, cast(Any, None))
        sender.finish()
        assert sender.failed is not None
        assert "took nothing" in sender.failed
    finally:
        over.set()


def test_pieces_saved_by_a_late_saving_are_not_dropped(tmp_path: Path) -> None:
    ring = Ring(tmp_path, Star(), containers=3)
    try:
        ring.advance(2)
        ring.save()
        for version, left in ((1, True), (2, False)):
            ring.world.call("c1", DropPieces(frozenset(ALL), Version(version)))
            assert bool(ring.world.call("c1", AskPieces(frozenset(ALL))).held) == left
    finally:
        ring.close()


def _lives(ring: Ring, name: str) -> bool:
    return any(service.container == name for service in ring.world.services)


def test_owner_and_a_holder_at_once(tmp_path: Path) -> None:
    ring = Ring(tmp_path, Line(length=2), containers=5, n=3)
    try:
        ring.advance(3)
        assert dict(ring.save().copies) == dict.fromkeys(ALL, 3)
        ring.advance()
        truth = ring.truth()
        for gone in ("c0", "c2", "c4"):  # n - 1 holders with it
            ring.end(gone)
        assert ring.activate(ready(ring.world, ["c1", "c3"], ALL, ["c0", "c2", "c4"])) == truth
    finally:
        ring.close()


def test_too_much_lost_is_said_and_not_made_up(tmp_path: Path) -> None:
    ring = Ring(tmp_path, Star(), containers=4, n=1, m=4, parts=1)
    try:
        ring.advance(2)
        ring.save()
        ring.end("c0")
        ring.end("c1")
        answers = [gather(ring.world, name, ALL, ["c0", "c1"]) for name in ("c2", "c3")]
        assert not any(answer.ready for answer in answers)
        assert {number for answer in answers for number, _ in answer.beyond} == set(ALL)
        assert "No version is whole" in answers[0].beyond[0][1]
    finally:
        ring.close()


def test_a_saving_cut_short_costs_nothing(tmp_path: Path) -> None:
    """The owner dies in the middle of a saving: the version before it comes back, and the log does the rest."""
    ring = Ring(tmp_path, Star(), processes=True)
    try:
        ring.advance(3)
        ring.save()
        ring.advance(3)
        truth = ring.truth()
        (ring.faults / "container@mid-save@6").touch()
        with pytest.raises(Exception, match="c0"):
            ring.save()
        found = ready(ring.world, ring.others, ALL, ["c0"])
        assert ring.activate(found) == truth
    finally:
        ring.close()


@pytest.mark.parametrize("policy", [Star(), Line(length=4), Tree(fanout_bits=1, depth=3)], ids=str)
def test_a_provider_dies_while_it_provides(tmp_path: Path, policy: Structure) -> None:
    ring = Ring(tmp_path, policy, processes=True, containers=6)
    try:
        ring.advance(4)
        ring.save()
        ring.advance(1)
        truth = ring.truth()
        (ring.faults / "container@mid-branch@4").touch()  # whoever comes there first
        ring.world.kill("c0")
        found: dict[int, str] = {}
        for name in ring.others:
            try:
                found |= ready(ring.world, [name], ALL, ["c0"])
            except Exception:
                assert not (ring.faults / "container@mid-branch@4").exists()
        again = [name for name in ring.others if ring.world.processes[name].alive]
        assert len(again) == 4, "one of them died"
        dead = [name for name in ring.names if name not in again]
        found = ready(ring.world, again, ALL, dead)
        assert ring.activate(found) == truth
    finally:
        ring.close()


def test_a_healed_slice_is_no_backup_beside_the_active_one(tmp_path: Path) -> None:
    world = World(tmp_path, 2)
    try:
        world.own("c0")
        world.random_epoch(1, random.Random(7))
        world.apply("c0", 1)
        world.copy("c0", 1, world.to("c1"))
        owner, other = (job_at(service) for service in world.services)
        found = other.backups.take(2)
        assert found is not None
        owner.keep_backup(2, *found)
        assert world.versions("c0") == {}
        other.keep_backup(2, *found)
        assert world.versions("c1") == dict.fromkeys(ALL, 1)
        world.tell("c1", Activate, 1, slices=[2])
        assert 2 not in world.versions("c1")
        assert world.state("c1", 1, [2]) == world.state("c0", 1, [2])
    finally:
        world.close()


@pytest.mark.parametrize("given_up", [True, False])
def test_a_provider_that_never_begins_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_up: bool
) -> None:
    """It takes the connection and says nothing: by a cancel from elsewhere, or after a while by itself."""
    monkeypatch.setattr("holdfast.ring.branches.OPEN_SECONDS", 600.0 if given_up else 0.2)
    ring = Ring(tmp_path, Star(), containers=2)
    try:
        ringed = ring_at(ring.world.services[1])._jobs["j"][0]
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            peer = Address("deaf", f"grpc://127.0.0.1:{deaf.getsockname()[1]}")
            branch = Branch("deaf", (PieceName(0, 0, 0),), ())
            pull = Pull(ringed, ringed.client(peer), branch, {0: Version(1)}, next(iter(ringed.layouts)), {})
            if given_up:
                threading.Timer(0.2, pull.cancel).start()
            with pytest.raises(Unreachable, match="given up" if given_up else "began nothing"):
                next(pull.chunks())
    finally:
        ring.close()


def test_limits_are_positive_or_none(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    try:
        job = job_at(world.services[0])
        world.call("c0", SetLimits({"upload": 5e6, "download": 7}))
        for strange in (0, -1, "7", True, float("inf"), float("nan")):
            with pytest.raises(HoldfastError, match=r"'download' is|links: .* is no number"):
                world.call("c0", SetLimits({"upload": None, "download": strange}))
        assert (job.upload.rate, job.download.rate) == (5e6, 7)
        world.call("c0", SetLimits({"upload": None}))
        assert (job.upload.rate, job.download.rate) == (None, 7)
    finally:
        world.close()
