"""Graphs that change under a simulated job of shipped containers; and bugs about changes, which must be found."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.container.job import HostedJob
from holdfast.errors import HoldfastError
from holdfast.log import janitor
from holdfast.log.ledger import Ledger
from holdfast.log.records import Prepare
from simulator.__main__ import main
from simulator.changing import ChangingJob, ChangingStore, Seen, Terms
from simulator.shipped import digest

pytestmark = pytest.mark.long
SEEDS = 200


def test_whatever_is_added_emptied_and_removed_each_epoch_is_by_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scenario", "changes", "--seeds", "8", "--first", "305"]) == 0
    assert "8 scenarios in" in capsys.readouterr().out


def test_changes_are_made_and_come_into_force() -> None:
    """A run without one shows nothing."""
    made = 0
    for seed in range(1, 6):
        job = ChangingJob(seed)
        job.run()
        store: Any = job.job.store
        assert {version for version, _ in store.epochs.values()} <= store.terms.keys()
        made += len({version for version, _ in store.epochs.values()}) - 1
    assert made >= 4


def test_a_seed_tells_the_same_story_twice() -> None:
    first, second = (ChangingJob(5, trace=True) for _ in range(2))
    assert first.run() == second.run()
    assert first.world.notes == second.world.notes


def test_a_container_is_judged_by_the_stages_that_it_has() -> None:
    store = ChangingStore(1, 4, ())
    store._held = [{}, {"counts": {4: (1, 5, frozenset([5]))}, "values": {4: (1, 5, frozenset([5]))}}]

    def seen(rows: Sequence[tuple[object, ...]], *stages: str) -> Seen:
        found = Seen(digest(rows))
        found.stages = frozenset(stages)
        return found

    store.check_state(0, 1, seen([("counts", 4, 1, 5)], "counts"), "it")
    store.check_state(0, 1, seen([("counts", 4, 1, 5), ("values", 4, 1, 0)], "counts", "values"), "it")
    with pytest.raises(AssertionError, match="slice 0 is wrong at position 1"):
        store.check_state(0, 1, seen([("counts", 4, 1, 5)], "counts", "values"), "it")
    assert Terms().names == {"counts", "values"}


# ------------------------------------------------------------------------------------------------ planted bugs


class GoesOnByTheOldGraph(HostedJob):
    def adopt(self, version: int) -> None:
        pass


class ForgetsToEmpty(HostedJob):
    def apply(self, prepare: Prepare, slices: Sequence[int], *, shadow: bool = False) -> Any:
        return super().apply(replace(prepare, resets=()), slices, shadow=shadow)


class KeepsWhatIsRemoved(HostedJob):
    """A stage that is gone stays, as it was."""

    def adopt(self, version: int) -> None:
        before = dict(self.stages)
        super().adopt(version)
        for name, stage in before.items():
            self.stages.setdefault(name, stage)


def knows_the_first_graph_only(ledger: Ledger) -> None:
    return None


def all_but_the_newest(held: Any, *_: Any) -> list[str]:
    return [f"graph/{version:010d}.json" for version in sorted(held.graphs)[:-1]]


def find(noticed: str, first: int = 1, **planted: Any) -> int:
    """The first run from there on in which a bug is noticed by those words; it may be noticed otherwise before."""
    otherwise = set()
    for seed in range(first, first + SEEDS):
        try:
            ChangingJob(seed, **planted).run()
        except (AssertionError, KeyError, HoldfastError, TypeError, ValueError) as error:
            if re.search(noticed, repr(error)):
                return seed
            otherwise.add(repr(error)[:200])
    pytest.fail(f"Nobody noticed. What was said instead: {otherwise}")


@pytest.mark.parametrize(
    ("planted", "noticed"),
    [
        (GoesOnByTheOldGraph, "a later graph of the job than the one"),
        (ForgetsToEmpty, "is wrong at position|saw unlike rows"),
        (KeepsWhatIsRemoved, "other stages than graph"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_bug_planted_in_a_container_is_found(planted: type[HostedJob], noticed: str) -> None:
    find(noticed, make_job=planted)


@pytest.mark.parametrize(
    ("where", "what", "planted", "noticed", "first"),
    [
        (Ledger, "_counting", knows_the_first_graph_only, "was in force", 1),
        (janitor, "graphs_may_go", all_but_the_newest, "is missing|was in force|s after the faults", 70),
    ],
    ids=["a start forgets changes", "graphs go that the log is in terms of"],
)
def test_a_bug_planted_in_the_store_is_found(
    where: Any, what: str, planted: Callable[..., Any], noticed: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, what, planted)
    find(noticed, first)
