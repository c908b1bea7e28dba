"""What a row costs in a sliding window, against the number of its panes: 10, 30, 100, 300 of one second each.

A window of 300 s that moves by 1 s holds 300 panes, and a row belongs to 300 windows; it must not cost 300 updates.
Keys are dense: each has rows in every second, so whatever the size of the window it moves in the same steps and puts
out the same number of rows. A first epoch of 300 s with one row a key and second fills the largest window; the next two
are left out, the rest counts. Each size is its own job over the same files, in one session; sizes take turns, in
opposite order every other round, and a size is compared with the 10 panes of its own round.

Two figures for a row: the seconds of an epoch (addBatch: reading, all that Holdfast does, and the sink), and the CPU
time of the containers alone, in which nothing of Spark's hides what a window costs. ``max`` cannot be taken back; it is
measured once, to show what that costs, and not in a quick run.
"""

from __future__ import annotations

import argparse
import json
import os
from itertools import repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import CORES, DATA, measure_apart, median, parser, report, scratch, session, table
from kit.contestants import cpu_seconds
from kit.plots import plot
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf

SCHEMA = "k bigint, v bigint, t timestamp"
START = 1_767_225_600
PANES = (10, 30, 100, 300)
SETTLE = 3  # epochs that do not count: the one that fills the windows, two more
BOUND = 0.3
AGGREGATES = {"count and sum": {"n": hf.count(), "total": hf.sum("v")}, "max": {"most": hf.max("v")}}
EXACT, EXTREME = AGGREGATES


def data(options: argparse.Namespace) -> Path:
    """As many files an epoch as there are cores, each with every so-manieth row."""
    keys, rate, epoch, epochs = options.keys, options.rate, options.epoch, options.epochs
    folder = DATA / f"dense-{keys}-{rate}-{epoch}-{epochs}"
    if folder.exists():
        return folder
    half_done = DATA / f"_{folder.name}"
    half_done.mkdir(parents=True, exist_ok=True)
    first = START
    for number, (seconds, rows_s) in enumerate([(max(PANES), 1), *repeat((epoch, rate), SETTLE - 1 + epochs)]):
        draw, turns = np.random.default_rng([7, number]), rows_s * seconds
        rows = keys * turns
        micros = first * 1_000_000 + np.arange(rows) * (seconds * 1_000_000) // rows
        made = {
            "k": draw.permuted(np.tile(np.arange(keys), turns).reshape(turns, keys), axis=1).ravel(),
            "v": draw.integers(0, 1000, rows),
            "t": micros,
        }
        for part in range(CORES):
            some = {name: column[part::CORES] for name, column in made.items()}
            path = half_done / f"{number:04d}-{part}.parquet"
            pq.write_table(pa.table({**some, "t": pa.array(some["t"], pa.timestamp("us", tz="UTC"))}), path)
            os.utime(path, (first, first))
        first += seconds
    half_done.rename(folder)
    return folder


def run(spark: SparkSession, folder: Path, panes: int, what: str) -> tuple[float, float]:
    """Of an epoch in the steady state: its seconds, and the containers' seconds of CPU."""
    used: list[float] = []
    running: list[hf.Run] = []
    pids: dict[str, int] = {}

    def sink(rows: DataFrame, _: int) -> None:
        rows.write.format("noop").mode("overwrite").save()
        if running and not pids:
            pids.update({one.name: one.pid for one in running[0].status().containers})
        used.append(sum(cpu_seconds(pids).values()))

    with scratch() as base:
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", CORES).parquet(str(folder))
        job = hf.Job("windows", spark, store=str(base / "store"))
        keyed = job.read(stream).key_by("k").window(hf.sliding(f"{panes} s", every="1 s"), time="t")
        keyed.agg(**AGGREGATES[what]).for_each_batch(sink)
        with job.start(containers=CORES, trigger={"availableNow": True}) as started:
            running.append(started)
            started.await_termination()
            assert started.query is not None
            seconds = [one["durationMs"]["addBatch"] / 1000 for one in started.query.recentProgress]
    assert pids, "the job ended before it was asked for its containers"
    assert len(used) == len(seconds) > SETTLE, "every epoch has rows, and so a sink"
    return median(seconds[SETTLE:]), (used[-1] - used[SETTLE - 1]) / (len(used) - SETTLE)


