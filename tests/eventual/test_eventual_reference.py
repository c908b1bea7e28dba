"""The paper's algorithm against itself: what log and replay make is what was live, wherever it crashes."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from eventual_reference import ByRows, ByTime, Recovered, Row, Slice, Windows, construct, history, recover

HISTORIES = 200
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def windows_of(draw: random.Random) -> Windows:
    if draw.random() < 0.5:
        return ByRows(draw.randint(1, 6))
    every = draw.randint(1, 5)
    return ByTime(every * draw.randint(1, 3), every)


def crashed(seed: int, planted: str = "") -> tuple[Slice, Recovered]:
    """A history with checks of windows at any time, which ends anywhere; live, and brought back."""
    draw = random.Random(seed)
    windows = windows_of(draw)
    rows = list(history(draw, draw.randint(1, 150), draw.randint(1, 8), timed=isinstance(windows, ByTime)))
    live = Slice(windows)
    often = draw.choice((0.0, 0.1, 0.5))
    for row in rows:
        live.take(row)
        while live.state and draw.random() < often:
            live.check(draw.choice(sorted(live.state)))
    return live, recover(windows, live.log, rows, planted)


def test_log_and_replay_make_the_live_state(drill_seed: int) -> None:
    for seed in range(2_000 * (drill_seed - 1), 2_000 * drill_seed):
        live, back = crashed(seed)
        assert back.state == live.state, f"seed {seed}"
        assert not back.told, f"seed {seed}: {back.told}"
        if live.state:
            assert back.replayed == live.behind, f"seed {seed}"


@pytest.mark.parametrize(("planted", "least"), [("NoFloors", 0.1), ("LessInsteadOfLessEqual", 0.1)])
def test_a_planted_bug_is_found(planted: str, least: float) -> None:
    wrong = 0
    for seed in range(HISTORIES):
        live, back = crashed(seed, planted)
        wrong += back.state != live.state or bool(back.told)
    assert wrong >= least * HISTORIES, f"{planted}: {wrong} of {HISTORIES}"


def test_recovery_reads_no_further_than_the_oldest_footprint() -> None:
    for seed in range(HISTORIES):
        live, _ = crashed(seed)
        assert construct(live.log).read <= live.extent, f"seed {seed}"


def test_checks_keep_extent_and_replay_in_bounds() -> None:
    """Enough of them: after every row the oldest windows are written again until both are met."""
    live = Slice(ByRows(50))
    draw = random.Random(1)
    for _ in range(3_000):
        live.take(Row(draw.randrange(40), 1))
        live.steer(q=3 * len(live.state), u=500, most=1_000)
        assert live.extent <= max(3 * len(live.state), 1)
        assert live.behind <= 500


def test_windows_of_busy_keys_checkpoint_themselves() -> None:
    """In time and without a check the oldest footprint is at most two windows behind."""
    live, size = Slice(ByTime(10, 10)), 10
    for time in range(500):
        live.take(Row(time % 3, 1, time))
        assert live.behind <= 2 * size


def test_a_window_that_opens_closes_and_opens_again_is_found_once() -> None:
    live = Slice(ByRows(2))
    rows = [Row(1, value) for value in range(5)]
    for row in rows:
        live.take(row)
    assert [row.kind for row in live.log] == ["open", "result", "open", "result", "open"]
    back = recover(live.windows, live.log, rows)
    assert (back.state, back.replayed) == ({(1,): (1, 4)}, 0)


def test_the_benchmark_of_figures_runs_the_same_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """On columns, with checks that cost nothing, after every row."""
    spec = importlib.util.spec_from_file_location("kit.eventual", BENCHMARKS / "kit" / "eventual.py")
    assert spec is not None
    assert spec.loader is not None
    kit = importlib.util.module_from_spec(spec)  # by its place: "kit" is another one among the tests
    monkeypatch.setitem(sys.modules, spec.name, kit)
    spec.loader.exec_module(kit)
    drawn = np.random.default_rng(1).integers(0, 40, 2_000)
    for q, u in ((1.2, 1e18), (2.0, 1e18), (1e18, 100.0), (1e18, 1e18)):
        live = Slice(ByRows(10))
        checks = 0
        for key in drawn:
            live.take(Row(int(key), 1))
            checks += live.steer(q * len(live.state), u, 10_000)
        found = kit.run(drawn, 40, 10, q, u, 1.0, 1e-9, kit.Costs(check=0.0))
        kinds = [row.kind for row in live.log]
        assert (found.opens, found.results, found.checks) == (kinds.count("open"), kinds.count("result"), checks)
        assert found.behind == live.behind
