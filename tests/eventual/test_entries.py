"""What becomes of entries: who spends how much on them, whose a commit names, and which files may go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import holdfast as hf
from holdfast.container import steering as steered
from holdfast.container.slices import HeldSlice, HostedStage
from holdfast.container.steering import FOR_ALL, PERIODS, Steering
from holdfast.driver.units import Written
from holdfast.errors import CorruptionError, PlanError
from holdfast.log import footprints, janitor
from holdfast.log.footprints import EntryWriter, Footprints, SliceSaid, Wrote, control_rows, entry_name
from holdfast.log.janitor import Held, Janitor, may_go
from holdfast.log.ledger import Ledger
from holdfast.log.pack import pack_name
from holdfast.log.records import FEED, Commit, Fence, JobFile, Manifest, Prepare, Range
from holdfast.log.store import Store
from holdfast.safety.policies import Checks
from holdfast.wire.messages import StageFigures

CHECKS = Checks(2.0, 1000, 0.005, 0.1, 600.0)


# --- steering -------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(steered.time, "monotonic", lambda: self.now)


def stages(slices: int) -> dict[str, HostedStage]:
    plan = type("Plan", (), {"name": "s"})()
    operator = type("Operator", (), {})
    held = {number: cast(HeldSlice, None) for number in range(slices)}
    return {"s": HostedStage(cast(Any, plan), cast(Any, operator()), held)}


def test_an_epoch_gets_its_share_of_the_time_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, steering, hosted = Clock(monkeypatch), Steering(CHECKS, 4), stages(4)
    steering.begin(1, 0, hosted, 1)
    assert sum(pace.seconds for pace in steering._paces.values()) == 0
    clock.now += 1.0
    steering.begin(2, 0, hosted, 1)
    spread = 1 - FOR_ALL  # nobody is known to have units that are due: their part is nobody's
    assert sum(pace.seconds for pace in steering._paces.values()) == pytest.approx(0.05 * (1 - spread))
    steering._paces["s", 2].left = 10
    steering._paces["s", 1].seconds = -0.5
    clock.now += 3600.0
    steering.begin(3, 0, hosted, 1)
    every = {number: pace.seconds for (_, number), pace in steering._paces.items()}
    most = PERIODS * CHECKS.spend
    assert every[2] == pytest.approx(most * (FOR_ALL / 4 + spread)), "who has most to do gets most"
    assert every[0] == pytest.approx(most * FOR_ALL / 4)
    assert every[1] == pytest.approx(most * FOR_ALL / 4 - 0.5), "a debt is paid first"
    steering.begin(3, 0, hosted, 1)
    assert steering._paces["s", 2].seconds == pytest.approx(every[2]), "once an epoch"


def test_footprints_are_too_old_by_time_or_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    steering, hosted = Steering(CHECKS, 1), stages(1)
    for epoch in range(1, 6):
        steering.begin(epoch, 1000 * epoch, hosted, 1)
        steering.told("s", StageFigures(0, 0, took=400))
    assert steering._paces["s", 0].aged == 1, "1,200 rows have come since"
    assert steering.due("s", [0]) == {0}
    steering._paces["s", 0].oldest = 3
    assert steering.due("s", [0]) == set()
    steering.begin(6, 1000 * 604, hosted, 1)
    assert steering._paces["s", 0].aged == 3, "600 s have passed"
    assert steering.due("s", [0]) == {0}


def test_a_policy_says_what_is_wrong_with_it() -> None:
    assert hf.Eventual().terms().checks == Checks(2.0, 1_000_000, 0.005, 0.1, 600.0)
    for wrong in ({"Q": 0.5}, {"U": 0}, {"CI": "100 ms"}, {"CI": "0 s"}, {"age": "0 s"}):
        with pytest.raises(PlanError, match=next(iter(wrong))):
            hf.Eventual(**wrong).terms()  # type: ignore[arg-type]


# --- whose entries a commit names -----------------------------------------------------------------------------


def wrote(name: str, *slices: int) -> Wrote:
    return Wrote(name, 7, {"s": tuple((number, 1, 3) for number in slices)})


def test_a_commit_names_what_the_owner_of_each_slice_wrote() -> None:
    """Two containers have applied slice 1: one is the destination of a move, or was lost."""
    written = Written(Footprints.begin(["s"], 3))
    written.take(3, "a", wrote("from-a", 0, 1))
    written.take(3, "b", wrote("from-b", 1, 2))
    written.take(3, "b", None)
    found, attached = written.named(3, ("a", "b", "b"))
    assert found is not None
    assert [file.name for file in found.files] == ["from-a", "from-b"]
    assert found.entries == {"s": {0: (0, 0), 1: (1, 0), 2: (1, 0)}}
    assert found.heads == {"s": ((3, 1, 3),) * 3}
    assert attached == ()
    other, _ = written.named(3, ("a", "a", "b"))
    assert other is not None
    assert other.entries["s"][1] == (0, 0)
    written.committed(3, found)
    later, _ = written.named(4, ("a", "b", "b"))
    assert later is not None
    assert (later.entries, later.heads) == ({}, found.heads), "what was written of epochs that are over is forgotten"


def test_both_who_write_in_dual_mode_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """BothWriteInDual: the last one to answer counts, whoever owns the slice."""

    def last(self: Written, epoch: int, owners: Any) -> Any:
        of = {(stage, number): one for (stage, number, _), one in self._wrote.get(epoch, {}).items()}
        return self.footprints.after(epoch, [(*key, one) for key, one in of.items()])  # type: ignore[union-attr]

    test_a_commit_names_what_the_owner_of_each_slice_wrote()
    monkeypatch.setattr(Written, "named", last)
    with pytest.raises(AssertionError):
        test_a_commit_names_what_the_owner_of_each_slice_wrote()


def test_a_commit_says_how_every_slice_stands_and_is_read_as_it_was_written() -> None:
    begun = Footprints.begin(["s", "t"], 2)
    first, attached = begun.after(1, [("s", 0, Wrote("x", 5, {"s": ((0, 4, 1),)}, b"few"))])
    assert (first.oldest, attached) == (1, (b"few",))
    second, _ = first.after(2, [("s", 0, wrote("y", 0)), ("t", 1, Wrote("z", 1, {"t": ((1, 0, 2),)}))])
    assert second.oldest == 3
    assert second.entries["s"][0][1] == 1
    idle, _ = second.after(9, [])
    assert (idle.heads, idle.files) == (second.heads, ())
    commit = Commit(Fence(1, 1, 1), {FEED: Range(1, 1)}, feedback={"f": b"fed"}, footprints=first, attachments=attached)
    assert Commit.from_bytes(commit.to_bytes(), commit.file) == commit


# --- which files may go ---------------------------------------------------------------------------------------


def file_of(epoch: int) -> tuple[str, int, bytes]:
    writer = EntryWriter()
    rows = control_rows(np.array([5]), np.array([0], np.int8), np.array([1]))
    writer.add("s", [SliceSaid(0, 1, epoch, epoch, (1,))], [rows])
    parts, checksum = writer.finish()
    return entry_name(epoch, 1, 1, "c-1"), checksum, b"".join(map(bytes, parts))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Ten epochs, each with a file of entries; the oldest footprint is that of two epochs before."""
    store = Store(str(tmp_path))
    found = Ledger(store, "main")
    found.open_or_create_job(JobFile("j", "job", {"sources": []}, 1, 0))
    for epoch in range(1, 11):
        name, checksum, data = file_of(epoch)
        found.section.write(name, [data])
        found.section.write(f"entry/{epoch:010d}.1-1-dead-{epoch}.entry", [data])
        fence, ranges = Fence(1, epoch, 1), {FEED: Range(epoch, epoch)}
        found.put_prepare(Prepare(fence, 1, ranges, (), epoch))
        oldest = max(1, epoch - 2)
        marks = Footprints(
            (footprints.EntryFile(name, checksum),), {"s": {0: (0, epoch - 1)}}, {"s": ((epoch, 1, oldest),)}, oldest
        )
        found.put_commit(Commit(fence, ranges, footprints=marks))
    return found


