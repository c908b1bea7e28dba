"""What a neighbour notices when state is moved: PostgreSQL's throughput, with pgbench on the same machine.

A job at half of the load that it can carry beside the database goes from one container to two and back, which moves
half of its keys each time: by reconstruction from backups, and by stop-and-copy (ChronoStream, Fig. 15). Then the same
for its threads, by the thread table and by repartition (Fig. 17). Before is the same job at the same load, undisturbed.
Needs PostgreSQL (Debian: ``apt-get install postgresql``).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from common import choose, measure_apart, median, parser, report, scratch, session, table
from kit import baselines
from kit.changes import watch
from kit.contestants import Holdfast, under_load
from kit.load import Files
from kit.neighbour import Neighbour
from kit.plots import plot

RECONSTRUCT, STOP_AND_COPY, TABLE, REPARTITION = "reconstruct", "stop-and-copy", "table", "repartition"
LEAST = 3.0  # seconds of a window: fewer samples say nothing, and a short disturbance is not blown up by them
CHANGES: dict[str, Callable[[Any, int], None]] = {
    RECONSTRUCT: lambda run, count: run.scale(containers=count),
    STOP_AND_COPY: baselines.scale_stopped,
    TABLE: lambda run, count: run.scale(threads=count),
    REPARTITION: baselines.repartition,
}
NOTE = "Database, Spark and containers share them, so everybody disturbs everybody, also before the change."


def compete(method: str, options: argparse.Namespace) -> dict[str, Any]:
    import holdfast as hf

    with (
        session(options.memory) as spark,
        scratch() as folder,
        Neighbour(options.scale, options.clients) as neighbour,
    ):
        safety = hf.Delta(backups=1, every="3 s", store_every="60 s")
        made = Holdfast(spark, folder, Files(folder, 2 * options.keys), containers=1, threads=1, safety=safety)
        windows = []
        try:
            with under_load(made, options.burst, options.calm) as loaded:
                for count in (2, 1) * options.repeat:
                    change = lambda count=count: CHANGES[method](made.run, count)  # noqa: E731
                    start = time.time()
                    one = watch(made, loaded, f"to {count}", change, options.calm)
                    windows.append((start, start + max(LEAST, one.seconds)))
        finally:
            made.stop()
        return {
            "before": neighbour.during(loaded.calm_from, loaded.calm_to),
            "during": [tps for start, end in windows for tps in neighbour.during(start, end)],
            "line": [(at - loaded.calm_from, tps) for at, tps in neighbour.found if at > loaded.calm_from],
            "windows": [(start - loaded.calm_from, end - loaded.calm_from) for start, end in windows],
        }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--keys", type=int, default=2_000_000, help="that are moved each time: half of the state")
    made.add_argument("--calm", type=float, default=15, help="seconds before and after each change")
    made.add_argument("--repeat", type=int, default=2, help="how often out and back")
    made.add_argument("--burst", type=int, default=2_000_000, help="rows with which the maximum is measured")
    made.add_argument("--scale", type=int, default=20, help="pgbench's: 100,000 accounts each")
    made.add_argument("--clients", type=int, default=2, help="of pgbench")
    choose(made, [RECONSTRUCT, STOP_AND_COPY, TABLE, REPARTITION])
    options = made.parse_args()
    if options.quick:
        options.keys, options.calm, options.repeat, options.burst, options.scale = 100_000, 10, 1, 200_000, 2
        options.contestants = [name for name in options.contestants if name == RECONSTRUCT]
    if options.contestant:
        print(json.dumps(compete(options.contestant, options)))
        return

    measured = {name: measure_apart(name) for name in options.contestants}
    shown = table(
        f"pgbench -S beside a job that moves {options.keys:,} keys",
        *("way", "tps before", "tps during", "of before", "worst second"),
    )
    result: dict[str, Any] = {}
    names = {RECONSTRUCT: "reconstruction", STOP_AND_COPY: "stop_and_copy"}
    for name, one in measured.items():
        before, during = median(one["before"]), sum(one["during"]) / len(one["during"])
        shown.add_row(name, f"{before:,.0f}", f"{during:,.0f}", f"{during / before:.0%}", f"{min(one['during']):,.0f}")
        short = names.get(name, name)
        result |= {f"tps_{short}": during, f"tps_before_{short}": before, f"kept_{short}": during / before}
    result["tps_before"] = median([median(one["before"]) for one in measured.values()])
    question = "What does a neighbour notice when state is moved?"
    panels = len(measured)
    paper = "ChronoStream Fig. 15 and 17"
    with plot("neighbour", question, paper, NOTE, panels=panels, quick=options.quick) as axes:
        top = max(tps for one in measured.values() for _, tps in one["line"])
        for axis, (name, one) in zip(axes, measured.items(), strict=True):
            axis.plot(*zip(*one["line"], strict=True), linewidth=1)
            for start, end in one["windows"]:
                axis.axvspan(start, end, alpha=0.2, color="tab:red", linewidth=0)
            axis.set_title(name)
            axis.set_xlabel("seconds; red: a change")
            axis.set_ylabel("transactions a second")
            axis.set_ylim(0, 1.05 * top)
    report(shown, result)


if __name__ == "__main__":
    main()
