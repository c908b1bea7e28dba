"""The whole job in the simulator, with the master that ships; and bugs planted in it, which must be found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import planted_masters
import pytest

from holdfast.master.instructions import Demote, Restore, Undo
from simulator.__main__ import main
from simulator.job import Job
from simulator.job_container import Call, ContainerHost
from simulator.job_model import Container

pytestmark = pytest.mark.long


@pytest.mark.parametrize("first", [1, 26])
def test_a_job_keeps_its_promises(first: int) -> None:
    for seed in range(first, first + 25):
        Job(seed).run()


def test_100_scenarios_of_all_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    """Of seeds that no other test runs."""
    assert main(["--seeds", "100", "--first", "1001"]) == 0
    assert "100 scenarios" in capsys.readouterr().out


def test_a_seed_gives_the_same_run_to_the_last_line() -> None:
    """In processes that order sets and dictionaries of strings differently."""
    traces = [
        subprocess.run(
            [sys.executable, "-m", "simulator", "--scenario", "job", "--seed", str(seed), "--trace"],
            env=os.environ | {"PYTHONHASHSEED": hashes, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for seed in (10, 7)
        for hashes in ("1", "2")
    ]
    assert traces[0] == traces[1]
    assert traces[2] == traces[3]
    assert min(len(trace) for trace in traces) > 500
    assert traces[0] != traces[2]


# ------------------------------------------------------------------------------------------------ planted bugs


class AdmitsAnyone(ContainerHost):
    """Whoever calls is obeyed: old masters, and those who meant the container that was here before."""

    def admit(self, call: Call) -> None:
        pass


class KeepsWhatItPutsAway(Container):
    """A slice that lives elsewhere now stays active here too."""

    def _demote(self, told: Demote) -> None:
        pass


class TakesNothingBack(Container):
    """A failed epoch stays applied."""

    def _undo(self, told: Undo) -> None:
        pass


class RestoresWithoutTheLog(Container):
    """A checkpoint passes for the epoch that was asked for."""

    def _restore(self, told: Restore) -> None:
        for slice_ in told.slices:
            state = self.store.checkpointed(told.checkpoint, slice_)
            self.held[slice_] = {told.epoch * self.store.levels: state}


class MixesVersions(Container):
    """A copy's rows are new, but it calls itself by its old version: they are applied once more."""

    def take_copy(self, slice_: int, epoch: int, state: int) -> None:
        version = self.copies[slice_][0] if slice_ in self.copies else epoch
        self.copies[slice_] = (version, state)


WRONG = r"found no output|slice \d+ at|which is not on|put away|both applied|cannot read"
"""What a container, a scan or the world says when a slice is not where, or not what, the master believes."""
CONTAINERS = [
    pytest.param({"make_host": AdmitsAnyone}, f"{WRONG}|is active on|got Fence.* after Fence", id="AdmitsAnyone"),
    pytest.param({"make_container": KeepsWhatItPutsAway}, "is active on|past", id="KeepsWhatItPutsAway"),
    pytest.param({"make_container": TakesNothingBack}, WRONG, id="TakesNothingBack"),
    pytest.param({"make_container": RestoresWithoutTheLog}, "is wrong at", id="RestoresWithoutTheLog"),
    pytest.param({"make_container": MixesVersions}, "is wrong at", id="MixesVersions"),
    pytest.param({"looking": False}, "does not know", id="nobody looks who owns the job"),
]
RARE = "KeepsHalfAppliedDestinations"
MASTERS = {
    "BelievesLateAnswers": WRONG,
    "CutsTooMuch": "cut at the newest checkpoint",
    "EndsOwners": "an owner was ended",
    "FinishesBeforeTheCommit": "finished without a commit",
    "ForgetsToReplace": "containers, not",
    "ForgetsToUndo": WRONG,
    "HasTwoOwners": WRONG,
    "HealsHalfway": WRONG,
    "KeepsHalfAppliedDestinations": WRONG,
    "LevelsTooEarly": "too early|before every slice applied",
    "RestoresTooLittle": WRONG,
    "ScansTooEarly": WRONG,
    "SwitchesInsideAnEpoch": WRONG,
    "SwitchesTooEarly": WRONG,
    "TakesActivatedForNewer": WRONG,
    "TakesReadyForActive": WRONG,
    "WaitsForEver": "s after the faults",
}


SEEDS = 2000
"""Forty times as many as a rare bug takes, a minute's work: whoever finds nothing has looked."""
FIRST = {"AdmitsAnyone": 72, "TakesNothingBack": 46, "nobody looks who owns the job": 44, "ForgetsToUndo": 49}
"""Where a search begins that would take long from 1 on; it goes on as any other, and ``--heavy`` begins at 1."""


def find(noticed: str, first: int, **planted: Any) -> None:
    """The first run in which a bug is noticed by those words; it may be noticed otherwise before."""
    otherwise = set()
    for seed in range(first, first + SEEDS):
        try:
            Job(seed, **planted).run()
        except (AssertionError, KeyError) as error:
            if re.search(noticed, repr(error)):
                return
            otherwise.add(repr(error)[:200])
    pytest.fail(f"Nobody noticed. What was said instead: {otherwise}")


@pytest.fixture
def first(request: pytest.FixtureRequest) -> int:
    """The seed to begin with."""
    name = request.node.callspec.id.split("-")[0]
    return 1 if request.config.getoption("--heavy") else FIRST.get(name, 1)


@pytest.mark.parametrize(("planted", "noticed"), CONTAINERS)
def test_a_bug_planted_around_the_master_is_found(planted: dict[str, Any], noticed: str, first: int) -> None:
    find(noticed, first, **planted)


@pytest.mark.parametrize("name", [name for name in MASTERS if name != RARE])
def test_a_bug_planted_in_the_master_is_found(name: str, first: int) -> None:
    find(MASTERS[name], first, make_master=getattr(planted_masters, name))


@pytest.mark.heavy
def test_a_rare_bug_is_found() -> None:
    test_a_bug_planted_in_the_master_is_found(RARE, 1)


def test_the_command_finds_a_planted_bug_and_names_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "4", "--first", "1", "--plant", "planted_masters:CutsTooMuch"]) == 1
    told = capsys.readouterr()
    assert "4 scenarios" in told.out
    assert re.search(r"Failed, by seed: (job \d, )*job \d", told.err)
    assert re.search(r"cut at the newest checkpoint\n  seed \d", told.err)
