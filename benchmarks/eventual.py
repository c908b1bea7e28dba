"""Continuous eventual checkpoints: the paper's Figures 5 to 9 at the paper's sizes, beside what the paper says of them.

100,000 keys drawn evenly, windows of 10 rows of a key, CI 5 ms of every CP 100 ms (Figures 8 and 9: 10 ms of 25 to
250 ms). It is the paper's algorithm, row by row, on columns, and not Holdfast: what the paper says here is about how
many rows are logged, read and replayed. The clock is simulated. A row costs what makes a window without checks stay
open for the paper's 16.5 s, a check 4 µs; so seconds are of that operator, and ratios are the result. Figure 5 is
about what writing opens costs, and is measured: rows a second of CPU with opens and without, the log on disk, synced.

``product`` is Holdfast's own containers over a store on disk, without Spark: how much of the log a recovery reads and
how many rows it replays, beside what the status had said that it would at most; CPU seconds of that; and, with nothing
ever written again, how many rows a second of CPU a container applies, beside one without units. Spark's part of the
work is not in it, so a whole job loses less than that.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from common import console, median, parser, report, scratch, table
from kit.eventual import Costs, Figures, fast, ids, run
from kit.hosted import OPENS, SLICES, Recovered, hosted
from kit.plots import beside_paper, verdict

from holdfast.safety.policies import Checks

KEYS, SIZE = 100_000, 10
ROWS, QUICK = 6_000_000, 600_000
NEVER = 1e18
CHECKS = Checks(2.0, 1_000_000, 0.005, 0.1, 600.0)
"""As ``hf.Eventual()``."""
Said = tuple[bool, str]


def figure_5(options: argparse.Namespace) -> dict[str, Any]:
    """Windows of 1 row and of 1,000, two keys."""
    rows, log = (2_000_000, 200_000)[options.quick], np.empty((1 << 16, 5), np.int64)
    drawn = ids(rows, 2)
    fast(drawn[:10], 2, 1, log, True)
    shown = table(
        "Figure 5: what opens cost", "windows of", "rows/s without", "with opens", "ratio", "rows logged, ratio"
    )
    found: dict[str, Any] = {}
    for size in (1, 1000):
        speeds: dict[bool, list[float]] = {True: [], False: []}
        logged = {}
        for turn in range(10):
            for opens in (True, False) if turn % 2 else (False, True):
                seconds, logged[opens] = _timed(drawn, size, log, opens)
                speeds[opens].append(rows / seconds)
        ratio = median([a / b for a, b in zip(speeds[True], speeds[False], strict=True)])
        wrote = logged[True] / logged[False]
        shown.add_row(f"{size:,}", f"{median(speeds[False]):,.0f}", f"{median(speeds[True]):,.0f}", f"{ratio:.2f}",
                      f"{wrote:.2f}")  # fmt: skip
        found[f"opens_only_{size}"], found[f"logged_{size}"] = ratio, wrote
        if size == 1:
            found["microseconds"] = 1e6 / median(speeds[True]) - 1e6 / median(speeds[False])
    ratios = [found["opens_only_1"], found["opens_only_1000"]]
    paper = "'drops by less than 10% … across all workloads'; the log is twice as long"
    ours = (
        f"{ratios[0]:.2f} for windows of 1, {ratios[1]:.2f} for windows of 1,000. This operator does nothing but its "
        f"log: an open costs {found['microseconds']:.2f} µs, which is {found['microseconds'] * 1e-6 / Costs().row:.1%} "
        "of a row of the paper's"
    )
    said = min(ratios) >= 0.9, ours
    with _drawn(5, "What does it cost to log every opening?", paper, said, options) as (axis,):
        axis.bar(["windows of 1", "windows of 1,000"], ratios)
        axis.axhline(0.9, linestyle="--")
        axis.set_ylabel("rows a second with opens / without")
    console.print(shown)
    return found


def _timed(drawn: np.ndarray, size: int, log: np.ndarray, opens: bool) -> tuple[float, int]:
    """CPU seconds of the operator and of writing its log, 100 bytes a row of it as in the paper, synced at the end."""
    with tempfile.TemporaryFile() as file:
        began = time.process_time()
        logged = 0
        for part in np.array_split(drawn, 100):
            wrote = fast(part, 2, size, log, opens)
            logged += wrote
            file.write(memoryview(bytes(100 * wrote)))
        file.flush()
        os.fsync(file.fileno())
        return time.process_time() - began, logged


def figure_6(options: argparse.Namespace) -> dict[str, Any]:
    by = {q: _run(options, q=q) for q in (1, 2, 4, 8)}
    extents = {q: one.extent / one.living for q, one in by.items()}
    load = by[8].extent / by[2].extent
    few = by[8].checks / by[1].checks
    agrees = extents[2] <= 2.4 and extents[4] <= 4.8 and few <= 0.1 and load >= 2.5
    _shown("Figure 6: Q", "Q, of open windows", by)
    paper = (
        "Q = 1 is not reached, 2 and 4 are; at 8 the extent is 500,000, the most there can be; checks drop sharply "
        "above 2; loading 5 s at 2, 27 s at 8"
    )
    extent = ", ".join(f"{one.extent:,.0f}" for one in by.values())
    ours = f"extents {extent}; read at 8 / at 2 = {load:.1f}; checks at 8 / at 1 = {few:.2f}"
    with _drawn(6, "How does Q bound the log that recovery reads?", paper, (agrees, ours), options, 3) as axes:
        for axis, name in zip(axes, ("checks", "extent", "behind"), strict=True):
            axis.plot(list(by), [getattr(one, name) for one in by.values()], marker="o", label=name)
            axis.set_xlabel("Q")
    return {f"extent_{q}": value for q, value in extents.items()} | {"load_8_2": load, "checks_8_1": few}


def figure_7(options: argparse.Namespace) -> dict[str, Any]:
    by = {u: _run(options, u=float(u)) for u in (125_000, 250_000, 500_000, 1_000_000)}
    replayed = [one.behind for one in by.values()]
    ratio = replayed[0] / replayed[-1]
    rises = all(a <= b * 1.02 for a, b in itertools.pairwise(replayed))
    _shown("Figure 7: U", "U, rows", by)
    with _drawn(7, "How does U bound what recovery replays?", "200,000 to 900,000 rows replayed; extents 120,000 to "
                "230,000; checks drop, less sharply than with Q",
                (rises and ratio <= 0.35, f"{replayed[0]:,} to {replayed[-1]:,} rows ({ratio:.2f}); extents "
                f"{by[125_000].extent:,.0f} to {by[1_000_000].extent:,.0f}"), options, 3) as axes:  # fmt: skip
        for axis, name in zip(axes, ("checks", "extent", "behind"), strict=True):
            axis.plot(list(by), [getattr(one, name) for one in by.values()], marker="o", label=name)
            axis.set_xlabel("U")
    return {"replay_125k_1m": ratio, "rises": rises}


def figures_8_9(options: argparse.Namespace, figure: int) -> dict[str, Any]:
    none = _run(options)
    by = {cp: _run(options, q=1, ci=0.01, cp=cp / 1000) for cp in (25, 50, 100, 250)}
    off = {cp: one.seconds / none.seconds * (1 - 10 / cp) for cp, one in by.items()}
    extents = by[250].extent / by[25].extent
    _shown(f"Figure {figure}: CP, with CI 10 ms and Q 1", "CP, ms", {0: none, **by})
    answers = ", ".join(f"{one.open_seconds:.1f}" for one in (none, by[100], by[50], by[25]))
    if figure == 8:
        worst = max(abs(one - 1) for one in off.values())
        said = worst <= 0.1, f"{answers} s; time by 1 / (1 - CI/CP) to {worst:.0%}"
        question, name = "How long is a window open?", "open_seconds"
        paper = "16.5 s without checks, 18.5, 21.5 and 32.5 s with CP 100, 50 and 25 ms"
    else:
        said = extents >= 1.5, f"{by[25].extent:,.0f} to {by[250].extent:,.0f} rows, {extents:.2f} times as many"
        question, name = "How long is the log that recovery reads?", "extent"
        paper = "longer CP, longer extent; loading from 2 s to 5 s"
    with _drawn(figure, question, paper, said, options) as (axis,):
        axis.plot(list(by), [getattr(one, name) for one in by.values()], marker="o")
        axis.set_xlabel("CP, ms")
        axis.set_ylabel(name.replace("_", " "))
    return {f"time_{cp}": value for cp, value in off.items()} | {"extent_250_25": extents}


def product(options: argparse.Namespace) -> dict[str, Any]:
    sizes, rows = ((20_000, 50_000), 20_000) if options.quick else ((500_000, 2_000_000), 200_000)
    shown = table(
        "Holdfast's containers: a recovery of all slices", "state", "units", "extent, MB", "log read, MB",
        "of the extent", "rows replayed", "of those since", "CPU s", "of the whole log"
    )  # fmt: skip
    found: dict[str, Any] = {}
    within = True
    for kind in ("running", "tumbling"):
        for keys in sizes:
            (one, units, extent, behind), (bare, *_) = (
                _recovered(kind, keys, rows, checks) for checks in (CHECKS, None)
            )
            read, since = one.nbytes / max(extent, 1), one.rows / max(behind, 1)
            within &= one.nbytes <= 1.1 * extent + SLICES * (256 << 10) and one.rows <= 1.1 * behind + rows
            shown.add_row(kind, f"{units:,}", f"{extent / 1e6:,.1f}", f"{one.nbytes / 1e6:,.1f}", f"{read:.2f}",
                          f"{one.rows:,}", f"{since:.2f}", f"{one.seconds:.2f}", f"{bare.seconds:.2f}")  # fmt: skip
            found |= {f"{kind}_{keys}_bytes_vs_extent": read, f"{kind}_{keys}_rows_vs_u": since}
            found |= {f"{kind}_{keys}_cpu_seconds": one.seconds, f"{kind}_{keys}_cpu_seconds_whole_log": bare.seconds}
    console.print(shown)
    console.print(
        verdict(within, "bytes read ≤ 1.1 × extent + 256 KB a slice, rows replayed ≤ 1.1 × u + an epoch") + "\n"
    )
    for kind in ("windows of 1", "windows of 1,000", "tumbling"):
        ratios = []
        for turn in range(2 if options.quick else 5):
            seconds = {}
            for checks in (OPENS, None) if turn % 2 else (None, OPENS):
                seconds[checks is None] = _applied(kind, rows, checks)
            ratios.append(seconds[True] / seconds[False])
        console.print(f"Opens only, {kind}: {median(ratios):.2f} of the rows a second of CPU in a container ({ratios})")
        found[f"opens_only_container_{kind.replace(' ', '_').replace(',', '')}"] = median(ratios)
    return found | {"within": within}


def _recovered(kind: str, keys: int, rows: int, checks: Checks | None) -> tuple[Recovered, int, float, int]:
    """After every key once and thirty epochs: what a recovery took; living units, bytes of the log back to the oldest
    footprints, and rows of the input since then."""
    draw = np.random.default_rng(1)
    with scratch() as folder, hosted(folder, kind, checks) as made:
        made.epoch(draw.permutation(keys))
        for epoch in range(1, 31):
            made.epoch(draw.integers(0, keys, rows), 1_000_000 * epoch)
        units, extent, behind = made.extent
        logged = made.logged if checks is not None else 0
        return made.recovered(), units, made.log_bytes / max(logged, 1) * extent, behind


def _applied(kind: str, rows: int, checks: Checks | None) -> float:
    """CPU seconds of ten epochs, behind two that are not counted."""
    draw = np.random.default_rng(1)
    with scratch() as folder, hosted(folder, kind, checks) as made:
        return sum([made.epoch(draw.integers(0, rows, rows), 1_000_000 * epoch) for epoch in range(12)][2:])


def _run(
    options: argparse.Namespace, q: float = NEVER, u: float = NEVER, ci: float = 0.005, cp: float = 0.1
) -> Figures:
    """At a tenth of the size a tenth of everything: a quick run's figures are those of a tenth of the keys."""
    scale = 10 if options.quick else 1
    drawn = ids(ROWS // scale, KEYS // scale)
    without = q == NEVER == u
    found = run(
        drawn, KEYS // scale, SIZE, q, u / scale if u != NEVER else u, 0.0 if without else ci / scale, cp / scale
    )
    return replace(found, extent=found.extent * scale, behind=found.behind * scale, living=found.living * scale,
                   checks=found.checks * scale, seconds=found.seconds * scale,
                   open_seconds=found.open_seconds * scale)  # fmt: skip


def _shown(title: str, what: str, by: dict[int, Figures]) -> None:
    shown = table(title, what, "checks", "extent", "of open windows", "rows to replay", "window open, s")
    for value, one in by.items():
        shown.add_row(f"{value:,}", f"{one.checks:,}", f"{one.extent:,.0f}", f"{one.extent / one.living:.2f}",
                      f"{one.behind:,}", f"{one.open_seconds:.1f}")  # fmt: skip
    console.print(shown)


def _drawn(number: int, question: str, paper: str, said: Said, options: argparse.Namespace, panels: int = 1) -> Any:
    told = verdict(*said)
    console.print(f"The paper: {paper}.\n{told}\n")
    return beside_paper(f"eventual-{number}", question, f"CEC, Figure {number}: {paper}", told, options.quick, panels)


FIGURES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "5": figure_5,
    "6": figure_6,
    "7": figure_7,
    "8": lambda options: figures_8_9(options, 8),
    "9": lambda options: figures_8_9(options, 9),
    "product": product,
}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--figure", choices=FIGURES, nargs="+", default=list(FIGURES))
    options = made.parse_args()
    found: dict[str, Any] = {}
    for figure in options.figure:
        prefix = figure if figure == "product" else f"figure_{figure}"
        found |= {f"{prefix}_{name}": value for name, value in FIGURES[figure](options).items()}
    report(table("All of them with the paper's sizes" if not options.quick else "Quick"), found)


if __name__ == "__main__":
    main()