def compete(options: argparse.Namespace) -> dict[str, dict[str, list[list[float]]]]:
    """By aggregate and number of panes: of every round, µs a row of whole epochs and of the containers' CPU."""
    folder, rows = data(options), options.keys * options.rate * options.epoch
    rounds = {EXACT: options.rounds} if options.quick else {EXACT: options.rounds, EXTREME: 1}
    found: dict[str, dict[str, list[list[float]]]] = {what: {str(panes): [] for panes in PANES} for what in rounds}
    with session(options.memory) as spark:
        for panes in (PANES[0], PANES[-1]):  # the JVM compiles
            run(spark, folder, panes, EXACT)
        for what, times in rounds.items():
            for number in range(times):
                for panes in PANES if number % 2 == 0 else reversed(PANES):
                    costs = [seconds / rows * 1e6 for seconds in run(spark, folder, panes, what)]
                    found[what][str(panes)].append(costs)
    return found


def growth(costs: dict[int, list[float]], panes: int) -> float:
    """The median, over the rounds, of what so many panes cost more than the fewest."""
    return median([many / few - 1 for many, few in zip(costs[panes], costs[min(PANES)], strict=True)])


def draw(measured: dict[str, dict[int, list[float]]], quick: bool) -> None:
    question = "What does a row cost in a window of many panes?"
    with plot("windows", question, "Li et al., SIGMOD Record 2005", quick=quick) as (axis,):
        for name, costs in measured.items():
            line = [median(costs[panes]) for panes in PANES]
            [drawn] = axis.plot(PANES, line, marker="o", label=name)
            if name.startswith(EXACT):  # nothing is promised of the other
                bound = line[0] * (1 + BOUND)
                axis.fill_between(PANES, line[0], bound, color=drawn.get_color(), alpha=0.12, linewidth=0)
        axis.set_xscale("log")
        axis.set_xticks(PANES, [str(panes) for panes in PANES])
        axis.minorticks_off()
        axis.set_xlabel(f"panes of a window (shaded: up to {BOUND:.0%} above 10 panes)")
        axis.set_ylabel("µs a row")
        axis.set_ylim(bottom=0)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--keys", type=int, default=2000)
    made.add_argument("--rate", type=int, default=10, help="rows of a key in a second")
    made.add_argument("--epoch", type=int, default=20, help="seconds of event time an epoch")
    made.add_argument("--epochs", type=int, default=6, help="epochs that count")
    made.add_argument("--rounds", type=int, default=4, help="an even number: every other one goes backwards")
    options = made.parse_args()
    if options.quick:
        options.keys, options.epochs, options.rounds = 500, 3, 2
    if options.contestant:
        print(json.dumps(compete(options)))
        return
    data(options)
    found = measure_apart("holdfast")
    measured: dict[str, dict[int, list[float]]] = {}
    for what, by_panes in found.items():
        for at, figure in enumerate(("epochs", "containers' CPU")):
            measured[f"{what}: {figure}"] = {int(panes): [one[at] for one in of] for panes, of in by_panes.items()}
    rows = options.keys * options.rate * options.epoch
    shown = table(
        f"{options.keys:,} keys, {rows:,} rows an epoch of {options.epoch} s; µs a row, and more than with 10 panes",
        *("panes", *measured),
    )
    for panes in PANES:
        cells = [f"{median(costs[panes]):.3f} {growth(costs, panes):+6.0%}" for costs in measured.values()]
        shown.add_row(str(panes), *cells)
    draw(measured, options.quick)
    whole, cpu, *others = measured.values()
    report(
        shown,
        {
            "us_per_row": {str(panes): round(median(whole[panes]), 4) for panes in PANES},
            "growth_300": growth(whole, 300),
            "cpu_us_per_row": {str(panes): round(median(cpu[panes]), 4) for panes in PANES},
            "cpu_growth_300": growth(cpu, 300),
            "max_growth_300": growth(others[0], 300) if others else None,
            "rounds": options.rounds,
        },
    )


if __name__ == "__main__":
    main()