def left(ledger: Ledger) -> list[int]:
    return sorted({int(name[:10]) for name in ledger.section.list("entry")})


def test_entries_below_the_hold_go_and_those_that_nobody_names(ledger: Ledger) -> None:
    assert footprints.hold(ledger, 10) == 5, "8 is the oldest; 5 was when 7 was committed"
    made = Janitor(ledger.store, "main", 1)
    made.round(0)
    assert left(ledger) == [5, 6, 7, 8, 9, 10]
    assert not [name for name in ledger.section.list("entry") if "dead" in name]


def test_nothing_goes_before_what_is_needed_then_was_read_back(ledger: Ledger) -> None:
    """A file that a recovery would need is bad: the log that can do without it stays."""
    name = entry_name(6, 1, 1, "c-1")
    whole = bytes(ledger.section.read(name))
    ledger.section.delete([name])
    ledger.section.write(name, [whole[:-1]])
    made = Janitor(ledger.store, "main", 1)
    made.round(0)
    assert left(ledger) == list(range(1, 11))
    ledger.section.delete([name])
    ledger.section.write(name, [whole])
    made.round(0)
    assert left(ledger) == [5, 6, 7, 8, 9, 10]


def test_the_log_above_the_hold_stays(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor, "KEPT", 1)
    Janitor(ledger.store, "main", 1).round(0)
    assert sorted(int(name[:10]) for name in ledger.section.list("prepare")) == [6, 7, 8, 9, 10]
    assert sorted(map(int, ledger.section.list("commit"))) == [5, 6, 7, 8, 9, 10], "that of 5 says where entries are"


