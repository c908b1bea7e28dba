"""Log and replay make the live slice, for every kind of operator whose state can be cut into units."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from units_kit import KINDS, Given, Live, crashed, difference, history, rows_of

from holdfast.container import footprints as recovering
from holdfast.container.footprints import Recovery
from holdfast.errors import CorruptionError, HoldfastError
from holdfast.invariants import Impossible
from holdfast.log import footprints
from holdfast.operators.distinct import DistinctSpec
from holdfast.operators.kinds import KINDS as SPECS
from holdfast.operators.marked import Floors, Marked, largest_units
from holdfast.operators.unit_table import EPOCH, POSITION, TAKEN, TOTAL_LOGGED, TOTAL_TAKEN, Pace
from holdfast.state.slice import EpochTime
from holdfast.state.table_slice import TableSlice

SEEDS = 4
FEW = ("running", "tumbling", "sliding", "session", "join")


@pytest.mark.parametrize("kind", KINDS)
def test_log_and_replay_make_the_live_slice(kind: str, drill_seed: int) -> None:
    assert KINDS[kind].undivided is None
    first = 100 * (drill_seed - 1)
    for seed in range(first, first + SEEDS):
        live, back = crashed(kind, seed)
        assert difference(live, back) == "", f"seed {seed}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_a_footprint_of_every_unit_in_it(kind: str) -> None:
    for seed in range(SEEDS):
        live, back = crashed(kind, seed, rebased=True)
        assert difference(live, back) == "", f"seed {seed}"


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_log_and_replay_make_the_live_slice_over_many_histories(kind: str) -> None:
    """80 and 20 of each kind: 2,600 in all."""
    for seed in range(SEEDS, SEEDS + 100):
        live, back = crashed(kind, seed, rebased=seed % 5 == 0)
        assert difference(live, back) == "", f"seed {seed}"


def test_every_kind_is_tried_or_refused() -> None:
    tried = {spec.kind for spec in KINDS.values()}
    assert set(SPECS) - tried == {"lookup"}
    assert "hf.Delta" in (SPECS["lookup"].undivided.fget(_Lookup) or "")  # type: ignore[attr-defined]
    filtered = DistinctSpec(KINDS["distinct"].keys, (), None, None, (1000, 0.01))
    assert "Bloom" in (filtered.undivided or "")


class _Lookup:
    label = "lookup"


# --- planted bugs ---------------------------------------------------------------------------------------------


def no_floors(self: Floors, units: Any, epoch: int) -> Any:
    """Units that were over open again."""
    return np.ones(len(units), bool)


def less_instead_of_less_equal(self: Floors, units: Any, epoch: int) -> Any:
    return PAST(self, units, epoch + 1)


def inserts_early(self: Any, state: Any, epoch: int) -> None:
    if epoch - 1 == self.oldest:
        for at in sorted(set(self._epochs.tolist())):
            self._insert(state, at)
    if epoch - 1 == self.through:
        self._check(state)


def checks_survive_undo(self: TableSlice) -> None:
    """The marks of an epoch that was taken back stay as it made them."""
    units = len(self.tables) - 2
    table = self.tables[units]
    rows, marks = table.rows, table.columns[EPOCH][: table.rows].copy()
    UNDO(self)
    table = self.tables[units]
    kept = min(rows, table.rows)
    table.columns[EPOCH][:kept] = marks[:kept]


def mark_touches_change(self: Marked, work: Any, taken: int) -> None:
    """Footprints in the operator's own table: a check changes rows, and those of a running aggregate are put out."""
    MARK(self, work, taken)
    if work.emitted.entry is not None and work.tables[0].rows:
        work.touch(np.arange(work.tables[0].rows), 0)


def uses_a_torn_tail(self: Recovery, stage: str, marked: Marked, number: int) -> Any:
    """What can be read of a history is taken for all of it."""
    try:
        history = self._chains.history(stage, number, self._epoch)
    except CorruptionError:
        head = self._chains.head(stage, number, self._epoch)
        before = self._chains._of(head[0])[0].entries[stage][number][1]
        history = [self._chains.entry(stage, number, before)] if before else []
    return recovering.Recovering(marked, history, self._epoch)


PAST, UNDO, MARK = Floors.past, TableSlice.undo, Marked.mark


def found(kind: str, seeds: int, damage: Callable[[Live], None] | None = None) -> int:
    """In how many histories something is wrong, or refused."""
    wrong = 0
    for seed in range(seeds):
        draw = random.Random(f"{kind} {seed}")
        live = Live(KINDS[kind], draw)
        try:
            for given in history(draw, live.spec, draw.randint(2, 14)):
                live.apply(given)
            if damage is not None:
                damage(live)
            wrong += difference(live, live.recovered()[0], marks=damage is None) != ""
        except (HoldfastError, Impossible):
            wrong += 1
    return wrong


