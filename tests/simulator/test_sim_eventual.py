"""Shipped containers under eventual checkpoints in the simulated job; and the design's bugs, planted in them.

Units that come in too early are missing here: no stage of this job has event time, so nothing could show it. They are
found in ``tests/eventual``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from holdfast.driver.units import Written
from holdfast.errors import HoldfastError
from holdfast.invariants import Impossible
from holdfast.log import footprints
from holdfast.log.footprints import Footprints
from holdfast.operators.marked import Floors, Marked
from holdfast.operators.unit_table import EPOCH
from holdfast.state.table_slice import TableSlice
from simulator.eventual import EventualJob

pytestmark = pytest.mark.long
SEEDS = 200


def test_whatever_dies_the_log_has_every_unit() -> None:
    for seed in range(1, 9):
        EventualJob(seed).run()


@pytest.mark.heavy
def test_whatever_dies_the_log_has_every_unit_over_many_seeds() -> None:
    for seed in range(9, 201):
        EventualJob(seed).run()


def test_a_seed_tells_the_same_story_twice() -> None:
    first, second = (EventualJob(7, trace=True) for _ in range(2))
    assert first.run() == second.run()
    assert first.world.notes == second.world.notes


# --- planted bugs ---------------------------------------------------------------------------------------------


class OldOwnersTail(Written):
    """A new owner's first entry does not follow those of the old one: every container has a chain of its own."""

    tails: dict[tuple[str, int, str | None], int]

    def named(self, epoch: int, owners: Sequence[str | None]) -> tuple[Footprints | None, tuple[bytes, ...]]:
        found, attached = super().named(epoch, owners)
        assert found is not None
        entries: dict[str, dict[int, tuple[int, int]]] = {}
        for stage, of in found.entries.items():
            for number, (file, _) in of.items():
                whose = stage, number, owners[number]
                entries.setdefault(stage, {})[number] = file, self.tails.get(whose, 0)
                self.tails[whose] = epoch
        return replace(found, entries=entries), attached


class BothWriteInDual(Written):
    """Of a slice in dual mode the commit has what was written last, by whomever."""

    def named(self, epoch: int, owners: Sequence[str | None]) -> tuple[Footprints | None, tuple[bytes, ...]]:
        assert self.footprints is not None
        of = {(stage, number): one for (stage, number, _), one in self._wrote.get(epoch, {}).items()}
        return self.footprints.after(epoch, [(*key, one) for key, one in sorted(of.items())])


def no_floors(self: Floors, units: Any, epoch: int) -> Any:
    return np.ones(len(units), bool)


def less_instead_of_less_equal(self: Floors, units: Any, epoch: int) -> Any:
    return PAST(self, units, epoch + 1)


def checks_survive_undo(self: TableSlice) -> None:
    at = len(self.tables) - 2
    rows, marks = self.tables[at].rows, self.tables[at].columns[EPOCH][: self.tables[at].rows].copy()
    UNDO(self)
    kept = min(rows, self.tables[at].rows)
    self.tables[at].columns[EPOCH][:kept] = marks[:kept]


def mark_touches_change(self: Marked, work: Any, taken: int) -> None:
    MARK(self, work, taken)
    if work.emitted.entry is not None and work.tables[0].rows:
        work.touch(np.setdiff1d(np.arange(work.tables[0].rows), work.concerned()), 0)


def cuts_above_t(ledger: Any, committed: int) -> int:
    commit = ledger.get_commit(committed)
    return 0 if commit is None else int(commit.footprints.oldest) + 1


def holds_one_footprint(ledger: Any, committed: int) -> int:
    commit = ledger.get_commit(committed)
    return 0 if commit is None else int(commit.footprints.oldest)


def uses_a_torn_tail(self: Any, stage: str, number: int, epoch: int) -> Any:
    try:
        return HISTORY(self, stage, number, epoch)
    except footprints.BadEntry as error:
        head = self._of(error.epoch)[0].entries[stage][number][1]
        return [self.entry(stage, number, head)] if head else []


PAST, UNDO, MARK, HISTORY = Floors.past, TableSlice.undo, Marked.mark, footprints.Chains.history


def first_found(**planted: Any) -> int | None:
    """The first seed that shows it."""
    for seed in range(1, SEEDS + 1):
        try:
            EventualJob(seed, **planted).run()
        except (AssertionError, HoldfastError, Impossible):
            return seed
    return None


@pytest.mark.parametrize(
    ("where", "what", "planted"),
    [
        (Floors, "past", no_floors),
        (Floors, "past", less_instead_of_less_equal),
        (TableSlice, "undo", checks_survive_undo),
        (Marked, "mark", mark_touches_change),
        (footprints, "hold", cuts_above_t),
        (footprints, "hold", holds_one_footprint),
        (footprints.Chains, "history", uses_a_torn_tail),
    ],
    ids=lambda one: one.__name__ if callable(one) and not isinstance(one, type) else "",
)
@pytest.mark.heavy
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, where: Any, what: str, planted: Any) -> None:
    monkeypatch.setattr(where, what, planted)
    assert first_found() is not None


@pytest.mark.parametrize("planted", [OldOwnersTail, BothWriteInDual])
def test_a_bug_in_what_a_commit_names_is_found(planted: type[Written]) -> None:
    OldOwnersTail.tails = {}
    assert first_found(make_written=planted) is not None