def test_what_goes_is_judged_by_what_is_held() -> None:
    held = Held(1, {"log/a": (3, 1), "log/b": (4, 1)}, hold=3, entries={"x": 2, "y": 3, "z": 4},
                entries_named={4: frozenset({"other"})})  # fmt: skip
    assert may_go(held, 0) == ["log/a", "x", "z"]


def test_where_the_log_has_units_no_checkpoint_cuts_it() -> None:
    """Recovery reads no pack: it needs what was logged since the units were written, whatever checkpoints there are."""
    manifests = tuple(Manifest(epoch, Fence(1, epoch, 0), (f"{epoch}",), (0,), "c") for epoch in (20, 30))
    segments = {f"log/{epoch}": (epoch, 1) for epoch in range(1, 31)}
    held = Held(1, segments, manifests=manifests, manifest_files=(20, 30), packs={"20": 0.0, "30": 0.0})
    assert may_go(held, 100) == [f"log/{epoch}" for epoch in range(1, 21)]
    assert may_go(replace(held, hold=5), 100) == [f"log/{epoch}" for epoch in range(1, 6)]
    assert may_go(replace(held, hold=0), 100) == []


def test_a_file_that_is_not_the_one_that_was_committed_is_known(ledger: Ledger) -> None:
    assert footprints.verify(ledger, 4) == 1
    name, _, _ = file_of(4)
    ledger.section.delete([name])
    ledger.section.write(name, [file_of(5)[2]])
    with pytest.raises(CorruptionError):
        footprints.verify(ledger, 4)
    with pytest.raises(footprints.BadEntry) as caught:
        footprints.Chains(ledger).entry("s", 0, 4)
    assert caught.value.epoch == 4


def test_a_checkpoint_goes_when_the_log_has_all_of_its_units_and_entries_when_there_are_no_units_any_more() -> None:
    packs = {epoch: pack_name(Fence(1, epoch, 0), "graph1") for epoch in (20, 30)}
    manifests = tuple(Manifest(epoch, Fence(1, epoch, 0), (name,), (0,), "c") for epoch, name in packs.items())
    ages = dict.fromkeys(packs.values(), 0.0)
    held = Held(1, manifests=manifests, manifest_files=(20, 30), packs=ages, hold=30)
    assert may_go(held, 100) == [Manifest.file_of(20), packs[20]], "that of 30 has units of which no entry speaks"
    assert may_go(replace(held, hold=31), 100) == [*map(Manifest.file_of, packs), *packs.values()]
    assert may_go(replace(held, hold=31, kept=frozenset(ages)), 100) == [*map(Manifest.file_of, packs)]
    left = Held(1, entries={"x": 8, "y": 9}, commits=(8, 9), units=False)
    assert may_go(left, 0) == ["x"]
    assert may_go(replace(left, units=True), 0) == []