@pytest.mark.parametrize(
    ("where", "what", "planted", "kind", "least"),
    [
        (Floors, "past", no_floors, "tumbling", 3),
        (Floors, "past", less_instead_of_less_equal, "running", 3),
        (recovering.Recovering, "before", inserts_early, "sliding", 1),
        (TableSlice, "undo", checks_survive_undo, "running", 3),
        (Marked, "mark", mark_touches_change, "running", 3),
    ],
    ids=["NoFloors", "LessInsteadOfLessEqual", "InsertsEarly", "ChecksSurviveUndo", "MarkTouchesChange"],
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, where: Any, what: str, planted: Any, kind: str, least: int
) -> None:
    assert found(kind, 30) == 0
    monkeypatch.setattr(where, what, planted)
    assert found(kind, 30) >= least


def torn(live: Live) -> None:
    """The newest entry is not what was committed."""
    for epoch in sorted(live.ledger.commits, reverse=True):
        commit = live.log.get_commit(epoch)
        assert commit is not None
        assert commit.footprints is not None
        for one in commit.footprints.files:
            if one.inline is None:
                live.ledger.section.files[one.name] = live.ledger.section.files[one.name][:-1]
                return


def test_a_torn_tail_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovering, "INLINE_BYTES", 0)
    assert sum(found(kind, 12, torn) for kind in FEW) == 0
    monkeypatch.setattr(Recovery, "of", uses_a_torn_tail)
    assert sum(found(kind, 12, torn) for kind in FEW) > 0


# --- files that go bad ----------------------------------------------------------------------------------------


def a_history(kind: str, epochs: int = 8) -> Live:
    draw = random.Random(3)
    live = Live(KINDS[kind], draw)
    for given in history(draw, live.spec, epochs):
        live.apply(given)
    return live


def recovers_or_refuses(live: Live) -> bool:
    """Whether it comes back, and then as it was; what is refused names a file."""
    try:
        back, _ = live.recovered()
    except CorruptionError:
        return False
    own = range(live.marked.units_table)
    assert rows_of(live.state, own) == rows_of(back, own)
    return True


