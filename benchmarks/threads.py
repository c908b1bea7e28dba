"""How long a job pauses when a container's threads go from one to two and back, with the state growing.

The thread table, changed inside an epoch, against state that is repartitioned for the new number of threads while
everything waits (ChronoStream, Fig. 16). Also whether threads really run side by side: the cores that the container
keeps busy at its best moments, with one thread and with two.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from typing import Any

from common import choose, measure_apart, parser, report, scratch, session, table
from kit import baselines
from kit.changes import watch
from kit.contestants import Holdfast, Sampler, cpu_seconds, under_load
from kit.load import Files
from kit.plots import millions, plot

TABLE, REPARTITION = "table", "repartition"
STEPS = (2, 1)
NOTE = "Spark needs them too: two busy threads of one container are the most that can be seen here."
PACE = 0.05  # seconds between looks at the CPU clock, which ticks every hundredth


def busiest(made: Holdfast, burst: int) -> float:
    """The cores in use in the container's busiest tenth of a second or so, while it takes a burst."""
    pids = made.pids()
    files = made.files.random(max(1, burst // 8), 8)
    with Sampler(lambda: sum(cpu_seconds(pids).values()), PACE) as sampler:
        for file in files:
            made.files.give(file)
        made.process_all()
    # Two looks together, or the clock's ticks would show cores that are not there.
    rates = sampler.rates()
    return max(((one + two) / 2 for one, two in pairwise(rates)), default=0.0)


def resize(run: Any, method: str, threads: int) -> None:
    baselines.repartition(run, threads) if method == REPARTITION else run.scale(threads=threads)


def compete(method: str, keys: int, options: argparse.Namespace) -> dict[str, Any]:
    import holdfast as hf

    with session(options.memory) as spark, scratch() as folder:
        safety = hf.Delta(backups=0, every="3 s", store_every="60 s")  # one container has no peers
        made = Holdfast(spark, folder, Files(folder, keys), containers=1, threads=1, safety=safety)
        try:
            changes = []
            with under_load(made, options.burst, options.calm) as loaded:
                for count in STEPS:
                    change = lambda count=count: resize(made.run, method, count)  # noqa: E731
                    changes.append(watch(made, loaded, f"to {count}", change, options.calm))
            cores = {}
            for count in (1, 2):
                resize(made.run, method, count)
                made.run.await_settled(60)
                cores[count] = busiest(made, options.burst)
            return {"changes": [one.to_dict() for one in changes], "cores": cores}
        finally:
            made.stop()


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--states", type=int, nargs="+", default=[500_000, 2_000_000, 8_000_000], help="keys, growing")
    made.add_argument("--calm", type=float, default=15, help="seconds before and after each change")
    made.add_argument("--burst", type=int, default=2_000_000, help="rows with which the maximum is measured")
    choose(made, [TABLE, REPARTITION])
    options = made.parse_args()
    if options.quick:
        options.states, options.calm, options.burst = [100_000], 6, 200_000
    if options.contestant:
        method, keys = options.contestant.split(":")
        print(json.dumps(compete(method, int(keys), options)))
        return

    measured: dict[str, list[dict[str, Any]]] = {
        name: [measure_apart(f"{name}:{keys}") for keys in options.states] for name in options.contestants
    }
    shown = table(
        "Threads 1 → 2 → 1 of a container at half load, trigger 1 s",
        *("way", "keys", "change", "gap s", "in median epochs", "settled s"),
    )
    gaps: dict[str, list[float]] = {}
    for name, by_state in measured.items():
        for keys, one in zip(options.states, by_state, strict=True):
            for change in one["changes"]:
                seconds = f"{change['gap']:.2f}", f"{change['epochs']:.2f}", f"{change['seconds']:.2f}"
                shown.add_row(name, f"{keys:,}", change["label"], *seconds)
        gaps[name] = [max(change["epochs"] for change in one["changes"]) for one in by_state]
    cores = {
        count: max(one["cores"][count] for one in measured.get(TABLE, [])) for count in ("1", "2") if TABLE in measured
    }
    if cores:
        shown.caption = (
            f"Cores the container keeps busy at best: {cores['1']:.1f} with one thread, {cores['2']:.1f} with two."
        )
    question = "How long does a job pause when its threads change?"
    with plot("threads", question, "ChronoStream Fig. 16", NOTE, quick=options.quick) as (axis,):
        for name, by_state in measured.items():
            worst = [max(change["gap"] for change in one["changes"]) for one in by_state]
            axis.plot(options.states, worst, marker="o", label=name)
        millions(axis, options.states)
        axis.set_ylabel("longest gap between commits, seconds")
        axis.set_ylim(bottom=0)
    report(
        shown,
        {
            "gap_epochs": max(gaps.get(TABLE, []), default=None),
            "gap_epochs_repartition": max(gaps.get(REPARTITION, []), default=None),
            "gap_epochs_by_state": [round(one, 3) for one in gaps.get(TABLE, [])],
            "gap_epochs_repartition_by_state": [round(one, 3) for one in gaps.get(REPARTITION, [])],
            "states": options.states,
            "cores_1_thread": cores.get("1"),
            "cores_2_threads": cores.get("2"),
        },
    )


if __name__ == "__main__":
    main()
