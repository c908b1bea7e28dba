"""What safety costs: no copies at all, ``Sync`` and ``Delta`` every three seconds, with the state growing.

Two measurements (ChronoStream, Fig. 18 and Table II). Throughput, with more rows waiting than can be taken: the
policies take turns, each is compared with no safety in its own round. Epoch times, at half of the measured maximum and
a trigger of a second: average and longest. A tenth of the keys changes in an interval; one and three backups with all
keys changing are reported beside. Everything on one machine, so copies and computing share its cores. ``Delta`` writes
to the store once a minute only: the throughput's turns are shorter and do not have it, the epochs at half load may.

With both cores busy throughput is the inverse of the CPU time that a row takes, all processes together, and that can be
measured directly, whatever else runs: ``cpu`` beside each cost is what it says.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from common import console, measure_apart, median, parser, report, scratch, session, table
from kit.contestants import Holdfast, Sampler, all_cpu_seconds, preload, under_load
from kit.load import Files, distances
from kit.pairs import Pairs, pairs
from kit.plots import millions, plot
from pyspark.sql import SparkSession

EVERY = "3 s"
NONE, SYNC, DELTA = "none", "sync", "delta"
# Only reported; each with a base of its own, which has as many containers and changes as many keys.
EXTRA = {"delta, all keys": "none, all keys", "delta, 3 backups, all keys": "none, 4 containers, all keys"}
HOT = 0.1
FILE_ROWS = 250_000
TO_PEERS, TO_STORE = ("copied",), ("written",)  # kinds of events that carry bytes


def safety(name: str) -> Any:
    import holdfast as hf

    if name.startswith(NONE):
        return None
    if name == SYNC:
        return hf.Sync(every=EVERY)
    # The store's turn is not part of what is compared here: too seldom for a turn to have its share of it.
    return hf.Delta(backups=3 if "3 backups" in name else 1, every=EVERY, store_every="60 s")


def containers(name: str) -> int:
    return 4 if "3 backups" in name or "4 containers" in name else 2


@contextmanager
def started(spark: SparkSession, name: str, keys: int, files_per_epoch: int | None) -> Iterator[Holdfast]:
    with scratch() as folder:
        files = Files(folder, keys, hot=1.0 if "all keys" in name else HOT)
        trigger = {"processingTime": "0 seconds"} if files_per_epoch else None
        made = Holdfast(
            spark, folder, files, files_per_epoch, trigger, containers=containers(name), safety=safety(name)
        )
        try:
            yield made
        finally:
            made.stop()


def throughput(spark: SparkSession, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Rows a second from commit to commit while there are always more."""
    rows = options.file_rows
    with started(spark, name, options.keys, files_per_epoch=4) as made:
        preload(made)
        ready = made.files.random(rows, 8)
        begun, seen, cpu = time.time(), len(made.query.recentProgress), all_cpu_seconds()
        first = made.run.status().rows
        while time.time() < begun + options.seconds:
            # Some epochs ahead of the query, never so many that the next turn waits long for the end of this one.
            waiting = made.files.rows - made.run.status().rows
            for number in range(max(0, 40 - waiting // rows)):
                made.files.give(ready[number % len(ready)])
            time.sleep(0.2)
        ended = time.time()
        cpu = (all_cpu_seconds() - cpu) / (made.run.status().rows - first)
        took = [one.numInputRows for one in made.query.recentProgress[seen:] if one.numInputRows]
        commits = [at for at in made.times() if at > begun]
        # Spark takes what is left of a listing as an epoch of its own, so not every one is full.
        full = [(at, rows_) for at, rows_ in zip(commits, took, strict=False) if begun + 1 < at < ended]
        if len(full) < 3 or sum(rows_ == 4 * rows for _, rows_ in full) < len(full) / 2:
            raise SystemExit(f"The query had to wait for rows: epochs of {sorted(set(took))} rows, not {4 * rows:,}.")
        times = [at for at, _ in full]
        found = {"rate": sum(rows_ for _, rows_ in full[1:]) / (times[-1] - times[0]), "epochs": distances(times)}
        found |= {"cpu": cpu, "peers": sent(made, begun, TO_PEERS), "store": sent(made, begun, TO_STORE)}
        made.check()
    return found


def sent(made: Holdfast, since: float, kinds: tuple[str, ...]) -> int:
    return sum(event.bytes for event in made.events(since, *kinds))


def epochs(spark: SparkSession, name: str, keys: int, options: argparse.Namespace) -> dict[str, Any]:
    """The epochs' own times at half load, and the traffic between processes by the second."""
    with started(spark, name, keys, None) as made:
        with (
            under_load(made, options.burst, 0) as loaded,
            Sampler(lambda: psutil.net_io_counters(pernic=True)["lo"].bytes_sent) as traffic,
        ):
            seen = len(made.query.recentProgress)
            begun = time.time()
            time.sleep(options.load_seconds)
            took = [
                one.durationMs["triggerExecution"] / 1000
                for one in made.query.recentProgress[seen:]
                if one.numInputRows
            ]
            counted = {"peers": sent(made, begun, TO_PEERS), "store": sent(made, begun, TO_STORE)}
        return {"epochs": took, "traffic": traffic.rates(), "rate": loaded.rate, "state": keys, **counted}


def compete(what: str, options: argparse.Namespace) -> None:
    with session(options.memory) as spark:
        if what == "throughput":
            turns: dict[str, list[dict[str, Any]]] = {}

            def measure(name: str) -> float:
                turns.setdefault(name, []).append(throughput(spark, name, options))
                return float(turns[name][-1]["rate"])

            measure(NONE)  # to warm up
            turns.clear()
            found = pairs(measure, NONE, [SYNC, DELTA], options.rounds)
            if options.extra_rounds:
                for name, base in EXTRA.items():
                    found |= pairs(measure, base, [name], options.extra_rounds)
            costs = {name: {"base": one.base, "rates": one.rates} for name, one in found.items()}
            print(json.dumps({"pairs": costs, "turns": turns}))
            return
        name, keys = what.split(":")
        print(json.dumps(epochs(spark, name, int(keys), options)))


def longest(took: list[float]) -> float:
    return max(took) / median(took)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--keys", type=int, default=2_000_000, help="of state while throughput is measured")
    made.add_argument("--states", type=int, nargs="+", default=[500_000, 2_000_000, 8_000_000], help="keys, growing")
    made.add_argument("--rounds", type=int, default=7, help="interleaved rounds; the median counts")
    made.add_argument("--extra-rounds", type=int, default=3, help="of those that are only reported")
    made.add_argument("--seconds", type=float, default=20, help="a turn of the throughput")
    made.add_argument("--load-seconds", type=float, default=45, help="of epochs at half load")
    made.add_argument("--file-rows", type=int, default=FILE_ROWS)
    made.add_argument("--burst", type=int, default=2_000_000, help="rows with which the maximum is measured")
    options = made.parse_args()
    if options.quick:
        options.keys, options.states, options.rounds, options.extra_rounds = 200_000, [200_000], 1, 0
        options.seconds, options.load_seconds, options.file_rows, options.burst = 6, 8, 50_000, 200_000
    if options.contestant:
        compete(options.contestant, options)
        return

    saturated = measure_apart("throughput")
    costs = {name: Pairs(tuple(one["base"]), tuple(one["rates"])) for name, one in saturated["pairs"].items()}
    loaded = {name: [measure_apart(f"{name}:{keys}") for keys in options.states] for name in (NONE, SYNC, DELTA)}

    shown = table(
        f"Throughput, {options.keys:,} keys, every {EVERY}, {HOT:.0%} of the keys changing; {options.rounds} rounds",
        *(
            "safety",
            "rows/s",
            "cost",
            "middle half of the rounds",
            "CPU µs a row",
            "cost",
            "MB to peers",
            "to the store",
        ),
    )
    cpu = {name: median([turn["cpu"] for turn in turns]) for name, turns in saturated["turns"].items()}
    cpu_costs = {name: 1 - cpu[EXTRA.get(name, NONE)] / cpu[name] for name in costs}

    def traffic(name: str) -> tuple[str, str]:
        turns = saturated["turns"][name]
        return tuple(f"{median([turn[where] for turn in turns]) / 1e6:,.1f}" for where in ("peers", "store"))  # type: ignore[return-value]

    shown.add_row(NONE, f"{median(costs[DELTA].base):,.0f}", "–", "–", f"{1e6 * cpu[NONE]:.2f}", "–", *traffic(NONE))
    for name, one in costs.items():
        shown.add_row(
            *(name, f"{median(one.rates):,.0f}", f"{one.cost:.1%}", one.spread),
            *(f"{1e6 * cpu[name]:.2f}", f"{cpu_costs[name]:.1%}", *traffic(name)),
        )
    result: dict[str, Any] = {f"{_short(name)}_cost": one.cost for name, one in costs.items()}
    result |= {f"{_short(name)}_cpu_cost": cost for name, cost in cpu_costs.items()}
    result |= {f"{_short(name)}_spread": one.spread for name, one in costs.items()}

    times = table(
        f"Epochs at half load, every {EVERY}",
        *("safety", "keys", "average ms", "median ms", "longest ms", "÷ median", "loopback MB/s", "peak"),
    )
    for name, measured in loaded.items():
        for one in measured:
            took, sends = one["epochs"], one["traffic"]
            times.add_row(
                *(name, f"{one['state']:,}", f"{1000 * sum(took) / len(took):,.0f}", f"{1000 * median(took):,.0f}"),
                *(f"{1000 * max(took):,.0f}", f"{longest(took):.2f}"),
                *(f"{median(sends) / 1e6:,.1f}", f"{max(sends) / 1e6:,.1f}"),
            )
        result[f"{_short(name)}_longest"] = max(longest(one["epochs"]) for one in measured)
        result[f"{_short(name)}_longest_by_state"] = [round(longest(one["epochs"]), 3) for one in measured]
        result[f"{_short(name)}_bytes"] = [one["peers"] + one["store"] for one in measured]
    console.print(times)
    with plot(
        "checkpoint",
        "Does safety hold up the epochs?",
        "ChronoStream Fig. 18 and Table II",
        "Copies, computing and Spark share them: what a spare core would hide shows here.",
        panels=2,
        quick=options.quick,
    ) as (left, right):
        for name, measured in loaded.items():
            took = [one["epochs"] for one in measured]
            left.plot(
                options.states, [1000 * sum(one) / len(one) for one in took], marker="o", label=f"{name}, average"
            )
            color = left.lines[-1].get_color()
            left.plot(
                options.states,
                [1000 * max(one) for one in took],
                "--",
                color=color,
                marker="^",
                label=f"{name}, longest",
            )
        millions(left, options.states)
        left.set_ylabel("milliseconds an epoch, half load")
        right.bar([name.replace(", ", "\n") for name in costs], [100 * one.cost for one in costs.values()])
        right.set_ylabel("% of throughput lost, saturated")
    report(shown, result)


def _short(name: str) -> str:
    return name.replace(" backups", "").replace(", ", "_").replace(" keys", "").replace(" ", "_")


if __name__ == "__main__":
    main()