@pytest.mark.parametrize("kind", FEW)
def test_the_newest_file_cut_at_every_byte_and_with_any_bit_flipped(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The log above is whole, so the state comes back, whatever is wrong with an entry."""
    monkeypatch.setattr(recovering, "INLINE_BYTES", 0)
    live = a_history(kind)
    files = live.ledger.section.files
    for name in (sorted(files)[-1], sorted(files)[len(files) // 2]):
        whole = files[name]
        step = max(1, len(whole) // 60)
        for size in range(0, len(whole), step):
            files[name] = whole[:size]
            assert recovers_or_refuses(live)
        for at in range(0, len(whole), step):
            files[name] = whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
            assert recovers_or_refuses(live)
        del files[name]
        assert recovers_or_refuses(live)
        files[name] = whole
    assert recovers_or_refuses(live)


def test_a_commit_that_went_bad_is_done_without() -> None:
    live = a_history("tumbling")
    for epoch in (3, 5, live.state.epoch - 1):
        whole = live.ledger.commits[epoch]
        for at in range(0, len(whole), max(1, len(whole) // 40)):
            live.ledger.commits[epoch] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
            assert recovers_or_refuses(live)
        live.ledger.commits[epoch] = whole


# --- what is held, and what it costs ---------------------------------------------------------------------------


def cuts_above_t(ledger: Any, committed: int) -> int:
    commit = ledger.get_commit(committed)
    return int(commit.footprints.oldest) + 1


def without_one_entry(hold: Callable[[Any, int], int]) -> int:
    """Whichever entry is bad, what is above the hold is all that there is: how often that was too little."""
    missed = 0
    for seed in range(12):
        draw = random.Random(seed)
        live = Live(KINDS["running"], draw)
        live.pace = a_pace  # type: ignore[method-assign]
        for given in history(draw, live.spec, 25):
            live.apply(given)
        keep = hold(live.log, live.state.epoch)
        for epoch in [one for one in live.ledger.commits if one < keep]:
            del live.ledger.commits[epoch]
        files = live.ledger.section.files
        for name in [one for one in files if (footprints.epoch_of(one) or 0) < keep]:
            del files[name]
        for gone in range(min(keep, len(live.inputs))):
            live.inputs[gone] = None  # type: ignore[call-overload]
        for name in ["", *sorted(files)]:
            whole = files.pop(name, b"")
            try:
                missed += not recovers_or_refuses(live)
            except TypeError:  # an epoch was asked for that is gone
                missed += 1
            if name:
                files[name] = whole
    return missed


def test_log_above_the_hold_brings_it_back_also_when_one_entry_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovering, "INLINE_BYTES", 0)
    assert without_one_entry(footprints.hold) == 0
    assert without_one_entry(cuts_above_t) > 0


def test_a_long_history_of_small_entries_is_read_no_further_than_the_oldest_footprint() -> None:
    live = Live(KINDS["running"], random.Random(1))
    live.pace = lambda: Pace(1.0, 0.01, 1e-12, each=1.0)  # type: ignore[method-assign]
    live.apply(Given(([(1, (key, "x"), (key, None, 0)) for key in range(96)],), EpochTime()))
    for epoch in range(80):
        live.apply(Given(([(1, (epoch % 96, "x"), (1, None, 0))],), EpochTime()))
    keep = live.footprints.oldest
    assert keep > 10
    for epoch in [one for one in live.ledger.commits if one < keep]:
        del live.ledger.commits[epoch]
    back, replayed = live.recovered()
    assert difference(live, back) == ""
    assert replayed == live.state.epoch - 3 - keep


def a_pace() -> Any:
    return Pace(1.0, 0.5, 10.0)


def test_recovery_reads_and_replays_no_more_than_the_pace_allows() -> None:
    live = Live(KINDS["running"], random.Random(5))
    live.pace = a_pace  # type: ignore[method-assign]
    for given in history(live.draw, live.spec, 60):
        live.apply(given)
    commit = live.log.get_commit(live.state.epoch)
    assert commit is not None
    assert commit.footprints is not None
    assert live.state.epoch - commit.footprints.oldest < 10


def test_recovery_reads_the_extent_and_replays_what_was_not_written_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth and 256 KB more than the log back to the oldest footprint; a tenth and an epoch more rows than since
    then."""
    monkeypatch.setattr(recovering, "INLINE_BYTES", 0)
    live, paces = Live(KINDS["running"], random.Random(1)), list[Pace]()
    keys, rows, draw = 10_000, 2_000, np.random.default_rng(1)

    def pace() -> Pace:
        paces.append(Pace(2.0, 0.8, 1e-12, each=1.0))  # one turn of checks an epoch
        return paces[-1]

    live.pace = pace  # type: ignore[method-assign]
    live.draw = Never()  # type: ignore[assignment]
    live.apply(Given(([(1, (key, "x"), (key, None, 0)) for key in range(keys)],), EpochTime()))
    for _ in range(40):
        drawn = draw.integers(0, keys, rows).tolist()
        live.apply(Given(([(1, (key, "x"), (key, None, 0)) for key in drawn],), EpochTime()))
    recovery = Recovery(live.log, live.state.epoch)
    _, replayed = live.recovered(recovery)
    units, totals = (live.state.tables[at] for at in (live.marked.units_table, live.marked.totals_table))
    logged, taken = int(totals.columns[TOTAL_LOGGED][0]), int(totals.columns[TOTAL_TAKEN][0])
    position, since = (int(units.columns[at][: units.rows].min()) for at in (POSITION, TAKEN))
    extent, behind = logged - position + 1, taken - since
    nbytes = sum(map(len, live.ledger.section.files.values())) / logged * extent
    assert recovery.nbytes <= 1.1 * nbytes + (256 << 10)
    assert recovery.nbytes >= 0.5 * nbytes, "it was read"
    assert replayed * rows <= 1.1 * behind + rows
    assert replayed > 0
    print(f"bytes_vs_extent {recovery.nbytes / nbytes:.3f}, rows_vs_u {replayed * rows / behind:.3f}")
    told = paces[-1]
    assert (told.living, told.q, told.u) == (keys, extent, behind), "and people are told so"
    assert largest_units(live.marked, [live.state]) == (1,) * 10


class Never(random.Random):
    """No epoch is taken back, and every one has its pace."""

    def random(self) -> float:
        return 1.0


def test_windows_of_rows_that_are_not_numbered_close_and_open_again() -> None:
    """A key without an open window is gone; one that begins another in the same epoch has its footprint there."""
    live = Live(KINDS["rows, not numbered"], random.Random(1))
    live.pace = lambda: None  # type: ignore[method-assign]

    def rows(count: int) -> Given:
        return Given(([(1, (1, "x"), (value, None, 0)) for value in range(count)],), EpochTime())

    for count, (living, oldest) in zip(
        (2, 1, 2, 3, 1, 7), ((1, 1), (0, 2), (1, 3), (1, 4), (0, 5), (1, 6)), strict=True
    ):
        live.apply(rows(count))
        assert live.footprints.heads["s"][0][1:] == (living, oldest)
        assert live.state.rows == living
    back, replayed = live.recovered()
    assert difference(live, back) == ""
    assert replayed == 0


def test_a_wrong_count_is_noticed() -> None:
    """Rows of a unit that the log lost are not made up for."""
    live = a_history("running", 12)
    chains = footprints.Chains(live.log)
    read = chains.history("s", 0, live.state.epoch)
    (entry,) = [one for one in read[-1:] if len(one.units)]
    shorter = [table.slice(0, table.num_rows - 1) for table in entry.tables]
    object.__setattr__(entry, "tables", shorter)
    found = recovering.Recovering(live.marked, read, live.state.epoch)
    state = found.begin()

    def back() -> None:
        for epoch in range(found.oldest + 1, live.state.epoch + 2):
            found.before(state, epoch)
            if epoch <= live.state.epoch:
                state.run_by(found.operator)
                rows, time = live.inputs[epoch - 1]
                state.apply(epoch, *rows, time=time)
                state.release(epoch)

    with pytest.raises(CorruptionError, match="is not what was counted"):
        back()
